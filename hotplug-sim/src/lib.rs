//! Simulates, replays and imports memory hotplug of real and imagined machines.
//!
//! [`import`] reads what people have of a real machine, and [`replay`] does again what it shows.
//! [`host`] is a machine of real size, [`ask`] what could be done to it, [`scenario`] what is, [`plot`] and [`report`] the
//! pictures. [`run`] without a machine drives the daemon's own engine in told time, with clients and
//! operators drawn from a seed, against a [`model`] that knows only who holds which page. The binary
//! only maps the verbs of [`flags`] to functions of this crate.

#![forbid(unsafe_code)]

mod admin;
pub mod ask;
mod calls;
mod checker;
mod clients;
mod crash;
pub mod flags;
pub mod fleet;
pub mod host;
mod hostile;
pub mod import;
pub mod live;
pub mod model;
mod movable;
pub mod plot;
pub mod prng;
mod progress;
pub mod replay;
pub mod report;
pub mod run;
pub mod scenario;
pub mod seeds;
mod stopped;
pub mod swarm;
mod tenant;
pub mod trace;
pub mod world;
