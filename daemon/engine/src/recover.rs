//! The engine made anew from the words of one that has died at whatever instruction.
//!
//! In this order: the sections as their words say; every block that a cell says is lent, by
//! pageblock, into the counts and out of the free lists; moves that were under way, by their
//! handles ([`recover_moves`](crate::recover_moves)); the one step that was open in the journal;
//! the clients' lanes, as claims ([`recover_lanes`](crate::recover_lanes)); sections that were
//! coming or going. Nothing is lent before all of that is done. No byte of a page is looked at, and
//! no cell of a pageblock out of which nothing was ever lent.
//!
//! Each part may itself be cut short and done again: what it stores is what it would store then.

use std::collections::BTreeMap;

use hugepool_mm::{Migratetype, OnlineOrder, Order, Pfn, SectionId, SectionState};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::outbox::Outbox;
use hugepool_shm::transit::TransitTable;
use thiserror::Error;

use crate::cell::{Cell, Lent};
use crate::client::FixedPcp;
use crate::command::SectionRefusal;
use crate::events::About;
use crate::id::{ClientId, Now, OperationId, millis};
use crate::intent::Kind;
use crate::operation::{Operation, Step, Task};
use crate::outside::{Effect, Outside};
use crate::report::{OperationKind, SectionOutcome};
use crate::saved::Saved;
use crate::tally::Place;
use crate::zones::{ConfigError, ZoneIndex};
use crate::{Backing, Defaults, Engine, StateWords, num};

/// A client's segment, as it was found.
#[derive(Debug)]
pub struct Survivor {
    /// Whose.
    pub client: ClientId,
    /// The segment; a fresh one if the old one is lost.
    pub segment: ControlSegment,
    /// Its outbox, if it has one.
    pub outbox: Option<Outbox>,
    /// The old one is lost: the client is shut out, and what it holds stays its own until it ends.
    pub is_lost: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Pages that are clients'.
    pub lent_pages: u64,
    /// Pageblocks that were looked at.
    pub nr_pageblocks: u64,
    /// Clients.
    pub nr_clients: u32,
    /// Moves and evictions that were under way.
    pub nr_moves: u32,
    /// Blocks that were nobody's any more: of connections that ended with the daemon, and of steps
    /// that it did not end.
    pub nr_orphans: u64,
    /// Sections that were coming or going.
    pub nr_sections_under_way: u32,
}

/// Why the words cannot be gone on from. Nothing in them has been changed that was lent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecoverError {
    /// The saved settings make no engine.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A section's word makes no sense.
    #[error("what was kept of section {section} makes no sense")]
    Section {
        /// The section.
        section: SectionId,
    },
    /// Two blocks lie over each other, or a block over an edge.
    #[error("the block at page {pfn} cannot be where its cell says")]
    Block {
        /// Its head.
        pfn: Pfn,
    },
    /// A client's segment is of another shape.
    #[error("the segment of client {client} has another shape than it was given")]
    Segment {
        /// The client.
        client: ClientId,
    },
}

impl Engine {
    /// Goes on from the words of an engine before, and what it saved last. `transits` are the zones'
    /// transit words, by index. Each client that was
    /// saved has a survivor; one that has none is taken to be dead.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub fn recover(
        saved: &Saved,
        defaults: Defaults,
        state: StateWords,
        survivors: Vec<Survivor>,
        transits: Vec<TransitTable>,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<(Engine, Recovered), RecoverError> {
        let mut engine = Engine::with_state(saved.config(defaults), state)?;
        let mut found = Recovered::default();
        let fixed = |pages: u32| Some(pages).filter(|&pages| pages > 0);
        engine.pcp = FixedPcp {
            batch: fixed(saved.batch),
            high: fixed(saved.high),
        };
        engine.operations.go_on_from(saved.last_operation);
        engine.restore_limits(saved);
        let posts = &mut engine.custody.posts;
        posts.go_on_from(saved.first_sequence, &saved.sequences);
        for (zone, table) in transits.into_iter().enumerate() {
            posts.set_transit(zone, table);
        }
        engine.bring_sections(saved)?;
        engine.enter_survivors(saved, survivors, now)?;
        engine.find_blocks(now, &mut found)?;
        engine.decide_moves(now, &mut found);
        engine.undo_open_step(&mut found);
        engine.recover_parcels(now);
        engine.give_back_leaving();
        engine.rest_again(now);
        engine.resume_clients(now, outside, &mut found);
        engine.end_operations(saved, now, &mut found);
        engine.slow_changed();
        let Recovered {
            lent_pages,
            nr_clients,
            ..
        } = found;
        let text = format!("{lent_pages} pages of {nr_clients} clients were found as they were");
        engine.events.note(now, "recover", About::default(), text);
        Ok((engine, found))
    }

