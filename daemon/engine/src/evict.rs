//! Taking evictable blocks from the clients that hold them: for a section that leaves and has no
//! other place for them, and for a caller that would fall short.
//!
//! The word says it first, then the cell: a client that pins at that instant keeps the block. Which
//! blocks go is decided by a hand that goes round the sections, so the ones that have been there
//! longest go first, as long as they are not pinned.

use std::collections::BTreeMap;

use hugepool_mm::{Order, SectionId, SectionState};

use crate::Engine;
use crate::events::About;
use crate::id::{ClientId, Now};
use crate::intent::{Intent, Kind};
use crate::migrate::{Source, Standing};
use crate::num;
use crate::tally::Place;

/// Pageblocks that are looked through for one caller.
const MAX_PAGEBLOCKS: usize = 64;
/// A look that brought nothing makes the next one wait twice as long, up to this.
const MIN_PAUSE: Now = Now::from_millis(5);
const MAX_PAUSE: Now = Now::from_millis(160);

/// Pages taken, by client.
pub(crate) type Evicted = BTreeMap<ClientId, u64>;

/// Where the hand is, and when it may next go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hand {
    section: u32,
    block: usize,
    not_before: Now,
    pause: Now,
}

impl Default for Hand {
    fn default() -> Hand {
        Hand {
            section: 0,
            block: 0,
            not_before: Now::ZERO,
            pause: MIN_PAUSE,
        }
    }
}

impl Engine {
    /// Takes a block from its client, if it may be taken and nobody pins it.
    pub(crate) fn evict_block(&mut self, source: &Source, evicted: &mut Evicted) -> bool {
        let Source { pfn, lent, named } = *source;
        if lent.migratetype != hugepool_mm::Migratetype::Reclaimable {
            return false;
        }
        let Some(client) = self.clients.get_mut(lent.client) else {
            return false;
        };
        let Some(link) = &client.link else {
            return false;
        };
        let intent = self.custody.intents.put(Intent {
            kind: Kind::Evict,
            lent,
            old: pfn,
            new: pfn,
            new_generation: lent.generation,
            handle: named.handle,
            is_returned: false,
        });
        let Some(intent) = intent else {
            return false;
        };
        let is_taken = link.segment.handles().evict(pfn.get(), named) == Ok(true);
        hugepool_shm::step::reached("evict.word");
        if is_taken {
            let order = u32::from(lent.order.get());
            let home = self
                .custody
                .take_named_home(lent.client, pfn.get(), order, lent.generation);
            debug_assert!(home.is_ok(), "{source:?}: {home:?}");
            let nr_pages = u64::from(lent.order.nr_pages());
            client.nr_evicted_pages += nr_pages;
            *evicted.entry(lent.client).or_insert(0) += nr_pages;
        }
        self.custody.intents.take(intent);
        is_taken
    }

    /// Tells of blocks that were taken.
    pub(crate) fn tell_evicted(&mut self, evicted: &Evicted, now: Now) {
        for (&id, nr_pages) in evicted {
            let text = format!("{nr_pages} evictable pages of client {id} were taken");
            self.events.note(now, "reclaim", About::client(id), text);
        }
    }

    /// Before a caller falls short of `nr_blocks` of an order: takes evictable blocks in these zones
    /// from whoever has them. Returns the pages that came home.
    pub(crate) fn evict_for(
        &mut self,
        zonelist: &[usize],
        order: Order,
        nr_blocks: u32,
        now: Now,
    ) -> u64 {
        let is_any = self.custody.owners.tally().all_reclaimable() > 0;
        if !is_any || now < self.hand.not_before {
            return 0;
        }
        let wanted = u64::from(nr_blocks) << order.get();
        let mut evicted = Evicted::new();
        let mut nr_pages = 0;
        let mut is_enough = false;
        for place in self.places_of_evictables(zonelist) {
            if is_enough {
                break;
            }
            self.hand.section = place.section;
            self.hand.block = place.block + 1;
            // Single pages one by one; for a larger block a pageblock's all, so that they merge.
            let most = if order == Order::ZERO {
                wanted.saturating_sub(nr_pages)
            } else {
                u64::MAX
            };
            nr_pages += self.evict_in(place, most, &mut evicted);
            is_enough = nr_pages >= wanted && self.has_block(zonelist, order);
        }
        self.tell_evicted(&evicted, now);
        let pause = if nr_pages > 0 {
            Now::ZERO
        } else {
            (self.hand.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE)
        };
        (self.hand.not_before, self.hand.pause) = (now + pause, pause);
        nr_pages
    }

