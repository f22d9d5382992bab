//! The control segment: the memory that one client and the daemon share, and nobody else.
//!
//! It lays [`layout`](crate::layout) over a mapping and hands out the words by what they mean.
//! The protocols over them are elsewhere: [`LaneClient`](crate::lane_client::LaneClient),
//! [`LaneDaemon`](crate::lane_daemon::LaneDaemon), [`FreeMap`], [`doorbell`](crate::doorbell).
//! The daemon never reads the header back: it knows the shape of what it made.

use std::sync::Arc;

#[cfg(not(loom))]
use crate::control_shape::Offsets;
pub use crate::control_shape::{ControlError, ControlGeometry, LANES_MAX, SECTIONS_MAX};
use crate::doorbell;
use crate::free_map::FreeMap;
#[cfg(not(loom))]
use crate::handles::Handles;
#[cfg(loom)]
use crate::layout::built;
use crate::layout::{Header, LAYOUT_VERSION, Lane, MAGIC};
#[cfg(not(loom))]
use crate::mapping::Mapping;
#[cfg(loom)]
use crate::sync::AtomicU64;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release};

#[cfg(not(loom))]
struct Parts {
    mapping: Mapping,
    offsets: Offsets,
}

#[cfg(loom)]
struct Parts {
    header: Header,
    lanes: Vec<Lane>,
    announced: Vec<AtomicU32>,
    mapped: Vec<AtomicU32>,
    free_map: Vec<AtomicU64>,
    summary: Vec<AtomicU64>,
}

/// A control segment, as either side has it; clones are the same segment.
#[derive(Clone)]
pub struct ControlSegment {
    parts: Arc<Parts>,
    geometry: ControlGeometry,
}

#[cfg(not(loom))]
impl ControlSegment {
    /// Makes a segment in a zeroed mapping (the daemon's step): fills the header in.
    pub fn create(
        mapping: Mapping,
        geometry: ControlGeometry,
    ) -> Result<ControlSegment, ControlError> {
        let segment = ControlSegment::over(mapping, geometry)?;
        segment.write_header();
        Ok(segment)
    }

    /// Enters a segment that the daemon made (the client's step): the header must say what the
    /// attach reply said.
    pub fn open(
        mapping: Mapping,
        geometry: ControlGeometry,
    ) -> Result<ControlSegment, ControlError> {
        let segment = ControlSegment::over(mapping, geometry)?;
        segment.check_header()?;
        Ok(segment)
    }

    /// Enters a segment that the daemon made, of the shape that its header says: for a client that
    /// was given some of the zones and so cannot know the span of all.
    pub fn open_as_made(mapping: Mapping) -> Result<ControlSegment, ControlError> {
        let too_short = ControlError::TooShort {
            needed_bytes: size_of::<Header>(),
            mapped_bytes: mapping.len_bytes(),
        };
        let header: &Header = mapping.overlay(0).map_err(|_| too_short)?;
        // SYNC(control.magic): pairs with `write_header`.
        let magic = header.magic.load(Acquire);
        if magic != MAGIC {
            return Err(ControlError::NotAControlSegment { magic });
        }
        let geometry = ControlGeometry {
            nr_lanes: header.nr_lanes.load(Relaxed),
            nr_sections: header.nr_sections.load(Relaxed),
            nr_pages: header.nr_pages.load(Relaxed),
        };
        ControlSegment::open(mapping, geometry)
    }

    /// Makes a segment in fresh anonymous memory, for one process that plays both sides.
    pub fn anonymous(geometry: ControlGeometry) -> Result<ControlSegment, ControlError> {
        ControlSegment::create(Mapping::anonymous(geometry.len_bytes()?)?, geometry)
    }

    /// Makes a segment on the heap, for tests and interpreters.
    pub fn heap(geometry: ControlGeometry) -> Result<ControlSegment, ControlError> {
        ControlSegment::create(Mapping::heap(geometry.len_bytes()?)?, geometry)
    }

    fn over(mapping: Mapping, geometry: ControlGeometry) -> Result<ControlSegment, ControlError> {
        let offsets = geometry.offsets()?;
        if mapping.len_bytes() < offsets.end {
            return Err(ControlError::TooShort {
                needed_bytes: offsets.end,
                mapped_bytes: mapping.len_bytes(),
            });
        }
        Ok(ControlSegment {
            parts: Arc::new(Parts { mapping, offsets }),
            geometry,
        })
    }

