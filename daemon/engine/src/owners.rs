//! The owner table: whose each lent block is, and the one place where claims become pages.
//!
//! Custody changes here and nowhere else: [`lend`](Owners::lend) before the words are
//! published, [`take_named`](Owners::take_named) when a claim has been checked,
//! [`sweep`](Owners::sweep) when a client is dead. What a page is inside the allocator
//! (free, isolated, in a daemon's list) is not known here. Cells:
//! [`cell`](crate::cell); counts: [`tally`](crate::tally).
//!
//! One writer: the accesses are relaxed, the cells are atomics only because the words
//! may lie in a mapping.

mod handed;
mod runs;
mod sections;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hugepool_mm::{Geometry, Migratetype, Order, Pfn, SectionId};
use hugepool_shm::raw::next_generation;
use hugepool_shm::words::Words;

use crate::cell::{Cell, Lent};
use crate::head_run::HeadRun;
use crate::id::ClientId;
use crate::journal::Journal;
use crate::misuse::Misuse;
use crate::num;
use crate::state::StateWords;
use crate::tally::{ClientSection, Place, Tally};

/// Half the circle of generations: further apart, two have no order.
const HALF: i32 = 1 << 19;

/// A block that came home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub pfn: Pfn,
    pub order: Order,
    pub migratetype: Migratetype,
}

/// A lent block, by its head.
type Headed = (Pfn, Lent);

/// The cells of all pages, the floors of all sections, and the counts.
#[derive(Debug)]
pub(crate) struct Owners {
    geometry: Geometry,
    words: Words,
    /// By pageblock: whether anything was ever lent out of it since its section came, and the
    /// migratetype it had at the last lend. Cells of others are zero, and never looked at.
    blocks: Words,
    /// What is being lent now.
    pub journal: Journal,
    /// By section: the generation of cells never written.
    floors: Vec<u32>,
    /// By section: whether pages may be lent out of it.
    managed: Vec<bool>,
    tally: Tally,
    /// Blocks of one pageblock that are moved together.
    run: Vec<Headed>,
}

impl Owners {
    /// A table over the cells of `state`; `zone_of` gives the zone index of each section.
    pub fn new(geometry: Geometry, state: &StateWords, zone_of: Vec<u8>) -> Owners {
        let nr_sections = zone_of.len();
        let nr_blocks = num::index(geometry.section_pageblocks());
        let mut tally = Tally::new(zone_of, nr_blocks);
        tally.open(ClientId::DAEMON);
        Owners {
            geometry,
            words: state.cells.clone(),
            blocks: state.pageblocks.clone(),
            journal: Journal::new(state.journal.clone()),
            floors: vec![0; nr_sections],
            managed: vec![false; nr_sections],
            tally,
            run: Vec::new(),
        }
    }

    /// The counts.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Opens an account for a client.
    pub fn open(&mut self, client: ClientId) {
        self.tally.open(client);
    }

    /// Closes the account of a client that has nothing left.
    pub fn close(&mut self, client: ClientId) {
        self.tally.close(client);
    }

    /// Lets pages of the section be lent, or no longer (then nothing is).
    pub fn set_managed(&mut self, section: SectionId, managed: bool) {
        let at = num::index(section.get());
        assert!(managed || self.tally.section_pages(section.get()) == 0);
        self.managed[at] = managed;
    }

    /// What the cell of a page says.
    #[inline]
    pub fn cell(&self, pfn: Pfn) -> Cell {
        let word = self.words.cells()[num::index(pfn.get())].load(Relaxed);
        Cell::decode(word, self.floors[self.section_index(pfn)])
    }

    /// Records that blocks are the client's from now on, and tells each with the generation
    /// of its lend: one for all of them, unless their pages' generations lie so far apart
    /// that none is after each.
    ///
    /// The blocks are at home and free of any list: the caller has just taken them from the
    /// allocator.
    pub fn lend(
        &mut self,
        client: ClientId,
        order: Order,
        migratetype: Migratetype,
        runs: &[HeadRun],
        now_ms: u64,
        tell: &mut dyn FnMut(HeadRun, u32),
    ) {
        if runs.is_empty() {
            return;
        }
        let Some(generation) = self.generation_after(runs, order) else {
            let (left, right) = match *runs {
                [run] => {
                    let (left, right) = run.split_at(run.nr_blocks / 2, order);
                    (vec![left], vec![right])
                }
                _ => {
                    let (left, right) = runs.split_at(runs.len() / 2);
                    (left.to_vec(), right.to_vec())
                }
            };
            self.lend(client, order, migratetype, &left, now_ms, tell);
            self.lend(client, order, migratetype, &right, now_ms, tell);
            return;
        };
        let word = Lent {
            client,
            order,
            migratetype,
            generation,
            is_shared: false,
        }
        .encode();
        self.journal.note(runs, order, generation);
        for &run in runs {
            for (place, piece) in run.pieces(order, self.geometry) {
                debug_assert!(self.block_type(place).is_some());
                self.for_cells(piece, order, |cell| {
                    debug_assert!(
                        matches!(Cell::decode(cell.load(Relaxed), 0), Cell::Home { .. }),
                        "a block of {piece:?} is lent"
                    );
                    cell.store(word, Relaxed);
                    hugepool_shm::step::reached("lend.cell");
                });
                let pages = piece.nr_blocks << order.get();
                self.tally.add(client, place, pages, now_ms);
                if migratetype == Migratetype::Reclaimable {
                    self.tally.add_reclaimable(place.section, pages);
                }
            }
            tell(run, generation);
        }
    }

