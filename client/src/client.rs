//! [`Client`]: one attachment to a daemon.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use hugepool_proto::v1::Run;
use hugepool_shm::{
    control::ControlSegment,
    doorbell::Doorbell,
    post::PostPlace,
    process::{self, ClientHandle, Registration, ReserveError, ZoneBytes},
    raw::{Class, NR_ZONES},
    step::reached as step,
};

use crate::{
    AttachError, Bulk, ClaimError, EvictablePage, HandOverError, LocalLane, Migratetype,
    MovablePage, NoSuchZone, Options, Order, Page, Parcel, PressureWatch, Request, SharedPage,
    Shortfall, Ticket,
    adopt::{self, Shape},
    attach::{Place, ZonePlace},
    desk::Desk,
    obtain,
    remote::Remote,
    sections::Sections,
};

/// One attachment to a daemon, shared by all threads of this process; a clone is the same one.
///
/// Each thread gets a lane of its own, at its first call; threads beyond the lanes share one. When
/// the last clone is dropped, what lies unused in the lanes goes home at once, and pages that are
/// still held go home as they are dropped: they may outlive the client.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// What the clones share.
pub(crate) struct Inner {
    /// First, so that it goes first: the lanes are shut before the connection hangs up.
    pub(crate) lanes: ClientHandle,
    pub(crate) control: ControlSegment,
    pub(crate) remote: Remote,
    zones: Arc<[ZonePlace]>,
    sections: Arc<Sections>,
    pub(crate) shape: Shape,
    pub(crate) max_order: u8,
    deadline: Duration,
    pub(crate) spin: Duration,
    /// Open for as long as the client is attached: its hang-up detaches.
    pub(crate) desk: Arc<Desk>,
}

impl Client {
    /// Attaches to a daemon: the one in the directory that `options` name, else the one that the
    /// run-time directory rule finds ([`runtime_dir`](crate::runtime_dir)).
    ///
    /// # Errors
    /// [`AttachError`], which says what to do. Nothing is left of the attempt.
    pub fn attach(options: Options) -> Result<Client, AttachError> {
        let deadline = Instant::now() + options.attach_timeout;
        let index = process::reserve_client_index().map_err(|error| match error {
            ReserveError::TooManyClients => AttachError::TooManyClients,
            ReserveError::Forked => AttachError::Forked,
            ReserveError::Map(error) => AttachError::Map(error.to_string()),
        })?;
        let client_index = index.get();
        let place = Place::ask(&options, u8::try_from(client_index).unwrap_or(u8::MAX))?;
        let zones: Arc<[ZonePlace]> = place.zones.into();
        let sections = Arc::new(Sections::new(place.geometry.section_order, &zones));
        sections.follow(&place.control, &zones);

        let zone_bytes =
            |zone: &ZonePlace| ZoneBytes::of_zone_map(zone.map.clone(), zone.index.into());
        let bell = place.bell;
        let registration = Registration {
            control: place.control.clone(),
            zones: zones.iter().map(zone_bytes).collect(),
            doorbell: Doorbell::new(move || {
                // A bell that cannot be rung belongs to a daemon that looks by itself now and then.
                let _ = bell.ring();
            }),
            pageblock_order: place.geometry.pageblock_order.into(),
            registered: place.registered,
        };
        let lanes = index
            .register(registration)
            .map_err(|error| AttachError::Map(error.to_string()))?;
        let of_follower = (sections.clone(), place.control.clone(), zones.clone());
        lanes.follow_sections_by(move || {
            let (sections, control, zones) = &of_follower;
            sections.try_follow(control, zones)
        });
        step("attach.mapped");
        place.connection.confirm(place.registered, deadline)?;
        step("attach.confirmed");
        let desk = Arc::new(Desk::new(place.connection.0, options.deadline));
        let mut transits = [const { None }; NR_ZONES];
        for zone in zones.iter() {
            transits[usize::from(zone.index)] = Some(zone.transits.clone());
        }
        // Pages may outlive the client, and must not keep it attached.
        let of_fetch = Arc::downgrade(&desk);
        lanes.set_post(PostPlace {
            me: place.me,
            outbox: place.outbox,
            first_sequence: place.first_sequence,
            transits,
            section_order: place.geometry.section_order.into(),
            fetch: Box::new(move |slot| of_fetch.upgrade()?.outbox_of(slot)),
        });
        let inner = Inner {
            lanes,
            control: place.control,
            remote: Remote::new(place.pages_socket, place.token),
            zones,
            sections,
            shape: Shape {
                pageblock_order: place.geometry.pageblock_order.into(),
                section_order: place.geometry.section_order,
            },
            max_order: place.geometry.max_order,
            deadline: options.deadline,
            desk,
            spin: options.spin,
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// The calling thread's lane: the shortest way to a page. It stays in its thread.
    pub fn local(&self) -> LocalLane {
        LocalLane::new(self.clone(), self.inner.lanes.local())
    }

    /// A request for single pages, unmovable, of any zone, with the client's deadline: what the
    /// calls of the client itself ask for.
    pub fn request(&self) -> Request<'_> {
        Request::new(self)
    }

    /// Begins to tell how short of pages this client's zones are. Each watch has a thread of its
    /// own, until it is dropped; it does not keep the client attached.
    ///
    /// # Errors
    /// When the system gives no socket or no thread.
    pub fn watch_pressure(&self) -> std::io::Result<PressureWatch> {
        let way = self.inner.remote.way();
        let refuse = || std::io::Error::other("the socket's name is not text");
        PressureWatch::begin(way.ok_or_else(refuse)?)
    }

    /// A request from this zone; see [`Request::with_zone`].
    ///
    /// # Errors
    /// [`NoSuchZone`] if the daemon has given this client no zone of that name.
    pub fn with_zone(&self, name: &str) -> Result<Request<'_>, NoSuchZone> {
        self.request().with_zone(name)
    }

