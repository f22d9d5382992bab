//! One lane as the client has it: freeing, which never waits and never fails.
//!
//! A free goes to the magazine, else to `returns`, else to the client's free map. Above `high` the
//! magazine spills its oldest blocks into `returns`. The other half, taking, is in
//! [`lane_client`](crate::lane_client).

use crate::block_copy::{Any, Width};
use crate::control::ControlSegment;
use crate::lane_client::{LaneClient, Miss, reach_of};
use crate::lane_daemon::{magazine, returns_ring, window};
use crate::layout::{Lane, RETURNS};
use crate::raw::{Class, KEY_MASK, RawPage};
use crate::sync::{Acquire, Relaxed, Release};
use crate::word_run::runs_of;

/// Words in `returns` with which a notice rings: each may stand for a parcel's pages, which their
/// sender is to have again soon.
const NOTICES_BEFORE_RING: usize = 16;

/// Words that a spill carries from the magazine to `returns` at once.
const SPILL_CHUNK: usize = 64;
/// Index of the class that nearly all blocks are of.
const PAGE: usize = 0;
const _: () = assert!(Class::PAGE.index() == PAGE);

impl LaneClient<'_> {
    /// Frees blocks of any class, in as few moves as their order allows; empty words are skipped.
    pub fn put_raw(&self, pages: &[RawPage]) {
        let words = RawPage::bits_of(pages);
        self.put_words(Any, words, &mut |strays| self.put_home(strays));
    }

    /// Frees one block of this client.
    #[inline]
    pub fn put_one_raw(&self, page: RawPage) {
        if !self.put_word(page.bits()) {
            self.put_home(&[page.bits()]);
        }
    }

    /// Frees one block of this client; false if the lane was retired, and nothing was done then.
    #[inline(always)]
    pub(crate) fn put_word(&self, word: u64) -> bool {
        self.keep_word(word) || self.put_run(&[word], word)
    }

    /// Keeps one block of this client in the lane if that goes without more ado.
    #[inline(always)]
    pub(crate) fn keep_word(&self, word: u64) -> bool {
        // A branch for the usual class, though a look into the table would do: it is guessed, and
        // so nothing waits for the word to come out of where it was stored just before.
        match self.class_index(word) {
            PAGE => self.keep_word_of(PAGE, word),
            index => self.keep_word_unusual(index, word),
        }
    }

    /// The same for a block of the usual class; others are not kept.
    #[inline(always)]
    pub(crate) fn keep_usual_word(&self, word: u64) -> bool {
        self.class_index(word) == PAGE && self.keep_word_of(PAGE, word)
    }

    #[inline(always)]
    fn keep_word_of(&self, class_index: usize, word: u64) -> bool {
        let Some(fast) = &self.fast[class_index & 15] else {
            return false;
        };
        if !self.try_enter(fast.lane, 1) {
            return false;
        }
        let high = fast.words.settings.high.load(Relaxed);
        let is_kept = fast.magazine().push_one_below(word, high);
        fast.window().leave();
        is_kept
    }

    /// Out of line, so that it stays a branch.
    #[inline(never)]
    fn keep_word_unusual(&self, class_index: usize, word: u64) -> bool {
        self.keep_word_of(class_index, word)
    }

    /// Frees blocks, run by run of one class and zone; empty words are skipped. Runs of another
    /// client, and all of them once the lane is retired, go to `elsewhere`.
    #[inline(always)]
    pub(crate) fn put_words(
        &self,
        width: impl Width,
        words: &[u64],
        elsewhere: &mut dyn FnMut(&[u64]),
    ) {
        let Some(&first) = words.first() else { return };
        let nr_put = if self.is_ours(first) {
            self.put_front(width, words, first)
        } else {
            0
        };
        if nr_put < words.len() {
            self.put_unlike(&words[nr_put..], elsewhere);
        }
    }

    /// The same where the first run has not been all.
    #[cold]
    #[inline(never)]
    fn put_unlike(&self, words: &[u64], elsewhere: &mut dyn FnMut(&[u64])) {
        let mut rest = words;
        while let Some(&first) = rest.first() {
            let nr_put = if self.is_ours(first) {
                self.put_front(Any, rest, first)
            } else {
                0
            };
            if nr_put == 0 {
                let run = alike_prefix(rest, first);
                if first != 0 {
                    elsewhere(run);
                }
                rest = &rest[run.len()..];
            } else {
                rest = &rest[nr_put..];
            }
        }
    }

    /// Whether a word is a page of this client.
    #[inline(always)]
    pub(crate) fn is_ours(&self, word: u64) -> bool {
        word != 0 && RawPage::from_bits(word).client() == u32::from(self.client_index)
    }

    /// Frees the blocks at the front that are alike; says how many, 0 if the lane was retired.
    /// Mostly all are, and then it takes one pass over them.
    #[inline(always)]
    fn put_front(&self, width: impl Width, words: &[u64], first: u64) -> usize {
        // A branch for the same reason as in `keep_word`.
        match self.class_index(first) {
            PAGE => self.put_front_of(width, PAGE, words, first),
            index => self.put_front_unusual(index, words, first),
        }
    }

    /// Out of line, so that it stays a branch.
    #[inline(never)]
    fn put_front_unusual(&self, class_index: usize, words: &[u64], first: u64) -> usize {
        self.put_front_of(Any, class_index, words, first)
    }

    #[inline(always)]
    fn put_front_of(
        &self,
        width: impl Width,
        class_index: usize,
        words: &[u64],
        first: u64,
    ) -> usize {
        if let Some(fast) = &self.fast[class_index & 15]
            && self.try_enter(fast.lane, reach_of(words.len()))
        {
            let pushed = fast.magazine().push_alike(width, words, first, KEY_MASK);
            let nr_beside = fast.magazine().nr_beside();
            fast.window().leave();
            if let Some((nr_pushed, nr_cached)) = pushed
                && nr_pushed == words.len()
                && nr_cached + nr_beside <= fast.words.settings.high.load(Relaxed) as usize
            {
                return nr_pushed;
            }
            let nr_pushed = pushed.map_or(0, |(nr_pushed, _)| nr_pushed);
            return self.put_front_slowly(words, first, nr_pushed);
        }
        self.put_front_slowly(words, first, 0)
    }

    /// The same where `nr_pushed` blocks lie in the magazine already, and it is too full, or the
    /// blocks are not all alike, or the fast way is not open.
    #[cold]
    #[inline(never)]
    fn put_front_slowly(&self, words: &[u64], first: u64, nr_pushed: usize) -> usize {
        let run = alike_prefix(words, first);
        let is_put = if nr_pushed == 0 {
            self.put_run(run, first)
        } else {
            if let (Some(lane), Some(class)) = (self.lane, self.class(first)) {
                self.put_over(lane, class, &run[nr_pushed..]);
            }
            true
        };
        if is_put { run.len() } else { 0 }
    }

    /// Frees blocks of this client that are alike; false if the lane was retired, and nothing
    /// was done then.
    #[cold]
    #[inline(never)]
    fn put_run(&self, run: &[u64], first: u64) -> bool {
        let Some(lane) = self.lane else { return false };
        let Some(class) = self.class(first) else {
            return self.put_uncached(lane, run);
        };
        // One more: the block beside the magazine, which is pushed first.
        if let Err(miss) = self.enter(lane, reach_of(run.len() + 1)) {
            return self.put_refused(lane, miss, run);
        }
        magazine(lane, class).push_last();
        let pushed = magazine(lane, class).push_alike(Any, run, first, KEY_MASK);
        window(lane).leave();
        let (nr_pushed, nr_cached) = pushed.unwrap_or_default();
        if nr_pushed < run.len() || nr_cached > high(lane, class) as usize {
            self.put_over(lane, class, &run[nr_pushed..]);
        }
        true
    }

    /// Spills what the magazine has above `high`, and makes room for `rest`.
    #[cold]
    fn put_over(&self, lane: &Lane, class: Class, rest: &[u64]) {
        let magazine = magazine(lane, class);
        let high = high(lane, class) as usize;
        let target = high.min(magazine.slots.len()).saturating_sub(rest.len());
        let nr_above = magazine.nr_blocks().saturating_sub(target);
        let batch = lane.class(class.index()).settings.batch.load(Relaxed) as usize;
        let nr_spilled = nr_above.max(batch).min(magazine.len());
        let mut rest = rest;
        if nr_above > 0 {
            match self.enter(lane, reach_of(nr_spilled + rest.len())) {
                Ok(()) => {
                    self.spill(lane, class, nr_spilled);
                    let nr_wanted = high.saturating_sub(magazine.nr_blocks()).min(rest.len());
                    let pushed = magazine.push_alike(Any, &rest[..nr_wanted], 0, 0);
                    rest = &rest[pushed.map_or(0, |(nr_pushed, _)| nr_pushed)..];
                    window(lane).leave();
                }
                Err(miss) => self.leave_refused(lane, miss),
            }
        }
        self.put_home(rest);
    }

    /// Moves up to `count` of the oldest blocks into `returns`, as many as it has room for.
    fn spill(&self, lane: &Lane, class: Class, count: usize) {
        let (magazine, returns) = (magazine(lane, class), returns_ring(lane));
        let mut chunk = [0; SPILL_CHUNK];
        let mut nr_left = count.min(returns.room_for(&self.returns_head_seen, count));
        while nr_left > 0 {
            let nr_moved = magazine.peek_bottom(&mut chunk[..nr_left.min(SPILL_CHUNK)]);
            if nr_moved == 0 {
                break;
            }
            // Out of the one before into the other: whoever counts both, the returns first,
            // counts no block twice.
            magazine.drop_bottom(nr_moved);
            returns.push(&self.returns_head_seen, &chunk[..nr_moved]);
            nr_left -= nr_moved;
        }
    }

    /// Whether `returns` has room for one more word; looks at the daemon's cursor only if it must.
    pub(crate) fn has_room_for_notice(&self) -> bool {
        let lane = self.lane.filter(|_| !self.is_retired());
        lane.is_some_and(|lane| returns_ring(lane).room_for(&self.returns_head_seen, 1) > 0)
    }

    /// Puts a notice into `returns`; false if there is no room, or another operation of the lane is
    /// in flight, or it was retired.
    pub(crate) fn put_notice(&self, notice: RawPage) -> bool {
        let Some(lane) = self.lane else { return false };
        match self.enter(lane, 1) {
            Ok(()) | Err(Miss::Closed) => {
                let nr_put = returns_ring(lane).push(&self.returns_head_seen, &[notice.bits()]);
                window(lane).leave();
                if self.are_returns_deep(lane, NOTICES_BEFORE_RING) {
                    self.ring_if_asleep();
                }
                nr_put > 0
            }
            Err(miss) => {
                self.leave_refused(lane, miss);
                false
            }
        }
    }

    /// Frees blocks of this client past the magazine: into `returns`, else into the free map.
    /// Good in any state of the lane.
    #[cold]
    pub(crate) fn put_home(&self, words: &[u64]) {
        let Some(lane) = self.lane else { return };
        if !self.put_uncached(lane, words) {
            self.put_in_map(lane, words);
        }
    }

    /// The same, but false if the lane was retired, and nothing was done then.
    #[cold]
    fn put_uncached(&self, lane: &Lane, words: &[u64]) -> bool {
        match self.enter(lane, 1) {
            Ok(()) => self.put_entered(lane, words),
            Err(miss) => return self.put_refused(lane, miss, words),
        }
        true
    }

    /// What to do with frees whose entry was refused; false if the lane was retired.
    #[cold]
    fn put_refused(&self, lane: &Lane, miss: Miss, words: &[u64]) -> bool {
        match miss {
            Miss::Closed => self.put_entered(lane, words),
            _ if self.is_retired() => {
                self.leave_refused(lane, miss);
                return false;
            }
            _ => {
                self.leave_refused(lane, miss);
                self.put_in_map(lane, words);
            }
        }
        true
    }

    /// Puts into `returns` from inside the window, closed or not (the window keeps a signal
    /// handler out of it), leaves, and puts what is left into the free map.
    fn put_entered(&self, lane: &Lane, words: &[u64]) {
        let nr_pushed = returns_ring(lane).push(&self.returns_head_seen, words);
        window(lane).leave();
        if self.are_returns_deep(lane, RETURNS / 2) {
            self.ring_if_asleep();
        }
        self.put_in_map(lane, &words[nr_pushed..]);
    }

    fn put_in_map(&self, lane: &Lane, words: &[u64]) {
        if words.is_empty() {
            return;
        }
        if let Some(segment) = self.segment {
            free_into_map(segment, lane, words, || self.ring_if_asleep());
        }
    }

    /// Whether `returns` asks for the daemon, having so many words; looks at its cursor only if it
    /// seems so.
    fn are_returns_deep(&self, lane: &Lane, nr_words: usize) -> bool {
        let ring = returns_ring(lane);
        let tail = ring.tail.load(Relaxed);
        if (tail.wrapping_sub(self.returns_head_seen.get()) as usize) < nr_words {
            return false;
        }
        // SYNC(ring.head): pairs with the daemon's settling.
        self.returns_head_seen.set(ring.head.load(Acquire));
        tail.wrapping_sub(self.returns_head_seen.get()) as usize >= nr_words
    }
}

