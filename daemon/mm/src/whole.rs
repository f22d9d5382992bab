//! Whole pageblocks: coming, going, changing sides, merging and splitting.
//!
//! From pageblock order up this is a buddy allocator as everybody draws it, with sets
//! in place of lists. Below it [`buddy`](crate::buddy) works on bits; a pageblock passes
//! between the two when its first page is taken and when its last one is back.

use crate::Migratetype;
use crate::buddy::Buddy;
use crate::num::index;
use crate::pageblock::{PoolIndex, Row};

impl Buddy {
    /// Brings pageblocks `start..end`, wholly free, into the pool of a type: rows and
    /// index words, nothing per page. `start` and `end` are multiples of the largest block.
    pub fn insert_whole(&mut self, start: u32, end: u32, mt: Migratetype) {
        let shape = self.shape;
        let pageblocks = u64::from(end - start);
        let row = Row::managed(mt).with_free(shape.block_pages, shape.pageblock_order);
        self.fill_rows(start, end, row);
        let pool = &mut self.pools[mt.index()];
        let up = shape.max_order - shape.pageblock_order;
        pool.insert_range(shape.max_order, start >> up, end >> up);
        pool.nr_blocks += pageblocks;
        pool.nr_free += pageblocks << shape.pageblock_order;
    }

    /// Brings a pageblock under management with nothing free in it.
    pub fn insert_full(&mut self, block: u32, mt: Migratetype) {
        self.set_row(block, Row::managed(mt));
        self.pools[mt.index()].nr_blocks += 1;
    }

    /// Takes an isolated pageblock out of management with all that is free in it.
    pub fn remove_block(&mut self, block: u32) {
        let row = self.row(block);
        let pool = row.pool();
        if row.nr_free() == self.shape.block_pages {
            let order = self.whole_order(pool, block);
            self.detach_whole(pool, block, order);
        } else if row.nr_free() != 0 {
            let runs = self.block_runs(block);
            self.pools[pool].add_runs(&runs.map(|count| -count));
            self.pools[pool].remove(row.largest(), block);
        }
        self.pools[pool].nr_free -= u64::from(row.nr_free());
        self.pools[pool].nr_blocks -= 1;
        self.set_row(block, Row::default());
    }

    /// Moves a pageblock's row and free pages to where its new type or isolation puts them.
    pub fn move_block(&mut self, block: u32, new: Row) {
        let old = self.row(block);
        let (from, to) = (old.pool(), new.pool());
        debug_assert_eq!(old.nr_free(), new.nr_free());
        if from == to {
            self.set_row(block, new);
            return;
        }
        let nr_free = u64::from(old.nr_free());
        self.pools[from].nr_blocks -= 1;
        self.pools[to].nr_blocks += 1;
        self.pools[from].nr_free -= nr_free;
        self.pools[to].nr_free += nr_free;
        if old.nr_free() == self.shape.block_pages {
            let order = self.whole_order(from, block);
            self.detach_whole(from, block, order);
            self.set_row(block, new);
            self.attach_whole(to, block);
        } else if old.nr_free() != 0 {
            let runs = self.block_runs(block);
            self.pools[to].add_runs(&runs);
            self.pools[from].add_runs(&runs.map(|count| -count));
            self.pools[from].remove(old.largest(), block);
            self.pools[to].insert(new.largest(), block);
            self.set_row(block, new);
        } else {
            self.set_row(block, new);
        }
    }

    /// Takes a block of pageblock order or more out of a set that has one of `found`.
    pub fn take_large(&mut self, pool: PoolIndex, order: u32, found: u32) -> u32 {
        let base = self.shape.pageblock_order;
        let first = self.pools[pool]
            .set(found)
            .first()
            .expect("the order is marked as filled");
        let start = first << (found - base);
        self.pools[pool].remove(found, first);
        for half in (order..found).rev() {
            self.pools[pool].insert(half, (start >> (half - base)) + 1);
        }
        let end = start + (1 << (order - base));
        for block in start..end {
            let row = self.row(block).with_free(0, 0);
            self.set_row(block, row);
        }
        self.pools[pool].nr_free -= 1 << order;
        start << base
    }

    /// Takes a pageblock that is wholly free.
    pub fn take_whole(&mut self, block: u32) {
        let row = self.row(block);
        let order = self.whole_order(row.pool(), block);
        self.detach_whole(row.pool(), block, order);
        self.pools[row.pool()].nr_free -= u64::from(row.nr_free());
        self.set_row(block, row.with_free(0, 0));
    }

    /// Frees a whole pageblock of which nothing was free.
    pub fn free_whole(&mut self, block: u32) {
        let row = self.row(block);
        assert!(row.is_managed(), "pageblock {block} is not managed");
        assert!(
            row.nr_free() == 0,
            "a page of pageblock {block} is free already"
        );
        let shape = self.shape;
        self.set_row(
            block,
            row.with_free(shape.block_pages, shape.pageblock_order),
        );
        self.pools[row.pool()].nr_free += u64::from(shape.block_pages);
        self.attach_whole(row.pool(), block);
    }

    /// The order of the free block that a wholly free pageblock lies in.
    pub fn whole_order(&self, pool: PoolIndex, block: u32) -> u32 {
        let base = self.shape.pageblock_order;
        (base..=self.shape.max_order)
            .find(|&order| self.pools[pool].contains(order, block >> (order - base)))
            .expect("a wholly free pageblock lies in one free block")
    }

