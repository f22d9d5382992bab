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
        all.len() >= 22,
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

#[test]
fn every_report_is_tried_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let rows: Vec<Vec<&str>> = readme
        .lines()
        .filter(|line| line.starts_with("| R"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let numbers: Vec<String> = rows.iter().map(|row| row[0].to_owned()).collect();
    let all: Vec<String> = (1..=26).map(|nr| format!("R{nr:02}")).collect();
    assert_eq!(numbers, all);
    let mut listed = 0;
    for row in rows {
        let [_, _, scenario, test] = row[..] else {
            panic!("{row:?}")
        };
        if scenario != "–" {
            let name = format!("{}.toml", scenario.trim_matches('`'));
            assert!(folder().join(&name).exists(), "{name}");
            listed += 1;
        }
        let [_, file, _, function, _] = test.split('`').collect::<Vec<_>>()[..] else {
            panic!("{test}")
        };
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(text.contains(&format!("fn {function}(")), "{test}");
    }
    let reports = scenarios().into_iter().filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with('r')
    });
    assert_eq!(listed, reports.count(), "a scenario that the table forgot");
}
