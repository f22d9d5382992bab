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
    message::{Connection, RecvError},
    outbox::OUTBOX_BYTES,
    region::Region,
};

use crate::channel::ChannelError;

/// After so long without an answer a question is asked again that may be: the daemon may have died with
/// it, and the next one has the connection and not what was read from it.
const AGAIN: Duration = Duration::from_millis(200);

/// The open connection.
#[derive(Debug)]
pub(crate) struct Desk {
    connection: Mutex<Connection>,
    /// How long an answer may take.
    patience: Duration,
    next_number: AtomicU32,
}

impl Desk {
    pub(crate) fn new(connection: Connection, patience: Duration) -> Desk {
        Desk {
            connection: Mutex::new(connection),
            patience,
            next_number: AtomicU32::new(0),
        }
    }

    /// The outbox of the client in a slot, to be read; none if it is not there, or shares no zone
    /// with this client, or the daemon does not answer.
    pub(crate) fn outbox_of(&self, slot: u16) -> Option<OwnedFd> {
        let request = AttachMessage::PeerRequest(PeerRequest { slot });
        // The same question has the same answer, however often it is put.
        let file = self.ask(&request, Some(AGAIN), |answer| match answer {
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
        // Twice could be two channels, or an end that is taken, by this client itself.
        let file = self.ask(&request, None, |answer| match answer {
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

    /// Asks, again and `again` where that may be, and waits for the answer that `is_it` knows and says
    /// the success of; the descriptor that came with it. Answers to questions that were given up, and
    /// second ones, are passed over.
    fn ask(
        &self,
        request: &AttachMessage,
        again: Option<Duration>,
        is_it: impl Fn(AttachMessage) -> Option<bool>,
    ) -> Option<OwnedFd> {
        let deadline = Instant::now() + self.patience;
        let bytes = request.encode().ok()?;
        // A panic under the lock leaves at worst an answer that is passed over.
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            connection.send_until(&bytes, &[], deadline).ok()?;
            let turn_ends = again.map_or(deadline, |again| deadline.min(Instant::now() + again));
            loop {
                let received = match connection.recv_until(1, turn_ends) {
                    Ok(received) => received,
                    Err(RecvError::TimedOut) if Instant::now() < deadline => break,
                    Err(_) => return None,
                };
                let answer = AttachMessage::decode(&received.bytes).ok()?;
                if let Some(is_there) = is_it(answer) {
                    return received.fds.into_iter().next().filter(|_| is_there);
                }
            }
        }
    }
}
