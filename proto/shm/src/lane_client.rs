//! One lane as the client has it: taking, without a system call, a lock or a locked instruction.
//!
//! Allocation takes from the magazine, the rest from the grants. The other half, freeing, is in
//! `lane_free.rs`. Whatever stands in the lane's words, no slot outside the lane is touched.
//!
//! It moves words, not pages: [`Page`](crate::page::Page) and the lanes of threads are made of
//! this in [`process`](crate::process). A lane belongs to one thread at a time, which is why this
//! type is not `Sync`; a signal handler of that thread that comes back in is noticed and refused.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, AtomicU32};

use crate::block_copy::{Any, Width};
use crate::control::ControlSegment;
use crate::doorbell::Doorbell;
use crate::lane_daemon::{grants_ring, magazine, window};
use crate::lane_stats::LaneStats;
use crate::layout::{CLASS_SLOTS, ClassClientLine, ClassWords, LANE_CLASSES, Lane};
use crate::magazine::Magazine;
use crate::raw::{Class, RawPage};
use crate::slots;
use crate::sync::{Acquire, AtomicU64, Relaxed, SeqCst};
use crate::window::{NO_EPOCH, Window, is_closed};

pub use crate::taken::{Miss, Taken};

/// The most blocks that one take moves: all that a lane can hold of a class.
pub(crate) const TAKE_MAX: usize = 2048;
/// Entry of `class_of` for what no lane caches: the class record that is never filled.
const NO_CLASS: u8 = 15;
/// Entries of `class_of`: 4 bits of order, 2 of migratetype, 3 of zone.
const NR_KEYS: usize = 512;

/// What a lane must know of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTerms {
    /// Index of the client in this process, as it stands in its page words; below 8.
    pub client_index: u32,
    /// Order of a pageblock.
    pub pageblock_order: u32,
    /// Whether this process is registered for the global membarrier.
    pub registered: bool,
}

/// One lane of one client, on the client's side.
///
/// All zeros are a valid value, which belongs to no client: what a forked child finds.
#[repr(C)]
pub struct LaneClient<'a> {
    pub(crate) lane: Option<&'a Lane>,
    pub(crate) segment: Option<&'a ControlSegment>,
    pub(crate) doorbell: Option<&'a Doorbell>,
    /// Epoch last seen. Atomic because [`LaneClient::retire`] spoils it from another thread.
    epoch: AtomicU32,
    retired: AtomicBool,
    registered: bool,
    pub(crate) client_index: u8,
    pub(crate) returns_head_seen: Cell<u32>,
    grants_tail_seen: [Cell<u32>; CLASS_SLOTS],
    pageblock_order: u8,
    /// Class index by the bits of order, migratetype and zone, as of the last look at the lane's
    /// settings.
    class_of: [Cell<u8>; NR_KEYS],
    /// What the fast paths need of each class, in one place; none where only the slow ones may go:
    /// where no class is, where a real fence is needed, and in a forked child.
    pub(crate) fast: [Option<FastClass<'a>>; 16],
}

/// The words of one class that taking from and putting to its magazine need.
#[derive(Clone, Copy)]
pub(crate) struct FastClass<'a> {
    pub lane: &'a Lane,
    pub words: &'a ClassWords,
    /// The magazine's; never empty.
    pub slots: &'a [AtomicU64],
}

impl<'a> FastClass<'a> {
    #[inline(always)]
    pub fn window(&self) -> Window<'a> {
        window(self.lane)
    }

    #[inline(always)]
    pub fn magazine(&self) -> Magazine<'a> {
        let ClassClientLine {
            mag_bottom,
            mag_top,
            mag_last,
            ..
        } = &self.words.client;
        Magazine {
            bottom: mag_bottom,
            top: mag_top,
            last: mag_last,
            slots: self.slots,
        }
    }
}

