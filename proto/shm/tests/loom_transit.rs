//! A parcel on its way: whatever races, it ends with exactly one of those who want it, and the
//! one who has it sees what the sender put in.
//!
//! Seen to fail: `leave_offered` by a load and a store instead of the swap (two winners); the
//! offer or the look Relaxed (the receiver reads the outbox before it was written); the sequence
//! left out of the comparison (a claim by an old ticket gets the parcel offered after it); `give_back`
//! from any state (the sender and the daemon's books both give it away); `settle` by a store (a parcel
//! is its sender's again and the taker's in the books); `regain` Relaxed (the sender reads its pages
//! before the borrower has written to them).
#![cfg(loom)]

use hugepool_shm::transit::{Taker, Transit, TransitWord};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

const B: Taker = Taker {
    slot: 2,
    incarnation: 1,
};
const C: Taker = Taker {
    slot: 3,
    incarnation: 1,
};

/// One outbox slot with room for one page word, and its transit word.
struct Slot {
    transit: AtomicU64,
    outbox: AtomicU64,
}

impl Slot {
    fn new() -> Arc<Slot> {
        Arc::new(Slot {
            transit: AtomicU64::new(0),
            outbox: AtomicU64::new(0),
        })
    }

    fn transit(&self) -> TransitWord<'_> {
        TransitWord::new(&self.transit)
    }

    fn hand_over(&self, sequence: u32, page: u64) {
        self.outbox.store(page, Relaxed);
        self.transit().offer(sequence);
    }

    /// Copies first and swaps then, as a receiver does.
    fn claim(&self, sequence: u32, taker: Taker) -> Result<u64, Transit> {
        match self.transit().look(sequence) {
            Transit::Offered => {}
            other => return Err(other),
        }
        let page = self.outbox.load(Relaxed);
        self.transit().take(sequence, taker)?;
        Ok(page)
    }
}

#[test]
fn one_of_two_receivers_gets_it() {
    loom::model(|| {
        let slot = Slot::new();
        slot.hand_over(1, 77);
        let other = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.claim(1, C)
        });
        let mine = slot.claim(1, B);
        let others = other.join().unwrap();
        match (mine, others) {
            (Ok(77), Err(Transit::Taken(taker))) => assert_eq!(taker, B),
            (Err(Transit::Taken(taker)), Ok(77)) => assert_eq!(taker, C),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_claim_and_a_take_back_agree_and_an_old_ticket_gets_nothing_new() {
    loom::model(|| {
        let slot = Slot::new();
        let receiver = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.claim(1, B)
        });
        slot.hand_over(1, 77);
        let back = slot.transit().withdraw(1);
        if back.is_ok() {
            // The slot is the sender's again, and its next parcel goes under the next sequence.
            slot.hand_over(2, 88);
        }
        let claimed = receiver.join().unwrap();
        match (claimed, back) {
            (Ok(77), Err(Transit::Taken(taker))) => assert_eq!(taker, B),
            (Err(Transit::Withdrawn | Transit::OtherSequence), Ok(())) => {
                assert_eq!(slot.claim(2, C), Ok(88));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_claim_and_a_closing_at_the_senders_death_agree() {
    loom::model(|| {
        let slot = Slot::new();
        slot.hand_over(1, 77);
        let daemon = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.transit().close(1)
        });
        let claimed = slot.claim(1, B);
        match (claimed, daemon.join().unwrap()) {
            (Ok(77), Err(Transit::Taken(taker))) => assert_eq!(taker, B),
            (Err(Transit::Closed), Ok(())) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_claim_by_an_early_ticket_sees_what_was_put_in() {
    loom::model(|| {
        let slot = Slot::new();
        let sender = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.hand_over(1, 77)
        });
        match slot.claim(1, B) {
            Ok(page) => assert_eq!(page, 77),
            Err(refused) => assert_eq!(refused, Transit::OtherSequence),
        }
        sender.join().unwrap();
    });
}

/// The borrower gives a parcel back while the daemon settles it, for somebody else's sake: one of
/// the two, and the sender has it only if the daemon has not.
#[test]
fn a_giving_back_and_a_settling_agree() {
    loom::model(|| {
        let slot = Slot::new();
        slot.hand_over(1, 77);
        assert_eq!(slot.claim(1, B), Ok(77));
        let daemon = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.transit().settle(1, B)
        });
        let given = slot.transit().give_back(1, B);
        let regained = slot.transit().regain(1, B);
        let settled = daemon.join().unwrap();
        match (given, settled) {
            (Ok(()), Err(Transit::GivenBack(_) | Transit::Withdrawn)) => {
                assert_eq!(regained, Ok(()));
            }
            (Err(Transit::Settled(by)), Ok(())) => {
                assert_eq!((by, regained), (B, Err(Transit::Settled(B))));
            }
            other => panic!("{other:?}"),
        }
    });
}

/// What the borrower wrote into the pages is seen by the sender that has them again; a third one
/// with the same ticket gets nothing.
#[test]
fn a_parcel_given_back_is_seen_whole_by_its_sender_alone() {
    loom::model(|| {
        let slot = Slot::new();
        let page = Arc::new(AtomicU64::new(0));
        slot.hand_over(1, 77);
        let borrower = thread::spawn({
            let (slot, page) = (Arc::clone(&slot), Arc::clone(&page));
            move || {
                if slot.claim(1, B).is_ok() {
                    page.store(5, Relaxed);
                    slot.transit().give_back(1, B).unwrap();
                }
            }
        });
        let third = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.claim(1, C)
        });
        let is_regained = slot.transit().regain(1, B).is_ok();
        if is_regained {
            assert_eq!(page.load(Relaxed), 5);
            // The slot is used again.
            slot.hand_over(2, 88);
        }
        let thirds = third.join().unwrap();
        borrower.join().unwrap();
        assert!(!(is_regained && thirds.is_ok()), "two have it");
    });
}

/// Its sender dies while a borrower gives the parcel back: it is the sender's, and goes home with
/// it, or it was settled before.
#[test]
fn a_giving_back_and_the_senders_death_agree() {
    loom::model(|| {
        let slot = Slot::new();
        slot.hand_over(1, 77);
        let daemon = thread::spawn({
            let slot = Arc::clone(&slot);
            move || {
                let closed = slot.transit().close(1);
                let settled = slot.transit().settle(1, B);
                (closed, settled)
            }
        });
        let claimed = slot.claim(1, B);
        let given = claimed.and_then(|_| slot.transit().give_back(1, B));
        let (closed, settled) = daemon.join().unwrap();
        // The daemon's books say the taker, or the sender, and the taker knows which.
        match (claimed, given) {
            (Err(Transit::Closed), _) => assert_eq!(closed, Ok(())),
            (Ok(77), Ok(())) => assert!(settled.is_err() && closed.is_err()),
            (Ok(77), Err(Transit::Settled(_))) => assert_eq!(settled, Ok(())),
            other => panic!("{other:?}"),
        }
    });
}
