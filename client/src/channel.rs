//! A channel of tickets between two clients: one sends, one receives.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! use hugepool::{Client, Options, channel};
//!
//! // In one process: makes the channel, and tells the other one its name.
//! let client = Client::attach(Options::default())?;
//! let (mut sender, invitation) = channel::sender(&client, 64)?;
//! println!("{invitation}");
//! let mut pages = client.alloc_exact(65)?;
//! sender.send_pages(&mut pages, Duration::from_secs(1))?;
//!
//! // In the other one, which was told:
//! # let told = invitation.to_string();
//! let client = Client::attach(Options::default())?;
//! let mut receiver = channel::join_receiver(&client, told.parse()?)?;
//! let parcel = receiver.recv_parcel(Duration::from_secs(1))?;
//! println!("{} pages, {}", parcel.len(), parcel[0][0]);
//! # Ok(())
//! # }
//! ```
//!
//! The daemon makes the ring and passes it to both; after that it has no part in it. A send or a
//! receive is a few stores; the other end is woken only if it sleeps, and every wait has an end. When
//! an end is dropped, or its process dies, the other one still receives what was sent before, and
//! then hears which of the two it was. Pages that were sent and not claimed when the *sender* dies
//! go home; their tickets are refused.
//!
//! Tickets may as well travel over any channel of a program's own.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use hugepool_shm::{
    attach::{ChannelWanted, JoinChannel, NewChannel},
    region::Region,
    ticket_ring::{RingError, RingSide, Side, TicketRing},
    token::Token,
};

pub use hugepool_shm::ticket_ring::{RING_TICKETS_MAX, RingEnd};

use crate::{ClaimError, Client, HandOverError, Page, Parcel, SharedPage, Ticket};

/// Looks before the first sleep, where a processor is left for the other end and the daemon.
const SPINS: u32 = 2000;

/// Between two tries of what the daemon has to make room for.
const PAUSE: Duration = Duration::from_micros(100);

/// The secret name of a channel: who knows it can take the end that nobody has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Invitation(Token);

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invitation")
    }
}

/// Text that is no [`Invitation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an invitation has 32 hexadecimal digits")]
pub struct NoInvitation;

impl FromStr for Invitation {
    type Err = NoInvitation;

    fn from_str(text: &str) -> Result<Invitation, NoInvitation> {
        Token::from_hex(text).map(Invitation).ok_or(NoInvitation)
    }
}

/// Why there is no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A channel holds a power of two of tickets, up to [`RING_TICKETS_MAX`].
    #[error("a channel holds a power of two of tickets up to {RING_TICKETS_MAX}, not {capacity}")]
    Capacity {
        /// As asked.
        capacity: u32,
    },
    /// Nobody has made one of that name, or who made it is gone.
    #[error("there is no channel of that name, or no longer")]
    NoSuchChannel,
    /// Somebody else has that end.
    #[error("that end of the channel is taken")]
    Taken,
    /// This client has as many as it may, or the daemon has no memory left for it.
    #[error("no further channel can be had: close some")]
    UsedUp,
    /// The daemon did not answer.
    #[error("the daemon has not answered")]
    DaemonAway,
    /// What the daemon passed could not be mapped.
    #[error("the channel could not be entered")]
    Ring(#[from] RingError),
}