    /// Takes a wholly free pageblock out of the free block of `order` around it; the
    /// rest of that block stays free.
    pub fn detach_whole(&mut self, pool: PoolIndex, block: u32, order: u32) {
        let base = self.shape.pageblock_order;
        self.pools[pool].remove(order, block >> (order - base));
        for half in (base..order).rev() {
            self.pools[pool].insert(half, (block >> (half - base)) ^ 1);
        }
    }

    /// Files a wholly free pageblock and merges it with its buddies. Buddies of another
    /// type are relabelled, as the kernel does, but isolated blocks keep to themselves.
    fn attach_whole(&mut self, pool: PoolIndex, block: u32) {
        let base = self.shape.pageblock_order;
        let mut order = base;
        let mut member = block;
        while order < self.shape.max_order {
            let buddy = member ^ 1;
            if self.pools[pool].contains(order, buddy) {
                self.pools[pool].remove(order, buddy);
            } else if !self.relabel_whole(pool, order, buddy, self.row(block).migratetype()) {
                break;
            }
            member >>= 1;
            order += 1;
        }
        self.pools[pool].insert(order, member);
    }

    /// If the buddy is a free block of another type, takes it out of its pool and gives
    /// its pageblocks to `pool`.
    fn relabel_whole(&mut self, pool: PoolIndex, order: u32, buddy: u32, mt: Migratetype) -> bool {
        let shape = self.shape;
        let up = order - shape.pageblock_order;
        let other = Migratetype::ALL
            .map(Migratetype::index)
            .into_iter()
            .find(|&other| other != pool && self.pools[other].contains(order, buddy));
        let Some(other) = other.filter(|_| pool == mt.index()) else {
            return false;
        };
        self.pools[other].remove(order, buddy);
        self.pools[other].nr_free -= 1 << order;
        self.pools[other].nr_blocks -= 1 << up;
        self.pools[pool].nr_free += 1 << order;
        self.pools[pool].nr_blocks += 1 << up;
        for block in buddy << up..(buddy + 1) << up {
            let row = self.row(block).with_migratetype(mt);
            self.set_row(block, row);
        }
        true
    }

    /// A detached wholly free pageblock becomes one whose pages are free one by one.
    pub fn break_whole(&mut self, pool: PoolIndex, block: u32) {
        let shape = self.shape;
        self.fill_bits(block, u64::MAX);
        for order in 0..shape.pageblock_order {
            self.pools[pool].runs[index(order)] += 1 << (shape.pageblock_order - order);
        }
    }

    /// A partly free pageblock of which the last page came home.
    pub fn heal_whole(&mut self, pool: PoolIndex, block: u32) {
        let shape = self.shape;
        for order in 0..shape.pageblock_order {
            self.pools[pool].runs[index(order)] -= 1 << (shape.pageblock_order - order);
        }
        self.attach_whole(pool, block);
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{bring_online, order, zone};
    use crate::{AllocFlags, Migratetype, Order, Pfn, SectionId};

    const DIP: AllocFlags = AllocFlags::DIP;

    #[test]
    fn a_free_buddy_of_another_type_is_merged_and_relabelled() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let low = zone.alloc(order(5), Migratetype::Movable, DIP).unwrap();
        let high = zone.alloc(order(5), Migratetype::Movable, DIP).unwrap();
        assert_eq!(high, low.buddy(order(5)));
        zone.free(high, order(5));
        // The free half changes its type and is given back as its new type.
        let mut rest = Vec::new();
        zone.rmqueue_bulk(order(6), Migratetype::Movable, 9, DIP, &mut rest);
        let page = zone
            .alloc(Order::ZERO, Migratetype::Unmovable, DIP)
            .unwrap();
        zone.free(page, Order::ZERO);
        assert_eq!(
            zone.pageblock(high).unwrap().migratetype,
            Migratetype::Unmovable
        );
        zone.free(low, order(5));
        zone.verify().unwrap();
        assert_eq!(
            zone.pageblock(high).unwrap().migratetype,
            Migratetype::Movable
        );
        assert_eq!(zone.largest_free_order(), Some(order(6)));
    }

    #[test]
    fn isolated_pageblocks_merge_among_themselves_and_come_back_as_they_were() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let page = zone
            .alloc(Order::ZERO, Migratetype::Unmovable, DIP)
            .unwrap();
        let before = zone.pagetypeinfo();
        zone.isolate(SectionId::new(1)).unwrap();
        zone.verify().unwrap();
        assert_eq!(
            zone.pagetypeinfo().rows[3].free_blocks,
            [1, 1, 1, 1, 1, 1, 3]
        );
        assert_eq!(zone.counts().free, 0);
        zone.undo_isolate(SectionId::new(1)).unwrap();
        assert_eq!(zone.pagetypeinfo(), before);
        zone.free(page, Order::ZERO);
        zone.verify().unwrap();
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn a_pageblock_with_a_free_page_is_not_freed_whole() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        zone.alloc(order(5), Migratetype::Movable, DIP).unwrap();
        zone.free(Pfn::new(256), Order::ZERO);
        zone.free(Pfn::new(256), order(5));
    }
}
