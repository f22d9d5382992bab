//! Waiting for the engine's counters to move, without missing a move and without spinning.
//!
//! The engine counts what may let a waiting call go on; whoever visits the engine publishes the
//! counts. A waiter also looks after a tick: not everything that it waits for is counted. The more
//! wait, the longer the tick, so that a crowd costs no more than a few do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// How long a waiter waits before it looks anyway.
const TICK: Duration = Duration::from_millis(10);

/// So many waiters look that often; of more, each looks less often.
const CROWD: u32 = 64;

/// The longest tick: what is not counted is seen after that time at the latest.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// One of the engine's counters, as published.
#[derive(Debug, Default)]
pub struct Counter {
    value: watch::Sender<u64>,
    nr_waiters: Arc<AtomicU32>,
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
            nr_waiters: self.nr_waiters.clone(),
        }
    }
}

/// Tells when a counter has moved.
#[derive(Debug)]
pub struct Moves {
    seen: watch::Receiver<u64>,
    nr_waiters: Arc<AtomicU32>,
}

impl Moves {
    /// Returns when it has moved since the last time, or after a tick.
    pub async fn moved(&mut self) {
        let waiting = Waiting::begin(&self.nr_waiters);
        // Either end is a reason to look.
        let _ = timeout(waiting.tick(), self.seen.changed()).await;
    }

    /// The same, but not past `deadline`.
    pub async fn moved_until(&mut self, deadline: Instant) {
        let _ = timeout_at(deadline, self.moved()).await;
    }
}

/// One that waits, counted until it does no more.
struct Waiting<'a> {
    nr_waiters: &'a AtomicU32,
    nr_before: u32,
}

impl Waiting<'_> {
    fn begin(nr_waiters: &AtomicU32) -> Waiting<'_> {
        // A count that decides how long a nap is orders nothing.
        let nr_before = nr_waiters.fetch_add(1, Ordering::Relaxed);
        Waiting {
            nr_waiters,
            nr_before,
        }
    }

    fn tick(&self) -> Duration {
        (TICK * (1 + self.nr_before / CROWD)).min(LONGEST_TICK)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.nr_waiters.fetch_sub(1, Ordering::Relaxed);
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

    /// How often so many waiters look within two seconds in which nothing moves.
    async fn looks(nr_waiters: u32) -> u32 {
        let counter = Counter::default();
        let nr_looks = Arc::new(AtomicU32::new(0));
        let end = Instant::now() + Duration::from_secs(2);
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..nr_waiters {
            let (mut moves, nr_looks) = (counter.watch(), nr_looks.clone());
            waiters.spawn(async move {
                while Instant::now() < end {
                    moves.moved_until(end).await;
                    nr_looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while waiters.join_next().await.is_some() {}
        assert_eq!(counter.nr_waiters.load(Ordering::Relaxed), 0);
        nr_looks.load(Ordering::Relaxed)
    }

    /// Seen to fail with a tick that is the same for all: 3 276 800 looks.
    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_waits_costs_little() {
        assert_eq!(looks(1).await, 200);
        let of_a_crowd = looks(16_384).await;
        assert!(of_a_crowd < 4 * 16_384, "{of_a_crowd} looks");
    }
}
