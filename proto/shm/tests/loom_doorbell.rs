//! The doorbell: no work is left for a daemon that sleeps on, and one ring is enough.
//!
//! The daemon says that it sleeps, looks once more, and sleeps; the model asks at the end whether
//! it saw the work or was rung for. Seen to fail: the fence in `must_ring` left out; the fence in
//! `announce_sleep` left out; ringing without taking the 1 away (two rings).
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/tiny_lane.rs"]
#[allow(dead_code, reason = "shared by the models")]
mod tiny_lane;

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::lane_client::{LaneClient, LaneTerms};
use hugepool_shm::lane_daemon::LaneDaemon;
use hugepool_shm::raw::{Class, RawPage};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use tiny_lane::{at_once, client, daemon, model, page, segment};

fn counting(rings: &Arc<AtomicU32>) -> Doorbell {
    let rings = rings.clone();
    Doorbell::new(move || {
        rings.fetch_add(1, Relaxed);
    })
}

#[test]
fn a_want_is_seen_or_rung_for() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let rings = Arc::new(AtomicU32::new(0));
        let (of_client, bell) = (segment.clone(), counting(&rings));
        let want = move || client(&of_client, Some(&bell)).want(Class::PAGE, 1);
        let fall_asleep = move || {
            segment.announce_sleep();
            lane.take_wanted(Class::PAGE) > 0
        };
        let ((), is_seen) = at_once(is_client_first, want, fall_asleep);
        assert!(is_seen || rings.load(Relaxed) == 1, "the daemon sleeps on");
    });
}

#[test]
fn grants_below_the_mark_are_seen_or_rung_for() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 2);
        lane.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
        let rings = Arc::new(AtomicU32::new(0));
        let (of_client, bell) = (segment.clone(), counting(&rings));
        let take = move || {
            let mut out = [RawPage::default(); 1];
            let _ = client(&of_client, Some(&bell)).take_raw(Class::PAGE, &mut out);
        };
        let fall_asleep = move || {
            segment.announce_sleep();
            lane.depth(Class::PAGE).unwrap().grants < 2
        };
        let ((), is_seen) = at_once(is_client_first, take, fall_asleep);
        assert!(is_seen || rings.load(Relaxed) == 1, "the daemon sleeps on");
    });
}

#[test]
fn two_threads_ring_once_for_one_sleep() {
    model(2, |is_client_first| {
        let geometry = ControlGeometry {
            nr_lanes: 2,
            nr_sections: 1,
            nr_pages: 64,
        };
        let segment = ControlSegment::heap(geometry).unwrap();
        let mut lanes = [0, 1].map(|index| LaneDaemon::new(segment.clone(), index).unwrap());
        let rings = Arc::new(AtomicU32::new(0));
        let want = |index: u32| {
            let (segment, bell) = (segment.clone(), counting(&rings));
            move || {
                let terms = LaneTerms {
                    client_index: 0,
                    pageblock_order: 9,
                    registered: true,
                };
                let client = LaneClient::new(&segment, index, terms, Some(&bell)).unwrap();
                client.want(Class::PAGE, 1);
            }
        };
        let other = thread::spawn(want(1));
        let of_daemon = segment.clone();
        let fall_asleep = move || {
            of_daemon.announce_sleep();
            lanes
                .iter_mut()
                .map(|lane| lane.take_wanted(Class::PAGE))
                .sum::<u32>()
        };
        let ((), nr_seen) = at_once(is_client_first, want(0), fall_asleep);
        other.join().unwrap();
        let nr_rings = rings.load(Relaxed);
        assert!(nr_seen == 2 || nr_rings >= 1, "the daemon sleeps on");
        assert!(nr_rings <= 1, "rung {nr_rings} times for one sleep");
    });
}
