//! What the allocator costs alone: `hugepoold bench NAME`, its lines in their final form.
//!
//! This tool knows nothing of the allocator's inside; the daemon's program has it, and measures it
//! without sockets or memory.

use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use super::report::Report;
use crate::{outcome::Failure, program};

/// Measures, so many windows if it has several, and prints a line for each case.
pub fn run(name: &str, reps: Option<u32>, report: &Report<'_>) -> Result<(), Failure> {
    let reps = reps.map(|reps| ["--reps".to_owned(), reps.to_string()]);
    let ended = Command::new(program::of_daemon())
        .args(["bench", name])
        .args(reps.iter().flatten())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let ended = ended.map_err(|error| cannot(&error))?;
    if !ended.status.success() {
        return Err(cannot(&ended.status));
    }
    for line in String::from_utf8_lossy(&ended.stdout).lines() {
        let arm: Map<String, Value> = serde_json::from_str(line).map_err(|error| cannot(&error))?;
        print(arm, report)?;
    }
    Ok(())
}

fn cannot(why: &dyn std::fmt::Display) -> Failure {
    Failure::refused(
        format_args!("hugepoold did not measure: {why}"),
        "build it beside this tool",
    )
}

fn print(mut arm: Map<String, Value>, report: &Report<'_>) -> Result<(), Failure> {
    let mut take = |name: &str| arm.remove(name).unwrap_or_default();
    let (case, n, unit) = (take("case"), take("n"), take("unit"));
    let samples = take("samples");
    let samples: Vec<f64> = samples.as_array().map_or_else(Vec::new, |all| {
        all.iter().filter_map(Value::as_f64).collect()
    });
    report.measured(
        case.as_str().unwrap_or_default(),
        n.as_u64().unwrap_or(0),
        unit.as_str().unwrap_or_default(),
        &samples,
        Value::Object(arm),
    )
}
