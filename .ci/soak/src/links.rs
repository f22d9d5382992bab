//! Tickets between workers: by datagrams, some of them twice, and by channels that they open to each
//! other.

use std::{
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use hugepool::{
    Client, Page, Parcel, Ticket,
    channel::{self, Receiver, RecvError, RingEnd, Sender},
};

/// Workers at a time.
pub const NR_WORKERS: usize = 5;

/// Channels that one sends by, and receives by, at most.
const MOST_CHANNELS: usize = 3;

/// Tickets in one.
const CAPACITY: u32 = 16;

/// How long one waits for the other end of a channel.
const PATIENCE: Duration = Duration::from_millis(1);

/// What a datagram brings.
pub enum Post {
    /// A parcel, and which worker it is from.
    Ticket(Ticket, usize),
    /// Nothing that is to be acted on.
    Nothing,
}

/// A worker's mail.
pub struct Links {
    post: UnixDatagram,
    peers: Vec<PathBuf>,
    me: usize,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
}

impl Links {
    /// Opens its own mailbox.
    pub fn new(dir: &Path, me: usize) -> anyhow::Result<Links> {
        let peers: Vec<PathBuf> = (0..NR_WORKERS)
            .map(|at| dir.join(format!("worker-{at}")))
            .collect();
        let own = peers.get(me).context("there is no such worker")?;
        // That of a predecessor, who could not take it away.
        let _ = std::fs::remove_file(own);
        let post = UnixDatagram::bind(own).context("no mailbox")?;
        post.set_nonblocking(true)?;
        Ok(Links {
            post,
            peers,
            me,
            senders: Vec::new(),
            receivers: Vec::new(),
        })
    }

    /// Sends to a worker; who is dead or has no room does not get it.
    pub fn send(&self, ticket: Ticket, to: usize) {
        let mut message = vec![u8::try_from(self.me).unwrap_or(u8::MAX)];
        message.extend(ticket.to_bytes());
        let _ = self.post.send_to(&message, &self.peers[to]);
    }

    /// The next thing in the mailbox.
    pub fn receive(&mut self, client: &Client) -> Post {
        let mut message = [0; 64];
        let Ok(len) = self.post.recv(&mut message) else {
            return Post::Nothing;
        };
        let (from, rest) = (usize::from(message[0]), &message[1..len.max(1)]);
        if let Ok(bytes) = <[u8; 8]>::try_from(rest) {
            return Ticket::from_bytes(bytes).map_or(Post::Nothing, |ticket| {
                Post::Ticket(ticket, from.min(NR_WORKERS - 1))
            });
        }
        let invitation = std::str::from_utf8(rest).ok().map(str::parse);
        if let Some(Ok(invitation)) = invitation
            && self.receivers.len() < MOST_CHANNELS
            && let Ok(receiver) = channel::join_receiver(client, invitation)
        {
            self.receivers.push(receiver);
        }
        Post::Nothing
    }

    /// Opens a channel to a worker, if there are not enough.
    pub fn open(&mut self, client: &Client, to: usize) {
        if self.senders.len() >= MOST_CHANNELS {
            return;
        }
        let Ok((sender, invitation)) = channel::sender(client, CAPACITY) else {
            return;
        };
        let mut message = vec![u8::try_from(self.me).unwrap_or(u8::MAX)];
        message.extend(invitation.to_string().into_bytes());
        let _ = self.post.send_to(&message, &self.peers[to]);
        self.senders.push(sender);
    }

    /// Sends pages by one of the channels; what is not sent is in the list still.
    pub fn send_pages(&mut self, at: usize, pages: &mut Vec<Page>) -> Option<Ticket> {
        if self.senders.is_empty() {
            return None;
        }
        let at = at % self.senders.len();
        match self.senders[at].send_pages(pages, PATIENCE) {
            Ok(ticket) => Some(ticket),
            Err(channel::SendError::End(RingEnd::TimedOut { .. })) => None,
            Err(channel::SendError::End(_)) => {
                self.senders.swap_remove(at);
                None
            }
            Err(_) => None,
        }
    }

    /// The next parcel from one of the channels.
    pub fn receive_parcel(&mut self, at: usize) -> Option<Parcel> {
        if self.receivers.is_empty() {
            return None;
        }
        let at = at % self.receivers.len();
        match self.receivers[at].recv_parcel(PATIENCE) {
            Ok(parcel) => Some(parcel),
            Err(RecvError::End(RingEnd::Closed | RingEnd::Gone)) => {
                self.receivers.swap_remove(at);
                None
            }
            Err(_) => None,
        }
    }

    /// Lets go of all channels.
    pub fn hang_up(&mut self) {
        self.senders.clear();
        self.receivers.clear();
    }
}
