//! Many blocks of one order in one visit of each pageblock.
//!
//! A visit changes the words of a pageblock first and settles its row, its place in
//! the index and the zone's counts once, at the end. Knows no fallback: what a pool
//! has not, it does not give.

use crate::bits::{self, Tally, WORD_ORDER};
use crate::buddy::Buddy;
use crate::num::{index, low_bits, to_u32};
use crate::pageblock::{PoolIndex, Row};

/// No free run is this large.
pub(crate) const NOTHING_SPARED: u32 = u32::MAX;

impl Buddy {
    /// Takes up to `nr` blocks from a pool, in runs as long as can be had without
    /// breaking a wholly free pageblock while a partly free one has any.
    /// Pushes pfns plus `base`; returns how many.
    pub fn take_bulk(
        &mut self,
        pool: PoolIndex,
        order: u32,
        nr: usize,
        base: u32,
        out: &mut Vec<crate::Pfn>,
    ) -> usize {
        let mut left = nr;
        while left > 0 {
            if order >= WORD_ORDER {
                let Some(pfn) = self.take_one(pool, order) else {
                    break;
                };
                out.push(crate::Pfn::new(base + pfn));
                left -= 1;
                continue;
            }
            let Some(found) = self.choose(pool, order, left) else {
                break;
            };
            let block = self.open(pool, found);
            left -= self.take_in_block(pool, block, order, NOTHING_SPARED, left, base, out);
        }
        nr - left
    }

    /// Takes up to `nr` blocks of an order below the pageblock's out of one given pageblock,
    /// and breaks no free run of order `spare` or larger for them.
    pub fn take_from_block(
        &mut self,
        block: u32,
        order: u32,
        spare: u32,
        nr: usize,
        base: u32,
        out: &mut Vec<crate::Pfn>,
    ) -> usize {
        let mut left = nr;
        while left > 0 {
            let row = self.row(block);
            if row.nr_free() == 0 || row.largest() < order {
                break;
            }
            if row.nr_free() == self.shape.block_pages && spare <= self.shape.pageblock_order {
                break;
            }
            self.open_block(block);
            let taken = if order < WORD_ORDER {
                self.take_in_block(row.pool(), block, order, spare, left, base, out)
            } else if let Some(pfn) = self.take_in_open(row.pool(), block, order, spare) {
                out.push(crate::Pfn::new(base + pfn));
                1
            } else {
                0
            };
            if taken == 0 {
                break;
            }
            left -= taken;
        }
        nr - left
    }

    /// Frees blocks of one order; neighbours that follow one another go home together.
    ///
    /// # Panics
    /// If any page is free already or not managed.
    pub fn free_bulk(&mut self, pfns: &[crate::Pfn], order: u32, base: u32) {
        let mut rest = pfns;
        while let Some((&first, tail)) = rest.split_first() {
            let first = first.get() - base;
            let (block, _) = self.shape.split(first);
            let in_block = |pfn: &&crate::Pfn| self.shape.split(pfn.get() - base).0 == block;
            let is_alone = !tail.first().as_ref().is_some_and(in_block);
            if order >= WORD_ORDER || is_alone {
                self.free_one(first, order);
                rest = tail;
            } else {
                rest = self.free_in_block(block, rest, order, base);
            }
        }
    }

    /// Frees neighbouring pages, a pageblock at a time.
    ///
    /// # Panics
    /// If any page is free already or not managed.
    pub fn free_run(&mut self, first: u32, nr_pages: u32) {
        let (mut at, mut left) = (first, nr_pages);
        while left > 0 {
            let (block, off) = self.shape.split(at);
            let nr_here = left.min(self.shape.block_pages - off);
            if nr_here == self.shape.block_pages {
                self.free_one(at, self.shape.pageblock_order);
            } else {
                self.free_part(block, off, nr_here);
            }
            at += nr_here;
            left -= nr_here;
        }
    }

