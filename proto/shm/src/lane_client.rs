//! One lane as the client has it: take and put, without a system call, a lock or a locked
//! instruction.
//!
//! Allocation takes from the magazine, the rest from the grants; a free goes to the magazine,
//! else to `returns`, else to the client's free map: it never waits and never fails. Whatever
//! stands in the lane's words, no slot outside the lane is touched.
//!
//! It moves words, not pages: [`Page`](crate::page::Page) and the lanes of threads are made of
//! this in [`process`](crate::process). A lane belongs to one thread at a time, which is why this
//! type is not `Sync`; a signal handler of that thread that comes back in is noticed and refused.

use core::cell::Cell;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, AtomicU32};

use crate::control::ControlSegment;
use crate::doorbell::must_ring;
use crate::lane_daemon::{grants_ring, magazine, returns_ring, window};
use crate::layout::{CLASS_SLOTS, LANE_CLASSES, Lane, RETURNS};
use crate::raw::{Class, KEY_MASK, RawPage};
use crate::sync::{Acquire, Relaxed, SeqCst};
use crate::window::is_closed;

/// The most blocks that one operation moves: all that a lane can hold of a class.
const REACH_MAX: usize = 2048;
/// Words that a spill carries from the magazine to `returns` at once.
const SPILL_CHUNK: usize = 64;
/// An epoch that no open lane has.
const NO_EPOCH: u32 = 1;
/// Entry of `class_of` for what no lane caches; the layout's unused class record.
const NO_CLASS: u8 = 15;

/// Why a lane gave fewer blocks than were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Miss {
    /// It has no more.
    #[error("the lane has no more blocks of this class")]
    Empty,
    /// The daemon is taking it back, for the moment.
    #[error("the lane is being recalled")]
    Closed,
    /// An operation of the same lane is in flight: this came from a signal handler, or the lane
    /// is shared and others use it.
    #[error("the lane is in the middle of another operation")]
    Reentered,
    /// The client is gone, or this is a forked child.
    #[error("the lane belongs to no attached client of this process")]
    Detached,
}

/// What a take has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Taken {
    /// Slots filled, from the front.
    pub count: usize,
    /// Why not all of them.
    pub miss: Option<Miss>,
}

impl Taken {
    const fn nothing(miss: Miss) -> Taken {
        Taken {
            count: 0,
            miss: Some(miss),
        }
    }
}

/// How to ring the daemon.
pub struct Bell(Box<dyn Fn() + Send + Sync>);

impl Bell {
    /// A bell that rings by calling `ring`, which must neither wait nor panic.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Bell {
        Bell(Box::new(ring))
    }

    fn ring(&self) {
        (self.0)();
    }
}

impl core::fmt::Debug for Bell {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Bell")
    }
}

/// What a lane must know of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTerms {
    /// Index of the client in this process, as it stands in its page words.
    pub client_index: u32,
    /// Order of a pageblock.
    pub pageblock_order: u32,
    /// Whether this process is registered for the global membarrier.
    pub registered: bool,
}

/// What has gone through a lane so far, modulo 2^32, and what lies in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Blocks taken from grants.
    pub nr_granted: u32,
    /// Words put into `returns`.
    pub nr_returned: u32,
    /// Frees put into the free map.
    pub nr_mapped_frees: u32,
    /// Blocks that recalls took from magazines.
    pub nr_recalled: u32,
    /// Blocks asked for and not there.
    pub nr_wanted: u32,
    /// Blocks in magazines now.
    pub nr_cached: u32,
    /// Blocks in grants now.
    pub nr_waiting: u32,
}

/// One lane of one client, on the client's side.
///
/// All zeros are a valid value, which belongs to no client: what a forked child finds.
#[repr(C)]
pub struct LaneClient<'a> {
    lane: Option<&'a Lane>,
    segment: Option<&'a ControlSegment>,
    bell: Option<&'a Bell>,
    /// Epoch last seen. Atomic because retiring a lane spoils it from another thread.
    epoch: AtomicU32,
    retired: AtomicBool,
    registered: bool,
    client_index: u8,
    returns_head_seen: Cell<u32>,
    grants_tail_seen: [Cell<u32>; CLASS_SLOTS],
    /// Class index by the six bits of order and migratetype.
    class_of: [u8; 64],
}

