//! Free pages of one pageblock as bits: finding, taking and merging aligned runs.
//!
//! Knows words and offsets inside a block; knows no pfns, types or zones. A *free
//! run of order k* is `2^k` set bits at a multiple of `2^k`. Merging is implicit:
//! two free buddies are a free run of the next order, with nothing to be done.
//!
//! Shape: a block of order `P` has `max(1, 2^P / 64)` words, lowest page in bit 0 of
//! word 0. *Folding* a word to order `k` keeps one bit, at its start, for each free
//! run of order `k`. Runs of order 6 and more are groups of words that are all ones.

use crate::num::{index, low_bits, to_u32, word_bit};

/// Orders that lie within one word: `0..WORD_ORDER`.
pub(crate) const WORD_ORDER: u32 = 6;

/// Number of aligned free runs by order. Runs are counted at *every* order they
/// contain: a free run of order 2 counts 4, 2, 1 at orders 0, 1, 2.
pub(crate) type Tally = [i64; 16];

/// Start positions that a run of each order may have in a word. The eighth is never
/// used: with it an index of three bits needs no check.
const STARTS: [u64; 8] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
    0,
];

/// From the free runs of order `k` of a word, those of order `k + 1`.
#[inline]
pub(crate) const fn fold_once(runs: u64, k: u32) -> u64 {
    runs & (runs >> (1 << k)) & STARTS[index((k + 1) & 7)]
}

/// The free runs of order `k < 6` in a word, a bit each at their start.
#[inline]
pub(crate) const fn fold(word: u64, k: u32) -> u64 {
    let mut runs = word;
    let mut at = 0;
    while at < k {
        runs = fold_once(runs, at);
        at += 1;
    }
    runs
}

/// Bits of a run of order `k < 6` at offset `off` of its block.
#[inline]
const fn run_mask(off: u32, k: u32) -> u64 {
    low_bits(1 << k) << (off & 63)
}

/// The words a run of order `k >= 6` at `off` covers.
#[inline]
fn run_words(off: u32, k: u32) -> core::ops::Range<usize> {
    let first = index(off >> WORD_ORDER);
    first..first + (1 << (k - WORD_ORDER))
}

/// Whether the run is free as a whole.
#[inline]
pub(crate) fn is_free_run(words: &[u64], off: u32, k: u32) -> bool {
    if k < WORD_ORDER {
        let mask = run_mask(off, k);
        words[index(off >> WORD_ORDER)] & mask == mask
    } else {
        words[run_words(off, k)].iter().all(|&w| w == u64::MAX)
    }
}

/// Marks a run taken.
#[inline]
pub(crate) fn take_run(words: &mut [u64], off: u32, k: u32) {
    debug_assert!(is_free_run(words, off, k));
    if k < WORD_ORDER {
        words[index(off >> WORD_ORDER)] &= !run_mask(off, k);
    } else {
        words[run_words(off, k)].fill(0);
    }
}

/// Marks a run free; `false`, and nothing done, if any page of it was free already.
#[inline]
#[must_use]
pub(crate) fn free_run(words: &mut [u64], off: u32, k: u32) -> bool {
    if k < WORD_ORDER {
        let mask = run_mask(off, k);
        let word = &mut words[index(off >> WORD_ORDER)];
        if *word & mask != 0 {
            return false;
        }
        *word |= mask;
    } else {
        let run = &mut words[run_words(off, k)];
        if run.iter().any(|&w| w != 0) {
            return false;
        }
        run.fill(u64::MAX);
    }
    true
}

/// The order of the largest free run that contains the free run of order `k` at
/// `off`, at most `limit`.
#[inline]
pub(crate) fn merged_order(words: &[u64], off: u32, k: u32, limit: u32) -> u32 {
    let mut order = k;
    if order < WORD_ORDER {
        let word = words[index(off >> WORD_ORDER)];
        while order < limit.min(WORD_ORDER) {
            let buddy = run_mask(((off >> order) ^ 1) << order, order);
            if word & buddy != buddy {
                return order;
            }
            order += 1;
        }
    }
    while order < limit {
        if !is_free_run(words, ((off >> order) ^ 1) << order, order) {
            return order;
        }
        order += 1;
    }
    order
}

