//! A lane whose client stopped in the middle of an operation: what lies beyond the operation's
//! reach is taken at once, the rest when it ends, and no page is lost or doubled.
//!
//! The model's daemon gives the client no time at all, so it takes from under it at every point.
//! Seen to fail: a reach of nothing (all is taken from under the operation); the grants' part
//! taken from their head; the magazine's part taken up to its top; from its bottom; the block
//! beside it taken too; the rest taken as if nothing had been taken before; the mark of a cut run
//! stored behind its first word, or either of them Relaxed.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/tiny_lane.rs"]
#[allow(dead_code, reason = "shared by the models")]
mod tiny_lane;

use hugepool_shm::lane_client::LaneClient;
use hugepool_shm::lane_daemon::TakeState;
use hugepool_shm::raw::{Class, RawPage};
use tiny_lane::{assert_each_once, at_once, client, daemon, model, page, pfns, segment};

/// Runs `work` in the client against a daemon that takes at once, and then, when the client has
/// ended, the rest; `expected` must be there once each.
fn against_an_impatient_daemon(
    high: u32,
    granted: &'static [u32],
    cached: &'static [u32],
    last: Option<u32>,
    work: impl Fn(&LaneClient<'_>) -> Vec<u32> + Copy + Send + Sync + 'static,
    expected: &'static [u32],
) {
    model(3, move |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, high, 1, 0);
        let lent: Vec<RawPage> = granted.iter().copied().map(page).collect();
        assert_eq!(lane.grant(Class::PAGE, &lent), Ok(lent.len()));
        let freed: Vec<RawPage> = cached.iter().copied().map(page).collect();
        // By the same client: only one that knows the epoch frees beside the magazine.
        let before = client(&segment, None);
        before.put_raw(&freed);
        if let Some(last) = last {
            before.put_one_raw(page(last));
        }
        drop(before);

        let of_client = segment.clone();
        let operate = move || work(&client(&of_client, None));
        let take_at_once = move || {
            let mut words = Vec::new();
            lane.close();
            match lane.try_take(true, &mut words).unwrap() {
                TakeState::Held { reach, nr_left } => {
                    assert!(nr_left <= 3 * reach + 2, "{nr_left} {reach}")
                }
                TakeState::Emptied => {}
                state @ TakeState::Busy { .. } => unreachable!("{state:?}"),
            }
            (lane, words)
        };
        let (held, (mut lane, mut words)) = at_once(is_client_first, operate, take_at_once);
        assert_eq!(lane.try_take(false, &mut words), Ok(TakeState::Emptied));
        lane.settle(&mut |word| words.push(word)).unwrap();
        assert_each_once(pfns(&words).into_iter().chain(held).collect(), expected);
        // And the lane is as good as new.
        assert!(lane.open());
        lane.grant(Class::PAGE, &[page(9)]).unwrap();
        assert_eq!(
            client(&segment, None).take_one_raw(Class::PAGE),
            Ok(page(9))
        );
    });
}

fn take_one(client: &LaneClient<'_>) -> Vec<u32> {
    let mut out = [RawPage::default(); 1];
    let count = client.take_raw(Class::PAGE, &mut out).count;
    pfns(&out[..count])
}

#[test]
fn in_a_take_from_the_grants() {
    against_an_impatient_daemon(4, &[1, 2], &[], None, take_one, &[1, 2]);
}

/// What is left of a run is written into its places, which the daemon reads at that moment.
#[test]
fn in_a_take_that_cuts_a_run() {
    against_an_impatient_daemon(4, &[1, 2, 3, 4], &[], None, take_one, &[1, 2, 3, 4]);
    let take_twice = |client: &LaneClient<'_>| {
        let mut held = take_one(client);
        held.extend(take_one(client));
        held
    };
    against_an_impatient_daemon(4, &[1, 2, 3], &[], None, take_twice, &[1, 2, 3]);
}

#[test]
fn in_a_take_from_the_magazine() {
    against_an_impatient_daemon(4, &[], &[1, 2, 3], None, take_one, &[1, 2, 3]);
}

#[test]
fn in_a_take_from_both() {
    let take_two = |client: &LaneClient<'_>| {
        let mut out = [RawPage::default(); 2];
        let count = client.take_raw(Class::PAGE, &mut out).count;
        pfns(&out[..count])
    };
    against_an_impatient_daemon(4, &[1, 2], &[3], None, take_two, &[1, 2, 3]);
}

#[test]
fn in_a_free_to_the_magazine() {
    let free = |client: &LaneClient<'_>| {
        client.put_one_raw(page(4));
        Vec::new()
    };
    against_an_impatient_daemon(4, &[], &[1, 2, 3], None, free, &[1, 2, 3, 4]);
}

#[test]
fn in_a_spill() {
    let free = |client: &LaneClient<'_>| {
        client.put_one_raw(page(4));
        Vec::new()
    };
    against_an_impatient_daemon(3, &[], &[1, 2, 3], None, free, &[1, 2, 3, 4]);
}

#[test]
fn in_a_take_of_the_block_freed_last() {
    // The first one learns the epoch, the second goes the fast way.
    let take_twice = |client: &LaneClient<'_>| {
        let mut held = take_one(client);
        let taken = client.take_one_raw(Class::PAGE);
        held.extend(taken.into_iter().flat_map(|page| pfns(&[page])));
        held
    };
    against_an_impatient_daemon(4, &[], &[1, 2], Some(3), take_twice, &[1, 2, 3]);
}

#[test]
fn in_a_free_after_one_that_lies_beside_the_magazine() {
    let free = |client: &LaneClient<'_>| {
        client.put_one_raw(page(4));
        Vec::new()
    };
    against_an_impatient_daemon(4, &[], &[1, 2], Some(3), free, &[1, 2, 3, 4]);
    let take_and_free = |client: &LaneClient<'_>| {
        let held = take_one(client);
        client.put_one_raw(page(4));
        held
    };
    against_an_impatient_daemon(4, &[], &[1, 2], Some(3), take_and_free, &[1, 2, 3, 4]);
}

/// Of two grants one lies beyond the reach of a take of one, however far it has come.
#[test]
fn nothing_beyond_the_reach_is_left() {
    model(3, |is_client_first| {
        let segment = segment();
        let mut lane = daemon(&segment, 4, 1, 0);
        lane.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
        let operate = move || take_one(&client(&segment, None));
        let take_at_once = move || {
            let mut words = Vec::new();
            lane.close();
            let state = lane.try_take(true, &mut words).unwrap();
            (state, words.len())
        };
        let (held, (state, nr_taken)) = at_once(is_client_first, operate, take_at_once);
        match state {
            TakeState::Emptied => assert_eq!(nr_taken + held.len(), 2),
            // Where the take had come to its end, the other one counts as within reach.
            _ => assert!(
                nr_taken == 1 || held.len() == 1,
                "took {nr_taken}, held {held:?}"
            ),
        }
    });
}
