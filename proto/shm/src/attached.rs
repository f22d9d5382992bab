//! One attached client of this process: its segment, its zones, and the seats of its lanes.
//!
//! A *seat* is the client's side of one lane. All but the last lane's are given to threads, one
//! each, and parked between threads; the last is shared, under a lock that is tried for a bounded
//! time and never waited for. Seats lie in memory that a forked child finds wiped.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

use crate::client_handle::Registration;
use crate::control::ControlSegment;
use crate::doorbell::Doorbell;
use crate::handle_pool::HandlePool;
use crate::handles::Handles;
use crate::lane_client::{LaneClient, LaneTerms};
use crate::lane_free::free_into_map;
use crate::lane_stats::LaneStats;
use crate::mapping::{MapError, Mapping};
use crate::page::Page;
use crate::post::{HandOverError, Post, PostPlace};
use crate::raw::RawPage;
use crate::sync::{Acquire, Relaxed, Release};
use crate::ticket::Ticket;
use crate::zone_bytes::ZoneBytes;

/// How often the shared lane's lock is tried before the caller goes another way.
const SHARED_TRIES: u32 = 128;

/// The client's side of one lane, and whose it is.
#[repr(C, align(64))]
pub(crate) struct Seat {
    pub(crate) lane: LaneClient<'static>,
    /// The client; null in a forked child. It lives as long as the seat has a user.
    attached: AtomicPtr<Attached>,
    index: u32,
    /// Users in the one thread that has the seat: its table, and its local handles.
    nr_users: Cell<u32>,
}

/// One client of this process.
///
/// # Invariants
/// `control` and `doorbell` are not moved or replaced after `new`: the seats refer to them. The
/// value lives in an `Arc` from then on.
pub(crate) struct Attached {
    index: u32,
    control: ControlSegment,
    doorbell: Doorbell,
    zones: Vec<ZoneBytes>,
    /// `nr_lanes` of [`Seat`], wiped in a forked child.
    seats: Mapping,
    nr_lanes: u32,
    /// Lanes that no thread has; never more than its first capacity.
    parked: Mutex<Vec<u32>>,
    is_shared_taken: AtomicBool,
    is_gone: AtomicBool,
    /// Pages that came other than by grants.
    nr_brought: AtomicU32,
    /// Pages that left other than by being freed.
    nr_taken_away: AtomicU32,
    /// The handles in `control`; at hand, because each pin takes one.
    handles: Handles<'static>,
    /// Those that are free.
    pool: HandlePool,
    /// What maps and unmaps sections; says whether it could.
    follower: OnceLock<Follower>,
    /// The section epoch up to which it has.
    followed_epoch: AtomicU32,
    /// What is on its way to and from other clients.
    post: OnceLock<Post>,
}

/// Maps and unmaps what has come and gone; false if somebody else is at it.
pub(crate) type Follower = Box<dyn Fn() -> bool + Send + Sync>;

impl Attached {
    /// The seats are filled in by [`Attached::furnish`].
    pub(crate) fn new(index: u32, registration: Registration) -> Result<Arc<Attached>, MapError> {
        let Registration {
            control,
            zones,
            doorbell,
            pageblock_order,
            registered,
        } = registration;
        control.mark_registered(registered);
        let nr_lanes = control.geometry().nr_lanes;
        let seats = Attached::wiped_memory(nr_lanes as usize * size_of::<Seat>())?;
        let handles = control.handles();
        // SAFETY: the handles lie in the mapping of `control`, which is not moved, and which the
        // value holds for as long as it holds them. `handles()` gives them out for no longer than
        // itself is borrowed.
        let handles = unsafe { core::mem::transmute::<Handles<'_>, Handles<'static>>(handles) };
        let attached = Arc::new(Attached {
            index,
            control,
            doorbell,
            zones,
            seats,
            nr_lanes,
            parked: Mutex::new((0..nr_lanes.saturating_sub(1)).rev().collect()),
            is_shared_taken: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            nr_brought: AtomicU32::new(0),
            nr_taken_away: AtomicU32::new(0),
            handles,
            pool: HandlePool::new(),
            follower: OnceLock::new(),
            followed_epoch: AtomicU32::new(0),
            post: OnceLock::new(),
        });
        let terms = LaneTerms {
            client_index: index,
            pageblock_order,
            registered,
        };
        attached.furnish(terms);
        Ok(attached)
    }

