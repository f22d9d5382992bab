//! Where a request goes when the pageblocks of its own type have nothing.
//!
//! The kernel's rules: first *claim* a pageblock, looking from the largest free
//! chunk down, so that the request brings its own ground with it; only then *steal*
//! a single piece from the smallest chunk that serves, and leave the block its type.

use crate::buddy::Buddy;
use crate::{Migratetype, Pfn};

impl Buddy {
    /// Takes one block, by the type's own pool, a claim, or (unless `no_fragment`) a steal.
    pub fn rmqueue(&mut self, mt: Migratetype, order: u32, no_fragment: bool) -> Option<u32> {
        if let Some(pfn) = self.take_one(mt.index(), order) {
            return Some(pfn);
        }
        if self.claim(mt, order, no_fragment) {
            return self.take_one(mt.index(), order);
        }
        if no_fragment {
            None
        } else {
            self.steal(mt, order)
        }
    }

    /// Takes up to `nr` blocks; falls back like [`rmqueue`](Self::rmqueue).
    pub fn rmqueue_bulk(
        &mut self,
        mt: Migratetype,
        order: u32,
        nr: usize,
        no_fragment: bool,
        base: u32,
        out: &mut Vec<Pfn>,
    ) -> usize {
        let mut taken = 0;
        loop {
            taken += self.take_bulk(mt.index(), order, nr - taken, base, out);
            if taken == nr {
                return taken;
            }
            if self.claim(mt, order, no_fragment) {
                continue;
            }
            if no_fragment {
                return taken;
            }
            let Some(pfn) = self.steal(mt, order) else {
                return taken;
            };
            out.push(Pfn::new(base + pfn));
            taken += 1;
        }
    }

    /// Claims pageblocks of another type for `mt`, from the largest free chunk down.
    /// True if the pool of `mt` can now serve `order`.
    fn claim(&mut self, mt: Migratetype, order: u32, no_fragment: bool) -> bool {
        let base = self.shape.pageblock_order;
        let lowest = if no_fragment { order.max(base) } else { order };
        for current in (lowest..=self.shape.max_order).rev() {
            if !may_claim(current, base, mt) {
                return false;
            }
            let Some(other) = self.fallback_with(mt, current) else {
                continue;
            };
            let first = self.pools[other.index()].set(current).first();
            let first = first.expect("the order is marked as filled");
            if current >= base {
                self.claim_whole(other, mt, current, first);
                self.claims.nr_whole += 1;
                return true;
            }
            let row = self.row(first);
            // Pages in use are not told apart by type here, so none counts as alike.
            if row.nr_free() >= self.shape.block_pages / 2 {
                self.move_block(first, row.with_migratetype(mt));
                self.claims.nr_partial += 1;
                self.claims.since_boost += 1;
                return true;
            }
        }
        false
    }

    /// Takes one block from the smallest sufficient chunk of another type.
    fn steal(&mut self, mt: Migratetype, order: u32) -> Option<u32> {
        let other =
            (order..=self.shape.max_order).find_map(|current| self.fallback_with(mt, current))?;
        let pfn = self.take_one(other.index(), order)?;
        self.claims.nr_stolen += 1;
        Some(pfn)
    }

    /// The first fallback type that has a free chunk filed under `order`.
    fn fallback_with(&self, mt: Migratetype, order: u32) -> Option<Migratetype> {
        mt.fallbacks()
            .into_iter()
            .find(|other| self.pools[other.index()].filled() >> order & 1 == 1)
    }

    /// Gives a free block of at least pageblock order to another type outright.
    fn claim_whole(&mut self, from: Migratetype, to: Migratetype, order: u32, member: u32) {
        let up = order - self.shape.pageblock_order;
        for block in member << up..(member + 1) << up {
            let row = self.row(block).with_migratetype(to);
            self.set_row(block, row);
        }
        let pages = 1u64 << order;
        let (old, new) = (from.index(), to.index());
        self.pools[old].remove(order, member);
        self.pools[new].insert(order, member);
        self.pools[old].nr_free -= pages;
        self.pools[new].nr_free += pages;
        self.pools[old].nr_blocks -= 1 << up;
        self.pools[new].nr_blocks += 1 << up;
    }
}

/// Whether a chunk of `current` order is large enough to take its pageblock along.
fn may_claim(current: u32, pageblock_order: u32, mt: Migratetype) -> bool {
    // Unmovable and reclaimable pages pollute a block for long, so they always try to
    // have one of their own.
    current >= pageblock_order / 2 || mt != Migratetype::Movable
}

#[cfg(test)]
mod tests {
    use crate::Migratetype::{Movable, Reclaimable, Unmovable};
    use crate::fixture::{bring_online, order, zone};
    use crate::{AllocFlags, FallbackCounts, Migratetype, Order, Pfn, Zone};

    const DIP: AllocFlags = AllocFlags::DIP;

    /// All taken as movable, then these pages freed.
    fn zone_with_free(free: core::ops::Range<u32>) -> Zone {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let mut pages = Vec::new();
        zone.rmqueue_bulk(Order::ZERO, Movable, 256, DIP, &mut pages);
        free.for_each(|pfn| zone.free(Pfn::new(pfn), Order::ZERO));
        zone
    }

    fn type_of(zone: &Zone, pfn: u32) -> Migratetype {
        zone.pageblock(Pfn::new(pfn)).unwrap().migratetype
    }

