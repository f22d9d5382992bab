//! Runs in the owner table: what is the same for all of their blocks is found out and done at once.
//!
//! The cells of pages that were lent together hold the same word, so that one comparison each
//! judges a claim to all of them. Where they do not, nothing is decided here: the blocks are looked
//! at one by one.

use core::sync::atomic::AtomicU64;

use hugepool_mm::{Migratetype, Order};
use hugepool_shm::raw::next_generation;

use super::{HALF, Owners, Relaxed, offset};
use crate::cell::{Cell, Lent};
use crate::head_run::HeadRun;
use crate::id::ClientId;
use crate::num;

impl Owners {
    /// A generation after that of each of the blocks, unless they lie too far apart.
    pub(super) fn generation_after(&self, runs: &[HeadRun], order: Order) -> Option<u32> {
        let mut base = None;
        let (mut low, mut high) = (0, 0);
        let mut note = |generation| {
            let base = *base.get_or_insert(generation);
            let offset = offset(base, generation);
            low = low.min(offset);
            high = high.max(offset);
        };
        for run in runs {
            for (place, piece) in run.pieces(order, self.geometry) {
                let floor = self.floors[num::index(place.section)];
                let first = self.word(piece.first).load(Relaxed);
                note(Cell::decode(first, floor).generation());
                // Mostly they were lent and came home together.
                if self.differing(piece, order, first) != 0 {
                    self.for_cells(piece, order, |cell| {
                        note(Cell::decode(cell.load(Relaxed), floor).generation());
                    });
                }
            }
        }
        (high - low < HALF - 1)
            .then(|| next_generation(base.unwrap_or(0).wrapping_add_signed(high)))
    }

    /// Takes neighbouring pages home, `rise` generations later, if all of them are the client's and
    /// alike, at this generation if one is named. Else nothing has changed, and it is to be found
    /// out for each of them.
    pub fn take_run(
        &mut self,
        client: ClientId,
        run: HeadRun,
        generation: Option<u32>,
        rise: u32,
    ) -> bool {
        let Some(lent) = self.alike(client, run, generation) else {
            return false;
        };
        let home = Cell::home(lent.generation.wrapping_add(rise));
        for (place, piece) in run.pieces(Order::ZERO, self.geometry) {
            self.for_cells(piece, Order::ZERO, |cell| {
                cell.store(home, Relaxed);
                hugepool_shm::step::reached("home.cell");
            });
            self.tally.sub(client, place, piece.nr_blocks);
            if lent.migratetype == Migratetype::Reclaimable {
                self.tally.sub_reclaimable(place.section, piece.nr_blocks);
            }
        }
        true
    }

    /// What the cells of neighbouring pages say, if they are the client's, all say the same, and
    /// that is this generation if one is named.
    pub fn alike(&self, client: ClientId, run: HeadRun, generation: Option<u32>) -> Option<Lent> {
        let order = self.geometry.section_order();
        let last = run.end(Order::ZERO).checked_sub(1)?;
        let mut sections = u64::from(run.first.get()) >> order..=last >> order;
        let is_managed = |section: u64| {
            let managed = usize::try_from(section)
                .ok()
                .and_then(|at| self.managed.get(at));
            managed.is_some_and(|&managed| managed)
        };
        if !sections.all(is_managed) {
            return None;
        }
        let word = self.word(run.first).load(Relaxed);
        let Cell::Lent(lent) = Cell::decode(word, 0) else {
            return None;
        };
        let is_right = lent.client == client
            && !lent.is_shared
            && lent.order == Order::ZERO
            && generation.is_none_or(|generation| generation == lent.generation)
            && self.differing(run, Order::ZERO, word) == 0;
        is_right.then_some(lent)
    }

    /// The bits in which a cell of the run differs from a word.
    fn differing(&self, run: HeadRun, order: Order, word: u64) -> u64 {
        let mut differing = 0;
        self.for_cells(run, order, |cell| differing |= cell.load(Relaxed) ^ word);
        differing
    }

    /// Shows the cell of each block of the run, which lies in the table.
    #[inline]
    pub(super) fn for_cells(&self, run: HeadRun, order: Order, act: impl FnMut(&AtomicU64)) {
        let start = num::index(run.first.get());
        let nr_pages = usize::try_from(run.end(order)).map_or(0, |end| end - start);
        let cells = &self.words.cells()[start..start + nr_pages];
        if order == Order::ZERO {
            cells.iter().for_each(act);
        } else {
            cells
                .iter()
                .step_by(num::index(order.nr_pages()))
                .for_each(act);
        }
    }
}
