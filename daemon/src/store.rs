//! The descriptor store: what outlives this process is kept by the service manager, or the keeper.
//!
//! `FDSTORE=1` with a name puts a descriptor there, `FDSTOREREMOVE=1` takes it out, and `BARRIER=1`
//! tells when all that was said before has been done. The store never watches what it keeps
//! (`FDPOLL=0`): a socket that is hung up and a process that has ended are for us to find. Without a
//! manager nothing is kept, and each call does nothing. A manager that does not take what it is sent
//! holds nobody up: it is waited for once, and then sent only what it has room for.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

/// How long a manager that has no room for another message is waited for, once.
const PATIENCE: Duration = Duration::from_millis(500);

/// The way to the store.
#[derive(Debug, Default)]
pub struct Store {
    way: Option<(OwnedFd, UnixAddr)>,
    /// It had no room for the last message.
    is_full: AtomicBool,
}

impl Store {
    /// The store of whoever started this process, if it has one.
    pub fn from_environment() -> Store {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
            return Store::default();
        };
        Store {
            way: way_to(path.as_bytes()),
            is_full: AtomicBool::new(false),
        }
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.way.is_some()
    }

    /// Puts a descriptor there under a name.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) {
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        if let Err(errno) = self.send(&text, Some(fd)) {
            tracing::error!(name, %errno, "not kept: it would not survive a restart");
        }
    }

    /// Takes all descriptors of a name out.
    pub fn forget(&self, name: &str) {
        let text = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        if let Err(errno) = self.send(&text, None) {
            tracing::warn!(name, %errno, "the store was not told to forget");
        }
    }

    /// A descriptor that hangs up when all that was said before has been done; none without a
    /// store.
    ///
    /// # Errors
    /// When the store cannot be asked: then nobody knows what it has.
    pub fn barrier(&self) -> Result<Option<OwnedFd>, Errno> {
        if !self.is_there() {
            return Ok(None);
        }
        let (ours, theirs) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        self.send("BARRIER=1", Some(theirs.as_fd()))?;
        Ok(Some(ours))
    }

    /// Tells the manager something else.
    ///
    /// # Errors
    /// What the socket said; `EAGAIN` when the manager had no room for it.
    pub fn tell(&self, text: &str) -> Result<(), Errno> {
        self.send(text, None)
    }

    fn send(&self, text: &str, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let Some((socket, address)) = &self.way else {
            return Ok(());
        };
        let numbers: Vec<i32> = fd.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let rights = if fd.is_some() { &rights[..] } else { &[] };
        let text = [IoSlice::new(text.as_bytes())];
        let mut flags = MsgFlags::MSG_NOSIGNAL;
        flags.set(MsgFlags::MSG_DONTWAIT, self.is_full.load(Ordering::Relaxed));
        let sent = loop {
            match sendmsg(socket.as_raw_fd(), &text, rights, flags, Some(address)) {
                Err(Errno::EINTR) => {}
                sent => break sent.map(drop),
            }
        };
        self.is_full
            .store(sent == Err(Errno::EAGAIN), Ordering::Relaxed);
        sent
    }
}

fn way_to(path: &[u8]) -> Option<(OwnedFd, UnixAddr)> {
    let address = match path.split_first() {
        Some((b'@', name)) => UnixAddr::new_abstract(name),
        _ => UnixAddr::new(path),
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None).ok()?;
    let patience = TimeVal::new(0, PATIENCE.subsec_micros().into());
    setsockopt(&socket, sockopt::SendTimeout, &patience).ok()?;
    Some((socket, address.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{bind, getsockname};

    /// A store whose manager is this test, and the manager's end.
    fn store() -> (Store, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let manager = socket(AddressFamily::Unix, SockType::Datagram, flags, None).unwrap();
        bind(manager.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        let address: UnixAddr = getsockname(manager.as_raw_fd()).unwrap();
        let mut path = vec![b'@'];
        path.extend(address.as_abstract().unwrap());
        let store = Store {
            way: way_to(&path),
            is_full: AtomicBool::new(false),
        };
        (store, manager)
    }

    fn hear(manager: &OwnedFd) -> String {
        let mut read = [0; 200];
        let nr = nix::unistd::read(manager, &mut read).unwrap();
        String::from_utf8(read[..nr].to_vec()).unwrap()
    }

    #[test]
    fn without_a_store_nothing_is_kept_and_nobody_is_waited_for() {
        let store = Store::default();
        assert!(!store.is_there() && store.barrier().unwrap().is_none());
        store.forget("state");
    }

    #[test]
    fn what_is_sent_is_what_the_manager_expects() {
        let (store, manager) = store();
        store.keep("zone-3", manager.as_fd());
        store.forget("zone-3");
        assert_eq!(hear(&manager), "FDSTORE=1\nFDPOLL=0\nFDNAME=zone-3");
        assert_eq!(hear(&manager), "FDSTOREREMOVE=1\nFDNAME=zone-3");
    }

    /// Seen to fail, by never ending, without the socket's time-out.
    #[test]
    fn a_manager_that_takes_nothing_holds_nobody_up_and_is_heard_again() {
        let (store, manager) = store();
        let nr_sent = (0..100_000).take_while(|_| store.barrier().is_ok()).count();
        assert!(nr_sent > 0 && nr_sent < 100_000, "{nr_sent}");
        assert_eq!(store.barrier().unwrap_err(), Errno::EAGAIN);
        for _ in 0..nr_sent {
            assert_eq!(hear(&manager), "BARRIER=1");
        }
        assert!(store.barrier().unwrap().is_some(), "there is room again");
    }
}