/// The best run of order `k` to take: the first one in the smallest free run that
/// has room for it. Returns its offset and the order of the run it is cut from.
///
/// `largest` is the order of the block's largest free run; there is one of at least `k`.
#[inline]
pub(crate) fn best_fit(words: &[u64], k: u32, largest: u32) -> Option<(u32, u32)> {
    let mut order = k;
    while order <= largest.min(WORD_ORDER - 1) {
        for (at, &word) in words.iter().enumerate() {
            if word == 0 || word == u64::MAX {
                continue;
            }
            let runs = fold(word, order);
            // In a block that has no larger run, none can be half of one.
            let alone = if order == largest {
                runs
            } else {
                let pairs = fold_once(runs, order);
                runs & !(pairs | pairs << (1 << order))
            };
            if alone != 0 {
                return Some(((to_u32(at) << WORD_ORDER) + alone.trailing_zeros(), order));
            }
        }
        order += 1;
    }
    while order <= largest {
        let len = 1 << (order - WORD_ORDER);
        for (at, group) in words.chunks_exact(len).enumerate() {
            if group.iter().all(|&w| w == u64::MAX) {
                let off = to_u32(at) << order;
                let alone = order == largest || !is_free_run(words, off ^ (1 << order), order);
                if alone {
                    return Some((off, order));
                }
            }
        }
        order += 1;
    }
    None
}

/// The order of the largest free run, looking no higher than `limit`; `None` if
/// nothing is free.
#[inline]
pub(crate) fn largest_run(words: &[u64], limit: u32) -> Option<u32> {
    if limit >= WORD_ORDER && words.contains(&u64::MAX) {
        let mut order = limit;
        while order > WORD_ORDER {
            let len = 1 << (order - WORD_ORDER);
            if words
                .chunks_exact(len)
                .any(|group| group.iter().all(|&w| w == u64::MAX))
            {
                return Some(order);
            }
            order -= 1;
        }
        return Some(WORD_ORDER);
    }
    let limit = limit.min(WORD_ORDER - 1);
    let mut best = None;
    for &word in words {
        let (mut runs, mut order) = (word, 0);
        if runs == 0 {
            continue;
        }
        while order < limit {
            let next = fold_once(runs, order);
            if next == 0 {
                break;
            }
            runs = next;
            order += 1;
        }
        if order == limit {
            return Some(limit);
        }
        best = best.max(Some(order));
    }
    best
}

/// The pages of word `at` that lie in a free run of order `limit` or larger.
#[inline]
pub(crate) fn in_large_runs(words: &[u64], at: usize, limit: u32) -> u64 {
    if limit < WORD_ORDER {
        // The starts lie `2^limit` apart, so the runs do not reach into each other.
        return fold(words[at], limit).wrapping_mul(low_bits(1 << limit));
    }
    let len = 1 << (limit - WORD_ORDER);
    let first = at & !(len - 1);
    let group = words.get(first..first + len);
    if group.is_some_and(|group| group.iter().all(|&w| w == u64::MAX)) {
        u64::MAX
    } else {
        0
    }
}

/// Adds `sign` times the runs of one word, of orders below 6 and below `limit` (a
/// pageblock of 32 pages is wholly free, not a run, when all of it is free).
#[inline]
pub(crate) fn tally_word(tally: &mut Tally, word: u64, limit: u32, sign: i64) {
    if word == 0 {
        return;
    }
    let mut runs = word;
    for (order, count) in tally
        .iter_mut()
        .enumerate()
        .take(index(limit.min(WORD_ORDER)))
    {
        *count += sign * i64::from(runs.count_ones());
        runs = fold_once(runs, to_u32(order));
        if runs == 0 {
            break;
        }
    }
}

/// Adds `sign` for each order of at least 6, below `limit`, at which the full word
/// `at` lies in a free run: what is lost when it is broken, or gained when it has
/// become full. Called before the break, after the gain.
#[inline]
pub(crate) fn tally_groups(tally: &mut Tally, words: &[u64], at: usize, limit: u32, sign: i64) {
    let mut order = WORD_ORDER;
    while order < limit {
        let len = 1 << (order - WORD_ORDER);
        let first = at & !(len - 1);
        if !words[first..first + len].iter().all(|&w| w == u64::MAX) {
            break;
        }
        tally[index(order)] += sign;
        order += 1;
    }
}

