//! [`LocalLane`]: one thread's lane, for loops that count nanoseconds.

use std::fmt;

use hugepool_shm::{process, raw::Class};

use crate::{Bulk, Client, Page, Shortfall, obtain};

/// The lane of the thread that asked for it: the shortest way to a page and back.
///
/// It takes and frees single pages, unmovable, of any zone; for what the lane has not it asks the
/// daemon as the client does. It keeps its client attached, and cannot leave its thread.
pub struct LocalLane {
    lane: process::LocalLane,
    client: Client,
}

impl LocalLane {
    pub(crate) fn new(client: Client, lane: process::LocalLane) -> LocalLane {
        LocalLane { lane, client }
    }

    /// Takes one page.
    ///
    /// # Errors
    /// [`Shortfall`] when none was had within the client's deadline.
    #[inline]
    pub fn alloc_page(&self) -> Result<Page, Shortfall> {
        match self.lane.take_one(Class::PAGE) {
            Ok(page) => Ok(page),
            Err(miss) => obtain::one_after(&self.client.request(), Some(miss), true),
        }
    }

    /// Takes one page from the lane, without a wait or a system call but for the doorbell.
    ///
    /// # Errors
    /// [`Shortfall`] when the lane has none.
    #[inline]
    pub fn try_alloc_page(&self) -> Result<Page, Shortfall> {
        match self.lane.take_one(Class::PAGE) {
            Ok(page) => Ok(page),
            Err(miss) => obtain::one_after(&self.client.request(), Some(miss), false),
        }
    }

    /// Frees one page, of any client of this process. Dropping it does the same, a little slower.
    #[inline]
    pub fn free_page(&self, page: Page) {
        self.lane.put(page);
    }

    /// Fills the empty slots in order of index; see [`Client::alloc_pages_bulk_array`].
    #[inline]
    pub fn alloc_pages_bulk_array(&self, slots: &mut [Option<Page>]) -> Bulk {
        let taken = self.lane.fill(Class::PAGE, slots);
        match taken.miss {
            None => Bulk::all(slots.len()),
            Some(_) => obtain::array_after(&self.client.request(), slots, taken, true),
        }
    }

    /// Appends up to `n` pages; see [`Client::alloc_pages_bulk_list`].
    #[inline]
    pub fn alloc_pages_bulk_list(&self, n: usize, list: &mut Vec<Page>) -> Bulk {
        let taken = self.lane.take_into(Class::PAGE, n, list);
        match taken.miss {
            None => Bulk::all(n),
            Some(_) => obtain::list_after(&self.client.request(), n, list, taken, true),
        }
    }

    /// Frees what is in the slots and leaves them empty.
    #[inline]
    pub fn free_pages_bulk_array(&self, slots: &mut [Option<Page>]) {
        self.lane.put_slots(slots);
    }

    /// Frees what is in the list and leaves it empty.
    #[inline]
    pub fn free_pages_bulk_list(&self, list: &mut Vec<Page>) {
        self.lane.put_list(list);
    }

    /// The client that the lane belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the thread has no lane of its own, and shares one with others under a lock.
    pub fn is_shared(&self) -> bool {
        self.lane.is_shared()
    }
}

impl fmt::Debug for LocalLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLane")
            .field("client", &self.client)
            .field("is_shared", &self.is_shared())
            .finish_non_exhaustive()
    }
}
