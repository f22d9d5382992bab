//! Pages on their way between clients: settled by notice, by scan, at a death; forged and late
//! claims.
//!
//! Seen to fail: the scan at a burial left out (pages of the dead taker stay the sender's); the
//! closing of offered parcels left out (a posthumous claim wins); the notice of a parcel that was
//! settled unasked taken for misuse; a notice that is ahead not waited for; a page that comes before
//! its notice taken for misuse.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/mortal.rs"]
mod mortal;
#[path = "support/post.rs"]
mod post;
#[path = "support/mod.rs"]
mod support;

use hugepool_shm::raw::RawPage;
use hugepool_shm::ticket::{Done, Ticket};
use hugepool_shm::transit::Transit;

use mortal::Mortal;
use post::Poster;
use support::{PAGE, Rig};

fn rig() -> (Rig, [Poster; 3]) {
    let mut rig = Rig::new(4);
    let transits = rig.post();
    let posters = [(); 3].map(|()| rig.poster(&transits, 2));
    (rig, posters)
}

fn take(rig: &mut Rig, of: &Poster, count: usize) -> Vec<RawPage> {
    let pages = rig.take(&of.tenant, 0, PAGE, count);
    assert_eq!(pages.len(), count);
    pages
}

/// Pages that are a client's and do not lie in its lanes' caches.
fn held(rig: &Rig, of: &Poster) -> u64 {
    let report = rig.client(of.id());
    let cached: u64 = report
        .lanes
        .iter()
        .map(|lane| lane.granted + lane.magazine)
        .sum();
    report.lent - cached
}

fn nr_misuses(rig: &Rig, of: &Poster) -> u64 {
    rig.client(of.id()).nr_misuses
}

#[test]
fn a_claimed_parcel_is_its_takers_and_the_slot_is_free_again() {
    let (mut rig, [mut a, b, _]) = rig();
    let pages = take(&mut rig, &a, 65);
    let ticket = a.hand_over(0, &pages);
    rig.service();
    assert_eq!(
        (held(&rig, &a), held(&rig, &b)),
        (65, 0),
        "offered is the sender's"
    );
    let got = b.claim(&a, ticket);
    assert!(!a.is_settled(ticket));
    rig.serve(&b);
    assert!(a.is_settled(ticket));
    assert_eq!((held(&rig, &a), held(&rig, &b)), (0, 65));
    rig.verify();
    b.put_home(1, &got);
    rig.service();
    assert_eq!((held(&rig, &a), held(&rig, &b)), (0, 0));
    assert_eq!(rig.engine.status().nr_misuses, 0);
    rig.verify();
}

#[test]
fn a_parcel_freed_whole_goes_home_by_one_word() {
    let (mut rig, [mut a, b, _]) = rig();
    let pages = take(&mut rig, &a, 65);
    let ticket = a.hand_over(0, &pages);
    b.take(&a, ticket).unwrap();
    b.tell(0, ticket, Done::Freed);
    let home = rig.engine.changes().home;
    rig.serve(&b);
    assert!(a.is_settled(ticket));
    assert_eq!(rig.engine.changes().home, home + 65);
    assert_eq!((held(&rig, &a), held(&rig, &b)), (0, 0));
    // Nobody has its pages any more.
    a.put_home(1, &pages);
    rig.service();
    assert_eq!(nr_misuses(&rig, &a), 65);
    rig.verify();
}

#[test]
fn a_parcel_given_back_was_never_anybody_elses() {
    let (mut rig, [mut a, b, _]) = rig();
    let pages = take(&mut rig, &a, 4);
    let ticket = a.hand_over(0, &pages);
    b.take(&a, ticket).unwrap();
    let sequence = ticket.parts().sequence;
    assert_eq!(a.word(ticket).give_back(sequence, b.me()), Ok(()));
    rig.service();
    assert_eq!(held(&rig, &b), 0);
    assert_eq!(a.word(ticket).regain(sequence, b.me().cut()), Ok(()));
    a.outbox.slot(0).unwrap().clear();
    // The same words are right still.
    a.put_home(0, &pages);
    rig.service();
    assert_eq!((held(&rig, &a), rig.engine.status().nr_misuses), (0, 0));
    // A claim of it afterwards, by who had it, is worth nothing.
    b.tell(0, ticket, Done::Kept);
    rig.service();
    assert_eq!(nr_misuses(&rig, &b), 1);
    rig.verify();
}

