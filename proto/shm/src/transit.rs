//! Who has a parcel that is on its way: one word per outbox slot, decided by one swap.
//!
//! The sender offers, one receiver takes or the sender withdraws or the daemon closes: whoever
//! swaps first wins, and everybody else is refused at once, with the reason. Nobody waits for a
//! verdict. What lies in the parcel is the sender's outbox's affair; custody moves when the
//! daemon settles the receiver's notice.
//!
//! ```text
//!            take            settle (daemon)
//!  OFFERED ────────► TAKEN ─────────────────► SETTLED     custody is the taker's
//!   │   │             │ give back
//!   │   │ withdraw    ▼
//!   │   └──► WITHDRAWN ◄── GIVEN BACK                     custody was the sender's all along
//!   └──────► CLOSED         the sender died
//! ```
//!
//! A parcel that is given back untouched before the daemon has settled it was never anybody
//! else's: neither side tells the daemon, and it costs the daemon nothing.
//!
//! The words lie where every client of a zone may write, so a word is a claim to the daemon: a
//! scribbled one can misdirect a parcel that was offered, never a page that was not.
//!
//! Shape, from the lowest bit: 32 bits sequence, 4 bits state, 16 bits slot and 12 bits
//! incarnation of the taker.

#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(not(loom))]
use crate::mapping::{MapError, Mapping};
use crate::sync::{AcqRel, Acquire, AtomicU64, Release};
#[cfg(not(loom))]
use crate::ticket::OUTBOX_SLOTS;

const STATE_SHIFT: u32 = 32;
const STATE_MASK: u64 = 15 << STATE_SHIFT;
const OFFERED: u64 = 1 << STATE_SHIFT;
const TAKEN: u64 = 2 << STATE_SHIFT;
const WITHDRAWN: u64 = 3 << STATE_SHIFT;
const CLOSED: u64 = 4 << STATE_SHIFT;
const GIVEN_BACK: u64 = 5 << STATE_SHIFT;
const SETTLED: u64 = 6 << STATE_SHIFT;
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
    /// The receiver has given it back whole; the sender may take it back.
    GivenBack(Taker),
    /// The daemon has made it the receiver's.
    Settled(Taker),
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

    /// The sequence that it is at.
    pub fn sequence(self) -> u32 {
        // SYNC(transit.offer): as in `look`.
        low32(self.0.load(Acquire))
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
        self.swap(sequence, OFFERED, TAKEN | taker.bits())
    }

    /// Sender: takes the parcel back, if nobody has it.
    pub fn withdraw(self, sequence: u32) -> Result<(), Transit> {
        self.swap(sequence, OFFERED, WITHDRAWN)
    }

    /// Daemon: shuts the parcel of a sender that died, if nobody has it.
    pub fn close(self, sequence: u32) -> Result<(), Transit> {
        self.swap(sequence, OFFERED, CLOSED)
    }

    /// Receiver: gives the parcel back to its sender, whole; it must not have told the daemon of
    /// it. Refused if the daemon has settled it unasked: then its pages are the receiver's.
    pub fn give_back(self, sequence: u32, taker: Taker) -> Result<(), Transit> {
        self.swap(sequence, TAKEN | taker.bits(), GIVEN_BACK | taker.bits())
    }

    /// Sender: takes a parcel that was given back.
    pub fn regain(self, sequence: u32, taker: Taker) -> Result<(), Transit> {
        self.swap(sequence, GIVEN_BACK | taker.bits(), WITHDRAWN)
    }

    /// Daemon: makes the parcel the taker's. It must do so if this succeeds.
    pub fn settle(self, sequence: u32, taker: Taker) -> Result<(), Transit> {
        self.swap(sequence, TAKEN | taker.bits(), SETTLED | taker.bits())
    }

    /// Daemon: makes it so for a taker that has signed for it in its own ring, from whatever the
    /// word says of it that no swap of an honest client can have led to: still offered, or
    /// scribbled over. Refused, with what it says, if somebody else has it.
    pub fn settle_signed(self, sequence: u32, taker: Taker) -> Result<(), Transit> {
        let sequence_bits = u64::from(sequence);
        let to = SETTLED | taker.bits() | sequence_bits;
        // SYNC(transit.offer): as in `swap`.
        let mut found = self.0.load(Acquire);
        // A peer that goes on scribbling does not keep the daemon here.
        for _ in 0..4 {
            match meaning(found, sequence) {
                Transit::Taken(by) | Transit::Settled(by) if by == taker.cut() => {}
                Transit::Offered | Transit::OtherSequence => {}
                other => return Err(other),
            }
            // SYNC(transit.offer): as in `swap`.
            match self.0.compare_exchange(found, to, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => found = now,
            }
        }
        Ok(())
    }

    /// One step of a parcel's way: whoever swaps first wins.
    fn swap(self, sequence: u32, from: u64, to: u64) -> Result<(), Transit> {
        let sequence_bits = u64::from(sequence);
        // SYNC(transit.offer): the winner sees all that the sender did before it offered, and
        // whoever looks at the word next sees all that the winner did before it won.
        match self
            .0
            .compare_exchange(from | sequence_bits, to | sequence_bits, AcqRel, Acquire)
        {
            Ok(_) => Ok(()),
            Err(found) => Err(meaning(found, sequence)),
        }
    }
}

