//! The control segment: the memory that one client and the daemon share, and nobody else.
//!
//! It lays [`layout`](crate::layout) over a mapping and hands out the words by what they mean.
//! The protocols over them are elsewhere: [`LaneClient`](crate::lane_client::LaneClient),
//! [`LaneDaemon`](crate::lane_daemon::LaneDaemon), [`FreeMap`], [`doorbell`](crate::doorbell).
//! The daemon never reads the header back: it knows the shape of what it made.

use std::sync::Arc;

use crate::doorbell;
use crate::free_map::FreeMap;
use crate::layout::{Header, LAYOUT_VERSION, Lane, MAGIC, SUMMARY_GRAIN};
use crate::mapping::MapError;
#[cfg(not(loom))]
use crate::mapping::{MAPPING_ALIGN, Mapping};
use crate::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// Bits in a word of the free map and of its summary.
const WORD_BITS: u64 = 64;
/// Most lanes that a client may have.
pub const LANES_MAX: u32 = 1024;
/// Most sections of all zones together: a span of 2^32 pages in sections of 2^5 pages.
pub const SECTIONS_MAX: u32 = 1 << 27;

/// How large the parts of a control segment are. Both sides compute the offsets from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlGeometry {
    /// Lanes, at least 1; the last is shared by threads that got none of their own.
    pub nr_lanes: u32,
    /// Sections of all zones together.
    pub nr_sections: u32,
    /// Pages of all zones together, reserves included: one above the highest pfn. At most 2^32.
    pub nr_pages: u64,
}

/// Why a control segment could not be made or entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// A part is empty or larger than it may be.
    #[error("no control segment has the shape {0:?}")]
    Shape(ControlGeometry),
    /// The mapping is shorter than its parts.
    #[error("the control segment needs {needed_bytes} bytes, the mapping has {mapped_bytes}")]
    TooShort {
        /// What the geometry needs.
        needed_bytes: usize,
        /// What there is.
        mapped_bytes: usize,
    },
    /// The header does not say that this is a control segment.
    #[error("the control segment starts with {magic:#018x}")]
    NotAControlSegment {
        /// Its first word.
        magic: u64,
    },
    /// The header has another version of the layout.
    #[error("the control segment has layout version {theirs}, this library {ours}")]
    Version {
        /// Ours.
        ours: u32,
        /// The daemon's.
        theirs: u32,
    },
    /// The header has another shape than was told at attach.
    #[error("the control segment was told to be {told:?} and says {found:?}")]
    OtherShape {
        /// What the attach reply said.
        told: ControlGeometry,
        /// What the header says.
        found: ControlGeometry,
    },
    /// The memory could not be had.
    #[error("the control segment could not be mapped")]
    Map(#[from] MapError),
}

impl ControlGeometry {
    fn is_valid(&self) -> bool {
        (1..=LANES_MAX).contains(&self.nr_lanes)
            && (1..=SECTIONS_MAX).contains(&self.nr_sections)
            && (1..=1 << 32).contains(&self.nr_pages)
    }

    fn map_words(&self) -> usize {
        // At most 2^26, since a valid geometry has at most 2^32 pages.
        usize::try_from(self.nr_pages.div_ceil(WORD_BITS)).unwrap_or(usize::MAX)
    }

    fn summary_words(&self) -> usize {
        self.map_words().div_ceil(SUMMARY_GRAIN).div_ceil(64)
    }
}

/// Where the parts start, in bytes.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
struct Offsets {
    lanes: usize,
    announced: usize,
    mapped: usize,
    free_map: usize,
    summary: usize,
    end: usize,
}

#[cfg(not(loom))]
impl ControlGeometry {
    /// Length of a segment of this shape, in bytes; most of it is a hole for ever.
    pub fn len_bytes(&self) -> Result<usize, ControlError> {
        self.offsets().map(|offsets| offsets.end)
    }

    /// The bounds of a valid geometry keep every sum below 2^40.
    fn offsets(&self) -> Result<Offsets, ControlError> {
        if !self.is_valid() {
            return Err(ControlError::Shape(*self));
        }
        let after = |start: usize, len: usize| (start + len).next_multiple_of(MAPPING_ALIGN);
        let sections_bytes = self.nr_sections as usize * size_of::<AtomicU32>();
        let lanes = after(0, size_of::<Header>());
        let announced = after(lanes, self.nr_lanes as usize * size_of::<Lane>());
        let mapped = after(announced, sections_bytes);
        let free_map = after(mapped, sections_bytes);
        let summary = after(free_map, self.map_words() * size_of::<AtomicU64>());
        let end = after(summary, self.summary_words() * size_of::<AtomicU64>());
        Ok(Offsets {
            lanes,
            announced,
            mapped,
            free_map,
            summary,
            end,
        })
    }
}

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
        let words32 = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        let words64 = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
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
    fn parts_do_not_overlap_and_fit() {
        for geometry in [
            TINY,
            ControlGeometry {
                nr_lanes: 1024,
                nr_sections: 1 << 14,
                nr_pages: 1 << 29,
            },
            ControlGeometry {
                nr_lanes: 1,
                nr_sections: 1,
                nr_pages: 1 << 32,
            },
        ] {
            let offsets = geometry.offsets().unwrap();
            let in_order = [
                size_of::<Header>(),
                offsets.lanes,
                offsets.lanes + geometry.nr_lanes as usize * size_of::<Lane>(),
                offsets.announced,
                offsets.announced + geometry.nr_sections as usize * 4,
                offsets.mapped,
                offsets.mapped + geometry.nr_sections as usize * 4,
                offsets.free_map,
                offsets.free_map + geometry.map_words() * 8,
                offsets.summary,
                offsets.summary + geometry.summary_words() * 8,
                offsets.end,
            ];
            assert!(in_order.is_sorted(), "{offsets:?}");
        }
    }

    #[test]
    fn shapes_without_bounds_are_refused() {
        for geometry in [
            ControlGeometry {
                nr_lanes: 0,
                ..TINY
            },
            ControlGeometry {
                nr_lanes: LANES_MAX + 1,
                ..TINY
            },
            ControlGeometry {
                nr_sections: 0,
                ..TINY
            },
            ControlGeometry {
                nr_pages: 0,
                ..TINY
            },
            ControlGeometry {
                nr_pages: (1 << 32) + 1,
                ..TINY
            },
        ] {
            assert_eq!(geometry.len_bytes(), Err(ControlError::Shape(geometry)));
        }
    }

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