    /// Brings each section to the state that was kept, everything in it free.
    fn bring_sections(&mut self, saved: &Saved) -> Result<(), RecoverError> {
        // By zone, for sections that had come and were not saved yet.
        let mut usual: BTreeMap<usize, Backing> = BTreeMap::new();
        for (section, backing) in saved.backings() {
            if let Some(row) = self.custody.zones.section_mut(section) {
                usual.entry(row.zone).or_insert_with(|| backing.clone());
                row.backing = Some(backing);
            }
        }
        for at in 0..self.custody.zones.nr_sections() {
            let section = SectionId::new(at);
            let broken = RecoverError::Section { section };
            let word = self.custody.kept_section(section).ok_or(broken.clone())?;
            self.custody.owners.set_floor(section, word.floor);
            let Some(row) = self.custody.zones.section_mut(section) else {
                continue;
            };
            row.incarnation = word.incarnation;
            if word.state == SectionState::Absent {
                row.backing = None;
                continue;
            }
            if row.backing.is_none() && word.state != SectionState::Adding {
                row.backing = usual.get(&row.zone).cloned();
            }
            let zone = row.zone;
            self.bring_section(zone, section, word.state)
                .map_err(|_| broken)?;
        }
        Ok(())
    }

    fn bring_section(
        &mut self,
        zone: usize,
        section: SectionId,
        state: SectionState,
    ) -> Result<(), hugepool_mm::SectionError> {
        let zones = &mut self.custody.zones;
        zones.zone_mut(zone).begin_add(section)?;
        if state == SectionState::Adding {
            return Ok(());
        }
        zones.zone_mut(zone).finish_add(section)?;
        match state {
            SectionState::Online | SectionState::GoingOffline => {
                zones.online(section, OnlineOrder::Pageblock)?;
                self.custody.owners.set_managed(section, true);
            }
            SectionState::Removing => zones.zone_mut(zone).begin_remove(section)?,
            _ => {}
        }
        Ok(())
    }

    /// Finds every block that is lent: counts it, and takes it out of the free lists.
    fn find_blocks(&mut self, now: Now, found: &mut Recovered) -> Result<(), RecoverError> {
        for at in 0..self.custody.zones.nr_sections() {
            let section = SectionId::new(at);
            if self.custody.zones.state(section).is_managed() {
                for place in self.custody.owners.lent_places(section) {
                    found.nr_pageblocks += 1;
                    self.find_in(place, now, found)?;
                }
            }
        }
        Ok(())
    }