/// Frees words through the client's free map, calls `ring`, and counts them on a lane, from any
/// thread. The count comes last: with it, the caller has touched the segment for the last time.
pub(crate) fn free_into_map(
    segment: &ControlSegment,
    lane: &Lane,
    words: &[u64],
    ring: impl FnOnce(),
) {
    let map = segment.free_map();
    let mut nr_set = 0u32;
    for run in runs_of(RawPage::of_bits(words)) {
        // An empty word is no page.
        if run.first.order() == 0 && run.first.bits() != 0 {
            nr_set = nr_set.wrapping_add(map.set_all(run.first.pfn(), run.nr_blocks));
        } else if run.first.bits() != 0 {
            let is_set = run.words().filter(|word| map.set(word.pfn()));
            nr_set = is_set.fold(nr_set, |nr, _| nr.wrapping_add(1));
        }
    }
    ring();
    // SYNC(lane.counts): pairs with `LaneStats::of`.
    lane.client.nr_mapped_frees.fetch_add(nr_set, Release);
}

/// Blocks above which a magazine spills, as the daemon says.
#[inline(always)]
fn high(lane: &Lane, class: Class) -> u32 {
    lane.class(class.index()).settings.high.load(Relaxed)
}

/// The words at the front that are alike.
#[cold]
fn alike_prefix(words: &[u64], first: u64) -> &[u64] {
    let count = words
        .iter()
        .take_while(|&&word| (word ^ first) & KEY_MASK == 0)
        .count();
    &words[..count]
}
