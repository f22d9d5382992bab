//! The zone's numbers, as equations and as the `/proc` files have them.
//!
//! `present = managed + reserved` and `managed = free + pcp + lent + isolated`. All of
//! it is counted as it changes; a report reads counters and never walks pages.

use crate::pageblock::ISOLATE_POOL;
use crate::watermark::Watermarks;
use crate::{Migratetype, Pfn, Zone, ZoneId, ZoneKind};

/// Pages of a zone, by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCounts {
    /// First to last present section, holes included.
    pub spanned: u64,
    /// Pages that exist.
    pub present: u64,
    /// Pages given to the buddy.
    pub managed: u64,
    /// Pages that exist and are not managed: `present - managed`.
    pub reserved: u64,
    /// Free pages that may be handed out.
    pub free: u64,
    /// Pages in the zone's own lists.
    pub pcp: u64,
    /// Managed pages that somebody else holds.
    pub lent: u64,
    /// Free pages in isolated pageblocks.
    pub isolated: u64,
}

/// Rows of [`PageTypeInfo`]: the types in their order, then isolated pageblocks.
pub const NR_PAGE_TYPE_ROWS: usize = ISOLATE_POOL + 1;

/// Free blocks and pageblocks by type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTypeInfo {
    /// Name, free blocks by order `0..=MAX_PAGE_ORDER`, and number of pageblocks.
    pub rows: [PageTypeRow; NR_PAGE_TYPE_ROWS],
}

/// One line of `/proc/pagetypeinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTypeRow {
    /// The type; `None` for isolated pageblocks of any type.
    pub migratetype: Option<Migratetype>,
    /// Free blocks by order.
    pub free_blocks: Vec<u64>,
    /// Managed pageblocks.
    pub nr_pageblocks: u64,
}

impl PageTypeRow {
    /// The name used in `/proc/pagetypeinfo`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.migratetype.map_or("Isolate", Migratetype::name)
    }
}

/// How often requests left the pageblocks of their own type, since the zone was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackCounts {
    /// Free blocks of at least pageblock order that changed their type for a request.
    pub nr_whole_claimed: u64,
    /// Partly free pageblocks that changed their type for a request.
    pub nr_partial_claimed: u64,
    /// Blocks taken out of pageblocks that kept their type.
    pub nr_stolen: u64,
}

/// One zone of `/proc/zoneinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// Its number.
    pub id: ZoneId,
    /// Its name.
    pub name: String,
    /// What it serves.
    pub kind: ZoneKind,
    /// NUMA node.
    pub node: u32,
    /// First page of the reserve.
    pub start: Pfn,
    /// Where its pages are.
    pub counts: ZoneCounts,
    /// min, low, high.
    pub watermarks: Watermarks,
    /// Pages kept back from requests that prefer the zone at each position.
    pub protection: Vec<u64>,
    /// Pages in the zone's own lists.
    pub pcp_count: u64,
    /// Pages its lists hold before they are drained.
    pub pcp_high: u64,
    /// Pages moved per visit.
    pub pcp_batch: u64,
}

impl Zone {
    /// Where the pages are; both equations hold by construction of all but `free`,
    /// `pcp` and `isolated`, which are counted on their own.
    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        let free = self.free_pages();
        let isolated = self.buddy.pools[ISOLATE_POOL].nr_free;
        let pcp = self.pcp.nr_pages();
        let at_home = free + isolated + pcp;
        let sub = |from: u64, what: u64| {
            from.checked_sub(what)
                .expect("parts are not above the whole")
        };
        ZoneCounts {
            spanned: self.span().nr_pages(),
            present: self.present,
            managed: self.managed,
            reserved: sub(self.present, self.managed),
            free,
            pcp,
            lent: sub(self.managed, at_home),
            isolated,
        }
    }

    /// Free blocks by order `0..=MAX_PAGE_ORDER`, all types and isolated ones.
    #[must_use]
    pub fn buddyinfo(&self) -> Vec<u64> {
        let mut sum = vec![0; self.geometry.nr_orders()];
        for row in self.pagetypeinfo().rows {
            for (total, blocks) in sum.iter_mut().zip(row.free_blocks) {
                *total += blocks;
            }
        }
        sum
    }

    /// Free blocks and pageblocks by type.
    #[must_use]
    pub fn pagetypeinfo(&self) -> PageTypeInfo {
        let row = |at: usize| PageTypeRow {
            migratetype: Migratetype::from_index(at),
            free_blocks: self.buddy.pools[at].free_blocks(self.buddy.shape.pageblock_order),
            nr_pageblocks: self.buddy.pools[at].nr_blocks,
        };
        PageTypeInfo {
            rows: core::array::from_fn(row),
        }
    }

    /// The numbers of `/proc/zoneinfo`.
    #[must_use]
    pub fn zoneinfo(&self) -> ZoneInfo {
        ZoneInfo {
            id: self.config.id,
            name: self.config.name.clone(),
            kind: self.config.kind,
            node: self.config.node,
            start: self.config.start,
            counts: self.counts(),
            watermarks: self.marks.watermarks,
            protection: self.marks.protection.clone(),
            pcp_count: self.pcp.nr_pages(),
            pcp_high: self.pcp.high,
            pcp_batch: self.pcp.batch,
        }
    }

    /// How often requests left the pageblocks of their own type.
    #[must_use]
    pub fn fallback_counts(&self) -> FallbackCounts {
        let claims = self.buddy.claims;
        FallbackCounts {
            nr_whole_claimed: claims.nr_whole,
            nr_partial_claimed: claims.nr_partial,
            nr_stolen: claims.nr_stolen,
        }
    }

    /// Bytes asked of the system for rows, bits, index and sections. Reserve that was
    /// never used counts here, though the system has not given memory for it.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        let sections = self.sections.len() * core::mem::size_of::<crate::section::Section>();
        self.buddy.metadata_bytes() + sections as u64
    }
}
