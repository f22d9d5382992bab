//! What is under way with movable blocks: one record for each move and each eviction.
//!
//! Written before the first step of it that another process can see, and cleared after the last:
//! a daemon that finds one keeps the place that the handle names and frees the other (PROTOCOLS
//! P6, P10). So records are fixed words, one writer, in [`Words`] that may lie in a state segment;
//! the index by page beside them can be made from them.
//!
//! A block under way has two places. The old one is its client's all the time; the new one is the
//! daemon's until the runner has answered. The client may be faster than the answer, and give the
//! block back at its new place: that is noted here ([`Intents::return_early`]) and done then.
//!
//! Shape of a record, four words:
//!
//! | word | bits from the lowest |
//! |---|---|
//! | 0 | 8 kind (0: no record), 8 given back early, 8 order, 8 migratetype as asked, 32 handle |
//! | 1 | 32 old pfn, 32 new pfn (the old one again for an eviction) |
//! | 2 | 16 slot of the client, 16 incarnation |
//! | 3 | 32 generation at the old place, 32 at the new one, as the client's |

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use hugepool_mm::{Migratetype, Order, Pfn};
use hugepool_shm::words::Words;

use crate::cell::Lent;
use crate::id::ClientId;
use crate::num;
use crate::owners::Taken;
use crate::page_index::PageIndex;

/// Moves and evictions under way at a time.
pub(crate) const MAX_INTENTS: u32 = 2048;
const WORDS_EACH: usize = 4;
/// Words of all records.
pub(crate) const INTENT_WORDS: usize = MAX_INTENTS as usize * WORDS_EACH;

/// What is to become of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It goes to another place.
    Move,
    /// It is taken from its client.
    Evict,
}

/// One move or eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    pub kind: Kind,
    /// The block as it is the client's.
    pub lent: Lent,
    pub old: Pfn,
    /// Where it goes; where it was, for an eviction.
    pub new: Pfn,
    /// The generation that the client knows it by there.
    pub new_generation: u32,
    /// The client's handle.
    pub handle: u32,
    /// The client has given it back at the new place already.
    pub is_returned: bool,
}

/// The number of a record, while it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IntentId(u32);

/// All records.
#[derive(Debug)]
pub(crate) struct Intents {
    words: Words,
    free: Vec<u32>,
    /// The records' numbers by their old pages, and those of moves by their new ones. An old page
    /// that its client has freed meanwhile may be another block's new one.
    by_old: PageIndex,
    by_new: PageIndex,
}

impl Intents {
    /// The records in these words, [`INTENT_WORDS`] of them; those of a daemon before are there.
    pub fn new(words: Words) -> Intents {
        let mut intents = Intents {
            words,
            free: Vec::new(),
            by_old: PageIndex::new(MAX_INTENTS),
            by_new: PageIndex::new(MAX_INTENTS),
        };
        for id in (0..MAX_INTENTS).rev().map(IntentId) {
            match intents.get(id) {
                Some(intent) => intents.index(id, &intent),
                None => intents.free.push(id.0),
            }
        }
        intents
    }

    /// Notes an intent; `None`: as many are under way as can be, or this block is already.
    pub fn put(&mut self, intent: Intent) -> Option<IntentId> {
        if self.is_under_way(intent.old) || self.by_new.get(intent.new).is_some() {
            return None;
        }
        let id = IntentId(self.free.pop()?);
        self.store(id, intent);
        self.index(id, &intent);
        hugepool_shm::step::reached("intent.noted");
        Some(id)
    }

    fn index(&mut self, id: IntentId, intent: &Intent) {
        self.by_old.insert(intent.old, id.0);
        if intent.kind == Kind::Move {
            self.by_new.insert(intent.new, id.0);
        }
    }

    /// Clears a record: it is done with.
    pub fn take(&mut self, id: IntentId) -> Option<Intent> {
        let intent = self.get(id)?;
        self.cells(id)[0].store(0, Relaxed);
        self.by_old.remove(intent.old);
        if intent.kind == Kind::Move {
            self.by_new.remove(intent.new);
        }
        self.free.push(id.0);
        Some(intent)
    }

    /// Whether a block headed at the page is being moved from there, or evicted.
    pub fn is_under_way(&self, pfn: Pfn) -> bool {
        self.by_old.get(pfn).is_some()
    }

