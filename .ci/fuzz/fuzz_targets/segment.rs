//! A client's control segment, as the daemon sees it.

#![no_main]

#[path = "../../../daemon/engine/tests/support/fuzz.rs"]
mod fuzz;
#[path = "../../../daemon/engine/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::segment(bytes));
