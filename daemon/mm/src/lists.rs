//! The zone's own page lists in use: take, put, refill, drain.
//!
//! A put goes to the list of its *pageblock's* type, as the kernel's, so that a piece
//! stolen from a foreign block returns to that block's lists. Blocks of isolated
//! pageblocks never enter a list.

use crate::{AllocFlags, Migratetype, Order, Pfn, PfnRange, SectionId, Zone};

impl Zone {
    /// Takes up to `nr` blocks from the list of that order and type, refilled from the
    /// zone when it is empty. A batch and more come from the zone directly, in runs of
    /// neighbours, and from the list only what is lacking then; so do orders without one.
    /// Returns how many were appended to `out`.
    pub fn pcp_take(
        &mut self,
        order: Order,
        mt: Migratetype,
        nr: usize,
        flags: AllocFlags,
        out: &mut Vec<Pfn>,
    ) -> usize {
        let Some(list) = self.pcp.list(order, mt) else {
            return self.rmqueue_bulk(order, mt, nr, flags, out);
        };
        let batch = self.pcp.batch_blocks(order);
        if nr >= batch && nr > 1 {
            let taken = self.rmqueue_bulk(order, mt, nr, flags, out);
            return taken + self.pcp.pop_bulk(list, nr - taken, out);
        }
        let taken = self.pcp.pop_bulk(list, nr, out);
        let left = nr - taken;
        if left == 0 {
            return taken;
        }
        let mut blocks = core::mem::take(&mut self.scratch);
        blocks.clear();
        self.rmqueue_bulk(order, mt, batch, flags, &mut blocks);
        self.pcp.refill(list, &blocks);
        self.scratch = blocks;
        taken + self.pcp.pop_bulk(list, left, out)
    }

    /// Puts a block on the list of its pageblock's type; above high, a batch goes home.
    ///
    /// # Panics
    /// If it is not a block of managed pages of this zone, or (when it goes home) a
    /// page of it is free.
    pub fn pcp_put(&mut self, pfn: Pfn, order: Order) {
        let Some(at) = self.offset_of(pfn) else {
            panic!("pfn {pfn} is not in zone {}", self.config.name);
        };
        assert!(pfn.is_aligned(order));
        let row = self.buddy.row(self.buddy.shape.split(at).0);
        assert!(row.is_managed(), "page {pfn} is not managed");
        match self.pcp.list(order, row.migratetype()) {
            Some(list) if !row.is_isolated() => {
                self.pcp.push(list, pfn);
                if self.pcp.is_above_high() {
                    self.drain_from(list, self.pcp.batch);
                }
            }
            _ => self.free(pfn, order),
        }
    }

