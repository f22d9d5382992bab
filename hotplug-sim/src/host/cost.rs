//! What things take in told time: the kernel's own costs as measured on one machine, so that
//! "how long" has a unit. They are constants, not a promise.

/// Moving one page of 4 KiB (whole-zone compaction in Linux 7.3: 3.0 GB/s).
pub const MOVE_PAGE_NS: u64 = 1_400;
/// Taking a page from the allocator (Linux 7.3, single).
pub const TAKE_NS: u64 = 76;
/// Giving a page back (Linux 7.3, single).
pub const GIVE_NS: u64 = 47;
/// Isolating, or giving back, one pageblock.
pub const ISOLATE_PAGEBLOCK_NS: u64 = 2_000;
/// Bringing one section online at pageblock order, per pageblock (Linux 7.3: 0.26 ms for 128).
pub const ONLINE_PAGEBLOCK_NS: u64 = 2_000;

/// The time to move pages of that size.
pub fn move_pages(nr_pages: u64, page_bytes: u64) -> u64 {
    nr_pages * MOVE_PAGE_NS * (page_bytes / 4096)
}
