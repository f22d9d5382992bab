//! A client is told when its zones run short of pages, and when they no longer do; what it let the
//! daemon take away is taken first.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::{Duration, Instant};

use hugepool::{Client, EvictablePage, Page, Pressure, PressureLevel, PressureWatch};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd as _;
use support::{Daemon, PATIENCE};

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

/// The next state of the zone that is at this level.
fn until(watch: &PressureWatch, level: PressureLevel) -> Pressure {
    let ends = Instant::now() + PATIENCE;
    while Instant::now() < ends {
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(1000u16)).unwrap() == 0 {
            continue;
        }
        let state = watch.take().expect("the descriptor is readable");
        if state.level == level {
            return state;
        }
    }
    panic!("never {level:?}");
}

fn take_all(client: &Client) -> Vec<Page> {
    let request = client.request().with_deadline(Duration::ZERO);
    let mut pages = Vec::new();
    while request.alloc_pages_bulk_list(1024, &mut pages).populated > 0 {}
    pages
}

#[test]
fn pressure_comes_and_goes_and_is_told_through_a_descriptor() {
    let mut daemon = Daemon::with_zones("pressure", &["normal=32MiB,backing=shm"]);
    let client = daemon.attach("watcher");
    let watch = client.watch_pressure().unwrap();
    let first = until(&watch, PressureLevel::None);
    assert_eq!(first.zone, "normal");
    assert!(first.min_pages < first.low_pages && first.low_pages < first.high_pages);
    assert!(first.free_pages >= first.high_pages);

    let other = daemon.attach("other");
    let mut cache: Vec<EvictablePage> = Vec::new();
    let bulk = other.request().alloc_evictable_bulk(500, &mut cache);
    assert_eq!(bulk.populated, 500);
    let is_left = |page: &&EvictablePage| page.pin().is_ok();
    let nr_left = |cache: &[EvictablePage]| cache.iter().filter(is_left).count();
    assert_eq!(nr_left(&cache), 500);
    let held = take_all(&client);
    let low = until(&watch, PressureLevel::Low);
    assert_eq!(low.high_pages, first.high_pages);
    assert!(nr_left(&cache) < 500);

    drop(held);
    until(&watch, PressureLevel::None);
    drop((cache, watch));
    daemon.verify();
}

/// Seen to fail when nothing is kept for what is urgent.
#[test]
fn what_is_urgent_may_have_part_of_what_is_kept_below_min() {
    let mut daemon = Daemon::with_zones("urgent", &["normal=32MiB,backing=shm"]);
    let client = daemon.attach("all");
    let watch = client.watch_pressure().unwrap();
    let min_pages = until(&watch, PressureLevel::None).min_pages;
    // A call that does not wait may find nothing in the lane while more is on its way to it: it is all
    // when nothing lies there, and the zone has no more than it keeps.
    let all = |request: hugepool::Request<'_>, kept_pages: u64| {
        let request = request.with_deadline(Duration::ZERO);
        let ends = Instant::now() + PATIENCE;
        let mut pages: Vec<Page> = Vec::new();
        loop {
            let nr_new = request.alloc_pages_bulk_list(1024, &mut pages).populated;
            let (zone, clients) = (daemon.pages(), daemon.clients());
            let in_lanes: u64 = clients.iter().map(|client| client.in_lanes).sum();
            if nr_new == 0 && zone.free + zone.pcp <= kept_pages && in_lanes == 0 {
                return pages;
            }
            assert!(Instant::now() < ends, "{zone:?} of {kept_pages} kept");
        }
    };
    let held = all(client.request(), min_pages);
    // Five eighths of what is below min, as the kernel has it for who may not sleep.
    let urgent = all(client.request().urgent(), min_pages * 3 / 8 + 2);
    let nr_urgent = u64::try_from(urgent.len()).unwrap();
    assert!(
        nr_urgent > 0 && nr_urgent <= min_pages * 5 / 8 + 1,
        "{nr_urgent} of {min_pages}"
    );
    let nothing = client.request().with_deadline(Duration::ZERO);
    assert!(nothing.alloc_page().is_err());
    until(&watch, PressureLevel::Min);
    drop((held, urgent));
    until(&watch, PressureLevel::None);
    drop(watch);
    daemon.verify();
}
