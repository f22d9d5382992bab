//! Channels between two clients: made, joined, and ended when one of the two is gone.
//!
//! The daemon keeps each ring's memory for as long as one of its ends may be joined or lives, says
//! in it when an end has gone, and never reads a ticket. The store has a descriptor for each end,
//! under a name that says whose it is: so the next daemon goes on with them.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use hugepool_engine::ClientId;
use hugepool_shm::attach::{
    ChannelOutcome, ChannelReply, ChannelRequest, ChannelWanted, JoinChannel, NewChannel,
};
use hugepool_shm::region::Region;
use hugepool_shm::ticket_ring::{Side, TicketRing};
use hugepool_shm::token::Token;

use crate::kept::{ChannelEnd, channel_name};
use crate::store::Store;

/// Channels that one client may have: each costs memory and descriptors, here and in the store.
const MAX_PER_CLIENT: usize = 64;

/// Ends of all channels: the store has a descriptor of each.
const MAX_ENDS: usize = 4096;

/// All channels, by their secret names.
#[derive(Debug, Default)]
pub struct Channels {
    store: Arc<Store>,
    by_id: HashMap<[u8; 16], Channel>,
}

#[derive(Debug)]
struct Channel {
    region: Region,
    ring: TicketRing,
    /// None where nobody has joined yet.
    sender: Option<End>,
    receiver: Option<End>,
}

/// Whose an end is: its connection, and its client.
#[derive(Clone, Copy, Debug)]
struct End {
    number: u64,
    client: ClientId,
}

impl Channels {
    /// None yet; those to come are put into the store.
    pub fn new(store: Arc<Store>) -> Channels {
        let by_id = HashMap::new();
        Channels { store, by_id }
    }

    /// Answers a client's request; and the descriptor to go with the answer, if there is one.
    pub fn answer(
        &mut self,
        number: u64,
        client: ClientId,
        request: ChannelRequest,
    ) -> (ChannelReply, Option<BorrowedFd<'_>>) {
        let end = End { number, client };
        let (id, outcome) = match request.what {
            ChannelWanted::New(NewChannel { capacity, receives }) => {
                self.make(end, capacity, side(receives))
            }
            ChannelWanted::Join(JoinChannel { id, receives }) => {
                (id, self.join(end, id, side(receives)))
            }
        };
        let reply = ChannelReply {
            number: request.number,
            id,
            outcome,
        };
        let channel = self
            .by_id
            .get(&id)
            .filter(|_| outcome == ChannelOutcome::Made);
        (reply, channel.map(|channel| channel.region.as_fd()))
    }

    fn make(&mut self, end: End, capacity: u32, side: Side) -> ([u8; 16], ChannelOutcome) {
        self.drop_ended();
        let all = self.by_id.values();
        let nr_own = all.filter(|channel| channel.is_of(end.number)).count();
        let may_have = nr_own < MAX_PER_CLIENT && self.by_id.len() < MAX_ENDS / 2;
        let made = may_have.then(|| make_ring(capacity)).flatten();
        let Some((id, region, ring)) = made else {
            return ([0; 16], ChannelOutcome::UsedUp);
        };
        let mut channel = Channel {
            region,
            ring,
            sender: None,
            receiver: None,
        };
        *channel.end(side) = Some(end);
        // Before anybody has it: the next daemon tells the other end when this one goes.
        self.keep(&channel, id, side, end);
        self.by_id.insert(id, channel);
        (id, ChannelOutcome::Made)
    }

    fn join(&mut self, new: End, id: [u8; 16], side: Side) -> ChannelOutcome {
        let Some(channel) = self.by_id.get_mut(&id) else {
            return ChannelOutcome::NoSuchChannel;
        };
        let end = channel.end(side);
        if end.is_some() {
            return ChannelOutcome::Taken;
        }
        *end = Some(new);
        if let Some(channel) = self.by_id.get(&id) {
            self.keep(channel, id, side, new);
        }
        ChannelOutcome::Made
    }

    /// Goes on with the end of a channel that a daemon before has made; without a connection whose
    /// it was is gone.
    pub fn adopt(&mut self, end: ChannelEnd, fd: OwnedFd, number: Option<u64>) {
        let ChannelEnd { id, side, client } = end;
        let channel = match self.by_id.remove(&id) {
            Some(channel) => Ok(channel),
            None => open_ring(fd).map(|(region, ring)| Channel {
                region,
                ring,
                sender: None,
                receiver: None,
            }),
        };
        let mut channel = match channel {
            Ok(channel) => channel,
            Err(error) => {
                tracing::warn!(%client, %error, "a channel of before cannot be gone on with");
                return self.store.forget(&channel_name(&end));
            }
        };
        match number {
            Some(number) => *channel.end(side) = Some(End { number, client }),
            None => {
                channel.ring.mark_gone(side);
                self.store.forget(&channel_name(&end));
            }
        }
        self.by_id.insert(id, channel);
    }

    /// A client is gone: who waits for it at the other end hears of it.
    pub fn leave(&mut self, number: u64) {
        for channel in self.by_id.values_mut() {
            for side in SIDES {
                if channel.end(side).is_some_and(|end| end.number == number) {
                    channel.ring.mark_gone(side);
                }
            }
        }
        self.drop_ended();
    }

    /// Lets go of channels at which nobody is any more.
    fn drop_ended(&mut self) {
        let Channels { store, by_id } = self;
        by_id.retain(|&id, channel| {
            let is_over = channel.is_over();
            for side in SIDES.into_iter().filter(|_| is_over) {
                if let Some(End { client, .. }) = *channel.end(side) {
                    store.forget(&channel_name(&ChannelEnd { id, side, client }));
                }
            }
            !is_over
        });
    }

