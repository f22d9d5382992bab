//! The bell a client rings to wake the daemon: an eventfd that nobody reads.
//!
//! The daemon watches it edge-triggered, so every ring is an event of its own and no read is
//! needed. That is not only cheaper: the open file description is shared with the client, which
//! may set or clear `O_NONBLOCK` on it, so the daemon must neither read nor write it (it could be
//! made to wait for ever). When ringing is needed at all is the affair of
//! `doorbell`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// An eventfd used as a bell: rung by one process, watched edge-triggered by another.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
}

impl Bell {
    /// Makes a new bell: non-blocking, close-on-exec, not rung.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM` when the system has no descriptor left.
    pub fn new() -> Result<Bell, Errno> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Bell { fd: event.into() })
    }

    /// Takes over a descriptor that came over the attach socket.
    ///
    /// What it really is shows at the first ring: anything that is no eventfd makes that an error
    /// of the ringer, never of the watcher.
    pub fn from_fd(fd: OwnedFd) -> Bell {
        Bell { fd }
    }

    /// Another descriptor of the same bell, to be sent to the ringer.
    ///
    /// # Errors
    /// `EMFILE` when this process has no descriptor left.
    pub fn duplicate(&self) -> Result<OwnedFd, Errno> {
        nix::unistd::dup(&self.fd).and_then(|fd| {
            use nix::fcntl::{FcntlArg, FdFlag, fcntl};
            fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
            Ok(fd)
        })
    }

    /// Rings once. For the client only: the daemon never writes a bell.
    ///
    /// A counter that is full (nobody reads it, so 2^64 - 1 rings would do it) is emptied and rung
    /// again, since a write that fails wakes nobody.
    ///
    /// # Errors
    /// What the write answers if the descriptor is no eventfd.
    pub fn ring(&self) -> Result<(), Errno> {
        match self.add_one() {
            Err(Errno::EAGAIN) => {
                let mut count = [0_u8; 8];
                match nix::unistd::read(&self.fd, &mut count) {
                    Ok(_) | Err(Errno::EAGAIN) => {}
                    Err(errno) => return Err(errno),
                }
                self.add_one()
            }
            other => other,
        }
    }

    fn add_one(&self) -> Result<(), Errno> {
        loop {
            match nix::unistd::write(&self.fd, &1_u64.to_ne_bytes()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

    fn watch(bell: &Bell) -> Epoll {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(bell, EpollEvent::new(flags, 7)).unwrap();
        epoll
    }

    fn events(epoll: &Epoll) -> usize {
        epoll.wait(&mut [EpollEvent::empty(); 4], 0_u16).unwrap()
    }

    #[test]
    fn every_ring_is_an_event_though_nobody_reads() {
        let bell = Bell::new().unwrap();
        let ringer = Bell::from_fd(bell.duplicate().unwrap());
        let epoll = watch(&bell);
        assert_eq!(events(&epoll), 0);
        for _ in 0..3 {
            ringer.ring().unwrap();
            assert_eq!(events(&epoll), 1, "a ring is seen");
            assert_eq!(events(&epoll), 0, "and seen once");
        }
    }

    #[test]
    fn a_full_counter_still_rings() {
        let bell = Bell::new().unwrap();
        let epoll = watch(&bell);
        nix::unistd::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!(events(&epoll), 1);
        bell.ring().unwrap();
        assert_eq!(events(&epoll), 1);
    }

    #[test]
    fn a_descriptor_that_is_no_eventfd_is_an_error_of_the_ringer() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Bell::from_fd(null.into()).ring().is_err());
    }
}
