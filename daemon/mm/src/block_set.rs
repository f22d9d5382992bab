//! A set of small integers that always knows its first and last member.
//!
//! The index of a zone's pageblocks is made of these: one set per pool and order.
//! It knows bits, not pageblocks. The words are taken at the first insertion, so
//! that a set nobody uses costs nothing.
//!
//! Shape: a tree of 64-ary summaries. Level 0 has a bit per member; a bit of level
//! `n + 1` says that the word of level `n` it stands for is not zero; the top level
//! is one word.

use crate::num::{index, low_bits, word_bit};

/// A set of indexes below a fixed bound.
#[derive(Clone, Debug, Default)]
pub struct BlockSet {
    /// Level 0 first; empty until the first insertion.
    levels: Vec<Vec<u64>>,
    bound: u32,
    len: u32,
}

impl BlockSet {
    /// An empty set of indexes below `bound`.
    #[must_use]
    pub fn new(bound: u32) -> BlockSet {
        BlockSet {
            levels: Vec::new(),
            bound,
            len: 0,
        }
    }

    /// Number of members.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `member` is in the set.
    #[must_use]
    pub fn contains(&self, member: u32) -> bool {
        let (word, bit) = word_bit(member);
        self.levels
            .first()
            .is_some_and(|level| level[word] & bit != 0)
    }

    /// Adds a member that was not in the set.
    ///
    /// # Panics
    /// If it was, or is out of bounds.
    pub fn insert(&mut self, member: u32) {
        self.make_levels();
        let (word, bit) = word_bit(member);
        let old = self.levels[0][word];
        assert!(old & bit == 0, "pageblock {member} is filed twice");
        self.levels[0][word] = old | bit;
        self.len += 1;
        if old == 0 {
            self.raise(member >> 6);
        }
    }

    /// Adds `start..end`, none of which was in the set, a word at a time.
    ///
    /// # Panics
    /// If one was, or is out of bounds.
    pub fn insert_range(&mut self, start: u32, end: u32) {
        self.make_levels();
        let mut at = start;
        while at < end {
            let word_end = (at | 63).saturating_add(1).min(end);
            let mask = low_bits(word_end - at) << (at & 63);
            let old = self.levels[0][index(at >> 6)];
            assert!(
                old & mask == 0,
                "pageblocks {at}..{word_end} are filed twice"
            );
            self.levels[0][index(at >> 6)] = old | mask;
            if old == 0 {
                self.raise(at >> 6);
            }
            at = word_end;
        }
        self.len += end.saturating_sub(start);
    }

    /// Takes a member out.
    ///
    /// # Panics
    /// If it was not in the set.
    pub fn remove(&mut self, member: u32) {
        let (word, bit) = word_bit(member);
        let level = self
            .levels
            .first_mut()
            .expect("a set with members has words");
        let old = level[word];
        assert!(old & bit != 0, "pageblock {member} is not filed here");
        level[word] = old & !bit;
        self.len -= 1;
        if old == bit {
            self.lower(member >> 6);
        }
    }

    /// The smallest member.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        Some(self.descend_first(self.levels.len() - 1, 0))
    }

    /// The largest member.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut at = 0;
        for level in self.levels.iter().rev() {
            at = (at << 6) | (63 - level[index(at)].leading_zeros());
        }
        Some(at)
    }

    /// The smallest member that is not below `from`.
    #[must_use]
    pub fn first_from(&self, from: u32) -> Option<u32> {
        if self.len == 0 || from >= self.bound {
            return None;
        }
        let mut from = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(index(from >> 6)).copied().unwrap_or(0) & !low_bits(from & 63);
            if word != 0 {
                let at = (from & !63) | word.trailing_zeros();
                return Some(if height == 0 {
                    at
                } else {
                    self.descend_first(height - 1, at)
                });
            }
            // Nothing left in this word: look for the next word that has something.
            from = (from >> 6) + 1;
        }
        None
    }

    /// Members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.first();
        core::iter::from_fn(move || {
            let at = next?;
            next = at.checked_add(1).and_then(|from| self.first_from(from));
            Some(at)
        })
    }

    /// Bytes taken for the words.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.len() as u64 * 8).sum()
    }

    /// Whether each summary bit tells the truth and the count is right.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let ones = |level: &Vec<u64>| level.iter().map(|w| w.count_ones()).sum::<u32>();
        let len_is_right = self.levels.first().map_or(0, ones) == self.len;
        let summaries_are_right = self.levels.windows(2).all(|pair| {
            pair[0].iter().enumerate().all(|(at, &word)| {
                let bit = pair[1][at / 64] >> (at % 64) & 1;
                (word != 0) == (bit == 1)
            })
        });
        len_is_right && summaries_are_right
    }

    /// The smallest member under word `at` of level `height`.
    fn descend_first(&self, height: usize, at: u32) -> u32 {
        let mut at = at;
        for level in self.levels[..=height].iter().rev() {
            at = (at << 6) | level[index(at)].trailing_zeros();
        }
        at
    }

    /// Word `at` of level 0 has become nonzero.
    fn raise(&mut self, at: u32) {
        let mut at = at;
        for level in &mut self.levels[1..] {
            let (word, bit) = word_bit(at);
            let old = level[word];
            level[word] = old | bit;
            if old != 0 {
                break;
            }
            at >>= 6;
        }
    }

    /// Word `at` of level 0 has become zero.
    fn lower(&mut self, at: u32) {
        let mut at = at;
        for level in &mut self.levels[1..] {
            let (word, bit) = word_bit(at);
            level[word] &= !bit;
            if level[word] != 0 {
                break;
            }
            at >>= 6;
        }
    }

    fn make_levels(&mut self) {
        if !self.levels.is_empty() {
            return;
        }
        let mut nr_bits = self.bound;
        loop {
            let nr_words = nr_bits.div_ceil(64).max(1);
            // Zeroed memory of a size that comes straight from the system is not touched.
            self.levels.push(vec![0; index(nr_words)]);
            if nr_words == 1 {
                break;
            }
            nr_bits = nr_words;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_last_and_next_agree_with_a_plain_set() {
        let mut set = BlockSet::new(70_000);
        let mut plain = std::collections::BTreeSet::new();
        let mut state = 1u32;
        for _ in 0..4_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let member = (state >> 8) % 70_000;
            if plain.insert(member) {
                set.insert(member);
            } else {
                plain.remove(&member);
                set.remove(member);
            }
            let from = (state >> 4) % 70_000;
            assert_eq!(set.first(), plain.first().copied());
            assert_eq!(set.last(), plain.last().copied());
            assert_eq!(set.first_from(from), plain.range(from..).next().copied());
        }
        assert!(set.is_sound());
        assert!(set.iter().eq(plain.iter().copied()));
    }

    #[test]
    fn a_range_goes_in_by_words() {
        let mut set = BlockSet::new(300);
        set.insert_range(60, 200);
        assert_eq!(
            (set.len(), set.first(), set.last()),
            (140, Some(60), Some(199))
        );
        assert!(set.is_sound());
        for member in 60..200 {
            set.remove(member);
        }
        assert_eq!(set.first(), None);
        assert!(set.is_sound());
    }

    #[test]
    fn a_set_nobody_uses_has_no_words() {
        let set = BlockSet::new(1 << 23);
        assert_eq!(set.metadata_bytes(), 0);
        assert!(!set.contains(5));
        assert_eq!(set.first_from(0), None);
    }
}
