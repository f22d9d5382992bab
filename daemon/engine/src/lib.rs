//! Custody of pages between zones and clients, and the long operations on sections.
//!
//! The engine does no I/O: no clock (it is told the time), no thread, no system call, no
//! randomness; the same inputs give the same outputs, so the daemon and the simulator
//! run the same code. One owner calls it at a time, under one lock in the daemon.
//!
//! What is asked: by administrators a [`Command`], by clients an [`AllocBulk`] or a
//! [`FreeBulk`]. What is to be done outside: slowly an [`Effect`], at once by [`Outside`].
//!
//! Inside, in the order of imports: `cell`, `tally`, `owners` (whose each block is), `zones`,
//! `late`, `deferred`, `posts`, `limits`, `custody` (the line between zones and clients) with
//! `lending` (out) and `nodes` (from where), `parcels` (from client to client), `shares` (held by
//! several), `demand`, `lanes`, `ledger`, `client`, then the parts of [`Engine`]: `worker` (settle and
//! refill) within `bounds`, `recall`, `reclaim`, `calls`, `operation`, `request`, `holders`, `hotplug`
//! (with its dry run, `foresight`), `drain`, `limiting`, `quarantine`, `apply`, `snapshot`, `verify`.
//! Blocks that move: `intent` (what is under way), `moves` (what the runner does), `migrate` (the step
//! before it and the one after), `evict`, `shift` (sections emptied), `compact` (zones packed: its
//! state `compacting`, when and for whom `compaction_due`), `balance` (zones kept between their marks).

#![forbid(unsafe_code)]

mod apply;
mod balance;
mod bounds;
mod call;
mod calls;
mod cell;
mod client;
mod command;
mod compact;
mod compacting;
mod compaction_due;
mod config;
mod custody;
mod deferred;
mod demand;
mod drain;
mod events;
mod evict;
mod foresight;
mod head_run;
mod holders;
mod hotplug;
mod id;
mod info;
mod intent;
mod journal;
mod lanes;
mod late;
mod ledger;
mod ledger_words;
mod lending;
mod limiting;
mod limits;
mod migrate;
mod misuse;
mod moves;
mod nodes;
mod num;
mod operation;
mod outside;
mod owners;
mod page_index;
mod parcels;
mod posts;
mod quarantine;
mod recall;
mod reclaim;
mod recover;
mod recover_lanes;
mod recover_moves;
mod report;
mod request;
mod saved;
mod section_words;
mod shares;
mod shift;
mod snapshot;
mod state;
mod tally;
mod verify;
mod worker;
mod zones;

use hugepool_shm::control::ControlGeometry;

pub use balance::ZonePressure;
pub use call::{
    AllocBulk, AllocOutcome, AllocReply, CallError, ClaimedRun, FreeBulk, FreeReply, LentRun,
    MAX_BLOCKS_PER_CALL, MAX_REFUSED_NAMED, Patience, Refused, Shortfall,
};
pub use client::{AttachError, AttachSpec, ConnectSpec};
pub use command::{
    Command, CommandError, ListPages, Reply, SectionRefusal, Sections, SectionsRequest,
};
pub use config::{Defaults, EngineConfig, ZoneSettings};
pub use id::{ClientId, Now, OperationId};
pub use info::{ContiguityReport, PageTypeReport, PageTypeRow, Pageset, ZoneBuddyInfo, ZoneInfo};
pub use limits::{Limit, Whom};
pub use misuse::Misuse;
pub use moves::{BlockCopy, MoveBatch, MoveOutcome, MovedBatch};
pub use nodes::{NodeReport, nearest_first};
pub use outside::{Effect, NoOutside, Outside};
pub use quarantine::Quarantine;
pub use recover::{RecoverError, Recovered, Survivor};
pub use report::{
    Backing, BackingUse, ClientReport, ClientState, Compacted, CompactedEnd, Event, EventBatch,
    HeldRun, Holder, LaneReport, LaneState, LimitReport, Onlined, OperationKind, OperationReport,
    OperationState, PageCounts, PageList, Recalled, SectionOutcome, SectionReport, StatusReport,
    Watermarks, ZoneReport,
};
pub use saved::{NotSaved, Saved, SavedClient};
pub use state::{NR_STATE_AREAS, StateShape, StateWords};
pub use verify::VerifyReport;
pub use zones::ConfigError;

