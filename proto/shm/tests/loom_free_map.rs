//! The free map: every free comes home once, after the words in the rings that it rests on.
//!
//! Seen to fail: a mark cleared without a second look at its bits; the mark set before the bit;
//! `SYNC(free_map.bit)` set Relaxed (the notice before it is not seen); the rings settled before
//! the map is loaded (edit of this file); the page lent before the bits are cleared (edit of this
//! file).
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/tiny_lane.rs"]
#[allow(dead_code, reason = "shared by the models")]
mod tiny_lane;

use hugepool_shm::control::ControlSegment;
use hugepool_shm::raw::Class;
use tiny_lane::{assert_each_once, at_once, client, daemon, model, page, segment, uncached};

fn take_home(segment: &ControlSegment) -> Vec<u32> {
    let (settled, ()) = segment.free_map().load(&mut 0, 9).settled_by(|| ());
    let heads = settled.heads().collect();
    settled.commit();
    heads
}

#[test]
fn every_free_comes_home_once() {
    model(3, |is_client_first| {
        let segment = segment();
        let (of_client, of_daemon) = (segment.clone(), segment.clone());
        let free_both = move || {
            assert!(of_client.free_map().set(1));
            assert!(of_client.free_map().set(70));
        };
        let ((), mut home) = at_once(is_client_first, free_both, move || take_home(&of_daemon));
        home.extend(take_home(&segment));
        assert_each_once(home, &[1, 70]);
        assert!(!segment.free_map().may_have_any());
    });
}

/// A page claimed on one thread (its notice lies in `returns`) and dropped into the map on another.
#[test]
fn a_free_is_judged_after_the_notice_that_it_rests_on() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let of_client = segment.clone();
        let claim_and_drop = move || {
            // Its mark may be seen without the second free's.
            assert!(of_client.free_map().set(6));
            client(&of_client, None).put_raw(&[uncached(5)]);
            assert!(of_client.free_map().set(5));
        };
        let take_home = move || {
            let mut noticed = Vec::new();
            let mut settle = || {
                lane.settle(&mut |notice| noticed.push(notice.pfn()))
                    .unwrap();
            };
            let (settled, ()) = segment.free_map().load(&mut 0, 9).settled_by(&mut settle);
            for head in settled.heads().filter(|&head| head == 5) {
                assert!(noticed.contains(&head), "freed by nobody that has it");
            }
            settled.commit();
        };
        at_once(is_client_first, claim_and_drop, take_home);
    });
}

/// A page that comes home through the map is lent again, and freed through the map again.
#[test]
fn a_page_lent_again_can_be_freed_again() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        assert!(segment.free_map().set(7));
        let (of_client, of_daemon) = (segment.clone(), segment.clone());
        let take_and_free = move || {
            let is_taken = client(&of_client, None).take_one_raw(Class::PAGE).is_ok();
            is_taken && of_client.free_map().set(7)
        };
        let take_home_and_lend = move || {
            let (settled, ()) = of_daemon.free_map().load(&mut 0, 9).settled_by(|| ());
            assert_eq!(settled.heads().collect::<Vec<_>>(), [7]);
            settled.commit();
            lane.grant(Class::PAGE, &[page(7)]).unwrap();
        };
        let (is_freed_again, ()) = at_once(is_client_first, take_and_free, take_home_and_lend);
        assert_eq!(
            take_home(&segment) == [7],
            is_freed_again,
            "the second free was lost"
        );
    });
}
