//! Reports of long tasks: what they are at, what became of each section, and who is in the way.

use hugepool_mm::{CompactCounts, Migratetype, Pfn, SectionId, SectionState};

use crate::command::SectionRefusal;
use crate::id::{ClientId, OperationId};

/// Who stands in the way of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who.
    pub client: ClientId,
    /// Its process.
    pub pid: u32,
    /// The name it gave itself.
    pub name: String,
    /// Pages it has there.
    pub nr_pages: u64,
    /// Blocks by order.
    pub blocks_by_order: Vec<u64>,
    /// What most of the pages were asked to be.
    pub migratetype: Migratetype,
    /// The lowest of them.
    pub first: Pfn,
    /// Since when it has held something there without a break, at the longest.
    pub age_ms: u64,
    /// Pages of these that an operation in flight in one of its lanes may be moving.
    pub nr_in_flight: u64,
    /// Pages of these that are movable, and pinned.
    pub nr_pinned: u64,
    /// Pages of these that are movable, and were wanted by the client each time in the middle of
    /// their move.
    pub nr_hot: u64,
    /// Pages of these that are movable and could go, but find no other place that their client has
    /// mapped.
    pub nr_homeless: u64,
}

/// What the one step of onlining freed to the buddy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Onlined {
    /// Pageblocks.
    pub nr_pageblocks: u64,
    /// Pages.
    pub nr_pages: u64,
    /// Blocks gained, by order.
    pub blocks_by_order: Vec<u64>,
}

/// What became of one section of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionOutcome {
    /// The section.
    pub section: SectionId,
    /// Where it is now.
    pub state: SectionState,
    /// `None` while the operation is at it. Dry run: whether it could be done.
    pub done: Option<Result<(), SectionRefusal>>,
    /// It was so already: nothing was done.
    pub already: bool,
    /// Who stands in the way.
    pub holders: Vec<Holder>,
    /// What onlining freed.
    pub onlined: Option<Onlined>,
    /// Pages that were moved out of it under their clients.
    pub nr_moved_pages: u64,
    /// Pages that were taken from their clients, for want of another place.
    pub nr_evicted_pages: u64,
    /// From begin to end, in the caller's time.
    pub took_us: u64,
}

/// What kind of long task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Sections come.
    Add,
    /// Pages go to the buddy.
    Online,
    /// Pages are taken from it.
    Offline,
    /// Sections go.
    Remove,
    /// Lanes are emptied.
    Drain,
    /// A client is shut out.
    Evict,
    /// Blocks are moved so that larger ones become free.
    Compact,
}

impl OperationKind {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Add => "add",
            OperationKind::Online => "online",
            OperationKind::Offline => "offline",
            OperationKind::Remove => "remove",
            OperationKind::Drain => "drain",
            OperationKind::Evict => "evict",
            OperationKind::Compact => "compact",
        }
    }
}

/// Where a long task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// Not ended.
    Running,
    /// Ended, all of it done.
    Done,
    /// Ended, some or none of it done.
    Failed,
    /// Ended because it was told to.
    Cancelled,
}

impl OperationState {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            OperationState::Running => "running",
            OperationState::Done => "done",
            OperationState::Failed => "failed",
            OperationState::Cancelled => "cancelled",
        }
    }
}

/// A long task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationReport {
    /// 0 for a dry run.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// Where it is.
    pub state: OperationState,
    /// Only said what would be.
    pub dry_run: bool,
    /// Pages done.
    pub done_pages: u64,
    /// Pages to do.
    pub total_pages: u64,
    /// Time to go, where it can be told.
    pub estimate_ms: Option<u64>,
    /// Since it began.
    pub age_ms: u64,
    /// By section, in the order asked for.
    pub sections: Vec<SectionOutcome>,
    /// Of a drain or an eviction.
    pub recalled: Option<Recalled>,
    /// Of a compaction.
    pub compacted: Option<Compacted>,
}

/// What a compaction has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Pages scanned and moved, blocks made, pageblocks asked for.
    pub counts: CompactCounts,
    /// How it ended; `None` while it runs.
    pub end: Option<CompactedEnd>,
    /// Since it began, or from begin to end.
    pub took_us: u64,
}

/// How a compaction has ended; of several zones, the last of these that is true of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CompactedEnd {
    /// What was wanted is there; or, where nothing was, the whole zone is packed.
    Reached,
    /// The whole zone was gone through in vain.
    NotReached,
    /// It failed not long ago, and was not tried again.
    Deferred,
    /// Memory lacks; it is not scattered.
    NotFragmented,
    /// What is free is kept back: nothing could be moved.
    TooFewFree,
    /// It was told to stop, or nobody waited for it any more.
    Cancelled,
}

impl CompactedEnd {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            CompactedEnd::Reached => "reached",
            CompactedEnd::NotReached => "not-reached",
            CompactedEnd::Deferred => "deferred",
            CompactedEnd::NotFragmented => "not-fragmented",
            CompactedEnd::TooFewFree => "too-few-free",
            CompactedEnd::Cancelled => "cancelled",
        }
    }
}

/// What came of emptying lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recalled {
    /// Pages taken home.
    pub nr_pages: u64,
    /// Pages left where they are, because an operation in flight may be moving them.
    pub nr_in_flight: u64,
    /// Pages the clients concerned still own.
    pub nr_held: u64,
    /// Who is in the midst of an operation.
    pub holders: Vec<Holder>,
}
