//! Channels between two clients: made, joined, and ended when one of the two is gone.
//!
//! The daemon keeps each ring's memory for as long as one of its ends may be joined or lives, says
//! in it when an end has gone, and never reads a ticket.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};

use hugepool_shm::attach::{
    ChannelOutcome, ChannelReply, ChannelRequest, ChannelWanted, JoinChannel, NewChannel,
};
use hugepool_shm::region::Region;
use hugepool_shm::ticket_ring::{Side, TicketRing};
use hugepool_shm::token::Token;

/// Channels that one client may have: each costs memory and two descriptors.
const MAX_PER_CLIENT: usize = 64;

/// All channels, by their secret names.
#[derive(Debug, Default)]
pub struct Channels {
    by_id: HashMap<[u8; 16], Channel>,
}

#[derive(Debug)]
struct Channel {
    region: Region,
    ring: TicketRing,
    /// Connections of the two ends; none where nobody has joined yet.
    sender: Option<u64>,
    receiver: Option<u64>,
}

impl Channels {
    /// Answers a client's request; and the descriptor to go with the answer, if there is one.
    pub fn answer(
        &mut self,
        number: u64,
        request: ChannelRequest,
    ) -> (ChannelReply, Option<BorrowedFd<'_>>) {
        let (id, outcome) = match request.what {
            ChannelWanted::New(NewChannel { capacity, receives }) => {
                self.make(number, capacity, side(receives))
            }
            ChannelWanted::Join(JoinChannel { id, receives }) => {
                (id, self.join(number, id, side(receives)))
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

    fn make(&mut self, number: u64, capacity: u32, side: Side) -> ([u8; 16], ChannelOutcome) {
        self.by_id.retain(|_, channel| !channel.is_over());
        let nr_own = self
            .by_id
            .values()
            .filter(|channel| channel.is_of(number))
            .count();
        let made = (nr_own < MAX_PER_CLIENT)
            .then(|| make_ring(capacity))
            .flatten();
        let Some((id, region, ring)) = made else {
            return ([0; 16], ChannelOutcome::UsedUp);
        };
        let mut channel = Channel {
            region,
            ring,
            sender: None,
            receiver: None,
        };
        *channel.end(side) = Some(number);
        self.by_id.insert(id, channel);
        (id, ChannelOutcome::Made)
    }

    fn join(&mut self, number: u64, id: [u8; 16], side: Side) -> ChannelOutcome {
        let Some(channel) = self.by_id.get_mut(&id) else {
            return ChannelOutcome::NoSuchChannel;
        };
        let end = channel.end(side);
        if end.is_some() {
            return ChannelOutcome::Taken;
        }
        *end = Some(number);
        ChannelOutcome::Made
    }

    /// A client is gone: who waits for it at the other end hears of it.
    pub fn leave(&mut self, number: u64) {
        self.by_id.retain(|_, channel| {
            for side in [Side::Sender, Side::Receiver] {
                if *channel.end(side) == Some(number) {
                    channel.ring.mark_gone(side);
                }
            }
            !channel.is_over()
        });
    }
}

impl Channel {
    fn end(&mut self, side: Side) -> &mut Option<u64> {
        match side {
            Side::Sender => &mut self.sender,
            Side::Receiver => &mut self.receiver,
        }
    }

    fn is_of(&self, number: u64) -> bool {
        self.sender == Some(number) || self.receiver == Some(number)
    }

    /// Whether nobody is at it any more, or the one who made it has gone before anybody joined.
    fn is_over(&self) -> bool {
        let is_over = |side, number: Option<u64>| number.is_none() || self.ring.is_over(side);
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn each_end_is_one_clients_and_a_channel_ends_with_both() {
        let mut channels = Channels::default();
        let (made, fd) = channels.answer(10, new(8));
        assert!(made.outcome == ChannelOutcome::Made && fd.is_some());
        let mut ask = |number, request| channels.answer(number, request).0.outcome;
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
        for _ in 0..MAX_PER_CLIENT {
            assert_eq!(channels.answer(1, new(1)).0.outcome, ChannelOutcome::Made);
        }
        assert_eq!(channels.answer(1, new(1)).0.outcome, ChannelOutcome::UsedUp);
        assert_eq!(channels.answer(2, new(1)).0.outcome, ChannelOutcome::Made);
        channels.leave(1);
        assert_eq!(channels.by_id.len(), 1);
        assert_eq!(channels.answer(1, new(1)).0.outcome, ChannelOutcome::Made);
    }
}