    /// Frees some neighbouring pages of one pageblock.
    fn free_part(&mut self, block: u32, off: u32, nr_pages: u32) {
        let row = self.begin_free(block);
        let end = off + nr_pages;
        let mut at = off;
        let masks = core::iter::from_fn(|| {
            (at < end).then(|| {
                let first = at & 63;
                let nr_here = (64 - first).min(end - at);
                let word = index(at >> WORD_ORDER);
                at += nr_here;
                (word, low_bits(nr_here) << first)
            })
        });
        self.free_masks(block, row, masks);
    }

    /// Frees the pages of a pageblock that the masks of its words name.
    fn free_masks(&mut self, block: u32, row: Row, masks: impl Iterator<Item = (usize, u64)>) {
        let shape = self.shape;
        let words = Self::words(self.bits_mut(), shape, block);
        let mut tally: Tally = [0; 16];
        let mut nr_free = row.nr_free();
        for (word, mask) in masks {
            let at = word & (shape.block_words - 1);
            let before = words[at];
            assert!(
                before & mask == 0,
                "a page of word {at} of pageblock {block} is free already"
            );
            let after = before | mask;
            words[at] = after;
            tally_change(&mut tally, before, after, shape.pageblock_order);
            if after == u64::MAX {
                bits::tally_groups(&mut tally, words, at, shape.pageblock_order, 1);
            }
            nr_free += mask.count_ones();
        }
        let largest = if nr_free == shape.block_pages {
            shape.pageblock_order
        } else {
            bits::largest_run(words, shape.pageblock_order - 1).unwrap_or(0)
        };
        let pool = row.pool();
        self.pools[pool].nr_free += u64::from(nr_free - row.nr_free());
        self.pools[pool].add_runs(&tally);
        self.refile(pool, block, row, row.with_free(nr_free, largest));
    }

    /// Which order of the index to take the next pageblock from: the smallest free run
    /// that serves all that is left, else the largest one there is in a partly free
    /// pageblock, and only then a wholly free one.
    fn choose(&self, pool: PoolIndex, order: u32, nr: usize) -> Option<u32> {
        let pool = &self.pools[pool];
        let all_in_one = order + usize::BITS - (nr - 1).leading_zeros();
        let base = self.shape.pageblock_order;
        let partly = pool.filled() & ((1 << base) - 1) & !((1 << order) - 1);
        if partly == 0 {
            return pool.smallest_from(base);
        }
        let enough = partly & (u32::MAX.checked_shl(all_in_one).unwrap_or(0));
        Some(if enough != 0 {
            enough.trailing_zeros()
        } else {
            31 - partly.leading_zeros()
        })
    }

