//! [`MovablePage`] and [`EvictablePage`]: pages that the daemon may move, and take away.
//!
//! A block comes as any other, by lane or by call, and is put under a handle; from then on the
//! daemon may move it whenever nobody pins it. What a handle is, and why a pin never waits for the
//! daemon, is said in [`hugepool_shm::movable`].

use std::fmt;

use hugepool_shm::movable::{Movable, NoHandle, Pinned, PinnedMut};

use crate::{Bulk, Client, Migratetype, Order, Page, PinError, Request, Shortfall, obtain};

/// A block of `2^order` pages that the daemon may move while it is not pinned.
///
/// Dropping it frees it, from any thread; that never waits and never fails.
#[derive(Debug)]
pub struct MovablePage(Movable);

/// A block of `2^order` pages that the daemon may move, and take away when memory is short, while
/// it is not pinned. Then its pins answer [`PinError::Evicted`] for ever, and its bytes are gone.
///
/// Dropping it frees what is left of it, from any thread; that never waits and never fails.
#[derive(Debug)]
pub struct EvictablePage(Movable);

/// Why a movable page was not made one that stays.
#[derive(Debug, thiserror::Error)]
pub enum IntoPageError<P: fmt::Debug> {
    /// It is in a zone for movable pages, and no other place could be had. It is as it was.
    #[error("no place that it could stay in could be had: {why}")]
    NoPlace {
        /// The page.
        page: P,
        /// Why not.
        why: Shortfall,
    },
    /// It cannot be reached: it was taken away, or this is a forked process.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// What both kinds have, over the block under its handle.
macro_rules! movable_page {
    ($page:ident) => {
        impl $page {
            /// Holds the block in place and gives its bytes, until the guard is dropped. Costs a
            /// few nanoseconds; while the daemon copies the block, waits for that copy at most.
            ///
            /// # Errors
            /// [`PinError`].
            #[inline]
            pub fn pin(&self) -> Result<Pinned<'_>, PinError> {
                self.0.pin()
            }

            /// As [`pin`](Self::pin), and gives the bytes to be written too.
            ///
            /// # Errors
            /// [`PinError`].
            #[inline]
            pub fn pin_mut(&mut self) -> Result<PinnedMut<'_>, PinError> {
                self.0.pin_mut()
            }

            /// The block has `2^order` pages.
            pub fn order(&self) -> u32 {
                self.0.order()
            }

            /// Makes it a page that stays where it is. In a zone that takes pages of every kind
            /// it stays where it stands; out of one for movable pages its bytes are copied to an
            /// unmovable block of `client`'s first.
            ///
            /// # Errors
            /// [`IntoPageError`].
            pub fn into_page(self, client: &Client) -> Result<Page, IntoPageError<Self>> {
                let pinned = self.0.pin()?;
                if !client.is_movable_zone(pinned.zone()) {
                    // It must not be moved before it is out of its handle, which the pin sees to.
                    std::mem::forget(pinned);
                    return Ok(self.0.into_page()?);
                }
                let order = u8::try_from(self.order()).ok();
                let order = order.and_then(|order| Order::new(order).ok());
                let fresh = client.alloc_pages(order.unwrap_or(Order::PAGE));
                match fresh {
                    Ok(mut page) => {
                        page.copy_from_slice(&pinned);
                        Ok(page)
                    }
                    Err(why) => {
                        drop(pinned);
                        Err(IntoPageError::NoPlace { page: self, why })
                    }
                }
            }
        }
    };
}

movable_page!(MovablePage);
movable_page!(EvictablePage);

pub(crate) fn movable(request: &Request<'_>) -> Result<MovablePage, Shortfall> {
    one(request, Migratetype::Movable).map(MovablePage)
}

pub(crate) fn evictable(request: &Request<'_>) -> Result<EvictablePage, Shortfall> {
    one(request, Migratetype::Reclaimable).map(EvictablePage)
}

pub(crate) fn movable_bulk(request: &Request<'_>, n: usize, list: &mut Vec<MovablePage>) -> Bulk {
    bulk(request, Migratetype::Movable, n, &mut |block| {
        list.push(MovablePage(block));
    })
}

pub(crate) fn evictable_bulk(
    request: &Request<'_>,
    n: usize,
    list: &mut Vec<EvictablePage>,
) -> Bulk {
    bulk(request, Migratetype::Reclaimable, n, &mut |block| {
        list.push(EvictablePage(block));
    })
}

fn one(request: &Request<'_>, migratetype: Migratetype) -> Result<Movable, Shortfall> {
    let request = Request {
        migratetype,
        ..*request
    };
    put_under_handle(request.client, obtain::one(&request, true)?)
}

fn bulk(
    request: &Request<'_>,
    migratetype: Migratetype,
    n: usize,
    take: &mut dyn FnMut(Movable),
) -> Bulk {
    let request = Request {
        migratetype,
        ..*request
    };
    let mut pages = Vec::new();
    let mut bulk = obtain::list(&request, n, &mut pages, true);
    bulk.populated = 0;
    for page in pages {
        match put_under_handle(request.client, page) {
            Ok(block) => {
                take(block);
                bulk.populated += 1;
            }
            // The rest goes back the same way.
            Err(why) => bulk.shortfall = Some(why),
        }
    }
    bulk
}

/// A page that gets no handle is freed.
fn put_under_handle(client: &Client, page: Page) -> Result<Movable, Shortfall> {
    let made = client.inner().lanes.make_movable(page);
    made.map_err(|(_, why)| match why {
        NoHandle::UsedUp { nr_handles } => Shortfall::NoHandle { nr_handles },
        NoHandle::NotItsPage => Shortfall::Detached,
    })
}
