//! What is to be remembered of parcels and of shared pages: for as long as somebody may still speak
//! of it, and for a daemon that comes after.
//!
//! A parcel that a scan has settled is *late*: its taker may still say what has become of it. The
//! same holds of each holding of a shared page. Each is an entry of a run of words that outlives
//! the engine, written before anybody can see what it stands for.
//!
//! Shape: word 0: entries ever used; from word 8: entries of [`ENTRY_WORDS`] words: key (0: none;
//! the bits of a ticket; or for who sealed a page, bit 46 and the pfn), holder (16 bits slot, 16
//! incarnation, 16 number of page words, 1 whether it is of a shared page), page words.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use hugepool_shm::outbox::PARCEL_MAX;
use hugepool_shm::raw::RawPage;
use hugepool_shm::ticket::Ticket;
use hugepool_shm::words::Words;

use crate::id::ClientId;
use crate::num;

/// Entries that outlive the engine; of what is beyond them a daemon that comes after knows nothing.
const NR_ENTRIES: usize = 8192;
const ENTRY_WORDS: usize = 2 + PARCEL_MAX;
const FIRST: usize = 8;
/// Words of all of it; memory only as it is used.
pub(crate) const LATE_WORDS: usize = FIRST + NR_ENTRIES * ENTRY_WORDS;

const OWN: u64 = 1 << 46;

/// What an entry is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A parcel, or a holding that was claimed.
    Ticket(Ticket),
    /// The holding of who sealed the page.
    Sealed,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub taker: ClientId,
    /// As their sender had signed for them.
    pub words: Vec<RawPage>,
    pub is_shared: bool,
    /// Its place among the entries that outlive the engine.
    place: Option<Place>,
}

/// A place among the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

/// Those of tickets, and the places of all.
#[derive(Debug)]
pub(crate) struct Lates {
    words: Words,
    free: Vec<Place>,
    by_ticket: BTreeMap<Ticket, Late>,
}

impl Lates {
    /// None yet; what a daemon before has left is found by [`find`](Self::find).
    pub fn new(words: Words) -> Lates {
        Lates {
            words,
            free: Vec::new(),
            by_ticket: BTreeMap::new(),
        }
    }

    pub fn get(&self, ticket: Ticket) -> Option<&Late> {
        self.by_ticket.get(&ticket)
    }

    /// Notes a parcel or a holding that was claimed.
    pub fn add(&mut self, ticket: Ticket, taker: ClientId, words: Vec<RawPage>, is_shared: bool) {
        let place = self.keep(Key::Ticket(ticket), taker, &words, is_shared);
        let late = Late {
            taker,
            words,
            is_shared,
            place,
        };
        self.by_ticket.insert(ticket, late);
    }

    pub fn take(&mut self, ticket: Ticket) -> Option<Late> {
        let late = self.by_ticket.remove(&ticket)?;
        self.let_go(late.place);
        Some(late)
    }

    /// Forgets all of a client that is gone.
    pub fn forget(&mut self, client: ClientId) {
        let of_client = self
            .by_ticket
            .iter()
            .filter(|(_, late)| late.taker == client);
        let tickets: Vec<Ticket> = of_client.map(|(&ticket, _)| ticket).collect();
        for ticket in tickets {
            self.take(ticket);
        }
    }

    /// Keeps an entry for a daemon that comes after; none if there is no place.
    pub fn keep(
        &mut self,
        key: Key,
        holder: ClientId,
        pages: &[RawPage],
        is_shared: bool,
    ) -> Option<Place> {
        let used = &self.words.cells()[0];
        let place = self.free.pop().or_else(|| {
            let next = used.load(Relaxed);
            let place = Place(num::saturate(next));
            (next < num::count(NR_ENTRIES)).then_some(place)
        })?;
        let cells = self.cells(place);
        for (cell, page) in cells[2..].iter().zip(pages) {
            cell.store(page.bits(), Relaxed);
        }
        let holder = u64::from(holder.slot)
            | u64::from(holder.incarnation) << 16
            | num::count(pages.len()) << 32
            | u64::from(is_shared) << 48;
        cells[1].store(holder, Relaxed);
        let key = match key {
            Key::Ticket(ticket) => ticket.bits(),
            Key::Sealed => OWN | pages.first().map_or(0, |page| u64::from(page.pfn())),
        };
        // Last: it makes the entry.
        cells[0].store(key, Release);
        used.fetch_max(u64::from(place.0) + 1, Release);
        hugepool_shm::step::reached("late.kept");
        Some(place)
    }

