//! `--keeper`: the descriptor store without systemd.
//!
//! A parent that does nothing but keep what its child, the daemon, puts into the store, and start
//! the next one when it dies: with the descriptors where a service manager would put them. Daemons
//! that die soon after their start are started again after growing pauses. If the keeper itself
//! dies the daemon goes on, and says that it is `unprotected`.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use hugepool_shm::message::{Connection, RecvError};
use hugepool_shm::spawn::spawn_with;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::Pid;

use crate::exit;

/// Name of the socket in the run-time directory on which the daemon tells what to keep.
const SOCKET: &str = "keeper.sock";

/// What the daemon finds its keeper's pid under; the descriptors are for the child of that process.
pub const KEEPER_PID: &str = hugepool_shm::passed::KEEPER_PID;

/// Pauses before one that follows daemons which have not, in a row.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// A daemon that lives for less counts into such a row. Whether it may be gone on from what it leaves is
/// another question, and the daemons' own.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// How often the child is looked at when nothing is said.
const TICK: Duration = Duration::from_millis(20);

/// How long a daemon that was asked to stop may take: that of the unit (`TimeoutStopSec=`).
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Descriptors that one message brings.
const MAX_FDS: usize = 1;

/// Messages taken in a row before the child is looked at.
const MAX_MESSAGES: usize = 256;

struct Keeper {
    socket: Connection,
    path: PathBuf,
    kept: VecDeque<(String, OwnedFd)>,
    signals: SignalFd,
}

/// Keeps, and starts `daemon` again until it ends as it was asked to. `daemon` makes the command
/// anew for each start.
pub fn run(runtime_dir: &Path, daemon: &dyn Fn() -> Command) -> ExitCode {
    match keep(runtime_dir, daemon) {
        Ok(code) => code,
        Err(error) => exit::failure(&format!("the keeper cannot keep: {error}")),
    }
}

fn keep(runtime_dir: &Path, daemon: &dyn Fn() -> Command) -> io::Result<ExitCode> {
    let mut keeper = Keeper::new(runtime_dir)?;
    let mut nr_short = 0;
    loop {
        let begun = Instant::now();
        let child = keeper.start(daemon())?;
        let status = keeper.watch(child)?;
        match status.code() {
            // As it was asked to, or because it cannot be: starting it again is of no use.
            Some(code @ (0 | 2)) => return Ok(keeper.end(runtime_dir, code)),
            _ if keeper.is_asked_to_stop()? => return Ok(keeper.end(runtime_dir, 0)),
            _ => {}
        }
        nr_short = if begun.elapsed() < SHORT_LIFE {
            nr_short + 1
        } else {
            0
        };
        let pause = PAUSES[nr_short.min(PAUSES.len() - 1)];
        tracing::error!(%status, nr_kept = keeper.kept.len(), ?pause, "the daemon has died: started again");
        if keeper.pause(pause)? {
            return Ok(keeper.end(runtime_dir, 0));
        }
    }
}

