//! Messages on the attach socket.

#![no_main]

#[path = "../../../daemon/tests/support/fuzz.rs"]
mod fuzz;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::attach(bytes));
