//! Pages that were in use before the simulation began: a bit each, only where a pageblock is
//! partly theirs.
//!
//! A real machine of 12 TiB has three thousand million of them, so a pageblock that is wholly
//! theirs, or not at all, costs four bytes.

use hugepool_mm::Migratetype;

const NONE: u32 = 0;
const ALL: u32 = 1;
/// Rows from here on are an index into the bits.
const FIRST: u32 = 2;
/// The row of a pageblock that is not online: no index, so that reading it ends the run.
const POISON: u32 = u32::MAX;

/// The pages of the past of one zone, by offset in its reserve.
#[derive(Clone, Debug)]
pub struct Past {
    shift: u32,
    words: usize,
    rows: Vec<u32>,
    types: Vec<u8>,
    bits: Vec<u64>,
    spare: Vec<u32>,
    nr_pages: u64,
}

impl Past {
    /// None yet, in so many pageblocks of `1 << shift` pages.
    pub fn new(shift: u32, nr_pageblocks: usize) -> Past {
        Past {
            shift,
            words: (1_usize << shift).div_ceil(64),
            rows: vec![NONE; nr_pageblocks],
            types: vec![0; nr_pageblocks],
            bits: Vec::new(),
            spare: Vec::new(),
            nr_pages: 0,
        }
    }

    /// Pages of the past in the whole zone.
    pub fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// What the past's pages of a pageblock are.
    pub fn migratetype(&self, block: usize) -> Migratetype {
        Migratetype::from_index(usize::from(self.types[block])).unwrap_or(Migratetype::Movable)
    }

    /// Says what the past's pages of a pageblock are.
    pub fn set_migratetype(&mut self, block: usize, mt: Migratetype) {
        self.types[block] = u8::try_from(mt.index()).expect("there are three");
    }

    /// Nobody may read what is said of the pageblock until it is cleared.
    pub fn poison(&mut self, block: usize) {
        assert_eq!(
            self.rows[block], NONE,
            "pageblock {block} goes, and is in use"
        );
        self.rows[block] = POISON;
    }

    /// Nothing of the pageblock is the past's.
    pub fn clear(&mut self, block: usize) {
        self.rows[block] = NONE;
    }

    /// Whether it was poisoned, and nobody has written there since.
    pub fn is_poisoned(&self, block: usize) -> bool {
        self.rows[block] == POISON
    }

    /// Pages of the past in a pageblock.
    pub fn count(&self, block: usize) -> u32 {
        match self.rows[block] {
            NONE => 0,
            ALL => 1 << self.shift,
            _ => self.view(block).iter().map(|word| word.count_ones()).sum(),
        }
    }

    /// Whether a page is the past's.
    pub fn contains(&self, page: u32) -> bool {
        let (block, off) = self.split(page);
        match self.rows[block] {
            NONE => false,
            ALL => true,
            _ => self.view(block)[off >> 6] >> (off & 63) & 1 == 1,
        }
    }

    /// Makes the pages `page..page + nr` the past's, or nobody's.
    pub fn set(&mut self, page: u32, nr: u32, is_past: bool) {
        let mut at = page;
        while at < page + nr {
            let end = (page + nr).min((at | ((1 << self.shift) - 1)) + 1);
            self.set_inside(at, end - at, is_past);
            at = end;
        }
    }

    fn set_inside(&mut self, page: u32, nr: u32, is_past: bool) {
        let (block, off) = self.split(page);
        let whole = 1 << self.shift;
        let uniform = if is_past { ALL } else { NONE };
        if self.rows[block] == uniform {
            return;
        }
        let changed = if nr == whole {
            let before = self.count(block);
            self.drop_bits(block);
            self.rows[block] = uniform;
            self.count(block).abs_diff(before)
        } else {
            self.open(block);
            let start = self.start(block);
            let end = off + usize::try_from(nr).expect("a pageblock is small");
            let mut changed = 0;
            for at in off..end {
                let bit = 1 << (at & 63);
                let word = &mut self.bits[start + (at >> 6)];
                changed += u32::from((*word & bit != 0) != is_past);
                *word = if is_past { *word | bit } else { *word & !bit };
            }
            let full = u64::MAX >> (64 - whole.min(64));
            let wanted = if is_past { full } else { 0 };
            if self.view(block).iter().all(|word| *word == wanted) {
                self.drop_bits(block);
                self.rows[block] = uniform;
            }
            changed
        };
        if is_past {
            self.nr_pages += u64::from(changed);
        } else {
            self.nr_pages -= u64::from(changed);
        }
    }

    /// Runs of pages of the past in a pageblock, ascending: first page and length.
    pub fn runs(&self, block: usize) -> Vec<(u32, u32)> {
        let whole = 1_u32 << self.shift;
        let base = u32::try_from(block).expect("pageblocks of 2^32 pages") << self.shift;
        match self.rows[block] {
            NONE => Vec::new(),
            ALL => vec![(base, whole)],
            _ => {
                let view = self.view(block);
                let mut runs: Vec<(u32, u32)> = Vec::new();
                for off in 0..whole {
                    let at = usize::try_from(off).expect("a pageblock is small");
                    if view[at >> 6] >> (at & 63) & 1 == 0 {
                        continue;
                    }
                    match runs.last_mut() {
                        Some((first, nr)) if *first + *nr == base + off => *nr += 1,
                        _ => runs.push((base + off, 1)),
                    }
                }
                runs
            }
        }
    }

    fn split(&self, page: u32) -> (usize, usize) {
        let index = |value: u32| usize::try_from(value).expect("32 bits fit");
        (
            index(page >> self.shift),
            index(page & ((1 << self.shift) - 1)),
        )
    }

    fn start(&self, block: usize) -> usize {
        usize::try_from(self.rows[block] - FIRST).expect("32 bits fit") * self.words
    }

    fn view(&self, block: usize) -> &[u64] {
        let start = self.start(block);
        &self.bits[start..start + self.words]
    }

    fn open(&mut self, block: usize) {
        let fill = match self.rows[block] {
            NONE => 0,
            ALL => u64::MAX,
            _ => return,
        };
        let slot = self.spare.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.bits.len() / self.words).expect("fewer than pageblocks");
            self.bits.resize(self.bits.len() + self.words, 0);
            slot
        });
        self.rows[block] = FIRST + slot;
        let start = self.start(block);
        self.bits[start..start + self.words].fill(fill);
        if self.shift < 6 {
            self.bits[start] &= (1 << (1 << self.shift)) - 1;
        }
    }

    fn drop_bits(&mut self, block: usize) {
        if self.rows[block] >= FIRST {
            self.spare.push(self.rows[block] - FIRST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_kept_only_for_parts_of_pageblocks() {
        let mut past = Past::new(9, 4);
        past.set(512, 1024, true);
        assert_eq!((past.nr_pages(), past.bits.len()), (1024, 0));
        past.set(600, 3, false);
        assert_eq!((past.nr_pages(), past.bits.len()), (1021, 8));
        assert!(!past.contains(601) && past.contains(603));
        assert_eq!(past.runs(1), [(512, 88), (603, 421)]);
        past.set(600, 3, true);
        assert_eq!((past.count(1), past.spare.len()), (512, 1));
        past.set(1000, 48, false);
        assert_eq!((past.count(1), past.count(2)), (488, 488));
    }

    #[test]
    fn a_pageblock_may_be_smaller_than_a_word() {
        let mut past = Past::new(5, 2);
        past.set(0, 32, true);
        past.set(4, 1, false);
        assert_eq!((past.count(0), past.runs(0)), (31, vec![(0, 4), (5, 27)]));
    }
}
