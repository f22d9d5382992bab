//! Who is at the other end of a socket: its user, and a hold on its process.
//!
//! Credentials are those of the moment of `connect`. A pid alone can come to mean another process,
//! so death is told by a pidfd; the kernel hands out the right one since 6.5 (`SO_PEERPIDFD`), and
//! before that it is opened by pid and checked as well as can be ([`PidFdSource::ByPid`]).

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{getsockopt, sockopt};

use crate::message::Connection;
use crate::pidfd::PidFd;

/// Who connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id at the time of connecting; for logs and reports, never to act on.
    pub pid: u32,
    /// Effective user id at the time of connecting.
    pub uid: u32,
    /// Effective group id at the time of connecting.
    pub gid: u32,
}

/// How sure it is that a pidfd is the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidFdSource {
    /// The kernel gave it for this very socket.
    Socket,
    /// Opened by pid on an older kernel. The process runs as the peer's user and the connection
    /// was up afterwards; a pid used again by the same user between connect and accept would not
    /// be noticed while somebody else keeps the connection open.
    ByPid,
}

/// Why the peer cannot be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It ended before it was asked for.
    #[error("the peer process {pid} has ended")]
    Gone {
        /// Its pid while it lived.
        pid: u32,
    },
    /// The process with the peer's pid is not the peer's any more.
    #[error("process {pid} belongs to uid {found_uid}, not to the peer's uid {uid}")]
    Replaced {
        /// The pid that was used again.
        pid: u32,
        /// The peer's user.
        uid: u32,
        /// The user of the process that has the pid now.
        found_uid: u32,
    },
    /// The peer lives in a pid namespace this process cannot see into.
    #[error("the peer's process is not visible from here")]
    Invisible,
    /// The system's no.
    #[error("the peer cannot be identified")]
    System(#[source] Errno),
}

impl Connection {
    /// Who connected.
    ///
    /// # Errors
    /// [`PeerError::Invisible`] when the peer has no pid here, [`PeerError::System`] else.
    pub fn credentials(&self) -> Result<PeerCredentials, PeerError> {
        let found = getsockopt(self, sockopt::PeerCredentials).map_err(PeerError::System)?;
        match u32::try_from(found.pid()) {
            Ok(pid) if pid > 0 => Ok(PeerCredentials {
                pid,
                uid: found.uid(),
                gid: found.gid(),
            }),
            _ => Err(PeerError::Invisible),
        }
    }

    /// A hold on the peer's process, and how sure it is.
    ///
    /// # Errors
    /// [`PeerError`]; nobody whose death cannot be told may be lent anything.
    pub fn peer_pidfd(&self) -> Result<(PidFd, PidFdSource), PeerError> {
        let peer = self.credentials()?;
        match getsockopt(self, sockopt::PeerPidfd) {
            Ok(fd) => {
                set_close_on_exec(&fd).map_err(PeerError::System)?;
                Ok((PidFd::from_fd(fd), PidFdSource::Socket))
            }
            Err(Errno::ENOPROTOOPT) => {
                by_pid(self.as_fd(), peer).map(|pidfd| (pidfd, PidFdSource::ByPid))
            }
            // The kernel refuses a pidfd of a process that has been reaped.
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => {
                Err(PeerError::Gone { pid: peer.pid })
            }
            Err(errno) => Err(PeerError::System(errno)),
        }
    }
}

