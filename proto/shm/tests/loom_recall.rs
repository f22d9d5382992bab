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

use hugepool_shm::lane_client::LaneClient;
use hugepool_shm::lane_daemon::{LaneDaemon, TakeState};
use hugepool_shm::raw::{Class, RawPage};
use loom::thread;
use tiny_lane::{assert_each_once, at_once, client, daemon, model, page, pfns, segment};

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

fn take_one(client: &LaneClient<'_>) -> Vec<u32> {
    let mut out = [RawPage::default(); 1];
    let count = client.take_raw(Class::PAGE, &mut out).count;
    pfns(&out[..count])
}

#[test]
fn takes_against_a_recall() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        lane.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
        let take_twice = move || {
            let client = client(&segment, None);
            (0..2).flat_map(|_| take_one(&client)).collect::<Vec<_>>()
        };
        let recall_once = move || {
            let home = recall(&mut lane);
            assert!(lane.open());
            (lane, home)
        };
        let (held, (mut lane, mut all)) = at_once(is_client_first, take_twice, recall_once);
        all.extend(held);
        all.extend(recall(&mut lane));
        assert_each_once(all, &[1, 2]);
    });
}

#[test]
fn a_recall_between_two_takes_is_noticed_though_the_lane_is_open_again() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        lane.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
        let take_thrice = move || {
            let client = client(&segment, None);
            (0..3).flat_map(|_| take_one(&client)).collect::<Vec<_>>()
        };
        let recall_and_lend = move || {
            let home = recall(&mut lane);
            assert!(lane.open());
            lane.grant(Class::PAGE, &[page(3)]).unwrap();
            (lane, home)
        };
        let (held, (mut lane, mut all)) = at_once(is_client_first, take_thrice, recall_and_lend);
        all.extend(held);
        all.extend(recall(&mut lane));
        assert_each_once(all, &[1, 2, 3]);
    });
}

#[test]
fn frees_and_takes_against_a_recall() {
    model(2, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let free_and_take = move || {
            let client = client(&segment, None);
            client.put_one_raw(page(1));
            client.put_one_raw(page(2));
            take_one(&client)
        };
        let recall_once = move || {
            let home = recall(&mut lane);
            assert!(lane.open());
            (lane, home)
        };
        let (held, (mut lane, mut all)) = at_once(is_client_first, free_and_take, recall_once);
        all.extend(held);
        all.extend(recall(&mut lane));
        all.extend(settle(&mut lane));
        assert_each_once(all, &[1, 2]);
    });
}

#[test]
fn single_frees_and_takes_against_a_recall() {
    model(2, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let free_and_take = move || {
            let client = client(&segment, None);
            // The first one learns the epoch, the others go the fast way.
            client.put_one_raw(page(1));
            client.put_one_raw(page(2));
            let taken = client.take_one_raw(Class::PAGE);
            taken.map_or(vec![], |page| pfns(&[page]))
        };
        let recall_once = move || {
            let home = recall(&mut lane);
            assert!(lane.open());
            (lane, home)
        };
        let (held, (mut lane, mut all)) = at_once(is_client_first, free_and_take, recall_once);
        all.extend(held);
        all.extend(recall(&mut lane));
        all.extend(settle(&mut lane));
        assert_each_once(all, &[1, 2]);
    });
}

#[test]
fn a_spill_against_a_recall() {
    model(2, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 1, 2, 0);
        client(&segment, None).put_one_raw(page(1));
        let spill = move || client(&segment, None).put_one_raw(page(2));
        let recall_and_settle = move || {
            let mut home = recall(&mut lane);
            home.extend(settle(&mut lane));
            (lane, home)
        };
        let ((), (mut lane, mut all)) = at_once(is_client_first, spill, recall_and_settle);
        all.extend(settle(&mut lane));
        assert!(lane.open());
        all.extend(recall(&mut lane));
        assert_each_once(all, &[1, 2]);
    });
}
