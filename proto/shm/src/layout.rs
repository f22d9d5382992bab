//! What lies where in a control segment: plain integers, their offsets, and the version.
//!
//! It knows no protocol: who may write which word and when is said by [`ring`](crate::ring),
//! [`magazine`](crate::magazine), [`window`](crate::window), [`free_map`](crate::free_map),
//! [`handle`](crate::handle) and [`doorbell`](crate::doorbell). The structures are laid over zeroed memory, never built; under
//! loom, whose atomics have another size, they are built on the heap instead and kept tiny.
//!
//! Shape of a segment, each part at a multiple of 4 KiB:
//!
//! | part | size |
//! |---|---|
//! | [`Header`] | 4 KiB |
//! | `settled` | 4 bytes an outbox slot, written by the daemon: the last sequence it has settled |
//! | lanes | one [`Lane`] per lane |
//! | `announced` | 4 bytes a section, written by the daemon: its incarnation, 0 absent |
//! | `mapped` | 4 bytes a section, written by the client: the incarnation it has mapped |
//! | free map | 1 bit a page |
//! | summary of the free map | 1 bit per 4 KiB of it |
//! | handles | 8 bytes a handle: [`handle`](crate::handle) |
//! | page records | 8 bytes a page: [`handles`](crate::handles) |
//!
//! In a lane's rings lie runs ([`word_run`](crate::word_run)), in its magazines single words.

use crate::raw::NR_CLASSES;
use crate::sync::{AtomicU32, AtomicU64};

/// Version of everything in this file; told at attach and kept in the header.
pub const LAYOUT_VERSION: u32 = 2;
/// First word of a control segment: `hugepool` in ASCII, read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hugepool");

/// Blocks that the grants ring of an order-0 class holds.
pub const PAGE_GRANTS: usize = if cfg!(loom) { 4 } else { 1024 };
/// Blocks that the magazine of an order-0 class holds.
pub const PAGE_MAGAZINE: usize = if cfg!(loom) { 4 } else { 1024 };
/// Blocks that the grants ring of any other class holds.
pub const BLOCK_GRANTS: usize = if cfg!(loom) { 2 } else { 64 };
/// Blocks that the magazine of any other class holds.
pub const BLOCK_MAGAZINE: usize = if cfg!(loom) { 4 } else { 64 };
/// Words that the returns ring holds.
pub const RETURNS: usize = if cfg!(loom) { 2 } else { 2048 };
/// Classes that a lane really has: a model has one.
pub(crate) const LANE_CLASSES: usize = if cfg!(loom) { 1 } else { NR_CLASSES };
/// Class records laid out: a power of two, so that an index is masked and never out of bounds.
pub(crate) const CLASS_SLOTS: usize = if cfg!(loom) { 1 } else { 16 };
/// Order-0 classes come first.
pub(crate) const PAGE_CLASSES: usize = if cfg!(loom) { 1 } else { 3 };
const BLOCK_CLASSES: usize = CLASS_SLOTS - PAGE_CLASSES;
/// Words of the free map under one bit of its summary: 4 KiB of map.
pub(crate) const SUMMARY_GRAIN: usize = if cfg!(loom) { 2 } else { 512 };

/// First 4 KiB of a control segment.
#[repr(C, align(4096))]
pub struct Header {
    /// [`MAGIC`], written last by the daemon.
    pub(crate) magic: AtomicU64,
    /// [`LAYOUT_VERSION`].
    pub(crate) version: AtomicU32,
    /// Number of lanes.
    pub(crate) nr_lanes: AtomicU32,
    /// Sections of all zones together.
    pub(crate) nr_sections: AtomicU32,
    #[cfg(not(loom))]
    reserved0: AtomicU32,
    /// Pages of all zones together: what the free map covers.
    pub(crate) nr_pages: AtomicU64,
    #[cfg(not(loom))]
    reserved1: [AtomicU64; 4],

    /// Daemon: rises when `announced` has changed.
    pub(crate) section_epoch: AtomicU32,
    /// Daemon: 1 while it sleeps; the client that takes the 1 away rings.
    pub(crate) sleeping: AtomicU32,
    /// Daemon: futex word that it raises and wakes when it has news for a waiting client.
    pub(crate) wake: AtomicU32,
    /// Daemon: not 0 once the client is detached or poisoned; the number says why.
    pub(crate) closed: AtomicU32,
    /// Daemon: pages that the client may still claim from others.
    pub(crate) claim_allowance: AtomicU64,
    /// Daemon: pages that have become the client's by claims so far, modulo 2^64.
    pub(crate) nr_claims_settled: AtomicU64,
    #[cfg(not(loom))]
    reserved2: [AtomicU64; 4],