    /// Takes up to `nr` blocks of an order below 6 out of one opened pageblock, none of
    /// them from a free run of order `spare` or larger.
    #[expect(
        clippy::too_many_arguments,
        reason = "one visit of one pageblock, in full"
    )]
    fn take_in_block(
        &mut self,
        pool: PoolIndex,
        block: u32,
        order: u32,
        spare: u32,
        nr: usize,
        base: u32,
        out: &mut Vec<crate::Pfn>,
    ) -> usize {
        let shape = self.shape;
        let row = self.row(block);
        let words = Self::words(self.bits_mut(), shape, block);
        let start = base + shape.join(block, 0);
        let mut tally: Tally = [0; 16];
        let mut left = nr;
        out.reserve(nr);
        for at in 0..words.len() {
            let before = words[at];
            let mut runs = bits::fold(before, order);
            if spare <= row.largest() {
                runs &= !bits::in_large_runs(words, at, spare);
            }
            if runs == 0 {
                continue;
            }
            let pfn = start + (to_u32(at) << WORD_ORDER);
            if before == u64::MAX {
                bits::tally_groups(&mut tally, words, at, shape.pageblock_order, -1);
            }
            let after = before & !take_in_word(runs, order, &mut left, pfn, out);
            words[at] = after;
            tally_change(&mut tally, before, after, shape.pageblock_order);
            if left == 0 {
                break;
            }
        }
        let nr_free = row.nr_free() - (to_u32(nr - left) << order);
        let largest = bits::largest_run(words, row.largest()).unwrap_or(0);
        self.pools[pool].nr_free -= u64::from(row.nr_free() - nr_free);
        self.pools[pool].add_runs(&tally);
        self.refile(pool, block, row, row.with_free(nr_free, largest));
        nr - left
    }

    /// Frees the blocks at the front of `pfns` that lie in `block`; returns the others.
    fn free_in_block<'a>(
        &mut self,
        block: u32,
        pfns: &'a [crate::Pfn],
        order: u32,
        base: u32,
    ) -> &'a [crate::Pfn] {
        let shape = self.shape;
        let row = self.begin_free(block);
        let mut rest = pfns;
        let run = low_bits(1 << order);
        let place = |pfn: &crate::Pfn| {
            let pfn = pfn.get() - base;
            assert!(
                pfn & ((1 << order) - 1) == 0,
                "no block of order {order} starts at {pfn}"
            );
            (pfn >> WORD_ORDER, pfn & 63)
        };
        // With pageblocks of 32 pages two of them share a number here, but not a block.
        let masks = core::iter::from_fn(|| {
            let first = rest
                .first()
                .filter(|p| shape.split(p.get() - base).0 == block)?;
            let (word, _) = place(first);
            let mut mask = 0;
            while let Some(pfn) = rest.first() {
                let (at, off) = place(pfn);
                if at != word || shape.split(pfn.get() - base).0 != block {
                    break;
                }
                let off = off & (shape.block_pages - 1).min(63);
                assert!(
                    mask & (run << off) == 0,
                    "page {pfn} is freed twice in one call"
                );
                mask |= run << off;
                rest = &rest[1..];
            }
            Some((index(word), mask))
        });
        self.free_masks(block, row, masks);
        rest
    }
}

/// Takes up to `left` of the runs of a word, ascending; returns their pages as bits.
#[inline]
fn take_in_word(
    runs: u64,
    order: u32,
    left: &mut usize,
    pfn: u32,
    out: &mut Vec<crate::Pfn>,
) -> u64 {
    let pages = low_bits(1 << order);
    let mut runs = runs;
    let mut taken = 0;
    if order == 0 {
        while runs != 0 && *left > 0 {
            let start = runs.trailing_zeros();
            let len = (runs >> start).trailing_ones();
            let len = u32::try_from(*left).map_or(len, |left| len.min(left));
            out.extend((pfn + start..pfn + start + len).map(crate::Pfn::new));
            let mask = low_bits(len) << start;
            runs &= !mask;
            taken |= mask;
            *left -= index(len);
        }
    } else {
        while runs != 0 && *left > 0 {
            let start = runs.trailing_zeros();
            out.push(crate::Pfn::new(pfn + start));
            runs &= runs - 1;
            taken |= pages << start;
            *left -= 1;
        }
    }
    taken
}