impl<'a> LaneClient<'a> {
    /// Takes the client's side of a lane, if the segment has one of that index. There may be one
    /// such value per lane at a time; a later one goes on where the earlier one stopped.
    pub fn new(
        segment: &'a ControlSegment,
        index: u32,
        terms: LaneTerms,
        doorbell: Option<&'a Doorbell>,
    ) -> Option<LaneClient<'a>> {
        let lane = segment.lane(index)?;
        let fast = core::array::from_fn(|index| {
            (terms.registered && index < LANE_CLASSES).then(|| FastClass {
                lane,
                words: lane.class(index),
                slots: lane.magazine(index),
            })
        });
        let client = LaneClient {
            lane: Some(lane),
            segment: Some(segment),
            doorbell,
            epoch: AtomicU32::new(NO_EPOCH),
            retired: AtomicBool::new(false),
            registered: terms.registered,
            client_index: u8::try_from(terms.client_index).ok()?,
            returns_head_seen: Cell::new(0),
            grants_tail_seen: [const { Cell::new(0) }; CLASS_SLOTS],
            pageblock_order: u8::try_from(terms.pageblock_order).ok()?,
            class_of: [const { Cell::new(NO_CLASS) }; NR_KEYS],
            fast,
        };
        client.learn_classes(lane);
        Some(client)
    }

    /// Fills `out` from the front with blocks of a class.
    pub fn take_raw(&self, class: Class, out: &mut [RawPage]) -> Taken {
        self.take_words(Any, class, slots::as_uninit(RawPage::bits_of_mut(out)))
            .0
    }

    /// Takes one block.
    #[inline]
    pub fn take_one_raw(&self, class: Class) -> Result<RawPage, Miss> {
        self.take_word(class)
            .map(|word| RawPage::from_bits(word.get()))
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

    /// Fills `out` from the front. The words before `count` are written when it returns; what
    /// stood in them is overwritten. Also says whether one of them is 0.
    #[inline(always)]
    pub(crate) fn take_words(
        &self,
        width: impl Width,
        class: Class,
        out: &mut [MaybeUninit<u64>],
    ) -> (Taken, bool) {
        let nr_asked = out.len();
        let out = &mut out[..nr_asked.min(TAKE_MAX)];
        let mut nr_there = 0;
        let mut has_zero = false;
        if let Some(fast) = &self.fast[class.index() & 15]
            && self.try_enter(fast.lane, reach_of(out.len()))
        {
            let cached = fast.magazine().pop(width, out);
            fast.window().leave();
            (nr_there, has_zero) = (cached.count, cached.has_zero);
        }
        if nr_there == nr_asked {
            return (
                Taken {
                    count: nr_asked,
                    miss: None,
                },
                has_zero,
            );
        }
        self.take_rest(class, out, nr_there, nr_asked, has_zero)
    }

    /// The same, `nr_there` words being there already: from the magazine and the grants.
    #[inline(never)]
    fn take_rest(
        &self,
        class: Class,
        out: &mut [MaybeUninit<u64>],
        nr_there: usize,
        nr_asked: usize,
        mut has_zero: bool,
    ) -> (Taken, bool) {
        let mut count = nr_there;
        let miss = match self.take_granted(class, &mut out[nr_there..], &mut count, &mut has_zero) {
            Ok(()) => (count < nr_asked).then_some(Miss::Empty),
            Err(miss) => Some(miss),
        };
        (Taken { count, miss }, has_zero)
    }

    /// Takes from the magazine what is left there, the rest from the grants.
    fn take_granted(
        &self,
        class: Class,
        out: &mut [MaybeUninit<u64>],
        count: &mut usize,
        has_zero: &mut bool,
    ) -> Result<(), Miss> {
        let lane = self.lane.ok_or(Miss::Detached)?;
        if let Err(miss) = self.enter(lane, reach_of(out.len())) {
            self.leave_refused(lane, miss);
            return Err(miss);
        }
        let mut cached = magazine(lane, class).pop(Any, out);
        if cached.count < out.len()
            && let Some(word) = magazine(lane, class).pop_last()
        {
            out[cached.count].write(word.get());
            cached.count += 1;
        }
        let rest = &mut out[cached.count..];
        let tail_seen = &self.grants_tail_seen[class.index() & (CLASS_SLOTS - 1)];
        let granted = grants_ring(lane, class).pop(tail_seen, rest);
        window(lane).leave();
        *count += cached.count + granted.count;
        *has_zero |= cached.has_zero | granted.has_zero;
        self.ring_if_low(lane, class);
        Ok(())
    }

    /// Takes one block's word.
    #[inline(always)]
    pub(crate) fn take_word(&self, class: Class) -> Result<NonZeroU64, Miss> {
        match self.take_word_at_hand(class) {
            Some(word) => Ok(word),
            None => self.take_word_slowly(class),
        }
    }

    /// Takes one block's word out of the magazine if that goes without more ado.
    #[inline(always)]
    pub(crate) fn take_word_at_hand(&self, class: Class) -> Option<NonZeroU64> {
        let fast = self.fast[class.index() & 15].as_ref()?;
        if !self.try_enter(fast.lane, 1) {
            return None;
        }
        let word = fast.magazine().pop_one();
        fast.window().leave();
        NonZeroU64::new(word)
    }

    /// One block's word where the fast way has come to nothing: from the grants, mostly.
    #[cold]
    #[inline(never)]
    fn take_word_slowly(&self, class: Class) -> Result<NonZeroU64, Miss> {
        let mut word = [0];
        match self.take_words(Any, class, slots::as_uninit(&mut word)) {
            (
                Taken {
                    miss: Some(miss), ..
                },
                _,
            ) => Err(miss),
            (Taken { miss: None, .. }, _) => NonZeroU64::new(word[0]).ok_or(Miss::Empty),
        }
    }

    /// Enters the window if nothing stands against it, and else has not entered it. For a process
    /// that is registered for the barrier.
    #[inline(always)]
    pub(crate) fn try_enter(&self, lane: &Lane, reach: u32) -> bool {
        let window = window(lane);
        if window.is_entered() {
            return false;
        }
        if window.enter(reach, true) == self.epoch.load(Relaxed) {
            return true;
        }
        window.leave();
        false
    }

    /// Enters the window. Refused as [`Miss::Reentered`], it was not entered; refused otherwise,
    /// it was, and the lane's magazines and grants must be left alone.
    #[inline(always)]
    pub(crate) fn enter(&self, lane: &Lane, reach: u32) -> Result<(), Miss> {
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

    /// Leaves after a refusal.
    #[inline(always)]
    pub(crate) fn leave_refused(&self, lane: &Lane, miss: Miss) {
        if miss != Miss::Reentered {
            window(lane).leave();
        }
    }

    /// The epoch is another than last time: the lane is closed, or was emptied meanwhile, or this
    /// is the first look, or this value was retired.
    #[cold]
    fn look_closer(&self, lane: &Lane, epoch: u32) -> Result<(), Miss> {
        // Frees go to `returns` whatever the lane's state is.
        // SYNC(ring.head): pairs with the daemon's settling.
        self.returns_head_seen
            .set(lane.settled.returns_head.load(Acquire));
        let is_closed = is_closed(epoch);
        if !is_closed {
            for (index, seen) in self.grants_tail_seen.iter().enumerate() {
                // As if the ring were empty: the next take looks at the daemon's cursor.
                seen.set(lane.class(index).client.grants_head.load(Relaxed));
            }
            self.learn_classes(lane);
            self.epoch.store(epoch, Relaxed);
        }
        // SYNC(lane.retired): pairs with the fence in `retire`: one of the two sees the other.
        core::sync::atomic::fence(SeqCst);
        if self.is_retired() {
            self.epoch.store(NO_EPOCH, Relaxed);
            return Err(Miss::Detached);
        }
        if is_closed { Err(Miss::Closed) } else { Ok(()) }
    }

    /// Makes every later operation miss as [`Miss::Detached`]. May be called from any thread: it
    /// touches only what is atomic.
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

    /// Looks up which blocks may lie in which magazine: that changes only with a recall, so the
    /// fast paths take it from a table.
    fn learn_classes(&self, lane: &Lane) {
        for (key, entry) in (0..).zip(&self.class_of) {
            let raw = RawPage::of_class_key(key);
            let class = Class::of(raw, u32::from(self.pageblock_order));
            let index = class.map(Class::index).filter(|&index| {
                index < LANE_CLASSES
                    && lane.class(index).settings.zones.load(Relaxed) >> raw.zone() & 1 == 1
            });
            entry.set(
                index
                    .and_then(|index| u8::try_from(index).ok())
                    .unwrap_or(NO_CLASS),
            );
        }
    }

    /// The class record of a word, by its order, migratetype and zone.
    #[inline(always)]
    pub(crate) fn class_index(&self, word: u64) -> usize {
        usize::from(self.class_of[RawPage::from_bits(word).class_key()].get())
    }

    /// The class whose magazine a word may go to, if there is one.
    #[inline(always)]
    pub(crate) fn class(&self, word: u64) -> Option<Class> {
        Class::from_index(self.class_index(word))
    }

    /// Rings if the grants of a class have fallen below their low mark.
    #[inline]
    fn ring_if_low(&self, lane: &Lane, class: Class) {
        let words = lane.class(class.index());
        let tail_seen = &self.grants_tail_seen[class.index() & (CLASS_SLOTS - 1)];
        let low_mark = words.settings.low_mark.load(Relaxed);
        let head = words.client.grants_head.load(Relaxed);
        if tail_seen.get().wrapping_sub(head) < low_mark {
            // The lane may have been recalled since the window was left: then the difference is
            // nonsense, and at worst one ring too few, which the next take makes good.
            // SYNC(ring.tail): pairs with the daemon's granting.
            let tail = words.granted.grants_tail.load(Acquire);
            if tail.wrapping_sub(head) < low_mark {
                self.ring_if_asleep();
            }
        }
    }

    /// Rings if the daemon sleeps; the caller has left work for it.
    #[cold]
    pub(crate) fn ring_if_asleep(&self) {
        if let (Some(segment), Some(doorbell)) = (self.segment, self.doorbell) {
            doorbell.ring_if_asleep(&segment.header().sleeping);
        }
    }
}

/// A number of blocks as a reach; at least 1.
#[inline(always)]
pub(crate) fn reach_of(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}