    /// Lets go of an entry's place.
    pub fn let_go(&mut self, place: Option<Place>) {
        if let Some(place) = place {
            self.cells(place)[0].store(0, Release);
            hugepool_shm::step::reached("late.forgotten");
            self.free.push(place);
        }
    }

    /// What a daemon before has left. Those of tickets are to be [put back](Self::put_back).
    pub fn find(&mut self) -> Vec<(Key, Late)> {
        let nr_used = num::saturate(
            self.words.cells()[0]
                .load(Relaxed)
                .min(num::count(NR_ENTRIES)),
        );
        let mut found = Vec::new();
        self.free.clear();
        for place in (0..nr_used).rev().map(Place) {
            match self.read(place) {
                Some(entry) => found.push(entry),
                None => self.free.push(place),
            }
        }
        found
    }

    /// Takes an entry of a ticket's in again.
    pub fn put_back(&mut self, ticket: Ticket, late: Late) {
        self.by_ticket.insert(ticket, late);
    }

    fn read(&self, place: Place) -> Option<(Key, Late)> {
        let cells = self.cells(place);
        let key = match cells[0].load(Relaxed) {
            0 => return None,
            bits if bits >> 32 == OWN >> 32 => Key::Sealed,
            bits => Key::Ticket(Ticket::from_bits(bits)?),
        };
        let holder = cells[1].load(Relaxed);
        let [a, b, c, d, e, f, flags, _] = holder.to_le_bytes();
        let nr = usize::from(u16::from_le_bytes([e, f])).min(PARCEL_MAX);
        let words = cells[2..][..nr].iter();
        let late = Late {
            taker: ClientId {
                slot: u16::from_le_bytes([a, b]),
                incarnation: u16::from_le_bytes([c, d]),
            },
            words: words
                .map(|cell| RawPage::from_bits(cell.load(Relaxed)))
                .collect(),
            is_shared: flags & 1 != 0,
            place: Some(place),
        };
        Some((key, late))
    }

    fn cells(&self, place: Place) -> &[AtomicU64] {
        &self.words.cells()[FIRST + num::index(place.0) * ENTRY_WORDS..][..ENTRY_WORDS]
    }
}

impl Late {
    /// Its place, for who keeps it elsewhere.
    pub fn place(&self) -> Option<Place> {
        self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: ClientId = ClientId {
        slot: 7,
        incarnation: 65_535,
    };

    fn ticket(bits: u64) -> Ticket {
        Ticket::from_bits(bits | 5 << 48).unwrap()
    }

    #[test]
    fn what_was_kept_is_found_again_and_what_was_let_go_is_not() {
        let words = Words::anonymous(LATE_WORDS).unwrap();
        let mut lates = Lates::new(words.clone());
        let pages: Vec<RawPage> = (1..=256).map(RawPage::from_bits).collect();
        lates.add(ticket(1), B, pages.clone(), false);
        lates.add(ticket(2), B, pages[..3].to_vec(), false);
        lates.add(ticket(3), B, pages[..1].to_vec(), true);
        let sealed = lates.keep(Key::Sealed, B, &pages[..1], true);
        assert!(sealed.is_some() && lates.take(ticket(2)).is_some());

        let mut again = Lates::new(words.clone());
        let found = again.find();
        let keys: Vec<Key> = found.iter().map(|(key, _)| *key).collect();
        assert_eq!(
            keys,
            [Key::Sealed, Key::Ticket(ticket(3)), Key::Ticket(ticket(1))]
        );
        assert_eq!((found[2].1.taker, &found[2].1.words), (B, &pages));
        assert!(found[1].1.is_shared && !found[2].1.is_shared);
        for (key, late) in found {
            match key {
                Key::Ticket(ticket) => again.put_back(ticket, late),
                Key::Sealed => again.let_go(late.place()),
            }
        }
        again.forget(B);
        assert!(Lates::new(words).find().is_empty());
    }
}
