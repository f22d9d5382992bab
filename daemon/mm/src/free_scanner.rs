//! The free scanner: from the zone's end down, looking for places for pages that move.
//!
//! Places are free blocks of exactly the order of what moves, in movable pageblocks that
//! are neither full nor wholly free, and never cut from a free block of the order that
//! compaction is to make. Each order has a position of its own: a pageblock without a run
//! of eight pages may still take single ones. That of order 0 is where the scanners meet.

use crate::compact::{CompactCounts, CompactMode, Surroundings};
use crate::contiguity::PageblockAt;
use crate::num::index;
use crate::pageblock::Row;
use crate::{AllocFlags, Migratetype, Order, Pfn, Zone};

/// Where the search for places stands.
#[derive(Clone, Debug)]
pub(crate) struct FreeScanner {
    /// By order of what is to be placed: pageblocks from here up are used up.
    used_up: [u32; 16],
    /// A bit for each order that has the pageblock below in use.
    is_open: u32,
    /// Free runs of this order and larger are left alone.
    spare: Order,
    mode: CompactMode,
}

/// What a search for places has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// Some or all that were asked for.
    Found,
    /// None above the pageblock whose blocks are to be placed.
    Met,
    /// The budget of pageblocks is used up.
    Pause,
    /// The zone's reserve is reached.
    TooFewFree,
}

impl FreeScanner {
    pub fn new(end: u32, spare: Order, mode: CompactMode) -> FreeScanner {
        FreeScanner {
            used_up: [end; 16],
            is_open: 0,
            spare,
            mode,
        }
    }

    /// Pageblocks from here up have been used up.
    #[inline]
    pub fn position(&self) -> u32 {
        self.used_up[0]
    }

    /// Whether a migrate scanner that is about to open `block` shares it with this one:
    /// no place lies above it.
    #[inline]
    pub fn has_met(&self, block: u32) -> bool {
        block + 1 >= self.position()
    }

    /// Takes up to `nr` places for blocks of `order` of pageblock `source`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the scanner's own state and what it works on"
    )]
    pub fn take(
        &mut self,
        zone: &mut Zone,
        around: &mut impl Surroundings,
        source: u32,
        order: Order,
        nr: usize,
        budget: &mut u32,
        counts: &mut CompactCounts,
        out: &mut Vec<Pfn>,
    ) -> Places {
        let allowed = zone.allowance(AllocFlags::MIN) >> order.get();
        let nr = usize::try_from(allowed).map_or(nr, |allowed| nr.min(allowed));
        if nr == 0 {
            return Places::TooFewFree;
        }
        let base = zone.config.start.get();
        let (at, spare) = (u32::from(order.get()), u32::from(self.spare.get()));
        let before = out.len();
        while out.len() < before + nr {
            let block = match self.find(zone, around, source, order, budget, counts) {
                Ok(block) => block,
                Err(_) if out.len() > before => break,
                Err(none) => return none,
            };
            let left = before + nr - out.len();
            let taken = zone
                .buddy
                .take_from_block(block, at, spare, left, base, out);
            if taken < left {
                self.leave(order);
            }
        }
        Places::Found
    }

    /// The pageblock to take places from.
    fn find(
        &mut self,
        zone: &mut Zone,
        around: &mut impl Surroundings,
        source: u32,
        order: Order,
        budget: &mut u32,
        counts: &mut CompactCounts,
    ) -> Result<u32, Places> {
        let shape = zone.buddy.shape;
        let in_section = (1 << shape.section_shift) - 1;
        loop {
            let used_up = self.used_up[order.index()];
            if used_up <= source + 1 {
                return Err(Places::Met);
            }
            let block = used_up - 1;
            if self.is_open >> order.get() & 1 == 1 {
                // Between two steps it may have changed its type, or begun to leave.
                if may_give(zone.buddy.row(block), shape.block_pages) {
                    return Ok(block);
                }
                self.leave(order);
                continue;
            }
            // Asked at a section's last pageblock; of one that goes meanwhile none is whole.
            let section = block >> shape.section_shift;
            let is_last = block & in_section == in_section;
            if is_last && !zone.present_sections.contains(section) {
                let below = zone.present_sections.last_to(section);
                self.used_up[order.index()] =
                    below.map_or(0, |section| (section + 1) << shape.section_shift);
                continue;
            }
            if *budget == 0 {
                return Err(Places::Pause);
            }
            *budget -= 1;
            counts.nr_checks += 1;
            let start = zone.absolute(shape.join(block, 0));
            let row = zone.buddy.row(block);
            let at = PageblockAt { start, block, row };
            if around.is_whole(zone, at) && self.is_suitable(zone, at, order, counts) {
                self.is_open |= 1 << order.get();
                return Ok(block);
            }
            self.used_up[order.index()] -= 1;
        }
    }

    #[inline]
    fn is_suitable(
        &self,
        zone: &mut Zone,
        PageblockAt { block, row, .. }: PageblockAt,
        order: Order,
        counts: &mut CompactCounts,
    ) -> bool {
        let heeds_skips = self.mode.heeds_skips();
        let is_skipped = heeds_skips && row.skip();
        if is_skipped || !may_give(row, zone.buddy.shape.block_pages) {
            return false;
        }
        if order == Order::ZERO {
            counts.nr_free_scanned += u64::from(zone.buddy.shape.block_pages);
        }
        if row.nr_free() == 0 {
            if heeds_skips {
                zone.skip_block(block);
            }
            return false;
        }
        row.largest() >= u32::from(order.get())
    }

    fn leave(&mut self, order: Order) {
        self.is_open &= !(1 << order.get());
        self.used_up[index(u32::from(order.get()))] -= 1;
    }
}

/// Whether a pageblock is one that pages may move to, full or not.
#[inline]
fn may_give(row: Row, block_pages: u32) -> bool {
    row.is_managed()
        && !row.is_isolated()
        && row.migratetype() == Migratetype::Movable
        && row.nr_free() < block_pages
}
