//! Rings of a lane: every word put in comes out once, in order, across a wrap and through a full
//! ring (four grants and two returns here), whole runs and cut ones.
//!
//! Seen to fail: `SYNC(ring.tail)` stored Relaxed, in the daemon's push and in the client's; the
//! same loaded Relaxed, by either; a ring that is full by one word later, for either. Not to be
//! seen by loom, which does not explore load buffering: `SYNC(ring.head)` stored Relaxed.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/tiny_lane.rs"]
#[allow(dead_code, reason = "shared by the models")]
mod tiny_lane;

use hugepool_shm::raw::{Class, RawPage};
use loom::thread;
use tiny_lane::{at_once, client, daemon, model, page, pfns, segment, uncached};

#[test]
fn grants_arrive_once_and_in_order() {
    model(2, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let take_all = move || {
            let client = client(&segment, None);
            let mut taken = Vec::new();
            while taken.len() < 5 {
                let mut out = [RawPage::default(); 2];
                let count = client.take_raw(Class::PAGE, &mut out).count;
                taken.extend(pfns(&out[..count]));
                thread::yield_now();
            }
            taken
        };
        let lend_all = move || {
            // As much as there is room for is one run, whatever that is.
            let pages = [1, 2, 3, 4, 5].map(page);
            let mut nr_lent = 0;
            while nr_lent < pages.len() {
                nr_lent += lane.grant(Class::PAGE, &pages[nr_lent..]).unwrap();
                thread::yield_now();
            }
        };
        let (taken, ()) = at_once(is_client_first, take_all, lend_all);
        assert_eq!(taken, [1, 2, 3, 4, 5]);
    });
}

#[test]
fn returns_arrive_once_and_in_order_and_what_finds_no_room_is_in_the_map() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        let of_client = segment.clone();
        let free_all = move || {
            let client = client(&of_client, None);
            (1..=4).for_each(|pfn| client.put_raw(&[uncached(pfn)]));
        };
        let settle_twice = move || {
            let mut home = Vec::new();
            lane.settle(&mut |word| home.push(word.pfn())).unwrap();
            lane.settle(&mut |word| home.push(word.pfn())).unwrap();
            (lane, home)
        };
        let ((), (mut lane, mut home)) = at_once(is_client_first, free_all, settle_twice);
        lane.settle(&mut |word| home.push(word.pfn())).unwrap();
        assert!(home.is_sorted(), "{home:?}");
        let (settled, ()) = segment.free_map().load(&mut 0, 9).settled_by(|| ());
        home.extend(settled.heads());
        home.sort_unstable();
        assert_eq!(home, [1, 2, 3, 4]);
    });
}
