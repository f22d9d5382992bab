//! Scenarios: what is done to a machine, step by step, and what is expected of it.
//!
//! [`mod@file`] reads them, [`verb`] lists what can be done, [`expr`] compares; [`runner`] goes
//! through the steps, [`memory`] and [`pages`] do them, [`mix`] draws operations from the seed,
//! [`minimize`] makes a failing run small.

pub mod command;
pub mod expr;
pub mod file;
pub mod memory;
pub mod minimize;
pub mod mix;
pub mod names;
pub mod pages;
pub mod runner;
pub mod samples;
pub mod verb;
