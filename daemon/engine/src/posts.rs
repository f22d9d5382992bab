//! What the daemon has of parcels on their way: outboxes, transit words, and what was settled.
//!
//! Everything read here was written by clients and is a claim: an outbox by its one client, transit
//! words by any client of the zone. Custody is moved by [`parcels`](crate::parcels), which judges
//! them. Knows no cells.

use hugepool_shm::control::ControlSegment;
use hugepool_shm::outbox::{Outbox, ParcelHead};
use hugepool_shm::raw::RawPage;
use hugepool_shm::ticket::{OUTBOX_SLOTS, Ticket, TicketParts};
use hugepool_shm::transit::{Taker, Transit, TransitTable, TransitWord};
use hugepool_shm::word_run::WordRun;
use hugepool_shm::words::Words;

use crate::id::ClientId;
use crate::late::Lates;

/// A client's part in hand-over.
#[derive(Debug)]
pub(crate) struct PostBox {
    pub client: ClientId,
    pub outbox: Outbox,
    pub segment: ControlSegment,
    /// A bit for each zone that it may use.
    pub zones: u32,
    /// Pages that have become its own by claims.
    pub nr_claimed_pages: u64,
    /// By slot, the last sequence settled; 0 before there was one.
    settled: Box<[u32]>,
    first_sequence: u32,
    nr_full_seen: u32,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Posts {
    /// By zone index.
    transits: [Option<TransitTable>; 8],
    /// By client slot.
    boxes: Vec<Option<PostBox>>,
    /// By client slot: the first sequence of its next client.
    sequences: Vec<u32>,
    first_sequence: u32,
    /// What takers may still speak of.
    pub lates: Lates,
}

impl Posts {
    pub fn new(lates: Words) -> Posts {
        Posts {
            transits: [const { None }; 8],
            boxes: Vec::new(),
            sequences: Vec::new(),
            first_sequence: 1,
            lates: Lates::new(lates),
        }
    }

    /// Sequences of clients to come begin here.
    pub fn set_first_sequence(&mut self, first: u32) {
        self.first_sequence = first;
    }

    pub fn set_transit(&mut self, zone: usize, table: TransitTable) {
        self.transits[zone] = Some(table);
    }

    /// Takes a client's outbox in; returns the first sequence of its slots.
    pub fn open(
        &mut self,
        client: ClientId,
        outbox: Outbox,
        segment: ControlSegment,
        zones: u32,
    ) -> u32 {
        let at = usize::from(client.slot);
        if self.boxes.len() <= at {
            self.boxes.resize_with(at + 1, || None);
        }
        if self.sequences.len() <= at {
            self.sequences.resize(at + 1, self.first_sequence);
        }
        let first_sequence = self.sequences[at];
        self.boxes[at] = Some(PostBox {
            client,
            outbox,
            zones,
            nr_claimed_pages: segment.claim_allowance().1,
            segment,
            settled: vec![0; OUTBOX_SLOTS].into_boxed_slice(),
            first_sequence,
            nr_full_seen: 0,
        });
        first_sequence
    }

    /// Where sequences begin, and where they go on in each client slot.
    pub fn beginnings(&self) -> (u32, &[u32]) {
        (self.first_sequence, &self.sequences)
    }

    /// The same, as a daemon before left them. Nobody has an outbox yet.
    pub fn go_on_from(&mut self, first: u32, sequences: &[u32]) {
        self.first_sequence = first;
        self.sequences = sequences.to_vec();
        self.boxes.resize_with(sequences.len(), || None);
    }

    /// The first sequence of a client's slots; 0 if it has no outbox.
    pub fn first_sequence_of(&self, client: ClientId) -> u32 {
        self.get(client).map_or(0, |of| of.first_sequence)
    }

    /// Forgets a client: no word of its outbox is read again. Its slot's sequences go on after the
    /// last that it has used, as far as its words and the transit words tell.
    pub fn close(&mut self, client: ClientId) {
        self.lates.forget(client);
        let Some(of) = self.get(client) else { return };
        let first = of.first_sequence;
        let used = |sequence: u32| {
            let nr_used = sequence.wrapping_sub(first);
            // 0 is none. Behind the first one: never used by this client, or scribbled.
            if sequence != 0 && nr_used < 1 << 31 {
                nr_used + 1
            } else {
                0
            }
        };
        let mut nr_used = 0;
        for (slot, signed) in (0..).zip(of.outbox.slots()) {
            let last = signed
                .head()
                .map_or(first.wrapping_sub(1), |head| head.sequence);
            let transits = self.transits.iter().flatten();
            let words = transits.filter_map(|table| table.word(client.slot, slot));
            let lasts = words
                .map(TransitWord::sequence)
                .chain([last, of.settled[slot as usize]]);
            nr_used = lasts.map(used).fold(nr_used, u32::max);
        }
        let at = usize::from(client.slot);
        self.sequences[at] = first.wrapping_add(nr_used).max(1);
        self.boxes[at] = None;
    }

