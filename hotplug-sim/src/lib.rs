//! Simulates, replays and imports memory hotplug of real and imagined machines.
//!
//! [`import`] reads what people have of a real machine. [`run`] drives the daemon's own engine in
//! told time, with clients and operators drawn from a seed, against a [`model`] that knows only
//! who holds which page. The binary only maps the verbs of [`flags`] to functions of this crate.

#![forbid(unsafe_code)]

mod admin;
mod calls;
mod checker;
mod clients;
pub mod flags;
mod hostile;
pub mod import;
pub mod model;
mod movable;
pub mod prng;
pub mod replay;
pub mod run;
mod stopped;
pub mod swarm;
mod tenant;
pub mod trace;
pub mod world;
