//! Takes pages from a hugepoold in nanoseconds, gives them back, and loses none.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use hugepool::{Client, Options, Order, Page};
//!
//! let client = Client::attach(Options::default())?;
//! let mut page: Page = client.alloc_page()?; // 4 KiB that are this process's alone
//! page[..5].copy_from_slice(b"hello");
//! let block = client.alloc_pages(Order::new(9)?)?; // 2 MiB in one piece
//! let mut slots: [Option<Page>; 65] = [const { None }; 65];
//! let bulk = client.alloc_pages_bulk_array(&mut slots); // fills the empty slots
//! println!("{} of 65, {:?}", bulk.populated, bulk.shortfall);
//! client.free_pages_bulk_array(&mut slots); // `page` and `block` free themselves
//! # Ok(())
//! # }
//! ```
//!
//! A page comes out of this thread's *lane*, a cache in memory shared with the daemon alone: no
//! system call, no lock, no wait. What the lane has not comes by one call, with a deadline. A page
//! is freed by dropping it, from any thread; that never waits and never fails. Many pages are
//! freed at once by [`Client::free_pages_bulk`] and [`Client::free_pages_bulk_array`]: dropping an
//! array is so many single frees.
//!
//! # Pages that may be moved, and pages that may be taken
//!
//! A [`Page`] stays where it is as long as it is held. Whoever can do with less asks for more room
//! to move: a [`MovablePage`] may be moved by the daemon while it is not pinned, so that memory can
//! be taken offline or made contiguous under a program that runs; an [`EvictablePage`] may be taken
//! away as well, when memory is short. Their bytes are reached by pinning them, which costs a few
//! nanoseconds and waits for at most the copy of one block.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = hugepool::Client::attach(hugepool::Options::default())?;
//! let mut record = client.alloc_movable()?;
//! record.pin_mut()?[..5].copy_from_slice(b"hello");
//! let cached = client.alloc_evictable()?;
//! match cached.pin() {
//!     Ok(bytes) => println!("{} bytes are there", bytes.len()),
//!     Err(hugepool::PinError::Evicted) => println!("to be fetched again"),
//!     Err(other) => return Err(other.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Pages that several read at once
//!
//! [`Client::share`] seals a page: it can only be read from then on, and each ticket of
//! [`SharedPage::hand_over`] lets one more client hold it. Whoever holds it may pass it on. It goes
//! home with the last holding, however that ends: by a drop, or with its process.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = hugepool::Client::attach(hugepool::Options::default())?;
//! # let other = client.clone();
//! let mut page = client.alloc_page()?;
//! page[..5].copy_from_slice(b"hello");
//! let shared = client.share(page).map_err(|(why, _)| why)?;
//! let ticket = shared.hand_over()?; // 8 bytes, over any channel
//! let read = other.claim_shared(ticket)?; // in another process: `&read[..5]` is b"hello"
//! # drop(read);
//! # Ok(())
//! # }
//! ```
//!
//! # Why there may be fewer pages than asked
//!
//! Short answers are ordinary, and [`Shortfall`] says why. The calls without `try_` wait for a
//! first page as long as their deadline (a second, unless [`Options::deadline`] or
//! [`Request::with_deadline`] say otherwise); the `try_` calls take what the lane has and ask
//! nobody. Nothing waits for ever.
//!
//! # Death
//!
//! When this process ends, however it ends, every page that it held, cached or had on the way goes
//! home, and only then can others have it. When the daemon ends, pages stay this process's own,
//! their bytes stay, frees go on, and the lanes serve what is in them; calls answer
//! [`Shortfall::DaemonAway`]. A client that the daemon has shut out keeps its pages until it exits,
//! and gets [`Shortfall::Detached`].
//!
//! # Threads
//!
//! A [`Client`] is `Send`, `Sync`, and cheap to clone. Each thread gets a lane at its first call,
//! as many as there are ([`Options::lanes`]); the rest share one. What one thread took, another may
//! free. [`Client::local`] gives a handle to this thread's lane, which is the fastest. A process
//! may have eight clients, of one daemon or of several. Calls may be made from inside an
//! asynchronous runtime, which they block for as long as they wait. From a signal handler that
//! has interrupted a call they are refused.
//!
//! # Fork
//!
//! A forked child has none of its parent's pages: calls answer [`Shortfall::Forked`], dropping a
//! page does nothing, touching one panics or faults, and attaching is refused. A program that the
//! child executes starts afresh.
//!
//! # Trust
//!
//! The bytes of a page are this process's alone because the clients of a zone keep to their own:
//! custody is bookkeeping, the zone is the border. Clients that do not trust one another get
//! different zones.
#![forbid(unsafe_code)]

mod adopt;
mod attach;
mod calls;
pub mod channel;
mod client;
mod desk;
mod error;
mod local;
mod movable;
mod obtain;
mod options;
mod order;
mod pressure;
mod remote;
mod request;
pub mod runtime_dir;
mod sections;
mod shortfall;

pub use client::Client;
pub use error::AttachError;
pub use hugepool_shm::handle::PinError;
pub use hugepool_shm::movable::{Pinned, PinnedMut};
pub use hugepool_shm::page_runs::{runs, runs_mut};
pub use hugepool_shm::parcel::Parcel;
pub use hugepool_shm::post::{ClaimError, HandOverError};
pub use hugepool_shm::shared_page::SharedPage;
pub use hugepool_shm::ticket::Ticket;
pub use hugepool_shm::{attach::RefusalCode, page::Page, raw::RawMigratetype as Migratetype};
pub use local::LocalLane;
pub use movable::{EvictablePage, IntoPageError, MovablePage};
pub use options::Options;
pub use order::{NoSuchOrder, Order};
pub use pressure::{Pressure, PressureLevel, PressureWatch};
pub use request::{Bulk, NoSuchZone, Request};
pub use shortfall::Shortfall;

/// The counters that a daemon leaves in memory, for tools.
pub mod stats {
    pub use hugepool_shm::stats::{StatsError, StatsReader, StatsSnapshot, remove_left_over};
}
