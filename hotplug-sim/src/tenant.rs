//! A client as its process has it: what it holds, what it waits for, which thread is stopped.
//!
//! It keeps the protocols unless it is told to misbehave; then nothing it says is
//! believed any more.

use hugepool_engine::{AllocBulk, AllocReply, ClientId};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::lane_client::{LaneClient, LaneTerms};
use hugepool_shm::raw::{PageParts, RawMigratetype, RawPage};

use crate::stopped::Stopped;

/// A call whose reply was lost, or that waits for more.
#[derive(Clone, Debug)]
pub struct Pending {
    /// As it was sent.
    pub request: AllocBulk,
    /// What was answered, if it was.
    pub reply: Option<AllocReply>,
    /// Pages lent for it so far.
    pub nr_pages: u64,
}

/// A block that the daemon may move.
#[derive(Clone, Copy, Debug)]
pub struct UnderHandle {
    /// Its handle.
    pub handle: u32,
    /// Its page word, when it was last looked at.
    pub page: RawPage,
    /// Pins on it.
    pub nr_pins: u32,
}

/// A client or a connection.
#[derive(Debug)]
pub struct Tenant {
    /// Its name.
    pub id: ClientId,
    /// `None` for a connection.
    pub segment: Option<ControlSegment>,
    /// What its lanes know of it.
    pub terms: LaneTerms,
    /// Indexes of the zones it may use.
    pub zones: Vec<u32>,
    /// Blocks in hand.
    pub held: Vec<RawPage>,
    /// Blocks under handles, where they were last seen.
    pub movable: Vec<UnderHandle>,
    /// Handles that are free again.
    pub free_handles: Vec<u32>,
    /// Handles from here on were never used.
    pub next_handle: u32,
    /// The runner was told to close its socket.
    pub is_closed: bool,
    /// Keeps the protocols.
    pub is_honest: bool,
    /// Threads that are stopped in their window, by lane.
    pub stopped: Vec<Stopped>,
    /// Number of its last call.
    pub last_request: u64,
    /// Wrong claims that it made on purpose, and was refused.
    pub nr_probes: u64,
    /// Pages it owned after the last step.
    pub last_owned: u64,
    /// Calls without a reply.
    pub pending: Vec<Pending>,
}

impl Tenant {
    /// Lanes of its segment.
    pub fn nr_lanes(&self) -> u32 {
        self.segment
            .as_ref()
            .map_or(0, |segment| segment.geometry().nr_lanes)
    }

    /// Whether the daemon has shut it out.
    pub fn is_shut(&self) -> bool {
        self.is_closed
            || self
                .segment
                .as_ref()
                .is_some_and(|segment| segment.closed() != 0)
    }

    /// Whether a thread is stopped in this lane.
    pub fn is_stopped(&self, lane: u32) -> bool {
        self.stopped.iter().any(|stopped| stopped.lane == lane)
    }

    /// The client's side of a lane.
    pub fn lane<'a>(&self, segment: &'a ControlSegment, lane: u32) -> Option<LaneClient<'a>> {
        LaneClient::new(segment, lane, self.terms, None)
    }

    /// Pages in hand and in the hands of stopped threads.
    pub fn nr_held(&self) -> u64 {
        let pages =
            |blocks: &[RawPage]| blocks.iter().map(|page| 1u64 << page.order()).sum::<u64>();
        pages(&self.held)
            + self
                .movable
                .iter()
                .map(|one| 1 << one.page.order())
                .sum::<u64>()
            + self
                .stopped
                .iter()
                .map(|one| pages(&one.pages))
                .sum::<u64>()
    }

    /// Pages lent for calls without a reply.
    pub fn nr_pending(&self) -> u64 {
        self.pending.iter().map(|pending| pending.nr_pages).sum()
    }

    /// Every id up to this one has been answered or abandoned.
    pub fn acknowledged(&self) -> u64 {
        let oldest = self
            .pending
            .iter()
            .map(|pending| pending.request.request_id)
            .min();
        oldest.map_or(self.last_request, |oldest| oldest - 1)
    }

    /// The page words of a reply, as the library makes them.
    pub fn words(&self, reply: &AllocReply, mt: RawMigratetype, zone_of: &[u32]) -> Vec<RawPage> {
        let mut words = Vec::new();
        for run in &reply.runs {
            for block in 0..run.nr_blocks {
                let pfn = run.first.get() + block * run.order.nr_pages();
                let parts = PageParts {
                    pfn,
                    order: u32::from(run.order.get()),
                    migratetype: mt,
                    zone: zone_of.get(pfn as usize).copied().unwrap_or(0),
                    client: self.terms.client_index,
                    generation: run.generation,
                };
                words.extend(parts.pack());
            }
        }
        words
    }
}
