//! A lane's stack of freed blocks, used as a circle so that it can spill from below.
//!
//! Both cursors are the client's: it pops and pushes at the top, so that warm blocks come back
//! first, and spills the oldest from the bottom. All of that happens inside the lane's window
//! ([`window`](crate::window)); the daemon reads and empties a magazine only while it has the
//! lane closed, and takes both cursors as claims.
//!
//! Beside the circle lies one word for the block freed last. A page that is taken and freed alone
//! goes through it and moves no cursor: each such step would have to wait for the store of the one
//! before, and that wait is most of what a single page costs.

use core::mem::MaybeUninit;
use core::num::NonZeroU64;

use crate::block_copy::{Any, Width};
use crate::ring::{BadCursors, advanced};
use crate::slots::{self, Copied};
use crate::step::reached as step;
use crate::sync::{AtomicU32, AtomicU64, Relaxed};

/// A magazine, wherever its words live.
#[derive(Clone, Copy)]
pub(crate) struct Magazine<'a> {
    /// Position of the oldest block.
    pub bottom: &'a AtomicU32,
    /// Position behind the newest block.
    pub top: &'a AtomicU32,
    /// The block freed last by itself, if it is still there; else 0.
    pub last: &'a AtomicU64,
    /// The slots; their number is a power of two.
    pub slots: &'a [AtomicU64],
}

impl Magazine<'_> {
    /// Blocks in it and beside it.
    pub fn nr_blocks(&self) -> usize {
        self.len() + self.nr_beside()
    }

    /// Blocks beside it: one or none.
    #[inline(always)]
    pub fn nr_beside(&self) -> usize {
        usize::from(self.last.load(Relaxed) != 0)
    }

    /// Blocks in the circle; a scribbled cursor counts as full, so that nothing is pushed.
    #[inline(always)]
    pub fn len(&self) -> usize {
        let count = self
            .top
            .load(Relaxed)
            .wrapping_sub(self.bottom.load(Relaxed)) as usize;
        count.min(self.slots.len())
    }

    /// Takes up to `out.len()` of the newest blocks, in the order in which they were pushed, so
    /// that a run given back whole comes back as a run.
    #[inline(always)]
    pub fn pop(&self, width: impl Width, out: &mut [MaybeUninit<u64>]) -> Copied {
        let top = self.top.load(Relaxed);
        let there = top.wrapping_sub(self.bottom.load(Relaxed)) as usize;
        let count = there.min(self.slots.len()).min(out.len());
        let new_top = receded(top, count);
        let has_zero = slots::copy_out(width, self.slots, new_top, &mut out[..count]);
        self.top.store(new_top, Relaxed);
        Copied { count, has_zero }
    }

    /// Takes the block beside the circle, if there is one.
    #[inline(always)]
    pub fn pop_last(&self) -> Option<NonZeroU64> {
        let word = NonZeroU64::new(self.last.load(Relaxed))?;
        self.last.store(0, Relaxed);
        Some(word)
    }

    /// Takes the block freed last by itself, else the newest, unless there is none (then 0).
    #[inline(always)]
    pub fn pop_one(&self) -> u64 {
        if let Some(word) = self.pop_last() {
            return word.get();
        }
        let top = self.top.load(Relaxed);
        if top == self.bottom.load(Relaxed) {
            return 0;
        }
        let new_top = receded(top, 1);
        let word = slots::load_own(self.slots, new_top);
        self.top.store(new_top, Relaxed);
        word
    }

    /// Pushes as many of `words` as there is room for, if those agree with `first` in the bits of
    /// `mask`; says how many, and how many are in the
    /// circle now. None if they do not agree, and then
    /// nothing was pushed.
    #[inline(always)]
    pub fn push_alike(
        &self,
        width: impl Width,
        words: &[u64],
        first: u64,
        mask: u64,
    ) -> Option<(usize, usize)> {
        let top = self.top.load(Relaxed);
        let there = top.wrapping_sub(self.bottom.load(Relaxed)) as usize;
        let there = there.min(self.slots.len());
        let count = words.len().min(self.slots.len() - there);
        let differences = slots::copy_in(width, self.slots, top, &words[..count], first);
        if differences & mask != 0 {
            return None;
        }
        self.top.store(advanced(top, count), Relaxed);
        Some((count, there + count))
    }

    /// Keeps one block beside the circle, and pushes the one that lay there, if fewer than `limit`
    /// are kept and there is room; says whether.
    #[inline(always)]
    pub fn push_one_below(&self, word: u64, limit: u32) -> bool {
        let top = self.top.load(Relaxed);
        let count = top.wrapping_sub(self.bottom.load(Relaxed));
        let last = self.last.load(Relaxed);
        if last != 0 {
            // In this order: what is below a capacity does not overflow.
            if count as usize >= self.slots.len() || count + 1 >= limit {
                return false;
            }
            slots::store_own(self.slots, top, last);
            self.top.store(advanced(top, 1), Relaxed);
        } else if count >= limit {
            return false;
        }
        self.last.store(word, Relaxed);
        true
    }

    /// Pushes the block that lies beside the circle, unless there is no room.
    pub fn push_last(&self) {
        if self.len() < self.slots.len()
            && let Some(word) = self.pop_last()
        {
            let top = self.top.load(Relaxed);
            slots::store_own(self.slots, top, word.get());
            self.top.store(advanced(top, 1), Relaxed);
        }
    }

    /// Moves the bottom up over `count` blocks, which the caller has copied elsewhere.
    pub fn drop_bottom(&self, count: usize) {
        // They lie in `returns` too.
        step("spill.pushed");
        self.bottom
            .store(advanced(self.bottom.load(Relaxed), count), Relaxed);
    }

    /// Copies up to `out.len()` of the oldest blocks, leaving them in; returns how many.
    pub fn peek_bottom(&self, out: &mut [u64]) -> usize {
        let count = self.len().min(out.len());
        slots::copy_out(
            Any,
            self.slots,
            self.bottom.load(Relaxed),
            slots::as_uninit(&mut out[..count]),
        );
        count
    }

    /// The daemon's look at both cursors, checked: bottom and top.
    pub fn span_checked(&self) -> Result<(u32, u32), BadCursors> {
        let (bottom, top) = (self.bottom.load(Relaxed), self.top.load(Relaxed));
        if top.wrapping_sub(bottom) as usize > self.slots.len() {
            return Err(BadCursors {
                head: bottom,
                tail: top,
            });
        }
        Ok((bottom, top))
    }

    /// As [`Magazine::span_checked`], while an operation of that reach may be moving blocks: it
    /// may have spilled from below and pushed above between the two looks.
    pub fn span_in_flight(&self, reach: u32) -> Result<(u32, u32), BadCursors> {
        let (bottom, top) = (self.bottom.load(Relaxed), self.top.load(Relaxed));
        let most = self.slots.len().saturating_add(reach as usize);
        if top.wrapping_sub(bottom) as usize > most {
            return Err(BadCursors {
                head: bottom,
                tail: top,
            });
        }
        Ok((bottom, top))
    }
}

