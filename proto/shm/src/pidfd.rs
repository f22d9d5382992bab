//! A process held by descriptor: is it dead, and kill it. Nothing is ever named by pid alone.
//!
//! A hang-up on a socket tells that a descriptor was closed; only the pidfd tells that the process
//! is gone and can touch no page any more. Where the descriptor comes from is the affair of
//! [`peer`](crate::peer).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

/// A process, by a descriptor that can never come to mean another one.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Opens the process that has `pid` at this moment.
    ///
    /// Whether that is the process which was meant is the caller's question: pids are used again.
    ///
    /// # Errors
    /// `ESRCH` when there is none, `EMFILE` when no descriptor is left.
    pub fn open(pid: u32) -> Result<PidFd, Errno> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::ESRCH)?;
        // SAFETY: pidfd_open takes a pid and flags by value and touches no memory of this process.
        let answer = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let raw = Errno::result(answer)?;
        let raw = i32::try_from(raw).map_err(|_| Errno::EBADF)?;
        // SAFETY: the call above has just made this descriptor, close-on-exec as all pidfds are,
        // and nothing else in the process knows its number, so nobody else closes it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(PidFd { fd })
    }

    /// Takes over a descriptor that is known to be a pidfd.
    pub fn from_fd(fd: OwnedFd) -> PidFd {
        PidFd { fd }
    }

    /// Whether the process is dead: none of its threads runs any more or ever will.
    ///
    /// # Errors
    /// What `poll` answers; `EBADF` when the descriptor is no pidfd.
    pub fn is_dead(&self) -> Result<bool, Errno> {
        let mut entry = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        loop {
            match nix::poll::poll(&mut entry, PollTimeout::ZERO) {
                Ok(0) => return Ok(false),
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let seen = entry[0].revents().unwrap_or(PollFlags::POLLERR);
        if seen.contains(PollFlags::POLLIN) {
            Ok(true)
        } else {
            Err(Errno::EBADF)
        }
    }

    /// Sends SIGKILL. A process that is dead already is no error.
    ///
    /// # Errors
    /// `EPERM` when this process may not kill that one.
    pub fn kill(&self) -> Result<(), Errno> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY:
        // 1. The descriptor is open for the call, because `self` owns it.
        // 2. A null info is allowed: the kernel then fills in what `kill` would.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                libc::SIGKILL,
                no_info,
                0,
            )
        };
        match Errno::result(answer) {
            Ok(_) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// The descriptor itself, to be put into a store.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// A child that lives until its standard input closes, or is killed.
    fn child() -> std::process::Child {
        Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_killed_process_is_dead_before_and_after_it_is_reaped() {
        let mut child = child();
        let pidfd = PidFd::open(child.id()).unwrap();
        assert!(!pidfd.is_dead().unwrap());
        pidfd.kill().unwrap();
        // The pidfd becomes readable when the last thread is gone: wait for that, no longer than 10 s.
        let mut entry = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut entry, 10_000_u16).unwrap(), 1);
        assert!(pidfd.is_dead().unwrap());
        assert!(!child.wait().unwrap().success());
        assert!(pidfd.is_dead().unwrap());
        pidfd.kill().unwrap();
    }

    #[test]
    fn a_pid_that_cannot_be_is_refused() {
        assert_eq!(PidFd::open(u32::MAX).unwrap_err(), Errno::ESRCH);
    }

    #[test]
    fn a_descriptor_that_is_no_pidfd_does_not_pass_for_a_living_process() {
        let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        drop(writer);
        assert_eq!(PidFd::from_fd(reader).is_dead(), Err(Errno::EBADF));
    }
}
