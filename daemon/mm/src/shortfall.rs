//! Why a request was not served, as a state of the zone with its numbers.

use core::fmt;

use crate::Order;

/// What stood in the way of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortfall {
    /// Nothing is free.
    ZoneEmpty,
    /// What is free is kept back for requests that may dip.
    BelowWatermark {
        /// Free pages.
        free_pages: u64,
        /// Pages that this request had to leave free.
        mark_pages: u64,
    },
    /// Enough is free, but no block of the order.
    Fragmented {
        /// Free pages.
        free_pages: u64,
        /// Order of the largest free block.
        largest_order: Order,
    },
    /// A movable zone serves movable requests only.
    WrongKind,
    /// The order is above the zone's largest.
    OrderTooLarge {
        /// `MAX_PAGE_ORDER`.
        max_order: Order,
    },
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Shortfall::ZoneEmpty => f.write_str("the zone has no free page"),
            Shortfall::BelowWatermark {
                free_pages,
                mark_pages,
            } => {
                write!(
                    f,
                    "{free_pages} pages are free and {mark_pages} are kept back"
                )
            }
            Shortfall::Fragmented {
                free_pages,
                largest_order,
            } => {
                write!(
                    f,
                    "fragmented: {free_pages} pages are free, the largest block is of order {largest_order}"
                )
            }
            Shortfall::WrongKind => f.write_str("a movable zone serves movable requests only"),
            Shortfall::OrderTooLarge { max_order } => {
                write!(f, "the largest order is {max_order}")
            }
        }
    }
}

impl core::error::Error for Shortfall {}
