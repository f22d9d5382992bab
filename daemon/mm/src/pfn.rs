//! Page numbers and ranges of them.
//!
//! A [`Pfn`] names one base page over all zones; it is never an address and never
//! a count. Ranges are half open and 64 bits wide, so that a range may end at 2^32.

use core::fmt;

use crate::Order;

/// Page frame number: the index of one base page, counted from 0 over all zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(u32);

impl Pfn {
    /// The page with this number.
    #[must_use]
    pub const fn new(pfn: u32) -> Pfn {
        Pfn(pfn)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether a block of `order` may start here.
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.nr_pages() - 1) == 0
    }

    /// The head of the block of `order` that this page lies in.
    #[must_use]
    pub const fn align_down(self, order: Order) -> Pfn {
        Pfn(self.0 & !(order.nr_pages() - 1))
    }

    /// The other half of the parent block.
    ///
    /// # Panics
    /// If no block of `order` may start here.
    #[must_use]
    pub const fn buddy(self, order: Order) -> Pfn {
        assert!(self.is_aligned(order));
        Pfn(self.0 ^ order.nr_pages())
    }

    /// The page `nr_pages` above, or `None` past 2^32.
    #[must_use]
    pub const fn checked_add(self, nr_pages: u32) -> Option<Pfn> {
        match self.0.checked_add(nr_pages) {
            Some(pfn) => Some(Pfn(pfn)),
            None => None,
        }
    }

    /// Pages from `other` up to this one, or `None` if `other` is above.
    #[must_use]
    pub const fn checked_sub(self, other: Pfn) -> Option<u32> {
        self.0.checked_sub(other.0)
    }

    /// The pages of the block of `order` headed here.
    #[must_use]
    pub const fn block(self, order: Order) -> PfnRange {
        let start = self.0 as u64;
        PfnRange {
            start,
            end: start + order.nr_pages() as u64,
        }
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Pages `start..end`, `end` exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PfnRange {
    /// First page.
    pub start: u64,
    /// One past the last page; at most 2^32.
    pub end: u64,
}

impl PfnRange {
    /// `nr_pages` pages from `start` on.
    #[must_use]
    pub const fn new(start: Pfn, nr_pages: u64) -> PfnRange {
        PfnRange {
            start: start.get() as u64,
            end: start.get() as u64 + nr_pages,
        }
    }

    /// Number of pages; 0 for a range that ends before it starts.
    #[must_use]
    pub const fn nr_pages(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no page in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether the page lies in it.
    #[must_use]
    pub const fn contains(self, pfn: Pfn) -> bool {
        self.start <= pfn.get() as u64 && (pfn.get() as u64) < self.end
    }

    /// Whether all of `other` lies in it; an empty range lies in any.
    #[must_use]
    pub const fn covers(self, other: PfnRange) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// The common part, possibly empty.
    #[must_use]
    pub fn intersect(self, other: PfnRange) -> PfnRange {
        let start = self.start.max(other.start);
        PfnRange {
            start,
            end: self.end.min(other.end).max(start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buddies_are_mutual_and_share_a_parent() {
        let order = Order::new(3).unwrap();
        let pfn = Pfn::new(0x28);
        assert_eq!(pfn.buddy(order), Pfn::new(0x20));
        assert_eq!(pfn.buddy(order).buddy(order), pfn);
        assert_eq!(pfn.align_down(Order::new(4).unwrap()), Pfn::new(0x20));
    }

    #[test]
    fn a_range_may_end_at_two_to_the_32() {
        let range = Pfn::new(u32::MAX).block(Order::ZERO);
        assert_eq!(range.end, 1 << 32);
        assert!(range.contains(Pfn::new(u32::MAX)));
        assert_eq!(Pfn::new(u32::MAX).checked_add(1), None);
    }

    #[test]
    fn ranges_intersect_and_cover() {
        let a = PfnRange { start: 10, end: 20 };
        let b = PfnRange { start: 15, end: 30 };
        assert_eq!(a.intersect(b), PfnRange { start: 15, end: 20 });
        assert!(a.intersect(PfnRange { start: 40, end: 50 }).is_empty());
        assert!(a.covers(PfnRange { start: 10, end: 20 }) && !a.covers(b));
    }
}
