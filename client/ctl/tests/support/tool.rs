//! `hugepoolctl`, run against a daemon.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

use serde_json::Value;

use crate::daemon::Daemon;

pub fn run(daemon: &Daemon, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hugepoolctl"))
        .arg("--runtime-dir")
        .arg(daemon.dir())
        .args(args)
        .output()
        .unwrap()
}

/// Runs a verb that must end with `code`, and reads its JSON.
pub fn json(daemon: &Daemon, args: &[&str], code: i32) -> Value {
    let output = run(daemon, &[args, &["-J"]].concat());
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    serde_json::from_str(&out).unwrap()
}

/// Runs a verb that must succeed, and reads its text.
pub fn text(daemon: &Daemon, args: &[&str]) -> String {
    let output = run(daemon, args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}
