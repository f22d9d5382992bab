//! What the engine tells about itself: plain numbers that add up.
//!
//! Built by [`snapshot`](crate::snapshot). Counts are base pages unless the name says
//! otherwise; `present = managed + reserved`, `managed = free + pcp + lent + isolated`.
//! What only the daemon knows (version, pid, names of sockets) is added by it.

mod operation;

use hugepool_mm::{
    Geometry, Migratetype, Order, Pfn, Pressure, SectionId, SectionState, ZoneId, ZoneKind,
};

use crate::id::ClientId;
use crate::limits::{Limit, Whom};

pub use operation::{
    Compacted, CompactedEnd, Holder, Onlined, OperationKind, OperationReport, OperationState,
    Recalled, SectionOutcome,
};

/// Pages by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// First to last present section, holes included.
    pub spanned: u64,
    /// In the section table.
    pub present: u64,
    /// Present and not given to the buddy.
    pub reserved: u64,
    /// Given to the buddy.
    pub managed: u64,
    /// On its free lists.
    pub free: u64,
    /// In the daemon's own lists.
    pub pcp: u64,
    /// In the custody of clients.
    pub lent: u64,
    /// Free, in isolated pageblocks; or quarantined.
    pub isolated: u64,
}

impl PageCounts {
    /// Whether both equations hold.
    pub fn adds_up(&self) -> bool {
        self.present == self.managed + self.reserved
            && self.managed == self.free + self.pcp + self.lent + self.isolated
    }
}

impl core::ops::AddAssign for PageCounts {
    fn add_assign(&mut self, other: PageCounts) {
        self.spanned += other.spanned;
        self.present += other.present;
        self.reserved += other.reserved;
        self.managed += other.managed;
        self.free += other.free;
        self.pcp += other.pcp;
        self.lent += other.lent;
        self.isolated += other.isolated;
    }
}

/// The whole, in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusReport {
    /// The sizes.
    pub geometry: Geometry,
    /// Sum over all zones.
    pub pages: PageCounts,
    /// Zones.
    pub nr_zones: u32,
    /// Clients with a segment that are not buried.
    pub nr_clients: u32,
    /// Connections without one that were lent something or may be.
    pub nr_connections: u32,
    /// Wrong claims since the start.
    pub nr_misuses: u64,
    /// Pages taken home from the dead.
    pub nr_reclaimed_pages: u64,
    /// Moves that failed because the memory could not be copied.
    pub nr_move_faults: u64,
    /// Operations that run.
    pub nr_operations: u32,
}

/// Pages below which a zone changes its behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Kept back from ordinary requests.
    pub min: u64,
    /// Below it, lanes are asked for what they do not use.
    pub low: u64,
    /// Enough.
    pub high: u64,
}

/// What a section's memory is made of, as the runner found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// "hugetlb", "thp" or "shm".
    pub name: String,
    /// NUMA node; -1: any.
    pub node: i32,
    /// Why the links before it did not serve, one line each.
    pub not_taken: Vec<String>,
}

/// Which backing serves how much of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingUse {
    /// "hugetlb", "thp" or "shm".
    pub name: String,
    /// Sections it serves.
    pub nr_sections: u32,
    /// Why the links before it did not serve, each line once.
    pub not_taken: Vec<String>,
}

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneReport {
    /// Its index.
    pub zone: ZoneId,
    /// Its name.
    pub name: String,
    /// What it serves.
    pub kind: ZoneKind,
    /// NUMA node; -1: any.
    pub node: i32,
    /// First page of its reserve.
    pub start: Pfn,
    /// Length of its reserve.
    pub reserve_pages: u64,
    /// Its equations.
    pub pages: PageCounts,
    /// Its marks.
    pub watermarks: Watermarks,
    /// How short it is, as told last.
    pub pressure: Pressure,
    /// What serves its sections.
    pub backing: Vec<BackingUse>,
    /// The most pages lent out of it.
    pub ceiling_pages: Option<u64>,
    /// Managed pages that offline leaves of it.
    pub floor_pages: u64,
    /// Of the isolated: pages of the dead that wait.
    pub quarantined_pages: u64,
}

/// A section that is not absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionReport {
    /// Its number.
    pub section: SectionId,
    /// Its zone.
    pub zone: ZoneId,
    /// Name of its zone.
    pub zone_name: String,
    /// First page.
    pub start: Pfn,
    /// Pages, holes included.
    pub nr_pages: u64,
    /// Where it is on its way.
    pub state: SectionState,
    /// What it is made of, once populated.
    pub backing: Option<Backing>,
    /// Free pages in it, those in the daemon's lists included.
    pub free: u64,
    /// Pages lent out of it.
    pub lent: u64,
    /// Free pages in isolated pageblocks.
    pub isolated: u64,
    /// 1 for the first life of the section, rising at each add.
    pub incarnation: u32,
}

