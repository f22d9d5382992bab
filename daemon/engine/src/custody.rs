//! The line between the zones and the clients: out by [`lend`](Custody::lend), home by the rest.
//!
//! Holds the two that must agree, zones and owner table, and changes both in one step:
//! a page that is not free, not in a daemon's list and not lent does not exist outside
//! this file. Knows no lanes, calls or operations.

use hugepool_mm::{
    AllocFlags, Mark, Migratetype, Order, Pfn, SectionId, Shortfall as ZoneShortfall, Zone,
};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::raw::{NR_ZONES, RawPage};
use hugepool_shm::words::Words;

use crate::call::Shortfall;
use crate::cell::Cell;
use crate::id::ClientId;
use crate::intent::Intents;
use crate::journal::Errand;
use crate::misuse::Misuse;
use crate::nodes::Picks;
use crate::num;
use crate::owners::{Owners, Taken};
use crate::posts::Posts;
use crate::state::StateWords;
use crate::zones::Zones;

/// Blocks put aside while looking for some in sections that the borrower has mapped.
const MAX_ASIDE: usize = 4096;

/// Zones and owners.
#[derive(Debug)]
pub(crate) struct Custody {
    pub zones: Zones,
    pub owners: Owners,
    /// Moves and evictions under way.
    pub intents: Intents,
    /// By section, for a daemon that comes after: see [`section_words`](crate::section_words).
    pub sections: Words,
    /// Blocks that came home since the start: moves when a waiting caller may try again.
    pub nr_home: u64,
    /// Their pages.
    pub nr_pages_home: u64,
    /// By zone: the largest order of which a request fell short because memory is scattered,
    /// since somebody looked.
    pub wanted_orders: [Option<Order>; NR_ZONES],
    /// Where lent pages were wanted, and where they came from.
    pub picks: Picks,
    /// Parcels on their way.
    pub posts: Posts,
    /// Words of returns that something must be settled before.
    pub deferred: Vec<(ClientId, RawPage)>,
    pub heads: Vec<Pfn>,
    /// Of the parcel that is being settled.
    pub words: Vec<RawPage>,
}

/// Who borrows, and what it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Borrower<'a> {
    pub client: ClientId,
    /// Zone indexes, best first.
    pub zonelist: &'a [usize],
    /// The most pages it may own.
    pub ceiling_pages: Option<u64>,
    /// Where it marks sections as mapped; one without a segment maps nothing.
    pub segment: Option<&'a ControlSegment>,
    /// How far down it may take a zone's free pages.
    pub mark: Mark,
}

/// What came of borrowing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Borrowed {
    pub nr_blocks: usize,
    /// Why fewer than asked.
    pub shortfall: Option<Shortfall>,
}

/// Why a zone gave less than asked; the worst of all zones is told.
#[derive(Clone, Copy, Debug, Default)]
struct Why {
    is_unmapped: bool,
    zone_ceiling: Option<(u64, u64)>,
}