#[test]
fn a_chain_is_settled_in_whatever_order_its_notices_are_met() {
    // A to B to A to C, and C gives back: the notices in every order.
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let (mut rig, [mut a, mut b, c]) = rig();
        let pages = take(&mut rig, &a, 3);
        let first = a.hand_over(0, &pages);
        let at_b = b.take(&a, first).unwrap();
        let second = b.hand_over(0, &at_b);
        let at_a = a.take(&b, second).unwrap();
        let third = a.hand_over(1, &at_a);
        let at_c = c.take(&a, third).unwrap();
        let told: [(&Poster, Ticket); 3] = [(&b, first), (&a, second), (&c, third)];
        for step in order {
            let (who, ticket) = told[step];
            who.tell(0, ticket, Done::Kept);
            rig.serve(who);
            rig.verify();
        }
        c.put_home(0, &at_c);
        rig.serve(&c);
        for of in [&a, &b, &c] {
            assert_eq!((held(&rig, of), nr_misuses(&rig, of)), (0, 0), "{order:?}");
        }
        assert!(a.is_settled(first) && b.is_settled(second) && a.is_settled(third));
    }
}

#[test]
fn a_chain_is_settled_though_its_transit_words_are_scribbled_over() {
    let (mut rig, [mut a, mut b, c]) = rig();
    let pages = take(&mut rig, &a, 3);
    let first = a.hand_over(0, &pages);
    let at_b = b.claim(&a, first);
    let second = b.hand_over(0, &at_b);
    let at_c = c.claim(&b, second);
    // Under another sequence: as if it had never been.
    b.word(first).offer(77);
    b.word(second).offer(77);
    // C's claim is met first: B's notice, which lies in its ring, must come before it.
    rig.serve(&c);
    assert_eq!((held(&rig, &a), held(&rig, &b), held(&rig, &c)), (0, 0, 3));
    c.put_home(0, &at_c);
    rig.service();
    assert_eq!(rig.engine.status().nr_misuses, 0);
    rig.verify();
}

#[test]
fn a_page_freed_in_one_lane_waits_for_its_notice_in_another() {
    let (mut rig, [mut a, b, _]) = rig();
    let pages = take(&mut rig, &a, 3);
    let ticket = a.hand_over(0, &pages);
    let got = b.take(&a, ticket).unwrap();
    // Nothing tells of it but the notice, and that is met last.
    b.word(ticket).offer(77);
    b.put_home(0, &got);
    b.tell(1, ticket, Done::Kept);
    rig.serve(&b);
    assert_eq!((held(&rig, &a), held(&rig, &b)), (0, 0));
    assert_eq!(rig.engine.status().nr_misuses, 0);
    rig.verify();
}

#[test]
fn a_page_that_comes_home_before_its_notice_is_found_by_the_transit_word() {
    for through_the_map in [false, true] {
        let (mut rig, [mut a, b, _]) = rig();
        let pages = take(&mut rig, &a, 3);
        let ticket = a.hand_over(0, &pages);
        let got = b.take(&a, ticket).unwrap();
        if through_the_map {
            b.tenant.segment.free_map().set(got[1].pfn());
        } else {
            b.put_home(1, &got[1..2]);
        }
        rig.serve(&b);
        assert_eq!((held(&rig, &a), held(&rig, &b)), (0, 2));
        assert_eq!(rig.engine.status().nr_misuses, 0);
        // The notice comes late, and is no misuse.
        b.tell(0, ticket, Done::Kept);
        rig.serve(&b);
        assert_eq!(rig.engine.status().nr_misuses, 0);
        b.put_home(0, &[got[0], got[2]]);
        rig.service();
        assert_eq!(held(&rig, &b), 0);
        rig.verify();
    }
}

