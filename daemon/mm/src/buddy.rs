//! The free pages of a zone: bitmaps per pageblock under an index of pageblocks.
//!
//! Takes and frees blocks of any order; knows types as pools, and knows nothing of
//! fallback, sections or watermarks. One writer, so counts are exact at all times.
//! The rows are [`pageblock`](crate::pageblock), the bit work [`bits`](crate::bits),
//! the index [`pool`](crate::pool); batches are [`bulk`](crate::bulk), and what only
//! concerns whole pageblocks is [`whole`](crate::whole).
//!
//! Shape: a pageblock is *full* (nothing free), *partly free* or *wholly free*. Only
//! a partly free one has bits that mean anything; they are written when it becomes
//! so. Hence a wholly free pageblock costs nothing per page, and onlining writes rows.
//! Pfns here are relative to the start of the zone.

use crate::Geometry;
use crate::bits::{self, Tally, WORD_ORDER};
use crate::bulk::NOTHING_SPARED;
use crate::num::{index, low_bits};
use crate::pageblock::{NR_POOLS, PoolIndex, Row};
use crate::pool::Pool;

/// The sizes the core needs, unpacked once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub pageblock_order: u32,
    pub max_order: u32,
    /// Pages of a pageblock.
    pub block_pages: u32,
    /// Words of a pageblock's bitmap.
    pub block_words: usize,
    /// log2 of the pageblocks of a section.
    pub section_shift: u32,
}

impl Shape {
    pub fn new(geometry: Geometry) -> Shape {
        let pageblock_order = u32::from(geometry.pageblock_order().get());
        Shape {
            pageblock_order,
            max_order: u32::from(geometry.max_order().get()),
            block_pages: 1 << pageblock_order,
            block_words: 1 << pageblock_order.saturating_sub(WORD_ORDER),
            section_shift: u32::from(geometry.section_order()) - pageblock_order,
        }
    }

    /// The pageblock of a page, and the page's offset in it.
    #[inline]
    pub fn split(self, pfn: u32) -> (u32, u32) {
        (pfn >> self.pageblock_order, pfn & (self.block_pages - 1))
    }

    #[inline]
    pub fn join(self, block: u32, off: u32) -> u32 {
        (block << self.pageblock_order) + off
    }
}

/// Free pages, and the rows of all pageblocks.
#[derive(Clone, Debug)]
pub(crate) struct Buddy {
    pub shape: Shape,
    /// [`Row`]s as words: zeroed memory straight from the system is not touched.
    rows: Vec<u32>,
    /// The bits of a section's pageblocks, taken when the first of them is broken.
    bits: Vec<Option<Box<[u64]>>>,
    pub pools: [Pool; NR_POOLS],
    pub claims: Claims,
}

/// How often requests left the pageblocks of their type.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claims {
    /// Free blocks of at least pageblock order that changed their type.
    pub nr_whole: u64,
    /// Partly free pageblocks that changed their type.
    pub nr_partial: u64,
    /// Blocks taken out of pageblocks that kept their type.
    pub nr_stolen: u64,
    /// `nr_partial` since the watermark boost was cleared.
    pub since_boost: u64,
}

impl Buddy {
    /// No pageblock is managed yet.
    pub fn new(geometry: Geometry, nr_sections: u32) -> Buddy {
        let shape = Shape::new(geometry);
        let nr_blocks = nr_sections << shape.section_shift;
        let pool = || Pool::new(nr_blocks, shape.pageblock_order, shape.max_order);
        Buddy {
            shape,
            rows: vec![0; index(nr_blocks)],
            bits: vec![None; index(nr_sections)],
            pools: [pool(), pool(), pool(), pool()],
            claims: Claims::default(),
        }
    }

    #[inline]
    pub fn row(&self, block: u32) -> Row {
        Row::from_word(self.rows[index(block)])
    }

    #[inline]
    pub fn set_row(&mut self, block: u32, row: Row) {
        self.rows[index(block)] = row.word();
    }

    /// Gives pageblocks `start..end` the same row.
    pub fn fill_rows(&mut self, start: u32, end: u32, row: Row) {
        self.rows[index(start)..index(end)].fill(row.word());
    }

    /// Whether none of the pageblocks `start..end` has a row.
    pub fn rows_are_empty(&self, start: u32, end: u32) -> bool {
        self.rows[index(start)..index(end)]
            .iter()
            .all(|&row| row == 0)
    }

    /// The bits of a partly free pageblock.
    pub fn block_bits(&self, block: u32) -> Option<&[u64]> {
        let row = self.row(block);
        if row.nr_free() == 0 || row.nr_free() == self.shape.block_pages {
            return None;
        }
        let (section, words) = self.place(block);
        self.bits[section].as_deref().map(|bits| &bits[words])
    }

    /// Bytes of rows, bits and index that were asked of the system.
    pub fn metadata_bytes(&self) -> u64 {
        let bits: u64 = self
            .bits
            .iter()
            .flatten()
            .map(|bits| bits.len() as u64 * 8)
            .sum();
        let index: u64 = self.pools.iter().map(Pool::metadata_bytes).sum();
        self.rows.len() as u64 * 4 + self.bits.len() as u64 * 16 + bits + index
    }

