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
                return true;
            }
            let row = self.row(first);
            // Pages in use are not told apart by type here, so none counts as alike.
            if row.nr_free() >= self.shape.block_pages / 2 {
                self.move_block(first, row.with_migratetype(mt));
                return true;
            }
        }
        false
    }

    /// Takes one block from the smallest sufficient chunk of another type.
    fn steal(&mut self, mt: Migratetype, order: u32) -> Option<u32> {
        (order..=self.shape.max_order)
            .find_map(|current| self.fallback_with(mt, current))
            .and_then(|other| self.take_one(other.index(), order))
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
