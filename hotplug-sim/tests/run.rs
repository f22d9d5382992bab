//! `hotplug-sim run`, the built binary: same seed, same trace; a failure exits 3 and says how
//! to see it again.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
        .arg("run")
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    let args = ["--seed", "11", "--steps", "3000", "--trace"];
    let (first, second) = (sim(&args), sim(&args));
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert_eq!(text(&first.stdout).lines().count(), 3000);
    assert!(first.stdout == second.stdout);
    let other = sim(&["--seed", "12", "--steps", "3000", "--trace"]);
    assert!(first.stdout != other.stdout);
}

#[test]
fn a_part_of_a_run_is_the_beginning_of_the_whole() {
    let whole = sim(&["--seed", "5", "--steps", "2500", "--trace"]);
    let part = sim(&[
        "--seed", "5", "--steps", "2500", "--trace", "--until", "1200",
    ]);
    assert_eq!(part.status.code(), Some(0));
    assert!(text(&whole.stdout).starts_with(text(&part.stdout)));
    assert_eq!(text(&part.stdout).lines().count(), 1200);
}

#[test]
fn a_broken_invariant_exits_3_and_says_how_to_see_it_again() {
    let broken = sim(&["--seed", "9", "--steps", "2000", "--break-at", "777"]);
    assert_eq!(broken.status.code(), Some(3));
    let stderr = text(&broken.stderr);
    let replay = stderr
        .lines()
        .find_map(|line| line.strip_prefix("replay: "))
        .unwrap();
    assert!(stderr.contains("broken at step 777"), "{stderr}");
    let mut words = replay.split_whitespace();
    assert_eq!(
        (words.next(), words.next()),
        (Some("hotplug-sim"), Some("run"))
    );
    let mut args: Vec<&str> = words.collect();
    args.extend(["--break-at", "777"]);
    let again = sim(&args);
    assert_eq!(again.status.code(), Some(3));
    // The last line of the trace is the step before; the step itself is in the report.
    let step = stderr
        .lines()
        .find_map(|line| line.strip_prefix("the step: "))
        .unwrap();
    assert!(text(&again.stderr).contains(step), "{stderr}");
    assert!(
        text(&again.stdout)
            .lines()
            .last()
            .unwrap()
            .starts_with("777 ")
    );
}

#[test]
fn many_seeds_hold() {
    let swept = sim(&[
        "--seed",
        "1000",
        "--seeds",
        "24",
        "--steps",
        "4000",
        "--verify-every",
        "200",
    ]);
    assert_eq!(swept.status.code(), Some(0), "{}", text(&swept.stderr));
}

#[test]
fn usage_is_2() {
    assert_eq!(sim(&["--verify-every", "0"]).status.code(), Some(2));
    assert_eq!(sim(&["--seed", "x"]).status.code(), Some(2));
}
