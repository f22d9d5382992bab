//! Clients that hand pages over, played step by step: each write of theirs is one call here, so
//! that a test can stop between any two.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use hugepool_engine::ClientId;
use hugepool_mm::ZoneId;
use hugepool_shm::outbox::Outbox;
use hugepool_shm::raw::RawPage;
use hugepool_shm::scribble::LaneWord;
use hugepool_shm::ticket::{Done, Holds, Notice, ShareWord, Ticket, TicketParts};
use hugepool_shm::transit::{Taker, Transit, TransitTable, TransitWord};

use crate::support::{Rig, Tenant};

/// A client with an outbox.
pub struct Poster {
    pub tenant: Tenant,
    pub outbox: Outbox,
    pub transits: TransitTable,
    /// By slot, the next sequence.
    pub next: Vec<u32>,
}

impl Rig {
    /// Gives the zone with index 0 its transit words.
    pub fn post(&mut self) -> TransitTable {
        let table = TransitTable::anonymous(64).unwrap();
        self.engine.set_transit(ZoneId::new(0), table.clone());
        self.engine.set_first_sequence(1000);
        table
    }

    /// A client in service that can hand over.
    pub fn poster(&mut self, transits: &TransitTable, nr_lanes: u32) -> Poster {
        let tenant = self.tenant(nr_lanes);
        let outbox = Outbox::heap().unwrap();
        let first = self.engine.open_post(tenant.id, outbox.clone()).unwrap();
        Poster {
            tenant,
            outbox,
            transits: transits.clone(),
            next: vec![first; 512],
        }
    }

    /// Settles what one client gave back and says.
    pub fn serve(&mut self, of: &Poster) -> usize {
        self.engine
            .service(self.now, &mut self.outside, Some(of.id()))
    }

    pub fn bury(&mut self, of: &Poster) {
        self.engine.bury(of.id(), self.now);
    }
}

impl Poster {
    pub fn id(&self) -> ClientId {
        self.tenant.id
    }

    pub fn me(&self) -> Taker {
        Taker {
            slot: self.id().slot,
            incarnation: self.id().incarnation.into(),
        }
    }

    pub fn word(&self, ticket: Ticket) -> TransitWord<'_> {
        let parts = ticket.parts();
        self.transits.word(parts.client, parts.slot).unwrap()
    }

    /// Signs for a parcel and offers it.
    pub fn hand_over(&mut self, slot: u32, pages: &[RawPage]) -> Ticket {
        let ticket = self.sign(slot, pages);
        self.word(ticket).offer(ticket.parts().sequence);
        ticket
    }

    /// The first half of it.
    pub fn sign(&mut self, slot: u32, pages: &[RawPage]) -> Ticket {
        let ticket = self.next_ticket(slot);
        let sequence = ticket.parts().sequence;
        self.outbox.slot(slot).unwrap().sign(sequence, pages);
        ticket
    }

    /// Offers a holding of a page, to be shared.
    pub fn share(&mut self, slot: u32, page: RawPage) -> Ticket {
        let ticket = self.next_ticket(slot);
        let sequence = ticket.parts().sequence;
        self.tenant.segment.note_share(slot);
        self.outbox.slot(slot).unwrap().sign_shared(sequence, page);
        self.word(ticket).offer(sequence);
        ticket
    }

    /// Says something of a shared page.
    pub fn say(&self, lane: u32, page: RawPage, says: Holds) {
        let said = ShareWord {
            pfn: page.pfn(),
            generation: page.generation(),
            says,
        };
        self.put_home(lane, &[said.to_word()]);
    }

    fn next_ticket(&mut self, slot: u32) -> Ticket {
        let next = &mut self.next[slot as usize];
        let sequence = *next;
        *next += 1;
        let parts = TicketParts {
            client: self.id().slot,
            zone: 0,
            slot,
            sequence,
        };
        parts.pack().unwrap()
    }

    /// Takes a parcel of another's without telling; the pages as this client has them.
    pub fn take(&self, from: &Poster, ticket: Ticket) -> Result<Vec<RawPage>, Transit> {
        let parts = ticket.parts();
        let slot = from.outbox.slot(parts.slot).unwrap();
        let head = slot.head().ok_or(Transit::OtherSequence)?;
        let words: Vec<RawPage> = slot.words(head.nr_blocks).collect();
        self.word(ticket).take(parts.sequence, self.me())?;
        let index = self.tenant.terms.client_index;
        Ok(words.iter().map(|word| word.handed_on(index)).collect())
    }

    /// Puts a notice into a lane.
    pub fn tell(&self, lane: u32, ticket: Ticket, done: Done) {
        self.put_home(lane, &[Notice { ticket, done }.to_word()]);
    }

    /// Puts words into a lane's returns, past its magazine.
    pub fn put_home(&self, lane: u32, words: &[RawPage]) {
        let segment = &self.tenant.segment;
        for word in words {
            let tail = segment.peek(lane, LaneWord::ReturnsTail).unwrap();
            let at = u32::try_from(tail).unwrap();
            segment.scribble(lane, LaneWord::Return(at), word.bits());
            segment.scribble(lane, LaneWord::ReturnsTail, tail + 1);
        }
    }

    /// Takes a parcel and tells that it is kept.
    pub fn claim(&self, from: &Poster, ticket: Ticket) -> Vec<RawPage> {
        let pages = self.take(from, ticket).unwrap();
        self.tell(0, ticket, Done::Kept);
        pages
    }

    /// Whether the daemon says that a parcel of this client's is settled.
    pub fn is_settled(&self, ticket: Ticket) -> bool {
        let parts = ticket.parts();
        self.tenant.segment.settled(parts.slot) == Some(parts.sequence)
    }
}
