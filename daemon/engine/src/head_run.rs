//! Neighbouring blocks of one order, by the head of the first one and their number.
//!
//! Most of what is lent and comes home at once is one piece of memory. Whatever is done to a run is
//! done once for each pageblock that it lies in, and once for each cell; nothing else is done for
//! each block.

use hugepool_mm::{Geometry, Order, Pfn};
use hugepool_shm::word_run::WordRun;

use crate::num;
use crate::owners::place_of;
use crate::tally::Place;

/// Blocks of one order, each behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeadRun {
    /// Head of the first block.
    pub first: Pfn,
    /// At least 1.
    pub nr_blocks: u32,
}

impl HeadRun {
    pub const fn of_one(first: Pfn) -> HeadRun {
        HeadRun {
            first,
            nr_blocks: 1,
        }
    }

    /// One past the last page of it.
    #[inline]
    pub fn end(self, order: Order) -> u64 {
        u64::from(self.first.get()) + (u64::from(self.nr_blocks) << order.get())
    }

    /// The heads of its blocks, which all are pages.
    pub fn heads(self, order: Order) -> impl Iterator<Item = Pfn> {
        let first = self.first.get();
        (0..self.nr_blocks).map(move |at| Pfn::new(first + (at << order.get())))
    }

    /// Its first blocks and the others; both have some.
    pub fn split_at(self, nr_blocks: u32, order: Order) -> (HeadRun, HeadRun) {
        let front = HeadRun { nr_blocks, ..self };
        let rest = HeadRun {
            first: Pfn::new(num::saturate(front.end(order))),
            nr_blocks: self.nr_blocks - nr_blocks,
        };
        (front, rest)
    }

    /// The pieces of it that are headed in one pageblock each.
    #[inline]
    pub fn pieces(
        self,
        order: Order,
        geometry: Geometry,
    ) -> impl Iterator<Item = (Place, HeadRun)> {
        let mut rest = Some(self);
        core::iter::from_fn(move || {
            let run = rest?;
            let pageblock_pages = geometry.pageblock_pages();
            let off = run.first.get() & (pageblock_pages - 1);
            let nr_here = ((pageblock_pages - off) >> order.get()).clamp(1, run.nr_blocks);
            let (here, behind) = if nr_here < run.nr_blocks {
                let (here, behind) = run.split_at(nr_here, order);
                (here, Some(behind))
            } else {
                (run, None)
            };
            rest = behind;
            Some((place_of(geometry, here.first), here))
        })
    }
}

impl From<WordRun> for HeadRun {
    fn from(run: WordRun) -> HeadRun {
        HeadRun {
            first: Pfn::new(run.first.pfn()),
            nr_blocks: run.nr_blocks,
        }
    }
}

/// Cuts heads of one order into runs, which are added to `runs`.
pub(crate) fn cut(heads: &[Pfn], order: Order, runs: &mut Vec<HeadRun>) {
    let mut heads = heads.iter();
    let Some(&first) = heads.next() else { return };
    let step = order.nr_pages();
    let (mut run, mut next) = (HeadRun::of_one(first), first.checked_add(step));
    for &head in heads {
        if next == Some(head) {
            run.nr_blocks += 1;
        } else {
            runs.push(run);
            run = HeadRun::of_one(head);
        }
        next = head.checked_add(step);
    }
    runs.push(run);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, nr_blocks: u32) -> HeadRun {
        HeadRun {
            first: Pfn::new(first),
            nr_blocks,
        }
    }

    #[test]
    fn heads_are_cut_where_they_do_not_follow_and_pieces_where_a_pageblock_ends() {
        let order = Order::new(1).unwrap();
        let heads = [6, 8, 10, 14, 62, 64].map(Pfn::new);
        let mut runs = Vec::new();
        cut(&heads, order, &mut runs);
        assert_eq!(runs, [run(6, 3), run(14, 1), run(62, 2)]);
        let back: Vec<Pfn> = runs.iter().flat_map(|run| run.heads(order)).collect();
        assert_eq!(back, heads);
        // Pageblock of 32 pages, section of 128.
        let geometry = Geometry::new(12, 5, 6, 7).unwrap();
        let pieces: Vec<_> = run(62, 20).pieces(order, geometry).collect();
        let place = |section, block| Place { section, block };
        let expected = [
            (place(0, 1), run(62, 1)),
            (place(0, 2), run(64, 16)),
            (place(0, 3), run(96, 3)),
        ];
        assert_eq!(pieces, expected);
        let large = Order::new(6).unwrap();
        let pieces: Vec<_> = run(64, 2).pieces(large, geometry).collect();
        assert_eq!(
            pieces,
            [(place(0, 2), run(64, 1)), (place(1, 0), run(128, 1))]
        );
    }
}
