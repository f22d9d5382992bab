//! Neighbouring blocks named together: the word of the first one, and how many they are.
//!
//! What lies in a lane's rings and in an outbox is such runs, so that a batch that is one piece of
//! memory costs two words and one look into the owner table, whatever its length. A run keeps the
//! places of its blocks: the one at position `p` of `n` blocks takes the places `p..p + n`, of which
//! the first holds the word of the first block and the second, if there is one, the *mark* with the
//! number; the others are not looked at. So cursors count blocks, as they would without runs.
//!
//! A mark has no migratetype, as a notice has none, a kind that no notice has, and a bit that no
//! word of a shared page has: it is none of these, wherever it is met.

use crate::raw::{RawPage, low32};
use crate::slots;
use crate::sync::AtomicU64;

/// What a mark has above its number.
const MARK: u64 = 2 << 46 | 1 << 41;
/// The number's bits.
const NUMBER: u64 = u32::MAX as u64;

/// Neighbouring blocks of one order, migratetype, zone and generation, in one client's hands.
///
/// From another process it is a claim, as a page word is: even that so many pfns follow upon the
/// first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordRun {
    /// The word of the first block.
    pub first: RawPage,
    /// Blocks in it, at least 1.
    pub nr_blocks: u32,
}

impl WordRun {
    /// A run of one block.
    pub const fn of_one(first: RawPage) -> WordRun {
        WordRun {
            first,
            nr_blocks: 1,
        }
    }

    /// The words of its blocks. A pfn beyond the last one that there can be starts over at 0,
    /// which is for whoever judges the words to find wrong.
    #[inline]
    pub fn words(self) -> impl ExactSizeIterator<Item = RawPage> + Clone {
        (0..self.nr_blocks).map(move |index| self.word(index))
    }

    /// The run without its first `nr_blocks` blocks; there are more.
    #[must_use]
    #[inline]
    pub(crate) fn behind(self, nr_blocks: u32) -> WordRun {
        WordRun {
            first: self.word(nr_blocks),
            nr_blocks: self.nr_blocks - nr_blocks,
        }
    }

    /// Its first `nr_blocks` blocks, at least 1; there are as many.
    #[must_use]
    #[inline]
    pub(crate) fn front(self, nr_blocks: u32) -> WordRun {
        WordRun { nr_blocks, ..self }
    }

    #[inline(always)]
    fn word(self, index: u32) -> RawPage {
        let pfn = self
            .first
            .pfn()
            .wrapping_add(index.wrapping_shl(self.first.order()));
        RawPage::from_bits(self.first.bits() & !NUMBER | u64::from(pfn))
    }

    /// Whether a word is that of the block behind the last one.
    #[inline]
    fn goes_on_with(self, word: RawPage) -> bool {
        self.first.migratetype().is_some() && self.word(self.nr_blocks) == word
    }
}

/// Puts a word behind the last of the runs, or as a run of its own.
pub fn push_word(runs: &mut Vec<WordRun>, word: RawPage) {
    match runs.last_mut() {
        Some(last) if last.goes_on_with(word) => last.nr_blocks += 1,
        _ => runs.push(WordRun::of_one(word)),
    }
}

/// Cuts words into runs.
pub fn runs_of(words: &[RawPage]) -> impl Iterator<Item = WordRun> + '_ {
    let mut rest = words;
    core::iter::from_fn(move || {
        let run = leading(RawPage::bits_of(rest))?;
        rest = rest.get(run.nr_blocks as usize..)?;
        Some(run)
    })
}

/// The run at the front of some words.
#[inline]
pub(crate) fn leading(words: &[u64]) -> Option<WordRun> {
    let (&first, rest) = words.split_first()?;
    let run = WordRun::of_one(RawPage::from_bits(first));
    if run.first.migratetype().is_none() {
        return Some(run);
    }
    let step = 1 << run.first.order();
    let mut next = first.wrapping_add(step);
    let mut nr_blocks = 1;
    for &word in rest {
        if word != next {
            break;
        }
        next = next.wrapping_add(step);
        nr_blocks += 1;
    }
    Some(run.front(nr_blocks))
}

/// Writes a run to its places.
///
/// The mark comes first. So a run may be written into the places of another one, to stand for its
/// end: whoever reads that from its front finds the whole, at each moment between.
#[inline]
pub(crate) fn store(slots: &[AtomicU64], position: u32, run: WordRun) {
    if run.nr_blocks > 1 {
        let mark = MARK | u64::from(run.nr_blocks);
        slots::store(slots, position.wrapping_add(1), mark);
    }
    // SYNC(run.first): who sees the word sees the mark.
    slots::publish(slots, position, run.first.bits());
}