    /// Gives the bits of a section back to the system; none of its blocks is partly free.
    pub fn drop_bits(&mut self, section: u32) {
        self.bits[index(section)] = None;
    }

    /// Takes one block from a pool, from the smallest free run that has room.
    pub fn take_one(&mut self, pool: PoolIndex, order: u32) -> Option<u32> {
        let found = self.pools[pool].smallest_from(order)?;
        if order >= self.shape.pageblock_order {
            return Some(self.take_large(pool, order, found));
        }
        let block = self.open(pool, found);
        let taken = self.take_in_open(pool, block, order, NOTHING_SPARED);
        Some(taken.expect("the index says there is a free run"))
    }

    /// Takes the best block out of an opened pageblock that has a free run for it; `None`
    /// if all such runs are of order `spare` or larger.
    pub fn take_in_open(
        &mut self,
        pool: PoolIndex,
        block: u32,
        order: u32,
        spare: u32,
    ) -> Option<u32> {
        let row = self.row(block);
        let shape = self.shape;
        let words = Self::words(&mut self.bits, shape, block);
        let (off, cut_from) = if row.nr_free() == shape.block_pages {
            (0, shape.pageblock_order)
        } else {
            bits::best_fit(words, order, row.largest())?
        };
        if cut_from >= spare {
            return None;
        }
        self.take_at(pool, block, off, order, cut_from);
        Some(shape.join(block, off))
    }

    /// Whether all of a block is free and within reach.
    pub fn is_free_block(&self, pfn: u32, order: u32) -> bool {
        let shape = self.shape;
        let (block, off) = shape.split(pfn);
        if order >= shape.pageblock_order {
            let mut blocks = block..block + (1 << (order - shape.pageblock_order));
            return blocks.all(|block| {
                let row = self.row(block);
                row.nr_free() == shape.block_pages && !row.is_isolated()
            });
        }
        let row = self.row(block);
        let is_free = match self.block_bits(block) {
            Some(words) => bits::is_free_run(words, off, order),
            None => row.nr_free() != 0,
        };
        is_free && !row.is_isolated()
    }

    /// Free pages among the `nr` at `off` of a pageblock; both are multiples of a power of
    /// two that divides 64, or of 64.
    pub fn nr_free_in(&self, block: u32, off: u32, nr: u32) -> u32 {
        match self.block_bits(block) {
            Some(words) if nr < 64 => {
                (words[index(off >> WORD_ORDER)] >> (off & 63) & low_bits(nr)).count_ones()
            }
            Some(words) => words[index(off >> WORD_ORDER)..index((off + nr) >> WORD_ORDER)]
                .iter()
                .map(|word| word.count_ones())
                .sum(),
            None if self.row(block).nr_free() == 0 => 0,
            None => nr,
        }
    }

    /// Takes exactly this block, if all of it is free; isolated blocks are out of reach.
    pub fn take_exact(&mut self, pfn: u32, order: u32) -> bool {
        if !self.is_free_block(pfn, order) {
            return false;
        }
        let shape = self.shape;
        let (block, off) = shape.split(pfn);
        if order >= shape.pageblock_order {
            for block in block..block + (1 << (order - shape.pageblock_order)) {
                self.take_whole(block);
            }
            return true;
        }
        let row = self.row(block);
        self.open_block(block);
        let words = Self::words(&mut self.bits, shape, block);
        let cut_from = bits::merged_order(words, off, order, shape.pageblock_order);
        self.take_at(row.pool(), block, off, order, cut_from);
        true
    }

    /// Takes a free run of an opened pageblock that is part of a free run of `cut_from`.
    fn take_at(&mut self, pool: PoolIndex, block: u32, off: u32, order: u32, cut_from: u32) {
        let row = self.row(block);
        let shape = self.shape;
        let words = Self::words(&mut self.bits, shape, block);
        bits::take_run(words, off, order);
        let nr_free = row.nr_free() - (1 << order);
        let largest = row.largest();
        let left = if cut_from < largest {
            Some(largest)
        } else {
            bits::largest_run(words, largest)
        };
        self.pools[pool].nr_free -= 1 << order;
        self.count_run(pool, order, cut_from.min(shape.pageblock_order - 1), -1);
        self.refile(pool, block, row, row.with_free(nr_free, left.unwrap_or(0)));
    }

    /// Frees one block; it merges with its free buddies.
    ///
    /// # Panics
    /// If any page of it is free already or not managed.
    pub fn free_one(&mut self, pfn: u32, order: u32) {
        let shape = self.shape;
        assert!(
            pfn & ((1 << order) - 1) == 0,
            "no block of order {order} starts at {pfn}"
        );
        let (block, off) = shape.split(pfn);
        if order >= shape.pageblock_order {
            for block in block..block + (1 << (order - shape.pageblock_order)) {
                self.free_whole(block);
            }
            return;
        }
        let row = self.begin_free(block);
        let words = Self::words(&mut self.bits, shape, block);
        assert!(
            bits::free_run(words, off, order),
            "a page of {pfn} order {order} is free already"
        );
        let merged = bits::merged_order(words, off, order, shape.pageblock_order);
        let nr_free = row.nr_free() + (1 << order);
        let largest = if row.nr_free() == 0 {
            merged
        } else {
            merged.max(row.largest())
        };
        let pool = row.pool();
        self.pools[pool].nr_free += 1 << order;
        self.count_run(pool, order, merged.min(shape.pageblock_order - 1), 1);
        self.refile(pool, block, row, row.with_free(nr_free, largest));
    }

