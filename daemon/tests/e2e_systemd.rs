//! What systemd sees, played by the test: sockets bound beforehand, a socket for notifications, a
//! watchdog.
//!
//! Seen to fail: a watchdog that is never fed.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use support::grpc::{self, verify};
use support::{Daemon, TINY, raw};

/// The manager's end of the notifications. It takes each at once, and closes what came along, which
/// answers a barrier.
struct Manager {
    messages: mpsc::Receiver<Vec<String>>,
}

impl Manager {
    fn new(dir: &Path) -> Manager {
        let socket = UnixDatagram::bind(dir.join("notify")).unwrap();
        let (heard, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len) = socket.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..len]);
                if heard
                    .send(text.lines().map(str::to_owned).collect())
                    .is_err()
                {
                    break;
                }
            }
        });
        Manager { messages }
    }

    /// The next message, as lines.
    #[track_caller]
    fn hear(&self) -> Vec<String> {
        self.messages.recv_timeout(support::DEADLINE).unwrap()
    }

    /// Waits for a message with this line.
    #[track_caller]
    fn wait_for(&self, wanted: &str) {
        let end = Instant::now() + support::DEADLINE;
        while !self.hear().iter().any(|line| line == wanted) {
            assert!(Instant::now() < end, "no {wanted}");
        }
    }
}

fn hugepoold(run: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugepoold"));
    command.arg("--runtime-dir").arg(run).args(TINY);
    command
}

#[test]
fn readiness_and_the_stop_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::new(dir.path());
    let mut command = hugepoold(&dir.path().join("run"));
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    let mut daemon = Daemon::spawn_command(&dir.path().join("run"), command);
    manager.wait_for("READY=1");
    // "Ready" means that clients can attach.
    drop(raw::attach(&daemon));
    daemon.signal(Signal::SIGTERM);
    manager.wait_for("STOPPING=1");
    let (status, log) = daemon.wait();
    assert!(status.success(), "{log}");
}

/// Seen to fail: the daemon waited for room for ever, before it was ready.
#[test]
fn a_manager_that_reads_nothing_holds_up_neither_start_nor_stop() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send_to(b"full", dir.path().join("notify")).is_ok() {}
    let mut command = hugepoold(&dir.path().join("run"));
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    let mut daemon = Daemon::spawn_command(&dir.path().join("run"), command);
    daemon.wait_for_line("ready");
    daemon.signal(Signal::SIGTERM);
    let (status, log) = daemon.wait();
    assert!(status.success(), "{log}");
    drop(socket);
}

#[test]
fn the_watchdog_is_fed_and_starves_when_the_daemon_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::new(dir.path());
    let mut command = hugepoold(&dir.path().join("run"));
    command
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "400000");
    let daemon = Daemon::spawn_command(&dir.path().join("run"), command);
    manager.wait_for("READY=1");
    for _ in 0..5 {
        manager.wait_for("WATCHDOG=1");
    }
    daemon.signal(Signal::SIGSTOP);
    // What was under way when it stopped.
    let pause = Duration::from_millis(800);
    while manager.messages.recv_timeout(pause).is_ok() {}
    daemon.signal(Signal::SIGCONT);
    manager.wait_for("WATCHDOG=1");
}

/// A listening SEQPACKET socket, as systemd binds one.
fn seqpacket(path: &Path) -> OwnedFd {
    let fd = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    bind(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&fd, Backlog::new(16).unwrap()).unwrap();
    fd
}

fn keep_open(fd: &impl AsFd) -> i32 {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    fd.as_fd().as_raw_fd()
}

/// Starts the daemon with these descriptors from 3 up, as systemd does. A shell moves them and
/// becomes the daemon, so that the pid is the one that is named.
fn activate(run: &Path, fds: [i32; 3], names: &str) -> Daemon {
    let script = format!(
        "exec 203<&{} 204<&{} 205<&{}; exec 3<&203 4<&204 5<&205 203<&- 204<&- 205<&-; \
         export LISTEN_PID=$$ LISTEN_FDS=3 LISTEN_FDNAMES={names}; exec \"$@\"",
        fds[0], fds[1], fds[2]
    );
    let daemon = hugepoold(run);
    let mut command = Command::new("bash");
    command.args(["-c", &script, "activate"]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    Daemon::spawn_command(run, command)
}

#[tokio::test]
async fn sockets_that_systemd_has_bound_are_served_and_left_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path();
    let pages = UnixListener::bind(run.join("pages.sock")).unwrap();
    let admin = UnixListener::bind(run.join("admin.sock")).unwrap();
    let attach = seqpacket(&run.join("attach.sock"));
    // In another order than we would bind them: the name alone says which is which.
    let fds = [keep_open(&attach), keep_open(&admin), keep_open(&pages)];
    let mut daemon = activate(run, fds, "attach:admin:pages");
    daemon.wait_for_line("ready");
    verify(&mut grpc::admin(&daemon).await).await;
    drop(raw::attach(&daemon));
    let mut client = grpc::pages(&daemon).await;
    assert_eq!(
        client
            .alloc_bulk(grpc::want(1, 1, 0))
            .await
            .unwrap()
            .into_inner()
            .nr_pages,
        1
    );
    drop(client);
    let (status, log) = tokio::task::spawn_blocking(|| daemon.stop()).await.unwrap();
    assert!(status.success(), "{log}");
    for name in ["pages.sock", "admin.sock", "attach.sock"] {
        assert!(run.join(name).exists(), "{name} is systemd's to remove");
    }
}

#[test]
fn sockets_of_the_wrong_kind_or_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path();
    let stream = UnixListener::bind(run.join("a")).unwrap();
    let other = UnixListener::bind(run.join("b")).unwrap();
    let packets = seqpacket(&run.join("c"));
    let fds = [keep_open(&stream), keep_open(&other), keep_open(&packets)];
    for (names, part) in [
        ("pages:attach:admin", "no listening"),
        ("pages:admin:web", "`web`"),
        ("pages:pages:attach", "`pages`"),
    ] {
        let (status, log) = activate(run, fds, names).wait();
        assert_eq!(status.code(), Some(1), "{names}: {log}");
        assert!(log.contains(part), "{names}: {log}");
    }
}
