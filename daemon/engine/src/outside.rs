//! What the engine cannot do itself: effects for the runner, and the two things it needs at once.
//!
//! An [`Effect`] is slow or may fail, is drained by
//! [`Engine::take_effects`](crate::Engine::take_effects), done without the lock, and
//! answered by a call. [`Outside`] is quick and happens in the middle of a step.

use hugepool_mm::{SectionId, ZoneId};

use crate::id::{ClientId, OperationId};
use crate::moves::MoveBatch;

/// What the runner must do outside, without the engine's lock, and answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Punch and populate the section's backing; answer by
    /// [`Engine::populated`](crate::Engine::populated).
    Populate {
        /// For this operation.
        operation: OperationId,
        /// The zone whose file it is.
        zone: ZoneId,
        /// The section.
        section: SectionId,
    },
    /// Give the section's backing to the system; answer by
    /// [`Engine::punched`](crate::Engine::punched).
    Punch {
        /// For this operation.
        operation: OperationId,
        /// The zone whose file it is.
        zone: ZoneId,
        /// The section.
        section: SectionId,
    },
    /// Move blocks that clients hold; answer by [`Engine::moved`](crate::Engine::moved), in any
    /// case.
    Move {
        /// What, from where, to where.
        batch: MoveBatch,
    },
    /// Close the attach connection of a client that was evicted or poisoned; no answer.
    Close {
        /// The client.
        client: ClientId,
    },
    /// Send SIGKILL through the client's pidfd; no answer but its death.
    Kill {
        /// The client.
        client: ClientId,
    },
    /// The client is buried: drop its segment, doorbell, pidfd and token; no answer.
    Forget {
        /// The client.
        client: ClientId,
    },
}

/// What the engine needs done at once, in the middle of a step.
pub trait Outside {
    /// One `membarrier(GLOBAL_EXPEDITED)`: when it returns, every registered process has
    /// passed a full fence since the call.
    fn barrier(&mut self);
    /// Wakes whoever of the client sleeps on its segment's futex word.
    fn wake(&mut self, client: ClientId);
}

/// Nothing outside: for reports, and tests whose clients never sleep.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOutside;

impl Outside for NoOutside {
    fn barrier(&mut self) {}
    fn wake(&mut self, _client: ClientId) {}
}
