//! The index over the pageblocks of one type: which of them has what free.
//!
//! A pool knows pageblocks by number and never looks at a page. There is one per
//! migratetype and one that holds isolated blocks, which no search looks into.
//!
//! Shape: `sets[order]`, below pageblock order, holds the partly free pageblocks
//! whose *largest* free run is of that order; from pageblock order up it holds the
//! free blocks of exactly that order, numbered in units of themselves.

use crate::bits::Tally;
use crate::block_set::BlockSet;
use crate::num::index;

/// Free pageblocks of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    sets: Vec<BlockSet>,
    /// Bit `o` is set while `sets[o]` has a member.
    filled: u32,
    /// Aligned free runs in partly free pageblocks, by order (see [`Tally`]).
    pub runs: Tally,
    /// Free pages, in partly and wholly free pageblocks.
    pub nr_free: u64,
    /// Managed pageblocks that belong here, free or not.
    pub nr_blocks: u64,
}

impl Pool {
    /// An empty pool for `nr_pageblocks` pageblocks.
    pub fn new(nr_pageblocks: u32, pageblock_order: u32, max_order: u32) -> Pool {
        let bound = |order: u32| nr_pageblocks.div_ceil(1 << order.saturating_sub(pageblock_order));
        Pool {
            sets: (0..=max_order)
                .map(|order| BlockSet::new(bound(order)))
                .collect(),
            filled: 0,
            runs: [0; 16],
            nr_free: 0,
            nr_blocks: 0,
        }
    }

    /// Orders with a member in their set, as bits.
    #[inline]
    pub fn filled(&self) -> u32 {
        self.filled
    }

    pub fn set(&self, order: u32) -> &BlockSet {
        &self.sets[index(order)]
    }

    #[inline]
    pub fn contains(&self, order: u32, member: u32) -> bool {
        self.sets[index(order)].contains(member)
    }

    #[inline]
    pub fn insert(&mut self, order: u32, member: u32) {
        self.sets[index(order)].insert(member);
        self.filled |= 1 << order;
    }

    pub fn insert_range(&mut self, order: u32, start: u32, end: u32) {
        if start < end {
            self.sets[index(order)].insert_range(start, end);
            self.filled |= 1 << order;
        }
    }

    #[inline]
    pub fn remove(&mut self, order: u32, member: u32) {
        let set = &mut self.sets[index(order)];
        set.remove(member);
        if set.is_empty() {
            self.filled &= !(1 << order);
        }
    }

    /// The smallest order of at least `order` that has a member.
    #[inline]
    pub fn smallest_from(&self, order: u32) -> Option<u32> {
        let bits = self.filled >> order << order;
        (bits != 0).then(|| bits.trailing_zeros())
    }

    /// The largest order of at most `order` that has a member.
    #[inline]
    pub fn largest_to(&self, order: u32) -> Option<u32> {
        let bits = self.filled & ((2 << order) - 1);
        (bits != 0).then(|| 31 - bits.leading_zeros())
    }

    #[inline]
    pub fn add_runs(&mut self, delta: &Tally) {
        for (count, change) in self.runs.iter_mut().zip(delta) {
            *count += change;
        }
    }

    /// Free blocks of each order `0..=max_order`, as a buddy allocator would list them.
    pub fn free_blocks(&self, pageblock_order: u32) -> Vec<u64> {
        let below = (0..index(pageblock_order)).map(|order| {
            // A run that is half of a larger free run is not a block of its own.
            let blocks = self.runs[order] - 2 * self.runs[order + 1];
            u64::try_from(blocks).expect("each free run has two halves")
        });
        let above = self.sets[index(pageblock_order)..]
            .iter()
            .map(|set| u64::from(set.len()));
        below.chain(above).collect()
    }

    pub fn metadata_bytes(&self) -> u64 {
        self.sets.iter().map(BlockSet::metadata_bytes).sum()
    }
}
