//! What an administrator may ask, and what is answered.
//!
//! One [`Command`] for each rpc of `hugepool.v1.Admin`, in plain data: the handler
//! translates, the simulator generates, and [`Engine::apply`](crate::Engine::apply)
//! decides. What takes time is an operation: the reply is its state, `Running` at
//! first, and `GetOperation` tells the rest. What is asked by clients is
//! [`call`](crate::call); what must be done outside is [`outside`](crate::outside).

use core::time::Duration;

use hugepool_mm::{CompactMode, SectionError, SectionId};
use thiserror::Error;

use crate::id::OperationId;
use crate::info::{ContiguityReport, PageTypeReport, ZoneBuddyInfo, ZoneInfo};
use crate::limits::{Limit, Whom};
use crate::quarantine::Quarantine;
use crate::report::{
    ClientReport, EventBatch, LimitReport, OperationReport, PageList, SectionReport, StatusReport,
    ZoneReport,
};
use crate::verify::VerifyReport;

/// Which sections of a zone: so many, or these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sections {
    /// As many, at the places the verb prefers (lowest absent, lowest offline to
    /// bring online, highest online to take offline, highest offline to remove).
    Count(u32),
    /// Exactly these; each is answered for.
    Ids(Vec<SectionId>),
}

/// Asks one of the four verbs of hotplug for some sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionsRequest {
    /// Name of the zone; may be left out where the sections are given by id.
    pub zone: Option<String>,
    /// Which.
    pub sections: Sections,
    /// Only say what would be.
    pub dry_run: bool,
}

/// What an administrator asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The equations over all zones. Answered by [`Reply::Status`].
    GetStatus,
    /// Answered by [`Reply::Zones`].
    ListZones,
    /// Sections of a zone or of all. Answered by [`Reply::Sections`].
    ListSections {
        /// Name of the zone; `None`: all.
        zone: Option<String>,
    },
    /// Answered by [`Reply::Clients`].
    ListClients,
    /// Who holds what since when, a bounded number of runs. Answered by [`Reply::Pages`].
    ListPages(ListPages),
    /// Backing and metadata, then online unless told not to. Answered by [`Reply::Operation`].
    AddSections {
        /// Which.
        request: SectionsRequest,
        /// Order at which pages are freed, 0 or the pageblock order; `None`: the latter.
        online_order: Option<u32>,
        /// Leave them offline.
        keep_offline: bool,
    },
    /// Answered by [`Reply::Operation`].
    OnlineSections {
        /// Which.
        request: SectionsRequest,
        /// Order at which pages are freed, 0 or the pageblock order; `None`: the latter.
        online_order: Option<u32>,
    },
    /// Isolates, recalls, waits, takes; each section all or nothing. Answered by
    /// [`Reply::Operation`].
    OfflineSections {
        /// Which.
        request: SectionsRequest,
        /// How long held pages are waited for; `None`: the configured default.
        timeout: Option<Duration>,
    },
    /// Gives the memory of offline sections back. Answered by [`Reply::Operation`].
    RemoveSections {
        /// Which.
        request: SectionsRequest,
    },
    /// Moves blocks that can be moved, so that larger ones become free. Answered by
    /// [`Reply::Operation`].
    Compact {
        /// Name of the zone; `None`: all, one after the other.
        zone: Option<String>,
        /// Enough is done when a block of this order is free; `None`: the whole zone.
        order: Option<u32>,
        /// How hard it tries.
        mode: CompactMode,
    },
    /// Answered by [`Reply::Operation`].
    GetOperation {
        /// Which.
        id: OperationId,
    },
    /// Stops an operation at its next step; undone exactly. A finished one stays as it
    /// is. Answered by [`Reply::Operation`].
    CancelOperation {
        /// Which.
        id: OperationId,
    },
    /// Those that run and the last that ended. Answered by [`Reply::Operations`].
    ListOperations,
    /// Answered by [`Reply::Contiguity`].
    GetContiguity {
        /// Name of the zone; `None`: all.
        zone: Option<String>,
    },
    /// Answered by [`Reply::Invalidated`].
    InvalidateContiguity {
        /// Name of the zone; `None`: all.
        zone: Option<String>,
    },
    /// Answered by [`Reply::BuddyInfo`].
    GetBuddyInfo {
        /// Name of the zone; `None`: all.
        zone: Option<String>,
    },
    /// Answered by [`Reply::PageTypeInfo`].
    GetPageTypeInfo {
        /// Name of the zone; `None`: all.
        zone: Option<String>,
    },
    /// Answered by [`Reply::ZoneInfo`].
    GetZoneInfo {
        /// Name of the zone; `None`: all.
        zone: Option<String>,
    },
    /// Takes unused pages back from lanes. Answered by [`Reply::Operation`] (kind `Drain`).
    DrainLanes {
        /// One client only.
        slot: Option<u16>,
        /// How long operations in flight are waited for; `None`: 10 ms.
        timeout: Option<Duration>,
    },
    /// Sets batch and high of lanes, live. Answered by [`Reply::Pcp`].
    SetPcp {
        /// One client; `None`: all, and those to come.
        slot: Option<u16>,
        /// Pages moved per visit; `None`: unchanged; 0: follow demand again.
        batch: Option<u32>,
        /// Pages a lane keeps before it spills; `None`: unchanged; 0: follow demand again.
        high: Option<u32>,
    },
    /// Sets limits, live. Pages owned beyond a ceiling stay; a floor whose pages others own is
    /// filled as they come home. Answered by [`Reply::Limits`].
    SetLimits {
        /// For whom.
        whom: Whom,
        /// In which zone; `None`: in all, which a floor cannot be.
        zone: Option<String>,
        /// Both at once.
        limit: Limit,
    },
    /// The limits that are set. Answered by [`Reply::LimitList`].
    ListLimits,
    /// Shuts a client's lanes, takes home what lies in them, refuses its calls.
    /// Answered by [`Reply::Operation`] (kind `Evict`).
    EvictClient {
        /// Its slot.
        slot: u16,
        /// Guards against a reused slot; `None`: whoever is there.
        incarnation: Option<u16>,
        /// Kill the process too ([`Effect::Kill`](crate::Effect)).
        kill: bool,
    },
    /// How long pages of those who die from now on wait in a zone, and of those who wait. Answered by
    /// [`Reply::Limits`].
    SetQuarantine {
        /// The zone.
        zone: String,
        /// How long.
        quarantine: Quarantine,
    },
    /// Gives pages of the dead free before their quarantine is over. Answered by
    /// [`Reply::Released`].
    ReleaseQuarantined {
        /// One of the dead; `None`: all.
        slot: Option<u16>,
        /// One zone; `None`: all.
        zone: Option<String>,
    },
    /// Checks the whole structure. Answered by [`Reply::Verified`].
    Verify,
    /// Events after a sequence number. Answered by [`Reply::Events`].
    GetEvents {
        /// The last one seen; 0: from the oldest kept.
        after: u64,
    },
}

