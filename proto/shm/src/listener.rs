//! The attach socket's listening end, and the client's way to it.
//!
//! A path that is left over from a daemon that died is told from one in use by asking: only a
//! socket that refuses a connection is removed. Two daemons in one run-time directory are kept
//! apart by the directory's lock, not by this. Sockets bound by the service manager come through
//! [`passed`](crate::passed) and [`Listener::adopt`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt,
    listen, socket, sockopt,
};

use crate::message::Connection;

/// Connections that may wait to be accepted; more are refused until there is room.
const BACKLOG: i32 = 64;

/// How long a client sleeps before it tries a daemon with a full backlog again.
const CONNECT_PAUSE: Duration = Duration::from_millis(2);

/// Why there is no listening socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody answers there.
    #[error("{} is in use by a running process", path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something that is no socket lies there; it is left alone.
    #[error("{} exists and is no socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Socket paths are short.
    #[error("{} is {} bytes long, a socket's path may have 107", path.display(), path.as_os_str().len())]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// A descriptor that was passed in is not a listening SEQPACKET Unix socket.
    #[error("the socket passed in is no listening SEQPACKET unix socket")]
    WrongKind,
    /// The system's no.
    #[error("cannot {step} {}", path.display())]
    System {
        /// What was being done.
        step: &'static str,
        /// The socket's path; empty for a socket that was passed in.
        path: PathBuf,
        /// The answer.
        #[source]
        source: std::io::Error,
    },
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens: no such path, or one left over.
    #[error("nobody listens there")]
    NobodyThere,
    /// The socket's mode does not let this user in.
    #[error("this user may not connect")]
    NotAllowed,
    /// It is there but has not taken the connection.
    #[error("the connection was not taken in time")]
    TimedOut,
    /// The system's no.
    #[error("cannot connect")]
    System(#[source] Errno),
}

/// A non-blocking, listening SEQPACKET socket.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    bound: Option<Bound>,
}

/// The path that this process has bound, and the inode it made there.
#[derive(Debug)]
struct Bound {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listener {
    /// Binds `path` with exactly `mode`, owned by `group` if one is given, and listens.
    ///
    /// Nobody can connect before mode and group are right: connections are refused until the
    /// socket listens, which comes last.
    ///
    /// # Errors
    /// [`ListenError`]; nothing is left at `path` then but what lay there before.
    pub fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<Listener, ListenError> {
        let address = UnixAddr::new(path).map_err(|_| ListenError::PathTooLong {
            path: path.to_owned(),
        })?;
        let system = |step| {
            move |errno: Errno| ListenError::System {
                step,
                path: path.to_owned(),
                source: errno.into(),
            }
        };
        let fd = new_socket().map_err(system("make a socket for"))?;
        match bind(fd.as_raw_fd(), &address) {
            Ok(()) => {}
            Err(Errno::EADDRINUSE) => {
                remove_if_stale(path, &address)?;
                bind(fd.as_raw_fd(), &address).map_err(system("bind"))?;
            }
            Err(errno) => return Err(system("bind")(errno)),
        }
        let made = std::fs::symlink_metadata(path).map_err(|source| ListenError::System {
            step: "look at",
            path: path.to_owned(),
            source,
        })?;
        // From here on dropping the listener takes the path away again.
        let listener = Listener {
            fd,
            bound: Some(Bound {
                path: path.to_owned(),
                device: made.dev(),
                inode: made.ino(),
            }),
        };
        let io = |step| {
            move |source| ListenError::System {
                step,
                path: path.to_owned(),
                source,
            }
        };
        std::os::unix::fs::lchown(path, None, group).map_err(io("give to its group"))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(io("set the mode of"))?;
        let backlog = Backlog::new(BACKLOG).map_err(system("listen on"))?;
        listen(&listener.fd, backlog).map_err(system("listen on"))?;
        Ok(listener)
    }

    /// Takes over a socket that the service manager has bound. Its path is not ours to remove.
    ///
    /// # Errors
    /// [`ListenError::WrongKind`] unless it is a listening SEQPACKET Unix socket.
    pub fn adopt(fd: OwnedFd) -> Result<Listener, ListenError> {
        let is_unix = nix::sys::socket::getsockname::<UnixAddr>(fd.as_raw_fd()).is_ok();
        let is_seqpacket = getsockopt(&fd, sockopt::SockType) == Ok(SockType::SeqPacket);
        let is_listening = getsockopt(&fd, sockopt::AcceptConn) == Ok(true);
        if !(is_unix && is_seqpacket && is_listening) {
            return Err(ListenError::WrongKind);
        }
        set_flags(&fd).map_err(|errno| ListenError::System {
            step: "prepare the passed socket",
            path: PathBuf::new(),
            source: errno.into(),
        })?;
        Ok(Listener { fd, bound: None })
    }

    /// Takes the next connection, if there is one.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` when no descriptor is left; the connection keeps waiting then, so the
    /// caller must not come back at once.
    pub fn accept(&self) -> Result<Option<Connection>, Errno> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        loop {
            match accept4(&self.fd, flags) {
                Ok(fd) => return Ok(Some(Connection::from_fd(fd))),
                Err(Errno::EAGAIN) => return Ok(None),
                // Gone while it waited: look at the next one.
                Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(bound) = &self.bound else { return };
        // Only what we made: another daemon may have put its own socket there since.
        let is_ours = std::fs::symlink_metadata(&bound.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (bound.device, bound.inode));
        if is_ours {
            // Left over, it is no more than a path that the next bind recognises as stale.
            let _ = std::fs::remove_file(&bound.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Connection {
    /// Connects to the daemon listening at `path`, trying until `deadline` while its backlog is full.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(path: &Path, deadline: Instant) -> Result<Connection, ConnectError> {
        let address = UnixAddr::new(path).map_err(ConnectError::System)?;
        loop {
            let fd = new_socket().map_err(ConnectError::System)?;
            match connect(fd.as_raw_fd(), &address) {
                Ok(()) => return Ok(Connection::from_fd(fd)),
                Err(Errno::ENOENT | Errno::ECONNREFUSED | Errno::ENOTDIR) => {
                    return Err(ConnectError::NobodyThere);
                }
                Err(Errno::EACCES | Errno::EPERM) => return Err(ConnectError::NotAllowed),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(ConnectError::System(errno)),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConnectError::TimedOut);
            }
            std::thread::sleep(CONNECT_PAUSE.min(left));
        }
    }
}

/// Removes the socket at `path` if nobody answers there.
fn remove_if_stale(path: &Path, address: &UnixAddr) -> Result<(), ListenError> {
    let io = |step| {
        move |source| ListenError::System {
            step,
            path: path.to_owned(),
            source,
        }
    };
    let found = std::fs::symlink_metadata(path).map_err(io("look at"))?;
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket {
            path: path.to_owned(),
        });
    }
    let probe = new_socket().map_err(|errno| io("probe")(errno.into()))?;
    match connect(probe.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED) => {}
        // Taken, full, of another type, or not ours to ask: somebody's in any case.
        _ => {
            return Err(ListenError::InUse {
                path: path.to_owned(),
            });
        }
    }
    std::fs::remove_file(path).map_err(io("remove the left-over"))
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

fn set_flags(fd: &OwnedFd) -> Result<(), Errno> {
    use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}