impl Custody {
    pub fn new(zones: Zones, owners: Owners, state: &StateWords) -> Custody {
        Custody {
            zones,
            owners,
            intents: Intents::new(state.intents.clone()),
            sections: state.sections.clone(),
            nr_home: 0,
            nr_pages_home: 0,
            wanted_orders: [None; NR_ZONES],
            picks: Picks::default(),
            posts: Posts::new(),
            deferred: Vec::new(),
            heads: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Lends up to `nr` blocks and tells each with the generation of its lend. Check and
    /// take are one step, and custody is recorded when it returns: what is told may be
    /// published then.
    pub fn lend(
        &mut self,
        who: &Borrower<'_>,
        order: Order,
        migratetype: Migratetype,
        nr: usize,
        now_ms: u64,
        tell: &mut dyn FnMut(Pfn, u32),
    ) -> Borrowed {
        let owned = self
            .owners
            .tally()
            .client(who.client)
            .map_or(0, |account| account.pages);
        let quota = who
            .ceiling_pages
            .map_or(u64::MAX, |most| most.saturating_sub(owned));
        let wanted = nr.min(usize::try_from(quota >> order.get()).unwrap_or(usize::MAX));
        let mut heads = core::mem::take(&mut self.heads);
        heads.clear();
        let mut why = Why::default();
        for (position, &zone) in who.zonelist.iter().enumerate() {
            if heads.len() < wanted && self.zones.zone(zone).admits(migratetype) {
                let ask = Ask {
                    zone,
                    preferred: who.zonelist[0],
                    order,
                    migratetype,
                    mark: who.mark,
                };
                debug_assert!(position > 0 || zone == ask.preferred);
                let before = heads.len();
                self.take_from_zone(ask, who, wanted, &mut heads, &mut why);
                let nr_pages = num::count(heads.len() - before) << order.get();
                self.picks.note(&self.zones, zone, ask.preferred, nr_pages);
            }
        }
        let nr_blocks = heads.len();
        self.touch(&heads, order);
        self.owners
            .lend(who.client, order, migratetype, &heads, now_ms, tell);
        self.heads = heads;
        let shortfall = if nr_blocks == nr {
            None
        } else if nr_blocks == wanted {
            let ceiling_pages = who.ceiling_pages.unwrap_or(u64::MAX);
            let owned_pages = owned + (num::count(nr_blocks) << order.get());
            Some(Shortfall::Quota {
                owned_pages,
                ceiling_pages,
            })
        } else {
            let shortfall = self.shortfall(who, order, migratetype, why);
            if matches!(shortfall, Shortfall::Fragmented { .. }) {
                for &zone in who.zonelist {
                    let wanted = &mut self.wanted_orders[zone];
                    *wanted = (*wanted).max(Some(order));
                }
            }
            Some(shortfall)
        };
        Borrowed {
            nr_blocks,
            shortfall,
        }
    }

    fn take_from_zone(
        &mut self,
        ask: Ask,
        who: &Borrower<'_>,
        wanted: usize,
        heads: &mut Vec<Pfn>,
        why: &mut Why,
    ) {
        let (asked, mut wanted) = (wanted, wanted);
        let mut ceiling = None;
        if let Some(most) = self.zones.settings(ask.zone).ceiling_pages {
            let lent = self.owners.tally().zone_pages(ask.zone);
            let room = most.saturating_sub(lent) >> ask.order.get();
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            wanted = wanted.min(heads.len().saturating_add(room));
            ceiling = Some((
                lent + (num::count(wanted - heads.len()) << ask.order.get()),
                most,
            ));
        }
        why.is_unmapped |= self.take_mapped(ask, who.segment, wanted, heads);
        if heads.len() == wanted && wanted < asked {
            why.zone_ceiling = ceiling;
        }
    }

    /// Takes blocks that lie in sections which the borrower has mapped, until there are so many in
    /// all. Returns whether others were there.
    fn take_mapped(
        &mut self,
        ask: Ask,
        segment: Option<&ControlSegment>,
        wanted: usize,
        heads: &mut Vec<Pfn>,
    ) -> bool {
        let zones = &mut self.zones;
        let segment = segment.filter(|segment| segment.mapped_epoch() != zones.epoch());
        let Some(segment) = segment else {
            take(zones.zone_mut(ask.zone), ask, wanted - heads.len(), heads);
            return false;
        };
        let mut aside = Vec::new();
        while heads.len() < wanted && aside.len() < MAX_ASIDE {
            let from = heads.len();
            if take(zones.zone_mut(ask.zone), ask, wanted - from, heads) == 0 {
                break;
            }
            let usable = |pfn: &Pfn| {
                let section = zones.geometry().section_of(*pfn);
                segment.is_mapped(section.get(), zones.announced(section))
            };
            // Asked once for each: the client may be marking the section just now, and a page that
            // was not usable and then is would be both lent and free.
            let fresh = heads.split_off(from);
            let (good, bad): (Vec<Pfn>, Vec<Pfn>) = fresh.into_iter().partition(usable);
            heads.extend(good);
            aside.extend(bad);
        }
        let is_unmapped = !aside.is_empty();
        let zone = zones.zone_mut(ask.zone);
        aside.into_iter().for_each(|pfn| zone.free(pfn, ask.order));
        is_unmapped
    }

    /// Whether a client may be given a page there: it has mapped what is announced of its section.
    pub fn is_mapped(&self, who: &Borrower<'_>, pfn: Pfn) -> bool {
        who.segment.is_none_or(|segment| {
            let section = self.zones.geometry().section_of(pfn);
            segment.mapped_epoch() == self.zones.epoch()
                || segment.is_mapped(section.get(), self.zones.announced(section))
        })
    }

    /// Takes one block for a client's block to be moved to: from `first`, the zone it is in, if
    /// that has one, else from the others of the client's list. It may be the last one of a zone:
    /// a move gives back as much as it takes. It is nobody's yet.
    pub fn take_target(
        &mut self,
        who: &Borrower<'_>,
        first: usize,
        order: Order,
        migratetype: Migratetype,
    ) -> Option<Pfn> {
        let mut heads = core::mem::take(&mut self.heads);
        heads.clear();
        let others = who.zonelist.iter().copied().filter(|&zone| zone != first);
        let zones: Vec<usize> = core::iter::once(first).chain(others).collect();
        for mark in [Mark::Min, Mark::None] {
            for &zone in &zones {
                if heads.is_empty() && self.zones.zone(zone).admits(migratetype) {
                    let ask = Ask {
                        zone,
                        preferred: first,
                        order,
                        migratetype,
                        mark,
                    };
                    self.take_mapped(ask, who.segment, 1, &mut heads);
                }
            }
        }
        let target = heads.pop();
        self.heads = heads;
        target
    }

    /// Why the zones of the borrower's list gave less.
    fn shortfall(
        &self,
        who: &Borrower<'_>,
        order: Order,
        migratetype: Migratetype,
        why: Why,
    ) -> Shortfall {
        if let Some((owned_pages, ceiling_pages)) = why.zone_ceiling {
            return Shortfall::Quota {
                owned_pages,
                ceiling_pages,
            };
        }
        if why.is_unmapped {
            return Shortfall::NotMapped {
                section_epoch: self.zones.epoch(),
            };
        }
        let (mut free_pages, mut min_pages, mut isolated) = (0, 0, 0);
        let mut fragmented = None;
        for &at in who.zonelist {
            let zone = self.zones.zone(at);
            if !zone.admits(migratetype) {
                continue;
            }
            free_pages += zone.free_pages();
            min_pages += zone.watermarks().min;
            if self.zones.leaving() >> at & 1 == 1 {
                isolated += self.zones.counts(at).isolated;
            }
            match zone.shortfall(order, AllocFlags::MIN) {
                // A block that is large enough is not lacking: it is kept back for others.
                ZoneShortfall::Fragmented { largest_order, .. } if largest_order < order => {
                    fragmented = fragmented.max(Some(largest_order));
                }
                _ => {}
            }
        }
        match fragmented {
            Some(_) => Shortfall::Fragmented {
                free_pages,
                largest_order: fragmented,
            },
            None if isolated >= u64::from(order.nr_pages()) => Shortfall::Offlining,
            None => Shortfall::ZoneEmpty {
                free_pages,
                min_pages,
            },
        }
    }

    /// Takes home a block that the client claims to give back.
    pub fn take_home(&mut self, client: ClientId, claim: RawPage) -> Result<Taken, Misuse> {
        self.take_named_home(client, claim.pfn(), claim.order(), claim.generation())
    }

    /// Whether a claim is of a block that is home since, and was not lent again: a daemon before
    /// may have taken it, and died before it could say so.
    pub fn is_settled(&self, claim: RawPage) -> bool {
        if claim.migratetype().is_none() {
            // A notice: parcels are not kept over a restart.
            return true;
        }
        let next = hugepool_shm::raw::next_generation(claim.generation());
        let last = self.zones.nr_pages();
        u64::from(claim.pfn()) < last
            && self.owners.cell(Pfn::new(claim.pfn())) == Cell::Home { generation: next }
    }

    /// Whether the block is on the daemon's own account: a place that another is moved to.
    pub fn is_daemons(&self, pfn: Pfn) -> bool {
        matches!(self.owners.cell(pfn), Cell::Lent(lent) if lent.client == ClientId::DAEMON)
    }

    /// Takes a block home that is the daemon's own.
    pub fn drop_daemons(&mut self, pfn: Pfn) {
        if let Ok(taken) = self.owners.take_head(ClientId::DAEMON, pfn.get()) {
            self.put(taken);
        }
    }

    /// Takes a block home that was lent at this generation, if it is so still; says whether.
    pub fn undo_lend(&mut self, client: ClientId, pfn: Pfn, generation: u32) -> bool {
        let is_so = u64::from(pfn.get()) < self.zones.nr_pages()
            && matches!(self.owners.cell(pfn), Cell::Lent(lent)
                if lent.client == client && lent.generation == generation);
        is_so && self.take_head_home(client, pfn.get()).is_ok()
    }

    /// As [`take_home`](Self::take_home), of a claim that came by call.
    pub fn take_named_home(
        &mut self,
        client: ClientId,
        pfn: u32,
        order: u32,
        generation: u32,
    ) -> Result<Taken, Misuse> {
        match self.owners.take_named(client, pfn, order, generation) {
            Ok(taken) => {
                self.put(taken);
                Ok(taken)
            }
            Err(misuse) => self
                .intents
                .return_early(client, Pfn::new(pfn), Some((order, generation)))
                .ok_or(misuse),
        }
    }

    /// As [`take_home`](Self::take_home), of a block named by its head alone.
    pub fn take_head_home(&mut self, client: ClientId, pfn: u32) -> Result<Taken, Misuse> {
        match self.owners.take_head(client, pfn) {
            Ok(taken) => {
                self.put(taken);
                Ok(taken)
            }
            Err(misuse) => self
                .intents
                .return_early(client, Pfn::new(pfn), None)
                .ok_or(misuse),
        }
    }

    /// Takes home all that is the client's; returns its pages.
    pub fn sweep_home(&mut self, client: ClientId) -> u64 {
        let mut taken = self.owners.sweep(client);
        let nr_pages: u64 = taken
            .iter()
            .map(|block| u64::from(block.order.nr_pages()))
            .sum();
        self.nr_home += num::count(taken.len());
        self.nr_pages_home += nr_pages;
        taken.sort_unstable_by_key(|block| (block.order, block.pfn));
        let mut heads = Vec::new();
        for run in taken.chunk_by(|a, b| a.order == b.order) {
            heads.clear();
            heads.extend(run.iter().map(|block| block.pfn));
            self.zones.free_bulk(&heads, run[0].order);
        }
        nr_pages
    }

    /// Begins a step that lends to, or takes from, somebody else's memory.
    pub fn open_journal(&mut self, client: ClientId, errand: Errand) {
        self.owners.journal.open(client, errand);
    }

    /// Takes a block that is nobody's yet into the daemon's own custody: the place that another
    /// is moved to. Returns the generation.
    pub fn lend_to_daemon(
        &mut self,
        pfn: Pfn,
        order: Order,
        migratetype: Migratetype,
        now_ms: u64,
    ) -> u32 {
        let mut generation = 0;
        let tell = &mut |_, lent| generation = lent;
        self.touch(&[pfn], order);
        self.owners
            .lend(ClientId::DAEMON, order, migratetype, &[pfn], now_ms, tell);
        generation
    }

    /// Notes for a daemon that comes after where it has to look for these blocks.
    fn touch(&mut self, heads: &[Pfn], order: Order) {
        let pageblock_pages = self.zones.geometry().pageblock_pages();
        let nr_blocks = (order.nr_pages() / pageblock_pages).max(1);
        let mut last = None;
        for &head in heads {
            let first = self.owners.place(head);
            if last == Some(first) {
                continue;
            }
            last = Some(first);
            let zone = self.zones.zone(self.zones.of_page(head));
            for block in 0..nr_blocks {
                let pfn = Pfn::new(head.get() + block * pageblock_pages);
                let info = zone.pageblock(pfn);
                let migratetype = info.map_or(Migratetype::Movable, |info| info.migratetype);
                self.owners.touch(self.owners.place(pfn), migratetype);
            }
        }
    }

    /// The section is gone for good: nothing remembers its pages.
    pub fn forget_section(&mut self, section: SectionId) {
        self.owners.raise_floor(section);
        self.note_section(section);
        self.owners.forget_section(section);
    }

    /// Puts blocks away that were taken home.
    pub fn put_all(&mut self, heads: &[Pfn], order: Order) {
        let nr_blocks = num::count(heads.len());
        self.nr_home += nr_blocks;
        self.nr_pages_home += nr_blocks << order.get();
        heads.iter().for_each(|&pfn| self.zones.put(pfn, order));
    }

    fn put(&mut self, taken: Taken) {
        self.nr_home += 1;
        self.nr_pages_home += u64::from(taken.order.nr_pages());
        self.zones.put(taken.pfn, taken.order);
    }
}

/// One visit to a zone.
#[derive(Clone, Copy, Debug)]
struct Ask {
    zone: usize,
    /// The zone that the request would rather have.
    preferred: usize,
    order: Order,
    migratetype: Migratetype,
    /// What the zone keeps.
    mark: Mark,
}

/// Takes up to `nr` blocks; with nothing left, the daemon's own lists are drained once
/// and it is tried again. Returns how many.
fn take(zone: &mut Zone, ask: Ask, nr: usize, out: &mut Vec<Pfn>) -> usize {
    let reserve_pages = zone.protection().get(ask.preferred).copied().unwrap_or(0);
    let flags = AllocFlags {
        reserve_pages: if ask.mark == Mark::None {
            0
        } else {
            reserve_pages
        },
        ..AllocFlags::to(ask.mark)
    };
    let mut taken = zone.pcp_take(ask.order, ask.migratetype, nr, flags, out);
    if taken < nr && zone.counts().pcp > 0 {
        zone.pcp_drain();
        taken += zone.pcp_take(ask.order, ask.migratetype, nr - taken, flags, out);
    }
    taken
}