    fn keep(&self, channel: &Channel, id: [u8; 16], side: Side, end: End) {
        let client = end.client;
        let name = channel_name(&ChannelEnd { id, side, client });
        self.store.keep(&name, channel.region.as_fd());
    }
}

const SIDES: [Side; 2] = [Side::Sender, Side::Receiver];

impl Channel {
    fn end(&mut self, side: Side) -> &mut Option<End> {
        match side {
            Side::Sender => &mut self.sender,
            Side::Receiver => &mut self.receiver,
        }
    }

    fn is_of(&self, number: u64) -> bool {
        let ends = [self.sender, self.receiver];
        ends.into_iter().flatten().any(|end| end.number == number)
    }

    /// Whether nobody is at it any more, or the one who made it has gone before anybody joined.
    fn is_over(&self) -> bool {
        let is_over = |side, end: Option<End>| end.is_none() || self.ring.is_over(side);
        is_over(Side::Sender, self.sender) && is_over(Side::Receiver, self.receiver)
    }
}

fn side(receives: bool) -> Side {
    if receives {
        Side::Receiver
    } else {
        Side::Sender
    }
}

/// None when the system has nothing left for it.
fn make_ring(capacity: u32) -> Option<([u8; 16], Region, TicketRing)> {
    let id = Token::random().ok()?.to_bytes();
    let len_bytes = u64::try_from(TicketRing::len_bytes(capacity).ok()?).ok()?;
    let region = Region::for_peers("channel", len_bytes).ok()?;
    let ring = TicketRing::create(region.map().ok()?, capacity).ok()?;
    Some((id, region, ring))
}

/// What a daemon before has made, as its clients have left it.
fn open_ring(fd: OwnedFd) -> Result<(Region, TicketRing), String> {
    let region = Region::adopt(fd).map_err(|error| error.to_string())?;
    let mapping = region.map().map_err(|error| error.to_string())?;
    let ring = TicketRing::open(mapping).map_err(|error| error.to_string())?;
    Ok((region, ring))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugepool_shm::ticket_ring::{RingEnd, RingSide};

    fn new(capacity: u32) -> ChannelRequest {
        let what = ChannelWanted::New(NewChannel {
            capacity,
            receives: false,
        });
        ChannelRequest { number: 1, what }
    }

    fn join(id: [u8; 16], receives: bool) -> ChannelRequest {
        let what = ChannelWanted::Join(JoinChannel { id, receives });
        ChannelRequest { number: 2, what }
    }

    fn of(number: u64) -> ClientId {
        ClientId {
            slot: u16::try_from(number).unwrap(),
            incarnation: 1,
        }
    }

    #[test]
    fn the_next_daemon_goes_on_with_both_ends_or_says_which_is_gone() {
        for (is_there, wanted) in [(true, None), (false, Some(RingEnd::Gone))] {
            let mut before = Channels::default();
            let (made, fd) = before.answer(10, of(10), new(8));
            let fd = fd.unwrap().try_clone_to_owned().unwrap();
            let (_, mapping) = open_ring(fd.try_clone().unwrap()).unwrap();
            let receiver = RingSide::new(mapping, Side::Receiver, 0);
            let end = |side, number| ChannelEnd {
                id: made.id,
                side,
                client: of(number),
            };
            let mut next = Channels::default();
            let number = is_there.then_some(3);
            next.adopt(end(Side::Sender, 10), fd.try_clone().unwrap(), number);
            next.adopt(end(Side::Receiver, 11), fd, Some(4));
            assert_eq!(receiver.ended(), wanted);
            assert_eq!(next.by_id.len(), 1);
            next.leave(3);
            assert_eq!(receiver.ended(), Some(RingEnd::Gone));
            next.leave(4);
            assert!(next.by_id.is_empty());
        }
    }

    #[test]
    fn each_end_is_one_clients_and_a_channel_ends_with_both() {
        let mut channels = Channels::default();
        let (made, fd) = channels.answer(10, of(10), new(8));
        assert!(made.outcome == ChannelOutcome::Made && fd.is_some());
        let mut ask = |number, request| channels.answer(number, of(number), request).0.outcome;
        assert_eq!(ask(11, join([7; 16], true)), ChannelOutcome::NoSuchChannel);
        assert_eq!(ask(11, join(made.id, false)), ChannelOutcome::Taken);
        assert_eq!(ask(11, join(made.id, true)), ChannelOutcome::Made);
        assert_eq!(ask(12, join(made.id, true)), ChannelOutcome::Taken);
        channels.leave(10);
        assert_eq!(channels.by_id.len(), 1, "the other end reads on");
        channels.leave(11);
        assert!(channels.by_id.is_empty());
    }

    #[test]
    fn a_client_has_so_many_and_those_that_are_over_do_not_count() {
        let mut channels = Channels::default();
        let ask =
            |channels: &mut Channels, number| channels.answer(number, of(number), new(1)).0.outcome;
        for _ in 0..MAX_PER_CLIENT {
            assert_eq!(ask(&mut channels, 1), ChannelOutcome::Made);
        }
        assert_eq!(ask(&mut channels, 1), ChannelOutcome::UsedUp);
        assert_eq!(ask(&mut channels, 2), ChannelOutcome::Made);
        channels.leave(1);
        assert_eq!(channels.by_id.len(), 1);
        assert_eq!(ask(&mut channels, 1), ChannelOutcome::Made);
    }
}
