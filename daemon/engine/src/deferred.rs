//! Words that came too early: something must be settled before them that is not read yet.
//!
//! They have left their ring, or their bit of the free map, and so are kept in words that outlive
//! the engine until they are settled.
//!
//! Shape: word 0: how many; from word 8 two words each: 16 bits slot, 16 incarnation, 1 whether it is
//! a head of the free map's; the word itself, or the head.

use std::sync::atomic::Ordering::{Relaxed, Release};

use hugepool_shm::raw::RawPage;
use hugepool_shm::words::Words;

use crate::id::ClientId;
use crate::num;

/// So many outlive the engine; of what is beyond them a daemon that comes after knows nothing.
const NR_KEPT: usize = 16_384;
const FIRST: usize = 8;
const IS_HEAD: u64 = 1 << 32;
/// Words of all of it; memory only as it is used.
pub(crate) const DEFERRED_WORDS: usize = FIRST + 2 * NR_KEPT;

/// What a client said too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    /// A word of a returns ring.
    Word(RawPage),
    /// The head of a block, in the free map.
    Head(u32),
}

/// All that came too early.
#[derive(Debug)]
pub(crate) struct Deferred {
    words: Words,
    list: Vec<(ClientId, Early)>,
}

impl Deferred {
    /// None; what a daemon before has left is found by [`find`](Self::find).
    pub fn new(words: Words) -> Deferred {
        let list = Vec::new();
        Deferred { words, list }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn push(&mut self, client: ClientId, early: Early) {
        let at = self.list.len();
        self.list.push((client, early));
        if at >= NR_KEPT {
            return;
        }
        let (is_head, word) = match early {
            Early::Word(word) => (0, word.bits()),
            Early::Head(pfn) => (IS_HEAD, u64::from(pfn)),
        };
        let who = u64::from(client.slot) | u64::from(client.incarnation) << 16 | is_head;
        let cells = self.words.cells();
        cells[FIRST + 2 * at].store(who, Relaxed);
        cells[FIRST + 2 * at + 1].store(word, Relaxed);
        // Last: it makes the entry.
        cells[0].store(num::count(at) + 1, Release);
        hugepool_shm::step::reached("deferred.kept");
    }

    /// All of them; they are kept until [`forget`](Self::forget).
    pub fn take(&mut self) -> Vec<(ClientId, Early)> {
        core::mem::take(&mut self.list)
    }

    /// All that were taken are settled, and none has come since.
    pub fn forget(&mut self) {
        debug_assert!(self.list.is_empty());
        self.words.cells()[0].store(0, Release);
    }

    /// Takes in again what a daemon before has left.
    pub fn find(&mut self) {
        let cells = self.words.cells();
        let nr = num::saturate(cells[0].load(Relaxed).min(num::count(NR_KEPT)));
        for entry in cells[FIRST..].chunks(2).take(num::index(nr)) {
            let (who, word) = (entry[0].load(Relaxed), entry[1].load(Relaxed));
            let [a, b, c, d, ..] = who.to_le_bytes();
            let client = ClientId {
                slot: u16::from_le_bytes([a, b]),
                incarnation: u16::from_le_bytes([c, d]),
            };
            let early = if who & IS_HEAD != 0 {
                Early::Head(num::saturate(word))
            } else {
                Early::Word(RawPage::from_bits(word))
            };
            self.list.push((client, early));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_settled_is_found_again() {
        let words = Words::anonymous(DEFERRED_WORDS).unwrap();
        let mut deferred = Deferred::new(words.clone());
        let client = ClientId {
            slot: 3,
            incarnation: 9,
        };
        let said = [
            (client, Early::Word(RawPage::from_bits(u64::MAX))),
            (client, Early::Head(u32::MAX)),
        ];
        for (client, early) in said {
            deferred.push(client, early);
        }
        assert_eq!(deferred.take(), said);
        let mut again = Deferred::new(words.clone());
        again.find();
        assert_eq!(again.take(), said);
        again.forget();
        let mut third = Deferred::new(words);
        third.find();
        assert!(third.is_empty());
    }
}