    pub(crate) fn header(&self) -> &Header {
        self.parts.mapping.overlay(0).expect(FITS)
    }

    fn lanes(&self) -> &[Lane] {
        let Parts { mapping, offsets } = &*self.parts;
        mapping
            .overlay_slice(offsets.lanes, self.geometry.nr_lanes as usize)
            .expect(FITS)
    }

    fn announced_words(&self) -> &[AtomicU32] {
        let Parts { mapping, offsets } = &*self.parts;
        mapping
            .words32(offsets.announced, self.geometry.nr_sections as usize)
            .expect(FITS)
    }

    fn mapped_words(&self) -> &[AtomicU32] {
        let Parts { mapping, offsets } = &*self.parts;
        mapping
            .words32(offsets.mapped, self.geometry.nr_sections as usize)
            .expect(FITS)
    }

    /// The client's free map.
    pub fn free_map(&self) -> FreeMap<'_> {
        let Parts { mapping, offsets } = &*self.parts;
        let bits = mapping
            .words64(offsets.free_map, self.geometry.map_words())
            .expect(FITS);
        let summary = mapping
            .words64(offsets.summary, self.geometry.summary_words())
            .expect(FITS);
        FreeMap { bits, summary }
    }

    /// The client's handles of movable pages.
    #[inline]
    pub fn handles(&self) -> Handles<'_> {
        let Parts { mapping, offsets } = &*self.parts;
        let words = mapping
            .words64(offsets.handles, self.geometry.nr_handles() as usize)
            .expect(FITS);
        let records = mapping
            .words64(offsets.records, self.geometry.nr_records())
            .expect(FITS);
        Handles::new(words, records)
    }
}

#[cfg(not(loom))]
const FITS: &str = "`over` has checked that all parts lie in the mapping";

#[cfg(loom)]
impl ControlSegment {
    /// Builds a segment for a model.
    pub fn heap(geometry: ControlGeometry) -> Result<ControlSegment, ControlError> {
        if !geometry.is_valid() {
            return Err(ControlError::Shape(geometry));
        }
        let words32 = |count: usize| (0..count).map(|_| built::word()).collect::<Vec<_>>();
        let words64 = |count: usize| (0..count).map(|_| built::slot()).collect::<Vec<_>>();
        let parts = Parts {
            header: Header::new(),
            lanes: (0..geometry.nr_lanes).map(|_| Lane::new()).collect(),
            announced: words32(geometry.nr_sections as usize),
            mapped: words32(geometry.nr_sections as usize),
            free_map: words64(geometry.map_words()),
            summary: words64(geometry.summary_words()),
        };
        let segment = ControlSegment {
            parts: Arc::new(parts),
            geometry,
        };
        segment.write_header();
        Ok(segment)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.parts.header
    }

    fn lanes(&self) -> &[Lane] {
        &self.parts.lanes
    }

    fn announced_words(&self) -> &[AtomicU32] {
        &self.parts.announced
    }

    fn mapped_words(&self) -> &[AtomicU32] {
        &self.parts.mapped
    }

    /// The client's free map.
    pub fn free_map(&self) -> FreeMap<'_> {
        FreeMap {
            bits: &self.parts.free_map,
            summary: &self.parts.summary,
        }
    }
}

/// What both sides ask.
impl ControlSegment {
    /// The shape that this side knows.
    pub fn geometry(&self) -> ControlGeometry {
        self.geometry
    }

    /// A lane, if there is one of that index.
    pub(crate) fn lane(&self, index: u32) -> Option<&Lane> {
        self.lanes().get(index as usize)
    }

    fn write_header(&self) {
        let header = self.header();
        header.version.store(LAYOUT_VERSION, Relaxed);
        header.nr_lanes.store(self.geometry.nr_lanes, Relaxed);
        header.nr_sections.store(self.geometry.nr_sections, Relaxed);
        header.nr_pages.store(self.geometry.nr_pages, Relaxed);
        // SYNC(control.magic): the header is whole once it shows.
        header.magic.store(MAGIC, Release);
    }

