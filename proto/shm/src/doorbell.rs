//! The sleep protocol of the doorbell: who rings when, so that no ring is missing and few are
//! superfluous.
//!
//! The bell itself (an eventfd that the daemon watches and never reads) is not here; a client
//! hands in how to ring it. The daemon says 1 in `sleeping`, fences, looks at everything once
//! more, and only then sleeps; a client does its work, fences, looks at `sleeping`, and the one
//! that takes the 1 away rings. So either the daemon's last look sees the work, or the client
//! sees the 1. A periodic look of the daemon bounds what a hostile client can withhold.

use crate::sync::{AtomicU32, Relaxed, SeqCst, fence};

/// How a client rings: the descriptor is the business of whoever made this.
pub struct Doorbell(Box<dyn Fn() + Send + Sync>);

impl Doorbell {
    /// A doorbell that rings by calling `ring`, which must neither wait nor panic.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Doorbell {
        Doorbell(Box::new(ring))
    }

    /// Rings if the daemon sleeps; the caller has left work for it.
    #[cold]
    pub(crate) fn ring_if_asleep(&self, sleeping: &AtomicU32) {
        if must_ring(sleeping) {
            (self.0)();
        }
    }
}

impl core::fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Doorbell")
    }
}

/// Says that the daemon is about to sleep. It must look at all work once more before it does.
pub(crate) fn announce_sleep(sleeping: &AtomicU32) {
    sleeping.store(1, Relaxed);
    // SYNC(doorbell.sleeping): pairs with the client's fence in `must_ring`: the daemon's
    // following look and the client's look at `sleeping` cannot both miss.
    fence(SeqCst);
}

/// Says that the daemon is awake: clients need not ring.
pub(crate) fn announce_wake(sleeping: &AtomicU32) {
    sleeping.store(0, Relaxed);
}

/// Whether the caller, who has just left work for the daemon, has to ring. Of several callers
/// one is told so.
fn must_ring(sleeping: &AtomicU32) -> bool {
    // SYNC(doorbell.sleeping): pairs with the daemon's fence in `announce_sleep`.
    fence(SeqCst);
    sleeping.load(Relaxed) == 1 && sleeping.swap(0, Relaxed) == 1
}
