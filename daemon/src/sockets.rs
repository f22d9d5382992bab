//! The three sockets: bound by us or by systemd, with the right mode and group before anybody can
//! connect.
//!
//! `pages.sock` and `attach.sock` are for the pages group, `admin.sock` for the admin group, mode
//! 0660. Where a default group does not exist, or is not ours to give, the socket is 0600: for this
//! user and root. What connects to them is the affair of [`rpc`](crate::rpc) and
//! [`attach`](crate::attach).

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use hugepool_shm::listener::{ListenError, Listener};
use hugepool_shm::passed::PassedFd;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, socket, sockopt,
};
use nix::unistd::Group;

use crate::config::{GroupPlan, SocketPlan};
use crate::store::Store;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// All sockets, listening; nobody accepts yet.
#[derive(Debug)]
pub struct Sockets {
    /// `pages.sock`.
    pub pages: StreamSocket,
    /// `admin.sock`.
    pub admin: StreamSocket,
    /// `attach.sock`.
    pub attach: Listener,
    is_manager_bound: bool,
}

/// Names under which sockets are kept that a daemon before has bound.
const OURS: [&str; 3] = ["our-pages", "our-admin", "our-attach"];

/// A listening stream socket whose path goes when it does.
#[derive(Debug)]
pub struct StreamSocket {
    listener: UnixListener,
    bound: Option<Bound>,
}

/// The path that this process has bound, and the inode it made there.
#[derive(Debug)]
struct Bound {
    path: PathBuf,
    inode: (u64, u64),
}

/// Why there are no sockets.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A socket cannot be bound.
    #[error("socket {name}")]
    Listen {
        /// `pages`, `admin` or `attach`.
        name: &'static str,
        /// Why.
        source: ListenError,
    },
    /// The group that the configuration names does not exist.
    #[error(
        "there is no group `{0}`: create it (groupadd --system {0}) or leave it out of [sockets]"
    )]
    NoGroup(String),
    /// The group that the configuration names is not ours to give a socket to.
    #[error("socket {name} cannot be given to group `{group}`: run as root or as a member of it")]
    NotOurGroup {
        /// `pages`, `admin` or `attach`.
        name: &'static str,
        /// The group.
        group: String,
    },
    /// A socket that systemd passed is of another kind.
    #[error(
        "the socket that systemd passed as `{0}` is no listening stream socket: use ListenStream="
    )]
    WrongKind(&'static str),
    /// systemd passed two sockets of one name, or one that we do not know.
    #[error(
        "systemd passed a socket named `{0}` that is unknown or there twice: name them pages, admin and attach (FileDescriptorName=)"
    )]
    Passed(String),
}

impl Sockets {
    /// Takes what systemd has bound and binds the rest in `dir`.
    ///
    /// # Errors
    /// [`SocketError`]; no path of ours is left behind then.
    pub fn open(
        dir: &Path,
        plan: &SocketPlan,
        passed: Vec<PassedFd>,
    ) -> Result<Sockets, SocketError> {
        let (mut pages, mut admin, mut attach) = (None, None, None);
        let mut ours = Vec::new();
        for PassedFd { name, fd } in passed {
            if let Some(name) = OURS.into_iter().find(|ours| *ours == name) {
                let path = dir.join(&name["our-".len()..]).with_extension("sock");
                if !path.exists() {
                    // A daemon that was stopped has taken it away: nobody can dial it.
                    continue;
                }
                ours.push(name);
            }
            let place = match name.strip_prefix("our-").unwrap_or(&name) {
                "pages" => &mut pages,
                "admin" => &mut admin,
                "attach" => &mut attach,
                _ => return Err(SocketError::Passed(name)),
            };
            if place.replace(fd).is_some() {
                return Err(SocketError::Passed(name));
            }
        }
        let is_passed = [&pages, &admin, &attach].map(Option::is_some);
        let mut sockets = Sockets {
            pages: stream("pages", dir, &plan.pages_group, pages)?,
            admin: stream("admin", dir, &plan.admin_group, admin)?,
            attach: seqpacket(dir, &plan.pages_group, attach)?,
            is_manager_bound: false,
        };
        sockets.is_manager_bound = is_passed.contains(&true) && ours.is_empty();
        Ok(sockets)
    }

    /// Puts the sockets that no manager has bound into the store: who dials while no daemon is
    /// there waits for the next one.
    pub fn keep(&self, store: &Store) {
        if self.is_manager_bound {
            return;
        }
        let fds = [
            self.pages.listener.as_fd(),
            self.admin.listener.as_fd(),
            self.attach.as_fd(),
        ];
        for (name, fd) in OURS.into_iter().zip(fds) {
            store.forget(name);
            store.keep(name, fd);
        }
    }
}

fn stream(
    name: &'static str,
    dir: &Path,
    group: &GroupPlan,
    passed: Option<OwnedFd>,
) -> Result<StreamSocket, SocketError> {
    if let Some(fd) = passed {
        return StreamSocket::adopt(name, fd);
    }
    let path = dir.join(name).with_extension("sock");
    with_group(name, group, |mode, gid| {
        StreamSocket::bind(&path, mode, gid)
    })
}

fn seqpacket(
    dir: &Path,
    group: &GroupPlan,
    passed: Option<OwnedFd>,
) -> Result<Listener, SocketError> {
    let name = "attach";
    if let Some(fd) = passed {
        return Listener::adopt(fd).map_err(|source| SocketError::Listen { name, source });
    }
    let path = dir.join("attach.sock");
    with_group(name, group, |mode, gid| Listener::bind(&path, mode, gid))
}

