//! The window: a recall against a client that goes on taking and freeing loses and doubles no
//! page.
//!
//! Loom has no membarrier: the client runs with the full fence that the barrier makes of that
//! point. Seen to fail: that fence left out; the daemon's fence in `reach` left out; a flag
//! instead of an epoch (remembered cursors kept when the lane was shut and opened between two
//! operations); `SYNC(window.epoch)` of the opening stored Relaxed; `SYNC(window.busy)` of the
//! leaving stored Relaxed; taking without waiting for `busy`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/tiny_lane.rs"]
#[allow(dead_code, reason = "shared by the models")]
mod tiny_lane;

use hugepool_shm::lane_daemon::{LaneDaemon, TakeState};
use hugepool_shm::raw::{Class, RawPage};
use loom::thread;
use tiny_lane::{assert_each_once, client, daemon, model, page, pfns, segment};

/// Closes and waits for the client to leave, as the daemon's rounds do.
fn recall(lane: &mut LaneDaemon) -> Vec<u32> {
    let mut words = Vec::new();
    lane.close();
    while let TakeState::Busy { .. } = lane.try_take(false, &mut words).unwrap() {
        thread::yield_now();
    }
    pfns(&words)
}

fn settle(lane: &mut LaneDaemon) -> Vec<u32> {
    let mut words = Vec::new();
    lane.settle(&mut |word| words.push(word)).unwrap();
    pfns(&words)
}

#[test]
fn takes_against_a_recall() {
    model(3, |first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        lane.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
        let taking = thread::spawn({
            let segment = segment.clone();
            move || {
                let client = client(&segment, None);
                let mut held = Vec::new();
                for _ in 0..2 {
                    let mut out = [RawPage::default(); 1];
                    let count = client.take_raw(Class::PAGE, &mut out).count;
                    held.extend(pfns(&out[..count]));
                }
                held
            }
        });
        first.begin();
        let mut all = recall(&mut lane);
        assert!(lane.open());
        all.extend(taking.join().unwrap());
        all.extend(recall(&mut lane));
        assert_each_once(all, &[1, 2]);
    });
}

#[test]
fn a_recall_between_two_takes_is_noticed_though_the_lane_is_open_again() {
    model(3, |first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        lane.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
        let taking = thread::spawn({
            let segment = segment.clone();
            move || {
                let client = client(&segment, None);
                let mut held = Vec::new();
                for _ in 0..3 {
                    let mut out = [RawPage::default(); 1];
                    let count = client.take_raw(Class::PAGE, &mut out).count;
                    held.extend(pfns(&out[..count]));
                }
                held
            }
        });
        first.begin();
        let mut all = recall(&mut lane);
        assert!(lane.open());
        lane.grant(Class::PAGE, &[page(3)]).unwrap();
        all.extend(taking.join().unwrap());
        all.extend(recall(&mut lane));
        assert_each_once(all, &[1, 2, 3]);
    });
}

#[test]
fn frees_and_takes_against_a_recall() {
    model(2, |first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let working = thread::spawn({
            let segment = segment.clone();
            move || {
                let client = client(&segment, None);
                client.put_one_raw(page(1));
                client.put_one_raw(page(2));
                client
                    .take_one_raw(Class::PAGE)
                    .map_or_else(|_| Vec::new(), |page| vec![page.pfn()])
            }
        });
        first.begin();
        let mut all = recall(&mut lane);
        assert!(lane.open());
        all.extend(working.join().unwrap());
        all.extend(recall(&mut lane));
        all.extend(settle(&mut lane));
        assert_each_once(all, &[1, 2]);
    });
}

#[test]
fn a_spill_against_a_recall() {
    model(2, |first| {
        let segment = segment();
        let mut lane = daemon(&segment, 1, 2, 0);
        client(&segment, None).put_one_raw(page(1));
        let working = thread::spawn({
            let segment = segment.clone();
            move || client(&segment, None).put_one_raw(page(2))
        });
        first.begin();
        let mut all = recall(&mut lane);
        all.extend(settle(&mut lane));
        working.join().unwrap();
        all.extend(settle(&mut lane));
        assert!(lane.open());
        all.extend(recall(&mut lane));
        assert_each_once(all, &[1, 2]);
    });
}