    pub fn get(&self, client: ClientId) -> Option<&PostBox> {
        self.in_slot(client.slot).filter(|of| of.client == client)
    }

    pub fn get_mut(&mut self, client: ClientId) -> Option<&mut PostBox> {
        let of = self.boxes.get_mut(usize::from(client.slot))?.as_mut();
        of.filter(|of| of.client == client)
    }

    pub fn in_slot(&self, slot: u16) -> Option<&PostBox> {
        self.boxes.get(usize::from(slot))?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &PostBox> {
        self.boxes.iter().flatten()
    }

    /// The client that a transit word names, if it is there and the zone is open to it.
    pub fn taker(&self, taker: Taker, zone: u32) -> Option<ClientId> {
        let of = self.in_slot(taker.slot)?;
        let is_it = as_taker(of.client) == taker && of.zones >> zone & 1 == 1;
        is_it.then_some(of.client)
    }

    pub fn transit(&self, parts: TicketParts) -> Option<TransitWord<'_>> {
        let table = self.transits.get(parts.zone as usize)?.as_ref()?;
        table.word(parts.client, parts.slot)
    }

    /// What the sender's outbox signs for under a ticket, if it does and it is not settled.
    pub fn signed(&self, parts: TicketParts) -> Option<(ClientId, ParcelHead)> {
        let of = self.in_slot(parts.client)?;
        let head = of.outbox.slot(parts.slot)?.head()?;
        let is_settled = of.settled[parts.slot as usize] == parts.sequence;
        (head.sequence == parts.sequence && !is_settled).then_some((of.client, head))
    }

    /// The blocks of a parcel that is signed for.
    pub fn runs(&self, parts: TicketParts, head: ParcelHead, out: &mut Vec<WordRun>) {
        out.clear();
        let of = self.in_slot(parts.client);
        if let Some(slot) = of.and_then(|of| of.outbox.slot(parts.slot)) {
            out.extend(slot.runs(head.nr_blocks));
        }
    }

    /// Notes that a parcel is settled, and tells its sender that the slot can be used again. Last:
    /// a daemon that comes after finds the parcel in its slot until all of it is done.
    pub fn mark_settled(&mut self, parts: TicketParts) {
        let of = self.boxes.get_mut(usize::from(parts.client));
        if let Some(of) = of.and_then(Option::as_mut) {
            hugepool_shm::step::reached("parcel.moved");
            of.settled[parts.slot as usize] = parts.sequence;
            of.segment.publish_settled(parts.slot, parts.sequence);
            hugepool_shm::step::reached("parcel.told");
        }
    }

    /// Whether a daemon before has told the sender that a parcel is settled: then it is.
    pub fn recall_settled(&mut self, parts: TicketParts) -> bool {
        let of = self.boxes.get_mut(usize::from(parts.client));
        let of = of.and_then(Option::as_mut);
        of.is_some_and(|of| {
            let is_so = of.segment.settled(parts.slot) == Some(parts.sequence);
            if is_so {
                of.settled[parts.slot as usize] = parts.sequence;
            }
            is_so
        })
    }

    /// Decides that a parcel is its taker's, unless that gives it back at this very moment.
    pub fn settle(&self, ticket: Ticket, taker: ClientId) -> bool {
        let parts = ticket.parts();
        let word = self.transit(parts);
        let is_settled =
            word.is_some_and(|word| word.settle(parts.sequence, as_taker(taker)).is_ok());
        hugepool_shm::step::reached("parcel.settled");
        is_settled
    }

    /// Tickets of a shared page that were taken and not told of: which, from whom, by whom.
    pub fn taken_shares(&self, pfn: u32, generation: u32) -> Vec<(Ticket, ClientId, ClientId)> {
        let senders = self.iter().map(|of| of.client);
        let all = senders.flat_map(|sender| {
            let shares = self.shares_of(sender);
            shares.map(move |(ticket, word, taker)| (ticket, word, sender, taker))
        });
        all.filter(|(_, word, ..)| word.pfn() == pfn && word.generation() == generation)
            .filter_map(|(ticket, _, sender, taker)| Some((ticket, sender, taker?)))
            .collect()
    }

    /// Whether a client has offered the page, to be shared, to somebody who may still come to hold
    /// it: nobody has taken it, or who has has not told.
    pub fn offers_share(&self, client: ClientId, pfn: u32, generation: u32) -> bool {
        self.shares_of(client)
            .any(|(_, word, _)| word.pfn() == pfn && word.generation() == generation)
    }