#[test]
fn the_dead_senders_offers_are_closed_and_what_was_taken_is_the_takers() {
    let (mut rig, [mut a, b, c]) = rig();
    let pages = take(&mut rig, &a, 9);
    let offered = a.hand_over(0, &pages[..3]);
    let taken = a.hand_over(1, &pages[3..6]);
    let told = a.hand_over(2, &pages[6..]);
    let untold = b.take(&a, taken).unwrap();
    let at_c = c.claim(&a, told);
    rig.bury(&a);
    rig.verify();
    assert_eq!((held(&rig, &b), held(&rig, &c)), (3, 3));
    assert_eq!(b.take(&a, offered), Err(Transit::Closed));
    let sequence = taken.parts().sequence;
    assert_eq!(
        b.word(taken).give_back(sequence, b.me()),
        Err(Transit::Settled(b.me().cut())),
        "there is nobody to give it back to"
    );
    // What the takers say afterwards is late, and no misuse.
    b.tell(0, taken, Done::Freed);
    c.put_home(0, &at_c);
    rig.service();
    assert_eq!((held(&rig, &b), held(&rig, &c)), (0, 0));
    assert_eq!(rig.engine.status().nr_misuses, 0);
    assert_eq!(untold.len(), 3);
    rig.verify();
}

#[test]
fn a_dead_takers_untold_parcel_comes_home() {
    let (mut rig, [mut a, b, _]) = rig();
    let pages = take(&mut rig, &a, 6);
    let untold = a.hand_over(0, &pages[..3]);
    let told = a.hand_over(1, &pages[3..]);
    b.take(&a, untold).unwrap();
    b.claim(&a, told);
    rig.bury(&b);
    assert_eq!(held(&rig, &a), 0);
    assert!(a.is_settled(untold) && a.is_settled(told));
    assert_eq!(rig.engine.status().nr_misuses, 0);
    rig.verify();
}

#[test]
fn the_next_client_of_a_slot_goes_on_with_its_sequences() {
    let (mut rig, [mut a, b, _]) = rig();
    let transits = a.transits.clone();
    let pages = take(&mut rig, &a, 1);
    let mut old = a.hand_over(7, &pages);
    for _ in 0..5 {
        assert_eq!(a.word(old).withdraw(old.parts().sequence), Ok(()));
        old = a.hand_over(7, &pages);
    }
    rig.bury(&a);
    let mut heir = rig.poster(&transits, 1);
    assert_eq!(heir.id().slot, a.id().slot);
    let pages = take(&mut rig, &heir, 1);
    let new = heir.hand_over(7, &pages);
    assert!(new.parts().sequence > old.parts().sequence);
    assert_eq!(b.take(&heir, old), Err(Transit::OtherSequence));
    b.tell(0, old, Done::Kept);
    rig.service();
    assert_eq!((nr_misuses(&rig, &b), held(&rig, &heir)), (1, 1));
    rig.verify();
}

#[test]
fn forged_notices_are_refused_counted_and_cost_nothing() {
    let (mut rig, [mut a, b, c]) = rig();
    let pages = take(&mut rig, &a, 4);
    let ticket = a.hand_over(3, &pages);
    let parts = ticket.parts();
    let with = |change: &dyn Fn(&mut hugepool_shm::ticket::TicketParts)| {
        let mut parts = parts;
        change(&mut parts);
        parts.pack().unwrap()
    };
    let mut forged = vec![
        with(&|parts| parts.sequence += 1),
        with(&|parts| parts.sequence -= 1),
        with(&|parts| parts.slot = 4),
        with(&|parts| parts.slot = 511),
        with(&|parts| parts.zone = 1),
        with(&|parts| parts.zone = 7),
        with(&|parts| parts.client = b.id().slot),
        with(&|parts| parts.client = 9),
        with(&|parts| parts.client = u16::MAX),
    ];
    // Another one has it.
    let at_c = c.take(&a, ticket).unwrap();
    forged.push(ticket);
    let nr_forged = u64::try_from(forged.len()).unwrap();
    for ticket in forged {
        b.tell(0, ticket, Done::Freed);
    }
    b.put_home(0, &[RawPage::from_bits(!(3 << 36)), RawPage::from_bits(0)]);
    rig.service();
    assert_eq!(nr_misuses(&rig, &b), nr_forged + 2);
    assert!(
        rig.client(b.id())
            .lanes
            .iter()
            .all(|lane| lane.state == hugepool_engine::LaneState::Open)
    );
    assert_eq!(held(&rig, &a), 4);
    c.tell(0, ticket, Done::Kept);
    rig.service();
    assert_eq!(
        (held(&rig, &a), held(&rig, &c), nr_misuses(&rig, &c)),
        (0, 4, 0)
    );
    // And again: it is settled.
    c.tell(0, ticket, Done::Kept);
    c.put_home(0, &at_c);
    rig.service();
    assert_eq!((held(&rig, &c), nr_misuses(&rig, &c)), (0, 1));
    rig.verify();
}