    /// Client: the section epoch up to which it has mapped and unmapped.
    pub(crate) mapped_epoch: AtomicU32,
    /// Client: 1 if it is registered for the global membarrier.
    pub(crate) registered: AtomicU32,
    /// Client: threads that wait for the wake futex.
    pub(crate) waiters: AtomicU32,
    /// Client: how often it found no outbox slot free, so far: asks for parcels to be settled.
    pub(crate) nr_outbox_full: AtomicU32,
    /// Client: its outbox slots below this one have held a share at one time.
    pub(crate) share_slots: AtomicU32,
    #[cfg(not(loom))]
    reserved5: AtomicU32,
    #[cfg(not(loom))]
    reserved4: [AtomicU64; 5 + 488],
}

/// One lane: a ring of returns, and per class a ring of grants and a magazine.
#[repr(C, align(4096))]
pub struct Lane {
    /// Written by the client.
    pub(crate) client: LaneClientLine,
    /// Written by the daemon, seldom: read by each operation.
    pub(crate) gate: LaneGateLine,
    /// Written by the daemon at each settle.
    pub(crate) settled: LaneSettledLine,
    #[cfg(not(loom))]
    reserved: [AtomicU64; 8],
    /// Cursors and settings per class; the slot behind the last class is not used.
    pub(crate) classes: [ClassWords; CLASS_SLOTS],
    #[cfg(not(loom))]
    reserved_tail: [AtomicU64; 96],
    /// Slots of the returns ring.
    pub(crate) returns: [AtomicU64; RETURNS],
    page_magazines: [[AtomicU64; PAGE_MAGAZINE]; PAGE_CLASSES],
    page_grants: [[AtomicU64; PAGE_GRANTS]; PAGE_CLASSES],
    block_magazines: [[AtomicU64; BLOCK_MAGAZINE]; BLOCK_CLASSES],
    block_grants: [[AtomicU64; BLOCK_GRANTS]; BLOCK_CLASSES],
    #[cfg(not(loom))]
    reserved_end: [AtomicU64; 384],
}

/// A lane's line that the client writes at each operation.
#[repr(C, align(64))]
pub(crate) struct LaneClientLine {
    /// Reach of the operation in flight, 0 between operations.
    pub busy: AtomicU32,
    /// Words pushed to `returns` so far, modulo 2^32.
    pub returns_tail: AtomicU32,
    /// Blocks freed into the free map through this lane so far, modulo 2^32.
    pub nr_mapped_frees: AtomicU32,
    /// Thread that uses the lane, 0 while it is parked; for people.
    pub thread: AtomicU32,
    #[cfg(not(loom))]
    reserved: [AtomicU64; 6],
}

/// A lane's line that says whether it is open.
#[repr(C, align(64))]
pub(crate) struct LaneGateLine {
    /// Even: open. Odd: closed.
    pub epoch: AtomicU32,
    #[cfg(not(loom))]
    reserved: [AtomicU32; 15],
}

/// A lane's line with the daemon's cursor of the returns ring.
#[repr(C, align(64))]
pub(crate) struct LaneSettledLine {
    /// Words taken from `returns` so far, modulo 2^32.
    pub returns_head: AtomicU32,
    #[cfg(not(loom))]
    reserved: [AtomicU32; 15],
}

/// Cursors and settings of one class.
#[repr(C)]
pub(crate) struct ClassWords {
    /// Written by the client; `mag_bottom` and `mag_last` also by the daemon while it has the lane
    /// closed.
    pub client: ClassClientLine,
    /// Written by the daemon at each grant.
    pub granted: ClassGrantedLine,
    /// Written by the daemon when the settings change, and at a recall.
    pub settings: ClassSettingsLine,
}

/// The client's cursors of one class, all modulo 2^32.
#[repr(C, align(64))]
pub(crate) struct ClassClientLine {
    /// Blocks taken from `grants` so far.
    pub grants_head: AtomicU32,
    /// Position of the oldest block in the magazine.
    pub mag_bottom: AtomicU32,
    /// Position behind the newest block in the magazine.
    pub mag_top: AtomicU32,
    /// Blocks that were asked for and not there, so far.
    pub wanted: AtomicU32,
    /// The block freed last, kept beside the magazine; 0 for none.
    pub mag_last: AtomicU64,
    #[cfg(not(loom))]
    reserved: [AtomicU64; 5],
}