    fn find_in(
        &mut self,
        place: Place,
        now: Now,
        found: &mut Recovered,
    ) -> Result<(), RecoverError> {
        let geometry = self.custody.zones.geometry();
        let pageblock_pages = geometry.pageblock_pages();
        let section_pages = geometry.section_pages();
        let start = place.section * section_pages
            + num::saturate(num::count(place.block)) * pageblock_pages;
        let zone = self.custody.zones.of_page(Pfn::new(start));
        let mut used = vec![0u64; num::index(pageblock_pages.div_ceil(64))];
        let mut runs = Runs::default();
        let mut orphans = Vec::new();
        let mut page = 0;
        while page < pageblock_pages {
            let word = self.custody.owners.block_cells(place)[num::index(page)]
                .load(core::sync::atomic::Ordering::Relaxed);
            let Cell::Lent(lent) = Cell::decode(word, 0) else {
                page += 1;
                continue;
            };
            let pfn = Pfn::new(start + page);
            let broken = RecoverError::Block { pfn };
            let pages = lent.order.nr_pages();
            if !pfn.is_aligned(lent.order) || lent.order > geometry.max_order() {
                return Err(broken);
            }
            if !self.is_known(lent.client) {
                orphans.push((pfn, lent));
                page += 1;
                continue;
            }
            if pages > pageblock_pages {
                // Larger than a pageblock: those behind this one hold nothing of their own.
                if !self
                    .custody
                    .zones
                    .zone_mut(zone)
                    .take_exact(pfn, lent.order)
                {
                    return Err(broken);
                }
                if lent.is_shared {
                    self.custody.shares.marked.push(pfn);
                }
                self.count(&lent, place, pages, now);
                found.lent_pages += u64::from(pages);
                return Ok(());
            }
            let is_lent_inside = (page + 1..page + pages).any(|tail| {
                let word = self.custody.owners.block_cells(place)[num::index(tail)]
                    .load(core::sync::atomic::Ordering::Relaxed);
                matches!(Cell::decode(word, 0), Cell::Lent(_))
            });
            if is_lent_inside {
                return Err(broken);
            }
            let first = num::index(page / 64);
            match pages {
                1..64 => used[first] |= ((1 << pages) - 1) << (page % 64),
                _ => used[first..][..num::index(pages / 64)].fill(u64::MAX),
            }
            if lent.is_shared {
                self.custody.shares.marked.push(pfn);
            }
            if let Some((lent, pages)) = runs.add(&lent, pages) {
                self.count(&lent, place, pages, now);
            }
            found.lent_pages += u64::from(pages);
            page += pages;
        }
        if let Some((lent, pages)) = runs.last() {
            self.count(&lent, place, pages, now);
        }
        for (pfn, lent) in orphans {
            found.nr_orphans += 1;
            self.custody.owners.drop_orphan(pfn, lent.generation);
        }
        self.occupy(zone, place, Pfn::new(start), &used)
    }

    fn occupy(
        &mut self,
        zone: usize,
        place: Place,
        start: Pfn,
        used: &[u64],
    ) -> Result<(), RecoverError> {
        if used.iter().all(|&word| word == 0) {
            return Ok(());
        }
        let migratetype = self.custody.owners.block_type(place);
        let zone = self.custody.zones.zone_mut(zone);
        if !zone.occupy(start, used) {
            return Err(RecoverError::Block { pfn: start });
        }
        if let Some(migratetype) = migratetype {
            zone.set_pageblock_type(start, migratetype);
        }
        Ok(())
    }

    fn count(&mut self, lent: &Lent, place: Place, pages: u32, now: Now) {
        let owners = &mut self.custody.owners;
        owners.count_found(lent.client, place, pages, millis(now));
        if lent.migratetype == Migratetype::Reclaimable {
            owners.count_found_reclaimable(place.section, pages);
        }
    }

    /// Whether somebody of that name may own something.
    fn is_known(&self, client: ClientId) -> bool {
        client == ClientId::DAEMON || self.clients.get(client).is_some()
    }

    /// Sections that were leaving are given back as they were: whoever asked is asked again.
    fn give_back_leaving(&mut self) {
        for at in 0..self.custody.zones.nr_sections() {
            let section = SectionId::new(at);
            let word = self.custody.kept_section(section);
            if word.is_some_and(|word| word.state == SectionState::GoingOffline) {
                self.custody.note_section(section);
            }
        }
    }

    /// What was being done with sections ends here: what was coming is punched and gone, what was
    /// going goes.
    fn end_operations(&mut self, saved: &Saved, now: Now, found: &mut Recovered) {
        // The last one first: a section that is coming or going is its, not that of an earlier one
        // which has done with it and runs on for others.
        for &(number, kind, ref sections) in saved.operations.iter().rev() {
            let Some(kind) = Saved::kind(kind) else {
                continue;
            };
            let mut operation = Operation::new(kind, now, now);
            operation.id = OperationId(number);
            // What has begun goes to its end by itself; the rest is not done any more.
            operation.is_cancelled = kind == OperationKind::Add;
            for &section in sections {
                let section = SectionId::new(section);
                operation.tasks.push(self.task_left(kind, section));
            }
            self.put_recovered(operation, now, found);
        }
        // Left by an operation that had ended without them, or was not saved yet.
        for kind in [OperationKind::Add, OperationKind::Remove] {
            let left: Vec<SectionId> = (0..self.custody.zones.nr_sections())
                .map(SectionId::new)
                .filter(|&section| self.is_left(kind, section))
                .collect();
            if left.is_empty() {
                continue;
            }
            let mut operation = Operation::new(kind, now, now);
            operation.id = self.operations.next_id();
            operation.is_cancelled = kind == OperationKind::Add;
            operation.tasks = left.iter().map(|&at| self.task_left(kind, at)).collect();
            self.put_recovered(operation, now, found);
        }
    }