/// Reads the run at a position; `nr_left` blocks, at least 1, are there in all.
#[inline]
pub(crate) fn load(slots: &[AtomicU64], position: u32, nr_left: u32) -> WordRun {
    // SYNC(run.first): pairs with `store`, where a run is cut while it is read.
    let run = WordRun::of_one(RawPage::from_bits(slots::load_published(slots, position)));
    if nr_left < 2 || run.first.migratetype().is_none() {
        return run;
    }
    let second = slots::load(slots, position.wrapping_add(1));
    if second & !NUMBER == MARK {
        // More than there are is nonsense, and cut off.
        run.front(low32(second).clamp(1, nr_left))
    } else {
        run
    }
}

/// Reads the runs from one position to another, which lie no further apart than there are slots.
pub(crate) fn load_all(
    slots: &[AtomicU64],
    from: u32,
    to: u32,
) -> impl Iterator<Item = WordRun> + '_ {
    let mut position = from;
    core::iter::from_fn(move || {
        let nr_left = to.wrapping_sub(position);
        (nr_left > 0).then(|| {
            let run = load(slots, position, nr_left);
            position = position.wrapping_add(run.nr_blocks);
            run
        })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::raw::{PageParts, RawMigratetype};
    use crate::ticket::{Notice, ShareWord, Ticket};
    use core::array::from_fn;

    fn page(pfn: u32, order: u32, generation: u32) -> RawPage {
        let parts = PageParts {
            pfn,
            order,
            migratetype: RawMigratetype::Movable,
            zone: 1,
            client: 2,
            generation,
        };
        parts.pack().expect("each part fits its field")
    }

    proptest::proptest! {
        #[test]
        fn words_come_back_as_they_were_cut_into_runs_and_laid_out(
            start: u32,
            pieces in proptest::collection::vec((0u32..9999, 0u32..3, 0u32..3, 1u32..9), 1..12),
        ) {
            let words: Vec<RawPage> = pieces
                .iter()
                .flat_map(|&(pfn, order, generation, nr)| {
                    (0..nr).map(move |at| page(pfn + (at << order), order, generation))
                })
                .collect();
            let slots: [AtomicU64; 128] = from_fn(|_| AtomicU64::new(MARK | 99));
            let (mut position, mut pushed) = (start, Vec::new());
            for run in runs_of(&words) {
                store(&slots, position, run);
                position = position.wrapping_add(run.nr_blocks);
            }
            words.iter().for_each(|&word| push_word(&mut pushed, word));
            let there: Vec<WordRun> = load_all(&slots, start, position).collect();
            proptest::prop_assert!(there.len() <= pieces.len());
            proptest::prop_assert_eq!(&there, &pushed);
            let back: Vec<RawPage> = there.into_iter().flat_map(WordRun::words).collect();
            proptest::prop_assert_eq!(back, words);
        }

        #[test]
        fn whatever_lies_in_the_slots_is_no_more_than_there_is(
            bits in proptest::array::uniform8(0u64..), marks in proptest::array::uniform8(0u32..12),
            from: u32, nr in 0u32..=8,
        ) {
            let slots: [AtomicU64; 8] = from_fn(|at| AtomicU64::new(match marks[at] {
                0 => bits[at],
                number => MARK | u64::from(number) | (bits[at] & 1) << 31,
            }));
            let runs = load_all(&slots, from, from.wrapping_add(nr));
            let nr_there: u32 = runs.map(|run| run.nr_blocks).sum();
            proptest::prop_assert_eq!(nr_there, nr);
        }
    }

    #[test]
    fn a_mark_is_neither_a_page_nor_a_notice() {
        for number in [0, 1, 65, u64::from(u32::MAX)] {
            let mark = RawPage::from_bits(MARK | number);
            assert_eq!(mark.parts(), None);
            assert_eq!(Notice::of_word(mark), None);
            assert_eq!(ShareWord::of_word(mark), None);
            assert_eq!(Ticket::from_bits(mark.bits()), None);
        }
    }

    #[test]
    fn notices_one_behind_the_other_are_no_run() {
        let ticket = |sequence: u64| RawPage::from_bits(7 << 48 | sequence);
        let runs: Vec<WordRun> = runs_of(&[ticket(4), ticket(5)]).collect();
        assert_eq!(runs.len(), 2);
        let mut pushed = Vec::new();
        push_word(&mut pushed, ticket(4));
        push_word(&mut pushed, ticket(5));
        assert_eq!(pushed, runs);
    }
}
