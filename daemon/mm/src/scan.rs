//! Looking at pageblocks one by one: what a compaction scanner needs.
//!
//! Free and held runs of a pageblock, skip bits, and taking free pages out of one
//! given pageblock. Nothing here decides where to scan.

use crate::bulk::NOTHING_SPARED;
use crate::num::{index, low_u32};
use crate::{Migratetype, Order, Pfn, PfnRange, SectionId, Zone, bits};

/// A pageblock, as a scanner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageblockInfo {
    /// First page.
    pub start: Pfn,
    /// The requests it serves first.
    pub migratetype: Migratetype,
    /// Whether it is out of reach.
    pub isolated: bool,
    /// Free pages.
    pub nr_free: u32,
    /// Whether scanners should pass it by.
    pub skip: bool,
    /// The remembered contiguity answer, if there is one.
    pub contiguity: Option<bool>,
}

impl Zone {
    /// The pageblock around a page; `None` if it is not managed.
    #[must_use]
    pub fn pageblock(&self, pfn: Pfn) -> Option<PageblockInfo> {
        let (block, _) = self.buddy.shape.split(self.offset_of(pfn)?);
        let row = self.buddy.row(block);
        row.is_managed().then(|| PageblockInfo {
            start: self.absolute(self.buddy.shape.join(block, 0)),
            migratetype: row.migratetype(),
            isolated: row.is_isolated(),
            nr_free: row.nr_free(),
            skip: row.skip(),
            contiguity: row.contiguity(),
        })
    }