impl<'a> LaneClient<'a> {
    /// Takes the client's side of a lane, if the segment has one of that index. There may be one
    /// such value per lane at a time; a later one goes on where the earlier one stopped.
    pub fn new(
        segment: &'a ControlSegment,
        index: u32,
        terms: LaneTerms,
        bell: Option<&'a Bell>,
    ) -> Option<LaneClient<'a>> {
        let mut class_of = [NO_CLASS; 64];
        for (key, entry) in (0..).zip(&mut class_of) {
            let class = Class::of(RawPage::from_bits(key << 32), terms.pageblock_order);
            let index = class
                .map(Class::index)
                .filter(|&index| index < LANE_CLASSES);
            *entry = index
                .and_then(|index| u8::try_from(index).ok())
                .unwrap_or(NO_CLASS);
        }
        Some(LaneClient {
            lane: Some(segment.lane(index)?),
            segment: Some(segment),
            bell,
            epoch: AtomicU32::new(NO_EPOCH),
            retired: AtomicBool::new(false),
            registered: terms.registered,
            client_index: u8::try_from(terms.client_index).ok()?,
            returns_head_seen: Cell::new(0),
            grants_tail_seen: [const { Cell::new(0) }; CLASS_SLOTS],
            class_of,
        })
    }

    /// Fills `out` from the front with blocks of a class.
    pub fn take_raw(&self, class: Class, out: &mut [RawPage]) -> Taken {
        self.take_words(class, RawPage::bits_of_mut(out))
    }

    /// Frees blocks of any class, in as few moves as their order allows; empty words are skipped.
    pub fn put_raw(&self, pages: &[RawPage]) {
        self.put_words(RawPage::bits_of(pages), &mut |strays| self.put_home(strays));
    }

    /// Takes one block.
    #[inline]
    pub fn take_one_raw(&self, class: Class) -> Result<RawPage, Miss> {
        self.take_word(class)
            .map(|word| RawPage::from_bits(word.get()))
    }

    /// Frees one block of this client.
    #[inline]
    pub fn put_one_raw(&self, page: RawPage) {
        self.put_word(page.bits());
    }

    /// Says that `count` blocks of a class were asked for and not there, and rings.
    pub fn want(&self, class: Class, count: u32) {
        let Some(lane) = self.lane else { return };
        let wanted = &lane.class(class.index()).client.wanted;
        wanted.store(wanted.load(Relaxed).wrapping_add(count), Relaxed);
        self.ring_if_asleep();
    }

    /// What has gone through the lane, and what lies in it.
    pub fn stats(&self) -> LaneStats {
        self.lane.map_or(LaneStats::default(), LaneStats::of)
    }

    /// Fills `out` from the front; what stood in it is overwritten.
    #[inline]
    pub(crate) fn take_words(&self, class: Class, out: &mut [u64]) -> Taken {
        if out.is_empty() {
            return Taken {
                count: 0,
                miss: None,
            };
        }
        let Some(lane) = self.lane else {
            return Taken::nothing(Miss::Detached);
        };
        let nr_asked = out.len();
        let out = &mut out[..nr_asked.min(REACH_MAX)];
        if let Err(miss) = self.enter(lane, reach_of(out.len())) {
            self.leave_refused(lane, miss);
            return Taken::nothing(miss);
        }
        let mut count = magazine(lane, class).pop(out);
        if count < out.len() {
            let tail_seen = &self.grants_tail_seen[class.index() & (CLASS_SLOTS - 1)];
            count += grants_ring(lane, class).pop(tail_seen, &mut out[count..]);
            window(lane).leave();
            self.ring_if_low(lane, class);
        } else {
            window(lane).leave();
        }
        Taken {
            count,
            miss: if count < nr_asked {
                Some(Miss::Empty)
            } else {
                None
            },
        }
    }

    /// Takes one block's word.
    #[inline]
    pub(crate) fn take_word(&self, class: Class) -> Result<NonZeroU64, Miss> {
        let Some(lane) = self.lane else {
            return Err(Miss::Detached);
        };
        if let Err(miss) = self.enter(lane, 1) {
            self.leave_refused(lane, miss);
            return Err(miss);
        }
        let word = magazine(lane, class).pop_one();
        window(lane).leave();
        match NonZeroU64::new(word) {
            Some(word) => Ok(word),
            None => self.take_granted_word(class),
        }
    }

    /// Frees one block of this client.
    #[inline]
    pub(crate) fn put_word(&self, word: u64) {
        let Some(lane) = self.lane else { return };
        let Some(class) = self.cached_class(lane, word) else {
            return self.put_home(&[word]);
        };
        if let Err(miss) = self.enter(lane, 1) {
            self.leave_refused(lane, miss);
            return self.put_home(&[word]);
        }
        let magazine = magazine(lane, class);
        let nr_pushed = magazine.push(&[word]);
        let nr_cached = magazine.len();
        window(lane).leave();
        if nr_pushed == 0 {
            self.put_over(lane, class, &[word]);
        } else if nr_cached > self.high(lane, class) {
            self.put_over(lane, class, &[]);
        }
    }

    /// Frees blocks, run by run of one class and zone; empty words are skipped, runs of another
    /// client go to `stray`.
    #[inline]
    pub(crate) fn put_words(&self, words: &[u64], stray: &mut dyn FnMut(&[u64])) {
        let mut rest = words;
        while let Some(&first) = rest.first() {
            let run = if are_alike(rest, first) {
                rest
            } else {
                alike_prefix(rest, first)
            };
            rest = &rest[run.len()..];
            if RawPage::from_bits(first).client() == u32::from(self.client_index) {
                self.put_run(run, first);
            } else if first != 0 {
                stray(run);
            }
        }
    }

    /// Frees blocks that are alike.
    #[inline]
    fn put_run(&self, run: &[u64], first: u64) {
        let Some(lane) = self.lane else { return };
        let Some(class) = self.cached_class(lane, first) else {
            if first != 0 {
                self.put_home(run);
            }
            return;
        };
        if let Err(miss) = self.enter(lane, reach_of(run.len())) {
            self.leave_refused(lane, miss);
            return self.put_home(run);
        }
        let magazine = magazine(lane, class);
        let nr_pushed = magazine.push(run);
        let nr_cached = magazine.len();
        window(lane).leave();
        if nr_pushed < run.len() || nr_cached > self.high(lane, class) {
            self.put_over(lane, class, &run[nr_pushed..]);
        }
    }

    /// Enters the window. Refused as [`Miss::Reentered`], it was not entered; refused otherwise,
    /// it was, and the lane's contents must be left alone.
    #[inline(always)]
    fn enter(&self, lane: &Lane, reach: u32) -> Result<(), Miss> {
        let window = window(lane);
        if window.is_entered() {
            return Err(Miss::Reentered);
        }
        let epoch = window.enter(reach, self.registered);
        if epoch == self.epoch.load(Relaxed) {
            Ok(())
        } else {
            self.look_closer(lane, epoch)
        }
    }

    /// The epoch is another than last time: the lane is closed, or was emptied meanwhile, or this
    /// is the first look, or this value was retired.
    #[cold]
    fn look_closer(&self, lane: &Lane, epoch: u32) -> Result<(), Miss> {
        // Frees go to `returns` whatever the lane's state is.
        // SYNC(ring.head): pairs with the daemon's settling.
        let returns_head = lane.settled.returns_head.load(Acquire);
        self.returns_head_seen.set(returns_head);
        if is_closed(epoch) {
            return Err(Miss::Closed);
        }
        for (index, seen) in self.grants_tail_seen.iter().enumerate() {
            // As if the ring were empty: the next take looks at the daemon's cursor.
            seen.set(lane.class(index).client.grants_head.load(Relaxed));
        }
        self.epoch.store(epoch, Relaxed);
        // SYNC(lane.retired): pairs with the fence in `retire`: one of the two sees the other.
        core::sync::atomic::fence(SeqCst);
        if self.retired.load(Relaxed) {
            self.epoch.store(NO_EPOCH, Relaxed);
            return Err(Miss::Detached);
        }
        Ok(())
    }

    #[inline(always)]
    fn leave_refused(&self, lane: &Lane, miss: Miss) {
        if miss != Miss::Reentered {
            window(lane).leave();
        }
    }

    /// Makes every later operation miss as [`Miss::Detached`]; frees go to the free map. May be
    /// called from any thread: it touches only atomics that the lane's thread never caches.
    pub fn retire(&self) {
        self.retired.store(true, Relaxed);
        // SYNC(lane.retired): pairs with the fence in `look_closer`.
        core::sync::atomic::fence(SeqCst);
        self.epoch.store(NO_EPOCH, Relaxed);
    }

    /// Whether this value was retired.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    /// The magazine that a word may go to, if there is one.
    #[inline(always)]
    fn cached_class(&self, lane: &Lane, word: u64) -> Option<Class> {
        let raw = RawPage::from_bits(word);
        let class = Class::from_index(usize::from(self.class_of[raw.class_key()]))?;
        let zones = lane.class(class.index()).settings.zones.load(Relaxed);
        (zones >> raw.zone() & 1 == 1).then_some(class)
    }

    /// Blocks above which a magazine spills, as the daemon says.
    #[inline(always)]
    fn high(&self, lane: &Lane, class: Class) -> usize {
        lane.class(class.index()).settings.high.load(Relaxed) as usize
    }

    /// One block from the grants, the magazine being empty.
    #[cold]
    fn take_granted_word(&self, class: Class) -> Result<NonZeroU64, Miss> {
        let mut word = [0];
        match self.take_words(class, &mut word).miss {
            Some(miss) => Err(miss),
            None => NonZeroU64::new(word[0]).ok_or(Miss::Empty),
        }
    }

    /// Spills what the magazine has above `high`, and makes room for `rest`.
    #[cold]
    fn put_over(&self, lane: &Lane, class: Class, rest: &[u64]) {
        let settings = &lane.class(class.index()).settings;
        let magazine = magazine(lane, class);
        let target = self
            .high(lane, class)
            .min(magazine.slots.len().saturating_sub(rest.len()));
        let nr_above = magazine.len().saturating_sub(target);
        let nr_spilled = nr_above
            .max(settings.batch.load(Relaxed) as usize)
            .min(magazine.len());
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
        let mut nr_left = count;
        while nr_left > 0 {
            let nr_peeked = magazine.peek_bottom(&mut chunk[..nr_left.min(SPILL_CHUNK)]);
            let nr_moved = returns.push(&self.returns_head_seen, &chunk[..nr_peeked]);
            magazine.drop_bottom(nr_moved);
            nr_left -= nr_moved;
            if nr_moved < SPILL_CHUNK {
                break;
            }
        }
    }

    /// Frees words past the magazine: into `returns`, else into the free map. Good in any state
    /// of the lane; the window is entered only to keep a signal handler out of `returns`.
    #[cold]
    pub(crate) fn put_home(&self, words: &[u64]) {
        let Some(lane) = self.lane else { return };
        let mut nr_pushed = 0;
        match self.enter(lane, 1) {
            Ok(()) | Err(Miss::Closed) => {
                nr_pushed = returns_ring(lane).push(&self.returns_head_seen, words);
                window(lane).leave();
            }
            Err(miss) => self.leave_refused(lane, miss),
        }
        let over = &words[nr_pushed..];
        if let Some(segment) = self.segment {
            free_into_map(segment, lane, over);
        }
        if !over.is_empty() || self.are_returns_half_full(lane) {
            self.ring_if_asleep();
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

    /// Rings if the grants of a class have fallen below their low mark.
    #[inline]
    fn ring_if_low(&self, lane: &Lane, class: Class) {
        let words = lane.class(class.index());
        let tail_seen = &self.grants_tail_seen[class.index() & (CLASS_SLOTS - 1)];
        let low_mark = words.settings.low_mark.load(Relaxed);
        let head = words.client.grants_head.load(Relaxed);
        if tail_seen.get().wrapping_sub(head) < low_mark {
            // SYNC(ring.tail): pairs with the daemon's granting. The lane may have been recalled
            // since the window was left: then the difference is nonsense, and so is the ring.
            let tail = words.granted.grants_tail.load(Acquire);
            if tail.wrapping_sub(head) < low_mark {
                self.ring_if_asleep();
            }
        }
    }

    /// Rings if the daemon sleeps; the caller has left work for it.
    #[cold]
    fn ring_if_asleep(&self) {
        let (Some(segment), Some(bell)) = (self.segment, self.bell) else {
            return;
        };
        if must_ring(&segment.header().sleeping) {
            bell.ring();
        }
    }
}

impl LaneStats {
    pub(crate) fn of(lane: &Lane) -> LaneStats {
        let mut stats = LaneStats {
            nr_returned: lane.client.returns_tail.load(Relaxed),
            nr_mapped_frees: lane.client.nr_mapped_frees.load(Relaxed),
            ..LaneStats::default()
        };
        for words in &lane.classes {
            let head = words.client.grants_head.load(Relaxed);
            let (bottom, top) = (
                words.client.mag_bottom.load(Relaxed),
                words.client.mag_top.load(Relaxed),
            );
            stats.nr_granted = stats.nr_granted.wrapping_add(head);
            stats.nr_wanted = stats
                .nr_wanted
                .wrapping_add(words.client.wanted.load(Relaxed));
            let recalled = words.settings.nr_recalled.load(Relaxed);
            stats.nr_recalled = stats.nr_recalled.wrapping_add(recalled);
            stats.nr_cached = stats.nr_cached.wrapping_add(top.wrapping_sub(bottom));
            let waiting = words.granted.grants_tail.load(Relaxed).wrapping_sub(head);
            stats.nr_waiting = stats.nr_waiting.wrapping_add(waiting);
        }
        stats
    }
}

/// Frees words through the client's free map and counts them on a lane.
pub(crate) fn free_into_map(segment: &ControlSegment, lane: &Lane, words: &[u64]) {
    let map = segment.free_map();
    for &word in words {
        if word != 0 && map.set(RawPage::from_bits(word).pfn()) {
            // A locked addition, for any thread and signal handler may come by here.
            lane.client.nr_mapped_frees.fetch_add(1, Relaxed);
        }
    }
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

/// A number of blocks as a reach; at least 1, and all that a lane holds at most.
#[inline(always)]
fn reach_of(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}