    /// In the background: takes evictable blocks of a zone until so many pages have come home.
    pub(crate) fn evict_some(&mut self, zone: usize, wanted: u64, now: Now) {
        if self.custody.owners.tally().all_reclaimable() == 0 {
            return;
        }
        let mut evicted = Evicted::new();
        let mut nr_pages = 0;
        for place in self.places_of_evictables(&[zone]) {
            if nr_pages >= wanted {
                break;
            }
            self.hand.section = place.section;
            self.hand.block = place.block + 1;
            nr_pages += self.evict_in(place, wanted - nr_pages, &mut evicted);
        }
        self.tell_evicted(&evicted, now);
    }

    fn evict_in(&mut self, place: Place, most: u64, evicted: &mut Evicted) -> u64 {
        let mut sources = Vec::new();
        self.custody.owners.for_each_head(place, &mut |pfn, lent| {
            if lent.migratetype == hugepool_mm::Migratetype::Reclaimable
                && let Standing::Free(named) = self.standing(pfn, &lent)
            {
                sources.push(Source { pfn, lent, named });
            }
        });
        let mut nr_pages = 0;
        for source in sources {
            if nr_pages >= most {
                break;
            }
            if self.evict_block(&source, evicted) {
                nr_pages += u64::from(source.lent.order.nr_pages());
            }
        }
        nr_pages
    }

    /// The pageblocks that the hand comes to next, in sections out of which something evictable is
    /// lent.
    fn places_of_evictables(&self, zonelist: &[usize]) -> Vec<Place> {
        let tally = self.custody.owners.tally();
        let mut places = Vec::new();
        for &zone in zonelist {
            for info in self.custody.zones.zone(zone).sections() {
                let section = info.id.get();
                if info.state != SectionState::Online || tally.reclaimable(section) == 0 {
                    continue;
                }
                let blocks = tally.section_blocks(section).iter().enumerate();
                let lent = blocks.filter(|&(_, &pages)| pages > 0);
                places.extend(lent.map(|(block, _)| Place { section, block }));
            }
        }
        let hand = (self.hand.section, self.hand.block);
        let key = |place: &Place| (place.section, place.block);
        places.sort_unstable_by_key(key);
        let at = places.partition_point(|place| key(place) < hand);
        places.rotate_left(at);
        places.truncate(MAX_PAGEBLOCKS);
        places
    }

    fn has_block(&self, zonelist: &[usize], order: Order) -> bool {
        let zones = zonelist.iter().map(|&zone| self.custody.zones.zone(zone));
        let largest = zones.filter_map(hugepool_mm::Zone::largest_free_order);
        largest.max().is_some_and(|largest| largest >= order)
    }

    /// Pages of a section that could be moved or taken now, and whether all that is lent there
    /// could.
    pub(crate) fn nr_loose(&self, section: SectionId) -> u64 {
        let nr_blocks = num::index(self.custody.zones.geometry().section_pageblocks());
        let mut nr_pages = 0;
        for block in 0..nr_blocks {
            let section = section.get();
            let place = Place { section, block };
            self.custody.owners.for_each_head(place, &mut |pfn, lent| {
                if let Standing::Free(_) = self.standing(pfn, &lent) {
                    nr_pages += u64::from(lent.order.nr_pages());
                }
            });
        }
        nr_pages
    }
}
