//! Copies between a run of slots, used as a circle, and a plain run of words.
//!
//! The client copies as a block (one piece, two at a wrap), which is sound because it copies only
//! slots between its own cursors inside its window: nobody else writes them then. The daemon
//! reads and writes slot by slot, as atomics, because a hostile client may write at any time.
//! Cursors, and who may move them, are the affair of [`ring`](crate::ring) and
//! [`magazine`](crate::magazine).

use core::mem::MaybeUninit;

use crate::block_copy::Width;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};

/// What was copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    /// How many words.
    pub count: usize,
    /// Whether one of them is 0, which no page word is.
    pub has_zero: bool,
}

/// Index of the slot at a position; `slots.len()` is a power of two, as every run in the layout.
#[inline(always)]
fn index_of(slots: &[AtomicU64], position: u32) -> usize {
    debug_assert!(slots.len().is_power_of_two());
    position as usize & (slots.len() - 1)
}

/// Word at a position, as one atomic load.
#[inline]
pub(crate) fn load(slots: &[AtomicU64], position: u32) -> u64 {
    slots[index_of(slots, position)].load(Relaxed)
}

/// Stores a word at a position, as one atomic store.
#[inline]
pub(crate) fn store(slots: &[AtomicU64], position: u32, word: u64) {
    slots[index_of(slots, position)].store(word, Relaxed);
}

/// Word at a position, and what was stored before it was published.
#[inline]
pub(crate) fn load_published(slots: &[AtomicU64], position: u32) -> u64 {
    slots[index_of(slots, position)].load(Acquire)
}

/// Stores a word at a position, and publishes what was stored before.
#[inline]
pub(crate) fn publish(slots: &[AtomicU64], position: u32, word: u64) {
    slots[index_of(slots, position)].store(word, Release);
}

/// Word at a position of the caller's own slots: no check, no call.
#[inline(always)]
pub(crate) fn load_own(slots: &[AtomicU64], position: u32) -> u64 {
    debug_assert!(!slots.is_empty());
    // SAFETY: `x & (len - 1) < len` for any `len` but 0, and no run of the layout is empty.
    unsafe { slots.get_unchecked(index_of(slots, position)) }.load(Relaxed)
}

/// Stores a word at a position of the caller's own slots: no check, no call.
#[inline(always)]
pub(crate) fn store_own(slots: &[AtomicU64], position: u32, word: u64) {
    debug_assert!(!slots.is_empty());
    // SAFETY: `x & (len - 1) < len` for any `len` but 0, and no run of the layout is empty.
    unsafe { slots.get_unchecked(index_of(slots, position)) }.store(word, Relaxed);
}

/// Copies the `out.len()` words from `position` on into `out`, at most `slots.len()`; tells
/// whether one of them is 0.
///
/// Only for a client's own slots: see the head of the module.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn copy_out(
    width: impl Width,
    slots: &[AtomicU64],
    position: u32,
    out: &mut [MaybeUninit<u64>],
) -> bool {
    let (first, nr_first) = first_piece(slots, position, out.len());
    let base = slots.as_ptr().cast::<u64>();
    let to = out.as_mut_ptr().cast::<u64>();
    // SAFETY: `first <= slots.len()`.
    let from = unsafe { base.add(first) };
    // SAFETY:
    // 1. `from..from + nr_first` lies in `slots`, since `nr_first <= slots.len() - first`, and an
    //    `AtomicU64` has the size and alignment of a `u64` and is initialised.
    // 2. `nr_first <= out.len()`, and `out` is exclusive, so the two do not overlap.
    // 3. Nobody writes these slots now: they are the caller's, by the rule at the module's head.
    let mut has_zero = unsafe { width.copy(from, to, nr_first) };
    if nr_first < out.len() {
        // SAFETY: `nr_first < out.len()`, so the pointer stays in `out`.
        let to = unsafe { to.add(nr_first) };
        // SAFETY: as above with the rest, which starts over at slot 0 and is at most
        // `slots.len() - nr_first` words long.
        has_zero |= unsafe { width.copy(base, to, out.len() - nr_first) };
    }
    has_zero
}

