//! The control segment: the memory that one client and the daemon share, and nobody else.
//!
//! It lays [`layout`](crate::layout) over a mapping and hands out the words by what they mean.
//! What the two say through its single words is in `control_words.rs`; the protocols over the rest
//! are elsewhere: [`LaneClient`](crate::lane_client::LaneClient),
//! [`LaneDaemon`](crate::lane_daemon::LaneDaemon), [`FreeMap`], [`doorbell`](crate::doorbell).
//! The daemon never reads the header back: it knows the shape of what it made.

use std::sync::Arc;

#[cfg(not(loom))]
use crate::control_shape::Offsets;
pub use crate::control_shape::{ControlError, ControlGeometry, LANES_MAX, SECTIONS_MAX};
use crate::free_map::FreeMap;
#[cfg(not(loom))]
use crate::handles::Handles;
#[cfg(loom)]
use crate::layout::built;
use crate::layout::{Header, LAYOUT_VERSION, Lane, MAGIC};
#[cfg(not(loom))]
use crate::mapping::Mapping;
#[cfg(not(loom))]
use crate::sync::Acquire;
#[cfg(loom)]
use crate::sync::AtomicU64;
use crate::sync::{AtomicU32, Relaxed, Release};
#[cfg(not(loom))]
use crate::ticket::OUTBOX_SLOTS;

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

    pub(crate) fn settled_words(&self) -> &[AtomicU32] {
        let Parts { mapping, offsets } = &*self.parts;
        mapping.words32(offsets.settled, OUTBOX_SLOTS).expect(FITS)
    }

    pub(crate) fn announced_words(&self) -> &[AtomicU32] {
        let Parts { mapping, offsets } = &*self.parts;
        mapping
            .words32(offsets.announced, self.geometry.nr_sections as usize)
            .expect(FITS)
    }

    pub(crate) fn mapped_words(&self) -> &[AtomicU32] {
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

    pub(crate) fn announced_words(&self) -> &[AtomicU32] {
        &self.parts.announced
    }

    pub(crate) fn mapped_words(&self) -> &[AtomicU32] {
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
}