    #[test]
    fn a_request_brings_its_own_ground_from_the_largest_block() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        zone.alloc(Order::ZERO, Unmovable, DIP).unwrap();
        zone.verify().unwrap();
        // Both pageblocks of the block of order 6 have changed their type.
        let rows = zone.pagetypeinfo().rows;
        assert_eq!(rows[Unmovable.index()].nr_pageblocks, 2);
        assert_eq!(rows[Unmovable.index()].free_blocks, [1, 1, 1, 1, 1, 1, 0]);
        let counts = FallbackCounts {
            nr_whole_claimed: 1,
            ..FallbackCounts::default()
        };
        assert_eq!(zone.fallback_counts(), counts);
        // The next one stays on that ground.
        let next = zone.alloc(order(3), Unmovable, DIP).unwrap();
        assert_eq!(type_of(&zone, next.get()), Unmovable);
        assert_eq!(zone.fallback_counts(), counts);
    }

    #[test]
    fn a_pageblock_that_is_half_free_is_claimed() {
        let mut zone = zone_with_free(256..272);
        zone.alloc(Order::ZERO, Reclaimable, DIP).unwrap();
        assert_eq!(type_of(&zone, 256), Reclaimable);
        assert_eq!(zone.fallback_counts().nr_partial_claimed, 1);
        assert_eq!(zone.watermark_boost(), 32);
        zone.clear_watermark_boost();
        assert_eq!(zone.watermark_boost(), 0);
        zone.verify().unwrap();
    }

    #[test]
    fn a_pageblock_less_than_half_free_keeps_its_type() {
        let mut zone = zone_with_free(256..271);
        let page = zone.alloc(Order::ZERO, Unmovable, DIP).unwrap();
        // The smallest run serves: 270 is alone.
        assert_eq!((page.get(), type_of(&zone, 256)), (270, Movable));
        assert_eq!(zone.fallback_counts().nr_stolen, 1);
        zone.verify().unwrap();
    }

    #[test]
    fn a_movable_request_does_not_claim_for_a_small_piece() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let mut pages = Vec::new();
        zone.rmqueue_bulk(Order::ZERO, Unmovable, 256, DIP, &mut pages);
        // Half of the pageblock is free, but in runs smaller than half its order.
        (256..288)
            .step_by(2)
            .for_each(|pfn| zone.free(Pfn::new(pfn), Order::ZERO));
        zone.alloc(Order::ZERO, Movable, DIP).unwrap();
        assert_eq!(type_of(&zone, 256), Unmovable);
        zone.alloc(Order::ZERO, Reclaimable, DIP).unwrap();
        assert_eq!(
            type_of(&zone, 256),
            Unmovable,
            "15 of 32 free pages are too few"
        );
        zone.free(Pfn::new(257), Order::ZERO);
        zone.alloc(Order::ZERO, Reclaimable, DIP).unwrap();
        assert_eq!(type_of(&zone, 256), Unmovable);
        (258..261).for_each(|pfn| {
            if !zone.is_free(Pfn::new(pfn)) {
                zone.free(Pfn::new(pfn), Order::ZERO);
            }
        });
        zone.alloc(Order::ZERO, Reclaimable, DIP).unwrap();
        assert_eq!(
            type_of(&zone, 256),
            Reclaimable,
            "16 of 32 are enough for it"
        );
        zone.verify().unwrap();
    }

    #[test]
    fn a_movable_request_claims_with_a_chunk_of_half_the_pageblock_order() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let mut pages = Vec::new();
        zone.rmqueue_bulk(Order::ZERO, Unmovable, 256, DIP, &mut pages);
        for start in [256, 264, 272, 280] {
            (start..start + 4).for_each(|pfn| zone.free(Pfn::new(pfn), Order::ZERO));
        }
        zone.alloc(Order::ZERO, Movable, DIP).unwrap();
        assert_eq!(type_of(&zone, 256), Movable);
        zone.verify().unwrap();
    }

    #[test]
    fn without_fragmenting_only_whole_pageblocks_are_claimed() {
        let flags = AllocFlags {
            no_fragment: true,
            ..DIP
        };
        let mut zone = zone_with_free(256..280);
        assert!(zone.alloc(Order::ZERO, Unmovable, flags).is_err());
        let mut out = Vec::new();
        assert_eq!(
            zone.rmqueue_bulk(Order::ZERO, Unmovable, 8, flags, &mut out),
            0
        );
        (280..288).for_each(|pfn| zone.free(Pfn::new(pfn), Order::ZERO));
        assert!(zone.alloc(Order::ZERO, Unmovable, flags).is_ok());
        zone.verify().unwrap();
    }

    #[test]
    fn the_first_fallback_comes_first() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let blocks = |zone: &Zone| zone.pagetypeinfo().rows.map(|row| row.nr_pageblocks);
        for (mt, expected) in [(Unmovable, [2, 6, 0, 0]), (Reclaimable, [0, 6, 2, 0])] {
            let block = zone.alloc(order(6), mt, DIP).unwrap();
            zone.free(block, order(6));
            assert_eq!(blocks(&zone), expected);
        }
        zone.alloc(order(6), Unmovable, DIP).unwrap();
        assert_eq!(blocks(&zone), [2, 6, 0, 0], "reclaimable before movable");
    }
}