    /// Hands a block on: it is `to`'s from now on, one generation later.
    ///
    /// # Panics
    /// If it is not `from`'s: the caller has just put it into that custody itself.
    pub fn hand_over(&mut self, pfn: Pfn, from: ClientId, to: ClientId, now_ms: u64) {
        let Cell::Lent(lent) = self.cell(pfn) else {
            panic!("{pfn} is at home")
        };
        assert_eq!(lent.client, from, "{pfn} is another's");
        let handed = Lent {
            client: to,
            generation: next_generation(lent.generation),
            ..lent
        };
        self.store(pfn, handed.encode());
        let (place, pages) = (self.place(pfn), lent.order.nr_pages());
        self.tally.sub(from, place, pages);
        self.tally.add(to, place, pages, now_ms);
    }

    /// Whether pages of the section that a pfn lies in may be lent.
    pub fn is_managed(&self, pfn: u32) -> bool {
        let section = num::index(pfn >> self.geometry.section_order());
        self.managed.get(section).is_some_and(|&managed| managed)
    }

    /// Takes a block home if the claim is right: the section is online, the block is headed
    /// there, is the client's, and has the order and the generation claimed.
    pub fn take_named(
        &mut self,
        client: ClientId,
        pfn: u32,
        order: u32,
        generation: u32,
    ) -> Result<Taken, Misuse> {
        let lent = self.check(client, pfn, order, generation)?;
        Ok(self.bring_home(Pfn::new(pfn), lent))
    }

    /// What a claim names, if it is right; nothing changes.
    pub fn check(
        &self,
        client: ClientId,
        pfn: u32,
        order: u32,
        generation: u32,
    ) -> Result<Lent, Misuse> {
        if !self.is_managed(pfn) {
            return Err(Misuse::NoSuchPage { pfn });
        }
        let at = Pfn::new(pfn);
        let Cell::Lent(lent) = self.cell(at) else {
            return Err(Misuse::NotLent { pfn: at });
        };
        if lent.client != client {
            return Err(Misuse::NotYours {
                pfn: at,
                owner: lent.client,
            });
        }
        if lent.generation != generation {
            return Err(Misuse::Stale {
                pfn: at,
                claimed: generation,
                there: lent.generation,
            });
        }
        if u32::from(lent.order.get()) != order {
            return Err(Misuse::WrongOrder {
                pfn: at,
                claimed: order,
                there: lent.order,
            });
        }
        if lent.is_shared {
            return Err(Misuse::Shared { pfn: at });
        }
        Ok(lent)
    }

    /// Takes the block headed at `pfn` home if it is the client's; whatever its order and
    /// generation (for the free map, which knows neither).
    pub fn take_head(&mut self, client: ClientId, pfn: u32) -> Result<Taken, Misuse> {
        if !self.is_managed(pfn) {
            return Err(Misuse::NoSuchPage { pfn });
        }
        let at = Pfn::new(pfn);
        match self.cell(at) {
            Cell::Home { .. } => Err(Misuse::NotLent { pfn: at }),
            Cell::Lent(lent) if lent.client != client => Err(Misuse::NotYours {
                pfn: at,
                owner: lent.client,
            }),
            Cell::Lent(lent) if lent.is_shared => Err(Misuse::Shared { pfn: at }),
            Cell::Lent(lent) => Ok(self.bring_home(at, lent)),
        }
    }

    /// Takes home all that is the client's, by pfn: linear in the pageblocks in which it
    /// has something.
    pub fn sweep(&mut self, client: ClientId, zones: u32) -> Vec<Taken> {
        let mut taken = Vec::new();
        let tally = &self.tally;
        let is_meant = |row: &&ClientSection| zones >> tally.zone_of(row.section) & 1 == 1;
        let places: Vec<Place> = tally.client(client).map_or(Vec::new(), |account| {
            let sections = account.sections().filter(is_meant);
            sections.flat_map(places).collect()
        });
        for place in places {
            self.for_each_head(place, &mut |pfn, lent| {
                if lent.client == client {
                    taken.push((pfn, lent));
                }
            });
        }
        taken
            .into_iter()
            .map(|(pfn, lent)| self.bring_home(pfn, lent))
            .collect()
    }

