//! Single-producer single-consumer ring of page words, over borrowed cursors and slots.
//!
//! It knows no lanes. What lies in it are runs ([`word_run`](crate::word_run)); cursors count their
//! blocks, modulo 2^32, and are never masked, so that `tail - head` is the number of blocks in it.
//! Each side has two faces:
//!
//! * the client's ([`Ring::push`], [`Ring::pop`]): its own cursor is the shared word, the peer's
//!   is remembered and looked at again only when the remembered one runs out;
//! * the daemon's ([`Ring::push_checked`], [`Ring::pop_checked`]): its own cursor is private and
//!   the shared word only a publication; the peer's is a claim, checked at each read.

use core::cell::Cell;
use core::mem::MaybeUninit;

use crate::slots::Copied;
use crate::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use crate::word_run::{self, WordRun};

/// A ring, wherever its words live.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    /// Words taken so far; written by the consumer.
    pub head: &'a AtomicU32,
    /// Words put so far; written by the producer.
    pub tail: &'a AtomicU32,
    /// The slots; their number is a power of two.
    pub slots: &'a [AtomicU64],
}

/// Two cursors that cannot belong to a ring of that capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCursors {
    /// The consumer's cursor.
    pub head: u32,
    /// The producer's cursor.
    pub tail: u32,
}

impl Ring<'_> {
    /// Number of slots.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        // Capacities are constants of the layout, far below 2^32.
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Takes as many words as there are, up to `out.len()`; of a run that is not taken whole the
    /// rest is left as a run.
    ///
    /// `tail_seen` is the tail as it was last looked at.
    #[inline(always)]
    pub fn pop(&self, tail_seen: &Cell<u32>, out: &mut [MaybeUninit<u64>]) -> Copied {
        let head = self.head.load(Relaxed);
        let mut nr_there = self.bounded(tail_seen.get().wrapping_sub(head));
        if nr_there < out.len() {
            // SYNC(ring.tail): the slots before the tail have been written.
            tail_seen.set(self.tail.load(Acquire));
            nr_there = self.bounded(tail_seen.get().wrapping_sub(head));
        }
        let count = nr_there.min(out.len());
        let mut has_zero = false;
        let (mut at, mut rest) = (head, &mut out[..count]);
        let end = advanced(head, nr_there);
        while !rest.is_empty() {
            let run = word_run::load(self.slots, at, end.wrapping_sub(at));
            let nr_taken = advanced(0, rest.len()).min(run.nr_blocks);
            let (here, behind) = rest.split_at_mut(nr_taken as usize);
            for (place, word) in here.iter_mut().zip(run.words()) {
                place.write(word.bits());
            }
            has_zero |= run.first.bits() == 0;
            at = at.wrapping_add(nr_taken);
            if nr_taken < run.nr_blocks {
                word_run::store(self.slots, at, run.behind(nr_taken));
            }
            rest = behind;
        }
        // SYNC(ring.head): the slots before it have been read and may be written again.
        self.head.store(at, Release);
        Copied { count, has_zero }
    }

    /// Room for words, looking at the peer's cursor only if that seen last leaves less than
    /// `count`.
    #[inline]
    pub fn room_for(&self, head_seen: &Cell<u32>, count: usize) -> usize {
        let tail = self.tail.load(Relaxed);
        let nr_free = self.room(tail, head_seen.get());
        if nr_free >= count {
            return nr_free;
        }
        // SYNC(ring.head): the slots before the head have been read.
        head_seen.set(self.head.load(Acquire));
        self.room(tail, head_seen.get())
    }

    /// Puts as many of `words` as there is room for; returns how many.
    ///
    /// `head_seen` is the head as it was last looked at.
    #[inline]
    pub fn push(&self, head_seen: &Cell<u32>, words: &[u64]) -> usize {
        let count = self.room_for(head_seen, words.len()).min(words.len());
        let (mut at, mut rest) = (self.tail.load(Relaxed), &words[..count]);
        while let Some(run) = word_run::leading(rest) {
            word_run::store(self.slots, at, run);
            at = at.wrapping_add(run.nr_blocks);
            rest = &rest[run.nr_blocks as usize..];
        }
        // SYNC(ring.tail): publishes the slots just written.
        self.tail.store(at, Release);
        count
    }

    /// Words in the ring as the daemon sees them, the peer's cursor being checked.
    pub fn depth_checked(&self, head: u32, tail: u32) -> Result<u32, BadCursors> {
        let used = tail.wrapping_sub(head);
        if used > self.capacity() {
            return Err(BadCursors { head, tail });
        }
        Ok(used)
    }

    /// Puts as many of the runs' blocks as there is room for and publishes them; returns how many.
    ///
    /// `tail` is the daemon's own cursor; the head is the client's claim. `keep` is told the new
    /// cursor before the client can see it.
    pub fn push_checked(
        &self,
        tail: &mut u32,
        runs: impl Iterator<Item = WordRun>,
        keep: impl FnOnce(u32),
    ) -> Result<usize, BadCursors> {
        // SYNC(ring.head): the slots before the head have been read.
        let used = self.depth_checked(self.head.load(Acquire), *tail)?;
        let mut nr_free = self.capacity() - used;
        let before = *tail;
        for run in runs {
            let nr_put = run.nr_blocks.min(nr_free);
            if nr_put == 0 {
                break;
            }
            word_run::store(self.slots, *tail, run.front(nr_put));
            *tail = tail.wrapping_add(nr_put);
            nr_free -= nr_put;
        }
        keep(*tail);
        // SYNC(ring.tail): publishes the slots just written.
        self.tail.store(*tail, Release);
        Ok(tail.wrapping_sub(before) as usize)
    }

    /// Hands each run there to `take`, then publishes that they have been read; returns how
    /// many blocks. At most one capacity of blocks, however fast the client puts more.
    ///
    /// `head` is the daemon's own cursor; the tail is the client's claim. `keep` is told the new
    /// cursor when all runs have been taken, and before the client can write over them.
    pub fn pop_checked(
        &self,
        head: &mut u32,
        take: &mut dyn FnMut(WordRun),
        keep: impl FnOnce(u32),
    ) -> Result<usize, BadCursors> {
        // SYNC(ring.tail): the slots before the tail have been written.
        let used = self.depth_checked(*head, self.tail.load(Acquire))?;
        let end = head.wrapping_add(used);
        word_run::load_all(self.slots, *head, end).for_each(take);
        *head = end;
        keep(*head);
        // SYNC(ring.head): the slots before it have been read and may be written again.
        self.head.store(*head, Release);
        Ok(used as usize)
    }

    /// A difference of cursors as a number of words: nonsense (a scribbled word of one's own)
    /// counts as nothing.
    #[inline(always)]
    fn bounded(&self, difference: u32) -> usize {
        let count = difference as usize;
        if count > self.slots.len() { 0 } else { count }
    }

    #[inline(always)]
    fn room(&self, tail: u32, head: u32) -> usize {
        self.slots
            .len()
            .saturating_sub(tail.wrapping_sub(head) as usize)
    }
}