/// Copies `words` into the slots from `position` on, at most `slots.len()`; gives the bits in
/// which any of them differs from `first_word`.
///
/// Only for a client's own slots: see the head of the module.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn copy_in(
    width: impl Width,
    slots: &[AtomicU64],
    position: u32,
    words: &[u64],
    first_word: u64,
) -> u64 {
    let (first, nr_first) = first_piece(slots, position, words.len());
    let base = slots.as_ptr().cast::<u64>().cast_mut();
    let from = words.as_ptr();
    // SAFETY: `first <= slots.len()`.
    let to = unsafe { base.add(first) };
    // SAFETY:
    // 1. `to..to + nr_first` lies in `slots`, since `nr_first <= slots.len() - first`; writing
    //    through a shared reference is what the cell inside an `AtomicU64` allows.
    // 2. `nr_first <= words.len()`; `words` is no shared memory, so the two do not overlap.
    // 3. Nobody reads or writes these slots now: they are the caller's, by the rule at the
    //    module's head.
    let mut differences = unsafe { width.copy_and_compare(from, to, nr_first, first_word) };
    if nr_first < words.len() {
        let nr_rest = words.len() - nr_first;
        // SAFETY: `nr_first < words.len()`, so the pointer stays in `words`.
        let from = unsafe { from.add(nr_first) };
        // SAFETY: as above with the rest, which starts over at slot 0 and is at most
        // `slots.len() - nr_first` words long.
        differences |= unsafe { width.copy_and_compare(from, base, nr_rest, first_word) };
    }
    differences
}

/// Where `count` words from a position on start, and how many of them lie before the wrap.
#[cfg(not(loom))]
#[inline(always)]
fn first_piece(slots: &[AtomicU64], position: u32, count: usize) -> (usize, usize) {
    assert!(count <= slots.len(), "more words than the circle has");
    let first = index_of(slots, position);
    (first, count.min(slots.len() - first))
}

/// Words as a place to write words; the callee must not leave it less initialised.
pub(crate) fn as_uninit(words: &mut [u64]) -> &mut [MaybeUninit<u64>] {
    // SAFETY: the same layout; the functions that take such a place only ever write whole words
    // into it, so `words` stays initialised.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

/// The same under loom, word by word.
#[cfg(loom)]
pub(crate) fn copy_out(
    _: impl Width,
    slots: &[AtomicU64],
    position: u32,
    out: &mut [MaybeUninit<u64>],
) -> bool {
    let mut has_zero = false;
    for (offset, place) in (0..).zip(out) {
        let word = load(slots, position.wrapping_add(offset));
        place.write(word);
        has_zero |= word == 0;
    }
    has_zero
}

/// The same under loom, word by word.
#[cfg(loom)]
pub(crate) fn copy_in(
    _: impl Width,
    slots: &[AtomicU64],
    position: u32,
    words: &[u64],
    first_word: u64,
) -> u64 {
    let mut differences = 0;
    for (offset, &word) in (0..).zip(words) {
        store(slots, position.wrapping_add(offset), word);
        differences |= word ^ first_word;
    }
    differences
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::block_copy::Any;
    use core::array::from_fn;

    #[test]
    fn a_copy_wraps_at_the_end_of_the_circle() {
        let slots: [AtomicU64; 8] = from_fn(|_| AtomicU64::new(0));
        for position in [0, 1, 5, 7, 8, 13, u32::MAX - 2] {
            for len in 0..=8 {
                let words: Vec<u64> = (1..=len).collect();
                assert_eq!(copy_in(Any, &slots, position, &words, 1) & !15, 0);
                let mut out = vec![0; words.len()];
                assert!(!copy_out(Any, &slots, position, as_uninit(&mut out)));
                assert_eq!(out, words);
                for (offset, &word) in (0..).zip(&words) {
                    assert_eq!(load(&slots, position.wrapping_add(offset)), word);
                }
            }
        }
    }
}