    /// The managed pageblocks of a section, ascending.
    pub fn pageblocks(
        &self,
        section: SectionId,
    ) -> impl DoubleEndedIterator<Item = PageblockInfo> + '_ {
        let blocks = self
            .section_index(section)
            .map_or(0..0, |at| self.section_blocks(at));
        blocks.filter_map(|block| self.pageblock(self.absolute(self.buddy.shape.join(block, 0))))
    }

    /// Runs of pages of a pageblock that exist and are not free, ascending.
    #[must_use]
    pub fn held_runs(&self, pfn: Pfn) -> Vec<PfnRange> {
        let mut held = Vec::new();
        let Some(info) = self.pageblock(pfn) else {
            return held;
        };
        let pageblock = info.start.block(self.geometry.pageblock_order());
        for extent in self.extents(self.geometry.section_of(info.start)) {
            let mut at = extent.intersect(pageblock);
            while !at.is_empty() {
                let taken = self.run_length(at, false);
                if taken > 0 {
                    held.push(PfnRange {
                        start: at.start,
                        end: at.start + taken,
                    });
                }
                at.start += taken;
                at.start += self.run_length(at, true);
            }
        }
        held
    }

    /// Runs of free pages of a pageblock, ascending.
    #[must_use]
    pub fn free_runs(&self, pfn: Pfn) -> Vec<PfnRange> {
        let mut free = Vec::new();
        let Some(info) = self.pageblock(pfn) else {
            return free;
        };
        let mut at = info.start.block(self.geometry.pageblock_order());
        while !at.is_empty() {
            at.start += self.run_length(at, false);
            let length = self.run_length(at, true);
            if length > 0 {
                free.push(PfnRange {
                    start: at.start,
                    end: at.start + length,
                });
            }
            at.start += length;
        }
        free
    }

    /// Takes up to `nr` free blocks of `order` out of the pageblock around `pfn`, whatever
    /// its type, for pages that are to move there. None from an isolated pageblock.
    pub fn take_from_pageblock(
        &mut self,
        pfn: Pfn,
        order: Order,
        nr: usize,
        out: &mut Vec<Pfn>,
    ) -> usize {
        let Some(offset) = self.offset_of(pfn) else {
            return 0;
        };
        let (block, _) = self.buddy.shape.split(offset);
        let row = self.buddy.row(block);
        if !row.is_managed() || row.is_isolated() || order >= self.geometry.pageblock_order() {
            return 0;
        }
        let base = self.config.start.get();
        let order = u32::from(order.get());
        self.buddy
            .take_from_block(block, order, NOTHING_SPARED, nr, base, out)
    }

    /// Takes exactly this block, if all of it is free and none of it is isolated: for a
    /// place chosen beforehand, and for what a restarted daemon finds in use.
    ///
    /// # Panics
    /// If no block of that order can start there.
    pub fn take_exact(&mut self, pfn: Pfn, order: Order) -> bool {
        assert!(pfn.is_aligned(order) && order <= self.geometry.max_order());
        match self.offset_of(pfn) {
            Some(offset) => self.buddy.take_exact(offset, u32::from(order.get())),
            None => false,
        }
    }

    /// Whether the block is all free and can be handed out; false where no block of that
    /// order can start.
    #[must_use]
    pub fn is_free_block(&self, pfn: Pfn, order: Order) -> bool {
        let is_possible = pfn.is_aligned(order) && order <= self.geometry.max_order();
        let offset = self.offset_of(pfn).filter(|_| is_possible);
        offset.is_some_and(|offset| self.buddy.is_free_block(offset, u32::from(order.get())))
    }

    /// Gives a managed pageblock to the requests of a type, with all that is free in it.
    /// A wholly free one takes a wholly free buddy along. False if it is not managed.
    pub fn set_pageblock_type(&mut self, pfn: Pfn, mt: Migratetype) -> bool {
        let Some(offset) = self.offset_of(pfn) else {
            return false;
        };
        let (block, _) = self.buddy.shape.split(offset);
        let row = self.buddy.row(block);
        if row.is_managed() {
            self.buddy.move_block(block, row.with_migratetype(mt));
        }
        row.is_managed()
    }

    /// Marks a pageblock as not worth scanning, or as worth it again.
    pub fn set_skip(&mut self, pfn: Pfn, skip: bool) {
        if let Some(offset) = self.offset_of(pfn) {
            let (block, _) = self.buddy.shape.split(offset);
            let row = self.buddy.row(block);
            if row.is_managed() {
                self.buddy.set_row(block, row.with_skip(skip));
                self.has_skips |= skip;
            }
        }
    }

    /// A managed pageblock gave a scanner nothing.
    pub(crate) fn skip_block(&mut self, block: u32) {
        self.buddy
            .set_row(block, self.buddy.row(block).with_skip(true));
        self.has_skips = true;
    }

    /// Makes every pageblock worth scanning again.
    pub fn clear_skips(&mut self) {
        if !core::mem::take(&mut self.has_skips) {
            return;
        }
        for section in self.present_sections.iter().collect::<Vec<_>>() {
            for block in self.section_blocks(section) {
                let row = self.buddy.row(block);
                if row.skip() {
                    self.buddy.set_row(block, row.with_skip(false));
                }
            }
        }
    }

    /// The first page of a section that exists and is not free.
    pub(crate) fn first_held(&self, at: u32) -> Option<Pfn> {
        self.section_blocks(at)
            .filter(|&block| self.buddy.row(block).is_managed())
            .find_map(|block| {
                let start = self.absolute(self.buddy.shape.join(block, 0));
                self.held_runs(start)
                    .first()
                    .map(|run| Pfn::new(low_u32(run.start)))
            })
    }

    /// Pages at the start of `range`, inside one pageblock, that are all free or all not.
    fn run_length(&self, range: PfnRange, free: bool) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let base = u64::from(self.config.start.get());
        let (block, off) = self.buddy.shape.split(low_u32(range.start - base));
        let Some(words) = self.buddy.block_bits(block) else {
            let all_free = self.buddy.row(block).nr_free() != 0;
            return if all_free == free {
                range.nr_pages()
            } else {
                0
            };
        };
        let mut length = 0;
        let end = off + low_u32(range.nr_pages());
        let mut at = off;
        while at < end {
            let word = words[index(at >> bits::WORD_ORDER)];
            let word = if free { word } else { !word } >> (at & 63);
            let run = word.trailing_ones().min(64 - (at & 63)).min(end - at);
            length += u64::from(run);
            if run < 64 - (at & 63) {
                break;
            }
            at += run;
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{add_with_holes, bring_online, order, zone};
    use crate::{AllocFlags, OnlineOrder};

    #[test]
    fn held_and_free_runs_leave_out_what_does_not_exist() {
        let mut zone = zone();
        add_with_holes(&mut zone, 1, &[(0, 20), (24, 256)]);
        zone.online(SectionId::new(1), OnlineOrder::Pageblock)
            .unwrap();
        let range = |start, end| PfnRange { start, end };
        assert_eq!(
            zone.free_runs(Pfn::new(260)),
            [range(256, 276), range(280, 288)]
        );
        let mut out = Vec::new();
        assert_eq!(
            zone.take_from_pageblock(Pfn::new(256), Order::ZERO, 22, &mut out),
            22
        );
        assert_eq!(
            zone.held_runs(Pfn::new(256)),
            [range(256, 276), range(280, 282)]
        );
        zone.free(Pfn::new(258), Order::ZERO);
        let held = [range(256, 258), range(259, 276), range(280, 282)];
        assert_eq!(zone.held_runs(Pfn::new(256)), held);
        zone.verify().unwrap();
    }

    #[test]
    fn pages_come_from_the_pageblock_asked_for() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let mut out = Vec::new();
        let from = Pfn::new(256 + 3 * 32 + 5);
        assert_eq!(zone.take_from_pageblock(from, order(4), 9, &mut out), 2);
        assert_eq!(out, [Pfn::new(352), Pfn::new(368)]);
        assert_eq!(zone.take_from_pageblock(from, Order::ZERO, 1, &mut out), 0);
        assert_eq!(zone.pageblock(from).unwrap().nr_free, 0);
        zone.verify().unwrap();
        zone.isolate(SectionId::new(1)).unwrap();
        assert_eq!(
            zone.take_from_pageblock(Pfn::new(256), Order::ZERO, 1, &mut out),
            0
        );
    }

    #[test]
    fn an_exact_block_is_taken_or_nothing_is() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        assert!(zone.take_exact(Pfn::new(384), order(6)));
        assert!(!zone.take_exact(Pfn::new(384), order(6)));
        assert!(zone.take_exact(Pfn::new(300), order(2)));
        assert!(
            !zone.take_exact(Pfn::new(296), order(3)),
            "half of it is taken"
        );
        assert!(!zone.take_exact(Pfn::new(256), order(6)));
        assert!(zone.take_exact(Pfn::new(256), order(5)));
        assert!(!zone.take_exact(Pfn::new(700), order(0)), "not managed");
        zone.verify().unwrap();
        assert_eq!(zone.counts().lent, 64 + 4 + 32);
        let types = |zone: &Zone| zone.pagetypeinfo().rows.map(|row| row.nr_pageblocks);
        assert!(zone.set_pageblock_type(Pfn::new(300), Migratetype::Reclaimable));
        assert_eq!(types(&zone), [0, 7, 1, 0]);
        assert!(!zone.set_pageblock_type(Pfn::new(700), Migratetype::Movable));
        zone.verify().unwrap();
        zone.free(Pfn::new(300), order(2));
        zone.free(Pfn::new(256), order(5));
        zone.verify().unwrap();
        assert_eq!(
            types(&zone),
            [0, 8, 0, 0],
            "merged with the block freed last"
        );
    }

    #[test]
    fn skips_are_set_one_by_one_and_cleared_together() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        zone.set_skip(Pfn::new(300), true);
        let skipped = |zone: &Zone| {
            zone.pageblocks(SectionId::new(1))
                .filter(|block| block.skip)
                .count()
        };
        assert_eq!(skipped(&zone), 1);
        zone.alloc(Order::ZERO, Migratetype::Movable, AllocFlags::DIP)
            .unwrap();
        assert_eq!(skipped(&zone), 1, "use does not touch it");
        zone.clear_skips();
        assert_eq!(skipped(&zone), 0);
    }
}
