//! The daemon's own page lists: blocks between the buddy and the lanes.
//!
//! A list per order and type that has one, hot end at the back: frees push there and
//! takes pop there, drains go from the cold front. Decides nothing about zones; the
//! [`Zone`](crate::Zone) refills and drains. All lists share one page count.

use std::collections::VecDeque;

use crate::{Migratetype, Order, Pfn, PfnRange};

/// Orders with lists besides the pageblock's own: `0..NR_LOW_ORDERS` (the kernel's
/// `PAGE_ALLOC_COSTLY_ORDER` and below).
const NR_LOW_ORDERS: usize = 4;
/// Lists: four low orders and the pageblock's, for three types.
const NR_LISTS: usize = (NR_LOW_ORDERS + 1) * 3;

/// Page lists with a common count.
#[derive(Clone, Debug)]
pub(crate) struct Pcp {
    lists: [VecDeque<Pfn>; NR_LISTS],
    nr_pages: u64,
    pageblock_order: Order,
    /// Where the last drain stopped.
    next_list: usize,
    pub batch: u64,
    pub high: u64,
}

impl Pcp {
    pub fn new(pageblock_order: Order) -> Pcp {
        Pcp {
            lists: Default::default(),
            nr_pages: 0,
            pageblock_order,
            next_list: 0,
            batch: 1,
            high: 4,
        }
    }

    /// The list for blocks of that order and type; `None` if that order has none.
    #[inline]
    pub fn list(&self, order: Order, mt: Migratetype) -> Option<usize> {
        let slot = if order.index() < NR_LOW_ORDERS {
            order.index()
        } else if order == self.pageblock_order {
            NR_LOW_ORDERS
        } else {
            return None;
        };
        Some(slot * 3 + mt.index())
    }

    /// The order of the blocks in a list.
    fn list_order(&self, list: usize) -> Order {
        match u32::try_from(list / 3) {
            Ok(order) if list / 3 < NR_LOW_ORDERS => Order::from_bits(order),
            _ => self.pageblock_order,
        }
    }

    pub fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// Blocks to move at once for a list, at least one.
    #[inline]
    pub fn batch_blocks(&self, order: Order) -> usize {
        let blocks = (self.batch >> order.get()).max(1);
        usize::try_from(blocks).unwrap_or(usize::MAX)
    }

    #[inline]
    pub fn is_above_high(&self) -> bool {
        self.nr_pages > self.high
    }

    #[inline]
    pub fn push(&mut self, list: usize, pfn: Pfn) {
        self.lists[list].push_back(pfn);
        self.nr_pages += u64::from(self.list_order(list).nr_pages());
    }

    /// Puts blocks from the zone into a list so that they are taken in address order.
    pub fn refill(&mut self, list: usize, blocks: &[Pfn]) {
        self.lists[list].extend(blocks.iter().rev());
        self.nr_pages += (blocks.len() as u64) << self.list_order(list).get();
    }

    /// Pops up to `nr` blocks, hottest first.
    pub fn pop_bulk(&mut self, list: usize, nr: usize, out: &mut Vec<Pfn>) -> usize {
        let blocks = &mut self.lists[list];
        let taken = nr.min(blocks.len());
        out.extend(blocks.drain(blocks.len() - taken..).rev());
        self.nr_pages -= (taken as u64) << self.list_order(list).get();
        taken
    }

    /// Takes up to `nr_pages` pages from the cold ends, from `list` first and then round
    /// robin, and hands each run of blocks to `free`.
    pub fn drain(&mut self, list: usize, nr_pages: u64, mut free: impl FnMut(&[Pfn], Order)) {
        let mut left = nr_pages;
        let mut blocks = Vec::new();
        for at in
            core::iter::once(list).chain((0..NR_LISTS).map(|at| (self.next_list + at) % NR_LISTS))
        {
            if left == 0 {
                self.next_list = at;
                return;
            }
            let order = self.list_order(at);
            let wanted = left.div_ceil(u64::from(order.nr_pages()));
            let nr = usize::try_from(wanted)
                .unwrap_or(usize::MAX)
                .min(self.lists[at].len());
            if nr == 0 {
                continue;
            }
            blocks.clear();
            blocks.extend(self.lists[at].drain(..nr));
            let pages = (nr as u64) << order.get();
            self.nr_pages -= pages;
            left = left.saturating_sub(pages);
            free(&blocks, order);
        }
    }

    /// Takes out all blocks that lie in `range`.
    pub fn drain_range(&mut self, range: PfnRange, mut free: impl FnMut(Pfn, Order)) {
        for list in 0..NR_LISTS {
            let order = self.list_order(list);
            let mut nr_pages = 0;
            self.lists[list].retain(|&pfn| {
                let leaves = range.contains(pfn);
                if leaves {
                    nr_pages += u64::from(order.nr_pages());
                    free(pfn, order);
                }
                !leaves
            });
            self.nr_pages -= nr_pages;
        }
    }

    /// All blocks in the lists.
    pub fn blocks(&self) -> impl Iterator<Item = (Pfn, Order)> + '_ {
        self.lists
            .iter()
            .enumerate()
            .flat_map(move |(list, blocks)| {
                blocks.iter().map(move |&pfn| (pfn, self.list_order(list)))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcp() -> (Pcp, usize) {
        let pcp = Pcp::new(Order::new(9).unwrap());
        let list = pcp.list(Order::ZERO, Migratetype::Movable).unwrap();
        (pcp, list)
    }

    #[test]
    fn a_refill_is_taken_in_address_order_and_a_free_first() {
        let (mut pcp, list) = pcp();
        pcp.refill(list, &[Pfn::new(1), Pfn::new(2), Pfn::new(3)]);
        pcp.push(list, Pfn::new(9));
        let mut out = Vec::new();
        assert_eq!(pcp.pop_bulk(list, 3, &mut out), 3);
        assert_eq!(out, [9, 1, 2].map(Pfn::new));
        assert_eq!(pcp.nr_pages(), 1);
    }

    #[test]
    fn a_drain_goes_from_the_cold_end_and_then_round() {
        let (mut pcp, list) = pcp();
        let block = pcp
            .list(Order::new(9).unwrap(), Migratetype::Unmovable)
            .unwrap();
        pcp.push(list, Pfn::new(1));
        pcp.push(list, Pfn::new(2));
        pcp.push(block, Pfn::new(512));
        let mut drained = Vec::new();
        pcp.drain(list, 3, |blocks, order| {
            drained.push((blocks.to_vec(), order.get()))
        });
        assert_eq!(
            drained,
            [
                (vec![Pfn::new(1), Pfn::new(2)], 0),
                (vec![Pfn::new(512)], 9)
            ]
        );
        assert_eq!(pcp.nr_pages(), 0);
    }

    #[test]
    fn a_range_is_drained_from_every_list() {
        let (mut pcp, list) = pcp();
        for pfn in [5, 600, 7] {
            pcp.push(list, Pfn::new(pfn));
        }
        let mut drained = Vec::new();
        pcp.drain_range(PfnRange { start: 0, end: 512 }, |pfn, _| {
            drained.push(pfn.get())
        });
        assert_eq!((drained, pcp.nr_pages()), (vec![5, 7], 1));
    }

    #[test]
    fn orders_between_the_low_ones_and_the_pageblock_have_no_list() {
        let (pcp, _) = pcp();
        assert_eq!(pcp.list(Order::new(4).unwrap(), Migratetype::Movable), None);
        assert!(
            pcp.list(Order::new(3).unwrap(), Migratetype::Movable)
                .is_some()
        );
    }
}