/// Counts the change of one word at orders below 6.
#[inline]
fn tally_change(tally: &mut Tally, before: u64, after: u64, limit: u32) {
    if before ^ after == u64::MAX {
        // All 64 pages at once: no need to fold.
        let sign = if after == 0 { -1 } else { 1 };
        for (order, count) in tally.iter_mut().enumerate().take(index(WORD_ORDER)) {
            *count += sign * (64 >> order);
        }
        // Mixed before and after is impossible unless one of them is zero.
        debug_assert!(before == 0 || after == 0);
    } else {
        bits::tally_word(tally, before, limit, -1);
        bits::tally_word(tally, after, limit, 1);
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{bring_online, order, zone};
    use crate::{AllocFlags, Migratetype, Order, Pfn, Zone};

    const MOVABLE: Migratetype = Migratetype::Movable;

    fn take(zone: &mut Zone, order: Order, nr: usize) -> Vec<Pfn> {
        let mut out = Vec::new();
        zone.rmqueue_bulk(order, MOVABLE, nr, AllocFlags::DIP, &mut out);
        zone.verify().unwrap();
        out
    }

    /// Pages 256..512 online; all taken but those listed.
    fn zone_with_free(free: &[u32]) -> Zone {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        take(&mut zone, Order::ZERO, 256);
        for &pfn in free {
            zone.free(Pfn::new(pfn), Order::ZERO);
        }
        zone
    }

    #[test]
    fn broken_pageblocks_are_used_up_before_a_whole_one_is_broken() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let first = take(&mut zone, Order::ZERO, 64);
        zone.free_bulk(&[first[3], first[40], first[41]], Order::ZERO);
        let pages = take(&mut zone, Order::ZERO, 3);
        assert_eq!(pages, [first[40], first[41], first[3]]);
        assert_eq!(zone.buddyinfo(), [0, 0, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn a_run_that_serves_all_is_preferred_to_scattered_pages() {
        let mut free: Vec<u32> = (0..8).map(|at| 257 + 4 * at).collect();
        free.extend((304..312).chain(352..368));
        let mut zone = zone_with_free(&free);
        let pages: Vec<Pfn> = (304..312).map(Pfn::new).collect();
        assert_eq!(take(&mut zone, Order::ZERO, 8), pages);
    }

    #[test]
    fn one_page_is_taken_from_the_smallest_run_around() {
        let mut zone = zone_with_free(&[264, 265, 266, 267, 270]);
        let page = zone.alloc(Order::ZERO, MOVABLE, AllocFlags::DIP);
        assert_eq!(page, Ok(Pfn::new(270)));
    }

    #[test]
    fn neighbours_freed_together_are_what_they_are_freed_apart() {
        for step in [1, 2, 3] {
            let (mut together, mut apart) = (zone_with_free(&[]), zone_with_free(&[]));
            let pages: Vec<Pfn> = (260..500).step_by(step).map(Pfn::new).collect();
            together.free_bulk(&pages, Order::ZERO);
            pages.iter().for_each(|&page| apart.free(page, Order::ZERO));
            assert_eq!(together.buddyinfo(), apart.buddyinfo());
            together.verify().unwrap();
        }
    }

    #[test]
    fn a_run_freed_at_once_is_what_its_pages_are_freed_apart() {
        for (first, nr_pages) in [
            (257, 3),
            (260, 64),
            (300, 100),
            (319, 66),
            (256, 256),
            (320, 64),
        ] {
            let (mut together, mut apart) = (zone_with_free(&[]), zone_with_free(&[]));
            together.free_run(Pfn::new(first), nr_pages);
            (first..first + nr_pages).for_each(|page| apart.free(Pfn::new(page), Order::ZERO));
            assert_eq!(together.buddyinfo(), apart.buddyinfo());
            together.verify().unwrap();
        }
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn a_free_page_in_a_run_is_our_own_mistake() {
        zone_with_free(&[300]).free_run(Pfn::new(290), 20);
    }

    #[test]
    fn larger_orders_come_aligned_and_go_home_together() {
        for nr in 1..5 {
            let mut zone = zone();
            bring_online(&mut zone, 2);
            let blocks = take(&mut zone, order(nr), 20);
            assert_eq!(blocks.len(), 20.min(256 >> nr));
            assert!(blocks.is_sorted() && blocks.iter().all(|block| block.is_aligned(order(nr))));
            zone.free_bulk(&blocks, order(nr));
            zone.verify().unwrap();
            assert_eq!(zone.buddyinfo(), [0, 0, 0, 0, 0, 0, 4]);
        }
    }

    #[test]
    #[should_panic(expected = "freed twice in one call")]
    fn a_page_twice_in_one_call_is_our_own_mistake() {
        let mut zone = zone_with_free(&[]);
        zone.free_bulk(&[Pfn::new(256), Pfn::new(257), Pfn::new(256)], Order::ZERO);
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn a_free_page_among_others_is_our_own_mistake() {
        let mut zone = zone_with_free(&[258]);
        zone.free_bulk(&[256, 257, 258].map(Pfn::new), Order::ZERO);
    }
}