/// Seen to fail: custody moved without looking at the generation.
#[test]
fn what_is_told_once_more_to_the_next_daemon_moves_nothing() {
    let (mut rig, [mut a, mut b, c]) = rig();
    let pages = take(&mut rig, &a, 2);
    let first = a.hand_over(0, &pages);
    let at_b = b.claim(&a, first);
    let second = b.hand_over(0, &at_b);
    a.claim(&b, second);
    rig.service();
    assert_eq!((held(&rig, &a), held(&rig, &b)), (2, 0));
    let mut mortal = Mortal::new(rig);
    mortal.transits = vec![a.transits.clone()];
    for of in [&a, &b, &c] {
        let segment = of.tenant.segment.clone();
        mortal.segments.insert(of.id(), segment);
        mortal.outboxes.insert(of.id(), of.outbox.clone());
    }
    // As if it had never been: nothing but the generation tells that it is behind.
    b.word(first).offer(77);
    mortal.die();
    b.tell(0, first, Done::Kept);
    mortal.service();
    let rig = &mortal.rig;
    assert_eq!(
        (held(rig, &a), held(rig, &b), nr_misuses(rig, &b)),
        (2, 0, 1)
    );
    rig.verify();
}

#[test]
fn a_sender_that_signs_for_what_is_not_its_own_moves_nothing() {
    let (mut rig, [mut a, b, c]) = rig();
    let at_c = take(&mut rig, &c, 3);
    let own = take(&mut rig, &a, 1);
    let absurd = RawPage::from_bits(own[0].bits() | 0xffff_ffff);
    let ticket = a.hand_over(0, &[at_c[0], own[0], own[0], absurd, at_c[1]]);
    b.claim(&a, ticket);
    rig.service();
    assert_eq!((held(&rig, &a), held(&rig, &b), held(&rig, &c)), (0, 1, 3));
    c.put_home(0, &at_c);
    rig.service();
    assert_eq!(nr_misuses(&rig, &c), 0);
    rig.verify();
}

#[test]
fn a_client_without_room_in_its_outbox_gets_what_is_taken_settled() {
    let (mut rig, [mut a, b, _]) = rig();
    let pages = take(&mut rig, &a, 2);
    let untold = a.hand_over(0, &pages[..1]);
    let offered = a.hand_over(1, &pages[1..]);
    let got = b.take(&a, untold).unwrap();
    rig.service();
    assert!(!a.is_settled(untold));
    a.tenant.segment.note_outbox_full();
    assert!(!rig.engine.before_sleep(), "somebody waits for it");
    rig.service();
    assert!(a.is_settled(untold) && !a.is_settled(offered));
    assert!(rig.engine.before_sleep());
    assert_eq!((held(&rig, &a), held(&rig, &b)), (1, 1));
    b.tell(0, untold, Done::Kept);
    b.put_home(0, &got);
    rig.service();
    assert_eq!((held(&rig, &b), nr_misuses(&rig, &b)), (0, 0));
    rig.verify();
}

#[test]
fn what_is_claimed_counts_against_the_allowance() {
    let (mut rig, [mut a, b, _]) = rig();
    let pages = take(&mut rig, &a, 5);
    let ticket = a.hand_over(0, &pages);
    assert_eq!(b.tenant.segment.claim_allowance(), (u64::MAX, 0));
    b.claim(&a, ticket);
    rig.service();
    assert_eq!(b.tenant.segment.claim_allowance(), (u64::MAX, 5));
}
