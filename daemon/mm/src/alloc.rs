//! Taking and freeing pages of a zone, above its watermarks.
//!
//! Who may free a page has been checked by the caller, so an impossible free is our own
//! mistake and panics. Where a request cannot be served, [`Shortfall`] says why.

use crate::num::index;
use crate::pageblock::ISOLATE_POOL;
use crate::{Migratetype, Order, Pfn, PfnRange, Shortfall, Zone, watermark};

/// The mark a request has to leave free pages above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// May take the last page.
    None,
    /// The part of `watermark.min` that is kept even from requests that can neither wait
    /// nor do without.
    Atomic,
    /// `watermark.min`: the ordinary request.
    #[default]
    Min,
    /// `watermark.low`, boosted: a request that would rather wake reclaim first.
    Low,
    /// `watermark.high`, boosted.
    High,
}

/// How a request may be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocFlags {
    /// Pages to leave free.
    pub mark: Mark,
    /// Pages to leave free on top of the mark (the zone's protection against the
    /// request's preferred zone).
    pub reserve_pages: u64,
    /// Refuse pieces of foreign pageblocks that are smaller than a pageblock.
    pub no_fragment: bool,
}

impl AllocFlags {
    /// Leaves `watermark.min` free.
    pub const MIN: AllocFlags = AllocFlags::to(Mark::Min);
    /// May use most of the reserve (the kernel's `GFP_ATOMIC`).
    pub const ATOMIC: AllocFlags = AllocFlags::to(Mark::Atomic);
    /// Leaves `watermark.low` free.
    pub const LOW: AllocFlags = AllocFlags::to(Mark::Low);
    /// May take the last page.
    pub const DIP: AllocFlags = AllocFlags::to(Mark::None);

    /// Leaves that mark free and takes pieces anywhere.
    #[must_use]
    pub const fn to(mark: Mark) -> AllocFlags {
        AllocFlags {
            mark,
            reserve_pages: 0,
            no_fragment: false,
        }
    }
}

impl Zone {
    /// Takes one block of any order up to the largest.
    ///
    /// # Errors
    /// [`Shortfall`] says what stood in the way; nothing is taken then.
    pub fn alloc(
        &mut self,
        order: Order,
        mt: Migratetype,
        flags: AllocFlags,
    ) -> Result<Pfn, Shortfall> {
        self.check_request(order, mt)?;
        if let Some(pfn) = self.take_above_mark(order, mt, flags) {
            return Ok(pfn);
        }
        // The last resort: what the zone's own lists hold goes home and may merge.
        if self.pcp_drain() != 0
            && let Some(pfn) = self.take_above_mark(order, mt, flags)
        {
            return Ok(pfn);
        }
        Err(self.shortfall(order, flags))
    }

    /// Takes up to `nr` blocks of one order and appends them to `out`: in as few runs
    /// as can be had without breaking a whole pageblock needlessly, each run ascending.
    /// Returns how many; 0 also where [`alloc`](Self::alloc) would say why.
    pub fn rmqueue_bulk(
        &mut self,
        order: Order,
        mt: Migratetype,
        nr: usize,
        flags: AllocFlags,
        out: &mut Vec<Pfn>,
    ) -> usize {
        if self.check_request(order, mt).is_err() {
            return 0;
        }
        let taken = self.take_bulk_above_mark(order, mt, nr, flags, out);
        if taken != 0 || nr == 0 || self.pcp_drain() == 0 {
            return taken;
        }
        self.take_bulk_above_mark(order, mt, nr, flags, out)
    }

    /// Gives one block back; it merges with its free buddies. A block in an isolated
    /// pageblock stays out of reach.
    ///
    /// # Panics
    /// If it is not a block of managed pages of this zone, or any page of it is free.
    pub fn free(&mut self, pfn: Pfn, order: Order) {
        debug_assert!(self.exists(pfn, order), "part of {pfn} is a hole");
        let pfn = self.relative(pfn, order);
        self.buddy.free_one(pfn, u32::from(order.get()));
    }

    /// Gives blocks of one order back. Ascending neighbours go home as one.
    ///
    /// # Panics
    /// As [`free`](Self::free).
    pub fn free_bulk(&mut self, pfns: &[Pfn], order: Order) {
        let range = self.reserve_range();
        assert!(order <= self.geometry.max_order());
        for &pfn in pfns {
            assert!(
                range.contains(pfn),
                "pfn {pfn} is not in zone {}",
                self.config.name
            );
            debug_assert!(self.exists(pfn, order), "part of {pfn} is a hole");
        }
        self.buddy
            .free_bulk(pfns, u32::from(order.get()), self.config.start.get());
    }

    /// Gives neighbouring pages back, from `first` on: as [`free`](Self::free) of each of them, by
    /// whole words.
    ///
    /// # Panics
    /// As [`free`](Self::free).
    pub fn free_run(&mut self, first: Pfn, nr_pages: u32) {
        let run = PfnRange::new(first, nr_pages.into());
        assert!(
            self.reserve_range().covers(run),
            "{nr_pages} pages from {first} on are not in zone {}",
            self.config.name
        );
        debug_assert!(
            (0..nr_pages).all(|at| {
                let page = first.checked_add(at);
                page.is_some_and(|page| self.exists(page, Order::ZERO))
            }),
            "a page of {nr_pages} from {first} on is a hole"
        );
        self.buddy
            .free_run(first.get() - self.config.start.get(), nr_pages);
    }