    /// How many there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        num::index(MAX_INTENTS) - self.free.len()
    }

    /// How many more there may be.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = Intent> + '_ {
        self.numbered().map(|(_, intent)| intent)
    }

    /// The same, with the number of each.
    pub fn numbered(&self) -> impl Iterator<Item = (IntentId, Intent)> + '_ {
        let ids = (0..MAX_INTENTS).map(IntentId);
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }

    /// The client gives a block back at its new place, before the runner has said that it is
    /// there. Nothing, if that is not so. `named` is the order and generation that it claims,
    /// where it claims any.
    pub fn return_early(
        &mut self,
        client: ClientId,
        pfn: Pfn,
        named: Option<(u32, u32)>,
    ) -> Option<Taken> {
        let id = IntentId(self.by_new.get(pfn)?);
        let intent = self.get(id)?;
        let right = (u32::from(intent.lent.order.get()), intent.new_generation);
        let is_right = intent.lent.client == client && named.is_none_or(|named| named == right);
        // Given back once, it is the daemon's: a second time is a double free.
        if !is_right || intent.is_returned {
            return None;
        }
        let is_returned = true;
        self.store(
            id,
            Intent {
                is_returned,
                ..intent
            },
        );
        Some(Taken {
            pfn,
            order: intent.lent.order,
            migratetype: intent.lent.migratetype,
        })
    }

    /// A record, if it is there.
    pub fn get(&self, id: IntentId) -> Option<Intent> {
        let [first, pages, client, generations] = self.cells(id) else {
            return None;
        };
        let [kind, returned, order, migratetype, ..] = first.load(Relaxed).to_le_bytes();
        let kind = match kind {
            1 => Kind::Move,
            2 => Kind::Evict,
            _ => return None,
        };
        let (_, handle) = halves(first.load(Relaxed));
        let (old, new) = halves(pages.load(Relaxed));
        let (client, _) = halves(client.load(Relaxed));
        let [slot_low, slot_high, incarnation_low, incarnation_high] = client.to_le_bytes();
        let (generation, new_generation) = halves(generations.load(Relaxed));
        Some(Intent {
            kind,
            lent: Lent {
                client: ClientId {
                    slot: u16::from_le_bytes([slot_low, slot_high]),
                    incarnation: u16::from_le_bytes([incarnation_low, incarnation_high]),
                },
                order: Order::new(order)?,
                migratetype: Migratetype::from_index(usize::from(migratetype))?,
                generation,
                is_shared: false,
            },
            old: Pfn::new(old),
            new: Pfn::new(new),
            new_generation,
            handle,
            is_returned: returned != 0,
        })
    }

    fn store(&self, id: IntentId, intent: Intent) {
        let [first, pages, client, generations] = self.cells(id) else {
            return;
        };
        let Intent { lent, .. } = intent;
        let kind = match intent.kind {
            Kind::Move => 1,
            Kind::Evict => 2,
        };
        let migratetype = num::saturate(num::count(lent.migratetype.index())) << 24;
        let low = kind
            | u32::from(intent.is_returned) << 8
            | u32::from(lent.order.get()) << 16
            | migratetype;
        pages.store(whole(intent.old.get(), intent.new.get()), Relaxed);
        let id = u32::from(lent.client.slot) | u32::from(lent.client.incarnation) << 16;
        client.store(whole(id, 0), Relaxed);
        generations.store(whole(lent.generation, intent.new_generation), Relaxed);
        // Last: it makes the record.
        first.store(whole(low, intent.handle), Release);
    }

    fn cells(&self, id: IntentId) -> &[AtomicU64] {
        let start = num::index(id.0) * WORDS_EACH;
        &self.words.cells()[start..start + WORDS_EACH]
    }
}

const fn whole(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(old: u32, new: u32) -> Intent {
        Intent {
            kind: Kind::Move,
            lent: Lent {
                client: ClientId {
                    slot: u16::MAX,
                    incarnation: 0x1234,
                },
                order: Order::new(9).unwrap(),
                migratetype: Migratetype::Reclaimable,
                generation: 0xf_ffff,
                is_shared: false,
            },
            old: Pfn::new(old),
            new: Pfn::new(new),
            new_generation: 0xa_bcde,
            handle: u32::MAX,
            is_returned: false,
        }
    }

    #[test]
    fn a_record_says_all_again() {
        let mut intents = Intents::new(Words::heap(INTENT_WORDS).unwrap());
        let first = intents.put(intent(u32::MAX, 512)).unwrap();
        let evict = Intent {
            kind: Kind::Evict,
            ..intent(7, 7)
        };
        let second = intents.put(evict).unwrap();
        let all: Vec<Intent> = intents.iter().collect();
        assert_eq!(all, [intent(u32::MAX, 512), evict]);
        assert_eq!(intents.take(first), Some(intent(u32::MAX, 512)));
        assert_eq!(intents.take(first), None);
        assert_eq!(intents.take(second), Some(evict));
        assert_eq!((intents.len(), intents.iter().count()), (0, 0));
    }

    #[test]
    fn a_page_is_under_way_once() {
        let mut intents = Intents::new(Words::heap(INTENT_WORDS).unwrap());
        let id = intents.put(intent(1, 2)).unwrap();
        assert!(intents.put(intent(1, 3)).is_none() && intents.put(intent(4, 2)).is_none());
        // The old place was freed meanwhile, and is where another one goes.
        let other = intents.put(intent(4, 1)).unwrap();
        intents.take(id);
        assert!(intents.is_under_way(Pfn::new(4)) && !intents.is_under_way(Pfn::new(1)));
        let client = intent(4, 1).lent.client;
        assert!(intents.return_early(client, Pfn::new(1), None).is_some());
        intents.take(other);
        for page in 10..2 * MAX_INTENTS {
            intents.put(intent(2 * page, 2 * page + 1));
        }
        assert_eq!(
            (intents.len(), intents.room()),
            (num::index(MAX_INTENTS), 0)
        );
    }

    #[test]
    fn only_the_blocks_own_client_gives_it_back_early_and_only_at_its_new_place() {
        let mut intents = Intents::new(Words::heap(INTENT_WORDS).unwrap());
        let id = intents.put(intent(1, 2)).unwrap();
        let client = intent(1, 2).lent.client;
        let other = ClientId { slot: 1, ..client };
        let (old, new) = (Pfn::new(1), Pfn::new(2));
        assert!(intents.return_early(other, new, None).is_none());
        assert!(intents.return_early(client, old, None).is_none());
        assert!(intents.return_early(client, new, Some((9, 0))).is_none());
        let taken = intents
            .return_early(client, new, Some((9, 0xa_bcde)))
            .unwrap();
        assert_eq!((taken.pfn, taken.order.get()), (new, 9));
        assert!(intents.take(id).unwrap().is_returned);
    }
}
