//! Custody of pages between zones and clients, and the long operations on sections.
//!
//! The engine does no I/O: no clock (it is told the time), no thread, no system call, no
//! randomness; the same inputs give the same outputs, so the daemon and the simulator
//! run the same code. One owner calls it at a time, under one lock in the daemon.
//!
//! Key types: what administrators ask is a [`Command`], what clients ask by call
//! [`AllocBulk`] and [`FreeBulk`]; what the runner must do is an [`Effect`], what the
//! engine needs at once is [`Outside`].
//!
//! # The engine's face
//!
//! ```text
//! Engine::new(EngineConfig) -> Result<Engine, ConfigError>
//! attach(AttachSpec, ControlSegment, now) -> Result<ClientId, AttachError>; ready(ClientId, uses_membarrier, now)
//! connect(ConnectSpec, now) -> Result<ClientId, AttachError>       a session without a segment
//! disconnect(ClientId, now)                                        its pages go home
//! detach(ClientId, now, outside)   bury(ClientId, now) -> pages home
//! service(now, outside, only: Option<ClientId>)                    what a doorbell or a tick asks for
//! before_sleep() -> bool (may sleep)
//! alloc_bulk(ClientId, &AllocBulk, Patience, now, outside) -> Result<AllocOutcome, CallError>
//! free_bulk(ClientId, &FreeBulk, now) -> Result<FreeReply, CallError>
//! abandon(ClientId, request_id)                                    a call given up before its reply
//! apply(Command, now, outside) -> Result<Reply, CommandError>
//! poll(now, outside) -> Option<Now>                                advances operations; when to poll again
//! take_effects() -> Vec<Effect>
//! populated(SectionId, Result<Backing, String>, now)   punched(SectionId, Result<(), String>, now)
//! changes() -> Changes { home, operations, events }                counters: what waits may look again
//! verify() -> VerifyReport
//! ```

#![forbid(unsafe_code)]
#![allow(dead_code, reason = "the parts that use these follow")]

mod call;
mod cell;
mod client;
mod command;
mod config;
mod events;
mod id;
mod info;
mod ledger;
mod misuse;
mod num;
mod outside;
mod owners;
mod report;
mod tally;
mod verify;
mod zones;

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
pub use misuse::Misuse;
pub use outside::{Effect, NoOutside, Outside};
pub use report::{
    Backing, BackingUse, ClientReport, ClientState, Event, EventBatch, HeldRun, Holder, LaneReport,
    LaneState, Onlined, OperationKind, OperationReport, OperationState, PageCounts, PageList,
    Recalled, SectionOutcome, SectionReport, StatusReport, Watermarks, ZoneReport,
};
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
