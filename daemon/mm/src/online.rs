//! Pages come under management and leave it: online, isolate, offline.
//!
//! Online frees whole pageblocks and touches no page; `OnlineOrder::Page` is the other
//! arm, kept to be measured. Isolation is a bit beside the pageblock's type, so that
//! undoing it needs no memory of what was before. The states and the two outer phases
//! are [`hotplug`](crate::hotplug).

use crate::num::{index, low_u32};
use crate::{Migratetype, Order, Pfn, PfnRange, SectionError, SectionId, SectionState, Zone};

/// In which units a section's pages are freed when it comes online.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnlineOrder {
    /// Whole pageblocks (in blocks of `MAX_PAGE_ORDER`, which are whole pageblocks too).
    #[default]
    Pageblock,
    /// Page by page through the page lists, merging upward: what old kernels did.
    Page,
}

/// What an online brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Onlined {
    /// Pageblocks that have pages.
    pub nr_pageblocks: u64,
    /// Pages that are managed and free now.
    pub nr_pages: u64,
    /// Free blocks gained, by order `0..=MAX_PAGE_ORDER`.
    pub blocks_by_order: Vec<u64>,
}

impl Zone {
    /// Brings an offline section's pages to the free lists, as movable pageblocks.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn online(
        &mut self,
        section: SectionId,
        order: OnlineOrder,
    ) -> Result<Onlined, SectionError> {
        let at = self.expect_state(section, SectionState::Offline)?;
        let blocks = self.section_blocks(at);
        if order == OnlineOrder::Page {
            // What is listed of other sections must not be counted as gained here.
            self.pcp_drain();
        }
        let before = self.free_blocks_movable();
        let is_whole = self.sections[index(at)].is_whole();
        match order {
            OnlineOrder::Pageblock if is_whole => {
                self.buddy
                    .insert_whole(blocks.start, blocks.end, Migratetype::Movable);
            }
            OnlineOrder::Pageblock => self.online_extents(at, Self::free_aligned),
            OnlineOrder::Page => {
                self.online_extents(at, Self::free_page_by_page);
                self.pcp_drain_section(section);
            }
        }
        let row = &mut self.sections[index(at)];
        row.state = SectionState::Online;
        row.managed = row.present;
        let nr_pages = u64::from(row.present);
        self.managed += nr_pages;
        self.contiguity.nr_whole_sections += u64::from(is_whole);
        self.contiguity_changed();
        self.restart.forget_positions();
        self.recompute_marks();
        let gained = self.free_blocks_movable();
        let blocks_by_order = gained
            .iter()
            .zip(&before)
            .map(|(now, then)| now - then)
            .collect();
        let nr_pageblocks = blocks
            .filter(|&block| self.buddy.row(block).is_managed())
            .count();
        Ok(Onlined {
            nr_pageblocks: nr_pageblocks as u64,
            nr_pages,
            blocks_by_order,
        })
    }

    /// Puts all pageblocks of an online section out of reach, and calls its pages home
    /// from the zone's own lists. What is freed into it later stays out of reach.
    /// Returns the pages still held.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn isolate(&mut self, section: SectionId) -> Result<u64, SectionError> {
        let at = self.expect_state(section, SectionState::Online)?;
        self.set_isolated(at, true);
        self.sections[index(at)].state = SectionState::GoingOffline;
        self.pcp_drain_section(section);
        Ok(self.held_pages(at))
    }

    /// Gives an isolated section back exactly as it was: types and free lists.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn undo_isolate(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::GoingOffline)?;
        self.set_isolated(at, false);
        self.sections[index(at)].state = SectionState::Online;
        Ok(())
    }

    /// Takes an isolated section out of management, once all of it is free.
    ///
    /// # Errors
    /// [`SectionError::Busy`] while pages are held; also
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn finish_offline(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::GoingOffline)?;
        let nr_held = self.held_pages(at);
        if nr_held != 0 {
            let first = self.first_held(at).expect("a held page is not free");
            return Err(SectionError::Busy {
                section,
                first,
                nr_held,
            });
        }
        for block in self.section_blocks(at) {
            if self.buddy.row(block).is_managed() {
                self.buddy.remove_block(block);
            }
        }
        self.buddy.drop_bits(at);
        let row = &mut self.sections[index(at)];
        row.state = SectionState::Offline;
        let managed = u64::from(core::mem::take(&mut row.managed));
        let is_whole = row.is_whole();
        self.managed = self
            .managed
            .checked_sub(managed)
            .expect("a zone manages its sections' pages");
        self.contiguity.nr_whole_sections -= u64::from(is_whole);
        self.contiguity_changed();
        self.restart.forget_positions();
        self.recompute_marks();
        Ok(())
    }

    /// Manages the pageblocks of a section that have pages, and frees each extent.
    fn online_extents(&mut self, at: u32, free: fn(&mut Zone, PfnRange)) {
        let pageblock = self.geometry.pageblock_order();
        for extent in self.extents(self.section_id(at)) {
            let base = u64::from(self.config.start.get());
            let first = low_u32(extent.start - base) >> pageblock.get();
            let last = low_u32(extent.end - 1 - base) >> pageblock.get();
            for block in first..=last {
                if !self.buddy.row(block).is_managed() {
                    self.buddy.insert_full(block, Migratetype::Movable);
                }
            }
            free(self, extent);
        }
    }

    /// Frees a range in the largest aligned blocks.
    fn free_aligned(&mut self, range: PfnRange) {
        let max = u32::from(self.geometry.max_order().get());
        let mut at = range.start;
        while at < range.end {
            let fits = (range.end - at).ilog2();
            let order = Order::from_bits(at.trailing_zeros().min(fits).min(max));
            self.free(Pfn::new(low_u32(at)), order);
            at += u64::from(order.nr_pages());
        }
    }

    /// Frees a range page by page through the page lists; each page merges by itself.
    fn free_page_by_page(&mut self, range: PfnRange) {
        for pfn in range.start..range.end {
            self.pcp_put(Pfn::new(low_u32(pfn)), Order::ZERO);
        }
    }

    fn set_isolated(&mut self, at: u32, isolated: bool) {
        for block in self.section_blocks(at) {
            let row = self.buddy.row(block);
            if row.is_managed() {
                self.buddy.move_block(block, row.with_isolated(isolated));
            }
        }
    }

    fn free_blocks_movable(&self) -> Vec<u64> {
        self.buddy.pools[Migratetype::Movable.index()].free_blocks(self.buddy.shape.pageblock_order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{add_with_holes, bring_online, zone};
    use crate::{AllocFlags, Shortfall};

    const ONE: SectionId = SectionId::new(1);

    #[test]
    fn a_section_comes_online_in_whole_pageblocks() {
        let mut zone = zone();
        zone.begin_add(ONE).unwrap();
        zone.finish_add(ONE).unwrap();
        assert_eq!(zone.counts().managed, 0);
        let onlined = zone.online(ONE, OnlineOrder::Pageblock).unwrap();
        assert_eq!((onlined.nr_pageblocks, onlined.nr_pages), (8, 256));
        assert_eq!(onlined.blocks_by_order, [0, 0, 0, 0, 0, 0, 4]);
    }

    #[test]
    fn whole_sections_have_no_bits() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let with_one = zone.metadata_bytes();
        bring_online(&mut zone, 2);
        assert_eq!(zone.metadata_bytes(), with_one);
        let page = zone
            .alloc(Order::ZERO, Migratetype::Movable, AllocFlags::DIP)
            .unwrap();
        assert_eq!(
            zone.metadata_bytes(),
            with_one + 8 * 8 + 2 * 8,
            "bits, and two words of the index"
        );
        zone.free(page, Order::ZERO);
        zone.isolate(ONE).unwrap();
        zone.finish_offline(ONE).unwrap();
        assert_eq!(zone.metadata_bytes(), with_one + 4 * 8, "the bits are gone");
    }

    #[test]
    fn page_by_page_ends_the_same() {
        let mut zone = zone();
        bring_online(&mut zone, 2);
        zone.begin_add(ONE).unwrap();
        zone.finish_add(ONE).unwrap();
        let onlined = zone.online(ONE, OnlineOrder::Page).unwrap();
        assert_eq!(onlined.blocks_by_order, [0, 0, 0, 0, 0, 0, 4]);
        zone.verify().unwrap();
        assert_eq!((zone.counts().free, zone.counts().pcp), (512, 0));
    }

    #[test]
    fn the_edges_of_holes_are_freed_in_the_largest_aligned_blocks() {
        let mut zone = zone();
        add_with_holes(&mut zone, 1, &[(1, 50), (50, 60), (96, 256)]);
        assert_eq!(zone.extents(ONE).len(), 2, "extents that touch are one");
        let onlined = zone.online(ONE, OnlineOrder::Pageblock).unwrap();
        zone.verify().unwrap();
        assert_eq!((onlined.nr_pages, onlined.nr_pageblocks), (59 + 160, 7));
        // 1, 2-3, 4-7, 8-15, 16-31 | 32-47, 48-55, 56-59 | 96-127, 128-191, 192-255
        assert_eq!(onlined.blocks_by_order, [1, 1, 2, 2, 2, 1, 2]);
        assert_eq!(zone.counts().spanned, 256);
        // Pages of the hole are never handed out, and the section goes as it came.
        let mut pages = Vec::new();
        zone.rmqueue_bulk(
            Order::ZERO,
            Migratetype::Movable,
            999,
            AllocFlags::DIP,
            &mut pages,
        );
        assert_eq!(pages.len(), 219);
        assert!(
            pages
                .iter()
                .all(|page| !(316..352).contains(&page.get()) && page.get() != 256)
        );
        zone.free_bulk(&pages, Order::ZERO);
        zone.isolate(ONE).unwrap();
        zone.finish_offline(ONE).unwrap();
        zone.verify().unwrap();
        assert_eq!(zone.counts().managed, 0);
    }

    #[test]
    fn an_isolated_section_gives_nothing_and_takes_its_own_back() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let page = zone
            .alloc(Order::ZERO, Migratetype::Movable, AllocFlags::DIP)
            .unwrap();
        assert_eq!(zone.isolate(ONE), Ok(1));
        let nothing = zone.alloc(Order::ZERO, Migratetype::Movable, AllocFlags::DIP);
        assert_eq!(nothing, Err(Shortfall::ZoneEmpty));
        let busy = SectionError::Busy {
            section: ONE,
            first: page,
            nr_held: 1,
        };
        assert_eq!(zone.finish_offline(ONE), Err(busy));
        zone.free(page, Order::ZERO);
        assert_eq!((zone.counts().free, zone.isolated_free(ONE)), (0, 256));
        assert_eq!(zone.finish_offline(ONE), Ok(()));
        zone.verify().unwrap();
        assert_eq!(zone.largest_free_order(), None);
    }
}