    #[cfg(not(loom))]
    fn check_header(&self) -> Result<(), ControlError> {
        let header = self.header();
        // SYNC(control.magic): pairs with `write_header`.
        let magic = header.magic.load(Acquire);
        if magic != MAGIC {
            return Err(ControlError::NotAControlSegment { magic });
        }
        let theirs = header.version.load(Relaxed);
        if theirs != LAYOUT_VERSION {
            return Err(ControlError::Version {
                ours: LAYOUT_VERSION,
                theirs,
            });
        }
        let found = ControlGeometry {
            nr_lanes: header.nr_lanes.load(Relaxed),
            nr_sections: header.nr_sections.load(Relaxed),
            nr_pages: header.nr_pages.load(Relaxed),
        };
        if found != self.geometry {
            return Err(ControlError::OtherShape {
                told: self.geometry,
                found,
            });
        }
        Ok(())
    }
}

/// What the daemon says and asks.
impl ControlSegment {
    /// Announces a section's incarnation, 0 for one that has gone; clients hear of it by
    /// [`ControlSegment::raise_section_epoch`]. False if there is no such section.
    pub fn announce(&self, section: u32, incarnation: u32) -> bool {
        let Some(word) = self.announced_words().get(section as usize) else {
            return false;
        };
        // SYNC(section.announced): the section's storage is there before it is announced.
        word.store(incarnation, Release);
        true
    }

    /// Says that `announced` has changed.
    pub fn raise_section_epoch(&self, epoch: u32) {
        // SYNC(section.epoch): publishes the announcements before it.
        self.header().section_epoch.store(epoch, Release);
    }

    /// Whether the client says that it has mapped this incarnation of the section: a claim that
    /// harms nobody but the client, whose touch of an unmapped page faults.
    pub fn is_mapped(&self, section: u32, incarnation: u32) -> bool {
        // SYNC(section.mapped): pairs with `mark_mapped`.
        let word = self
            .mapped_words()
            .get(section as usize)
            .map(|word| word.load(Acquire));
        word == Some(incarnation) && incarnation != 0
    }

    /// The section epoch up to which the client says that it has mapped.
    pub fn mapped_epoch(&self) -> u32 {
        // SYNC(section.mapped): pairs with `mark_mapped_epoch`.
        self.header().mapped_epoch.load(Acquire)
    }

    /// Says that the daemon is about to sleep; it must look at everything once more first.
    pub fn announce_sleep(&self) {
        doorbell::announce_sleep(&self.header().sleeping);
    }

    /// Says that the daemon is awake.
    pub fn announce_wake(&self) {
        doorbell::announce_wake(&self.header().sleeping);
    }

    /// Says that the client is detached or poisoned; `why` is not 0. Its calls are refused from
    /// now on, its frees go to the free map.
    pub fn close(&self, why: u32) {
        // SYNC(control.closed): nothing follows that a client could miss, but waiters are woken
        // after it and must see it.
        self.header().closed.store(why, Release);
    }

    /// Publishes how many pages the client may still claim from others.
    pub fn set_claim_allowance(&self, nr_pages: u64) {
        self.header().claim_allowance.store(nr_pages, Relaxed);
    }

    /// Raises the wake word after news for waiting clients; true if somebody says that it waits,
    /// and the caller must then wake the futex.
    pub fn raise_wake(&self) -> bool {
        let header = self.header();
        // SYNC(control.wake): what there is news of comes before it.
        header.wake.fetch_add(1, Release);
        // SYNC(control.waiters): pairs with the fence in `begin_wait`: the waiter's look at the
        // wake word and this look cannot both miss.
        crate::sync::fence(crate::sync::SeqCst);
        header.waiters.load(Relaxed) != 0
    }
}

/// What the client says and asks.
impl ControlSegment {
    /// The incarnation in which a section is announced, 0 if it is not there.
    pub fn announced(&self, section: u32) -> u32 {
        // SYNC(section.announced): pairs with `announce`.
        self.announced_words()
            .get(section as usize)
            .map_or(0, |word| word.load(Acquire))
    }

    /// The epoch of the announcements: it has moved when some of them changed.
    pub fn section_epoch(&self) -> u32 {
        // SYNC(section.epoch): pairs with `raise_section_epoch`.
        self.header().section_epoch.load(Acquire)
    }

