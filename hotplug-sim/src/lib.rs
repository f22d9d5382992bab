//! Simulates, replays and imports memory hotplug of real and imagined machines.
//!
//! [`import`] reads what people have of a real machine. The binary only maps the verbs of
//! [`flags`] to functions of this crate.

#![forbid(unsafe_code)]

pub mod flags;
pub mod import;
