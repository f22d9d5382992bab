//! The daemon's own cursors of one lane, as words that may outlive the daemon.
//!
//! One writer. A word is stored before the lane is told of it, so a daemon that takes over
//! ([`LaneDaemon::resume`](crate::lane_daemon::LaneDaemon::resume)) never believes the lane, which
//! its client can write, and is never behind it.
//!
//! Shape:
//!
//! | word | bits from the lowest |
//! |---|---|
//! | 0 | 32 epoch, 8 gate: 0 open, 1 closed, 2 partly taken, 3 emptied |
//! | 1 | 32 head of the returns |
//! | 2..17 | 32 tail of the grants of each class |
//! | 17..47 | what was taken from under an operation in flight, two words a class: 32 first grant, 1 whether any of the magazine; 32 first and 32 end position of that |

use crate::lane_recall::{Gate, Taken};
use crate::layout::LANE_CLASSES;
use crate::raw::NR_CLASSES;
use crate::sync::{AtomicU64, Relaxed, Release};
use crate::words::Words;

/// Words that a lane's cursors take.
pub const LANE_WORDS: usize = 48;

const RETURNS_HEAD: usize = 1;
const GRANTS_TAILS: usize = 2;
const TAKEN: usize = GRANTS_TAILS + NR_CLASSES;

const _: () = assert!(TAKEN + 2 * NR_CLASSES <= LANE_WORDS && LANE_CLASSES <= NR_CLASSES);

/// The kept cursors of one lane.
#[derive(Clone, Debug)]
pub struct LaneCursors {
    words: Words,
}

impl LaneCursors {
    /// The first [`LANE_WORDS`] of these words; `None` if there are fewer.
    pub fn new(words: &Words) -> Option<LaneCursors> {
        let words = words.part(0, LANE_WORDS);
        (words.len() == LANE_WORDS).then_some(LaneCursors { words })
    }

    /// Forgets what a lane before has left.
    pub(crate) fn clear(&self) {
        for word in self.words.cells() {
            word.store(0, Relaxed);
        }
    }

    pub(crate) fn keep_returns_head(&self, head: u32) {
        self.word(RETURNS_HEAD).store(head.into(), Release);
    }

    pub(crate) fn returns_head(&self) -> u32 {
        low(self.word(RETURNS_HEAD).load(Relaxed))
    }

    pub(crate) fn keep_grants_tail(&self, class: usize, tail: u32) {
        self.word(GRANTS_TAILS + class).store(tail.into(), Release);
    }

    pub(crate) fn grants_tail(&self, class: usize) -> u32 {
        low(self.word(GRANTS_TAILS + class).load(Relaxed))
    }

    pub(crate) fn keep_gate(&self, epoch: u32, gate: &Gate) {
        let code = match gate {
            Gate::Open => 0,
            Gate::Closed => 1,
            Gate::Partly(taken) => {
                self.keep_taken(taken);
                2
            }
            Gate::Emptied => 3,
        };
        self.word(0).store(u64::from(epoch) | code << 32, Release);
    }

    /// Epoch and gate, kept as one word, so that they never disagree.
    pub(crate) fn gate(&self) -> (u32, Gate) {
        let word = self.word(0).load(Relaxed);
        let gate = match word >> 32 {
            0 => Gate::Open,
            1 => Gate::Closed,
            2 => Gate::Partly(Box::new(self.taken())),
            _ => Gate::Emptied,
        };
        (low(word), gate)
    }

    fn keep_taken(&self, taken: &[Taken; LANE_CLASSES]) {
        for (class, taken) in taken.iter().enumerate() {
            let is_any = u64::from(taken.magazine.is_some());
            let (from, to) = taken.magazine.unwrap_or_default();
            self.word(TAKEN + 2 * class)
                .store(u64::from(taken.grants_from) | is_any << 32, Relaxed);
            self.word(TAKEN + 2 * class + 1)
                .store(u64::from(from) | u64::from(to) << 32, Relaxed);
        }
    }

    fn taken(&self) -> [Taken; LANE_CLASSES] {
        core::array::from_fn(|class| {
            let first = self.word(TAKEN + 2 * class).load(Relaxed);
            let second = self.word(TAKEN + 2 * class + 1).load(Relaxed);
            Taken {
                grants_from: low(first),
                magazine: (first >> 32 & 1 == 1).then(|| (low(second), low(second >> 32))),
            }
        })
    }

    /// Up to where grants of a class were told to the lane; 0 for a class that lanes have not.
    pub fn grants_tail_of(&self, class: usize) -> u32 {
        if class < LANE_CLASSES {
            self.grants_tail(class)
        } else {
            0
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.cells()[at]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low(word: u64) -> u32 {
    word as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_again() {
        let words = Words::heap(LANE_WORDS).unwrap();
        let kept = LaneCursors::new(&words).unwrap();
        kept.keep_returns_head(u32::MAX);
        for (class, tail) in (0..LANE_CLASSES).zip(7..) {
            kept.keep_grants_tail(class, tail);
        }
        let mut taken = [Taken {
            grants_from: 1,
            magazine: None,
        }; LANE_CLASSES];
        taken[2].magazine = Some((u32::MAX, 5));
        for gate in [
            Gate::Partly(Box::new(taken)),
            Gate::Closed,
            Gate::Emptied,
            Gate::Open,
        ] {
            kept.keep_gate(0xdead_beef, &gate);
            assert_eq!(kept.gate(), (0xdead_beef, gate));
        }
        assert_eq!(kept.returns_head(), u32::MAX);
        assert_eq!((kept.grants_tail(0), kept.grants_tail(2)), (7, 9));
        kept.clear();
        assert_eq!((kept.returns_head(), kept.gate()), (0, (0, Gate::Open)));
        assert!(LaneCursors::new(&words.part(1, LANE_WORDS)).is_none());
    }
}