    /// A request for blocks of this order; see [`Request::with_order`].
    pub fn with_order(&self, order: Order) -> Request<'_> {
        self.request().with_order(order)
    }

    /// A request for pages of this migratetype; see [`Request::with_migratetype`].
    pub fn with_migratetype(&self, migratetype: Migratetype) -> Request<'_> {
        self.request().with_migratetype(migratetype)
    }

    /// A request with this deadline; see [`Request::with_deadline`].
    pub fn with_deadline(&self, deadline: Duration) -> Request<'_> {
        self.request().with_deadline(deadline)
    }

    /// Takes one page.
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    #[inline]
    pub fn alloc_page(&self) -> Result<Page, Shortfall> {
        // As all calls of the client's own, straight to the lane: a request is made when it misses.
        match self.inner.lanes.take_one(Class::PAGE) {
            Ok(page) => Ok(page),
            Err(miss) => obtain::one_after(&self.request(), Some(miss), true),
        }
    }

    /// Takes one block of `2^order` pages.
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    #[inline]
    pub fn alloc_pages(&self, order: Order) -> Result<Page, Shortfall> {
        self.request().alloc_pages(order)
    }

    /// Takes one page that the daemon may move while it is not pinned; larger blocks by
    /// [`Request::alloc_movable`].
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    pub fn alloc_movable(&self) -> Result<MovablePage, Shortfall> {
        self.request().alloc_movable()
    }

    /// Takes one page that the daemon may move and take away while it is not pinned; larger blocks
    /// by [`Request::alloc_evictable`].
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    pub fn alloc_evictable(&self) -> Result<EvictablePage, Shortfall> {
        self.request().alloc_evictable()
    }

    /// Takes one page from the lane, without a wait or a system call but for the doorbell.
    ///
    /// # Errors
    /// [`Shortfall`] when the lane has none.
    #[inline]
    pub fn try_alloc_page(&self) -> Result<Page, Shortfall> {
        match self.inner.lanes.take_one(Class::PAGE) {
            Ok(page) => Ok(page),
            Err(miss) => obtain::one_after(&self.request(), Some(miss), false),
        }
    }

    /// Fills the empty slots in order of index, and leaves the others as they are.
    ///
    /// The answer is that of the kernel's `alloc_pages_bulk`: how far from the start the array is
    /// populated, old entries included. A full array answers its length and takes nothing; one of
    /// no slots answers 0. A short answer is ordinary, and says why; at least one page comes if
    /// one can be had within the deadline.
    #[inline]
    pub fn alloc_pages_bulk_array(&self, slots: &mut [Option<Page>]) -> Bulk {
        let taken = self.inner.lanes.fill(Class::PAGE, slots);
        match taken.miss {
            None => Bulk::all(slots.len()),
            Some(_) => obtain::array_after(&self.request(), slots, taken, true),
        }
    }

    /// Appends up to `n` pages, and answers how many. A short answer is ordinary, and says why; at
    /// least one page comes if one can be had within the deadline.
    #[inline]
    pub fn alloc_pages_bulk_list(&self, n: usize, list: &mut Vec<Page>) -> Bulk {
        let taken = self.inner.lanes.take_into(Class::PAGE, n, list);
        match taken.miss {
            None => Bulk::all(n),
            Some(_) => obtain::list_after(&self.request(), n, list, taken, true),
        }
    }

    /// Takes `n` pages, or none: waits until the deadline for all of them.
    ///
    /// # Errors
    /// [`Shortfall`] when they were not all had; those that were are free again.
    pub fn alloc_exact(&self, n: usize) -> Result<Vec<Page>, Shortfall> {
        self.request().alloc_exact(n)
    }

    /// Frees pages in as few moves as their order allows; dropping them one by one is so many
    /// single frees. Pages of any client of this process.
    pub fn free_pages_bulk(&self, pages: impl IntoIterator<Item = Page>) {
        let mut list: Vec<Page> = pages.into_iter().collect();
        self.inner.lanes.put_list(&mut list);
    }

    /// Frees what is in the list, in as few moves as its order allows, and leaves it empty.
    #[inline]
    pub fn free_pages_bulk_list(&self, pages: &mut Vec<Page>) {
        self.inner.lanes.put_list(pages);
    }

    /// Frees what is in the slots, in as few moves as their order allows, and leaves them empty.
    #[inline]
    pub fn free_pages_bulk_array(&self, slots: &mut [Option<Page>]) {
        self.inner.lanes.put_slots(slots);
    }

    /// Hands pages over, in one parcel of at most 256 blocks of one zone, and leaves the list empty.
    ///
    /// The ticket may go to another client over any channel, and to several: the first that claims
    /// it has the pages, the others are refused. Until then they can be taken back. A single page
    /// goes by [`Page::hand_over`].
    ///
    /// # Errors
    /// [`HandOverError`]; the pages are in the list still.
    pub fn hand_over_bulk(&self, pages: &mut Vec<Page>) -> Result<Ticket, HandOverError> {
        self.inner.lanes.hand_over(pages)
    }

    /// Claims what a ticket names: no copy, and no question to the daemon but at the first claim
    /// from a sender.
    ///
    /// # Errors
    /// [`ClaimError`] says at once who has the pages, or why nobody has; nothing has changed.
    pub fn claim(&self, ticket: Ticket) -> Result<Parcel, ClaimError> {
        self.inner.lanes.claim(ticket)
    }

    /// Claims what a ticket names, to be kept: the pages are appended to the list. Returns how
    /// many.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing has changed.
    pub fn claim_pages(&self, ticket: Ticket, list: &mut Vec<Page>) -> Result<usize, ClaimError> {
        self.inner.lanes.claim_pages(ticket, list)
    }

    /// Seals a page of this client's, to be read by as many clients as it is passed on to by
    /// [`SharedPage::hand_over`]. It costs no question to the daemon.
    ///
    /// # Errors
    /// [`HandOverError`], with the page: it is another client's of this process, or cannot be mapped
    /// once more.
    pub fn share(&self, page: Page) -> Result<SharedPage, (HandOverError, Page)> {
        self.inner.lanes.share(page)
    }

    /// Claims a holding of a shared page, of which the ticket is one.
    ///
    /// # Errors
    /// [`ClaimError`] says at once who has it, or why nobody has; nothing has changed.
    pub fn claim_shared(&self, ticket: Ticket) -> Result<SharedPage, ClaimError> {
        self.inner.lanes.claim_shared(ticket)
    }

    /// Takes back what this client had handed over: what nobody has claimed, or what was given back.
    /// The pages are appended to the list; returns how many. Of a shared page none comes: nobody can
    /// claim the ticket any more, and that is all.
    ///
    /// # Errors
    /// [`ClaimError`], for one who was too late above all; nothing has changed.
    pub fn take_back(&self, ticket: Ticket, list: &mut Vec<Page>) -> Result<usize, ClaimError> {
        self.inner.lanes.take_back(ticket, list)
    }

    /// Names of the zones that this client may use, in the daemon's order.
    pub fn zones(&self) -> impl Iterator<Item = &str> {
        self.inner.zones.iter().map(|zone| zone.name.as_str())
    }

    /// Bytes of a page of order 0.
    pub fn page_size_bytes(&self) -> usize {
        let shift = self
            .inner
            .zones
            .first()
            .map_or(12, |zone| zone.map.extent().page_shift);
        1 << shift
    }

    /// The largest order that the daemon has blocks of.
    pub fn max_order(&self) -> u8 {
        self.inner.max_order
    }

    /// Whether the zone with this index takes movable pages only. One that is not this client's
    /// does not count as such.
    pub(crate) fn is_movable_zone(&self, index: u32) -> bool {
        let zone = self
            .inner
            .zones
            .iter()
            .find(|zone| u32::from(zone.index) == index);
        zone.is_some_and(|zone| zone.is_movable)
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.inner.deadline
    }

    pub(crate) fn zone_name(&self, name: &str) -> Option<&str> {
        self.zones().find(|zone| *zone == name)
    }
}

impl Inner {
    /// Maps what has come and unmaps what has gone; true if anything was done.
    pub(crate) fn follow_sections(&self) -> bool {
        self.sections.follow(&self.control, &self.zones)
    }

    /// Hands each block of the runs to `take`; runs that cannot be touched here go back unused.
    pub(crate) fn adopt(&self, runs: &[Run], migratetype: Migratetype, take: &mut dyn FnMut(Page)) {
        let mut strays = Vec::new();
        for run in runs {
            let Some(words) = adopt::words(run, migratetype, self.shape, &self.zones) else {
                strays.push(*run);
                continue;
            };
            words
                .filter_map(|word| self.lanes.adopt(word))
                .for_each(&mut *take);
        }
        if !strays.is_empty() {
            self.remote.free_bulk(strays, self.deadline);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zones: Vec<_> = self.zones().collect();
        f.debug_struct("Client")
            .field("index", &self.inner.lanes.index())
            .field("zones", &zones)
            .finish_non_exhaustive()
    }
}
