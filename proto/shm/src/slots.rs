//! Copies between a run of slots, used as a circle, and a plain run of words.
//!
//! The client copies as a block (one piece, two at a wrap), which is sound because it copies only
//! slots between its own cursors inside its window: nobody else writes them then. The daemon
//! reads and writes slot by slot, as atomics, because a hostile client may write at any time.
//! Cursors, and who may move them, are the affair of [`ring`](crate::ring) and
//! [`magazine`](crate::magazine).

use core::mem::MaybeUninit;

use crate::sync::{AtomicU64, Relaxed};

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

/// Copies the `out.len()` words from `position` on into `out`; at most `slots.len()`.
///
/// Only for a client's own slots: see the head of the module.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn copy_out(slots: &[AtomicU64], position: u32, out: &mut [MaybeUninit<u64>]) {
    let first = index_of(slots, position);
    let nr_first = out.len().min(slots.len() - first);
    assert!(out.len() <= slots.len(), "more words than the circle has");
    let base = slots.as_ptr().cast::<u64>();
    // SAFETY: `first <= slots.len()`, by the mask.
    let from = unsafe { base.add(first) };
    // SAFETY:
    // 1. `from..from + nr_first` lies in `slots`, since `nr_first <= slots.len() - first`, and an
    //    `AtomicU64` has the size and alignment of a `u64` and is initialised.
    // 2. `nr_first <= out.len()`, and `out` is exclusive, so the two do not overlap.
    // 3. Nobody writes these slots now: they are the caller's, by the rule at the module's head.
    unsafe { copy_words(from, out.as_mut_ptr().cast(), nr_first) };
    if nr_first < out.len() {
        // SAFETY: `nr_first < out.len()`, so the pointer stays in `out`.
        let to = unsafe { out.as_mut_ptr().add(nr_first) };
        // SAFETY: as above with the rest, which starts over at slot 0 and is at most
        // `slots.len() - nr_first` words long.
        unsafe { copy_words(base, to.cast(), out.len() - nr_first) };
    }
}

/// Copies `words` into the slots from `position` on; at most `slots.len()`.
///
/// Only for a client's own slots: see the head of the module.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn copy_in(slots: &[AtomicU64], position: u32, words: &[u64]) {
    let first = index_of(slots, position);
    let nr_first = words.len().min(slots.len() - first);
    assert!(words.len() <= slots.len(), "more words than the circle has");
    let base = slots.as_ptr().cast::<u64>().cast_mut();
    // SAFETY: `first <= slots.len()`, by the mask.
    let to = unsafe { base.add(first) };
    // SAFETY:
    // 1. `to..to + nr_first` lies in `slots`, since `nr_first <= slots.len() - first`; writing
    //    through a shared reference is what the cell inside an `AtomicU64` allows.
    // 2. `nr_first <= words.len()`; `words` is no shared memory, so the two do not overlap.
    // 3. Nobody reads or writes these slots now: they are the caller's, by the rule at the
    //    module's head.
    unsafe { copy_words(words.as_ptr(), to, nr_first) };
    if nr_first < words.len() {
        // SAFETY: `nr_first < words.len()`, so the pointer stays in `words`.
        let from = unsafe { words.as_ptr().add(nr_first) };
        // SAFETY: as above with the rest, which starts over at slot 0 and is at most
        // `slots.len() - nr_first` words long.
        unsafe { copy_words(from, base, words.len() - nr_first) };
    }
}

/// One block.
///
/// # Safety
/// As [`core::ptr::copy_nonoverlapping`].
#[cfg(not(loom))]
#[inline(always)]
unsafe fn copy_words(from: *const u64, to: *mut u64, count: usize) {
    // SAFETY: handed on to the caller.
    unsafe { core::ptr::copy_nonoverlapping(from, to, count) };
}

/// Words as a place to write words; the callee must not leave it less initialised.
pub(crate) fn as_uninit(words: &mut [u64]) -> &mut [MaybeUninit<u64>] {
    // SAFETY: the same layout; the functions that take such a place only ever write whole words
    // into it, so `words` stays initialised.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

/// Makes all words 0, in stores of fixed sizes.
///
/// `fill` would be a call of `memset`, whose masked store for less than 64 bytes costs tens of
/// nanoseconds where the next load looks at it, and hundreds for no bytes at all: then its address
/// may be none, and a masked-out fault is looked into by microcode.
#[inline]
pub(crate) fn clear(words: &mut [u64]) {
    let (chunks, rest) = words.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = [0; 8];
    }
    let (fours, rest) = rest.as_chunks_mut::<4>();
    if let [four] = fours {
        *four = [0; 4];
    }
    let (twos, rest) = rest.as_chunks_mut::<2>();
    if let [two] = twos {
        *two = [0; 2];
    }
    if let [one] = rest {
        *one = 0;
    }
}

/// The same under loom, word by word.
#[cfg(loom)]
pub(crate) fn copy_out(slots: &[AtomicU64], position: u32, out: &mut [MaybeUninit<u64>]) {
    let mut at = position;
    for word in out {
        word.write(load(slots, at));
        at = at.wrapping_add(1);
    }
}

/// The same under loom, word by word.
#[cfg(loom)]
pub(crate) fn copy_in(slots: &[AtomicU64], position: u32, words: &[u64]) {
    let mut at = position;
    for &word in words {
        store(slots, at, word);
        at = at.wrapping_add(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::array::from_fn;

    #[test]
    fn every_length_is_cleared_to_its_end_and_no_further() {
        for len in 0..40 {
            let mut words = vec![7; len + 1];
            clear(&mut words[..len]);
            assert!(words[..len].iter().all(|&word| word == 0), "{len}");
            assert_eq!(words[len], 7, "{len}");
        }
    }

    #[test]
    fn a_copy_wraps_at_the_end_of_the_circle() {
        let slots: [AtomicU64; 8] = from_fn(|_| AtomicU64::new(0));
        for position in [0, 1, 5, 7, 8, 13, u32::MAX - 2] {
            for len in 0..=8 {
                let words: Vec<u64> = (1..=len).collect();
                copy_in(&slots, position, &words);
                let mut out = vec![0; words.len()];
                copy_out(&slots, position, as_uninit(&mut out));
                assert_eq!(out, words);
                for (offset, &word) in (0..).zip(&words) {
                    assert_eq!(load(&slots, position.wrapping_add(offset)), word);
                }
            }
        }
    }
}
