//! What the client library holds of an attached client: handles through which pages come and go.
//!
//! A [`ClientHandle`] may be used from any thread; it finds the calling thread's lane. A
//! [`LocalLane`] is that lane, for the thread that asked for it: the shortest way. Both only move
//! pages between lanes and the caller; waiting, calls and policy are the library's.

use std::sync::Arc;

use crate::attached::{Attached, Seat, SharedSeat};
use crate::control::ControlSegment;
use crate::doorbell::Doorbell;
use crate::lane_client::{LaneClient, Miss, Taken};
use crate::lane_stats::LaneStats;
use crate::page::Page;
use crate::parcel::Parcel;
use crate::post::{ClaimError, HandOverError, Post, PostPlace};
use crate::process;
use crate::raw::{Class, RawPage};
use crate::shared_page::SharedPage;
use crate::thread_lane::{own_seat, take_seat};
use crate::ticket::{Done, Notice, Ticket};
use crate::zone_bytes::ZoneBytes;

/// What an attach has brought, to be entered into the process's table.
#[derive(Debug)]
pub struct Registration {
    /// The control segment.
    pub control: ControlSegment,
    /// The zones that this client may use.
    pub zones: Vec<ZoneBytes>,
    /// How to ring the daemon.
    pub doorbell: Doorbell,
    /// Order of a pageblock.
    pub pageblock_order: u32,
    /// Whether this process is registered for the global membarrier.
    pub registered: bool,
}

/// Counters of a client in this process, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// The sum over its lanes.
    pub lanes: LaneStats,
    /// Pages that came by calls and claims, modulo 2^32.
    pub nr_brought: u32,
    /// Pages that left other than by being freed, modulo 2^32.
    pub nr_taken_away: u32,
    /// Pages in this process's hands; exact when no other thread takes or frees.
    pub nr_held: u32,
}

/// An attached client; clones are the same one, and it is gone with the last of them.
#[derive(Clone)]
pub struct ClientHandle {
    inner: Arc<Handle>,
}

struct Handle {
    attached: Arc<Attached>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if process::is_child() {
            // The parent's: nothing of it may be touched, unmapped or counted down here.
            core::mem::forget(self.attached.clone());
            return;
        }
        process::retire(&self.attached);
        crate::step::reached("detach.retired");
    }
}

/// The lane that serves an operation.
enum Served<'a> {
    Own(&'a LaneClient<'static>),
    Shared(SharedSeat<'a>),
    Not(Miss),
}

/// The operations that every handle has, over whichever lane serves it.
macro_rules! lane_operations {
    () => {
        /// Takes one block.
        #[inline]
        pub fn take_one(&self, class: Class) -> Result<Page, Miss> {
            let at_hand = self
                .own_lane()
                .and_then(|lane| lane.take_page_at_hand(class));
            match at_hand {
                Some(page) => Ok(page),
                None => self.take_one_slowly(class),
            }
        }

        #[cold]
        #[inline(never)]
        fn take_one_slowly(&self, class: Class) -> Result<Page, Miss> {
            match self.own_lane() {
                Some(lane) => lane.take_page(class),
                None => self.served_slowly().lane()?.take_page(class),
            }
        }

        /// Fills the empty ones of `slots` with blocks of a class, from the front, and leaves the
        /// others untouched.
        #[inline]
        pub fn fill(&self, class: Class, slots: &mut [Option<Page>]) -> Taken {
            if slots.is_empty() {
                return Taken::NOTHING_ASKED;
            }
            match self.own_lane() {
                Some(lane) => lane.fill_pages(class, slots),
                None => self.served_slowly().fill(class, slots),
            }
        }

        /// Appends up to `count` blocks to a list, at most 2048 at a time.
        #[inline]
        pub fn take_into(&self, class: Class, count: usize, list: &mut Vec<Page>) -> Taken {
            if count == 0 {
                return Taken::NOTHING_ASKED;
            }
            match self.own_lane() {
                Some(lane) => lane.take_pages_into(class, count, list),
                None => self.served_slowly().take_into(class, count, list),
            }
        }

        /// Frees one block, of whichever client of this process.
        #[inline]
        pub fn put(&self, page: Page) {
            match self.own_lane() {
                Some(lane) => lane.put_page(page),
                None => drop(page),
            }
        }

        /// Frees what is in the slots, of whichever clients, and leaves them empty.
        #[inline]
        pub fn put_slots(&self, slots: &mut [Option<Page>]) {
            match self.own_lane() {
                Some(lane) => lane.put_slots(slots),
                None => self.served_slowly().put_slots(slots),
            }
        }

        /// Frees what is in the list, of whichever clients, and leaves it empty.
        #[inline]
        pub fn put_list(&self, list: &mut Vec<Page>) {
            match self.own_lane() {
                Some(lane) => lane.put_list(list),
                None => self.served_slowly().put_list(list),
            }
        }

        /// Says that `count` blocks of a class were asked for and not there, and rings.
        pub fn want(&self, class: Class, count: u32) {
            match self.own_lane() {
                Some(lane) => lane.want(class, count),
                None => self.served_slowly().want(class, count),
            }
        }
    };
}