/// How a client stands to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// Has its segment, has not said yet that it has mapped it.
    Attaching,
    /// In service.
    Attached,
    /// Hung up, or evicted: its lanes are shut, what it holds is still its own.
    Detached,
    /// Its words made no sense; detached for it.
    Poisoned,
    /// Dead; pages of it wait before they are lent again.
    Quarantined,
}

impl ClientState {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            ClientState::Attaching => "attaching",
            ClientState::Attached => "attached",
            ClientState::Detached => "detached",
            ClientState::Poisoned => "poisoned",
            ClientState::Quarantined => "quarantined",
        }
    }
}

/// A client or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientReport {
    /// Slot and incarnation.
    pub client: ClientId,
    /// Its process, as its peer credentials said.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The name it gave itself.
    pub name: String,
    /// How it stands.
    pub state: ClientState,
    /// Whether it is a mere connection, without segment and lanes.
    pub is_connection: bool,
    /// Pages it is custodian of.
    pub lent: u64,
    /// Of these: pages lying in its lanes, as far as can be seen from outside.
    pub in_lanes: u64,
    /// The rest.
    pub held: u64,
    /// Wrong claims.
    pub nr_misuses: u64,
    /// The last of them.
    pub last_misuse: Option<String>,
    /// Pages of its movable blocks that were moved.
    pub nr_moved_pages: u64,
    /// Pages of its evictable blocks that were taken.
    pub nr_evicted_pages: u64,
    /// How long it has been attached.
    pub attached_ms: u64,
    /// Whether its lanes rely on the daemon's barrier; else on a fence of their own.
    pub uses_membarrier: bool,
    /// The most pages it may own, by its own limits.
    pub ceiling_pages: Option<u64>,
    /// Its lanes.
    pub lanes: Vec<LaneReport>,
}

/// A limit that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReport {
    /// For whom.
    pub whom: Whom,
    /// In which zone; `None`: in all.
    pub zone: Option<ZoneId>,
    /// The zone's name.
    pub zone_name: Option<String>,
    /// What is set.
    pub limit: Limit,
    /// Pages owned now; 0 for what is set for each client.
    pub owned_pages: u64,
}

/// What a lane is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// In service.
    Open,
    /// Being emptied by the daemon, or shut for good.
    Closed,
    /// An operation in flight has kept it closed for longer than it should.
    Stuck,
    /// Its words made no sense.
    Poisoned,
}

impl LaneState {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            LaneState::Open => "open",
            LaneState::Closed => "closed",
            LaneState::Stuck => "stuck",
            LaneState::Poisoned => "poisoned",
        }
    }
}

/// A lane, as far as it can be seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneReport {
    /// Its index in the segment.
    pub index: u32,
    /// What it is at.
    pub state: LaneState,
    /// Pages lent into it and not taken yet.
    pub granted: u64,
    /// Pages in its magazines.
    pub magazine: u64,
    /// Blocks on their way back.
    pub returns: u64,
    /// Refills since the client attached.
    pub nr_refills: u64,
}

/// Blocks of one order, held by one client, whose heads follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRun {
    /// Head of the first block.
    pub first: Pfn,
    /// Blocks.
    pub nr_blocks: u32,
    /// Their order.
    pub order: Order,
    /// Generation of the lend.
    pub generation: u32,
    /// Who.
    pub client: ClientId,
    /// Its process.
    pub pid: u32,
    /// As asked for.
    pub migratetype: Migratetype,
    /// Since when the client has held something in this pageblock without a break.
    pub age_ms: u64,
}

/// Some of what is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageList {
    /// By pfn.
    pub runs: Vec<HeldRun>,
    /// Where to go on; `None`: that was all.
    pub next: Option<u64>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counted from 1, without gaps.
    pub seq: u64,
    /// When.
    pub at_ms: u64,
    /// What, in one word.
    pub kind: &'static str,
    /// What, in one line.
    pub text: String,
    /// The section concerned.
    pub section: Option<SectionId>,
    /// The client concerned.
    pub client: Option<ClientId>,
    /// The zone concerned.
    pub zone: Option<ZoneId>,
}

/// Events that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// In order.
    pub events: Vec<Event>,
    /// Events between the one asked for and the first here that are no longer kept.
    pub nr_lost: u64,
}