    /// Makes a pageblock partly free if it was wholly free, and says which block the
    /// first member of `sets[found]` is.
    pub fn open(&mut self, pool: PoolIndex, found: u32) -> u32 {
        let first = self.pools[pool]
            .set(found)
            .first()
            .expect("the order is marked as filled");
        if found < self.shape.pageblock_order {
            return first;
        }
        let block = first << (found - self.shape.pageblock_order);
        self.detach_whole(pool, block, found);
        self.break_whole(pool, block);
        block
    }

    /// Makes a given pageblock partly free if it was wholly free.
    pub fn open_block(&mut self, block: u32) {
        let row = self.row(block);
        if row.nr_free() == self.shape.block_pages {
            let order = self.whole_order(row.pool(), block);
            self.detach_whole(row.pool(), block, order);
            self.break_whole(row.pool(), block);
        }
    }

    /// Files a block that has become partly free, full or wholly free under what it is now.
    #[inline]
    pub fn refile(&mut self, pool: PoolIndex, block: u32, old: Row, new: Row) {
        let full = self.shape.block_pages;
        let (was, is) = (old.nr_free(), new.nr_free());
        self.set_row(block, new);
        let was_filed = was != 0 && was != full;
        let is_filed = is != 0 && is != full;
        if was_filed && is_filed && old.largest() == new.largest() {
            return;
        }
        // A block that was wholly free has been taken out of its set when it was opened.
        if was_filed {
            self.pools[pool].remove(old.largest(), block);
        }
        if is_filed {
            self.pools[pool].insert(new.largest(), block);
        } else if is == full {
            self.heal_whole(pool, block);
        }
    }

    /// A pageblock whose pages are about to be freed, its bits ready to take them.
    ///
    /// # Panics
    /// If it is not managed, or wholly free already.
    #[inline]
    pub fn begin_free(&mut self, block: u32) -> Row {
        let row = self.row(block);
        assert!(row.is_managed(), "pageblock {block} is not managed");
        assert!(
            row.nr_free() < self.shape.block_pages,
            "pageblock {block} is wholly free already"
        );
        if row.nr_free() == 0 {
            self.fill_bits(block, 0);
        }
        row
    }

    /// Adds or takes away a run of `order` that lies in a larger one of order `within`.
    #[inline]
    pub fn count_run(&mut self, pool: PoolIndex, order: u32, within: u32, sign: i64) {
        let runs = &mut self.pools[pool].runs;
        for (at, count) in runs.iter_mut().enumerate().take(index(within) + 1) {
            *count += sign << index(order).saturating_sub(at);
        }
    }

    /// The bits of a block, to be changed. Meaningful only while it is partly free.
    #[inline]
    pub fn words(bits: &mut [Option<Box<[u64]>>], shape: Shape, block: u32) -> &mut [u64] {
        let section = index(block >> shape.section_shift);
        let within = index(block & ((1 << shape.section_shift) - 1));
        let start = within * shape.block_words;
        let bits = bits[section]
            .as_deref_mut()
            .expect("a partly free block has bits");
        &mut bits[start..start + shape.block_words]
    }

    /// The bits of all sections, for [`words`](Self::words) beside other borrows.
    #[inline]
    pub fn bits_mut(&mut self) -> &mut [Option<Box<[u64]>>] {
        &mut self.bits
    }

    /// The free runs of a partly free block.
    pub fn block_runs(&self, block: u32) -> Tally {
        let words = self
            .block_bits(block)
            .expect("only partly free blocks are counted");
        bits::tally_block(words, self.shape.pageblock_order)
    }

    pub fn fill_bits(&mut self, block: u32, value: u64) {
        let shape = self.shape;
        let section = &mut self.bits[index(block >> shape.section_shift)];
        if section.is_none() {
            let nr_words = shape.block_words << shape.section_shift;
            *section = Some(vec![0; nr_words].into_boxed_slice());
        }
        let value = if shape.pageblock_order < WORD_ORDER {
            value & crate::num::low_bits(shape.block_pages)
        } else {
            value
        };
        Self::words(&mut self.bits, shape, block).fill(value);
    }

    /// The section of a block, and the words of the block in it.
    fn place(&self, block: u32) -> (usize, core::ops::Range<usize>) {
        let shape = self.shape;
        let within = index(block & ((1 << shape.section_shift) - 1));
        let start = within * shape.block_words;
        (
            index(block >> shape.section_shift),
            start..start + shape.block_words,
        )
    }
}
