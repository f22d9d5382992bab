//! A demo whose reader or director goes away: it ends, and its daemon with it.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// A demo in a folder of its own, and the first line that it has printed.
struct Demo {
    child: Child,
    folder: tempfile::TempDir,
}

impl Demo {
    fn start() -> (Demo, BufReader<std::process::ChildStdout>) {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_hugepool-demo"))
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        assert!(first.starts_with("daemon "), "{first}");
        (Demo { child, folder }, lines)
    }

    /// Processes that name the demo's folder: its daemon and its workers.
    fn nr_processes(&self) -> usize {
        let folder = self.folder.path();
        let names_it = |entry: &std::fs::DirEntry| {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words)
                .split('\0')
                .any(|word| Path::new(word).starts_with(folder))
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
            .filter(names_it)
            .count()
    }

    #[track_caller]
    fn until_all_have_ended(&self) {
        let end = Instant::now() + DEADLINE;
        while self.nr_processes() > 0 {
            assert!(Instant::now() < end, "{} are left", self.nr_processes());
            // tidy: sleep: between two looks at a condition that has a deadline
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Seen to fail: it panicked at the next line, and its daemon stayed.
#[test]
fn a_reader_that_has_seen_enough_does_not_spoil_the_demo() {
    let (mut demo, lines) = Demo::start();
    drop(lines);
    let status = demo.child.wait().unwrap();
    assert!(status.success(), "{status}");
    demo.until_all_have_ended();
}

/// Seen to fail: the daemon went on without anybody.
#[test]
fn a_demo_that_is_killed_takes_its_daemon_along() {
    let (mut demo, _lines) = Demo::start();
    assert!(demo.nr_processes() > 0, "the daemon runs");
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    demo.until_all_have_ended();
}
