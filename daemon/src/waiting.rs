//! Waiting for the engine's counters to move, without missing a move and without spinning.
//!
//! The engine counts what may let a waiting call go on; whoever visits the engine publishes the
//! counts. A waiter also looks after a tick: not everything that it waits for is counted.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// How long a waiter waits before it looks anyway.
const TICK: Duration = Duration::from_millis(10);

/// One of the engine's counters, as published.
#[derive(Debug, Default)]
pub struct Counter {
    value: watch::Sender<u64>,
}

impl Counter {
    /// Publishes the count; wakes waiters if it has risen.
    pub fn set(&self, value: u64) {
        self.value.send_if_modified(|seen| {
            // Two threads may publish in the other order than they visited.
            let has_risen = *seen < value;
            *seen = value.max(*seen);
            has_risen
        });
    }

    /// A view that misses no move from now on.
    pub fn watch(&self) -> Moves {
        Moves {
            seen: self.value.subscribe(),
        }
    }
}

/// Tells when a counter has moved.
#[derive(Debug)]
pub struct Moves {
    seen: watch::Receiver<u64>,
}

impl Moves {
    /// Returns when it has moved since the last time, or after a tick.
    pub async fn moved(&mut self) {
        // Either end is a reason to look.
        let _ = timeout(TICK, self.seen.changed()).await;
    }

    /// The same, but not past `deadline`.
    pub async fn moved_until(&mut self, deadline: Instant) {
        let _ = timeout_at(deadline, self.moved()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_move_before_the_wait_is_not_missed() {
        let counter = Counter::default();
        let mut moves = counter.watch();
        counter.set(1);
        let before = Instant::now();
        moves.moved().await;
        assert_eq!(Instant::now(), before);
        moves.moved().await;
        assert_eq!(Instant::now(), before + TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_never_goes_back() {
        let counter = Counter::default();
        counter.set(2);
        let mut moves = counter.watch();
        counter.set(1);
        let before = Instant::now();
        moves.moved().await;
        assert_eq!(
            Instant::now(),
            before + TICK,
            "a late publisher wakes nobody"
        );
    }
}
