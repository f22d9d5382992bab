//! What systemd is told, and the sockets it has bound for us.
//!
//! Without systemd (`NOTIFY_SOCKET` unset) each call does nothing. A notification that cannot be
//! sent is logged and forgotten: the manager's own time-outs deal with what it did not hear.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hugepool_shm::passed::{PassedError, PassedFd, take_passed};
use sd_notify::NotifyState;

use crate::store::Store;

/// Takes the sockets that the manager has bound and what it has kept, once in the life of the process.
///
/// # Errors
/// [`PassedError`] when the environment promises what is not there.
pub fn passed_descriptors() -> Result<Vec<PassedFd>, PassedError> {
    take_passed(&|name| std::env::var_os(name))
}

/// Clients can attach.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration is being read again; [`ready`] says that it has been.
pub fn reloading() {
    let now = match NotifyState::monotonic_usec_now() {
        Ok(now) => now,
        Err(error) => {
            tracing::debug!(%error, "no time for the service manager");
            return send(&[NotifyState::Reloading]);
        }
    };
    send(&[NotifyState::Reloading, now]);
}

/// The daemon has begun to stop.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Starting takes this much longer: populating memory can outlast the manager's patience.
pub fn starting(status: &str, extend: Duration) {
    let micros = u32::try_from(extend.as_micros()).unwrap_or(u32::MAX);
    send(&[
        NotifyState::ExtendTimeoutUsec(micros),
        NotifyState::Status(status),
    ]);
}

/// The way to a manager that reads nothing must end: `sd_notify::notify` would wait for room for ever.
fn send(states: &[NotifyState<'_>]) {
    let lines: Vec<String> = states.iter().map(ToString::to_string).collect();
    if let Err(errno) = Store::from_environment().tell(&lines.join("\n")) {
        tracing::warn!(%errno, "the service manager was not told");
    }
}

/// Tells the manager that both long-lived threads are alive, and only then.
///
/// Each thread beats; [`Watchdog::report`] sends if both have beaten since it last sent. A thread
/// that hangs, in a lock or a loop, so ends the notifications and the manager restarts the daemon.
#[derive(Debug)]
pub struct Watchdog {
    period: Option<Duration>,
    lanes: AtomicU64,
    rpc: AtomicU64,
}

/// What [`Watchdog::report`] has seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    lanes: u64,
    rpc: u64,
}

impl Watchdog {
    /// The one that the manager asks for, if it does.
    pub fn from_environment() -> Watchdog {
        Watchdog::with_period(sd_notify::watchdog_enabled())
    }

    fn with_period(period: Option<Duration>) -> Watchdog {
        Watchdog {
            period: period.filter(|period| !period.is_zero()),
            lanes: AtomicU64::new(0),
            rpc: AtomicU64::new(0),
        }
    }

    /// How often each thread has to beat; none if nobody asks.
    pub fn beat_every(&self) -> Option<Duration> {
        // Half of the period is the manager's advice; half of that again leaves room for one
        // beat that comes late.
        self.period.map(|period| period / 4)
    }

    /// The lanes thread is alive.
    pub fn beat_lanes(&self) {
        self.lanes.fetch_add(1, Ordering::Relaxed);
    }

    /// The rpc thread is alive.
    pub fn beat_rpc(&self) {
        self.rpc.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends if both threads have beaten since `seen`; tells whether it did.
    pub fn report(&self, seen: &mut Seen) -> bool {
        let now = Seen {
            lanes: self.lanes.load(Ordering::Relaxed),
            rpc: self.rpc.load(Ordering::Relaxed),
        };
        if self.period.is_none() || now.lanes == seen.lanes || now.rpc == seen.rpc {
            return false;
        }
        *seen = now;
        send(&[NotifyState::Watchdog]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_only_when_both_threads_have_beaten() {
        let watchdog = Watchdog::with_period(Some(Duration::from_secs(2)));
        assert_eq!(watchdog.beat_every(), Some(Duration::from_millis(500)));
        let mut seen = Seen::default();
        assert!(!watchdog.report(&mut seen));
        watchdog.beat_lanes();
        assert!(!watchdog.report(&mut seen), "rpc hangs");
        watchdog.beat_rpc();
        assert!(watchdog.report(&mut seen));
        watchdog.beat_rpc();
        assert!(!watchdog.report(&mut seen), "lanes hangs");
        watchdog.beat_lanes();
        assert!(watchdog.report(&mut seen));
    }

    #[test]
    fn nobody_asking_means_no_beat_and_no_report() {
        let watchdog = Watchdog::with_period(None);
        watchdog.beat_lanes();
        watchdog.beat_rpc();
        assert_eq!(watchdog.beat_every(), None);
        assert!(!watchdog.report(&mut Seen::default()));
    }
}