    /// Calls back for each lent block headed in the pageblock, by pfn.
    pub fn for_each_head(&self, place: Place, found: &mut dyn FnMut(Pfn, Lent)) {
        self.heads_from(place, 0, &mut |pfn, lent| {
            found(pfn, lent);
            true
        });
    }

    /// Calls back for each lent block headed in the pageblock from its page `from` on, by pfn, as
    /// long as the answer is to go on. Returns the page to go on from, if it is in there.
    pub fn heads_from(
        &self,
        place: Place,
        from: u32,
        found: &mut dyn FnMut(Pfn, Lent) -> bool,
    ) -> Option<u32> {
        let blocks = self.tally.section_blocks(place.section);
        let mut left = blocks.get(place.block).copied().unwrap_or(0);
        let range = self.pageblock_range(place);
        let mut at = range.start + u64::from(from);
        while left > 0 && at < range.end {
            let pfn = Pfn::new(num::saturate(at));
            let Cell::Lent(lent) = self.cell(pfn) else {
                at += 1;
                continue;
            };
            // Not less than what is left from here on: what lies before `from` counts too.
            left = left.saturating_sub(lent.order.nr_pages());
            at += u64::from(lent.order.nr_pages());
            if !found(pfn, lent) {
                return (at < range.end).then(|| num::saturate(at - range.start));
            }
        }
        None
    }

    /// As [`for_each_head`](Self::for_each_head), whatever the counts say: for checking them.
    /// A pageblock that was never lent out of is not looked at.
    pub fn for_each_cell(&self, place: Place, found: &mut dyn FnMut(Pfn, Lent)) {
        if self.tally.section_blocks(place.section).is_empty() {
            return;
        }
        for pfn in self.pageblock_range(place) {
            let pfn = Pfn::new(num::saturate(pfn));
            if let Cell::Lent(lent) = self.cell(pfn) {
                found(pfn, lent);
            }
        }
    }

    /// The pageblock of a page.
    #[inline]
    pub fn place(&self, pfn: Pfn) -> Place {
        place_of(self.geometry, pfn)
    }

    fn bring_home(&mut self, pfn: Pfn, lent: Lent) -> Taken {
        self.store(pfn, Cell::home(next_generation(lent.generation)));
        hugepool_shm::step::reached("home.cell");
        let (place, pages) = (self.place(pfn), lent.order.nr_pages());
        self.tally.sub(lent.client, place, pages);
        if lent.migratetype == Migratetype::Reclaimable {
            self.tally.sub_reclaimable(place.section, pages);
        }
        Taken {
            pfn,
            order: lent.order,
            migratetype: lent.migratetype,
        }
    }

    fn pageblock_range(&self, place: Place) -> core::ops::Range<u64> {
        let pages = u64::from(self.geometry.pageblock_pages());
        let section = u64::from(place.section) << self.geometry.section_order();
        let start = section + num::count(place.block) * pages;
        start..start + pages
    }

    fn section_index(&self, pfn: Pfn) -> usize {
        num::index(pfn.get() >> self.geometry.section_order())
    }

    fn word(&self, pfn: Pfn) -> &AtomicU64 {
        &self.words.cells()[num::index(pfn.get())]
    }

    fn store(&self, pfn: Pfn, word: u64) {
        self.word(pfn).store(word, Relaxed);
    }
}

/// The pageblock of a page.
pub(crate) fn place_of(geometry: Geometry, pfn: Pfn) -> Place {
    let section = pfn.get() >> geometry.section_order();
    let block = pfn.get() >> geometry.pageblock_order().get();
    Place {
        section,
        block: num::index(block & (geometry.section_pageblocks() - 1)),
    }
}

/// The pageblocks in which a client has something.
fn places(row: &crate::tally::ClientSection) -> impl Iterator<Item = Place> + '_ {
    row.blocks
        .iter()
        .enumerate()
        .filter(|(_, tally)| tally.pages > 0)
        .map(|(block, _)| Place {
            section: row.section,
            block,
        })
}

/// How far `generation` is after `base` on the circle, negative if before.
fn offset(base: u32, generation: u32) -> i32 {
    let distance = generation.wrapping_sub(base) & ((1 << 20) - 1);
    let distance = i32::try_from(distance).expect("20 bits fit");
    if distance >= HALF {
        distance - 2 * HALF
    } else {
        distance
    }
}

#[cfg(test)]
mod tests;
