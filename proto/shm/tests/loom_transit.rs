//! A parcel on its way: whatever races, it ends with exactly one of those who want it, and the
//! one who has it sees what the sender put in.
//!
//! Seen to fail: `leave_offered` by a load and a store instead of the swap (two winners); the
//! offer or the look Relaxed (the receiver reads the outbox before it was written); the sequence
//! left out of the comparison (a claim by an old ticket gets the parcel offered after it).
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
