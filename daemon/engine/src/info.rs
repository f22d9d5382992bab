//! The tables of `/proc/buddyinfo`, `pagetypeinfo` and `zoneinfo`, and of the contiguity caches.
//!
//! Plain numbers, filled by [`snapshot`](crate::snapshot); the lines and widths are the
//! tool's affair.

use hugepool_mm::Pfn;

use crate::report::{PageCounts, Watermarks};

/// The cache of answers to "is this pageblock all there".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContiguityReport {
    /// Name of the zone.
    pub zone: String,
    /// "none", "zone", "pageblock" or "both".
    pub mode: &'static str,
    /// The answer for the whole zone, as cached.
    pub contiguous: bool,
    /// Questions answered from a cache.
    pub nr_hits: u64,
    /// Questions that were not.
    pub nr_misses: u64,
    /// Walks over extents.
    pub nr_walks: u64,
    /// Pageblocks of the span.
    pub nr_pageblocks: u64,
    /// Pageblocks with a cached answer.
    pub nr_pb_cached: u64,
    /// Pageblocks whose cached answer is yes.
    pub nr_pb_contiguous: u64,
    /// A bit for each pageblock of the span, lowest first.
    pub pb_cached: Vec<u8>,
    /// A bit for each pageblock of the span, lowest first.
    pub pb_contiguous: Vec<u8>,
    /// First page of the span.
    pub first: Pfn,
}

/// A line of buddyinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneBuddyInfo {
    /// NUMA node; -1: any.
    pub node: i32,
    /// Name of the zone.
    pub zone: String,
    /// Free blocks by order.
    pub free_blocks_by_order: Vec<u64>,
}

/// The lines of pagetypeinfo for a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTypeReport {
    /// NUMA node; -1: any.
    pub node: i32,
    /// Name of the zone.
    pub zone: String,
    /// One row for each type, isolated blocks last.
    pub rows: Vec<PageTypeRow>,
}

/// A line of pagetypeinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTypeRow {
    /// Name of the type.
    pub name: &'static str,
    /// Free blocks by order.
    pub free_blocks_by_order: Vec<u64>,
    /// Pageblocks of the type.
    pub nr_pageblocks: u64,
}

/// What zoneinfo says of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// NUMA node; -1: any.
    pub node: i32,
    /// Name of the zone.
    pub zone: String,
    /// Its equations.
    pub pages: PageCounts,
    /// Its marks.
    pub watermarks: Watermarks,
    /// Reserve against requests of each zone class.
    pub protection: Vec<u64>,
    /// First page of the first present section, else of the reserve.
    pub start: Pfn,
    /// The daemon's own lists.
    pub pagesets: Vec<Pageset>,
}

/// One of the daemon's own lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pageset {
    /// Which worker's.
    pub cpu: u32,
    /// Pages in it.
    pub count: u64,
    /// Drained above.
    pub high: u64,
    /// Moved per visit.
    pub batch: u64,
}