    /// All listed blocks.
    pub fn pcp_blocks(&self) -> impl Iterator<Item = (Pfn, Order)> + '_ {
        self.pcp.blocks()
    }

    /// Sends all listed blocks home; returns their pages.
    pub fn pcp_drain(&mut self) -> u64 {
        let nr_pages = self.pcp.nr_pages();
        self.drain_from(0, nr_pages);
        nr_pages
    }

    /// Sends the listed blocks of one section home; returns their pages.
    pub fn pcp_drain_section(&mut self, section: SectionId) -> u64 {
        self.pcp_drain_range(self.geometry.section_range(section))
    }

    /// Sends the listed blocks of a range home; returns their pages.
    pub fn pcp_drain_range(&mut self, range: PfnRange) -> u64 {
        let before = self.pcp.nr_pages();
        let base = self.config.start.get();
        let buddy = &mut self.buddy;
        self.pcp.drain_range(range, |pfn, order| {
            buddy.free_one(pfn.get() - base, u32::from(order.get()));
        });
        before - self.pcp.nr_pages()
    }

    /// Drains until the lists are at most `high`.
    pub(crate) fn drain_above_high(&mut self) {
        let above = self.pcp.nr_pages().saturating_sub(self.pcp.high);
        self.drain_from(0, above);
    }

    fn drain_from(&mut self, list: usize, nr_pages: u64) {
        let base = self.config.start.get();
        let buddy = &mut self.buddy;
        self.pcp.drain(list, nr_pages, |blocks, order| {
            buddy.free_bulk(blocks, u32::from(order.get()), base);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{bring_online, order, zone};

    const DIP: AllocFlags = AllocFlags::DIP;
    const MOVABLE: Migratetype = Migratetype::Movable;

    fn listed_zone() -> Zone {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        zone.set_pcp(Some((8, 20)));
        zone
    }

    #[test]
    fn a_refill_takes_a_batch_and_gives_it_in_address_order() {
        let mut zone = listed_zone();
        let mut out = Vec::new();
        assert_eq!(zone.pcp_take(Order::ZERO, MOVABLE, 3, DIP, &mut out), 3);
        assert_eq!(out, [256, 257, 258].map(Pfn::new));
        assert_eq!((zone.counts().pcp, zone.counts().lent), (5, 3));
        // More than a batch goes past the lists.
        assert_eq!(zone.pcp_take(Order::ZERO, MOVABLE, 20, DIP, &mut out), 20);
        assert_eq!((zone.counts().pcp, out.len()), (5, 23));
        assert_eq!(out[3..], (264..284).map(Pfn::new).collect::<Vec<_>>());
        zone.verify().unwrap();
    }

    #[test]
    fn lists_never_hold_more_than_high() {
        let mut zone = listed_zone();
        let mut out = Vec::new();
        zone.rmqueue_bulk(Order::ZERO, MOVABLE, 100, DIP, &mut out);
        for page in out {
            zone.pcp_put(page, Order::ZERO);
            assert!(zone.counts().pcp <= 20);
        }
        zone.verify().unwrap();
        assert_eq!(zone.counts().lent, 0);
    }

    #[test]
    fn a_stolen_page_is_listed_under_its_pageblocks_type() {
        let mut zone = listed_zone();
        let mut out = Vec::new();
        zone.rmqueue_bulk(Order::ZERO, MOVABLE, 256, DIP, &mut out);
        zone.free(Pfn::new(300), Order::ZERO);
        let stolen = zone
            .alloc(Order::ZERO, Migratetype::Unmovable, DIP)
            .unwrap();
        zone.pcp_put(stolen, Order::ZERO);
        let mut again = Vec::new();
        assert_eq!(zone.pcp_take(Order::ZERO, MOVABLE, 1, DIP, &mut again), 1);
        assert_eq!(again, [stolen]);
    }

    #[test]
    fn what_belongs_to_an_isolated_pageblock_goes_straight_home() {
        let mut zone = listed_zone();
        let mut out = Vec::new();
        zone.pcp_take(Order::ZERO, MOVABLE, 3, DIP, &mut out);
        assert_eq!(
            zone.isolate(SectionId::new(1)),
            Ok(3),
            "the lists were called home"
        );
        zone.pcp_put(out[0], Order::ZERO);
        assert_eq!((zone.counts().pcp, zone.counts().isolated), (0, 254));
        zone.verify().unwrap();
    }

    #[test]
    fn a_dry_zone_calls_its_lists_home_before_it_refuses() {
        let mut zone = listed_zone();
        let mut out = Vec::new();
        zone.rmqueue_bulk(Order::ZERO, MOVABLE, 256, DIP, &mut out);
        zone.pcp_put(out[0], Order::ZERO);
        zone.pcp_put(out[1], Order::ZERO);
        assert_eq!(
            zone.alloc(order(1), Migratetype::Unmovable, DIP),
            Ok(out[0])
        );
        zone.pcp_put(out[0], order(1));
        let mut pages = Vec::new();
        assert_eq!(
            zone.rmqueue_bulk(Order::ZERO, MOVABLE, 5, DIP, &mut pages),
            2
        );
        zone.verify().unwrap();
    }
}
