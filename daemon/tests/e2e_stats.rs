//! The statistics segment: there while the daemon runs, there after it was killed, gone after a
//! clean end.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::path::Path;

use hugepool_shm::stats::{StatsError, StatsReader, StatsSnapshot};
use nix::sys::signal::Signal;
use support::grpc::{self, want};
use support::{Daemon, TINY, TINY_PAGES, until};

fn snapshot(run: &Path) -> StatsSnapshot {
    StatsReader::open(run).unwrap().snapshot()
}

fn counter(run: &Path, name: &str) -> u64 {
    let counters = snapshot(run).counters;
    counters
        .into_iter()
        .find(|(known, _)| known == name)
        .unwrap()
        .1
}

#[tokio::test]
async fn counters_follow_the_engine_and_outlive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::spawn_in(dir.path(), TINY);
    daemon.wait_for_line("ready");
    let run = daemon.path().to_owned();
    let mut pages = grpc::pages(&daemon).await;
    pages.alloc_bulk(want(1, 65, 0)).await.unwrap();
    let lent =
        || counter(&run, "zone.normal.lent_pages") + counter(&run, "zone.movable.lent_pages");
    until("the pages show as lent", || lent() == 65);
    let present =
        counter(&run, "zone.normal.present_pages") + counter(&run, "zone.movable.present_pages");
    assert_eq!(present, TINY_PAGES);

    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let left = snapshot(&run);
    assert_eq!(left.pid, u64::from(daemon.pid()));
    assert!(left.updated_ms >= left.started_ms && !left.is_torn);
    assert_eq!(lent(), 65, "what it was at the end");

    let mut next = Daemon::spawn_in(&run, TINY);
    next.wait_for_line("ready");
    until("the next daemon's counters take their place", || {
        StatsReader::open(&run).is_ok_and(|reader| reader.snapshot().pid == u64::from(next.pid()))
    });
    next.signal(Signal::SIGTERM);
    next.wait();
    let gone = StatsReader::open(&run).map(drop);
    assert!(matches!(gone, Err(StatsError::NotFound { .. })), "{gone:?}");
}
