//! Where a free goes that found no other place: one bit per block head, and a summary above it.
//!
//! A client sets a bit by an atomic OR, then the bit of the summary; it never waits and cannot
//! fail. The daemon takes them home in an order that the types here enforce: [`FreeMap::load`]
//! reads map words, [`Loaded::settled_by`] then settles that client's rings, [`Settled::heads`]
//! then yields the pages, and [`Settled::commit`] clears their bits. Only after that may those
//! pages be lent again. The order of a block is not in the map: the owner table knows it.
//!
//! Why in that order: a page may be in the map *because* of a word still in a ring (a page
//! claimed on one thread and dropped on another); with the rings read first, that word might come
//! between, and the bit would be judged without it.

use crate::layout::SUMMARY_GRAIN;
use crate::sync::{AcqRel, Acquire, AtomicU64, Release};

/// Bits of one word.
const WORD_BITS: usize = 64;

/// A client's free map, wherever its words live.
#[derive(Clone, Copy)]
pub struct FreeMap<'a> {
    /// One bit per page; set at the pfn of a freed block's head.
    pub(crate) bits: &'a [AtomicU64],
    /// One bit per [`SUMMARY_GRAIN`] words of the map.
    pub(crate) summary: &'a [AtomicU64],
}

/// A word of the map as it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MapWord {
    index: usize,
    bits: u64,
}

impl<'a> FreeMap<'a> {
    /// Frees the block headed by `pfn` through the map. False only for a pfn beyond the map,
    /// which no page of this client can have.
    pub fn set(&self, pfn: u32) -> bool {
        self.set_bits(pfn as usize / WORD_BITS, 1 << (pfn as usize % WORD_BITS))
    }

    /// Frees neighbouring blocks of order 0 from `pfn` on, a word of the map at a time; returns how
    /// many were not beyond the map.
    pub fn set_all(&self, pfn: u32, nr_blocks: u32) -> u32 {
        let (mut at, end) = (pfn as usize, pfn as usize + nr_blocks as usize);
        let mut nr_set = 0;
        while at < end {
            let first = at % WORD_BITS;
            let nr_here = (WORD_BITS - first).min(end - at);
            let bits = u64::MAX >> (WORD_BITS - nr_here) << first;
            nr_set += if self.set_bits(at / WORD_BITS, bits) {
                bits.count_ones()
            } else {
                0
            };
            at += nr_here;
        }
        nr_set
    }

    #[inline]
    fn set_bits(&self, index: usize, bit: u64) -> bool {
        let Some(word) = self.bits.get(index) else {
            return false;
        };
        // SYNC(free_map.bit): what the client did to the page comes before its bit.
        word.fetch_or(bit, Release);
        crate::step::reached("map.bit");
        let grain = index / SUMMARY_GRAIN;
        if let Some(summary) = self.summary.get(grain / WORD_BITS) {
            // SYNC(free_map.summary): a daemon that sees this bit sees the one in the map.
            summary.fetch_or(1 << (grain % WORD_BITS), Release);
        }
        true
    }

    /// Whether the summary says that there may be something: a hint, at one load per 64 grains.
    /// A hostile client can make it true for ever, so nobody loops until it is false.
    pub fn may_have_any(&self) -> bool {
        // SYNC(free_map.summary): pairs with the client's OR.
        self.summary.iter().any(|word| word.load(Acquire) != 0)
    }

