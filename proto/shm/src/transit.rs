//! Who has a parcel that is on its way: one word per outbox slot, decided by one swap.
//!
//! The sender offers, one receiver takes or the sender withdraws or the daemon closes: whoever
//! swaps first wins, and everybody else is refused at once, with the reason. Nobody waits for a
//! verdict. What lies in the parcel is the sender's outbox's affair; custody moves when the
//! daemon settles the receiver's notice.
//!
//! The words lie where every client of a zone may write, so a word is a claim to the daemon: a
//! scribbled one can misdirect a parcel that was offered, never a page that was not.
//!
//! Shape, from the lowest bit: 32 bits sequence, 4 bits state, 16 bits slot and 12 bits
//! incarnation of the taker.

use crate::sync::{AcqRel, Acquire, AtomicU64, Release};

const STATE_SHIFT: u32 = 32;
const STATE_MASK: u64 = 15 << STATE_SHIFT;
const OFFERED: u64 = 1 << STATE_SHIFT;
const TAKEN: u64 = 2 << STATE_SHIFT;
const WITHDRAWN: u64 = 3 << STATE_SHIFT;
const CLOSED: u64 = 4 << STATE_SHIFT;
const TAKER_SHIFT: u32 = 36;
const INCARNATION_MASK: u32 = (1 << 12) - 1;

/// The client that took a parcel, as far as a transit word can name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taker {
    /// Its slot.
    pub slot: u16,
    /// Its incarnation, modulo 2^12.
    pub incarnation: u32,
}

/// What a transit word says of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transit {
    /// Nobody has taken it yet.
    Offered,
    /// A receiver has it.
    Taken(Taker),
    /// The sender has taken it back.
    Withdrawn,
    /// The sender died, and the daemon keeps what it had offered.
    Closed,
    /// The slot is at another sequence, or was never used.
    OtherSequence,
}

/// A transit word, wherever it lives.
#[derive(Clone, Copy, Debug)]
pub struct TransitWord<'a>(&'a AtomicU64);

impl<'a> TransitWord<'a> {
    /// The transit word in `word`.
    pub fn new(word: &'a AtomicU64) -> TransitWord<'a> {
        TransitWord(word)
    }

    /// What it says of a sequence.
    pub fn look(self, sequence: u32) -> Transit {
        // SYNC(transit.offer): pairs with the Release in `offer`; the outbox's words are seen.
        meaning(self.0.load(Acquire), sequence)
    }

    /// Sender: offers what its outbox slot holds under this sequence.
    ///
    /// The slot must be the sender's to reuse: withdrawn by itself, or settled by the daemon's
    /// word in the sender's own control segment.
    pub fn offer(self, sequence: u32) {
        // SYNC(transit.offer): publishes the outbox's words; the pages are no longer the sender's.
        self.0.store(OFFERED | u64::from(sequence), Release);
    }

    /// Receiver: takes the parcel, if it is still offered. What it has copied out of the outbox
    /// before holds only if this succeeds.
    pub fn take(self, sequence: u32, taker: Taker) -> Result<(), Transit> {
        let name =
            u64::from(taker.slot) | u64::from(taker.incarnation & INCARNATION_MASK) << u16::BITS;
        self.leave_offered(sequence, TAKEN | name << TAKER_SHIFT)
    }

    /// Sender: takes the parcel back, if nobody has it.
    pub fn withdraw(self, sequence: u32) -> Result<(), Transit> {
        self.leave_offered(sequence, WITHDRAWN)
    }

    /// Daemon: shuts the parcel of a sender that died, if nobody has it.
    pub fn close(self, sequence: u32) -> Result<(), Transit> {
        self.leave_offered(sequence, CLOSED)
    }

    /// Leaves `OFFERED`, once per sequence.
    fn leave_offered(self, sequence: u32, to: u64) -> Result<(), Transit> {
        let sequence_bits = u64::from(sequence);
        // SYNC(transit.offer): the winner sees all that the sender did before it offered, and
        // whoever looks at the word next sees all that the winner did before it won.
        match self
            .0
            .compare_exchange(OFFERED | sequence_bits, to | sequence_bits, AcqRel, Acquire)
        {
            Ok(_) => Ok(()),
            Err(found) => Err(meaning(found, sequence)),
        }
    }
}

fn meaning(bits: u64, sequence: u32) -> Transit {
    if low32(bits) != sequence {
        return Transit::OtherSequence;
    }
    match bits & STATE_MASK {
        OFFERED => Transit::Offered,
        TAKEN => Transit::Taken(Taker {
            slot: low16(bits >> TAKER_SHIFT),
            incarnation: low32(bits >> (TAKER_SHIFT + u16::BITS)),
        }),
        WITHDRAWN => Transit::Withdrawn,
        CLOSED => Transit::Closed,
        _ => Transit::OtherSequence,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "cutting off is what it is for"
)]
const fn low32(bits: u64) -> u32 {
    bits as u32
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "cutting off is what it is for"
)]
const fn low16(bits: u64) -> u16 {
    bits as u16
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const B: Taker = Taker {
        slot: 65_535,
        incarnation: 4095,
    };
    const C: Taker = Taker {
        slot: 1,
        incarnation: 2,
    };

    #[test]
    fn the_second_claim_is_told_who_has_it() {
        let word = AtomicU64::new(0);
        let transit = TransitWord::new(&word);
        transit.offer(7);
        assert_eq!(transit.look(7), Transit::Offered);
        assert_eq!(transit.take(7, B), Ok(()));
        assert_eq!(transit.take(7, C), Err(Transit::Taken(B)));
        assert_eq!(transit.take(7, B), Err(Transit::Taken(B)));
        assert_eq!(transit.withdraw(7), Err(Transit::Taken(B)));
        assert_eq!(transit.close(7), Err(Transit::Taken(B)));
    }

    #[test]
    fn what_was_taken_back_or_closed_cannot_be_claimed() {
        let word = AtomicU64::new(0);
        let transit = TransitWord::new(&word);
        assert_eq!(transit.take(0, B), Err(Transit::OtherSequence));
        transit.offer(1);
        assert_eq!(transit.withdraw(1), Ok(()));
        assert_eq!(transit.take(1, B), Err(Transit::Withdrawn));
        transit.offer(2);
        assert_eq!(transit.take(1, B), Err(Transit::OtherSequence));
        assert_eq!(transit.close(2), Ok(()));
        assert_eq!(transit.take(2, C), Err(Transit::Closed));
    }
}