/// The same over a lane that is not simply the thread's own.
impl Served<'_> {
    fn lane(&self) -> Result<&LaneClient<'static>, Miss> {
        match self {
            Served::Own(lane) => Ok(lane),
            Served::Shared(shared) => Ok(shared.lane),
            Served::Not(miss) => Err(*miss),
        }
    }

    fn fill(&self, class: Class, slots: &mut [Option<Page>]) -> Taken {
        match self.lane() {
            Ok(lane) => lane.fill_pages(class, slots),
            Err(_) if slots.iter().all(Option::is_some) => Taken::NOTHING_ASKED,
            Err(miss) => Taken::nothing(miss),
        }
    }

    fn take_into(&self, class: Class, count: usize, list: &mut Vec<Page>) -> Taken {
        match self.lane() {
            Ok(lane) => lane.take_pages_into(class, count, list),
            Err(miss) => Taken::nothing(miss),
        }
    }

    fn put_slots(&self, slots: &mut [Option<Page>]) {
        match self.lane() {
            Ok(lane) => lane.put_slots(slots),
            Err(_) => slots.fill_with(|| None),
        }
    }

    fn put_list(&self, list: &mut Vec<Page>) {
        match self.lane() {
            Ok(lane) => lane.put_list(list),
            Err(_) => list.clear(),
        }
    }

    fn want(&self, class: Class, count: u32) {
        if let Ok(lane) = self.lane() {
            lane.want(class, count);
        }
    }
}

impl ClientHandle {
    pub(crate) fn new(attached: Arc<Attached>) -> ClientHandle {
        ClientHandle {
            inner: Arc::new(Handle { attached }),
        }
    }

    lane_operations!();

    /// The calling thread's lane, or the shared one if the thread gets none.
    pub fn local(&self) -> LocalLane {
        let seat = if process::is_child() {
            None
        } else {
            take_seat(&self.inner.attached)
        };
        if let Some(seat) = seat {
            seat.join();
        }
        LocalLane {
            seat,
            client: self.clone(),
        }
    }

    /// The page of a word that came in a reply of the daemon's, unless it lies in no zone of this
    /// client.
    ///
    /// This makes a page out of a number, and so is for the client library alone: custody of the
    /// block must have passed to this client by that reply, once. It is a safe function because
    /// it trusts the daemon no more than taking from a lane does, where words that the daemon
    /// wrote become pages in the same way; whoever can reply for the daemon owns the zone.
    #[doc(hidden)]
    pub fn adopt(&self, raw: RawPage) -> Option<Page> {
        let attached = &self.inner.attached;
        let raw = raw.with_client(attached.index());
        raw.migratetype()?;
        process::find_bytes(raw)?;
        attached.count_brought();
        raw.non_zero().map(Page::of_word)
    }

    /// Says how to map and unmap sections that come and go; false is "somebody else is at it". It
    /// is called when movable pages come or are let go of, from whatever thread does so, as long as
    /// pages of this client live; the first one told stays.
    pub fn follow_sections_by(&self, follow: impl Fn() -> bool + Send + Sync + 'static) {
        self.inner.attached.set_follower(Box::new(follow));
    }

