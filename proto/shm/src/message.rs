//! One message with descriptors over a SEQPACKET socket, whole or not at all.
//!
//! Nothing here waits unless it is given a deadline: `send` and `recv` are `MSG_DONTWAIT`, whatever
//! the peer has done to the socket's flags. A message that was cut, or brings more descriptors than
//! asked for, is refused, and every descriptor that came with it is closed. What the bytes mean is
//! the affair of [`attach`](crate::attach); who the peer is, of [`peer`](crate::peer).

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// Bytes of the longest message either side sends or takes.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024;

/// Descriptors that may come with one message: a control segment, a bell, eight zones and room.
pub const MAX_MESSAGE_FDS: usize = 16;

/// What the kernel passes at most (`SCM_MAX_FD`). Room for that many is kept, so that a message
/// with too many can be closed to the last descriptor instead of being cut by the kernel.
const KERNEL_MAX_FDS: usize = 253;

/// One message as it came: bytes that are a claim, descriptors that are ours.
#[derive(Debug)]
pub struct Received {
    /// The message, not longer than [`MAX_MESSAGE_BYTES`].
    pub bytes: Vec<u8>,
    /// The descriptors, close-on-exec, in the sender's order.
    pub fds: Vec<OwnedFd>,
}

/// Why a message did not go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer does not read: its queue is full.
    #[error("the peer's queue is full")]
    WouldBlock,
    /// The peer has closed its end.
    #[error("the peer has hung up")]
    Closed,
    /// Longer than [`MAX_MESSAGE_BYTES`], empty, or with more than [`MAX_MESSAGE_FDS`] descriptors.
    #[error("a message of {nr_bytes} bytes and {nr_fds} descriptors is not allowed")]
    Oversized {
        /// Bytes of the message.
        nr_bytes: usize,
        /// Descriptors with it.
        nr_fds: usize,
    },
    /// The deadline passed before the peer had room.
    #[error("the peer did not take the message in time")]
    TimedOut,
    /// The system's no: `ETOOMANYREFS` when too many descriptors are under way already.
    #[error("the message could not be sent")]
    System(#[source] Errno),
}

/// Why there is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// Nothing has come yet.
    #[error("no message has come")]
    WouldBlock,
    /// The peer has closed its end, or sent a message of no bytes, which looks the same.
    #[error("the peer has hung up")]
    Closed,
    /// Longer than [`MAX_MESSAGE_BYTES`].
    #[error("the message is longer than {MAX_MESSAGE_BYTES} bytes")]
    TooLong,
    /// More descriptors than the caller allowed. All have been closed.
    #[error("the message brought {got} descriptors where {allowed} are allowed")]
    TooManyFds {
        /// Descriptors that came.
        got: usize,
        /// Descriptors that the caller allowed.
        allowed: usize,
    },
    /// The kernel left descriptors out: this process had no room for them. Those that did come
    /// have been closed.
    #[error("descriptors were lost on the way: this process has no room for more")]
    FdsLost,
    /// The deadline passed.
    #[error("no message came in time")]
    TimedOut,
    /// The system's no.
    #[error("the message could not be received")]
    System(#[source] Errno),
}

/// A connected SEQPACKET socket.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

impl Connection {
    /// Takes over a connected socket.
    pub fn from_fd(fd: OwnedFd) -> Connection {
        Connection { fd }
    }

    /// Two ends of a connection inside this process, for tests and for children.
    ///
    /// # Errors
    /// `EMFILE` when no descriptor is left.
    pub fn pair() -> Result<(Connection, Connection), Errno> {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Connection::from_fd(a), Connection::from_fd(b)))
    }

    /// Sends one message now.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message has gone out then.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        if bytes.is_empty() || bytes.len() > MAX_MESSAGE_BYTES || fds.len() > MAX_MESSAGE_FDS {
            return Err(SendError::Oversized {
                nr_bytes: bytes.len(),
                nr_fds: fds.len(),
            });
        }
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            let sent = sendmsg::<()>(
                self.fd.as_raw_fd(),
                &[IoSlice::new(bytes)],
                control,
                flags,
                None,
            );
            return match sent {
                // A SEQPACKET message goes whole or not at all.
                Ok(_) => Ok(()),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => Err(SendError::WouldBlock),
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => Err(SendError::Closed),
                Err(errno) => Err(SendError::System(errno)),
            };
        }
    }

    /// Receives one message now, with at most `max_fds` descriptors.
    ///
    /// # Errors
    /// [`RecvError`]; a message that was refused is gone, and its descriptors are closed.
    pub fn recv(&self, max_fds: usize) -> Result<Received, RecvError> {
        let mut bytes = vec![0_u8; MAX_MESSAGE_BYTES];
        let mut control = ControlSpace::new();
        let (length, flags) = loop {
            match receive(self.fd.as_fd(), &mut bytes, &mut control) {
                Ok(answer) => break answer,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Err(RecvError::WouldBlock),
                Err(Errno::ECONNRESET | Errno::ENOTCONN) => return Err(RecvError::Closed),
                Err(errno) => return Err(RecvError::System(errno)),
            }
        };
        // Taken first: from here on dropping the list closes them, whatever is refused below.
        let fds = control.take_fds();
        if flags & libc::MSG_CTRUNC != 0 {
            return Err(RecvError::FdsLost);
        }
        if flags & libc::MSG_TRUNC != 0 {
            return Err(RecvError::TooLong);
        }
        if length == 0 {
            return Err(RecvError::Closed);
        }
        if fds.len() > max_fds {
            return Err(RecvError::TooManyFds {
                got: fds.len(),
                allowed: max_fds,
            });
        }
        bytes.truncate(length);
        Ok(Received { bytes, fds })
    }

    /// Sends one message, waiting for room in the peer's queue until `deadline`.
    ///
    /// # Errors
    /// [`SendError`], with [`SendError::TimedOut`] in place of `WouldBlock`.
    pub fn send_until(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), SendError> {
        loop {
            match self.send(bytes, fds) {
                Err(SendError::WouldBlock) => {}
                other => return other,
            }
            match wait_until(self.fd.as_fd(), PollFlags::POLLOUT, deadline) {
                Ok(true) => {}
                Ok(false) => return Err(SendError::TimedOut),
                Err(errno) => return Err(SendError::System(errno)),
            }
        }
    }

    /// Receives one message, waiting for it until `deadline`.
    ///
    /// # Errors
    /// [`RecvError`], with [`RecvError::TimedOut`] in place of `WouldBlock`.
    pub fn recv_until(&self, max_fds: usize, deadline: Instant) -> Result<Received, RecvError> {
        loop {
            match self.recv(max_fds) {
                Err(RecvError::WouldBlock) => {}
                other => return other,
            }
            match wait_until(self.fd.as_fd(), PollFlags::POLLIN, deadline) {
                Ok(true) => {}
                Ok(false) => return Err(RecvError::TimedOut),
                Err(errno) => return Err(RecvError::System(errno)),
            }
        }
    }

    /// The socket itself.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until `fd` is ready for `flags` or hung up; `false` when the deadline passed first.
