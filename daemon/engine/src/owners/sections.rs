//! The owner table by section and pageblock: what is remembered of pages when their section goes, where a
//! daemon that comes after has to look, and what it finds there.
//!
//! A section that goes leaves its *floor*, a generation above all that were used in it, so that a
//! claim to a page of its last life is stale in the next one. A pageblock out of which nothing was
//! ever lent has a word of zero, and its cells are never looked at.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use hugepool_mm::{Migratetype, Pfn, SectionId};
use hugepool_shm::raw::{is_before, next_generation};

use super::Owners;
use crate::cell::Cell;
use crate::id::ClientId;
use crate::num;
use crate::tally::Place;

impl Owners {
    /// The section is about to go: its floor is above every generation used there. To be kept
    /// before the cells are forgotten. Returns it.
    pub fn raise_floor(&mut self, section: SectionId) -> u32 {
        let at = num::index(section.get());
        let mut floor = self.floors[at];
        for place in self.lent_places(section) {
            for pfn in self.pageblock_range(place) {
                let generation = self.cell(Pfn::new(num::saturate(pfn))).generation();
                if is_before(floor, generation) {
                    floor = generation;
                }
            }
        }
        self.floors[at] = next_generation(floor);
        self.floors[at]
    }

    /// The section has gone: its cells are zero again.
    pub fn forget_section(&mut self, section: SectionId) {
        for place in self.lent_places(section) {
            for pfn in self.pageblock_range(place) {
                let pfn = Pfn::new(num::saturate(pfn));
                if self.word(pfn).load(Relaxed) != 0 {
                    self.store(pfn, 0);
                }
            }
            // Last: until then the cells are looked at.
            self.block_word(place).store(0, Release);
        }
        self.managed[num::index(section.get())] = false;
        self.tally.forget_section(section.get());
    }

    /// The generation of cells never written, by section.
    pub fn floor(&self, section: SectionId) -> u32 {
        self.floors[num::index(section.get())]
    }

    /// The same, as a daemon before has kept it.
    pub fn set_floor(&mut self, section: SectionId, floor: u32) {
        self.floors[num::index(section.get())] = floor & ((1 << 20) - 1);
    }

    /// Notes that something is about to be lent out of a pageblock of this type.
    pub fn touch(&mut self, place: Place, migratetype: Migratetype) {
        let value = 1 + num::count(migratetype.index());
        let word = self.block_word(place);
        if word.load(Relaxed) != value {
            word.store(value, Release);
        }
    }

    /// The type that a pageblock had at the last lend out of it; none if nothing ever was.
    pub fn block_type(&self, place: Place) -> Option<Migratetype> {
        let value = self.block_word(place).load(Relaxed);
        let index = usize::try_from(value.checked_sub(1)?).ok()?;
        Migratetype::from_index(index)
    }

    /// The pageblocks of a section that something was ever lent out of.
    pub fn lent_places(&self, section: SectionId) -> Vec<Place> {
        let section = section.get();
        let blocks = 0..num::index(self.geometry.section_pageblocks());
        let places = blocks.map(|block| Place { section, block });
        places
            .filter(|&place| self.block_word(place).load(Relaxed) != 0)
            .collect()
    }

    /// The cells of a pageblock, as words.
    pub fn block_cells(&self, place: Place) -> &[AtomicU64] {
        let range = self.pageblock_range(place);
        let start = usize::try_from(range.start).expect("a page's number is an index");
        &self.words.cells()[start..start + num::index(self.geometry.pageblock_pages())]
    }

    /// Counts blocks that a daemon before has lent out of a pageblock.
    pub fn count_found(&mut self, client: ClientId, place: Place, pages: u32, now_ms: u64) {
        self.tally.add(client, place, pages, now_ms);
    }

    /// Counts pages of these as reclaimable.
    pub fn count_found_reclaimable(&mut self, section: u32, pages: u32) {
        self.tally.add_reclaimable(section, pages);
    }

    /// Brings a block home that a daemon before had lent to somebody who is not there; it is not
    /// counted anywhere.
    pub fn drop_orphan(&self, pfn: Pfn, generation: u32) {
        self.store(pfn, Cell::home(next_generation(generation)));
    }

    fn block_word(&self, place: Place) -> &AtomicU64 {
        let blocks = num::index(self.geometry.section_pageblocks());
        &self.blocks.cells()[num::index(place.section) * blocks + place.block]
    }
}
