//! The window: how a lane is shut for a recall without a locked instruction on the client's side.
//!
//! The client stores its *reach* (the most blocks it may move) into `busy`, then loads `epoch`,
//! works, and stores `busy = 0`. The daemon makes `epoch` odd, issues one `membarrier` for all
//! lanes of the round, and waits for `busy = 0`. So either the client sees the odd epoch and
//! keeps off, or the daemon sees the client's reach and keeps off what it may be moving.
//!
//! It is an epoch and no flag, because the daemon may shut, take, rewind and open between two
//! operations: the next one must learn that its remembered cursors are worth nothing.

use crate::step::reached as step;
use crate::sync::SeqCst;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release, fence, light_barrier};

/// The two words of one lane's window.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    /// Written by the client.
    pub busy: &'a AtomicU32,
    /// Written by the daemon.
    pub epoch: &'a AtomicU32,
}

impl Window<'_> {
    /// Whether an operation of this very lane is in flight: seen from a signal handler, say.
    #[inline(always)]
    pub fn is_entered(&self) -> bool {
        self.busy.load(Relaxed) != 0
    }

    /// Enters with a reach of at least 1, and returns the epoch found. If it is not the one last
    /// seen, the caller must look closer before it touches anything.
    #[inline(always)]
    pub fn enter(&self, reach: u32, registered: bool) -> u32 {
        // SYNC(window.busy): a daemon that sees this reach sees all that was done before it.
        self.busy.store(reach, Release);
        step("window.entered");
        light_barrier(registered);
        // SYNC(window.epoch): pairs with the daemon's opening; what it took and rewound is seen.
        self.epoch.load(Acquire)
    }

    /// Leaves.
    #[inline(always)]
    pub fn leave(&self) {
        step("window.worked");
        // SYNC(window.busy): a daemon that sees 0 sees all that was done in the window.
        self.busy.store(0, Release);
        step("window.left");
    }

    /// The daemon's publication of an odd epoch; a barrier must follow before [`Window::reach`].
    pub fn close(&self, odd_epoch: u32) {
        debug_assert!(odd_epoch % 2 == 1);
        self.epoch.store(odd_epoch, Relaxed);
    }

    /// The daemon's look at the reach in flight, 0 if none.
    pub fn reach(&self) -> u32 {
        // For clients that use a real fence; those that registered have met the barrier.
        // SYNC(window.busy): pairs with `light_barrier` in the client.
        fence(SeqCst);
        // SYNC(window.busy): what was done before the value was stored is seen.
        self.busy.load(Acquire)
    }

    /// The daemon's publication of an even epoch.
    pub fn open(&self, even_epoch: u32) {
        debug_assert!(even_epoch.is_multiple_of(2));
        // SYNC(window.epoch): cursors set while the lane was closed are published with it.
        self.epoch.store(even_epoch, Release);
    }
}

/// An epoch that no lane ever has: what a client has seen that has seen none. Not merely odd: a
/// fresh client of a lane that is closed at its own mark would take it for unchanged.
pub(crate) const NO_EPOCH: u32 = u32::MAX;

/// The epoch of a lane that is closed next; the one after it opens.
pub(crate) fn next_closed(epoch: u32) -> u32 {
    match epoch.wrapping_add(1) {
        NO_EPOCH => NO_EPOCH.wrapping_add(2),
        next => next,
    }
}

/// Whether a lane with this epoch is closed.
#[inline(always)]
pub(crate) fn is_closed(epoch: u32) -> bool {
    epoch & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_alternate_and_leave_one_out_when_they_wrap() {
        assert_eq!(next_closed(0), 1);
        assert_eq!(next_closed(2), 3);
        assert_eq!(next_closed(u32::MAX - 1), 1);
        assert!(is_closed(NO_EPOCH));
    }
}