/// All aligned free runs of a block that is not wholly free, orders below `limit`.
pub(crate) fn tally_block(words: &[u64], limit: u32) -> Tally {
    let mut tally = [0; 16];
    for &word in words {
        tally_word(&mut tally, word, limit, 1);
    }
    for order in WORD_ORDER..limit.max(WORD_ORDER) {
        let groups = words.chunks_exact(1 << (order - WORD_ORDER));
        let full = groups
            .filter(|group| group.iter().all(|&w| w == u64::MAX))
            .count();
        tally[index(order)] = i64::from(to_u32(full));
    }
    tally
}

/// Whether page `off` is free.
#[inline]
pub(crate) fn is_free(words: &[u64], off: u32) -> bool {
    let (word, bit) = word_bit(off);
    words[word] & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::low_u32;

    /// The largest aligned all-free run around `off`, the slow way.
    fn slow_merged(bits: &[bool], off: usize) -> Option<u32> {
        let len = bits.len().trailing_zeros();
        (0..=len).rev().find(|&k| {
            let start = off >> k << k;
            bits[start..start + (1 << k)].iter().all(|&b| b)
        })
    }

    fn random_words(seed: u64) -> (Vec<u64>, Vec<bool>) {
        let mut state = seed;
        let mut bits = vec![false; 512];
        // Runs of random length, so that all orders appear.
        let (mut at, mut on) = (0, false);
        while at < 512 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let len = 1usize << (state >> 61);
            let len = len + index(low_u32(state >> 50 & 0xff)) % (1 + len * 2);
            let end = (at + len).min(512);
            bits[at..end].fill(on);
            (at, on) = (end, !on);
        }
        let mut words = vec![0u64; 8];
        for (at, &bit) in bits.iter().enumerate() {
            words[at / 64] |= u64::from(bit) << (at % 64);
        }
        (words, bits)
    }

    #[test]
    fn folding_agrees_with_looking_at_each_page() {
        for seed in 1..200 {
            let (words, bits) = random_words(seed);
            let orders: Vec<Option<u32>> = (0..512).map(|off| slow_merged(&bits, off)).collect();
            let largest = orders.iter().flatten().max().copied();
            assert_eq!(largest_run(&words, 9), largest, "seed {seed}");

            for (off, order) in (0u32..).zip(&orders) {
                if let Some(order) = *order {
                    assert_eq!(merged_order(&words, off, 0, 9), order);
                }
            }
            for limit in 0..=9 {
                for (off, order) in (0u32..).zip(&orders) {
                    let (at, bit) = word_bit(off);
                    let is_large = in_large_runs(&words, at, limit) & bit != 0;
                    assert_eq!(is_large, order.is_some_and(|order| order >= limit));
                }
            }
            let tally = tally_block(&words, 9);
            for k in 0..9u32 {
                let runs = (0..512usize >> k)
                    .filter(|run| bits[run << k..(run + 1) << k].iter().all(|&b| b));
                assert_eq!(
                    tally[index(k)],
                    runs.count() as i64,
                    "seed {seed} order {k}"
                );
            }
            for k in 0..=largest.unwrap_or(0) {
                let smallest = orders.iter().flatten().filter(|&&o| o >= k).min().copied();
                let fit = best_fit(&words, k, largest.unwrap_or(0));
                assert_eq!(
                    fit.map(|(_, order)| order),
                    smallest,
                    "seed {seed} order {k}"
                );
                if let Some((off, order)) = fit {
                    assert!(is_free_run(&words, off, k));
                    assert_eq!(merged_order(&words, off, k, 9), order);
                }
            }
        }
    }

    #[test]
    fn a_run_is_freed_once() {
        let mut words = vec![0; 8];
        assert!(free_run(&mut words, 64, 7));
        assert!(!free_run(&mut words, 128, 3));
        take_run(&mut words, 128, 3);
        assert!(free_run(&mut words, 128, 3));
        assert_eq!(merged_order(&words, 128, 3, 9), 6);
        assert!(is_free(&words, 190) && !is_free(&words, 192));
    }

    #[test]
    fn a_block_of_32_pages_uses_half_a_word() {
        let mut words = [low_bits(32) & !1];
        assert_eq!(largest_run(&words, 4), Some(4));
        assert_eq!(best_fit(&words, 0, 4), Some((1, 0)));
        assert!(free_run(&mut words, 0, 0));
        assert_eq!(merged_order(&words, 0, 0, 5), 5);
    }
}
