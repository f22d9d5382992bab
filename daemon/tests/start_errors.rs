//! Starts that cannot work: an error that says why and what to do, the right status, and nothing
//! left behind. Starts that look as if they could not, and can.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::path::Path;
use std::process::Command;

use hugepool_proto::v1;
use support::grpc::{self, verify};
use support::{Daemon, TINY, skipped};

fn hugepoold() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hugepoold"))
}

/// Runs to the end: status and everything it said.
fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let (status, log) = Daemon::spawn_in(dir, args).wait();
    (status.code(), log)
}

fn check(args: &[&str]) -> (Option<i32>, String) {
    // Where anybody could make a directory, and a check makes none.
    let parent = tempfile::tempdir().unwrap();
    let output = hugepoold()
        .arg("--runtime-dir")
        .arg(parent.path().join("not-yet"))
        .arg("--check")
        .args(args)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(!parent.path().join("not-yet").exists());
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// The pool is the machine's: one test at a time counts it.
static POOL: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Free huge pages of 2 MiB on this machine.
fn free_huge_pages() -> Option<u64> {
    pool_number("free_hugepages")
}

fn pool_number(name: &str) -> Option<u64> {
    let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[test]
fn what_is_typed_wrong_ends_with_2_and_says_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    for (args, part) in [
        (&["--zone", "normal"][..], "NAME=SIZE"),
        (&["--zone", "normal=100MiB"], "nearest are 0B and 128MiB"),
        (&["--zone", "a=128MiB,backing=disk"], "auto, hugetlb"),
        (&["--zone", "a=128MB"], "KiB, MiB, GiB or TiB"),
        (&["--section-size", "3MiB"], "power of two"),
        (&["--config", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--log", "loud=1="], "log filter"),
    ] {
        let (code, log) = run(dir.path(), args);
        assert_eq!(code, Some(2), "{args:?}: {log}");
        assert!(log.contains(part), "{args:?}: {log}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_file_with_an_unknown_key_ends_with_2_and_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "log = 'info'\n[limits]\nclient = 5\n").unwrap();
    let (code, log) = run(dir.path(), &["--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{log}");
    assert!(
        log.contains("unknown field `client`") && log.contains("line 3"),
        "{log}"
    );
}

#[test]
fn check_prints_the_plan_with_what_lacks() {
    let (code, text) = check(TINY);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "section 4MiB",
        "zone normal",
        "8MiB of 64MiB",
        "backing shm",
        "can start",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, text) = check(&["--zone", "a=8TiB,backing=shm"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("SHORT") && text.contains("8796093022208 bytes are needed"),
        "{text}"
    );
}

#[test]
fn more_memory_than_there_is_is_an_error_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (code, log) = run(dir.path(), &["--zone", "a=8TiB,backing=shm"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(
        log.contains("8796093022208 bytes are needed where"),
        "{log}"
    );
    assert!(
        !dir.path().join("admin.sock").exists(),
        "nothing is left behind"
    );
}

#[tokio::test]
async fn huge_pages_that_are_not_there_are_named_with_the_pool_and_the_next_start_works() {
    let _pool = POOL.lock().await;
    let Some(free) = free_huge_pages() else {
        return skipped("huge_pages_that_are_not_there", "no pool of 2 MiB pages");
    };
    let dir = tempfile::tempdir().unwrap();
    // Two sections of 4 MiB more than the pool has, used or not.
    let Some(total) = pool_number("nr_hugepages") else {
        return skipped("huge_pages_that_are_not_there", "no pool of 2 MiB pages");
    };
    let size = (total / 2 + 2) * 4;
    let zone = format!("a={size}MiB,backing=hugetlb");
    let (code, log) = run(dir.path(), &["--section-size", "4MiB", "--zone", &zone]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains(&format!(" of {total}")), "{log}");
    assert!(log.contains(&format!("{} huge pages", size / 2)), "{log}");
    support::until("every page is back in the pool", || {
        free_huge_pages() >= Some(free)
    });

    let mut daemon = Daemon::spawn_in(dir.path(), TINY);
    daemon.wait_for_line("ready");
    verify(&mut grpc::admin(&daemon).await).await;
}

#[tokio::test]
async fn a_pool_that_is_large_enough_serves_and_is_given_back_at_the_end() {
    let _pool = POOL.lock().await;
    let free = free_huge_pages().unwrap_or(0);
    if free < 4 {
        return skipped(
            "a_pool_that_is_large_enough",
            "fewer than 4 free huge pages",
        );
    }
    let zone = "a=8MiB,reserve=64MiB,backing=hugetlb";
    let daemon = Daemon::start(&["--section-size", "4MiB", "--zone", zone]);
    verify(&mut grpc::admin(&daemon).await).await;
    let (status, log) = daemon.stop();
    assert!(status.success(), "{log}");
    support::until("the pool is as it was", || free_huge_pages() >= Some(free));
}

#[tokio::test]
async fn a_second_daemon_on_one_directory_is_refused_with_the_first_ones_pid() {
    let first = Daemon::tiny();
    let (code, log) = run(first.path(), TINY);
    assert_eq!(code, Some(1), "{log}");
    assert!(
        log.contains(&format!("another hugepoold (pid {})", first.pid())),
        "{log}"
    );
    assert!(log.contains("--runtime-dir"), "{log}");
    // The first one's sockets are not touched.
    verify(&mut grpc::admin(&first).await).await;
}

#[test]
fn a_check_says_that_a_directory_is_served_and_disturbs_nobody() {
    let served = Daemon::tiny();
    let output = hugepoold()
        .arg("--runtime-dir")
        .arg(served.path())
        .arg("--check")
        .args(TINY)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    let pid = format!("served by another hugepoold (pid {})", served.pid());
    assert!(text.contains(&pid), "{text}");
    let (status, log) = served.stop();
    assert!(status.success(), "{log}");
}

#[tokio::test]
async fn what_a_killed_daemon_left_behind_does_not_stop_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Daemon::spawn_in(dir.path(), TINY);
    first.wait_for_line("ready");
    first.signal(nix::sys::signal::Signal::SIGKILL);
    first.wait();
    assert!(
        dir.path().join("admin.sock").exists(),
        "a stale socket to deal with"
    );
    let mut second = Daemon::spawn_in(dir.path(), TINY);
    second.wait_for_line("ready");
    verify(&mut grpc::admin(&second).await).await;
    let (status, log) = second.stop();
    assert!(status.success(), "{log}");
    for name in ["admin.sock", "pages.sock", "attach.sock"] {
        assert!(
            !dir.path().join(name).exists(),
            "{name} is removed by a clean end"
        );
    }
}

#[test]
fn something_else_in_the_place_of_a_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pages.sock");
    std::fs::write(&path, "mine").unwrap();
    let (code, log) = run(dir.path(), TINY);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("pages.sock exists and is no socket"), "{log}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    // On /proc nobody can make one, root neither.
    let (code, log) = run(Path::new("/proc/hugepool"), TINY);
    assert_eq!(code, Some(1), "{log}");
    assert!(
        log.contains("/proc/hugepool") && log.contains("--runtime-dir"),
        "{log}"
    );
}

#[test]
fn a_path_too_long_for_a_socket_is_named_with_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("x".repeat(120));
    let (code, log) = run(&deep, TINY);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("107"), "{log}");
}

#[test]
fn both_signals_stop_it_cleanly() {
    use nix::sys::signal::Signal;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = Daemon::tiny();
        daemon.signal(signal);
        let (status, log) = daemon.wait();
        assert!(status.success(), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test]
async fn a_hot_add_beyond_the_pool_is_refused_with_numbers_and_changes_nothing() {
    let _pool = POOL.lock().await;
    let free = free_huge_pages().unwrap_or(0);
    if free < 6 {
        return skipped("a_hot_add_beyond_the_pool", "fewer than 6 free huge pages");
    }
    // All of the pool but two sections of 4 MiB, however large it is.
    let size = (free / 2 - 2) * 4;
    let zone = format!("a={size}MiB,backing=hugetlb");
    let daemon = Daemon::start(&["--section-size", "4MiB", "--zone", &zone]);
    let mut admin = grpc::admin(&daemon).await;
    let before = verify(&mut admin).await;
    // One section after the other until the pool has no more.
    let add = v1::AddSectionsRequest {
        zone: "a".into(),
        count: 1,
        ..Default::default()
    };
    let mut nr_added = 0;
    let refused = loop {
        match admin.add_sections(add.clone()).await {
            Ok(answer) => assert!(answer.into_inner().results[0].ok),
            Err(status) => break status,
        }
        nr_added += 1;
        assert!(nr_added <= free / 2, "more than the pool has");
    };
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(
        refused.message().contains("2 huge pages"),
        "{}",
        refused.message()
    );
    let after = verify(&mut admin).await;
    assert_eq!(after.present, before.present + nr_added * 1024);
    let (status, log) = tokio::task::spawn_blocking(|| daemon.stop()).await.unwrap();
    assert!(status.success(), "{log}");
    support::until("the pool is as it was", || free_huge_pages() >= Some(free));
}

/// Seen to fail with a logger that reports its own failed writes: that is a failed write too, and ended
/// the daemon with all it holds.
#[tokio::test]
async fn a_daemon_whose_log_nobody_reads_any_more_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = hugepoold();
    command.arg("--runtime-dir").arg(dir.path()).args(TINY);
    let mut daemon = Ended(
        command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let Ended(daemon) = &mut daemon;
    drop(daemon.stderr.take());
    let socket = dir.path().join("admin.sock");
    support::until("it serves", || {
        assert_eq!(daemon.try_wait().unwrap(), None, "it has ended");
        socket.exists()
    });
    let mut admin = v1::admin_client::AdminClient::new(grpc::channel(&socket).await);
    let add = v1::AddSectionsRequest {
        zone: "normal".to_owned(),
        count: 1,
        ..Default::default()
    };
    // This is logged, into nothing.
    admin.add_sections(add).await.unwrap();
    verify(&mut admin).await;
    support::send_signal(daemon.id(), nix::sys::signal::Signal::SIGTERM);
    assert!(support::wait_for(daemon).success());
}

/// A process that has ended when the test has.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
