//! The attach socket between two ends: descriptors, sizes, hang-ups, left-over paths.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugepool_shm::listener::{ConnectError, ListenError, Listener};
use hugepool_shm::message::{Connection, MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS, RecvError, SendError};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// A folder of its own for one test, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("hugepool-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("attach.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// A pipe whose far end tells when every descriptor of the near end is closed.
fn canary() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap()
}

/// Whether nobody holds the canary's writing end any more.
fn is_released(reader: &OwnedFd) -> bool {
    use nix::poll::{PollFd, PollFlags, poll};
    let mut entry = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    poll(&mut entry, 0_u16).unwrap() == 1
        && entry[0].revents().unwrap().contains(PollFlags::POLLHUP)
}

/// Sends without the limits of `Connection::send`, as a hostile peer would.
fn send_raw(to: &Connection, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let slices = [std::io::IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(to.as_fd().as_raw_fd(), &slices, control, flags, None).unwrap();
}

#[test]
fn bytes_and_descriptors_arrive_in_order_and_close_on_exec() {
    let (a, b) = Connection::pair().unwrap();
    let folder = Folder::new("arrive");
    let files: Vec<File> = (0..3)
        .map(|index| {
            let path = folder.0.join(index.to_string());
            let mut file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)
                .unwrap();
            write!(file, "file {index}").unwrap();
            file
        })
        .collect();
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    a.send(b"three files", &fds).unwrap();
    let received = b.recv(3).unwrap();
    assert_eq!(received.bytes, b"three files");
    assert_eq!(received.fds.len(), 3);
    for (index, fd) in received.fds.into_iter().enumerate() {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        let flags = fcntl(&fd, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags, FdFlag::FD_CLOEXEC.bits());
        let mut file = File::from(fd);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("file {index}"));
    }
}

#[test]
fn an_empty_queue_and_a_hang_up_are_told_apart_and_neither_waits() {
    let (a, b) = Connection::pair().unwrap();
    assert_eq!(b.recv(0).unwrap_err(), RecvError::WouldBlock);
    a.send(b"last words", &[]).unwrap();
    drop(a);
    assert_eq!(b.recv(0).unwrap().bytes, b"last words");
    assert_eq!(b.recv(0).unwrap_err(), RecvError::Closed);
    assert_eq!(b.send(b"too late", &[]).unwrap_err(), SendError::Closed);
}

#[test]
fn the_longest_message_passes_and_one_byte_more_is_refused_on_both_sides() {
    let (a, b) = Connection::pair().unwrap();
    let longest = vec![7; MAX_MESSAGE_BYTES];
    a.send(&longest, &[]).unwrap();
    assert_eq!(b.recv(0).unwrap().bytes, longest);

    let longer = vec![7; MAX_MESSAGE_BYTES + 1];
    assert!(matches!(
        a.send(&longer, &[]),
        Err(SendError::Oversized { .. })
    ));
    assert!(matches!(a.send(b"", &[]), Err(SendError::Oversized { .. })));
    let (reader, writer) = canary();
    send_raw(&a, &longer, &[writer.as_fd()]);
    drop(writer);
    assert_eq!(b.recv(1).unwrap_err(), RecvError::TooLong);
    assert!(is_released(&reader), "what came with it is closed");
    // The rest of the long message is gone; the next one is whole.
    a.send(b"next", &[]).unwrap();
    assert_eq!(b.recv(0).unwrap().bytes, b"next");
}

#[test]
fn descriptors_nobody_asked_for_are_closed() {
    let (a, b) = Connection::pair().unwrap();
    // 253 is what the kernel passes at most.
    for (sent, allowed) in [(1, 0), (3, 2), (253, MAX_MESSAGE_FDS)] {
        let (reader, writer) = canary();
        send_raw(&a, b"gifts", &vec![writer.as_fd(); sent]);
        drop(writer);
        let refused = RecvError::TooManyFds { got: sent, allowed };
        assert_eq!(b.recv(allowed).unwrap_err(), refused);
        assert!(is_released(&reader), "{sent} descriptors");
    }
}

#[test]
fn a_message_of_no_bytes_brings_no_descriptor_in() {
    let (a, b) = Connection::pair().unwrap();
    let (reader, writer) = canary();
    send_raw(&a, b"", &[writer.as_fd()]);
    drop(writer);
    assert_eq!(b.recv(1).unwrap_err(), RecvError::Closed);
    assert!(is_released(&reader));
}

#[test]
fn more_descriptors_than_a_message_may_carry_are_not_sent() {
    let (a, _b) = Connection::pair().unwrap();
    let (reader, _writer) = canary();
    let many = vec![reader.as_fd(); MAX_MESSAGE_FDS + 1];
    assert!(matches!(
        a.send(b"x", &many),
        Err(SendError::Oversized { .. })
    ));
}

#[test]
fn a_peer_that_does_not_read_fills_its_queue_and_nobody_waits() {
    let (a, _b) = Connection::pair().unwrap();
    let message = vec![1; MAX_MESSAGE_BYTES];
    let mut sent = 0;
    let end = loop {
        match a.send(&message, &[]) {
            Ok(()) => sent += 1,
            Err(end) => break end,
        }
        assert!(sent < 10_000, "the queue has no end");
    };
    assert_eq!(end, SendError::WouldBlock);
    let late = a.send_until(&message, &[], Instant::now() + Duration::from_millis(20));
    assert_eq!(late.unwrap_err(), SendError::TimedOut);
}

