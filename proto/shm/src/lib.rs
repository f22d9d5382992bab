//! What two processes of hugepool agree on in memory; the only crate with `unsafe`.
//!
//! # Rules of shared memory
//!
//! 1. References into shared memory are to atomics, with two exceptions: the bytes of a page in
//!    custody, and the slots of a magazine or ring between the caller's own cursors inside its
//!    window, which are copied as a block.
//! 2. Nothing with a pointer, a `bool`, an enum or padding is laid in shared memory.
//! 3. What a peer wrote is a claim: a cursor is checked at each read, a page word is judged by
//!    whoever keeps the owners. Nonsense poisons the lane; it never panics the daemon.
//! 4. An ordering above relaxed names its partner by a tag, `SYNC(tag)`, at both ends.

// The memory protocol: from words to lanes, then pages over them.
pub mod class;
pub mod control;
mod control_shape;
mod control_words;
pub mod doorbell;
pub mod faults;
pub mod free_map;
pub mod handle;
pub mod handle_pool;
pub mod handles;
pub mod lane_client;
pub mod lane_cursors;
pub mod lane_daemon;
mod lane_free;
mod lane_recall;
pub mod lane_stats;
pub mod layout;
mod magazine;
pub mod mapping;
#[cfg(not(loom))]
pub mod outbox;
pub mod raw;
mod ring;
pub mod scribble;
mod slots;
pub mod step;
mod sync;
mod taken;
pub mod ticket;
#[cfg(not(loom))]
pub mod ticket_ring;
pub mod transit;
mod window;
pub mod word_run;
pub mod words;

#[cfg(not(loom))]
mod attached;
#[cfg_attr(loom, allow(dead_code, reason = "models move words as loom's atomics"))]
mod block_copy;
#[cfg(not(loom))]
mod client_handle;
#[cfg(not(loom))]
mod lane_pages;
#[cfg(not(loom))]
pub mod movable;
#[cfg(not(loom))]
pub mod page;
#[cfg(not(loom))]
pub mod page_runs;
#[cfg(not(loom))]
pub mod parcel;
#[cfg(not(loom))]
mod peers;
#[cfg(not(loom))]
pub mod post;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod shared_page;
#[cfg(not(loom))]
mod slot_pool;
#[cfg(not(loom))]
mod thread_lane;
#[cfg(not(loom))]
mod zone_bytes;

// The system half: descriptors, sockets, sleeping and waking; files, their memory and its maps.
pub mod attach;
pub mod attach_wire;
pub mod backing;
pub mod backing_report;
pub mod barrier;
mod by_faults;
mod control_group;
pub mod eventfd;
pub mod futex;
pub mod huge_pool;
pub mod listener;
pub mod memory_room;
pub mod message;
mod node_bound;
pub mod numa;
pub mod page_io;
pub mod passed;
pub mod peer;
pub mod pidfd;
pub mod region;
pub mod runtime_dir;
pub mod seqlock;
mod side_by_side;
mod span;
pub mod spawn;
#[cfg(not(loom))]
pub mod state;
#[cfg(not(loom))]
pub mod stats;
#[cfg(not(loom))]
mod stats_segment;
pub mod storage;
#[cfg(test)]
#[path = "../tests/support"]
mod test_support {
    pub(crate) mod skip;
    pub(crate) mod system;
}
#[cfg(test)]
mod testing;
mod thp;
pub mod token;
pub mod zone_map;

pub use nix::errno::Errno;
