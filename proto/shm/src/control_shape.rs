//! How large a control segment is and where its parts start; and why one may be refused.
//!
//! Both sides compute the offsets from a [`ControlGeometry`], the daemon from its own numbers, the
//! client from what it was told at attach. The words in the parts are [`layout`](crate::layout)'s.

use crate::layout::SUMMARY_GRAIN;
#[cfg(not(loom))]
use crate::layout::{Header, Lane};
#[cfg(not(loom))]
use crate::mapping::MAPPING_ALIGN;
use crate::mapping::MapError;
#[cfg(not(loom))]
use crate::sync::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
use crate::ticket::OUTBOX_SLOTS;

/// Bits in a word of the free map and of its summary.
const WORD_BITS: u64 = 64;
/// Most handles that a client has: so many movable blocks at a time.
pub const HANDLES_MAX: u64 = 1 << 24;
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
    pub(crate) fn is_valid(&self) -> bool {
        (1..=LANES_MAX).contains(&self.nr_lanes)
            && (1..=SECTIONS_MAX).contains(&self.nr_sections)
            && (1..=1 << 32).contains(&self.nr_pages)
    }

    pub(crate) fn map_words(&self) -> usize {
        // At most 2^26, since a valid geometry has at most 2^32 pages.
        usize::try_from(self.nr_pages.div_ceil(WORD_BITS)).unwrap_or(usize::MAX)
    }

    pub(crate) fn summary_words(&self) -> usize {
        self.map_words().div_ceil(SUMMARY_GRAIN).div_ceil(64)
    }

    /// Handles of movable blocks: one for each page there can be, up to [`HANDLES_MAX`].
    pub fn nr_handles(&self) -> u32 {
        u32::try_from(self.nr_pages.min(HANDLES_MAX)).unwrap_or(u32::MAX)
    }

    #[cfg(not(loom))]
    pub(crate) fn nr_records(&self) -> usize {
        // At most 2^32, and this is a 64-bit system.
        usize::try_from(self.nr_pages).unwrap_or(usize::MAX)
    }
}

/// Where the parts start, in bytes.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    pub settled: usize,
    pub lanes: usize,
    pub announced: usize,
    pub mapped: usize,
    pub free_map: usize,
    pub summary: usize,
    pub handles: usize,
    pub records: usize,
    pub end: usize,
}

#[cfg(not(loom))]
impl ControlGeometry {
    /// Length of a segment of this shape, in bytes; most of it is a hole for ever.
    pub fn len_bytes(&self) -> Result<usize, ControlError> {
        self.offsets().map(|offsets| offsets.end)
    }

    /// The bounds of a valid geometry keep every sum below 2^40.
    pub(crate) fn offsets(&self) -> Result<Offsets, ControlError> {
        if !self.is_valid() {
            return Err(ControlError::Shape(*self));
        }
        let after = |start: usize, len: usize| (start + len).next_multiple_of(MAPPING_ALIGN);
        let sections_bytes = self.nr_sections as usize * size_of::<AtomicU32>();
        let settled = after(0, size_of::<Header>());
        let lanes = after(settled, OUTBOX_SLOTS * size_of::<AtomicU32>());
        let announced = after(lanes, self.nr_lanes as usize * size_of::<Lane>());
        let mapped = after(announced, sections_bytes);
        let free_map = after(mapped, sections_bytes);
        let summary = after(free_map, self.map_words() * size_of::<AtomicU64>());
        let handles = after(summary, self.summary_words() * size_of::<AtomicU64>());
        let records = after(handles, self.nr_handles() as usize * size_of::<AtomicU64>());
        let end = after(records, self.nr_records() * size_of::<AtomicU64>());
        Ok(Offsets {
            settled,
            lanes,
            announced,
            mapped,
            free_map,
            summary,
            handles,
            records,
            end,
        })
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
                offsets.settled,
                offsets.settled + OUTBOX_SLOTS * 4,
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
                offsets.handles,
                offsets.handles + geometry.nr_handles() as usize * 8,
                offsets.records,
                offsets.records + geometry.nr_records() * 8,
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
}
