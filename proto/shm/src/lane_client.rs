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

use crate::control::ControlSegment;
use crate::doorbell::Doorbell;
use crate::lane_daemon::{grants_ring, magazine, window};
use crate::lane_stats::LaneStats;
use crate::layout::{CLASS_SLOTS, LANE_CLASSES, Lane};
use crate::raw::{Class, RawPage};
use crate::slots;
use crate::sync::{Acquire, Relaxed, SeqCst};
use crate::window::{NO_EPOCH, is_closed};

/// The most blocks that one take moves: all that a lane can hold of a class.
pub(crate) const TAKE_MAX: usize = 2048;
/// Entry of `class_of` for what no lane caches.
const NO_CLASS: u8 = u8::MAX;

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
    /// is shared and another thread uses it.
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
    /// Slots filled.
    pub count: usize,
    /// Why not all of them.
    pub miss: Option<Miss>,
}

impl Taken {
    /// What a take of nothing brings.
    pub(crate) const NOTHING_ASKED: Taken = Taken {
        count: 0,
        miss: None,
    };

    pub(crate) const fn nothing(miss: Miss) -> Taken {
        Taken {
            count: 0,
            miss: Some(miss),
        }
    }
}

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
        doorbell: Option<&'a Doorbell>,
    ) -> Option<LaneClient<'a>> {
        let mut class_of = [NO_CLASS; 64];
        for (key, entry) in (0..).zip(&mut class_of) {
            let class = Class::of(RawPage::of_class_key(key), terms.pageblock_order);
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
            doorbell,
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
        self.take_words(class, slots::as_uninit(RawPage::bits_of_mut(out)))
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
    /// stood in them is overwritten.
    #[inline]
    pub(crate) fn take_words(&self, class: Class, out: &mut [MaybeUninit<u64>]) -> Taken {
        if out.is_empty() {
            return Taken::NOTHING_ASKED;
        }
        let Some(lane) = self.lane else {
            return Taken::nothing(Miss::Detached);
        };
        let nr_asked = out.len();
        let out = &mut out[..nr_asked.min(TAKE_MAX)];
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

    /// One block from the grants, the magazine being empty.
    #[cold]
    fn take_granted_word(&self, class: Class) -> Result<NonZeroU64, Miss> {
        let mut word = [0];
        match self.take_words(class, slots::as_uninit(&mut word)).miss {
            Some(miss) => Err(miss),
            None => NonZeroU64::new(word[0]).ok_or(Miss::Empty),
        }
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

    /// The magazine that a word may go to, if there is one.
    #[inline(always)]
    pub(crate) fn cached_class(&self, lane: &Lane, word: u64) -> Option<Class> {
        let raw = RawPage::from_bits(word);
        let class = Class::from_index(usize::from(self.class_of[raw.class_key()]))?;
        let zones = lane.class(class.index()).settings.zones.load(Relaxed);
        (zones >> raw.zone() & 1 == 1).then_some(class)
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
