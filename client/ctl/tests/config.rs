//! What `hugepoolctl config` says, with the daemon's program beside it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tests/support/mod.rs"]
mod daemon;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

/// Runs `hugepoolctl config`, if the daemon's program has been built beside it.
fn config(test: &str, dir: &Path, args: &[&str]) -> Option<Output> {
    let program = Path::new(env!("CARGO_BIN_EXE_hugepoolctl"));
    if !program.with_file_name("hugepoold").is_file() {
        daemon::skipped(test, "hugepoold was not built beside hugepoolctl");
        return None;
    }
    let mut command = Command::new(program);
    command
        .arg("--runtime-dir")
        .arg(dir)
        .arg("config")
        .args(args);
    Some(command.env_remove("HUGEPOOLD_CONFIG").output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_is_shown_is_a_file_that_makes_the_same_plan() {
    let dir = tempfile::tempdir().unwrap();
    let test = "what_is_shown_is_a_file";
    let Some(shown) = config(test, dir.path(), &["show"]) else {
        return;
    };
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    let file = dir.path().join("shown.toml");
    fs::write(&file, &shown.stdout).unwrap();
    let again = config(
        test,
        dir.path(),
        &["show", "--config", file.to_str().unwrap()],
    )
    .unwrap();
    assert_eq!(text(&again.stdout), text(&shown.stdout));
    let as_json = config(test, dir.path(), &["show", "-J"]).unwrap();
    let plan: Value = serde_json::from_slice(&as_json.stdout).unwrap();
    assert_eq!(plan["zone"][1]["kind"], "movable");
    assert_eq!(plan["runtime_dir"], dir.path().to_str().unwrap());
}

#[test]
fn a_check_answers_by_its_status_and_says_what_is_short() {
    let dir = tempfile::tempdir().unwrap();
    let test = "a_check_answers";
    let file = dir.path().join("plan.toml");
    let check = |zone: &str| {
        fs::write(&file, format!("[[zone]]\n{zone}\n")).unwrap();
        config(
            test,
            dir.path(),
            &["check", "--config", file.to_str().unwrap()],
        )
    };
    let Some(well) = check("name = 'a'\nsize = '128MiB'\nbacking = 'shm'") else {
        return;
    };
    assert_eq!(well.status.code(), Some(0), "{}", text(&well.stdout));
    let short = check("name = 'a'\nsize = '8TiB'\nreserve = '8TiB'\nbacking = 'shm'").unwrap();
    assert_eq!(short.status.code(), Some(1));
    assert!(
        text(&short.stdout).contains("8796093022208 bytes are needed"),
        "{}",
        text(&short.stdout)
    );
    let wrong = check("name = 'a'\nsize = '1MiB'").unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong.stderr).contains("nearest are"),
        "{}",
        text(&wrong.stderr)
    );
    // Something that is in the way of a start is found without starting.
    fs::write(dir.path().join("pages.sock"), "mine").unwrap();
    let taken = check("name = 'a'\nsize = '128MiB'\nbacking = 'shm'").unwrap();
    assert_eq!(taken.status.code(), Some(1));
    assert!(text(&taken.stdout).contains("pages.sock exists and is no socket"));
}

#[test]
fn keys_are_explained_by_name_or_table() {
    let dir = tempfile::tempdir().unwrap();
    let test = "keys_are_explained";
    let Some(one) = config(test, dir.path(), &["explain", "limits.clients"]) else {
        return;
    };
    let one = text(&one.stdout);
    assert!(one.lines().count() == 2 && one.contains("1024"), "{one}");
    let zones = config(test, dir.path(), &["explain", "zone", "-J"]).unwrap();
    let zones: Value = serde_json::from_slice(&zones.stdout).unwrap();
    let keys: Vec<_> = zones["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["key"].as_str().unwrap())
        .collect();
    assert!(
        keys.contains(&"zone[].backing") && !keys.contains(&"zonelist"),
        "{keys:?}"
    );
    let unknown = config(test, dir.path(), &["explain", "zones"]).unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        text(&unknown.stderr).contains("no key `zones`"),
        "{}",
        text(&unknown.stderr)
    );
}
