//! Descriptors that the kernel cannot hand over because this process has no room for them.
//!
//! A test binary of its own: the limit is the process's.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::os::fd::AsFd;

use hugepool_shm::message::{Connection, RecvError};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Seen to fail: with the descriptors of a cut message not taken out, they stay open for ever.
#[test]
fn descriptors_of_a_cut_message_are_closed_and_the_loss_is_told() {
    let (a, b) = Connection::pair().unwrap();
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    a.send(b"eight", &[writer.as_fd(); 8]).unwrap();

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Room for three more than are open: some of the eight arrive, then the kernel gives up.
    let next = writer.try_clone().unwrap();
    let open = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&next)).unwrap();
    drop(next);
    setrlimit(Resource::RLIMIT_NOFILE, open + 3, hard).unwrap();
    let lost = b.recv(8).unwrap_err();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert_eq!(lost, RecvError::FdsLost);

    drop(writer);
    let mut entry = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut entry, 0_u16).unwrap(), 1, "nobody holds the pipe");
    assert!(entry[0].revents().unwrap().contains(PollFlags::POLLHUP));
    a.send(b"next", &[]).unwrap();
    assert_eq!(b.recv(0).unwrap().bytes, b"next");
}