    /// All that is offered so, and by whom.
    pub fn offered_shares(&self) -> Vec<(ClientId, RawPage)> {
        let clients = self.iter().map(|of| of.client);
        clients
            .flat_map(|client| {
                self.shares_of(client)
                    .map(move |(_, word, _)| (client, word))
            })
            .collect()
    }

    /// What a client has offered to be shared and somebody may come to hold, and who has taken it.
    fn shares_of(
        &self,
        client: ClientId,
    ) -> impl Iterator<Item = (Ticket, RawPage, Option<ClientId>)> + '_ {
        let of = self.get(client);
        // Who never shared has its outbox left alone: looking at it takes memory.
        let nr_slots = of.map_or(0, |of| of.segment.share_slots() as usize);
        let slots = of.into_iter().flat_map(|of| of.outbox.slots());
        let signed = (0..).zip(slots.take(nr_slots));
        signed.filter_map(move |(slot, signed)| {
            let head = signed.head().filter(|head| head.is_shared)?;
            let word = signed.first_word();
            let parts = TicketParts {
                client: client.slot,
                zone: word.zone(),
                slot,
                sequence: head.sequence,
            };
            let taker = match self.look(parts)? {
                Transit::Offered => None,
                Transit::Taken(taker) => Some(self.taker(taker, parts.zone)?),
                // Decided, and not noted yet: by this very step, or by a daemon that died in it.
                Transit::Settled(taker) => {
                    self.taker(taker, parts.zone)?;
                    None
                }
                _ => return None,
            };
            Some((parts.pack()?, word, taker))
        })
    }

    /// What a client has signed for and is not settled, in any zone, with what its transit word
    /// says.
    pub fn parcels_of(&self, client: ClientId) -> Vec<(Ticket, Transit)> {
        let Some(of) = self.get(client) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (slot, signed) in (0..).zip(of.outbox.slots()) {
            let Some(head) = signed.head() else { continue };
            let parts = TicketParts {
                client: client.slot,
                zone: signed.first_word().zone(),
                slot,
                sequence: head.sequence,
            };
            if self.signed(parts).is_none() {
                continue;
            }
            if let (Some(word), Some(ticket)) = (self.transit(parts), parts.pack()) {
                found.push((ticket, word.look(parts.sequence)));
            }
        }
        found
    }

    /// The parcel of a client that somebody has taken and that holds this block at this generation.
    pub fn find_taken(
        &self,
        client: ClientId,
        pfn: u32,
        generation: u32,
    ) -> Option<(Ticket, ClientId)> {
        let of = self.get(client)?;
        for (slot, signed) in (0..).zip(of.outbox.slots()) {
            // What is shared stays where it is.
            let head = signed.head().filter(|head| !head.is_shared);
            let Some(head) = head else { continue };
            let mut words = signed.words(head.nr_blocks);
            if !words.any(|word| word.pfn() == pfn && word.generation() == generation) {
                continue;
            }
            let parts = TicketParts {
                client: client.slot,
                zone: signed.first_word().zone(),
                slot,
                sequence: head.sequence,
            };
            if let Some(Transit::Taken(taker)) = self.look(parts)
                && let Some(taker) = self.taker(taker, parts.zone)
            {
                return Some((parts.pack()?, taker));
            }
        }
        None
    }

    /// Whether a client holds a parcel that it has not told of.
    pub fn holds_any(&self, client: ClientId) -> bool {
        let me = as_taker(client);
        self.iter().any(|of| {
            let mut parcels = self.parcels_of(of.client).into_iter();
            parcels.any(|(_, found)| found == Transit::Taken(me))
        })
    }

    /// Whether a client has found its outbox full since it was last asked.
    pub fn take_full(&mut self, client: ClientId) -> bool {
        let Some(of) = self.get_mut(client) else {
            return false;
        };
        let now = of.segment.nr_outbox_full();
        now != core::mem::replace(&mut of.nr_full_seen, now)
    }

    /// The same without noting that it was asked.
    pub fn is_full(&self, client: ClientId) -> bool {
        let of = self.get(client);
        of.is_some_and(|of| of.segment.nr_outbox_full() != of.nr_full_seen)
    }

    fn look(&self, parts: TicketParts) -> Option<Transit> {
        self.signed(parts)?;
        Some(self.transit(parts)?.look(parts.sequence))
    }
}

/// A client as transit words name it.
pub(crate) fn as_taker(client: ClientId) -> Taker {
    Taker {
        slot: client.slot,
        incarnation: u32::from(client.incarnation),
    }
    .cut()
}