/// Filters of [`Command::ListPages`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPages {
    /// Of one client only.
    pub slot: Option<u16>,
    /// Of one zone only.
    pub zone: Option<String>,
    /// Of one section only.
    pub section: Option<SectionId>,
    /// At most so many runs; 0 and more than 1000 mean 1000.
    pub limit: u32,
    /// First pfn to look at: 0, or `next` of the page before.
    pub from_pfn: u64,
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Reply {
    /// To `GetStatus`.
    Status(StatusReport),
    /// To `ListZones`, by index.
    Zones(Vec<ZoneReport>),
    /// To `ListSections`, by id.
    Sections(Vec<SectionReport>),
    /// To `ListClients`, by slot.
    Clients(Vec<ClientReport>),
    /// To `ListPages`, by pfn.
    Pages(PageList),
    /// To everything that takes time, and to `GetOperation` and `CancelOperation`.
    Operation(OperationReport),
    /// To `ListOperations`, by id.
    Operations(Vec<OperationReport>),
    /// To `GetContiguity`, by zone.
    Contiguity(Vec<ContiguityReport>),
    /// To `InvalidateContiguity`.
    Invalidated {
        /// Zones whose answers were dropped.
        nr_zones: u32,
        /// Pageblocks whose answers were dropped.
        nr_pageblocks: u64,
    },
    /// To `GetBuddyInfo`, by zone.
    BuddyInfo(Vec<ZoneBuddyInfo>),
    /// To `GetPageTypeInfo`, by zone.
    PageTypeInfo(Vec<PageTypeReport>),
    /// To `GetZoneInfo`, by zone.
    ZoneInfo(Vec<ZoneInfo>),
    /// To `SetPcp`.
    Pcp {
        /// Clients it reached.
        nr_clients: u32,
        /// The fixed batch; 0: follows demand.
        batch: u32,
        /// The fixed high; 0: follows demand.
        high: u32,
    },
    /// To `SetLimits`.
    Limits {
        /// Clients it reached.
        nr_clients: u32,
    },
    /// To `ListLimits`.
    LimitList(Vec<LimitReport>),
    /// To `ReleaseQuarantined`.
    Released {
        /// Pages that came home.
        nr_pages: u64,
    },
    /// To `Verify`.
    Verified(VerifyReport),
    /// To `GetEvents`.
    Events(EventBatch),
}