/// The daemon's cursor of one class's grants.
#[repr(C, align(64))]
pub(crate) struct ClassGrantedLine {
    /// Position behind the newest block in `grants`, modulo 2^32; goes back at a recall.
    pub grants_tail: AtomicU32,
    #[cfg(not(loom))]
    reserved: [AtomicU32; 15],
}

/// The daemon's settings of one class.
#[repr(C, align(64))]
pub(crate) struct ClassSettingsLine {
    /// Blocks to spill at once.
    pub batch: AtomicU32,
    /// Blocks above which the magazine spills.
    pub high: AtomicU32,
    /// Blocks in `grants` below which the client rings.
    pub low_mark: AtomicU32,
    /// Bit per zone index: blocks of these zones may lie in the magazine.
    pub zones: AtomicU32,
    /// Blocks that recalls have taken from the magazine so far, modulo 2^32.
    pub nr_recalled: AtomicU32,
    #[cfg(not(loom))]
    reserved: [AtomicU32; 11],
}

impl Lane {
    /// Cursors and settings of the class at `index`.
    #[inline(always)]
    pub(crate) fn class(&self, index: usize) -> &ClassWords {
        &self.classes[index & (CLASS_SLOTS - 1)]
    }

    /// Slots of a class's grants ring; their number is a power of two.
    #[inline(always)]
    pub(crate) fn grants(&self, index: usize) -> &[AtomicU64] {
        let index = index & (CLASS_SLOTS - 1);
        if index < PAGE_CLASSES {
            &self.page_grants[index]
        } else {
            &self.block_grants[index - PAGE_CLASSES]
        }
    }

    /// Slots of a class's magazine; their number is a power of two.
    #[inline(always)]
    pub(crate) fn magazine(&self, index: usize) -> &[AtomicU64] {
        let index = index & (CLASS_SLOTS - 1);
        if index < PAGE_CLASSES {
            &self.page_magazines[index]
        } else {
            &self.block_magazines[index - PAGE_CLASSES]
        }
    }
}

const _: () = assert!(PAGE_GRANTS.is_power_of_two() && PAGE_MAGAZINE.is_power_of_two());
const _: () = assert!(BLOCK_GRANTS.is_power_of_two() && BLOCK_MAGAZINE.is_power_of_two());
const _: () = assert!(RETURNS.is_power_of_two() && CLASS_SLOTS.is_power_of_two());
const _: () = assert!(LANE_CLASSES <= CLASS_SLOTS && PAGE_CLASSES <= LANE_CLASSES);

/// The structures as laid over memory: what each promises, and where each word is.
#[cfg(not(loom))]
mod laid_out {
    use core::mem::{offset_of, size_of};

    use super::*;
    use crate::mapping::Overlay;

    // SAFETY: `repr(C)`, atomics only, every gap is a named `reserved` field (the sizes below
    // leave none), aligned to 4096.
    unsafe impl Overlay for Header {}
    // SAFETY: `repr(C)`, atomics only, every gap is a named `reserved` field (the sizes and
    // offsets below leave none), aligned to 4096.
    unsafe impl Overlay for Lane {}

    const _: () = assert!(size_of::<Header>() == 4096);
    const _: () = assert!(offset_of!(Header, version) == 8);
    const _: () = assert!(offset_of!(Header, nr_lanes) == 12);
    const _: () = assert!(offset_of!(Header, nr_sections) == 16);
    const _: () = assert!(offset_of!(Header, nr_pages) == 24);
    const _: () = assert!(offset_of!(Header, section_epoch) == 64);
    const _: () = assert!(offset_of!(Header, sleeping) == 68);
    const _: () = assert!(offset_of!(Header, wake) == 72);
    const _: () = assert!(offset_of!(Header, closed) == 76);
    const _: () = assert!(offset_of!(Header, claim_allowance) == 80);
    const _: () = assert!(offset_of!(Header, nr_claims_settled) == 88);
    const _: () = assert!(offset_of!(Header, mapped_epoch) == 128);
    const _: () = assert!(offset_of!(Header, registered) == 132);
    const _: () = assert!(offset_of!(Header, waiters) == 136);
    const _: () = assert!(offset_of!(Header, nr_outbox_full) == 140);
    const _: () = assert!(offset_of!(Header, share_slots) == 144);