    /// Counts a block that somebody holds out of the managed pages, as a balloon does.
    /// Its section cannot go offline until [`unreserve`](Self::unreserve).
    ///
    /// # Panics
    /// If it is not a held block of this zone.
    pub fn reserve(&mut self, pfn: Pfn, order: Order) {
        let nr_pages = order.nr_pages();
        let section = self.held_block_section(pfn, order);
        let row = &mut self.sections[section];
        row.managed = row
            .managed
            .checked_sub(nr_pages)
            .expect("held pages are managed pages");
        row.reserved += nr_pages;
        self.managed -= u64::from(nr_pages);
        self.set_aside += u64::from(nr_pages);
        self.recompute_marks();
    }

    /// Counts a reserved block back in; its holder still holds it.
    ///
    /// # Panics
    /// If it is not a held block, or its section has fewer reserved pages.
    pub fn unreserve(&mut self, pfn: Pfn, order: Order) {
        let nr_pages = order.nr_pages();
        let section = self.held_block_section(pfn, order);
        let row = &mut self.sections[section];
        row.reserved = row
            .reserved
            .checked_sub(nr_pages)
            .expect("reserved pages come back once");
        row.managed += nr_pages;
        self.managed += u64::from(nr_pages);
        self.set_aside -= u64::from(nr_pages);
        self.recompute_marks();
    }

    /// What stands in the way of a request of `order` now.
    #[must_use]
    pub fn shortfall(&self, order: Order, flags: AllocFlags) -> Shortfall {
        if order > self.geometry.max_order() {
            return Shortfall::OrderTooLarge {
                max_order: self.geometry.max_order(),
            };
        }
        let free_pages = self.free_pages();
        match self.largest_free_order() {
            None => Shortfall::ZoneEmpty,
            Some(_)
                if self.allowance(flags) < u64::from(order.nr_pages())
                    && free_pages >= u64::from(order.nr_pages()) =>
            {
                Shortfall::BelowWatermark {
                    free_pages,
                    mark_pages: self.mark_pages(flags),
                }
            }
            Some(largest_order) => Shortfall::Fragmented {
                free_pages,
                largest_order,
            },
        }
    }

    /// Order of the largest block that could be handed out.
    #[must_use]
    pub fn largest_free_order(&self) -> Option<Order> {
        let max = u32::from(self.geometry.max_order().get());
        let pools = &self.buddy.pools[..ISOLATE_POOL];
        pools
            .iter()
            .filter_map(|pool| pool.largest_to(max))
            .max()
            .map(Order::from_bits)
    }

    /// Pages of the mark and reserve a request has to leave.
    pub(crate) fn mark_pages(&self, flags: AllocFlags) -> u64 {
        let marks = self.marks.watermarks;
        let mark = match flags.mark {
            Mark::None => 0,
            Mark::Atomic => watermark::atomic_mark(marks.min),
            // The boost asks for more reclaim. Nothing here is sure to bring it about, so it
            // must not keep an ordinary request from being served, as it may in the kernel.
            Mark::Min => marks.min,
            Mark::Low => marks.low + self.watermark_boost(),
            Mark::High => marks.high + self.watermark_boost(),
        };
        mark + flags.reserve_pages
    }

    /// Pages a request may take before it reaches its mark.
    #[inline]
    pub(crate) fn allowance(&self, flags: AllocFlags) -> u64 {
        self.free_pages().saturating_sub(self.mark_pages(flags))
    }

    fn take_above_mark(&mut self, order: Order, mt: Migratetype, flags: AllocFlags) -> Option<Pfn> {
        if self.allowance(flags) < u64::from(order.nr_pages()) {
            return None;
        }
        let pfn = self
            .buddy
            .rmqueue(mt, u32::from(order.get()), flags.no_fragment)?;
        Some(self.absolute(pfn))
    }

    fn take_bulk_above_mark(
        &mut self,
        order: Order,
        mt: Migratetype,
        nr: usize,
        flags: AllocFlags,
        out: &mut Vec<Pfn>,
    ) -> usize {
        let allowed = self.allowance(flags) >> order.get();
        let nr = usize::try_from(allowed).map_or(nr, |allowed| nr.min(allowed));
        if nr == 0 {
            return 0;
        }
        let base = self.config.start.get();
        self.buddy
            .rmqueue_bulk(mt, u32::from(order.get()), nr, flags.no_fragment, base, out)
    }

    pub(crate) fn check_request(&self, order: Order, mt: Migratetype) -> Result<(), Shortfall> {
        if order > self.geometry.max_order() {
            return Err(Shortfall::OrderTooLarge {
                max_order: self.geometry.max_order(),
            });
        }
        if !self.admits(mt) {
            return Err(Shortfall::WrongKind);
        }
        Ok(())
    }