/// Counters that only rise: a caller that waits looks again when the one it waits for has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Blocks that came home: an allocation that fell short may be tried again.
    pub home: u64,
    /// Steps that operations have made.
    pub operations: u64,
    /// Number of the last event.
    pub events: u64,
}

/// Zones, owners, clients and what is being done with them.
#[derive(Debug)]
pub struct Engine {
    state: state::StateWords,
    custody: custody::Custody,
    clients: client::Clients,
    operations: operation::Operations,
    events: events::Events,
    effects: Vec<Effect>,
    defaults: Defaults,
    /// batch and high of clients to come, as set by hand.
    pcp: client::FixedPcp,
    /// Rises when something has changed that bounds lanes.
    bounds_version: u64,
    pressure: recall::Pressure,
    balance: balance::Balance,
    due: compaction_due::Due,
    batches: migrate::Batches,
    hand: evict::Hand,
    /// Moves of a daemon before that cannot be told from their handles yet.
    undecided: Vec<intent::IntentId>,
    /// Rises when something has changed that [`Engine::save`] saves.
    slow_version: u64,
    last_tick: Now,
    nr_misuses: u64,
    nr_reclaimed_pages: u64,
    nr_move_faults: u64,
}

impl Engine {
    /// An engine with these zones, all their sections absent, whose words go with it.
    ///
    /// # Errors
    /// [`ConfigError`] names what cannot be.
    pub fn new(config: EngineConfig) -> Result<Engine, ConfigError> {
        let shape = StateShape::of(&config);
        let state = StateWords::private(&shape).map_err(|error| ConfigError::OwnerTable {
            nr_pages: shape.nr_pages,
            why: error.to_string(),
        })?;
        Engine::with_state(config, state)
    }

    /// The same over words that outlive it. They are all zero, or
    /// [`recover`](Engine::recover) is for them.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_state(config: EngineConfig, state: StateWords) -> Result<Engine, ConfigError> {
        let mut zones = zones::Zones::new(config.geometry, config.zones)?;
        for at in 0..zones.len() {
            zones
                .zone_mut(at)
                .set_contiguity_mode(config.defaults.contiguity);
        }
        let owners = owners::Owners::new(config.geometry, &state, zones.zone_of_sections());
        let mut custody = custody::Custody::new(zones, owners, &state);
        let limit = Limit {
            floor_pages: 0,
            ceiling_pages: config.defaults.client_ceiling_pages,
        };
        custody.limits.set(Whom::EachClient, None, limit);
        Ok(Engine {
            custody,
            state,
            clients: client::Clients::new(config.defaults.max_clients),
            operations: operation::Operations::default(),
            events: events::Events::default(),
            effects: Vec::new(),
            defaults: config.defaults,
            pcp: client::FixedPcp::default(),
            bounds_version: 1,
            pressure: recall::Pressure::default(),
            balance: balance::Balance::default(),
            due: compaction_due::Due::default(),
            batches: migrate::Batches::default(),
            hand: evict::Hand::default(),
            undecided: Vec::new(),
            slow_version: 1,
            last_tick: Now::ZERO,
            nr_misuses: 0,
            nr_reclaimed_pages: 0,
            nr_move_faults: 0,
        })
    }

    /// What the runner is to do outside, in order; each is handed out once.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.effects)
    }

    /// Something has changed that a daemon that comes after must know before anything else.
    pub(crate) fn slow_changed(&mut self) {
        self.slow_version += 1;
    }

    /// Rises when [`Engine::save`] has something new to tell.
    pub fn slow_version(&self) -> u64 {
        self.slow_version + self.operations.nr_changes()
    }

    /// Counters for those who wait.
    pub fn changes(&self) -> Changes {
        Changes {
            home: self.custody.nr_home,
            operations: self.operations.nr_steps,
            events: self.events.last_seq(),
        }
    }

    /// Events after a sequence number, as far as they are kept.
    pub fn events_since(&self, after: u64) -> EventBatch {
        self.events.since(after)
    }

    /// The shape that a client's control segment must have.
    pub fn control_geometry(&self, nr_lanes: u32) -> ControlGeometry {
        let zones = &self.custody.zones;
        ControlGeometry {
            nr_lanes,
            nr_sections: zones.nr_sections(),
            nr_pages: zones.nr_pages(),
        }
    }
}
