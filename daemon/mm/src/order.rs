//! Size of a block as a power of two in base pages.
//!
//! An order is not a count and not an index; [`Order::nr_pages`] turns it into a
//! count. What the largest order of a zone is says its [`Geometry`](crate::Geometry).

use core::fmt;

/// log2 of the number of base pages in a block, `0..=Order::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// The order of a single page.
    pub const ZERO: Order = Order(0);
    /// The largest order a page word can name (it has four bits for it).
    pub const MAX: Order = Order(15);

    /// An order, or `None` above [`Order::MAX`].
    #[must_use]
    pub const fn new(order: u8) -> Option<Order> {
        if order <= Self::MAX.0 {
            Some(Order(order))
        } else {
            None
        }
    }

    /// The order as a number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The order as an index into a table by order.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Base pages in a block of this order.
    #[must_use]
    pub const fn nr_pages(self) -> u32 {
        1 << self.0
    }

    /// The next larger order, or `None` at [`Order::MAX`].
    #[must_use]
    pub const fn up(self) -> Option<Order> {
        Order::new(self.0 + 1)
    }

    /// The smallest order whose block holds `nr_pages`; `None` if no order is large enough.
    #[must_use]
    pub const fn holding(nr_pages: u32) -> Option<Order> {
        if nr_pages <= 1 {
            return Some(Order(0));
        }
        let bits = u32::BITS - (nr_pages - 1).leading_zeros();
        if bits <= Self::MAX.0 as u32 {
            Some(Order::from_bits(bits))
        } else {
            None
        }
    }

    /// An order from a number known to be at most [`Order::MAX`].
    ///
    /// # Panics
    /// Above [`Order::MAX`]: our own mistake, never a caller's value.
    pub(crate) const fn from_bits(order: u32) -> Order {
        assert!(order <= Self::MAX.0 as u32);
        let [low, ..] = order.to_le_bytes();
        Order(low)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_counts_pages_by_powers_of_two() {
        assert_eq!(Order::ZERO.nr_pages(), 1);
        assert_eq!(Order::new(9).unwrap().nr_pages(), 512);
        assert_eq!(Order::new(16), None);
        assert_eq!(Order::MAX.up(), None);
    }

    #[test]
    fn the_order_holding_a_count_is_the_smallest_such() {
        let order = |n| Order::holding(n).map(Order::get);
        assert_eq!(order(0), Some(0));
        assert_eq!(order(1), Some(0));
        assert_eq!(order(64), Some(6));
        assert_eq!(order(65), Some(7));
        assert_eq!(order(1 << 15), Some(15));
        assert_eq!(order((1 << 15) + 1), None);
    }
}