    fn is_left(&self, kind: OperationKind, section: SectionId) -> bool {
        let wanted = match kind {
            OperationKind::Add => SectionState::Adding,
            _ => SectionState::Removing,
        };
        let row = self.custody.zones.section(section);
        self.custody.zones.state(section) == wanted
            && row.is_some_and(|row| row.operation.is_none())
    }

    /// Where a section of an operation stands, that a daemon before had begun.
    fn task_left(&self, kind: OperationKind, section: SectionId) -> Task {
        let state = self.custody.zones.state(section);
        let step = match kind {
            OperationKind::Add if self.is_left(kind, section) => Step::Unwinding,
            OperationKind::Remove if self.is_left(kind, section) => Step::Punching,
            _ => Step::Ended,
        };
        let is_done = matches!(
            (kind, state),
            (
                OperationKind::Add | OperationKind::Online,
                SectionState::Online
            ) | (OperationKind::Offline, SectionState::Offline)
                | (OperationKind::Remove, SectionState::Absent)
        );
        let done = match step {
            Step::Ended if is_done => Some(Ok(())),
            Step::Ended => Some(Err(SectionRefusal::Interrupted { section })),
            _ => None,
        };
        Task {
            step,
            outcome: SectionOutcome {
                done,
                ..crate::hotplug::new_outcome(section, state)
            },
        }
    }

    fn put_recovered(&mut self, operation: Operation, now: Now, found: &mut Recovered) {
        for task in operation.tasks.iter().filter(|t| t.step != Step::Ended) {
            let section = task.section();
            found.nr_sections_under_way += 1;
            if task.step == Step::Punching {
                self.custody.forget_section(section);
            }
            let Some(row) = self.custody.zones.section_mut(section) else {
                continue;
            };
            row.operation = Some(operation.id);
            let zone = ZoneIndex(row.zone).id();
            self.effects.push(Effect::Punch {
                operation: operation.id,
                zone,
                section,
            });
        }
        self.put_operation(operation, now);
    }

    /// The step that the daemon before was at, if it had not come to its end: blocks that nobody
    /// was told of go home, and blocks that were being taken are.
    fn undo_open_step(&mut self, found: &mut Recovered) {
        let Some(open) = self.custody.owners.journal.read() else {
            return;
        };
        self.undo_step(open, found);
        self.custody.owners.journal.close();
    }

    /// Moves and evictions under way, by what their handles say.
    fn decide_moves(&mut self, now: Now, found: &mut Recovered) {
        let all: Vec<_> = self.custody.intents.numbered().collect();
        for (id, intent) in all {
            found.nr_moves += 1;
            let is_move = intent.kind == Kind::Move;
            if !self.decide_move(id, &intent, now) && is_move {
                self.undecided.push(id);
            }
        }
        self.drop_strays(found);
    }
}

/// Neighbouring blocks of one client and kind, counted together.
#[derive(Debug, Default)]
struct Runs {
    last: Option<(Lent, u32)>,
}

impl Runs {
    /// Adds a block; returns what came before, if that was another's.
    fn add(&mut self, lent: &Lent, pages: u32) -> Option<(Lent, u32)> {
        let is_reclaimable = |lent: &Lent| lent.migratetype == Migratetype::Reclaimable;
        match &mut self.last {
            Some((last, sum))
                if last.client == lent.client && is_reclaimable(last) == is_reclaimable(lent) =>
            {
                *sum += pages;
                None
            }
            last => last.replace((*lent, pages)),
        }
    }

    fn last(self) -> Option<(Lent, u32)> {
        self.last
    }
}

/// A block's order as a claim names it.
pub(crate) fn claimed(order: Order) -> u32 {
    u32::from(order.get())
}
