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

/// Levels that indexes of 32 bits can need.
const MAX_LEVELS: usize = 6;

/// A set of indexes below a fixed bound.
#[derive(Clone, Debug, Default)]
pub struct BlockSet {
    /// All levels one after the other, level 0 first; empty until the first insertion.
    words: Vec<u64>,
    /// Where each level starts in `words`.
    starts: [u32; MAX_LEVELS],
    nr_levels: usize,
    bound: u32,
    len: u32,
}

impl BlockSet {
    /// An empty set of indexes below `bound`.
    #[must_use]
    pub fn new(bound: u32) -> BlockSet {
        BlockSet {
            bound,
            ..BlockSet::default()
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
        self.len != 0 && self.words[word] & bit != 0
    }

    /// Adds a member that was not in the set.
    ///
    /// # Panics
    /// If it was, or is out of bounds.
    #[inline]
    pub fn insert(&mut self, member: u32) {
        self.insert_word(member, 1);
        self.len += 1;
    }

    /// Adds `start..end`, none of which was in the set, a word at a time.
    ///
    /// # Panics
    /// If one was, or is out of bounds.
    pub fn insert_range(&mut self, start: u32, end: u32) {
        let mut at = start;
        while at < end {
            let word_end = (at | 63).saturating_add(1).min(end);
            self.insert_word(at, low_bits(word_end - at));
            at = word_end;
        }
        self.len += end.saturating_sub(start);
    }

    /// Takes a member out.
    ///
    /// # Panics
    /// If it was not in the set.
    #[inline]
    pub fn remove(&mut self, member: u32) {
        let (word, bit) = word_bit(member);
        assert!(self.len != 0, "nothing is filed here");
        let old = self.words[word];
        assert!(old & bit != 0, "{member} is not filed here");
        self.words[word] = old & !bit;
        self.len -= 1;
        if old != bit {
            return;
        }
        let mut at = member >> 6;
        for &start in &self.starts[1..self.nr_levels] {
            let (word, bit) = word_bit(at);
            let summary = &mut self.words[index(start) + word];
            *summary &= !bit;
            if *summary != 0 {
                return;
            }
            at >>= 6;
        }
    }

    /// The smallest member.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        (self.len != 0).then(|| self.descend_first(self.nr_levels, 0))
    }

    /// The largest member.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        Some(self.descend_last(self.nr_levels, 0))
    }

    /// The smallest member that is not below `from`.
    #[must_use]
    pub fn first_from(&self, from: u32) -> Option<u32> {
        if self.len == 0 || from >= self.bound {
            return None;
        }
        let mut from = from;
        for height in 0..self.nr_levels {
            let word = self
                .level(height)
                .get(index(from >> 6))
                .copied()
                .unwrap_or(0);
            let word = word & !low_bits(from & 63);
            if word != 0 {
                return Some(self.descend_first(height, (from & !63) | word.trailing_zeros()));
            }
            // Nothing left in this word: look for the next word that has something.
            from = (from >> 6) + 1;
        }
        None
    }

    /// The largest member that is not above `to`.
    #[must_use]
    pub fn last_to(&self, to: u32) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut to = to.min(self.bound.saturating_sub(1));
        for height in 0..self.nr_levels {
            let word = self.level(height)[index(to >> 6)] & low_bits((to & 63) + 1);
            if word != 0 {
                return Some(self.descend_last(height, (to | 63) - word.leading_zeros()));
            }
            // Nothing left in this word: look for the word before it that has something.
            to = (to >> 6).checked_sub(1)?;
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
        self.words.len() as u64 * 8
    }

    /// Whether each summary bit tells the truth and the count is right.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let ones: u32 = self.level(0).iter().map(|word| word.count_ones()).sum();
        let summaries_are_right = (1..self.nr_levels).all(|height| {
            let summary = self.level(height);
            self.level(height - 1)
                .iter()
                .enumerate()
                .all(|(at, &word)| {
                    let bit = summary[at / 64] >> (at % 64) & 1;
                    (word != 0) == (bit == 1)
                })
        });
        ones == self.len && summaries_are_right
    }

    fn level(&self, height: usize) -> &[u64] {
        let start = index(self.starts[height]);
        let is_top = height + 1 >= self.nr_levels;
        let end = if is_top {
            self.words.len()
        } else {
            index(self.starts[height + 1])
        };
        &self.words[start..end]
    }

    /// The smallest member below summary `at`, which stands for a word of level `height - 1`
    /// (a member, for height 0).
    #[inline]
    fn descend_first(&self, height: usize, at: u32) -> u32 {
        let mut at = at;
        for &start in self.starts[..height].iter().rev() {
            at = (at << 6) | self.words[index(start + at)].trailing_zeros();
        }
        at
    }

    /// As [`descend_first`](Self::descend_first), the largest.
    fn descend_last(&self, height: usize, at: u32) -> u32 {
        let mut at = at;
        for &start in self.starts[..height].iter().rev() {
            at = (at << 6) | (63 - self.words[index(start + at)].leading_zeros());
        }
        at
    }

    /// Adds `bits`, shifted to where `member` lies in its word.
    #[inline]
    fn insert_word(&mut self, member: u32, bits: u64) {
        if self.words.is_empty() {
            self.make_levels();
        }
        let word = index(member >> 6);
        let bits = bits << (member & 63);
        let old = self.words[word];
        assert!(
            member < self.bound && old & bits == 0,
            "{member} is filed twice"
        );
        self.words[word] = old | bits;
        if old != 0 {
            return;
        }
        let mut at = member >> 6;
        for &start in &self.starts[1..self.nr_levels] {
            let (word, bit) = word_bit(at);
            let summary = &mut self.words[index(start) + word];
            let old = *summary;
            *summary = old | bit;
            if old != 0 {
                return;
            }
            at >>= 6;
        }
    }

    #[cold]
    fn make_levels(&mut self) {
        let (mut nr_bits, mut nr_words) = (self.bound, 0);
        loop {
            self.starts[self.nr_levels] = nr_words;
            self.nr_levels += 1;
            let of_level = nr_bits.div_ceil(64).max(1);
            nr_words += of_level;
            if of_level == 1 {
                break;
            }
            nr_bits = of_level;
        }
        // Zeroed memory of a size that comes straight from the system is not touched.
        self.words = vec![0; index(nr_words)];
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
            assert_eq!(set.last_to(from), plain.range(..=from).next_back().copied());
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
        assert_eq!(set.last_to(u32::MAX), None);
    }
}
