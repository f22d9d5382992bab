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
use tiny_lane::{client, daemon, model, page, segment};

fn counting(rings: &Arc<AtomicU32>) -> Doorbell {
    let rings = rings.clone();
    Doorbell::new(move || {
        rings.fetch_add(1, Relaxed);
    })
}

#[test]
fn a_want_is_seen_or_rung_for() {
    model(3, |first| {
        let segment = segment();
        let mut sleeper = daemon(&segment, 4, 1, 0);
        let rings = Arc::new(AtomicU32::new(0));
        let wanting = thread::spawn({
            let (segment, bell) = (segment.clone(), counting(&rings));
            move || client(&segment, Some(&bell)).want(Class::PAGE, 1)
        });
        first.begin();
        segment.announce_sleep();
        let is_seen = sleeper.take_wanted(Class::PAGE) > 0;
        wanting.join().unwrap();
        assert!(is_seen || rings.load(Relaxed) == 1, "the daemon sleeps on");
    });
}

#[test]
fn grants_below_the_mark_are_seen_or_rung_for() {
    model(3, |first| {
        let segment = segment();
        let mut sleeper = daemon(&segment, 4, 1, 2);
        sleeper.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
        let rings = Arc::new(AtomicU32::new(0));
        let taking = thread::spawn({
            let (segment, bell) = (segment.clone(), counting(&rings));
            move || {
                let mut out = [RawPage::default(); 1];
                let _ = client(&segment, Some(&bell)).take_raw(Class::PAGE, &mut out);
            }
        });
        first.begin();
        segment.announce_sleep();
        let is_seen = sleeper.depth(Class::PAGE).unwrap().grants < 2;
        taking.join().unwrap();
        assert!(is_seen || rings.load(Relaxed) == 1, "the daemon sleeps on");
    });
}

#[test]
fn two_threads_ring_once_for_one_sleep() {
    model(2, |first| {
        let geometry = ControlGeometry {
            nr_lanes: 2,
            nr_sections: 1,
            nr_pages: 64,
        };
        let segment = ControlSegment::heap(geometry).unwrap();
        let mut lanes = [0, 1].map(|index| LaneDaemon::new(segment.clone(), index).unwrap());
        let rings = Arc::new(AtomicU32::new(0));
        let wanting: Vec<_> = (0..2)
            .map(|index| {
                let (segment, bell) = (segment.clone(), counting(&rings));
                thread::spawn(move || {
                    let terms = LaneTerms {
                        client_index: 0,
                        pageblock_order: 9,
                        registered: true,
                    };
                    let client = LaneClient::new(&segment, index, terms, Some(&bell)).unwrap();
                    client.want(Class::PAGE, 1);
                })
            })
            .collect();
        first.begin();
        segment.announce_sleep();
        let nr_seen: u32 = lanes
            .iter_mut()
            .map(|lane| lane.take_wanted(Class::PAGE))
            .sum();
        wanting
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let nr_rings = rings.load(Relaxed);
        assert!(nr_seen == 2 || nr_rings >= 1, "the daemon sleeps on");
        assert!(nr_rings <= 1, "rung {nr_rings} times for one sleep");
    });
}
