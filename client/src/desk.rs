//! What a client asks the daemon for on the attach socket after it has attached: descriptors.
//!
//! One question at a time, each with a deadline. That the connection is open is also what keeps the
//! client attached.

use std::{
    cell::Cell,
    os::fd::OwnedFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hugepool_shm::{
    attach::{
        AttachMessage, ChannelOutcome, ChannelRequest, ChannelWanted, PeerReply, PeerRequest,
    },
    message::Connection,
    outbox::OUTBOX_BYTES,
    region::Region,
};

use crate::channel::ChannelError;

/// How long an answer may take: the daemon gives it at once, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// The open connection.
#[derive(Debug)]
pub(crate) struct Desk {
    connection: Mutex<Connection>,
    next_number: AtomicU32,
}

impl Desk {
    pub(crate) fn new(connection: Connection) -> Desk {
        Desk {
            connection: Mutex::new(connection),
            next_number: AtomicU32::new(0),
        }
    }

    /// The outbox of the client in a slot, to be read; none if it is not there, or shares no zone
    /// with this client, or the daemon does not answer.
    pub(crate) fn outbox_of(&self, slot: u16) -> Option<OwnedFd> {
        let request = AttachMessage::PeerRequest(PeerRequest { slot });
        let file = self.ask(&request, |answer| match answer {
            AttachMessage::PeerReply(PeerReply { slot: of, is_there }) if of == slot => {
                Some(is_there)
            }
            _ => None,
        })?;
        let len_bytes = u64::try_from(OUTBOX_BYTES).unwrap_or(u64::MAX);
        Region::check_read_only(&file, len_bytes).ok()?;
        Some(file)
    }

    /// A channel's ring, and the channel's secret name.
    pub(crate) fn channel(&self, what: ChannelWanted) -> Result<(OwnedFd, [u8; 16]), ChannelError> {
        let number = self.next_number.fetch_add(1, Relaxed);
        let request = AttachMessage::ChannelRequest(ChannelRequest { number, what });
        let found = Cell::new(None);
        let file = self.ask(&request, |answer| match answer {
            AttachMessage::ChannelReply(reply) if reply.number == number => {
                found.set(Some(reply));
                Some(reply.outcome == ChannelOutcome::Made)
            }
            _ => None,
        });
        match (file, found.get().map(|reply| (reply.id, reply.outcome))) {
            (Some(file), Some((id, ChannelOutcome::Made))) => Ok((file, id)),
            (_, Some((_, ChannelOutcome::NoSuchChannel))) => Err(ChannelError::NoSuchChannel),
            (_, Some((_, ChannelOutcome::Taken))) => Err(ChannelError::Taken),
            (_, Some((_, ChannelOutcome::UsedUp))) => Err(ChannelError::UsedUp),
            _ => Err(ChannelError::DaemonAway),
        }
    }

    /// Asks, and waits for the answer that `is_it` knows and says the success of; the descriptor
    /// that came with it. Answers to questions that were given up are passed over.
    fn ask(
        &self,
        request: &AttachMessage,
        is_it: impl Fn(AttachMessage) -> Option<bool>,
    ) -> Option<OwnedFd> {
        let deadline = Instant::now() + PATIENCE;
        let bytes = request.encode().ok()?;
        // A panic under the lock leaves at worst an answer that is passed over.
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connection.send_until(&bytes, &[], deadline).ok()?;
        loop {
            let received = connection.recv_until(1, deadline).ok()?;
            let answer = AttachMessage::decode(&received.bytes).ok()?;
            if let Some(is_there) = is_it(answer) {
                return received.fds.into_iter().next().filter(|_| is_there);
            }
        }
    }
}