/// Binds for the group; without it, where it need not be there, for this user alone.
fn with_group<T>(
    name: &'static str,
    plan: &GroupPlan,
    bind: impl Fn(u32, Option<u32>) -> Result<T, ListenError>,
) -> Result<T, SocketError> {
    let alone = || bind(0o600, None).map_err(|source| SocketError::Listen { name, source });
    // A directory service that does not answer counts as a group that is not there.
    let Ok(Some(group)) = Group::from_name(&plan.name) else {
        if plan.is_required {
            return Err(SocketError::NoGroup(plan.name.clone()));
        }
        tracing::debug!(
            group = plan.name,
            socket = name,
            "no such group: for this user alone"
        );
        return alone();
    };
    match bind(0o660, Some(group.gid.as_raw())) {
        Err(ListenError::System { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied && group_is_foreign(group.gid) =>
        {
            if plan.is_required {
                let group = plan.name.clone();
                return Err(SocketError::NotOurGroup { name, group });
            }
            tracing::warn!(
                group = plan.name,
                socket = name,
                "not a member of the group: the socket is for this user alone"
            );
            alone()
        }
        other => other.map_err(|source| SocketError::Listen { name, source }),
    }
}

/// Whether this process may not give files to `gid`; a refusal is then about the group and not
/// about the directory.
fn group_is_foreign(gid: nix::unistd::Gid) -> bool {
    let member = nix::unistd::getgroups().is_ok_and(|groups| groups.contains(&gid));
    !member && nix::unistd::getegid() != gid && !nix::unistd::geteuid().is_root()
}

impl StreamSocket {
    /// Binds `path` with exactly `mode`, owned by `gid` if one is given, and listens last.
    fn bind(path: &Path, mode: u32, gid: Option<u32>) -> Result<StreamSocket, ListenError> {
        let address = UnixAddr::new(path).map_err(|_| ListenError::PathTooLong {
            path: path.to_owned(),
        })?;
        let system = |step| {
            move |source| ListenError::System {
                step,
                path: path.to_owned(),
                source,
            }
        };
        let errno = |step| move |errno: Errno| system(step)(errno.into());
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)
            .map_err(errno("make a socket for"))?;
        match bind(fd.as_raw_fd(), &address) {
            Err(Errno::EADDRINUSE) => {
                remove_if_stale(path)?;
                bind(fd.as_raw_fd(), &address).map_err(errno("bind"))?;
            }
            other => other.map_err(errno("bind"))?,
        }
        let made = std::fs::symlink_metadata(path).map_err(system("look at"))?;
        // From here on dropping the socket takes the path away again.
        let socket = StreamSocket {
            listener: fd.into(),
            bound: Some(Bound {
                path: path.to_owned(),
                inode: (made.dev(), made.ino()),
            }),
        };
        std::os::unix::fs::lchown(path, None, gid).map_err(system("give to its group"))?;
        std::fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(system("set the mode of"))?;
        let backlog = Backlog::new(BACKLOG).map_err(errno("listen on"))?;
        listen(&socket.listener, backlog).map_err(errno("listen on"))?;
        Ok(socket)
    }

    /// Takes over a socket that the service manager has bound. Its path is not ours to remove.
    fn adopt(name: &'static str, fd: OwnedFd) -> Result<StreamSocket, SocketError> {
        let is_unix = nix::sys::socket::getsockname::<UnixAddr>(fd.as_raw_fd()).is_ok();
        let is_stream = getsockopt(&fd, sockopt::SockType) == Ok(SockType::Stream);
        let is_listening = getsockopt(&fd, sockopt::AcceptConn) == Ok(true);
        if !(is_unix && is_stream && is_listening) {
            return Err(SocketError::WrongKind(name));
        }
        let listener = UnixListener::from(fd);
        listener
            .set_nonblocking(true)
            .map_err(|source| SocketError::Listen {
                name,
                source: ListenError::System {
                    step: "prepare the passed socket",
                    path: PathBuf::new(),
                    source,
                },
            })?;
        Ok(StreamSocket {
            listener,
            bound: None,
        })
    }

    /// A second handle of the listening socket, for the runtime that accepts.
    ///
    /// # Errors
    /// Those of duplicating a descriptor.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        let Some(bound) = &self.bound else { return };
        // Only what we made: another daemon may have put its own socket there since.
        let is_ours = std::fs::symlink_metadata(&bound.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == bound.inode);
        if is_ours {
            // Left over, it is no more than a path that the next bind recognises as stale.
            let _ = std::fs::remove_file(&bound.path);
        }
    }
}

/// Removes the socket at `path` if nobody answers there.
fn remove_if_stale(path: &Path) -> Result<(), ListenError> {
    let system = |step| {
        move |source| ListenError::System {
            step,
            path: path.to_owned(),
            source,
        }
    };
    let found = std::fs::symlink_metadata(path).map_err(system("look at"))?;
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket {
            path: path.to_owned(),
        });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // Taken, full, of another type, or not ours to ask: somebody's in any case.
        _ => {
            return Err(ListenError::InUse {
                path: path.to_owned(),
            });
        }
    }
    std::fs::remove_file(path).map_err(system("remove the stale"))
}