/// A cursor moved on by `count` words, which is at most a capacity.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "cursors count modulo 2^32")]
pub(crate) fn advanced(cursor: u32, count: usize) -> u32 {
    cursor.wrapping_add(count as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::raw::RawPage;
    use crate::slots;
    use core::array::from_fn;

    /// Words that are no page's are runs of one each.
    fn singles(words: &[u64]) -> impl Iterator<Item = WordRun> + '_ {
        words
            .iter()
            .map(|&word| WordRun::of_one(RawPage::from_bits(word)))
    }

    struct Store {
        head: AtomicU32,
        tail: AtomicU32,
        slots: [AtomicU64; 4],
    }

    impl Store {
        fn starting_at(cursor: u32) -> Store {
            Store {
                head: AtomicU32::new(cursor),
                tail: AtomicU32::new(cursor),
                slots: from_fn(|_| AtomicU64::new(0)),
            }
        }

        fn ring(&self) -> Ring<'_> {
            Ring {
                head: &self.head,
                tail: &self.tail,
                slots: &self.slots,
            }
        }
    }

    #[test]
    fn grants_arrive_in_order_across_the_wrap_of_the_cursors() {
        let store = Store::starting_at(u32::MAX - 5);
        let (mut tail, seen) = (u32::MAX - 5, Cell::new(u32::MAX - 5));
        let mut expected = 0;
        for round in 0..10u64 {
            let words = [3 * round, 3 * round + 1, 3 * round + 2];
            assert_eq!(
                store
                    .ring()
                    .push_checked(&mut tail, singles(&words), |_| ()),
                Ok(3)
            );
            let mut out = [0; 4];
            assert_eq!(store.ring().pop(&seen, slots::as_uninit(&mut out)).count, 3);
            for word in &out[..3] {
                assert_eq!(*word, expected);
                expected += 1;
            }
        }
    }

    #[test]
    fn returns_stop_at_a_full_ring_and_go_on_after_it_was_read() {
        let store = Store::starting_at(7);
        let (mut head, seen) = (7, Cell::new(7));
        assert_eq!(store.ring().push(&seen, &[1, 2, 3]), 3);
        assert_eq!(store.ring().push(&seen, &[4, 5, 6]), 1);
        assert_eq!(store.ring().push(&seen, &[5]), 0);
        let mut got = Vec::new();
        assert_eq!(
            store
                .ring()
                .pop_checked(&mut head, &mut |run| got.push(run.first.bits()), |_| ()),
            Ok(4)
        );
        assert_eq!(got, [1, 2, 3, 4]);
        assert_eq!(store.ring().push(&seen, &[5]), 1);
    }

    #[test]
    fn absurd_cursors_of_the_peer_are_named() {
        let store = Store::starting_at(0);
        store.tail.store(5, Relaxed);
        let answer = store
            .ring()
            .pop_checked(&mut 0, &mut |_| unreachable!(), |_| ());
        assert_eq!(answer, Err(BadCursors { head: 0, tail: 5 }));
        store.head.store(1, Relaxed);
        let answer = store.ring().push_checked(&mut 0, singles(&[1]), |_| ());
        assert_eq!(answer, Err(BadCursors { head: 1, tail: 0 }));
    }

    #[test]
    fn absurd_cursors_of_ones_own_do_nothing() {
        let store = Store::starting_at(0);
        store.tail.store(99, Relaxed);
        assert_eq!(
            store
                .ring()
                .pop(&Cell::new(77), slots::as_uninit(&mut [0; 2]))
                .count,
            0
        );
        assert_eq!(store.ring().push(&Cell::new(1), &[1]), 0);
    }
}