    /// Loads map words, at most `budget_words` that have bits, from the grain `cursor` on; the
    /// cursor is left where the next load should start, so that no part of the map starves.
    pub fn load(self, cursor: &mut usize, budget_words: usize) -> Loaded<'a> {
        let mut words = Vec::new();
        let nr_grains = self.bits.len().div_ceil(SUMMARY_GRAIN);
        let first = if *cursor < nr_grains { *cursor } else { 0 };
        for part in [first..nr_grains, 0..first] {
            let mut from = part.start;
            while let Some(grain) = self.next_marked(from, part.end) {
                if words.len() >= budget_words {
                    *cursor = grain;
                    return Loaded { map: self, words };
                }
                self.load_grain(grain, budget_words, &mut words);
                from = grain + 1;
                *cursor = from;
            }
        }
        Loaded { map: self, words }
    }

    /// Adds the words of one grain that have bits; a grain without any loses its mark (a hostile
    /// client's, or one that was set twice).
    fn load_grain(&self, grain: usize, budget_words: usize, words: &mut Vec<MapWord>) {
        let nr_before = words.len();
        for (index, word) in self.grain_words(grain) {
            // SYNC(free_map.bit): pairs with the client's OR.
            let bits = word.load(Acquire);
            if bits != 0 && words.len() < budget_words {
                words.push(MapWord { index, bits });
            }
        }
        if words.len() == nr_before {
            self.clear_mark(grain);
        }
    }

    /// The first marked grain in `from..end`; 64 grains without a mark cost one load.
    fn next_marked(&self, from: usize, end: usize) -> Option<usize> {
        let mut grain = from;
        while grain < end {
            let (index, shift) = (grain / WORD_BITS, grain % WORD_BITS);
            // SYNC(free_map.summary): pairs with the client's OR.
            let marks = self.summary.get(index)?.load(Acquire) >> shift;
            if marks == 0 {
                grain = (index + 1) * WORD_BITS;
                continue;
            }
            grain += marks.trailing_zeros() as usize;
            return (grain < end).then_some(grain);
        }
        None
    }

    /// Takes a grain's mark away, and puts it back if a bit under it is set: a client sets bit
    /// and mark in this order, so one of the two sides finds the bit.
    fn clear_mark(&self, grain: usize) {
        let Some(summary) = self.summary.get(grain / WORD_BITS) else {
            return;
        };
        let mark = 1 << (grain % WORD_BITS);
        // SYNC(free_map.summary): takes part in the order of the clients' ORs; a bit whose mark
        // is taken away here is visible to the look below.
        summary.fetch_and(!mark, AcqRel);
        // SYNC(free_map.bit): pairs with the client's OR.
        if self
            .grain_words(grain)
            .any(|(_, word)| word.load(Acquire) != 0)
        {
            // SYNC(free_map.summary): as the client's.
            summary.fetch_or(mark, Release);
        }
    }

    fn grain_words(&self, grain: usize) -> impl Iterator<Item = (usize, &'a AtomicU64)> + use<'a> {
        let start = grain * SUMMARY_GRAIN;
        let end = (start + SUMMARY_GRAIN).min(self.bits.len());
        (start..end).zip(&self.bits[start..end])
    }
}

/// Map words that have been loaded; the rings must be settled before their pages are taken.
#[must_use = "the loaded frees are taken home only after settling and commit"]
pub struct Loaded<'a> {
    map: FreeMap<'a>,
    words: Vec<MapWord>,
}

impl<'a> Loaded<'a> {
    /// Whether no bit was found.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Settles the client's rings by `settle`, which must read each of them as it stands now.
    pub fn settled_by<T>(self, settle: impl FnOnce() -> T) -> (Settled<'a>, T) {
        let answer = settle();
        (
            Settled {
                map: self.map,
                words: self.words,
            },
            answer,
        )
    }
}

/// Freed pages that may be taken home now, and must be before [`Settled::commit`].
#[must_use = "the bits stay set until commit"]
pub struct Settled<'a> {
    map: FreeMap<'a>,
    words: Vec<MapWord>,
}