/// Why a command was not begun. Refusals for one section of several are in its result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// Not found.
    #[error("no zone is named {name:?}")]
    NoSuchZone {
        /// The name asked for.
        name: String,
    },
    /// Not found.
    #[error("section {section} is in no zone's reserve")]
    NoSuchSection {
        /// The section asked for.
        section: SectionId,
    },
    /// Not found.
    #[error("there is no client in slot {slot}")]
    NoSuchClient {
        /// The slot asked for.
        slot: u16,
    },
    /// Not found: another client has the slot now.
    #[error("slot {slot} is now the client of incarnation {there}, not {asked}")]
    OtherIncarnation {
        /// The slot asked for.
        slot: u16,
        /// The incarnation asked for.
        asked: u16,
        /// The one there.
        there: u16,
    },
    /// Not found.
    #[error("there is no operation {id}, or it has been forgotten")]
    NoSuchOperation {
        /// The operation asked for.
        id: OperationId,
    },
    /// A bad value: sections by count need a zone.
    #[error("a count of sections needs a zone")]
    NoZoneNamed,
    /// A bad value.
    #[error("no section is asked for")]
    NoSections,
    /// A bad value.
    #[error("section {section} is asked for twice")]
    Twice {
        /// The section asked for.
        section: SectionId,
    },
    /// A bad value.
    #[error("section {section} is not in zone {zone:?}")]
    OtherZone {
        /// The section asked for.
        section: SectionId,
        /// The zone named.
        zone: String,
    },
    /// Used up: nothing was begun.
    #[error("{asked} sections are asked for, {there} are there")]
    TooFewSections {
        /// How many were asked for.
        asked: u32,
        /// How many are in the right state.
        there: u32,
    },
    /// A bad value.
    #[error("pages are brought online at order 0 or {pageblock_order}, not {order}")]
    OnlineOrder {
        /// The order asked for.
        order: u32,
        /// The pageblock order.
        pageblock_order: u32,
    },
    /// A bad value.
    #[error("a floor is of one zone, and so are the limits of a zone: name it")]
    FloorWithoutZone,
    /// A bad value.
    #[error("a floor of {floor_pages} pages is above the ceiling of {ceiling_pages}")]
    FloorAboveCeiling {
        /// What was asked for.
        floor_pages: u64,
        /// What was asked for.
        ceiling_pages: u64,
    },
    /// Used up: nothing has changed.
    #[error(
        "the floors in zone {zone:?} would be {floors_pages} pages, it can keep {room_pages}: \
         lower others, or add sections"
    )]
    Floors {
        /// The zone.
        zone: String,
        /// All floors together.
        floors_pages: u64,
        /// What the zone can keep.
        room_pages: u64,
    },
    /// A bad value.
    #[error("batch is at most {most}, not {batch}")]
    Batch {
        /// What was asked for.
        batch: u32,
        /// The most that is taken.
        most: u32,
    },
    /// A bad value.
    #[error("high is at most {most}, not {high}")]
    High {
        /// What was asked for.
        high: u32,
        /// The most that is taken.
        most: u32,
    },
    /// A bad value.
    #[error("order is at most {max_order}, not {order}")]
    Order {
        /// What was asked for.
        order: u32,
        /// `MAX_PAGE_ORDER`.
        max_order: u32,
    },
    /// Busy: try again when one has ended.
    #[error("{running} operations are running, no more are begun")]
    TooManyOperations {
        /// How many run.
        running: usize,
    },
}

/// Why one section of a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SectionRefusal {
    /// The section table says no.
    #[error(transparent)]
    Section(#[from] SectionError),
    /// Its pages are held; the holders are in the result.
    #[error("section {section} still has {nr_pages} pages lent")]
    Held {
        /// The section.
        section: SectionId,
        /// Pages lent out of it.
        nr_pages: u64,
    },
    /// Floors would not be met without it.
    #[error(
        "section {section} must stay: {floors_pages} pages of its zone are kept by floors, \
         {left_pages} would be left"
    )]
    Floors {
        /// The section.
        section: SectionId,
        /// What floors need: those of the zone, or those of users and clients above `min`.
        floors_pages: u64,
        /// Managed pages that would be left.
        left_pages: u64,
    },
    /// Another operation works on it.
    #[error("operation {operation} works on section {section}")]
    Taken {
        /// The section.
        section: SectionId,
        /// The operation.
        operation: OperationId,
    },
    /// No memory could be had for it.
    #[error("no backing for section {section}: {why}")]
    Backing {
        /// The section.
        section: SectionId,
        /// What the system said, with numbers.
        why: String,
    },
    /// The system did not take its memory back; it stays `removing`, ask again.
    #[error("the memory of section {section} could not be given back: {why}")]
    Punch {
        /// The section.
        section: SectionId,
        /// What the system said.
        why: String,
    },
    /// The operation was cancelled before this section was done.
    #[error("cancelled")]
    Cancelled,
    /// The daemon was restarted before this section was done; it is as it was before.
    #[error("the daemon was restarted before section {section} was done: ask again")]
    Interrupted {
        /// The section.
        section: SectionId,
    },
}