/// Why something was not sent. It is the caller's still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No room in time, or the receiver is gone.
    #[error(transparent)]
    End(#[from] RingEnd),
    /// The pages cannot be handed over.
    #[error(transparent)]
    HandOver(#[from] HandOverError),
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing came in time, or the sender is gone and all that it had sent is received.
    #[error(transparent)]
    End(#[from] RingEnd),
    /// A ticket came, and brought no pages.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// Makes a channel that holds up to `capacity` tickets, a power of two, to send by.
///
/// # Errors
/// [`ChannelError`].
pub fn sender(client: &Client, capacity: u32) -> Result<(Sender, Invitation), ChannelError> {
    let (side, invitation) = make(client, capacity, Side::Sender)?;
    Ok((Sender::new(client, side), invitation))
}

/// Makes a channel that holds up to `capacity` tickets, a power of two, to receive from.
///
/// # Errors
/// [`ChannelError`].
pub fn receiver(client: &Client, capacity: u32) -> Result<(Receiver, Invitation), ChannelError> {
    let (side, invitation) = make(client, capacity, Side::Receiver)?;
    Ok((Receiver::new(client, side), invitation))
}

/// Joins a channel that another client has made, to send by.
///
/// # Errors
/// [`ChannelError`].
pub fn join_sender(client: &Client, invitation: Invitation) -> Result<Sender, ChannelError> {
    join(client, invitation, Side::Sender).map(|side| Sender::new(client, side))
}

/// Joins a channel that another client has made, to receive from.
///
/// # Errors
/// [`ChannelError`].
pub fn join_receiver(client: &Client, invitation: Invitation) -> Result<Receiver, ChannelError> {
    join(client, invitation, Side::Receiver).map(|side| Receiver::new(client, side))
}

fn make(
    client: &Client,
    capacity: u32,
    side: Side,
) -> Result<(RingSide, Invitation), ChannelError> {
    TicketRing::len_bytes(capacity).map_err(|_| ChannelError::Capacity { capacity })?;
    let receives = side == Side::Receiver;
    let what = NewChannel { capacity, receives };
    enter(client, ChannelWanted::New(what), side)
}

fn join(client: &Client, invitation: Invitation, side: Side) -> Result<RingSide, ChannelError> {
    let what = JoinChannel {
        id: invitation.0.to_bytes(),
        receives: side == Side::Receiver,
    };
    enter(client, ChannelWanted::Join(what), side).map(|(side, _)| side)
}

fn enter(
    client: &Client,
    what: ChannelWanted,
    side: Side,
) -> Result<(RingSide, Invitation), ChannelError> {
    let (file, id) = client.inner().desk.channel(what)?;
    let region = Region::adopt(file).map_err(|_| RingError::NotARing)?;
    let ring = TicketRing::open(region.map().map_err(RingError::Map)?)?;
    // One processor for each end and one for the daemon: then looking costs nobody anything.
    let nr_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let nr_spins = if nr_cores > 2 { SPINS } else { 0 };
    let invitation = Invitation(Token::from_bytes(id));
    Ok((RingSide::new(ring, side, nr_spins), invitation))
}

/// The end of a channel that sends.
#[derive(Debug)]
pub struct Sender {
    side: RingSide,
    client: Client,
}

impl Sender {
    fn new(client: &Client, side: RingSide) -> Sender {
        Sender {
            side,
            client: client.clone(),
        }
    }

    /// Looks so many times before it sleeps, when there is no room: 0 where processors are few.
    pub fn set_spins(&mut self, nr_spins: u32) {
        self.side.set_spins(nr_spins);
    }

    /// Sends a ticket if there is room for it; says whether.
    ///
    /// # Errors
    /// [`RingEnd`] if the receiver is gone.
    pub fn try_send(&mut self, ticket: Ticket) -> Result<bool, RingEnd> {
        self.side.try_send(ticket)
    }

    /// Sends a ticket, waiting for room.
    ///
    /// # Errors
    /// [`RingEnd`]: it was not sent.
    pub fn send(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), RingEnd> {
        self.side.send(ticket, timeout)
    }

    /// Hands pages over and sends their ticket, waiting for room; leaves the list empty and returns
    /// the ticket.
    ///
    /// # Errors
    /// [`SendError`]: the pages are in the list still, or, if the receiver has claimed them in the
    /// very moment in which it let go, its own.
    pub fn send_pages(
        &mut self,
        pages: &mut Vec<Page>,
        timeout: Duration,
    ) -> Result<Ticket, SendError> {
        if let Some(end) = self.side.ended() {
            return Err(end.into());
        }
        let (ticket, ends) = offered(timeout, || self.client.hand_over_bulk(pages))?;
        self.send_offered(ticket, ends.map_or(timeout, left), pages)
    }

    /// Offers a holding of a shared page and sends its ticket, waiting for room; returns the ticket.
    /// The caller's own holding is as before.
    ///
    /// # Errors
    /// [`SendError`]: the holding is offered to nobody.
    pub fn send_shared(
        &mut self,
        page: &SharedPage,
        timeout: Duration,
    ) -> Result<Ticket, SendError> {
        if let Some(end) = self.side.ended() {
            return Err(end.into());
        }
        if !page.is_of(&self.client.inner().lanes) {
            return Err(HandOverError::OtherClient.into());
        }
        let (ticket, ends) = offered(timeout, || page.hand_over())?;
        // Of a holding that is taken back no page comes.
        self.send_offered(ticket, ends.map_or(timeout, left), &mut Vec::new())
    }

    /// Sends a ticket, or takes back what it names.
    fn send_offered(
        &mut self,
        ticket: Ticket,
        timeout: Duration,
        pages: &mut Vec<Page>,
    ) -> Result<Ticket, SendError> {
        let sent = match self.side.try_send(ticket) {
            Ok(true) => return Ok(ticket),
            Ok(false) => self.side.send(ticket, timeout),
            Err(end) => Err(end),
        };
        match sent {
            Ok(()) => Ok(ticket),
            Err(end) => {
                // Nobody knows of it, so nobody is faster.
                let _ = self.client.take_back(ticket, pages);
                Err(end.into())
            }
        }
    }

    /// The client that it sends from.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// The end of a channel that receives.
#[derive(Debug)]
pub struct Receiver {
    side: RingSide,
    client: Client,
    /// Received, and there was no room to claim it.
    pending: Option<Ticket>,
}

impl Receiver {
    fn new(client: &Client, side: RingSide) -> Receiver {
        Receiver {
            side,
            client: client.clone(),
            pending: None,
        }
    }

    /// Looks so many times before it sleeps, when there is nothing: 0 where processors are few.
    pub fn set_spins(&mut self, nr_spins: u32) {
        self.side.set_spins(nr_spins);
    }

    /// Takes the next ticket, if there is one.
    ///
    /// # Errors
    /// [`RingEnd`] once the sender is gone and all that it sent is received.
    pub fn try_recv(&mut self) -> Result<Option<Ticket>, RingEnd> {
        match self.pending.take() {
            None => self.side.try_recv(),
            pending => Ok(pending),
        }
    }

    /// Takes the next ticket, waiting for it.
    ///
    /// # Errors
    /// [`RingEnd`].
    pub fn recv(&mut self, timeout: Duration) -> Result<Ticket, RingEnd> {
        match self.pending.take() {
            None => self.side.recv(timeout),
            Some(ticket) => Ok(ticket),
        }
    }

    /// Takes the next ticket, waiting for it, and claims the pages that it names.
    ///
    /// # Errors
    /// [`RecvError`]. One that came and could not be claimed for want of room, or because it is of a
    /// shared page, is the next one still.
    pub fn recv_parcel(&mut self, timeout: Duration) -> Result<Parcel, RecvError> {
        self.recv_claimed(timeout, Client::claim)
    }

    /// Takes the next ticket, waiting for it, and claims the holding of a shared page that it is.
    ///
    /// # Errors
    /// [`RecvError`]. One that came and could not be claimed for want of room, or because it is of a
    /// parcel, is the next one still.
    pub fn recv_shared(&mut self, timeout: Duration) -> Result<SharedPage, RecvError> {
        self.recv_claimed(timeout, Client::claim_shared)
    }

    fn recv_claimed<T>(
        &mut self,
        timeout: Duration,
        claim: impl Fn(&Client, Ticket) -> Result<T, ClaimError>,
    ) -> Result<T, RecvError> {
        let (ticket, ends) = match self.try_recv()? {
            Some(ticket) => (ticket, None),
            None => {
                let ends = end_of(timeout);
                (self.recv(timeout)?, Some(ends))
            }
        };
        let claimed = match claim(&self.client, ticket) {
            Err(ClaimError::ReturnsFull) => retry(
                ends.unwrap_or_else(|| end_of(timeout)),
                |why| why == ClaimError::ReturnsFull,
                || claim(&self.client, ticket),
            ),
            claimed => claimed,
        };
        if let Err(ClaimError::ReturnsFull | ClaimError::OtherKind { .. }) = claimed {
            self.pending = Some(ticket);
        }
        Ok(claimed?)
    }

    /// The client that it receives for.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// Hands over, waiting for room in the outbox: the ticket, and when the time is over if it waited.
fn offered(
    timeout: Duration,
    mut hand_over: impl FnMut() -> Result<Ticket, HandOverError>,
) -> Result<(Ticket, Option<Instant>), HandOverError> {
    match hand_over() {
        // The clock is looked at only where something has to be waited for.
        Err(HandOverError::OutboxFull) => {
            let ends = end_of(timeout);
            let full = |why| why == HandOverError::OutboxFull;
            Ok((retry(ends, full, hand_over)?, Some(ends)))
        }
        answer => Ok((answer?, None)),
    }
}

/// Tries again for as long as the answer may change and the time is not over.
fn retry<T, E: Copy>(
    ends: Instant,
    may_change: impl Fn(E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    loop {
        match attempt() {
            Err(why) if may_change(why) && !left(ends).is_zero() => {
                std::thread::sleep(PAUSE.min(left(ends)));
            }
            answer => return answer,
        }
    }
}

/// One too far for the clock is as good as a day.
fn end_of(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout)
        .unwrap_or(now + Duration::from_secs(86_400))
}

fn left(ends: Instant) -> Duration {
    ends.saturating_duration_since(Instant::now())
}
