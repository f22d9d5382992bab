//! Why a call brought fewer pages than asked: one state of the world each, with its numbers.

use std::time::Duration;

use hugepool_proto::v1;

/// Why there are fewer pages than were asked for.
///
/// Falling short is ordinary: whoever refills an array asks again. What is worth a retry says
/// [`Shortfall::is_transient`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Shortfall {
    /// The client has reached its limit.
    #[error("the client owns {owned_pages} of the {ceiling_pages} pages that it may own")]
    Quota {
        /// Pages in its custody.
        owned_pages: u64,
        /// The most it may have.
        ceiling_pages: u64,
    },
    /// The zone is at its reserve.
    #[error("the zone has {free_pages} free pages and keeps {min_pages}")]
    ZoneEmpty {
        /// Free pages of the zone.
        free_pages: u64,
        /// Its lowest watermark.
        min_pages: u64,
    },
    /// There are pages, but no block of the order.
    #[error("no block of the order among {free_pages} free pages, the largest is of order {}",
        largest_order.map_or("none".into(), |order| order.to_string()))]
    Fragmented {
        /// Free pages of the zone.
        free_pages: u64,
        /// Order of its largest free block, if any is free.
        largest_order: Option<u8>,
    },
    /// What is free lies in sections that are being taken away.
    #[error("the free pages are in sections that are going offline")]
    Offlining,
    /// The daemon is taking unused pages back from this lane.
    #[error("the lane is being recalled")]
    Recalled,
    /// What is free lies in sections that could not be mapped here.
    #[error("the free pages are in sections that this process could not map")]
    NotMapped,
    /// The daemon does not answer; what the lanes hold can be had still.
    #[error("the daemon does not answer")]
    DaemonAway,
    /// Nothing could be had in the time given; for a `try_` call, without waiting.
    #[error("nothing could be had within {} ms", waited.as_millis())]
    Deadline {
        /// The time given.
        waited: Duration,
    },
    /// No zone has blocks as large.
    #[error("the largest block is of order {max_order}")]
    OrderTooLarge {
        /// The largest order there is.
        max_order: u8,
    },
    /// The daemon has shut this client's lanes: it was evicted, or has misused them.
    #[error("the daemon has detached this client")]
    Detached,
    /// All handles of movable pages are in use.
    #[error("all {nr_handles} handles of movable pages are in use")]
    NoHandle {
        /// How many a client has.
        nr_handles: u32,
    },
    /// This process is a fork of the one that attached.
    #[error("this process is a fork of the one that attached")]
    Forked,
    /// The call came from a signal handler in the middle of another.
    #[error("a call from a signal handler met another under way")]
    Reentered,
}

impl Shortfall {
    /// Whether the same call may bring more a little later without anybody's doing.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Shortfall::ZoneEmpty { .. }
                | Shortfall::Fragmented { .. }
                | Shortfall::Offlining
                | Shortfall::Recalled
                | Shortfall::DaemonAway
                | Shortfall::Deadline { .. }
                | Shortfall::Reentered
        )
    }
}

/// Reads what the daemon said. A reason of a later version reads as no reason.
pub(crate) fn from_wire(wire: v1::Shortfall, waited: Duration) -> Option<Shortfall> {
    use v1::shortfall::Reason;
    Some(match wire.reason? {
        Reason::Quota(quota) => Shortfall::Quota {
            owned_pages: quota.owned_pages,
            ceiling_pages: quota.ceiling_pages,
        },
        Reason::ZoneEmpty(empty) => Shortfall::ZoneEmpty {
            free_pages: empty.free_pages,
            min_pages: empty.min_pages,
        },
        Reason::Fragmented(fragmented) => Shortfall::Fragmented {
            free_pages: fragmented.free_pages,
            largest_order: fragmented
                .largest_order
                .and_then(|order| u8::try_from(order).ok()),
        },
        Reason::Offlining(_) => Shortfall::Offlining,
        Reason::Recalled(_) => Shortfall::Recalled,
        Reason::NotMapped(_) => Shortfall::NotMapped,
        Reason::Deadline(_) => Shortfall::Deadline { waited },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_carries_the_numbers() {
        let cases = [
            (
                Shortfall::Quota {
                    owned_pages: 5,
                    ceiling_pages: 5,
                },
                "the client owns 5 of the 5 pages that it may own",
            ),
            (
                Shortfall::Fragmented {
                    free_pages: 900,
                    largest_order: Some(3),
                },
                "no block of the order among 900 free pages, the largest is of order 3",
            ),
            (
                Shortfall::Fragmented {
                    free_pages: 0,
                    largest_order: None,
                },
                "no block of the order among 0 free pages, the largest is of order none",
            ),
            (
                Shortfall::Deadline {
                    waited: Duration::from_secs(1),
                },
                "nothing could be had within 1000 ms",
            ),
        ];
        for (shortfall, text) in cases {
            assert_eq!(shortfall.to_string(), text);
        }
    }

    #[test]
    fn a_reason_from_a_later_version_is_none() {
        assert_eq!(
            from_wire(v1::Shortfall { reason: None }, Duration::ZERO),
            None
        );
    }
}