    /// Lets this client hand pages over and claim them; the first place told stays.
    pub fn set_post(&self, place: PostPlace) {
        self.inner.attached.set_post(place);
    }

    /// Hands the pages of the list over, in one parcel, and leaves it empty.
    ///
    /// # Errors
    /// [`HandOverError`]; the list is as it was.
    pub fn hand_over(&self, list: &mut Vec<Page>) -> Result<Ticket, HandOverError> {
        if process::is_child() {
            return Err(HandOverError::Forked);
        }
        let attached = &self.inner.attached;
        let ticket = attached.hand_over(list)?;
        // They are on their way, and no longer this process's.
        list.drain(..).for_each(core::mem::forget);
        Ok(ticket)
    }

    /// Claims a parcel.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing has changed.
    pub fn claim(&self, ticket: Ticket) -> Result<Parcel, ClaimError> {
        Parcel::claim(self, ticket)
    }

    /// Claims a parcel whose pages are this client's own at once, and appends them to the list;
    /// returns how many.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing has changed.
    pub fn claim_pages(&self, ticket: Ticket, list: &mut Vec<Page>) -> Result<usize, ClaimError> {
        let nr_before = list.len();
        if self.claim_into(ticket, list)? {
            // Without room to tell, the daemon finds out when one of the pages is freed.
            let _ = self.tell(ticket, Done::Kept);
        }
        Ok(list.len() - nr_before)
    }

    /// Claims a parcel; whether the daemon must still be told.
    pub(crate) fn claim_into(
        &self,
        ticket: Ticket,
        list: &mut Vec<Page>,
    ) -> Result<bool, ClaimError> {
        if process::is_child() {
            return Err(ClaimError::Forked);
        }
        let attached = &self.inner.attached;
        let post = attached.post().ok_or(ClaimError::Detached)?;
        let claimed = match self.own_lane() {
            Some(lane) => post.claim(attached, lane, ticket, list),
            None => match self.served_slowly().lane() {
                Ok(lane) => post.claim(attached, lane, ticket, list),
                Err(Miss::Detached) => Err(ClaimError::Detached),
                // The shared lane is in use: as good as full for the moment.
                Err(_) => Err(ClaimError::ReturnsFull),
            },
        };
        claimed.map(|claimed| claimed.untold)
    }

    /// Takes a parcel of this client's own back: one that nobody has claimed, or that was given
    /// back. Its pages are appended to the list; returns how many.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing has changed.
    pub fn take_back(&self, ticket: Ticket, list: &mut Vec<Page>) -> Result<usize, ClaimError> {
        if process::is_child() {
            return Err(ClaimError::Forked);
        }
        let attached = &self.inner.attached;
        let post = attached.post().ok_or(ClaimError::Detached)?;
        let nr_before = list.len();
        if let Some(word) = post.take_back(attached, ticket, list)? {
            self.say(word);
        }
        Ok(list.len() - nr_before)
    }

    /// Gives a parcel back, whole and untold; false if it is this client's own by now.
    pub(crate) fn give_back(&self, ticket: Ticket, pages: &[Page]) -> bool {
        let attached = &self.inner.attached;
        let post = attached.post().filter(|_| !process::is_child());
        post.is_some_and(|post| post.give_back(attached, ticket, pages))
    }

    /// Seals a page: from now on it can only be read, by as many clients as it is shared with.
    ///
    /// # Errors
    /// [`HandOverError`], with the page.
    pub fn share(&self, page: Page) -> Result<SharedPage, (HandOverError, Page)> {
        SharedPage::seal(self, page)
    }

    /// Claims a holding of a shared page.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing has changed.
    pub fn claim_shared(&self, ticket: Ticket) -> Result<SharedPage, ClaimError> {
        SharedPage::claim(self, ticket)
    }

