//! `hotplug-sim replay`: what a trace or a log shows, done again by our allocator.
//!
//! [`trace`] replays allocations and frees of pages, beside a copy of memory in which the
//! kernel's own choices are marked, so that both are measured by the same code; [`kinds`] reads
//! what was asked for and [`ledger`] what is in use. [`log`] replays what is done to memory
//! [`blocks`] and devices, and compares the outcomes; [`scans`] follows compaction. [`command`] reads and prints.

pub mod blocks;
pub mod command;
pub mod kinds;
pub mod ledger;
pub mod log;
mod log_text;
pub mod plot;
pub mod scans;
mod sides;
pub mod trace;
mod trace_text;
