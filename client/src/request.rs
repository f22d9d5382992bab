//! [`Request`]: what to ask for, and the calls that ask for it.
//!
//! Each call takes from this thread's lane what it has, and asks the daemon once for what is
//! missing ([`obtain`](crate::obtain)). `try_` calls stop at the lane.

use std::time::Duration;

use crate::{
    Client, EvictablePage, Migratetype, MovablePage, Order, Page, Shortfall, movable, obtain,
};

/// What to ask for: order, migratetype, zone, and how long to wait.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use hugepool::{Client, Migratetype, Options, Order};
/// let client = Client::attach(Options::default())?;
/// let request = client
///     .with_zone("movable")?
///     .with_migratetype(Migratetype::Movable)
///     .with_deadline(Duration::from_millis(10));
/// let block = request.alloc_pages(Order::new(9)?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a request asks for nothing until one of its calls is made"]
pub struct Request<'c> {
    pub(crate) client: &'c Client,
    pub(crate) zone: Option<&'c str>,
    pub(crate) order: Order,
    pub(crate) migratetype: Migratetype,
    pub(crate) urgent: bool,
    pub(crate) deadline: Duration,
}

impl<'c> Request<'c> {
    pub(crate) fn new(client: &'c Client) -> Request<'c> {
        Request {
            client,
            zone: None,
            order: Order::PAGE,
            migratetype: Migratetype::Unmovable,
            urgent: false,
            deadline: client.deadline(),
        }
    }

    /// From this zone and no other. What a lane holds may come from any zone of the configured
    /// order, so such a request always goes to the daemon.
    ///
    /// # Errors
    /// [`NoSuchZone`] if the daemon has given this client no zone of that name.
    pub fn with_zone(self, name: &str) -> Result<Request<'c>, NoSuchZone> {
        let zone = self
            .client
            .zone_name(name)
            .ok_or_else(|| NoSuchZone(name.to_owned()))?;
        Ok(Request {
            zone: Some(zone),
            ..self
        })
    }

    /// Blocks of this order, in the bulk calls.
    pub fn with_order(self, order: Order) -> Request<'c> {
        Request { order, ..self }
    }

    /// Pages of this migratetype: those of one type share pageblocks. It is only what they are
    /// filed under: a [`Page`] is not moved, whatever its type; those of
    /// [`alloc_movable`](Request::alloc_movable) are.
    pub fn with_migratetype(self, migratetype: Migratetype) -> Request<'c> {
        Request {
            migratetype,
            ..self
        }
    }

    /// Waits this long for a first page, if none can be had at once. A daemon that does not answer
    /// at all is given half a second more before the call says so.
    pub fn with_deadline(self, deadline: Duration) -> Request<'c> {
        Request { deadline, ..self }
    }

    /// May take five eighths of what zones keep back below their min marks: for what must not fail
    /// because others were greedy. A lane's own pages come first, as ever.
    pub fn urgent(self) -> Request<'c> {
        Request {
            urgent: true,
            ..self
        }
    }

    /// Takes one page.
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    #[inline]
    pub fn alloc_page(&self) -> Result<Page, Shortfall> {
        self.alloc_pages(Order::PAGE)
    }

    /// Takes one block of `2^order` pages.
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    #[inline]
    pub fn alloc_pages(&self, order: Order) -> Result<Page, Shortfall> {
        obtain::one(&Request { order, ..*self }, true)
    }

    /// Takes one block of the request's order that the daemon may move while it is not pinned.
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    pub fn alloc_movable(&self) -> Result<MovablePage, Shortfall> {
        movable::movable(self)
    }

    /// Takes one block of the request's order that the daemon may move and take away while it is
    /// not pinned.
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the deadline.
    pub fn alloc_evictable(&self) -> Result<EvictablePage, Shortfall> {
        movable::evictable(self)
    }

    /// Appends up to `n` movable blocks of the request's order; see
    /// [`Client::alloc_pages_bulk_list`].
    pub fn alloc_movable_bulk(&self, n: usize, list: &mut Vec<MovablePage>) -> Bulk {
        movable::movable_bulk(self, n, list)
    }

    /// Appends up to `n` evictable blocks of the request's order; see
    /// [`Client::alloc_pages_bulk_list`].
    pub fn alloc_evictable_bulk(&self, n: usize, list: &mut Vec<EvictablePage>) -> Bulk {
        movable::evictable_bulk(self, n, list)
    }

    /// Takes one page from the lane, without a wait or a system call but for the doorbell.
    ///
    /// # Errors
    /// [`Shortfall`] when the lane has none.
    #[inline]
    pub fn try_alloc_page(&self) -> Result<Page, Shortfall> {
        self.try_alloc_pages(Order::PAGE)
    }

    /// Takes one block from the lane, without a wait or a system call but for the doorbell.
    ///
    /// # Errors
    /// [`Shortfall`] when the lane has none, or caches no such order.
    #[inline]
    pub fn try_alloc_pages(&self, order: Order) -> Result<Page, Shortfall> {
        obtain::one(&Request { order, ..*self }, false)
    }

    /// Fills the empty slots in order of index; see [`Client::alloc_pages_bulk_array`].
    pub fn alloc_pages_bulk_array(&self, slots: &mut [Option<Page>]) -> Bulk {
        obtain::array(self, slots, true)
    }

    /// Fills the empty slots with what the lane has; see [`Client::alloc_pages_bulk_array`].
    pub fn try_alloc_pages_bulk_array(&self, slots: &mut [Option<Page>]) -> Bulk {
        obtain::array(self, slots, false)
    }

    /// Appends up to `n` blocks; see [`Client::alloc_pages_bulk_list`].
    pub fn alloc_pages_bulk_list(&self, n: usize, list: &mut Vec<Page>) -> Bulk {
        obtain::list(self, n, list, true)
    }

    /// Appends up to `n` blocks of those that the lane has; see [`Client::alloc_pages_bulk_list`].
    pub fn try_alloc_pages_bulk_list(&self, n: usize, list: &mut Vec<Page>) -> Bulk {
        obtain::list(self, n, list, false)
    }

    /// Takes `n` blocks, or none: waits until the deadline for all of them.
    ///
    /// # Errors
    /// [`Shortfall`] when they were not all had; those that were are free again.
    pub fn alloc_exact(&self, n: usize) -> Result<Vec<Page>, Shortfall> {
        obtain::exact(self, n)
    }
}

/// What a bulk call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a bulk call may bring fewer pages than asked"]
pub struct Bulk {
    /// Array: how far from its start the slots are populated, old entries included; the array's
    /// length when all are. List: blocks appended now.
    pub populated: usize,
    /// Why not all that was asked for; `None` when it was.
    pub shortfall: Option<Shortfall>,
}

impl Bulk {
    pub(crate) const fn all(populated: usize) -> Bulk {
        Bulk {
            populated,
            shortfall: None,
        }
    }
}

/// The daemon has given this client no zone of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no zone {0:?} for this client")]
pub struct NoSuchZone(pub String);