pub(crate) fn wait_until(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    deadline: Instant,
) -> Result<bool, Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the last fraction of a millisecond is slept and not spun away.
        let left_ms = left
            .saturating_add(Duration::from_nanos(999_999))
            .as_millis();
        let timeout = PollTimeout::try_from(left_ms).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut [PollFd::new(fd, flags)], timeout) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// Room for the control messages of the largest message the kernel delivers.
///
/// # Invariants
/// The first `filled` bytes are control messages as `recvmsg` wrote them, and the descriptors
/// named in them are open, close-on-exec, and owned by nobody else.
#[repr(C, align(8))]
struct ControlSpace {
    bytes: [u8; CONTROL_BYTES],
    filled: usize,
}

/// Bytes of one `SCM_RIGHTS` message with [`KERNEL_MAX_FDS`] descriptors, and some room.
const CONTROL_BYTES: usize = 64 + KERNEL_MAX_FDS * size_of::<RawFd>();

/// Bytes of a control message's header, which on Linux needs no padding before the data.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

impl ControlSpace {
    fn new() -> ControlSpace {
        ControlSpace {
            bytes: [0; CONTROL_BYTES],
            filled: 0,
        }
    }

    /// Takes the descriptors out; afterwards the space is empty.
    fn take_fds(&mut self) -> Vec<OwnedFd> {
        let mut fds = Vec::new();
        let mut rest = &self.bytes[..self.filled];
        while let Some(length) = message_length(rest) {
            let (level, kind) = (word(rest, LEVEL_OFFSET), word(rest, KIND_OFFSET));
            if (level, kind) == (Some(libc::SOL_SOCKET), Some(libc::SCM_RIGHTS)) {
                let (numbers, _) = rest[HEADER_BYTES..length].as_chunks::<4>();
                for raw in numbers.iter().map(|bytes| RawFd::from_ne_bytes(*bytes)) {
                    // SAFETY: by the invariant of `ControlSpace` this number is an open descriptor
                    // that recvmsg made for us alone; `filled` is cleared below, so it is not
                    // taken twice.
                    fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
                }
            }
            let aligned = length.next_multiple_of(size_of::<usize>());
            rest = rest.get(aligned..).unwrap_or_default();
        }
        self.filled = 0;
        fds
    }
}

const LEVEL_OFFSET: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_level);
const KIND_OFFSET: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_type);

/// The length of the control message at the head of `rest`, header included.
fn message_length(rest: &[u8]) -> Option<usize> {
    let (length, _) = rest.split_first_chunk::<{ size_of::<usize>() }>()?;
    let length = usize::from_ne_bytes(*length);
    (HEADER_BYTES..=rest.len())
        .contains(&length)
        .then_some(length)
}

fn word(bytes: &[u8], offset: usize) -> Option<i32> {
    let (word, _) = bytes.get(offset..)?.split_first_chunk::<4>()?;
    Some(i32::from_ne_bytes(*word))
}

/// `recvmsg` by hand: nix drops the numbers of the descriptors when the control data were cut, and
/// those would then stay open for ever.
fn receive(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    control: &mut ControlSpace,
) -> Result<(usize, libc::c_int), Errno> {
    let mut slice = [IoSliceMut::new(bytes)];
    // SAFETY: msghdr is plain integers and pointers, for which all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // IoSliceMut has the layout of iovec by its documentation.
    header.msg_iov = slice.as_mut_ptr().cast();
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY:
    // 1. `header` names one iovec, which covers `bytes`, exclusively borrowed for the call.
    // 2. It names `CONTROL_BYTES` of `control`, exclusively borrowed too, and aligned for cmsghdr.
    // 3. The name is null with length zero: the kernel writes none.
    let answer = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    let length = Errno::result(answer)?;
    control.filled = header.msg_controllen.min(CONTROL_BYTES);
    Ok((usize::try_from(length).unwrap_or(0), header.msg_flags))
}
