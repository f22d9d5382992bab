//! Pages that are found in use: a zone made anew over memory that somebody holds.
//!
//! A pageblock at a time, whatever its pages' orders were: the cost of a restart is by pageblocks
//! in use, not by pages.

use crate::bits;
use crate::buddy::Buddy;
use crate::num::index;
use crate::{Pfn, Zone};

impl Buddy {
    /// Takes the pages of `used`, a bit each, out of a pageblock that is wholly free.
    fn occupy(&mut self, block: u32, used: &[u64]) {
        let shape = self.shape;
        let nr_used: u32 = used.iter().map(|word| word.count_ones()).sum();
        if nr_used == 0 {
            return;
        }
        if nr_used == shape.block_pages {
            self.take_whole(block);
            return;
        }
        let row = self.row(block);
        let pool = row.pool();
        self.open_block(block);
        let before = bits::tally_block(
            Self::words(self.bits_mut(), shape, block),
            shape.pageblock_order,
        );
        let words = Self::words(self.bits_mut(), shape, block);
        for (word, used) in words.iter_mut().zip(used) {
            *word &= !used;
        }
        let after = bits::tally_block(words, shape.pageblock_order);
        let largest = bits::largest_run(words, shape.pageblock_order);
        let largest = largest.expect("a page is free");
        self.pools[pool].nr_free -= u64::from(nr_used);
        self.pools[pool].add_runs(&before.map(|count| -count));
        self.pools[pool].add_runs(&after);
        let new = row.with_free(shape.block_pages - nr_used, largest);
        self.refile(pool, block, row, new);
    }
}

impl Zone {
    /// Takes pages of the pageblock around `pfn` that somebody holds: a bit of `used` for each of
    /// its pages. False, and nothing has changed, unless the pageblock is managed and wholly free,
    /// and `used` is as long as it and no longer.
    pub fn occupy(&mut self, pfn: Pfn, used: &[u64]) -> bool {
        let shape = self.buddy.shape;
        let Some(offset) = self.offset_of(pfn) else {
            return false;
        };
        let (block, _) = shape.split(offset);
        let row = self.buddy.row(block);
        let is_free = row.is_managed() && row.nr_free() == shape.block_pages;
        let nr_bits = index(shape.block_pages);
        let is_fitting = used.len() == nr_bits.div_ceil(64)
            && used
                .last()
                .is_some_and(|last| nr_bits.is_multiple_of(64) || last >> (nr_bits % 64) == 0);
        if is_free && is_fitting {
            self.buddy.occupy(block, used);
        }
        is_free && is_fitting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{bring_online, zone};
    use crate::{AllocFlags, Migratetype, Order};

    #[test]
    fn what_is_occupied_is_what_taking_each_page_leaves() {
        for used in [0u64, 1, 0b1010_0110, 0xffff_0000, 0xffff_ffff, 1 << 31] {
            let (mut at_once, mut one_by_one) = (zone(), zone());
            for zone in [&mut at_once, &mut one_by_one] {
                bring_online(zone, 2);
                bring_online(zone, 3);
            }
            for block in [512u32, 544, 800] {
                assert!(at_once.occupy(Pfn::new(block + 3), &[used]));
                at_once.verify().unwrap();
                for page in (0..32).filter(|page| used >> page & 1 == 1) {
                    assert!(one_by_one.take_exact(Pfn::new(block + page), Order::ZERO));
                }
            }
            assert_eq!(at_once.counts(), one_by_one.counts());
            assert_eq!(at_once.buddyinfo(), one_by_one.buddyinfo());
            for page in 512..1024 {
                let page = Pfn::new(page);
                assert_eq!(at_once.is_free(page), one_by_one.is_free(page));
            }
        }
    }

    #[test]
    fn a_pageblock_in_use_and_bits_beyond_it_are_refused() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        assert!(!zone.occupy(Pfn::new(256), &[1 << 32]));
        assert!(!zone.occupy(Pfn::new(256), &[1, 1]));
        assert!(!zone.occupy(Pfn::new(512), &[1]), "absent");
        assert!(!zone.occupy(Pfn::new(0), &[1]), "outside");
        let page = zone.alloc(Order::ZERO, Migratetype::Movable, AllocFlags::DIP);
        assert!(!zone.occupy(page.unwrap(), &[1]));
        zone.verify().unwrap();
    }
}