impl Keeper {
    fn new(runtime_dir: &Path) -> io::Result<Keeper> {
        fs::create_dir_all(runtime_dir)?;
        let path = runtime_dir.join(SOCKET);
        // Two keepers on one directory: the second one's daemon finds the directory locked.
        let _ = fs::remove_file(&path);
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // For this user alone, from the first instant.
        let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_retain(0o177));
        let bound = bind(socket.as_raw_fd(), &UnixAddr::new(&path)?);
        nix::sys::stat::umask(before);
        bound?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        mask.add(Signal::SIGHUP);
        // A started child has none blocked: the library sees to that.
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Keeper {
            socket: Connection::from_fd(socket),
            path,
            kept: VecDeque::new(),
            signals,
        })
    }

    fn start(&self, mut command: Command) -> io::Result<Child> {
        let names: Vec<&str> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        command
            .env("NOTIFY_SOCKET", &self.path)
            .env(KEEPER_PID, std::process::id().to_string())
            .env_remove("LISTEN_PID")
            .env_remove("WATCHDOG_USEC")
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        let fds: Vec<BorrowedFd<'_>> = self.kept.iter().map(|(_, fd)| fd.as_fd()).collect();
        spawn_with(command, &fds)
    }

    /// Keeps what the child says until it ends.
    fn watch(&mut self, mut child: Child) -> io::Result<ExitStatus> {
        loop {
            self.hear(TICK);
            if let Some(signal) = self.signals.read_signal()? {
                if is_hangup(&signal) {
                    // For the daemon: it reads its configuration again.
                    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
                    let _ = kill(Pid::from_raw(pid), Signal::SIGHUP);
                    continue;
                }
                let status = self.stop(&mut child)?;
                return Ok(if status.code() == Some(0) {
                    status
                } else {
                    tracing::warn!(%status, "the daemon did not end well");
                    ExitStatus::default()
                });
            }
            if let Some(status) = child.try_wait()? {
                // What it said last counts too.
                self.hear(Duration::ZERO);
                return Ok(status);
            }
        }
    }

    /// Asks the child to end and waits until it has. It is listened to until then: what it says while
    /// it stops must not fill the socket and hold it up.
    fn stop(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        // Already dead is as good.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let end = Instant::now() + STOP_PATIENCE;
        loop {
            self.hear(TICK);
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                tracing::error!(patience = ?STOP_PATIENCE, "the daemon does not stop: killed");
                child.kill()?;
                return child.wait();
            }
        }
    }

    /// Does what was said; waits for the first word no longer than this.
    fn hear(&mut self, patience: Duration) {
        let mut deadline = Instant::now() + patience;
        for _ in 0..MAX_MESSAGES {
            match self.socket.recv_until(MAX_FDS, deadline) {
                Ok(received) => {
                    let text = String::from_utf8_lossy(&received.bytes).into_owned();
                    self.obey(&text, received.fds);
                }
                Err(RecvError::TimedOut | RecvError::WouldBlock) => return,
                Err(error) => {
                    tracing::warn!(%error, "a message to the keeper was lost");
                }
            }
            deadline = Instant::now();
        }
    }

    /// A descriptor that is not asked to be kept is closed here: so a barrier is answered.
    fn obey(&mut self, text: &str, mut fds: Vec<OwnedFd>) {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.map(ToOwned::to_owned)
        };
        let name = value("FDNAME=").unwrap_or_default();
        if value("FDSTOREREMOVE=").as_deref() == Some("1") {
            self.kept.retain(|(kept, _)| *kept != name);
        } else if value("FDSTORE=").as_deref() == Some("1") {
            let is_name = !name.is_empty() && !name.contains(':');
            if let Some(fd) = fds.pop().filter(|_| is_name) {
                self.kept.push_back((name, fd));
            }
        }
    }

    fn is_asked_to_stop(&self) -> io::Result<bool> {
        let signal = self.signals.read_signal()?;
        // A daemon that is not there yet reads its configuration in any case.
        Ok(signal.is_some_and(|signal| !is_hangup(&signal)))
    }

    /// Waits; true if it was asked to stop.
    fn pause(&mut self, pause: Duration) -> io::Result<bool> {
        let end = Instant::now() + pause;
        loop {
            if self.is_asked_to_stop()? {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.hear(left.min(TICK));
        }
    }

    /// Nothing is left behind: the paths go, and what was kept goes with this process.
    fn end(&self, runtime_dir: &Path, code: i32) -> ExitCode {
        let _ = fs::remove_file(&self.path);
        for name in ["pages.sock", "admin.sock", "attach.sock"] {
            // Gone already, unless a daemon was killed.
            let _ = fs::remove_file(runtime_dir.join(name));
        }
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    }
}
fn is_hangup(signal: &nix::sys::signalfd::siginfo) -> bool {
    i32::try_from(signal.ssi_signo) == Ok(Signal::SIGHUP as i32)
}
