//! Numbers by page, for a bounded count of pages that come and go by the thousand: a table with open
//! places, whose entries move up when one before them goes.
//!
//! It is asked and changed several times for each block that is moved, and there are few entries at
//! a time: a tree took a sixth of what the engine does for a move.

use hugepool_mm::Pfn;

use crate::num;

/// An open place. No entry has the number.
const OPEN: (u32, u32) = (0, u32::MAX);

/// Numbers below `u32::MAX` by page, at most half as many as there are places.
#[derive(Clone, Debug)]
pub(crate) struct PageIndex {
    /// A power of two of them.
    places: Vec<(u32, u32)>,
    len: usize,
}

impl PageIndex {
    /// Room for `most` entries.
    pub fn new(most: u32) -> PageIndex {
        let places = num::index(most.max(1)).next_power_of_two() * 2;
        PageIndex {
            places: vec![OPEN; places],
            len: 0,
        }
    }

    /// The number of a page.
    #[inline]
    pub fn get(&self, pfn: Pfn) -> Option<u32> {
        self.find(pfn).map(|at| self.places[at].1)
    }

    /// Gives a page a number, in place of the one that it has.
    pub fn insert(&mut self, pfn: Pfn, number: u32) {
        debug_assert_ne!(number, OPEN.1);
        let mut at = self.home(pfn.get());
        while self.places[at] != OPEN && self.places[at].0 != pfn.get() {
            at = self.after(at);
        }
        if self.places[at] == OPEN {
            assert!(self.len < self.places.len() / 2, "more entries than room");
            self.len += 1;
        }
        self.places[at] = (pfn.get(), number);
    }

    /// Takes a page's number away.
    pub fn remove(&mut self, pfn: Pfn) {
        let Some(mut gap) = self.find(pfn) else {
            return;
        };
        self.len -= 1;
        let mut at = self.after(gap);
        while self.places[at] != OPEN {
            // Nearer to its home in the gap than where it is: the way to it led over the gap.
            let mask = self.places.len() - 1;
            let home = self.home(self.places[at].0);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.places[gap] = self.places[at];
                gap = at;
            }
            at = self.after(at);
        }
        self.places[gap] = OPEN;
    }

    fn find(&self, pfn: Pfn) -> Option<usize> {
        let mut at = self.home(pfn.get());
        while self.places[at] != OPEN {
            if self.places[at].0 == pfn.get() {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Where the search for a page begins: neighbours lie side by side, so a run of pages fills a run
    /// of places, and multiples of large powers of two are spread by the rest of the bits.
    fn home(&self, pfn: u32) -> usize {
        let folded = pfn ^ (pfn >> 9) ^ (pfn >> 18);
        num::index(folded) & (self.places.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Against a map, through many comings and goings of few pages, so that entries lie in each
    /// other's way. Seen to fail with the gap closed by whatever lies behind it.
    #[test]
    fn it_says_what_a_map_says() {
        let mut random = 88_172_645_463_325_252_u64;
        for spread in [0, 9, 12] {
            let (mut index, mut map) = (PageIndex::new(32), BTreeMap::new());
            for step in 0..20_000_u32 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let page = u32::try_from(random % 64).unwrap() << spread;
                let pfn = Pfn::new(page);
                if map.remove(&page).is_some() {
                    index.remove(pfn);
                } else if map.len() < 32 {
                    map.insert(page, step);
                    index.insert(pfn, step);
                }
                for at in 0..64 {
                    let pfn = at << spread;
                    assert_eq!(index.get(Pfn::new(pfn)), map.get(&pfn).copied());
                }
            }
        }
    }

    #[test]
    fn a_page_that_is_not_there_goes_without_harm() {
        let mut index = PageIndex::new(2);
        index.remove(Pfn::new(7));
        index.insert(Pfn::new(u32::MAX), 0);
        assert_eq!(index.get(Pfn::new(u32::MAX)), Some(0));
        assert_eq!(index.get(Pfn::new(0)), None);
    }
}