    /// Claims a holding; the page word, and where the bytes can be read.
    pub(crate) fn claim_holding(
        &self,
        ticket: Ticket,
    ) -> Result<(RawPage, usize, usize), ClaimError> {
        let attached = &self.inner.attached;
        let post = attached.post().ok_or(ClaimError::Detached)?;
        match self.own_lane() {
            Some(lane) => post.claim_shared(attached, lane, ticket),
            None => match self.served_slowly().lane() {
                Ok(lane) => post.claim_shared(attached, lane, ticket),
                Err(Miss::Detached) => Err(ClaimError::Detached),
                Err(_) => Err(ClaimError::ReturnsFull),
            },
        }
    }

    /// Says something of a shared page, now or when there is room.
    pub(crate) fn say(&self, word: RawPage) {
        let attached = &self.inner.attached;
        if let Some(post) = attached.post() {
            post.say(attached, &|word| self.put_notice(word), word);
        }
    }

    /// Tells the daemon what has become of a parcel; false if there was no room to.
    pub(crate) fn tell(&self, ticket: Ticket, done: Done) -> bool {
        self.put_notice(Notice { ticket, done }.to_word())
    }

    fn put_notice(&self, word: RawPage) -> bool {
        // A notice lies in `returns` like a block given back, so one more must have come.
        self.inner.attached.count_brought_by(1);
        let is_told = match self.own_lane() {
            Some(lane) => Post::tell(lane, word),
            None => {
                let served = self.served_slowly();
                served.lane().is_ok_and(|lane| Post::tell(lane, word))
            }
        };
        if !is_told {
            self.inner.attached.count_taken_away_by(1);
        }
        is_told
    }

    /// Counts blocks freed by one word, past the lanes.
    pub(crate) fn count_freed(&self, nr_blocks: usize) {
        self.inner.attached.count_taken_away_by(nr_blocks);
    }

    pub(crate) fn attached(&self) -> &Arc<Attached> {
        &self.inner.attached
    }

    /// Index of the client in this process, as it stands in its page words.
    pub fn index(&self) -> u32 {
        self.inner.attached.index()
    }

    /// The control segment.
    pub fn control(&self) -> &ControlSegment {
        self.inner.attached.control()
    }

    /// What has gone through this client in this process.
    pub fn stats(&self) -> ClientStats {
        let attached = &self.inner.attached;
        if process::is_child() {
            return ClientStats::default();
        }
        ClientStats {
            nr_held: attached.nr_held(),
            lanes: attached.stats(),
            nr_brought: attached.nr_brought(),
            nr_taken_away: attached.nr_taken_away(),
        }
    }

    /// The calling thread's lane, if it has one already.
    #[inline(always)]
    fn own_lane(&self) -> Option<&LaneClient<'static>> {
        own_seat(&self.inner.attached).map(|seat| &seat.lane)
    }

    #[cold]
    fn served_slowly(&self) -> Served<'_> {
        if process::is_child() {
            return Served::Not(Miss::Detached);
        }
        match take_seat(&self.inner.attached) {
            Some(seat) => Served::Own(&seat.lane),
            None => self.shared(),
        }
    }

    fn shared(&self) -> Served<'_> {
        match self.inner.attached.try_share() {
            Some(shared) => Served::Shared(shared),
            None => Served::Not(Miss::Reentered),
        }
    }
}

impl core::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ClientHandle({})", self.index())
    }
}

/// A thread's lane of a client. It stays in its thread.
pub struct LocalLane {
    /// None: the thread has no lane of its own.
    seat: Option<&'static Seat>,
    client: ClientHandle,
}

impl LocalLane {
    lane_operations!();

    /// The client that the lane belongs to.
    pub fn client(&self) -> &ClientHandle {
        &self.client
    }

    /// Whether the thread shares this lane with others.
    pub fn is_shared(&self) -> bool {
        self.seat.is_none()
    }

    #[inline(always)]
    fn own_lane(&self) -> Option<&LaneClient<'static>> {
        self.seat.map(|seat| &seat.lane)
    }

    #[cold]
    fn served_slowly(&self) -> Served<'_> {
        self.client.served_slowly()
    }
}

impl Drop for LocalLane {
    fn drop(&mut self) {
        drop(self.seat.take().and_then(Seat::stand_up));
    }
}

impl core::fmt::Debug for LocalLane {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "LocalLane({})", self.client.index())
    }
}
