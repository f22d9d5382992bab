//! A table that one process rewrites and others read whole or not at all, by a sequence number.
//!
//! The writer never waits for readers; a reader that met a write in progress is told so and looks
//! again. The words are borrowed: whether they lie in shared memory or, under loom, on the heap is
//! the caller's affair.

use crate::sync::{Acquire, AtomicU64, Relaxed, Release, fence};

/// Stores `stores` as one change, the one after `last`, and counts `last` up. There is one writer at
/// a time, and it keeps `last` (0 at first) for itself; the sequence is odd while it writes, also
/// for ever if it dies there.
///
/// The count is not read back from the shared word: nobody but the writer is to be believed, and a
/// model checker that watches one last access per word overlooks readers before a load of our own.
pub fn publish<'a>(
    sequence: &AtomicU64,
    last: &mut u64,
    stores: impl IntoIterator<Item = (&'a AtomicU64, u64)>,
) {
    let odd = *last | 1;
    *last = odd.wrapping_add(1);
    sequence.store(odd, Relaxed);
    // SYNC(seqlock.open): pairs with the fence in `snapshot`; whoever sees one of the stores below
    // sees the sequence odd, or later, afterwards.
    fence(Release);
    for (word, value) in stores {
        word.store(value, Relaxed);
    }
    // SYNC(seqlock.closed): pairs with the Acquire in `snapshot`; who sees this even sequence sees
    // all the stores above.
    sequence.store(*last, Release);
}

/// Loads `loads` into `out`; `false` if they may be of more than one change.
pub fn snapshot<'a>(
    sequence: &AtomicU64,
    loads: impl IntoIterator<Item = &'a AtomicU64>,
    out: &mut Vec<u64>,
) -> bool {
    // SYNC(seqlock.closed): pairs with the Release at the end of `publish`.
    let before = sequence.load(Acquire);
    out.clear();
    out.extend(loads.into_iter().map(|word| word.load(Relaxed)));
    // SYNC(seqlock.open): pairs with the fence in `publish`.
    fence(Acquire);
    before.is_multiple_of(2) && sequence.load(Relaxed) == before
}