#[test]
fn waiting_for_a_message_ends_with_it_or_at_the_deadline() {
    let (a, b) = Connection::pair().unwrap();
    let start = Instant::now();
    let late = b.recv_until(0, start + Duration::from_millis(20));
    assert_eq!(late.unwrap_err(), RecvError::TimedOut);
    assert!(start.elapsed() >= Duration::from_millis(20));

    let receiver = std::thread::spawn(move || b.recv_until(0, soon()).map(|got| got.bytes));
    a.send(b"here", &[]).unwrap();
    assert_eq!(receiver.join().unwrap(), Ok(b"here".to_vec()));
}

#[test]
fn a_blocking_socket_does_not_make_us_wait() {
    let (a, b) = Connection::pair().unwrap();
    // The flag belongs to the description, which a peer may share.
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(b.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    assert_eq!(b.recv(0).unwrap_err(), RecvError::WouldBlock);
    drop(a);
}

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_listener_has_the_mode_asked_for_and_takes_its_path_away() {
    let folder = Folder::new("mode");
    let path = folder.socket();
    let listener = Listener::bind(&path, 0o666, None).unwrap();
    assert_eq!(mode_of(&path), 0o666);
    assert!(listener.accept().unwrap().is_none());
    let client = Connection::connect(&path, soon()).unwrap();
    let server = listener.accept().unwrap().unwrap();
    client.send(b"hello", &[]).unwrap();
    assert_eq!(server.recv_until(0, soon()).unwrap().bytes, b"hello");
    assert_eq!(server.credentials().unwrap().pid, std::process::id());
    drop(listener);
    assert!(!path.exists());
    let refused = Connection::connect(&path, soon()).unwrap_err();
    assert_eq!(refused, ConnectError::NobodyThere);
}

#[test]
fn a_left_over_socket_is_replaced_and_a_living_one_is_not() {
    let folder = Folder::new("stale");
    let path = folder.socket();
    // What a killed daemon leaves: a bound socket that nobody holds.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&path, 0o600, None).unwrap();

    let second = Listener::bind(&path, 0o600, None).unwrap_err();
    assert!(matches!(second, ListenError::InUse { .. }), "{second}");
    Connection::connect(&path, soon()).unwrap();
    drop(listener);

    // Somebody else's socket, of another type, is in use too.
    let _stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let third = Listener::bind(&path, 0o600, None).unwrap_err();
    assert!(matches!(third, ListenError::InUse { .. }), "{third}");
}

#[test]
fn a_full_backlog_is_in_use_and_a_client_gives_up_in_time() {
    let folder = Folder::new("backlog");
    let path = folder.socket();
    let _listener = Listener::bind(&path, 0o600, None).unwrap();
    let mut waiting = Vec::new();
    let end = loop {
        match Connection::connect(&path, Instant::now()) {
            Ok(connection) => waiting.push(connection),
            Err(end) => break end,
        }
        assert!(waiting.len() < 10_000, "the backlog has no end");
    };
    assert_eq!(end, ConnectError::TimedOut);
    let second = Listener::bind(&path, 0o600, None).unwrap_err();
    assert!(matches!(second, ListenError::InUse { .. }), "{second}");
}

#[test]
fn a_file_or_link_in_the_way_is_left_alone() {
    let folder = Folder::new("inway");
    let path = folder.socket();
    std::fs::write(&path, "precious").unwrap();
    let found = Listener::bind(&path, 0o600, None).unwrap_err();
    assert!(matches!(found, ListenError::NotASocket { .. }), "{found}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/nowhere", &path).unwrap();
    assert!(Listener::bind(&path, 0o600, None).is_err());
    assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
}

#[test]
fn a_path_that_now_is_another_daemons_is_not_removed() {
    let folder = Folder::new("notours");
    let path = folder.socket();
    let first = Listener::bind(&path, 0o600, None).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = Listener::bind(&path, 0o600, None).unwrap();
    let inode = std::fs::metadata(&path).unwrap().ino();
    drop(first);
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
    drop(second);
}

#[test]
fn a_path_too_long_is_refused_with_its_length() {
    let path = PathBuf::from(format!("/tmp/{}", "d".repeat(120)));
    let text = Listener::bind(&path, 0o600, None).unwrap_err().to_string();
    assert!(text.contains("125 bytes"), "{text}");
}

#[test]
fn only_a_listening_seqpacket_socket_is_adopted() {
    let folder = Folder::new("adopt");
    let path = folder.socket();
    let listener = Listener::bind(&path, 0o600, None).unwrap();
    let passed = listener.as_fd().try_clone_to_owned().unwrap();
    let adopted = Listener::adopt(passed).unwrap();
    let _client = Connection::connect(&path, soon()).unwrap();
    assert!(adopted.accept().unwrap().is_some());
    drop(adopted);
    assert!(path.exists(), "the manager's path is not ours to remove");

    let (a, _b) = Connection::pair().unwrap();
    let stream = std::os::unix::net::UnixListener::bind(folder.0.join("stream")).unwrap();
    let file = File::open("/dev/null").unwrap();
    for wrong in [a.into_fd(), stream.into(), file.into()] {
        assert!(matches!(
            Listener::adopt(wrong),
            Err(ListenError::WrongKind)
        ));
    }
}