    /// Says which incarnation of a section is mapped here, 0 for none; after the map is made,
    /// before it is taken away.
    pub fn mark_mapped(&self, section: u32, incarnation: u32) -> bool {
        let Some(word) = self.mapped_words().get(section as usize) else {
            return false;
        };
        // SYNC(section.mapped): the map was made before.
        word.store(incarnation, Release);
        true
    }

    /// Says up to which section epoch this client has mapped and unmapped.
    pub fn mark_mapped_epoch(&self, epoch: u32) {
        // SYNC(section.mapped): the marks come before.
        self.header().mapped_epoch.store(epoch, Release);
    }

    /// Says whether this process is registered for the global membarrier.
    pub fn mark_registered(&self, registered: bool) {
        self.header()
            .registered
            .store(u32::from(registered), Relaxed);
    }

    /// Why the daemon closed this client, 0 while it has not.
    pub fn closed(&self) -> u32 {
        // SYNC(control.closed): pairs with `close`.
        self.header().closed.load(Acquire)
    }

    /// Pages that may still be claimed from others.
    pub fn claim_allowance(&self) -> u64 {
        self.header().claim_allowance.load(Relaxed)
    }

    /// The futex word that the daemon raises with news.
    pub fn wake_word(&self) -> &AtomicU32 {
        &self.header().wake
    }

    /// Announces a waiter and returns the wake word's value to wait on. The caller must look
    /// once more whether there is still something to wait for, then wait for the word to differ,
    /// then call [`ControlSegment::end_wait`].
    pub fn begin_wait(&self) -> u32 {
        let header = self.header();
        header.waiters.fetch_add(1, Relaxed);
        // SYNC(control.waiters): pairs with the fence in `raise_wake`.
        crate::sync::fence(crate::sync::SeqCst);
        // SYNC(control.wake): pairs with `raise_wake`.
        header.wake.load(Acquire)
    }

    /// Takes the waiter's announcement back.
    pub fn end_wait(&self) {
        self.header().waiters.fetch_sub(1, Relaxed);
    }
}

impl core::fmt::Debug for ControlSegment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ControlSegment")
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const TINY: ControlGeometry = ControlGeometry {
        nr_lanes: 2,
        nr_sections: 4,
        nr_pages: 256,
    };

    #[test]
    fn a_segment_of_another_make_is_refused_with_both_sides_named() {
        let len = TINY.len_bytes().unwrap();
        let fresh = Mapping::heap(len).unwrap();
        let answer = ControlSegment::open(fresh, TINY).unwrap_err();
        assert_eq!(answer, ControlError::NotAControlSegment { magic: 0 });

        let short = Mapping::heap(len - 1)
            .map(|_| Mapping::heap(4096).unwrap())
            .unwrap();
        let answer = ControlSegment::open(short, TINY).unwrap_err();
        assert_eq!(
            answer,
            ControlError::TooShort {
                needed_bytes: len,
                mapped_bytes: 4096
            }
        );

        let fresh = Mapping::heap(len).unwrap();
        let answer = ControlSegment::open_as_made(fresh).unwrap_err();
        assert_eq!(answer, ControlError::NotAControlSegment { magic: 0 });

        let made = ControlSegment::heap(TINY).unwrap();
        assert_eq!(made.check_header(), Ok(()));
        made.header().version.store(LAYOUT_VERSION + 1, Relaxed);
        let theirs = LAYOUT_VERSION + 1;
        let expected = ControlError::Version {
            ours: LAYOUT_VERSION,
            theirs,
        };
        assert_eq!(made.check_header(), Err(expected));
        made.header().version.store(LAYOUT_VERSION, Relaxed);
        made.header().nr_lanes.store(9, Relaxed);
        let found = ControlGeometry {
            nr_lanes: 9,
            ..TINY
        };
        assert_eq!(
            made.check_header(),
            Err(ControlError::OtherShape { told: TINY, found })
        );
    }

    #[test]
    fn a_section_is_lent_from_only_in_the_incarnation_that_is_mapped() {
        let segment = ControlSegment::heap(TINY).unwrap();
        assert!(segment.announce(3, 7) && !segment.announce(4, 7));
        assert_eq!((segment.announced(3), segment.announced(4)), (7, 0));
        assert!(!segment.is_mapped(3, 7) && !segment.is_mapped(0, 0));
        assert!(segment.mark_mapped(3, 7));
        assert!(segment.is_mapped(3, 7) && !segment.is_mapped(3, 8));
    }
}
