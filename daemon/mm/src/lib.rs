//! The page allocator: zones, sections, pageblocks, orders.
//!
//! Pure and deterministic: no clock, thread, lock, file, randomness or dependency.
//! Inside it a page goes absent → section → buddy → page list → (lent) and back; who
//! holds a lent page is not known here.
//!
//! Words and sizes: [`Order`], [`Pfn`], [`Migratetype`], [`Geometry`], [`SectionId`],
//! [`ZoneId`]. The one thing with behaviour is [`Zone`]; [`setup_zones`] makes several
//! of them share watermarks. Below them, in the order of their imports: `num`, `bits`
//! (one pageblock as words), `block_set` and `pool` (the index), `pageblock` (the
//! row), `buddy`, `bulk` and `fallback` (taking and freeing), `pcp` (page lists). Above
//! the zone's parts: [`Compaction`], which yields moves and performs none.

#![forbid(unsafe_code)]

mod alloc;
mod bits;
mod block_set;
mod buddy;
mod bulk;
mod compact;
mod contiguity;
mod fallback;
#[cfg(test)]
mod fixture;
mod fragmentation;
mod free_scanner;
mod geometry;
mod hotplug;
mod lists;
mod migrate_scanner;
mod migratetype;
mod num;
mod occupy;
mod online;
mod order;
mod pageblock;
mod pcp;
mod pfn;
mod pool;
mod report;
mod restart;
mod scan;
mod section;
mod sections;
mod setup;
mod shortfall;
mod verify;
pub mod watermark;
mod whole;
mod zone;

pub use alloc::{AllocFlags, Mark};
pub use compact::{
    CompactCounts, CompactEnd, CompactGoal, CompactMode, CompactRefusal, CompactRequest,
    MovableBlock, Move, ROUND_PAGES, Round, Surroundings,
};
pub use contiguity::{ContiguityMode, ContiguityReport, PageblockAt};
pub use geometry::{Geometry, GeometryError};
pub use migrate_scanner::Compaction;
pub use migratetype::Migratetype;
pub use online::{OnlineOrder, Onlined};
pub use order::Order;
pub use pfn::{Pfn, PfnRange};
pub use report::{
    FallbackCounts, NR_PAGE_TYPE_ROWS, PageTypeInfo, PageTypeRow, ZoneCounts, ZoneInfo,
};
pub use restart::CompactTotals;
pub use scan::PageblockInfo;
pub use section::{SectionError, SectionId, SectionInfo, SectionState, ZoneId, ZoneKind};
pub use setup::{Pressure, setup_zones};
pub use shortfall::Shortfall;
pub use verify::VerifyError;
pub use watermark::Watermarks;
pub use zone::{Zone, ZoneConfig, ZoneError};
