//! A bench that is killed leaves no daemon behind.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tests/support/mod.rs"]
mod daemon;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The processes that this one has started.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn is_there(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // One that has ended and was not waited for is not there.
    !stat.is_empty() && !stat.contains(") Z ")
}

fn until<T>(what: &str, mut looked: impl FnMut() -> Option<T>) -> T {
    let ends = Instant::now() + daemon::PATIENCE;
    loop {
        if let Some(seen) = looked() {
            return seen;
        }
        assert!(Instant::now() < ends, "never: {what}");
        // tidy: sleep: between two looks at a condition that has a deadline
        thread::sleep(Duration::from_millis(2));
    }
}

/// Seen to fail when the daemon is started without being tied to the bench.
#[test]
fn a_bench_that_is_killed_takes_its_daemon_along() {
    let tool = Path::new(env!("CARGO_BIN_EXE_hugepoolctl"));
    if !tool.with_file_name("hugepoold").is_file() {
        let why = "hugepoold was not built beside hugepoolctl";
        return daemon::skipped("a_bench_that_is_killed_takes_its_daemon_along", why);
    }
    let mut bench = Command::new(tool)
        .args(["bench", "svc", "--reps", "1000", "-J"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let folder: PathBuf = std::env::temp_dir().join(format!("hugepool-bench-{}", bench.id()));
    let mut first = String::new();
    BufReader::new(bench.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    assert!(
        first.contains("environment"),
        "the daemon has answered: {first}"
    );
    let [daemon] = children(bench.id())[..] else {
        panic!("one daemon")
    };
    bench.kill().unwrap();
    bench.wait().unwrap();
    until("the daemon has ended", || (!is_there(daemon)).then_some(()));
    let is_left = folder.join("attach.sock").exists();
    assert!(!is_left, "it ended as it was asked to");
    std::fs::remove_dir_all(folder).unwrap();
}
