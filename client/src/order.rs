//! [`Order`]: how large a block is.

use std::fmt;

use hugepool_shm::raw::ORDER_MAX;

/// Size of a block as a power of two of pages: order 0 is one page, order 9 is 512.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// One page.
    pub const PAGE: Order = Order(0);

    /// The order, if a page word can carry it. Whether a daemon has blocks as large is for it to say.
    ///
    /// # Errors
    /// [`NoSuchOrder`] above 15.
    pub const fn new(order: u8) -> Result<Order, NoSuchOrder> {
        // Widened for the comparison; nothing is lost.
        if order as u32 > ORDER_MAX {
            Err(NoSuchOrder(order))
        } else {
            Ok(Order(order))
        }
    }

    /// As a number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Pages of a block.
    pub const fn nr_pages(self) -> u32 {
        1 << self.0
    }
}

impl TryFrom<u8> for Order {
    type Error = NoSuchOrder;

    fn try_from(order: u8) -> Result<Order, NoSuchOrder> {
        Order::new(order)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// No page word carries an order as large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("order {0}, where they go to {ORDER_MAX}")]
pub struct NoSuchOrder(pub u8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_power_of_two_of_pages() {
        assert_eq!(Order::PAGE.nr_pages(), 1);
        assert_eq!(Order::new(9).unwrap().nr_pages(), 512);
        assert_eq!(Order::new(16), Err(NoSuchOrder(16)));
    }
}
