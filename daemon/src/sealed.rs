//! Sealed: what a daemon before has left cannot be gone on from, so all of it is held as it is.
//!
//! Nothing is lent and nobody is let in; clients go on with what they have, and their calls wait.
//! Letting go would lose pages that are in use, so that is for people to decide: by stopping the
//! service.

use std::os::fd::{AsFd as _, OwnedFd};

use nix::errno::Errno;
use tokio::signal::unix::{SignalKind, signal};

use crate::kept::Kept;
use crate::systemd::{self, Seen, Watchdog};

/// Descriptors of what was left.
#[derive(Debug)]
pub struct Held {
    _descriptors: Vec<OwnedFd>,
}

impl Held {
    /// Second descriptors of all that was kept.
    ///
    /// # Errors
    /// Those of duplicating a descriptor.
    pub fn of(state: &OwnedFd, kept: &Kept) -> Result<Held, Errno> {
        let clients = kept.clients.values();
        let clients = clients.flat_map(|client| [&client.control, &client.pidfd]);
        let all = [state]
            .into_iter()
            .chain(kept.zones.values())
            .chain(clients.flatten());
        let copies = all.map(|fd| fd.as_fd().try_clone_to_owned());
        let copies: Result<Vec<OwnedFd>, _> = copies.collect();
        let copies = copies
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EMFILE)))?;
        Ok(Held {
            _descriptors: copies,
        })
    }
}

/// Holds until SIGTERM or SIGINT.
///
/// # Errors
/// When the system gives no runtime or signal handler.
pub fn hold(why: &str, held: Held) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let status = format!("sealed: {why}");
        tracing::error!(
            "{status}: all is held as it is, nothing is lent; stop the service to let go"
        );
        systemd::ready(&status);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = feed() => {}
        }
        Ok::<(), std::io::Error>(())
    })?;
    drop(held);
    Ok(())
}

/// Nothing hangs here but this one loop.
async fn feed() {
    let watchdog = Watchdog::from_environment();
    let Some(period) = watchdog.beat_every() else {
        return std::future::pending().await;
    };
    let mut seen = Seen::default();
    let mut beats = tokio::time::interval(period);
    loop {
        beats.tick().await;
        watchdog.beat_rpc();
        watchdog.beat_lanes();
        watchdog.report(&mut seen);
    }
}
