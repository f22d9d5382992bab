//! One lane as the client has it: freeing, which never waits and never fails.
//!
//! A free goes to the magazine, else to `returns`, else to the client's free map. Above `high` the
//! magazine spills its oldest blocks into `returns`. The other half, taking, is in
//! [`lane_client`](crate::lane_client).

use crate::control::ControlSegment;
use crate::lane_client::{LaneClient, Miss, reach_of};
use crate::lane_daemon::{magazine, returns_ring, window};
use crate::layout::{Lane, RETURNS};
use crate::raw::{Class, KEY_MASK, RawPage};
use crate::sync::{Acquire, Relaxed, Release};

/// Words that a spill carries from the magazine to `returns` at once.
const SPILL_CHUNK: usize = 64;

impl LaneClient<'_> {
    /// Frees blocks of any class, in as few moves as their order allows; empty words are skipped.
    pub fn put_raw(&self, pages: &[RawPage]) {
        self.put_words(RawPage::bits_of(pages), &mut |strays| self.put_home(strays));
    }

    /// Frees one block of this client.
    #[inline]
    pub fn put_one_raw(&self, page: RawPage) {
        if !self.put_word(page.bits()) {
            self.put_home(&[page.bits()]);
        }
    }

    /// Frees one block of this client; false if the lane was retired, and nothing was done then.
    #[inline]
    pub(crate) fn put_word(&self, word: u64) -> bool {
        let Some(lane) = self.lane else { return false };
        let Some(class) = self.cached_class(lane, word) else {
            return self.put_uncached(lane, &[word]);
        };
        if let Err(miss) = self.enter(lane, 1) {
            return self.put_refused(lane, miss, &[word]);
        }
        let magazine = magazine(lane, class);
        let nr_pushed = magazine.push_one(word);
        let nr_cached = magazine.len();
        window(lane).leave();
        if nr_pushed == 0 {
            self.put_over(lane, class, &[word]);
        } else if nr_cached > high(lane, class) {
            self.put_over(lane, class, &[]);
        }
        true
    }

    /// Frees blocks, run by run of one class and zone; empty words are skipped. Runs of another
    /// client, and all of them once the lane is retired, go to `elsewhere`.
    #[inline]
    pub(crate) fn put_words(&self, words: &[u64], elsewhere: &mut dyn FnMut(&[u64])) {
        let mut rest = words;
        while let Some(&first) = rest.first() {
            let run = if are_alike(rest, first) {
                rest
            } else {
                alike_prefix(rest, first)
            };
            rest = &rest[run.len()..];
            let is_ours = RawPage::from_bits(first).client() == u32::from(self.client_index);
            if first != 0 && !(is_ours && self.put_run(run, first)) {
                elsewhere(run);
            }
        }
    }

    /// Frees blocks of this client that are alike; false if the lane was retired, and nothing
    /// was done then.
    #[inline]
    fn put_run(&self, run: &[u64], first: u64) -> bool {
        let Some(lane) = self.lane else { return false };
        let Some(class) = self.cached_class(lane, first) else {
            return self.put_uncached(lane, run);
        };
        if let Err(miss) = self.enter(lane, reach_of(run.len())) {
            return self.put_refused(lane, miss, run);
        }
        let magazine = magazine(lane, class);
        let nr_pushed = magazine.push(run);
        let nr_cached = magazine.len();
        window(lane).leave();
        if nr_pushed < run.len() || nr_cached > high(lane, class) {
            self.put_over(lane, class, &run[nr_pushed..]);
        }
        true
    }

    /// Spills what the magazine has above `high`, and makes room for `rest`.
    #[cold]
    fn put_over(&self, lane: &Lane, class: Class, rest: &[u64]) {
        let magazine = magazine(lane, class);
        let target = high(lane, class).min(magazine.slots.len().saturating_sub(rest.len()));
        let nr_above = magazine.len().saturating_sub(target);
        let batch = lane.class(class.index()).settings.batch.load(Relaxed) as usize;
        let nr_spilled = nr_above.max(batch).min(magazine.len());
        let mut rest = rest;
        if nr_above > 0 {
            match self.enter(lane, reach_of(nr_spilled + rest.len())) {
                Ok(()) => {
                    self.spill(lane, class, nr_spilled);
                    rest = &rest[magazine.push(rest)..];
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
        if self.are_returns_half_full(lane) {
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

    /// Whether `returns` asks for the daemon; looks at its cursor only if it seems so.
    fn are_returns_half_full(&self, lane: &Lane) -> bool {
        let ring = returns_ring(lane);
        let tail = ring.tail.load(Relaxed);
        if (tail.wrapping_sub(self.returns_head_seen.get()) as usize) < RETURNS / 2 {
            return false;
        }
        // SYNC(ring.head): pairs with the daemon's settling.
        self.returns_head_seen.set(ring.head.load(Acquire));
        tail.wrapping_sub(self.returns_head_seen.get()) as usize >= RETURNS / 2
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
    for &word in words {
        let is_set = word != 0 && map.set(RawPage::from_bits(word).pfn());
        nr_set = nr_set.wrapping_add(u32::from(is_set));
    }
    ring();
    // SYNC(lane.counts): pairs with `LaneStats::of`.
    lane.client.nr_mapped_frees.fetch_add(nr_set, Release);
}

/// Blocks above which a magazine spills, as the daemon says.
#[inline(always)]
fn high(lane: &Lane, class: Class) -> usize {
    lane.class(class.index()).settings.high.load(Relaxed) as usize
}

/// Whether all words have the order, migratetype, zone and client of `first`: one pass without
/// a branch.
#[inline(always)]
fn are_alike(words: &[u64], first: u64) -> bool {
    words
        .iter()
        .fold(0, |differences, word| differences | (word ^ first))
        & KEY_MASK
        == 0
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