    const _: () = assert!(size_of::<LaneClientLine>() == 64);
    const _: () = assert!(size_of::<LaneGateLine>() == 64);
    const _: () = assert!(size_of::<LaneSettledLine>() == 64);
    const _: () = assert!(size_of::<ClassWords>() == 192);
    const _: () = assert!(offset_of!(ClassWords, granted) == 64);
    const _: () = assert!(offset_of!(ClassWords, settings) == 128);
    const _: () = assert!(offset_of!(LaneClientLine, busy) == 0);
    const _: () = assert!(offset_of!(LaneClientLine, returns_tail) == 4);
    const _: () = assert!(offset_of!(LaneClientLine, nr_mapped_frees) == 8);
    const _: () = assert!(offset_of!(LaneClientLine, thread) == 12);
    const _: () = assert!(offset_of!(ClassClientLine, grants_head) == 0);
    const _: () = assert!(offset_of!(ClassClientLine, mag_bottom) == 4);
    const _: () = assert!(offset_of!(ClassClientLine, mag_top) == 8);
    const _: () = assert!(offset_of!(ClassClientLine, wanted) == 12);
    const _: () = assert!(offset_of!(ClassClientLine, mag_last) == 16);
    const _: () = assert!(offset_of!(ClassSettingsLine, batch) == 0);
    const _: () = assert!(offset_of!(ClassSettingsLine, high) == 4);
    const _: () = assert!(offset_of!(ClassSettingsLine, low_mark) == 8);
    const _: () = assert!(offset_of!(ClassSettingsLine, zones) == 12);
    const _: () = assert!(offset_of!(ClassSettingsLine, nr_recalled) == 16);
    const _: () = assert!(offset_of!(Lane, gate) == 64);
    const _: () = assert!(offset_of!(Lane, settled) == 128);
    const _: () = assert!(offset_of!(Lane, classes) == 256);
    const _: () = assert!(offset_of!(Lane, returns) == 4096);
    const _: () = assert!(offset_of!(Lane, page_magazines) == 4096 * 5);
    const _: () = assert!(offset_of!(Lane, page_grants) == 4096 * 11);
    const _: () = assert!(offset_of!(Lane, block_magazines) == 4096 * 17);
    const _: () = assert!(offset_of!(Lane, block_grants) == 4096 * 17 + 512 * 13);
    const _: () = assert!(offset_of!(Lane, reserved_end) == 4096 * 17 + 2 * 512 * 13);
    const _: () = assert!(size_of::<Lane>() == offset_of!(Lane, reserved_end) + 8 * 384);
    const _: () = assert!(size_of::<Lane>() == 4096 * 21);
}

/// The structures as built for a model.
#[cfg(loom)]
pub(crate) mod built {
    use core::array::from_fn;

    use super::*;

    /// A function of its own, because each word of loom's takes kilobytes of stack to make, and
    /// inlined they add up to more than a model's thread has.
    #[inline(never)]
    pub(crate) fn word() -> AtomicU32 {
        AtomicU32::new(0)
    }

    #[inline(never)]
    pub(crate) fn slot() -> AtomicU64 {
        AtomicU64::new(0)
    }

    impl Header {
        pub(crate) fn new() -> Header {
            Header {
                magic: slot(),
                version: word(),
                nr_lanes: word(),
                nr_sections: word(),
                nr_pages: slot(),
                section_epoch: word(),
                sleeping: word(),
                wake: word(),
                closed: word(),
                claim_allowance: slot(),
                nr_claims_settled: slot(),
                mapped_epoch: word(),
                registered: word(),
                waiters: word(),
                nr_outbox_full: word(),
                share_slots: word(),
            }
        }
    }

    impl ClassWords {
        fn new() -> ClassWords {
            ClassWords {
                client: ClassClientLine {
                    grants_head: word(),
                    mag_bottom: word(),
                    mag_top: word(),
                    wanted: word(),
                    mag_last: slot(),
                },
                granted: ClassGrantedLine {
                    grants_tail: word(),
                },
                settings: ClassSettingsLine {
                    batch: word(),
                    high: word(),
                    low_mark: word(),
                    zones: word(),
                    nr_recalled: word(),
                },
            }
        }
    }

    impl Lane {
        pub(crate) fn new() -> Lane {
            Lane {
                client: LaneClientLine {
                    busy: word(),
                    returns_tail: word(),
                    nr_mapped_frees: word(),
                    thread: word(),
                },
                gate: LaneGateLine { epoch: word() },
                settled: LaneSettledLine {
                    returns_head: word(),
                },
                classes: from_fn(|_| ClassWords::new()),
                returns: from_fn(|_| slot()),
                page_magazines: from_fn(|_| from_fn(|_| slot())),
                page_grants: from_fn(|_| from_fn(|_| slot())),
                block_magazines: [],
                block_grants: [],
            }
        }
    }
}
