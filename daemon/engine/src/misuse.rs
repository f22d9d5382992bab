//! What can be wrong with a claim, with the numbers that show it.
//!
//! A peer's nonsense, never ours: it is counted, named, and changes nothing else.

use hugepool_mm::{Order, Pfn};
use hugepool_shm::ticket::Ticket;
use thiserror::Error;

use crate::id::ClientId;

/// Why a block was not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// Beyond all zones, or in a section that is not online.
    #[error("there is no page {pfn}")]
    NoSuchPage {
        /// As claimed.
        pfn: u32,
    },
    /// At home already (freed twice), or not the head of a block.
    #[error("page {pfn} is nobody's to free")]
    NotLent {
        /// As claimed.
        pfn: Pfn,
    },
    /// In another client's custody.
    #[error("page {pfn} is held by client {owner}")]
    NotYours {
        /// As claimed.
        pfn: Pfn,
        /// Whose it is.
        owner: ClientId,
    },
    /// The claimant's own page, but of another lend.
    #[error("page {pfn} was claimed at generation {claimed} and is at {there}")]
    Stale {
        /// As claimed.
        pfn: Pfn,
        /// The generation claimed.
        claimed: u32,
        /// The generation of the lend.
        there: u32,
    },
    /// The claimant's own block, but of another order.
    #[error("the block at {pfn} was claimed at order {claimed} and is of order {there}")]
    WrongOrder {
        /// As claimed.
        pfn: Pfn,
        /// The order claimed.
        claimed: u32,
        /// The order lent.
        there: Order,
    },
    /// Held by several to be read: no longer to be freed, handed over or moved as one's own.
    #[error("page {pfn} is shared")]
    Shared {
        /// As claimed.
        pfn: Pfn,
    },
    /// A parcel that its sender does not sign for, or that is settled, or in a zone that is not the
    /// claimant's.
    #[error("{ticket:?} names no parcel that was offered to this client")]
    NoSuchParcel {
        /// As claimed.
        ticket: Ticket,
    },
    /// A parcel that the claimant does not have.
    #[error("{ticket:?} names a parcel that client slot {by} has")]
    ParcelElsewhere {
        /// As claimed.
        ticket: Ticket,
        /// Who has it.
        by: u16,
    },
}
