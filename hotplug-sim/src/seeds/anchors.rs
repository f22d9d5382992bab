//! What others measured: the figures that came with the ideas, and the kernel's own code natively.
//!
//! *Published*: the kernel's commit messages and cover letters that brought the idea. *Kernel*: the
//! page allocator of Linux 6.1 and 7.3, run natively as a user-mode kernel on one core of
//! the kind of machine this project is measured on (AMD EPYC, Zen 3 class), without page
//! clearing; 6.1 without SMP, 7.3 with its real locks, uncontended.

/// Figures of one arm, in the unit of its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Anchor {
    /// As published.
    pub published: Option<f64>,
    /// Linux 6.1 here.
    pub linux_6_1: Option<f64>,
    /// Linux 7.3 here.
    pub linux_7_3: Option<f64>,
}

const fn anchor(published: Option<f64>, linux_6_1: Option<f64>, linux_7_3: Option<f64>) -> Anchor {
    Anchor {
        published,
        linux_6_1,
        linux_7_3,
    }
}

/// 65 pages one by one, ns.
pub const SINGLE: Anchor = anchor(Some(25_007.0), Some(2531.0), Some(4951.0));
/// 65 pages by the bulk list, ns; it was removed in 6.14.
pub const LIST: Anchor = anchor(Some(6258.0), Some(562.0), None);
/// 65 pages by the bulk array, ns.
pub const ARRAY: Anchor = anchor(Some(4590.0), Some(544.0), Some(809.0));
/// A region of 256 MiB freed page by page, us. Published: 50 to 60 ms, on arm64, in 2018.
pub const ORDER_0: Anchor = anchor(Some(55_000.0), Some(3120.0), Some(5480.0));
/// The same in pageblocks, us. Published: below 1 ms.
pub const PAGEBLOCK: Anchor = anchor(Some(1000.0), Some(280.0), Some(260.0));
/// Is this pageblock whole? Asked without a cache, ns.
pub const WALKED: Anchor = anchor(None, Some(3.9), Some(4.8));
/// The same of a cache, ns.
pub const CACHED: Anchor = anchor(None, Some(2.4), Some(2.2));
/// How many times faster compaction that passes by what it may not move is with a cache than
/// without: published 899 and 1194 MB/s; 6.1 shows no difference that can be measured.
pub const GAIN: Anchor = anchor(Some(1194.0 / 899.0), Some(1.0), None);
