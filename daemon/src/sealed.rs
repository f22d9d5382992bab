//! Sealed: what a daemon before has left cannot be gone on from, so all of it is held as it is.
//!
//! Nothing is lent and nobody is let in; clients go on with what they have, and their calls wait.
//! Letting go would lose pages that are in use, so that is for people to decide: by stopping the
//! service.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use hugepool_proto::v1::admin_server::AdminServer;
use nix::errno::Errno;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::confine;
use crate::kept::Kept;
use crate::rpc::sealed::SealedService;
use crate::runtime_dir::RuntimeDir;
use crate::sockets::Sockets;
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
            .chain(kept.channels.iter().map(|(_, fd)| fd))
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

/// A daemon that holds, and answers to people.
#[derive(Debug)]
pub struct Sealed {
    /// Why.
    pub why: String,
    /// What is held.
    pub held: Held,
    /// Nobody is served but by `admin.sock`; who comes to the others waits.
    pub sockets: Sockets,
    /// Where they are.
    pub runtime_dir: PathBuf,
    // Last: what guards the directory goes when the sockets in it are gone.
    pub(crate) _dir: RuntimeDir,
}

impl Sealed {
    /// Holds until SIGTERM or SIGINT, and says so to whoever asks.
    ///
    /// # Errors
    /// When the system gives no runtime or signal handler.
    pub fn hold(self) -> io::Result<()> {
        confine::confine(&self.runtime_dir, None);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            // There is nothing to read again, and no reason to die of it.
            let _hangup = signal(SignalKind::hangup())?;
            let admin = UnixListener::from_std(self.sockets.admin.listener()?)?;
            let service = AdminServer::new(SealedService::new(self.why.clone()));
            let incoming = UnixListenerStream::new(admin);
            let serving = Server::builder().add_service(service);
            let serving = serving.serve_with_incoming(incoming);
            let status = format!("sealed: {}", self.why);
            tracing::error!(
                "{status}: all is held as it is, nothing is lent; stop the service to let go"
            );
            systemd::ready(&status);
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = feed() => {}
                ended = serving => ended.map_err(io::Error::other)?,
            }
            Ok::<(), io::Error>(())
        })?;
        drop(self.held);
        // Of the one that died last.
        let _ = hugepool_shm::stats::remove_left_over(&self.runtime_dir);
        Ok(())
    }
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
