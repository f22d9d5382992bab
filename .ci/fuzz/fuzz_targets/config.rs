//! The daemon's configuration file.

#![no_main]

#[path = "../../../daemon/tests/support/fuzz.rs"]
mod fuzz;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::config(bytes));