/// Supplementary groups of the process at the other end of a Unix socket, at the time of its
/// `connect`, in no order. The primary one ([`PeerCredentials::gid`]) need not be among them.
///
/// # Errors
/// `ENODATA` on a socket without a peer, `ENOPROTOOPT` before Linux 4.13.
pub fn groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let room_bytes = size_of_val(groups.as_slice());
        let mut len_bytes = libc::socklen_t::try_from(room_bytes).map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY:
        // 1. The descriptor is open for the call, because it is borrowed.
        // 2. The kernel writes at most `len_bytes` bytes of group ids at the first pointer, which is
        //    that of as many bytes of ids, and one length at the second, which is that of a length.
        // 3. A call that is refused writes no id.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len_bytes,
            )
        };
        let nr_groups = len_bytes as usize / size_of::<libc::gid_t>();
        match Errno::result(result) {
            Ok(_) => {
                groups.truncate(nr_groups);
                return Ok(groups);
            }
            // It says how many there are, and they do not change any more.
            Err(Errno::ERANGE) if nr_groups > groups.len() => groups.resize(nr_groups, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// The way of kernels before 6.5.
fn by_pid(socket: BorrowedFd<'_>, peer: PeerCredentials) -> Result<PidFd, PeerError> {
    let pid = peer.pid;
    let pidfd = PidFd::open(pid).map_err(|errno| match errno {
        Errno::ESRCH => PeerError::Gone { pid },
        errno => PeerError::System(errno),
    })?;
    // The order matters: the pidfd is held first, so what is checked now is checked of it. A dead
    // process keeps its user's entry in /proc until it is reaped, and counts as gone below.
    match std::fs::metadata(format!("/proc/{pid}")) {
        Ok(entry) if entry.uid() == peer.uid || entry.uid() == 0 => {}
        Ok(entry) => {
            return Err(PeerError::Replaced {
                pid,
                uid: peer.uid,
                found_uid: entry.uid(),
            });
        }
        // No /proc, or hidden by hidepid: nothing to compare.
        Err(_) => {}
    }
    let is_dead = pidfd.is_dead().map_err(PeerError::System)?;
    if is_dead || has_hung_up(socket).map_err(PeerError::System)? {
        return Err(PeerError::Gone { pid });
    }
    Ok(pidfd)
}

/// Whether the peer's end of a connected socket is closed.
fn has_hung_up(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut entry = [PollFd::new(socket, PollFlags::empty())];
    nix::poll::poll(&mut entry, PollTimeout::ZERO)?;
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    Ok(entry[0].revents().is_some_and(|seen| seen.intersects(gone)))
}

fn set_close_on_exec(fd: &OwnedFd) -> Result<(), Errno> {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (a, _b) = Connection::pair().unwrap();
        let peer = a.credentials().unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        let (pidfd, _) = a.peer_pidfd().unwrap();
        assert!(!pidfd.is_dead().unwrap());
    }

    #[test]
    fn the_groups_of_a_peer_are_told_however_many_they_are() {
        let (a, _b) = Connection::pair().unwrap();
        let mut found = groups(&a).unwrap();
        let mut expected: Vec<u32> = nix::unistd::getgroups()
            .unwrap()
            .iter()
            .map(|group| group.as_raw())
            .collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let alone = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert_eq!(groups(&alone), Err(Errno::ENODATA));
    }

    #[test]
    fn the_older_way_finds_the_same_process_and_checks_it() {
        let (a, b) = Connection::pair().unwrap();
        let peer = a.credentials().unwrap();
        assert!(!by_pid(a.as_fd(), peer).unwrap().is_dead().unwrap());

        let gone = PeerError::Gone { pid: peer.pid };
        drop(b);
        // A child that another test is just starting has it still, until it executes its program.
        let ends = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let refused = loop {
            match by_pid(a.as_fd(), peer) {
                Err(refused) => break refused,
                Ok(_) => assert!(std::time::Instant::now() < ends, "still there"),
            }
            std::thread::yield_now();
        };
        assert_eq!(refused, gone);
    }

    #[test]
    fn a_pid_used_again_by_another_user_is_noticed() {
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        let (a, _b) = Connection::pair().unwrap();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // Root's entries pass (a set-uid program's is root's too), so the child must not be root.
        let found_uid = if nix::unistd::geteuid().is_root() {
            command.uid(65_534);
            65_534
        } else {
            nix::unistd::geteuid().as_raw()
        };
        let mut child = command.spawn().unwrap();
        let peer = PeerCredentials {
            pid: child.id(),
            uid: found_uid - 1,
            gid: 0,
        };
        let found = by_pid(a.as_fd(), peer).unwrap_err();
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = PeerError::Replaced {
            pid: peer.pid,
            uid: peer.uid,
            found_uid,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_peer_that_has_been_reaped_is_gone() {
        let (a, _b) = Connection::pair().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let peer = PeerCredentials {
            pid: child.id(),
            ..a.credentials().unwrap()
        };
        let gone = PeerError::Gone { pid: peer.pid };
        assert_eq!(by_pid(a.as_fd(), peer).unwrap_err(), gone);
    }
}