    fn relative(&self, pfn: Pfn, order: Order) -> u32 {
        assert!(order <= self.geometry.max_order());
        let Some(pfn) = self.offset_of(pfn) else {
            panic!("pfn {pfn} is not in zone {}", self.config.name);
        };
        pfn
    }

    /// Whether all pages of the block exist.
    fn exists(&self, pfn: Pfn, order: Order) -> bool {
        self.section_at(pfn)
            .is_some_and(|section| match section.extents.as_deref() {
                Some(extents) => extents.iter().any(|extent| extent.covers(pfn.block(order))),
                None => true,
            })
    }

    /// The index of the section of a block that is managed or reserved and not free.
    fn held_block_section(&self, pfn: Pfn, order: Order) -> usize {
        let head = self.relative(pfn, order);
        assert!(pfn.is_aligned(order));
        for page in head..head + order.nr_pages() {
            let (block, _) = self.buddy.shape.split(page);
            assert!(
                self.buddy.row(block).is_managed(),
                "page {pfn} is not managed"
            );
            assert!(!self.is_free(self.absolute(page)), "page {pfn} is free");
        }
        index(head >> self.geometry.section_order())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{bring_online, zone};

    #[test]
    fn what_is_taken_comes_back_whole() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        assert_eq!(zone.buddyinfo(), [0, 0, 0, 0, 0, 0, 4]);
        let mut pages = Vec::new();
        let movable = Migratetype::Movable;
        let taken = zone.rmqueue_bulk(Order::ZERO, movable, 65, AllocFlags::DIP, &mut pages);
        assert_eq!(taken, 65);
        zone.verify().unwrap();
        assert_eq!(pages, (256..321).map(Pfn::new).collect::<Vec<_>>());
        assert_eq!(zone.counts().lent, 65);
        zone.free_bulk(&pages, Order::ZERO);
        zone.verify().unwrap();
        assert_eq!(zone.buddyinfo(), [0, 0, 0, 0, 0, 0, 4]);
    }

    #[test]
    fn every_order_can_be_taken_until_nothing_is_left() {
        for order in zone().geometry().orders() {
            let mut zone = zone();
            bring_online(&mut zone, 2);
            let mut blocks = Vec::new();
            while let Ok(block) = zone.alloc(order, Migratetype::Movable, AllocFlags::DIP) {
                blocks.push(block);
                zone.verify().unwrap();
            }
            assert_eq!(blocks.len(), 256 >> order.get());
            assert_eq!(
                zone.alloc(Order::ZERO, Migratetype::Unmovable, AllocFlags::DIP),
                Err(Shortfall::ZoneEmpty)
            );
            for block in blocks {
                zone.free(block, order);
                zone.verify().unwrap();
            }
            assert_eq!(zone.buddyinfo()[6], 4);
        }
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn a_double_free_is_our_own_mistake() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        zone.free(Pfn::new(256), Order::ZERO);
    }

    #[test]
    fn a_request_leaves_its_mark() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let min = zone.watermarks().min;
        assert!(min > 0);
        let mut pages = Vec::new();
        let all = zone.rmqueue_bulk(
            Order::ZERO,
            Migratetype::Movable,
            999,
            AllocFlags::MIN,
            &mut pages,
        );
        assert_eq!(all as u64, 256 - min);
        assert_eq!(
            zone.alloc(Order::ZERO, Migratetype::Movable, AllocFlags::MIN),
            Err(Shortfall::BelowWatermark {
                free_pages: min,
                mark_pages: min
            })
        );
        assert!(
            zone.alloc(Order::ZERO, Migratetype::Movable, AllocFlags::DIP)
                .is_ok()
        );
    }

    #[test]
    fn the_reserve_is_for_requests_that_cannot_wait() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let min = zone.watermarks().min;
        let take = |zone: &mut Zone, flags| {
            let mut pages = Vec::new();
            zone.rmqueue_bulk(Order::ZERO, Migratetype::Movable, 999, flags, &mut pages);
            zone.counts().free
        };
        assert_eq!(take(&mut zone, AllocFlags::LOW), zone.watermarks().low);
        assert_eq!(take(&mut zone, AllocFlags::MIN), min);
        let left = take(&mut zone, AllocFlags::ATOMIC);
        assert_eq!(left, min - min / 2 - (min - min / 2) / 4);
        assert!(0 < left && left < min);
        assert_eq!(take(&mut zone, AllocFlags::DIP), 0);
    }

    #[test]
    fn scattered_pages_are_named_fragmented() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let mut pages = Vec::new();
        zone.rmqueue_bulk(
            Order::ZERO,
            Migratetype::Movable,
            256,
            AllocFlags::DIP,
            &mut pages,
        );
        for &page in pages.iter().step_by(2) {
            zone.free(page, Order::ZERO);
        }
        zone.verify().unwrap();
        assert_eq!(
            zone.shortfall(Order::new(6).unwrap(), AllocFlags::DIP),
            Shortfall::Fragmented {
                free_pages: 128,
                largest_order: Order::ZERO
            }
        );
    }
}
