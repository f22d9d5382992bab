//! Every scenario of `scenarios/` comes out as it expects, the same each time; and a run that
//! fails is said to, and can be made small.

// The exemption of tests covers test functions, not what they call.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

fn scenarios() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    all.sort();
    assert!(
        all.len() >= 19,
        "the scenarios are not where they should be"
    );
    all
}

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn every_scenario_comes_out_as_it_expects() {
    let mut bad = Vec::new();
    for path in scenarios() {
        let path = path.to_str().unwrap();
        let run = sim(&["run", "--scenario", path, "--verify-every", "1000"]);
        if run.status.code() != Some(0) {
            bad.push(format!(
                "{path}: {}{}",
                text(&run.stdout),
                text(&run.stderr)
            ));
        }
    }
    assert!(bad.is_empty(), "{} fail:\n{}", bad.len(), bad.join("\n"));
}

#[test]
fn every_expectation_is_looked_at() {
    // Each scenario with its last expectation turned round: it must fail by exactly that one.
    for path in scenarios() {
        let text_of = std::fs::read_to_string(&path).unwrap();
        let mut scenario = hotplug_sim::scenario::file::Scenario::from_toml(&text_of).unwrap();
        let last = scenario
            .steps
            .iter()
            .rposition(|step| !step.expect.is_empty())
            .unwrap();
        scenario.steps.truncate(last + 1);
        let expected = scenario.steps[last].expect.pop().unwrap();
        let turned = format!("{expected} + 1");
        scenario.steps[last].expect = vec![turned.clone()];
        let room =
            std::env::temp_dir().join(format!("hotplug-sim-turned-{}.toml", std::process::id()));
        std::fs::write(&room, scenario.to_toml().unwrap()).unwrap();
        let run = sim(&[
            "run",
            "--scenario",
            room.to_str().unwrap(),
            "--verify-every",
            "100000",
        ]);
        std::fs::remove_file(&room).unwrap();
        let is_inequality = expected.contains('<') || expected.contains('>');
        let code = run.status.code();
        let stdout = text(&run.stdout);
        // Words cannot be added to, and one more may be as true of an inequality.
        if expected.contains('"') {
            assert_eq!(code, Some(2), "{}: {stdout}", path.display());
        } else if !is_inequality && !expected.contains("!=") {
            assert_eq!(code, Some(1), "{}: {stdout}", path.display());
            assert!(stdout.contains(&turned), "{}: {stdout}", path.display());
        }
    }
}
