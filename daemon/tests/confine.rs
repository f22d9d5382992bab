//! What a confined thread can no longer do. Rules hold for a thread and those it starts, so each
//! test confines a thread of its own, whose end ends it.

mod support;

use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;

use hugepool_daemon::confine;
use landlock::RulesetStatus;
use support::{Daemon, skipped};

/// Whether the kernel enforces all the file rules that we have.
fn has_landlock(test: &str) -> bool {
    let answer = thread::spawn(|| confine::files(Path::new("/nowhere/at/all"), None)).join();
    let has = matches!(answer, Ok(Ok(RulesetStatus::FullyEnforced)));
    if !has {
        skipped(test, "this kernel has no Landlock of ABI 5");
    }
    has
}

fn kind<T>(result: io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn no_file_but_those_named_and_no_port() {
    if !has_landlock("no_file_but_those_named_and_no_port") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (run, other) = (dir.path().join("run"), dir.path().join("other"));
    for folder in [&run, &other] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("file"), "here").unwrap();
    }
    let denied = Some(ErrorKind::PermissionDenied);
    thread::scope(|scope| {
        let confined = scope.spawn(|| {
            confine::files(&run, None).unwrap();
            assert_eq!(fs::read(run.join("file")).unwrap(), b"here");
            fs::write(run.join("new"), "new").unwrap();
            fs::remove_file(run.join("new")).unwrap();
            assert!(fs::read("/proc/self/status").is_ok());
            assert!(fs::File::open("/dev/zero").is_ok());
            assert_eq!(kind(fs::read(other.join("file"))), denied);
            assert_eq!(kind(fs::write(other.join("new"), "new")), denied);
            assert_eq!(kind(fs::remove_file(other.join("file"))), denied);
            assert_eq!(kind(TcpListener::bind("127.0.0.1:0")), denied);
        });
        confined.join().unwrap();
    });
    assert!(
        fs::read(other.join("file")).is_ok(),
        "others are not confined"
    );
}

#[test]
fn no_program_and_no_call_that_is_not_listed() {
    let denied = Some(ErrorKind::PermissionDenied);
    let confined = thread::spawn(move || {
        assert_eq!(kind(Command::new("true").status()), None);
        confine::calls().unwrap();
        assert_eq!(kind(Command::new("true").status()), denied);
        assert_eq!(kind(fs::create_dir("not-made")), denied);
        // What is listed goes on, in the threads that come after it too.
        thread::spawn(|| fs::read("/proc/self/status").unwrap())
            .join()
            .unwrap();
    });
    confined.join().unwrap();
}

#[test]
fn a_daemon_that_serves_is_confined() {
    let daemon = Daemon::tiny();
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    for task in tasks {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1"] {
            assert!(status.contains(line), "no {line} in\n{status}");
        }
    }
}