impl Settled<'_> {
    /// The pfns of the freed blocks' heads: claims. A page that is home already is skipped.
    pub fn heads(&self) -> impl Iterator<Item = u32> + '_ {
        let runs = self.runs().into_iter();
        runs.flat_map(|(first, nr)| (0..nr).map(move |at| first.wrapping_add(at)))
    }

    /// The same by neighbours: the first pfn, and how many follow one another.
    pub fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &MapWord { index, bits } in &self.words {
            let Ok(start) = u32::try_from(index * WORD_BITS) else {
                continue;
            };
            let (mut left, mut at) = (bits, start);
            while left != 0 {
                let nr_clear = left.trailing_zeros();
                let nr_set = (left >> nr_clear).trailing_ones();
                at += nr_clear;
                match runs.last_mut() {
                    Some((first, nr)) if first.wrapping_add(*nr) == at => *nr += nr_set,
                    _ => runs.push((at, nr_set)),
                }
                at = at.wrapping_add(nr_set);
                left = left.checked_shr(nr_clear + nr_set).unwrap_or(0);
            }
        }
        runs
    }

    /// Clears the bits of these pages, which are home now. Only after this may they be lent.
    pub fn commit(self) {
        let mut last_grain = None;
        for &MapWord { index, bits } in &self.words {
            // SYNC(free_map.bit): a later lend of these pages comes after the clearing.
            self.map.bits[index].fetch_and(!bits, AcqRel);
            let grain = index / SUMMARY_GRAIN;
            if let Some(done) = last_grain.filter(|&last| last != grain) {
                self.map.clear_mark(done);
            }
            last_grain = Some(grain);
        }
        if let Some(done) = last_grain {
            self.map.clear_mark(done);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    fn take_home(map: FreeMap<'_>, cursor: &mut usize, budget: usize) -> Vec<u32> {
        let (settled, ()) = map.load(cursor, budget).settled_by(|| ());
        let heads = settled.heads().collect();
        settled.commit();
        heads
    }

    #[test]
    fn every_free_comes_home_once() {
        let (bits, summary) = (words(3 * SUMMARY_GRAIN), words(1));
        let map = FreeMap {
            bits: &bits,
            summary: &summary,
        };
        let freed: BTreeSet<u32> = [0, 1, 63, 64, 32_767, 32_768, 98_303].into();
        assert!(freed.iter().all(|&pfn| map.set(pfn)));
        assert!(map.may_have_any());
        let home: BTreeSet<u32> = take_home(map, &mut 0, usize::MAX).into_iter().collect();
        assert_eq!(home, freed);
        assert!(!map.may_have_any());
        assert!(take_home(map, &mut 0, usize::MAX).is_empty());
    }

    #[test]
    fn neighbours_are_freed_by_words_and_come_home_as_neighbours() {
        for (first, nr) in [(0, 1), (63, 2), (5, 59), (64, 64), (60, 200), (32_700, 300)] {
            let (bits, summary) = (words(3 * SUMMARY_GRAIN), words(1));
            let map = FreeMap {
                bits: &bits,
                summary: &summary,
            };
            assert_eq!(map.set_all(first, nr), nr);
            assert!(map.set(first + nr + 1));
            let (settled, ()) = map.load(&mut 0, usize::MAX).settled_by(|| ());
            assert_eq!(settled.runs(), [(first, nr), (first + nr + 1, 1)]);
            assert_eq!(settled.heads().count(), nr as usize + 1);
            settled.commit();
            assert!(!map.may_have_any());
        }
        let (bits, summary) = (words(2), words(1));
        let map = FreeMap {
            bits: &bits,
            summary: &summary,
        };
        assert_eq!(map.set_all(120, 20), 8, "the others are beyond the map");
    }

    #[test]
    fn a_small_budget_gets_around_to_everything() {
        let (bits, summary) = (words(3 * SUMMARY_GRAIN), words(1));
        let map = FreeMap {
            bits: &bits,
            summary: &summary,
        };
        let freed: BTreeSet<u32> = (0..98_304).step_by(997).collect();
        freed.iter().for_each(|&pfn| assert!(map.set(pfn)));
        let (mut home, mut cursor, mut rounds) = (BTreeSet::new(), 0, 0);
        while map.may_have_any() {
            for pfn in take_home(map, &mut cursor, 3) {
                assert!(home.insert(pfn), "pfn {pfn} came twice");
            }
            rounds += 1;
            assert!(rounds < 200, "does not end");
        }
        assert_eq!(home, freed);
    }

    #[test]
    fn a_pfn_beyond_the_map_is_refused() {
        let (bits, summary) = (words(2), words(1));
        let map = FreeMap {
            bits: &bits,
            summary: &summary,
        };
        assert!(map.set(127));
        assert!(!map.set(128));
    }

    #[test]
    fn marks_without_bits_go_away_when_looked_at() {
        let (bits, summary) = (words(SUMMARY_GRAIN), words(1));
        let map = FreeMap {
            bits: &bits,
            summary: &summary,
        };
        summary[0].store(u64::MAX, Release);
        assert!(map.load(&mut 0, 8).is_empty());
        assert_eq!(summary[0].load(Acquire), u64::MAX - 1);
    }
}