    fn furnish(self: &Arc<Attached>, terms: LaneTerms) {
        let this = Arc::as_ptr(self);
        // SAFETY: the value lives in the `Arc`, at one place, as long as anybody may use a seat:
        // each user of a seat holds a reference of its own (`sit`), and the shared seat is
        // reached through `self` only. So "static" here is "as long as the seat is used".
        let unbound: &'static Attached = unsafe { &*this };
        for index in 0..self.nr_lanes {
            let (control, doorbell) = (&unbound.control, Some(&unbound.doorbell));
            let lane = LaneClient::new(control, index, terms, doorbell)
                .expect("the segment has as many lanes as its geometry says, and indices below 8");
            let seat = Seat {
                lane,
                attached: AtomicPtr::new(this.cast_mut()),
                index,
                nr_users: Cell::new(0),
            };
            // SAFETY: the place is inside `seats`, aligned, and nobody uses it yet.
            unsafe { self.seat_place(index).write(seat) };
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn control(&self) -> &ControlSegment {
        &self.control
    }

    pub(crate) fn set_follower(&self, follower: Follower) {
        // A second one is one too many: the first stays.
        let _ = self.follower.set(follower);
    }

    pub(crate) fn set_post(&self, place: PostPlace) {
        // As for the follower.
        let _ = self.post.set(Post::new(place));
    }

    pub(crate) fn post(&self) -> Option<&Post> {
        self.post.get()
    }

    /// Hands pages of this client over, in one parcel; the caller forgets them if it succeeds.
    pub(crate) fn hand_over(&self, pages: &[Page]) -> Result<Ticket, HandOverError> {
        let post = self.post().ok_or(HandOverError::Detached)?;
        post.hand_over(self, pages)
    }

    /// Rings if the daemon sleeps.
    pub(crate) fn ring(&self) {
        self.doorbell
            .ring_if_asleep(&self.control.header().sleeping);
    }

    /// First pfn of a zone of this client's, and the one behind its last.
    pub(crate) fn zone_span(&self, zone: u32) -> Option<(u64, u64)> {
        let zone = self.zones.iter().find(|of| of.index() == zone)?;
        Some((zone.start_pfn(), zone.start_pfn() + zone.nr_pages()))
    }

    /// Where the bytes of a block can be read, and how many they are; maps them if it must.
    pub(crate) fn to_read(&self, word: RawPage) -> Option<(usize, usize)> {
        let zone = self.zones.iter().find(|of| of.index() == word.zone())?;
        zone.to_read(word).ok()?
    }

    /// Maps and unmaps sections if some have come or gone: movable pages can be moved only to
    /// where they can be reached.
    #[inline]
    pub(crate) fn follow_sections(&self) {
        let epoch = self.control.section_epoch();
        if epoch != self.followed_epoch.load(Relaxed) {
            self.follow_sections_to(epoch);
        }
    }

    #[cold]
    fn follow_sections_to(&self, epoch: u32) {
        if self.follower.get().is_none_or(|follow| follow()) {
            self.followed_epoch.store(epoch, Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn handles(&self) -> Handles<'_> {
        self.handles
    }

    pub(crate) fn pool(&self) -> &HandlePool {
        &self.pool
    }

    pub(crate) fn zones(&self) -> &[ZoneBytes] {
        &self.zones
    }

    pub(crate) fn is_gone(&self) -> bool {
        // SYNC(attached.gone): pairs with `retire`.
        self.is_gone.load(Acquire)
    }

    /// Makes every lane refuse: a thread notices at its next operation.
    pub(crate) fn retire(&self) {
        // SYNC(attached.gone): pairs with `is_gone`.
        self.is_gone.store(true, Release);
        for index in 0..self.nr_lanes {
            // SAFETY: `furnish` has filled the place, and seats are never written as a whole
            // again. Other threads may be using it: `retire` touches only what is atomic.
            let lane = unsafe { &raw const (*self.seat_place(index)).lane };
            // SAFETY: as above; a shared reference to a lane may exist in two threads as long as
            // one of them does no more than call `retire`.
            unsafe { &*lane }.retire();
        }
    }

    /// Gives the calling thread a lane of its own, if one is parked.
    pub(crate) fn sit(&self) -> Option<&'static Seat> {
        let mut parked = match self.parked.try_lock() {
            Ok(parked) => parked,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A signal handler may have interrupted this very thread here.
            Err(TryLockError::WouldBlock) => return None,
        };
        let index = parked.pop()?;
        drop(parked);
        // SAFETY: `furnish` has filled the place; the index came from `parked`, so no thread has
        // the seat, and the lock has ordered its former user's accesses before ours. The count
        // raised below keeps it alive until `stand_up`.
        let seat = unsafe { &*self.seat_place(index) };
        // SAFETY: the pointer is that of the `Arc` this value lives in (`furnish`), which lives at
        // least as long as this borrow. Given back in `stand_up`.
        unsafe { Arc::increment_strong_count(seat.attached.load(Relaxed)) };
        seat.nr_users.set(1);
        self.lane_words(index)
            .client
            .thread
            .store(thread_id(), Relaxed);
        Some(seat)
    }

    /// The shared lane, if its lock can be had soon.
    pub(crate) fn try_share(&self) -> Option<SharedSeat<'_>> {
        for _ in 0..SHARED_TRIES {
            // SYNC(attached.shared): pairs with the release in `SharedSeat::drop`.
            if !self.is_shared_taken.swap(true, Acquire) {
                // SAFETY: `furnish` has filled the place; the last lane is never parked, so it is
                // reached only here, by the one thread that has the lock.
                let seat = unsafe { &*self.seat_place(self.nr_lanes - 1) };
                return Some(SharedSeat {
                    attached: self,
                    lane: &seat.lane,
                });
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Frees a page without any lane, from any thread.
    pub(crate) fn free_into_map(&self, raw: RawPage) {
        let lane = self.lane_words(self.nr_lanes - 1);
        free_into_map(&self.control, lane, &[raw.bits()], || self.ring());
    }

    pub(crate) fn count_brought(&self) {
        self.nr_brought.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_brought_by(&self, nr_blocks: usize) {
        self.nr_brought.fetch_add(modulo(nr_blocks), Relaxed);
    }

    pub(crate) fn count_taken_away(&self) {
        self.count_taken_away_by(1);
    }

    pub(crate) fn count_taken_away_by(&self, nr_blocks: usize) {
        // SYNC(attached.away): pairs with `nr_held`.
        self.nr_taken_away.fetch_add(modulo(nr_blocks), Release);
    }

    pub(crate) fn nr_brought(&self) -> u32 {
        self.nr_brought.load(Relaxed)
    }

    pub(crate) fn nr_taken_away(&self) -> u32 {
        // SYNC(attached.away): pairs with `count_taken_away`.
        self.nr_taken_away.load(Acquire)
    }

    /// The sum over all lanes.
    pub(crate) fn stats(&self) -> LaneStats {
        (0..self.nr_lanes)
            .map(|index| LaneStats::of(self.lane_words(index)))
            .fold(LaneStats::default(), LaneStats::plus)
    }

    /// Pages that this process holds of this client, exact when nothing is in flight; once it is
    /// gone never too low.
    pub(crate) fn nr_held(&self) -> u32 {
        let nr_taken_away = self.nr_taken_away();
        let nr_out = self.stats().nr_out();
        nr_out
            .wrapping_add(self.nr_brought())
            .wrapping_sub(nr_taken_away)
    }

    fn lane_words(&self, index: u32) -> &crate::layout::Lane {
        self.control
            .lane(index)
            .expect("the segment has as many lanes as its geometry says")
    }

    fn seat_place(&self, index: u32) -> *mut Seat {
        assert!(index < self.nr_lanes);
        let first = self.seats.base().cast::<Seat>().as_ptr();
        // SAFETY: `seats` was made `nr_lanes` seats long, and `index` is below that.
        unsafe { first.add(index as usize) }
    }
}

impl Seat {
    /// Whether the seat is one of this client's; never in a forked child.
    #[inline(always)]
    pub(crate) fn is_of(&self, attached: &Attached) -> bool {
        ptr::eq(self.attached.load(Relaxed), attached)
    }

    /// One more user in the thread that has the seat.
    pub(crate) fn join(&self) {
        self.nr_users.set(self.nr_users.get() + 1);
    }

    /// One user less in the thread that has the seat; the last one parks the lane for the next
    /// thread. In a forked child nothing happens. The seat must not be used after it, and what it
    /// gives back must be dropped where the seat is not borrowed any more: the seat may lie in it.
    #[must_use]
    pub(crate) fn stand_up(&self) -> Option<Arc<Attached>> {
        let attached = self.attached.load(Relaxed);
        if attached.is_null() {
            return None;
        }
        let nr_users = self.nr_users.get() - 1;
        self.nr_users.set(nr_users);
        if nr_users > 0 {
            return None;
        }
        // SAFETY: `sit` has raised the count for this user, so the client lives, and this is the
        // one time that it is given back.
        let attached = unsafe { Arc::from_raw(attached.cast_const()) };
        let words = attached.lane_words(self.index);
        words.client.thread.store(0, Relaxed);
        let parked = attached.parked.lock();
        parked
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.index);
        Some(attached)
    }
}

/// The shared lane under its lock.
pub(crate) struct SharedSeat<'a> {
    attached: &'a Attached,
    pub(crate) lane: &'a LaneClient<'static>,
}

impl Drop for SharedSeat<'_> {
    fn drop(&mut self) {
        // SYNC(attached.shared): pairs with the swap in `try_share`.
        self.attached.is_shared_taken.store(false, Release);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "counted modulo 2^32")]
fn modulo(count: usize) -> u32 {
    count as u32
}

/// This thread's id in the system, for people who look at lanes.
fn thread_id() -> u32 {
    if cfg!(miri) {
        return 1;
    }
    u32::try_from(nix::unistd::gettid().as_raw()).unwrap_or(0)
}
