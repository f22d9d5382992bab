//! What a client asks by call, and what it is answered: bulk allocation and bulk free.
//!
//! Plain data. A session is a [`ClientId`](crate::ClientId), whether it attached or is a
//! mere connection. Idempotency by request id is PROTOCOLS P7; the engine's side of
//! it is [`ledger`](crate::ledger).

use core::time::Duration;

use hugepool_mm::{Migratetype, Order, Pfn};
use thiserror::Error;

use crate::misuse::Misuse;

/// The most blocks one call lends or takes back: a reply of so many runs stays below 4 MiB.
pub const MAX_BLOCKS_PER_CALL: u32 = 1 << 17;

/// Asks for up to `nr_blocks` blocks of one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocBulk {
    /// Rising per session, from 1; 0: not remembered, and not to be asked again.
    pub request_id: u64,
    /// Every id up to this one has been answered or abandoned.
    pub acknowledged: u64,
    /// Ids given up: what was lent for them goes home.
    pub abandoned: Vec<u64>,
    /// Name of a zone; `None`: those the caller may use, in order.
    pub zone: Option<String>,
    /// Order of the blocks, as asked: not yet checked.
    pub order: u32,
    /// Blocks wanted.
    pub nr_blocks: u32,
    /// What they are asked to be.
    pub migratetype: Migratetype,
    /// May take five eighths of what a zone keeps back below `min`.
    pub is_urgent: bool,
}

/// What is to be done about a shortfall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Answer with what there is.
    None,
    /// The caller waits: keep what was found so far and ask again with the same request
    /// when [`Engine::changes`](crate::Engine::changes) has moved, or after 10 ms.
    Waits,
    /// The caller has waited so long: answer with what there is, and `Deadline`.
    Over(Duration),
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocOutcome {
    /// The answer.
    Done(AllocReply),
    /// Not yet all of it, and the caller waits; so many blocks are kept for it. Ask again, or
    /// [`Engine::abandon`](crate::Engine::abandon).
    Waiting {
        /// Blocks kept so far.
        nr_blocks: u32,
        /// Why no more.
        shortfall: Shortfall,
    },
}

/// Blocks of one order whose heads follow each other without a gap, of one lend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentRun {
    /// Head of the first block.
    pub first: Pfn,
    /// Blocks in the run.
    pub nr_blocks: u32,
    /// Their order.
    pub order: Order,
    /// Generation of the lend.
    pub generation: u32,
}

/// The answer to [`AllocBulk`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocReply {
    /// What was lent.
    pub runs: Vec<LentRun>,
    /// Blocks in all runs.
    pub nr_blocks: u32,
    /// Why fewer than asked; `None` exactly when all were lent.
    pub shortfall: Option<Shortfall>,
}

/// Why a batch is shorter than asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortfall {
    /// The caller's ceiling, or its zone's.
    Quota {
        /// Pages owned (for a zone's ceiling: lent out of it).
        owned_pages: u64,
        /// The most it may be.
        ceiling_pages: u64,
    },
    /// Nothing left above the reserve.
    ZoneEmpty {
        /// Pages free.
        free_pages: u64,
        /// The reserve that is kept.
        min_pages: u64,
    },
    /// Enough is free, but not in blocks of this order.
    Fragmented {
        /// Pages free.
        free_pages: u64,
        /// Largest order with a free block.
        largest_order: Option<Order>,
    },
    /// What is free is being taken offline.
    Offlining,
    /// Pages are free only in sections that the caller has not mapped.
    NotMapped {
        /// The epoch it has to catch up with.
        section_epoch: u32,
    },
    /// The caller has waited as long as it would.
    Deadline {
        /// How long.
        timeout: Duration,
    },
}

/// Blocks said to be the caller's: a claim, nothing in it is checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedRun {
    /// Head of the first block.
    pub first_pfn: u32,
    /// Blocks in the run.
    pub nr_blocks: u32,
    /// Their order.
    pub order: u32,
    /// Generation of their lend.
    pub generation: u32,
}

/// Gives blocks back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeBulk {
    /// Rising per session, from 1, in one row with those of [`AllocBulk`]; 0: not remembered.
    pub request_id: u64,
    /// Every id up to this one has been answered or abandoned.
    pub acknowledged: u64,
    /// What is given back.
    pub runs: Vec<ClaimedRun>,
}

/// The most refusals a reply names; the rest is counted only.
pub const MAX_REFUSED_NAMED: usize = 1000;

/// The answer to [`FreeBulk`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeReply {
    /// Blocks taken back.
    pub nr_blocks: u32,
    /// Blocks that were not; nothing else has changed.
    pub nr_refused: u32,
    /// The first [`MAX_REFUSED_NAMED`] of them.
    pub refused: Vec<Refused>,
}

/// A block that was not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The pfn as claimed.
    pub pfn: u32,
    /// What was wrong with the claim.
    pub misuse: Misuse,
}

/// Why a call was not served at all.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// No such session: it never was, or is closed or buried.
    #[error("no such session")]
    NoSession,
    /// The client hung up, was evicted, or its words made no sense.
    #[error("the session is shut: its client is detached")]
    Detached,
    /// Not found.
    #[error("no zone is named {name:?}")]
    NoSuchZone {
        /// The name asked for.
        name: String,
    },
    /// Not allowed.
    #[error("zone {name:?} is not open to this client")]
    ZoneForbidden {
        /// The name asked for.
        name: String,
    },
    /// A bad value.
    #[error("the largest order is {max_order}, not {order}")]
    Order {
        /// The order asked for.
        order: u32,
        /// The largest there is.
        max_order: u32,
    },
    /// A bad value.
    #[error("a call moves at most {most} blocks, not {asked}")]
    TooManyBlocks {
        /// Blocks asked for.
        asked: u64,
        /// The most.
        most: u32,
    },
    /// A bad value: a movable zone takes movable requests only.
    #[error("zone {name:?} serves movable requests only")]
    MovableOnly {
        /// The zone asked for.
        name: String,
    },
    /// Used up: acknowledge what was answered first.
    #[error("{remembered} answers are not acknowledged yet, no more are remembered")]
    TooManyUnacknowledged {
        /// Answers remembered.
        remembered: usize,
    },
    /// Wrong state: the caller said itself that this id is done with.
    #[error("request {request_id} has been acknowledged or abandoned")]
    Settled {
        /// The id.
        request_id: u64,
    },
    /// A bad value: the id was used for another kind of call.
    #[error("request {request_id} was another call")]
    OtherCall {
        /// The id.
        request_id: u64,
    },
}
