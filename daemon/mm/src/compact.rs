//! Compaction: what is asked, what is yielded, and how it went.
//!
//! Two scanners, as in the kernel: one goes up from the zone's start and finds pages that
//! may move ([`migrate_scanner`](crate::migrate_scanner)), one goes down from its end and
//! finds places for them ([`free_scanner`](crate::free_scanner)). They yield moves and
//! perform none: whose a page is and how its bytes travel is the caller's. What a zone
//! remembers between two runs is [`restart`](crate::restart).
//!
//! A run is cancelled by dropping it. It keeps nothing of the zone: the places of a round
//! are the caller's, to be used or freed.

use core::fmt;

use crate::contiguity::PageblockAt;
use crate::{Migratetype, Order, Pfn, PfnRange, Zone};

/// The most pages of a round, unless a single block is larger (`COMPACT_CLUSTER_MAX`).
pub const ROUND_PAGES: u32 = 32;

/// How hard a run tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompactMode {
    /// For a request that would rather be told no than wait: sources in pageblocks of its
    /// own type only, and no work on a block that cannot become free. Heeds skip bits.
    Async,
    /// Sources anywhere. Heeds skip bits; its failures defer later runs.
    Sync,
    /// The whole zone whatever the skip bits and earlier runs say, and leaves no trace in them.
    Manual,
}

impl CompactMode {
    pub(crate) const fn heeds_skips(self) -> bool {
        !matches!(self, CompactMode::Manual)
    }
}

/// When a run has done enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompactGoal {
    /// A block of this order can be handed out.
    Order(Order),
    /// The [fragmentation score](Zone::fragmentation_score) is no higher than this.
    Score(u32),
    /// The scanners have met (order -1).
    WholeZone,
}

/// Asks for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompactRequest {
    /// When it has done enough.
    pub goal: CompactGoal,
    /// How hard it tries.
    pub mode: CompactMode,
    /// Whose request it is for; matters to [`CompactMode::Async`].
    pub migratetype: Migratetype,
}

impl CompactRequest {
    /// The whole zone, by hand.
    pub const MANUAL: CompactRequest = CompactRequest {
        goal: CompactGoal::WholeZone,
        mode: CompactMode::Manual,
        migratetype: Migratetype::Movable,
    };

    /// For a request that falls short of one block.
    #[must_use]
    pub const fn direct(
        order: Order,
        migratetype: Migratetype,
        mode: CompactMode,
    ) -> CompactRequest {
        CompactRequest {
            goal: CompactGoal::Order(order),
            mode,
            migratetype,
        }
    }

    /// In the background, until the score has come down to `score`.
    #[must_use]
    pub const fn proactive(score: u32) -> CompactRequest {
        CompactRequest {
            goal: CompactGoal::Score(score),
            mode: CompactMode::Manual,
            migratetype: Migratetype::Movable,
        }
    }
}

/// A held block that may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovableBlock {
    /// Its first page.
    pub pfn: Pfn,
    /// Its order.
    pub order: Order,
}

/// A block to be copied to a place that was taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// First page of the block.
    pub from: Pfn,
    /// First page of the place; the caller's from now on.
    pub to: Pfn,
    /// Order of both.
    pub order: Order,
}

/// What the scanners ask of those who know more than what is free.
pub trait Surroundings {
    /// Appends the blocks headed in this pageblock that may be moved now, ascending.
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>);

    /// Whether a block that was listed for its pageblock may still be moved: asked of each
    /// block right before its move is yielded, perhaps some steps after it was listed.
    fn is_still_movable(&mut self, block: &MovableBlock) -> bool;

    /// Whether the pageblock is all this zone's and online; asked before anything else is
    /// done with it.
    #[inline]
    fn is_whole(&mut self, zone: &mut Zone, at: PageblockAt) -> bool {
        zone.is_whole(at)
    }
}

/// What a step of a run has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Moves to be made, and answered.
    Moves,
    /// Moves of an earlier round have to be answered before it goes on.
    Unanswered,
    /// As many pageblocks have been looked at as were allowed; go on, or drop the run.
    Pause,
    /// It is over.
    Ended(CompactEnd),
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompactEnd {
    /// The goal is reached.
    Reached,
    /// The scanners have met, having started at both ends of the zone.
    Complete,
    /// The scanners have met, having started where an earlier run had stopped.
    Partial,
    /// What is free is needed as a reserve: nothing can be moved.
    TooFewFree,
}

/// Why a run was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompactRefusal {
    /// The goal is reached as things are.
    NotNeeded,
    /// It failed for this order not long ago.
    Deferred {
        /// Requests that will be turned away before it is tried again.
        nr_left: u32,
    },
    /// There would be no room to move pages to.
    TooFewFree {
        /// Pages free.
        free_pages: u64,
        /// Pages that would have to be.
        needed_pages: u64,
    },
    /// A request of this order fails for want of memory, not because it is scattered.
    NotFragmented {
        /// The [fragmentation index](Zone::fragmentation_index), 0 to 1000.
        index: u32,
    },
}

impl fmt::Display for CompactRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CompactRefusal::NotNeeded => f.write_str("nothing needs to be moved"),
            CompactRefusal::Deferred { nr_left } => {
                write!(
                    f,
                    "it failed not long ago; {nr_left} more requests are turned away first"
                )
            }
            CompactRefusal::TooFewFree {
                free_pages,
                needed_pages,
            } => write!(
                f,
                "{free_pages} pages are free, {needed_pages} are needed to move pages to"
            ),
            CompactRefusal::NotFragmented { index } => write!(
                f,
                "memory is lacking rather than scattered (index {index} of 1000)"
            ),
        }
    }
}

impl core::error::Error for CompactRefusal {}

/// What a run has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactCounts {
    /// Pages looked at as sources.
    pub nr_migrate_scanned: u64,
    /// Pages looked at as places.
    pub nr_free_scanned: u64,
    /// Pages whose move was reported as made.
    pub nr_moved: u64,
    /// Pages whose move was reported as not made.
    pub nr_failed: u64,
    /// Free blocks of the wanted order (the pageblock's, where none is wanted) made.
    pub nr_blocks_made: u64,
    /// How often it was asked whether a pageblock is whole.
    pub nr_checks: u64,
}

impl core::ops::AddAssign for CompactCounts {
    fn add_assign(&mut self, other: CompactCounts) {
        self.nr_migrate_scanned += other.nr_migrate_scanned;
        self.nr_free_scanned += other.nr_free_scanned;
        self.nr_moved += other.nr_moved;
        self.nr_failed += other.nr_failed;
        self.nr_blocks_made += other.nr_blocks_made;
        self.nr_checks += other.nr_checks;
    }
}
