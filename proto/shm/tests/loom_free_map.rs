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
use loom::thread;
use tiny_lane::{assert_each_once, client, daemon, model, page, segment, uncached};

fn take_home(segment: &ControlSegment) -> Vec<u32> {
    let (settled, ()) = segment.free_map().load(&mut 0, 9).settled_by(|| ());
    let heads = settled.heads().collect();
    settled.commit();
    heads
}

#[test]
fn every_free_comes_home_once() {
    model(3, |first| {
        let segment = segment();
        let freeing = thread::spawn({
            let segment = segment.clone();
            move || {
                assert!(segment.free_map().set(1));
                assert!(segment.free_map().set(70));
            }
        });
        first.begin();
        let mut home = take_home(&segment);
        freeing.join().unwrap();
        home.extend(take_home(&segment));
        assert_each_once(home, &[1, 70]);
        assert!(!segment.free_map().may_have_any());
    });
}

/// A page claimed on one thread (its notice lies in `returns`) and dropped into the map on another.
#[test]
fn a_free_is_judged_after_the_notice_that_it_rests_on() {
    model(3, |first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let claiming = thread::spawn({
            let segment = segment.clone();
            move || {
                // Its mark may be seen without the second free's.
                assert!(segment.free_map().set(6));
                client(&segment, None).put_raw(&[uncached(5)]);
                assert!(segment.free_map().set(5));
            }
        });
        first.begin();
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
        claiming.join().unwrap();
    });
}

/// A page that comes home through the map is lent again, and freed through the map again.
#[test]
fn a_page_lent_again_can_be_freed_again() {
    model(3, |first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        assert!(segment.free_map().set(7));
        let freeing = thread::spawn({
            let segment = segment.clone();
            move || {
                let client = client(&segment, None);
                if client.take_one_raw(Class::PAGE).is_ok() {
                    assert!(segment.free_map().set(7));
                    return true;
                }
                false
            }
        });
        first.begin();
        let (settled, ()) = segment.free_map().load(&mut 0, 9).settled_by(|| ());
        assert_eq!(settled.heads().collect::<Vec<_>>(), [7]);
        settled.commit();
        lane.grant(Class::PAGE, &[page(7)]).unwrap();
        let is_freed_again = freeing.join().unwrap();
        assert_eq!(
            take_home(&segment) == [7],
            is_freed_again,
            "the second free was lost"
        );
    });
}
