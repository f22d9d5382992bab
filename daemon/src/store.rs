//! The descriptor store: what outlives this process is kept by the service manager, or the keeper.
//!
//! `FDSTORE=1` with a name puts a descriptor there, `FDSTOREREMOVE=1` takes it out, and `BARRIER=1`
//! tells when all that was said before has been done. The store never watches what it keeps
//! (`FDPOLL=0`): a socket that is hung up and a process that has ended are for us to find. Without a
//! manager nothing is kept, and each call does nothing.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket,
};

/// The way to the store.
#[derive(Debug, Default)]
pub struct Store {
    way: Option<(OwnedFd, UnixAddr)>,
}

impl Store {
    /// The store of whoever started this process, if it has one.
    pub fn from_environment() -> Store {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
            return Store::default();
        };
        Store {
            way: way_to(path.as_bytes()),
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

    /// A descriptor that hangs up when all that was said before has been done; `None` without a
    /// store, or when it cannot be asked.
    pub fn barrier(&self) -> Option<OwnedFd> {
        self.way.as_ref()?;
        let asked = nix::unistd::pipe2(OFlag::O_CLOEXEC).and_then(|(ours, theirs)| {
            self.send("BARRIER=1", Some(theirs.as_fd()))?;
            Ok(ours)
        });
        match asked {
            Ok(ours) => Some(ours),
            Err(errno) => {
                tracing::error!(%errno, "the store cannot be waited for");
                None
            }
        }
    }

    fn send(&self, text: &str, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let Some((socket, address)) = &self.way else {
            return Ok(());
        };
        let numbers: Vec<i32> = fd.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let rights = if fd.is_some() { &rights[..] } else { &[] };
        let text = [IoSlice::new(text.as_bytes())];
        let flags = MsgFlags::MSG_NOSIGNAL;
        loop {
            match sendmsg(socket.as_raw_fd(), &text, rights, flags, Some(address)) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn way_to(path: &[u8]) -> Option<(OwnedFd, UnixAddr)> {
    let address = match path.split_first() {
        Some((b'@', name)) => UnixAddr::new_abstract(name),
        _ => UnixAddr::new(path),
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None);
    Some((socket.ok()?, address.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{bind, getsockname};

    #[test]
    fn without_a_store_nothing_is_kept_and_nobody_is_waited_for() {
        let store = Store::default();
        assert!(!store.is_there() && store.barrier().is_none());
        store.forget("state");
    }

    #[test]
    fn what_is_sent_is_what_the_manager_expects() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let manager = socket(AddressFamily::Unix, SockType::Datagram, flags, None).unwrap();
        bind(manager.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        let address: UnixAddr = getsockname(manager.as_raw_fd()).unwrap();
        let mut path = vec![b'@'];
        path.extend(address.as_abstract().unwrap());
        let store = Store { way: way_to(&path) };
        store.keep("zone-3", manager.as_fd());
        store.forget("zone-3");
        let mut read = [0; 200];
        let nr = nix::unistd::read(&manager, &mut read).unwrap();
        assert_eq!(&read[..nr], b"FDSTORE=1\nFDPOLL=0\nFDNAME=zone-3");
        let nr = nix::unistd::read(&manager, &mut read).unwrap();
        assert_eq!(&read[..nr], b"FDSTOREREMOVE=1\nFDNAME=zone-3");
    }
}
