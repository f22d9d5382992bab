//! The line between the zones and the clients: out by [`lend`](Custody::lend)
//! ([`lending`](crate::lending)), home by the rest.
//!
//! Holds the two that must agree, zones and owner table, and changes both in one step:
//! a page that is not free, not in a daemon's list and not lent does not exist outside
//! these two files. Knows no lanes, calls or operations.

use hugepool_mm::{Migratetype, Order, Pfn, SectionId};
use hugepool_shm::raw::{NR_ZONES, RawPage};
use hugepool_shm::word_run::WordRun;
use hugepool_shm::words::Words;

use crate::cell::Cell;
use crate::deferred::Deferred;
use crate::head_run::HeadRun;
use crate::id::ClientId;
use crate::intent::Intents;
use crate::journal::Errand;
use crate::limits::Limits;
use crate::misuse::Misuse;
use crate::nodes::Picks;
use crate::num;
use crate::owners::{Owners, Taken};
use crate::posts::Posts;
use crate::shares::Shares;
use crate::state::StateWords;
use crate::zones::Zones;

/// Zones and owners.
#[derive(Debug)]
pub(crate) struct Custody {
    pub zones: Zones,
    pub owners: Owners,
    /// Moves and evictions under way.
    pub intents: Intents,
    /// Who may have how much.
    pub limits: Limits,
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
    /// Pages that several hold.
    pub shares: Shares,
    /// What clients said that something must be settled before.
    pub deferred: Deferred,
    /// Whether nothing is left in any ring that could come before a parcel.
    pub are_rings_settled: bool,
    pub heads: Vec<Pfn>,
    /// The same by neighbours.
    pub runs: Vec<HeadRun>,
    /// Of the parcel that is being settled.
    pub claims: Vec<WordRun>,
}

impl Custody {
    pub fn new(zones: Zones, owners: Owners, state: &StateWords) -> Custody {
        Custody {
            zones,
            owners,
            intents: Intents::new(state.intents.clone()),
            limits: Limits::default(),
            sections: state.sections.clone(),
            nr_home: 0,
            nr_pages_home: 0,
            wanted_orders: [None; NR_ZONES],
            picks: Picks::default(),
            posts: Posts::new(state.lates.clone()),
            shares: Shares::default(),
            deferred: Deferred::new(state.deferred.clone()),
            are_rings_settled: false,
            heads: Vec::new(),
            runs: Vec::new(),
            claims: Vec::new(),
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
            // A notice: what was decided of its parcel is known, and else there is nothing to decide.
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

    /// Forgets a client that owns nothing any more.
    pub fn close(&mut self, client: ClientId) {
        self.owners.close(client);
        self.limits.close(client);
    }

    /// Takes home neighbouring pages that a client claims to give back, if each of the claims is
    /// right; else nothing has changed, and they are to be settled one by one.
    pub fn take_run_home(&mut self, client: ClientId, claim: WordRun) -> bool {
        let first = claim.first;
        claim.nr_blocks > 1
            && first.order() == 0
            && first.migratetype().is_some()
            && self.take_heads_home(client, HeadRun::from(claim), Some(first.generation()))
    }

    /// The same of pages named by their numbers alone, whatever their generation is, or by that
    /// too.
    pub fn take_heads_home(
        &mut self,
        client: ClientId,
        run: HeadRun,
        generation: Option<u32>,
    ) -> bool {
        let is_taken = self.owners.take_run(client, run, generation, 1);
        if is_taken {
            self.put_run(run);
        }
        is_taken
    }

    /// Puts neighbouring pages away that were taken home.
    pub fn put_run(&mut self, run: HeadRun) {
        self.nr_home += u64::from(run.nr_blocks);
        self.nr_pages_home += u64::from(run.nr_blocks);
        self.zones.put_run(run);
    }

    /// Takes home all that is the client's; returns its pages.
    pub fn sweep_home(&mut self, client: ClientId) -> u64 {
        self.sweep_zones(client, u32::MAX)
    }

    /// Takes home all that is the client's in these zones; returns its pages.
    pub fn sweep_zones(&mut self, client: ClientId, zones: u32) -> u64 {
        let mut taken = self.owners.sweep(client, zones);
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
        let run = [HeadRun::of_one(pfn)];
        self.touch(&run, order);
        self.owners
            .lend(ClientId::DAEMON, order, migratetype, &run, now_ms, tell);
        generation
    }

    /// Notes for a daemon that comes after where it has to look for these blocks.
    pub fn touch(&mut self, runs: &[HeadRun], order: Order) {
        let pageblock_order = self.zones.geometry().pageblock_order();
        let mut last = None;
        for run in runs {
            let zone = self.zones.zone(self.zones.of_page(run.first));
            let first = run.first.align_down(pageblock_order).get();
            let pageblock_pages = num::index(pageblock_order.nr_pages());
            for pfn in (u64::from(first)..run.end(order)).step_by(pageblock_pages) {
                let pfn = Pfn::new(num::saturate(pfn));
                let place = self.owners.place(pfn);
                if last.replace(place) == Some(place) {
                    continue;
                }
                let info = zone.pageblock(pfn);
                let migratetype = info.map_or(Migratetype::Movable, |info| info.migratetype);
                self.owners.touch(place, migratetype);
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