impl Taker {
    fn bits(self) -> u64 {
        let name =
            u64::from(self.slot) | u64::from(self.incarnation & INCARNATION_MASK) << u16::BITS;
        name << TAKER_SHIFT
    }

    /// It as a word names it.
    #[must_use]
    pub fn cut(self) -> Taker {
        Taker {
            incarnation: self.incarnation & INCARNATION_MASK,
            ..self
        }
    }
}

/// The transit words of one zone: for each client slot and outbox slot one, in a cache line of its
/// own, so that parcels of one sender do not take it from one another. Clones are the same.
#[cfg(not(loom))]
#[derive(Clone, Debug)]
pub struct TransitTable {
    mapping: Arc<Mapping>,
    nr_words: usize,
}

/// Words in a cache line.
#[cfg(not(loom))]
const STRIDE: usize = 8;

#[cfg(not(loom))]
impl TransitTable {
    /// Bytes of a table for client slots below `nr_clients`; memory is taken as it is used.
    pub fn len_bytes(nr_clients: u32) -> usize {
        nr_clients as usize * OUTBOX_SLOTS * STRIDE * size_of::<AtomicU64>()
    }

    /// Enters the table in a mapping, fresh or made elsewhere: for as many client slots as fit.
    pub fn over(mapping: Mapping) -> TransitTable {
        let nr_words = mapping.len_bytes() / size_of::<AtomicU64>();
        TransitTable {
            mapping: Arc::new(mapping),
            nr_words,
        }
    }

    /// A table in fresh memory of this process's, for tests and simulators.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn anonymous(nr_clients: u32) -> Result<TransitTable, MapError> {
        let len_bytes = TransitTable::len_bytes(nr_clients);
        Ok(TransitTable::over(Mapping::anonymous(len_bytes)?))
    }

    /// Client slots that it has words for.
    pub fn nr_clients(&self) -> usize {
        self.nr_words / (OUTBOX_SLOTS * STRIDE)
    }

    /// The word of an outbox slot, if there is one.
    #[inline]
    pub fn word(&self, client: u16, slot: u32) -> Option<TransitWord<'_>> {
        if slot as usize >= OUTBOX_SLOTS {
            return None;
        }
        let index = (usize::from(client) * OUTBOX_SLOTS + slot as usize) * STRIDE;
        let words = self.mapping.words64(0, self.nr_words).ok()?;
        words.get(index).map(TransitWord::new)
    }
}

fn meaning(bits: u64, sequence: u32) -> Transit {
    if low32(bits) != sequence {
        return Transit::OtherSequence;
    }
    match bits & STATE_MASK {
        OFFERED => Transit::Offered,
        TAKEN => Transit::Taken(taker_of(bits)),
        WITHDRAWN => Transit::Withdrawn,
        CLOSED => Transit::Closed,
        GIVEN_BACK => Transit::GivenBack(taker_of(bits)),
        SETTLED => Transit::Settled(taker_of(bits)),
        _ => Transit::OtherSequence,
    }
}

fn taker_of(bits: u64) -> Taker {
    Taker {
        slot: low16(bits >> TAKER_SHIFT),
        incarnation: low32(bits >> (TAKER_SHIFT + u16::BITS)),
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

    #[test]
    fn a_parcel_given_back_is_its_senders_and_nobody_elses() {
        let word = AtomicU64::new(0);
        let transit = TransitWord::new(&word);
        transit.offer(9);
        assert_eq!(transit.take(9, B), Ok(()));
        assert_eq!(transit.give_back(9, C), Err(Transit::Taken(B)));
        assert_eq!(transit.give_back(9, B), Ok(()));
        assert_eq!(transit.take(9, C), Err(Transit::GivenBack(B)));
        assert_eq!(transit.settle(9, B), Err(Transit::GivenBack(B)));
        assert_eq!(transit.regain(9, B), Ok(()));
        assert_eq!(transit.regain(9, B), Err(Transit::Withdrawn));
    }

    #[test]
    fn a_settled_parcel_cannot_be_given_back() {
        let word = AtomicU64::new(0);
        let transit = TransitWord::new(&word);
        transit.offer(9);
        assert_eq!(transit.take(9, B), Ok(()));
        assert_eq!(transit.settle(9, B), Ok(()));
        assert_eq!(transit.give_back(9, B), Err(Transit::Settled(B)));
    }

    #[test]
    fn a_signed_claim_stands_against_scribbles_but_not_against_a_winner() {
        let word = AtomicU64::new(0);
        let transit = TransitWord::new(&word);
        transit.offer(9);
        assert_eq!(transit.take(9, C), Ok(()));
        assert_eq!(transit.settle_signed(9, B), Err(Transit::Taken(C)));
        word.store(u64::MAX, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(transit.settle_signed(9, B), Ok(()));
        assert_eq!(transit.look(9), Transit::Settled(B));
        let far = Taker {
            slot: 5,
            incarnation: 4096 + 7,
        };
        transit.offer(10);
        assert_eq!(transit.take(10, far), Ok(()));
        assert_eq!(transit.settle_signed(10, far), Ok(()));
    }
}