/// A cursor moved back by `count` blocks, which is at most a capacity.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "cursors count modulo 2^32")]
fn receded(cursor: u32, count: usize) -> u32 {
    cursor.wrapping_sub(count as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::array::from_fn;
    use std::collections::VecDeque;

    struct Store {
        bottom: AtomicU32,
        top: AtomicU32,
        last: AtomicU64,
        slots: [AtomicU64; 8],
    }

    impl Store {
        fn starting_at(cursor: u32) -> Store {
            Store {
                bottom: AtomicU32::new(cursor),
                top: AtomicU32::new(cursor),
                last: AtomicU64::new(0),
                slots: from_fn(|_| AtomicU64::new(0)),
            }
        }

        fn magazine(&self) -> Magazine<'_> {
            Magazine {
                bottom: &self.bottom,
                top: &self.top,
                last: &self.last,
                slots: &self.slots,
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn it_behaves_as_a_bounded_deque_with_one_block_beside_it(
            start: u32,
            moves in proptest::collection::vec((0u8..6, 0usize..12), 0..60),
        ) {
            let store = Store::starting_at(start);
            let magazine = store.magazine();
            let (mut model, mut last, mut next) = (VecDeque::new(), None, 1u64);
            for (kind, count) in moves {
                match kind {
                    0 => {
                        let words: Vec<u64> = (next..next + count as u64).collect();
                        next += count as u64;
                        let (pushed, nr_cached) = magazine.push_alike(Any, &words, 0, 0).unwrap();
                        assert_eq!(nr_cached, model.len() + pushed);
                        assert_eq!(pushed, count.min(8 - model.len()));
                        model.extend(&words[..pushed]);
                    }
                    1 => {
                        let mut out = vec![0; count];
                        let popped = magazine.pop(Any, slots::as_uninit(&mut out)).count;
                        assert_eq!(popped, count.min(model.len()));
                        let expected: Vec<u64> = model.split_off(model.len() - popped).into();
                        assert_eq!(&out[..popped], expected);
                    }
                    2 => {
                        let expected = last.take().or_else(|| model.pop_back());
                        assert_eq!(magazine.pop_one(), expected.unwrap_or(0));
                    }
                    3 => {
                        let limit = u32::try_from(count).unwrap();
                        let is_pushed = magazine.push_one_below(next, limit);
                        let nr_kept = model.len() + usize::from(last.is_some());
                        assert_eq!(is_pushed, nr_kept < count && (last.is_none() || model.len() < 8));
                        if is_pushed {
                            model.extend(last.replace(next));
                            next += 1;
                        }
                    }
                    4 => {
                        magazine.push_last();
                        if model.len() < 8 {
                            model.extend(last.take());
                        }
                    }
                    _ => {
                        let mut out = vec![0; count];
                        let peeked = magazine.peek_bottom(&mut out);
                        magazine.drop_bottom(peeked);
                        let expected: Vec<u64> = model.drain(..peeked).collect();
                        assert_eq!(&out[..peeked], expected);
                    }
                }
                assert_eq!(magazine.len(), model.len());
                assert_eq!(magazine.nr_blocks(), model.len() + usize::from(last.is_some()));
                assert!(magazine.span_checked().is_ok());
            }
        }
    }

    #[test]
    fn a_spill_and_a_push_between_two_looks_are_no_nonsense() {
        let store = Store::starting_at(0);
        store.top.store(8 + 3, Relaxed);
        let magazine = store.magazine();
        assert!(magazine.span_checked().is_err());
        assert_eq!(magazine.span_in_flight(3), Ok((0, 11)));
        assert!(magazine.span_in_flight(2).is_err());
    }

    #[test]
    fn scribbled_cursors_are_named_to_the_daemon_and_harmless_to_the_client() {
        let store = Store::starting_at(0);
        store.bottom.store(1, Relaxed);
        assert_eq!(
            store.magazine().span_checked(),
            Err(BadCursors { head: 1, tail: 0 })
        );
        assert_eq!(
            store.magazine().push_alike(Any, &[1, 2], 1, 0),
            Some((0, 8))
        );
        assert!(!store.magazine().push_one_below(1, u32::MAX));
        let mut out = [0; 20];
        assert_eq!(
            store.magazine().pop(Any, slots::as_uninit(&mut out)).count,
            8
        );
    }
}
