//! Which blocks of pages are in use, as a trace tells it: blocks are split where a part is freed.

use std::collections::BTreeMap;

/// What is remembered of a block, and of a part of it.
pub trait Part: Copy {
    /// The part that begins so many pages behind the block's first.
    fn at(self, pages: u64) -> Self;
}

/// A block of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<T> {
    /// First page.
    pub start: u64,
    /// Its order.
    pub order: u8,
    /// What is remembered of it.
    pub what: T,
}

impl<T> Piece<T> {
    /// One past the last page.
    pub fn end(&self) -> u64 {
        self.start + (1 << self.order)
    }
}

/// Blocks in use, none overlapping another; each aligned to its size relative to the block it
/// was allocated as.
#[derive(Clone, Debug)]
pub struct Ledger<T> {
    held: BTreeMap<u64, (u8, T)>,
    nr_pages: u64,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Ledger {
            held: BTreeMap::new(),
            nr_pages: 0,
        }
    }
}

impl<T: Part> Ledger<T> {
    /// Pages in use.
    pub fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// All blocks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Piece<T>> + '_ {
        self.held
            .iter()
            .map(|(&start, &(order, what))| Piece { start, order, what })
    }

    /// Notes a block of which no page is in use.
    pub fn insert(&mut self, piece: Piece<T>) {
        self.nr_pages += 1 << piece.order;
        self.held.insert(piece.start, (piece.order, piece.what));
    }

    /// Takes out every page from `start` to `end` (exclusive) that is in use, as blocks.
    /// Blocks that reach over an edge are split there, and the rest of them stays.
    pub fn remove(&mut self, start: u64, end: u64) -> Vec<Piece<T>> {
        let before = self.held.range(..start).next_back();
        let first = before.map_or(start, |(&at, _)| at);
        let inside: Vec<Piece<T>> = self
            .held
            .range(first..end)
            .map(|(&start, &(order, what))| Piece { start, order, what })
            .filter(|piece| piece.end() > start)
            .collect();
        let mut gone = Vec::with_capacity(inside.len());
        for piece in inside {
            self.held.remove(&piece.start);
            self.nr_pages -= 1 << piece.order;
            self.split(piece, start, end, &mut gone);
        }
        gone
    }

    fn split(&mut self, piece: Piece<T>, start: u64, end: u64, gone: &mut Vec<Piece<T>>) {
        if piece.start >= end || piece.end() <= start {
            self.insert(piece);
        } else if piece.start >= start && piece.end() <= end {
            gone.push(piece);
        } else {
            // A single page is in or out, so what is cut here has halves.
            let order = piece.order - 1;
            let half = 1 << order;
            for offset in [0, half] {
                let part = Piece {
                    start: piece.start + offset,
                    order,
                    what: piece.what.at(offset),
                };
                self.split(part, start, end, gone);
            }
        }
    }
}

/// A set of pages.
#[derive(Clone, Debug, Default)]
pub struct PageSet {
    words: BTreeMap<u64, u64>,
}

impl PageSet {
    /// Adds pages `start` to `end` (exclusive); those that were not in it yet, as runs.
    pub fn add(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut fresh: Vec<(u64, u64)> = Vec::new();
        let mut at = start;
        while at < end {
            let (index, from) = (at / 64, at % 64);
            let to = (end - index * 64).min(64);
            let word = self.words.entry(index).or_default();
            for bit in from..to {
                if *word >> bit & 1 == 0 {
                    let page = index * 64 + bit;
                    match fresh.last_mut().filter(|run| run.1 == page) {
                        Some(run) => run.1 += 1,
                        None => fresh.push((page, page + 1)),
                    }
                }
                *word |= 1 << bit;
            }
            at = index * 64 + to;
        }
        fresh
    }

    /// Numbers of the runs of `2^order` pages in which there is a page of the set, ascending.
    pub fn blocks(&self, order: u8) -> Vec<u64> {
        let mut blocks: Vec<u64> = self.words.keys().map(|word| (word * 64) >> order).collect();
        blocks.dedup();
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Part for u64 {
        fn at(self, pages: u64) -> u64 {
            self + pages
        }
    }

    fn piece(start: u64, order: u8, what: u64) -> Piece<u64> {
        Piece { start, order, what }
    }

    #[test]
    fn a_block_that_is_freed_in_part_stays_in_use_for_the_rest() {
        let mut ledger = Ledger::default();
        ledger.insert(piece(8, 3, 100));
        assert_eq!(ledger.remove(10, 11), [piece(10, 0, 102)]);
        let left: Vec<_> = ledger.iter().collect();
        assert_eq!(
            left,
            [piece(8, 1, 100), piece(11, 0, 103), piece(12, 2, 104)]
        );
        assert_eq!(ledger.nr_pages(), 7);
        assert_eq!(ledger.remove(0, 64).len(), 3);
        assert_eq!(ledger.nr_pages(), 0);
    }

    #[test]
    fn blocks_beside_a_range_are_left_alone() {
        let mut ledger = Ledger::default();
        ledger.insert(piece(0, 0, 0));
        ledger.insert(piece(1, 0, 1));
        ledger.insert(piece(4, 2, 2));
        assert_eq!(ledger.remove(1, 4), [piece(1, 0, 1)]);
        assert_eq!(ledger.remove(2, 4), []);
        assert_eq!(ledger.nr_pages(), 5);
    }

    #[test]
    fn a_page_is_fresh_once() {
        let mut pages = PageSet::default();
        assert_eq!(pages.add(60, 70), [(60, 70)]);
        assert_eq!(pages.add(58, 72), [(58, 60), (70, 72)]);
        assert_eq!(pages.add(60, 61), []);
        assert_eq!(pages.blocks(6), [0, 1]);
    }
}
