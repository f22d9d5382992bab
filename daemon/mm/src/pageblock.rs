//! The row of a pageblock: 32 bits that say everything short of which page is free.
//!
//! Shape: all zeros means "not managed". Else, from bit 0: free pages (14 bits),
//! order of the largest free run (4 bits, meaningful while something is free), type
//! (2), managed, isolated, skip, contiguity cached, contiguous.

use crate::Migratetype;
use crate::num::to_u32;

/// A pageblock's row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row(u32);

const LARGEST_SHIFT: u32 = 14;
const TYPE_SHIFT: u32 = 18;
const FREE_MASK: u32 = (1 << LARGEST_SHIFT) - 1;
const LARGEST_MASK: u32 = 0xf << LARGEST_SHIFT;
const TYPE_MASK: u32 = 3 << TYPE_SHIFT;
const MANAGED: u32 = 1 << 20;
const ISOLATED: u32 = 1 << 21;
const SKIP: u32 = 1 << 22;
const PB_CACHED: u32 = 1 << 23;
const PB_CONTIGUOUS: u32 = 1 << 24;

/// Which free blocks a search may find: one pool per type, one for isolated blocks.
pub(crate) type PoolIndex = usize;
/// The pool that no search looks into.
pub(crate) const ISOLATE_POOL: PoolIndex = 3;
/// Number of pools.
pub(crate) const NR_POOLS: usize = 4;

impl Row {
    /// A managed block of a type with nothing free in it.
    pub fn managed(mt: Migratetype) -> Row {
        Row(MANAGED | to_u32(mt.index()) << TYPE_SHIFT)
    }

    pub const fn from_word(word: u32) -> Row {
        Row(word)
    }

    pub const fn word(self) -> u32 {
        self.0
    }

    pub const fn is_managed(self) -> bool {
        self.0 & MANAGED != 0
    }

    #[inline]
    pub const fn nr_free(self) -> u32 {
        self.0 & FREE_MASK
    }

    /// Order of the largest free run; says nothing while nothing is free.
    #[inline]
    pub const fn largest(self) -> u32 {
        (self.0 & LARGEST_MASK) >> LARGEST_SHIFT
    }

    #[inline]
    pub const fn with_free(self, nr_free: u32, largest: u32) -> Row {
        debug_assert!(nr_free <= FREE_MASK && largest < 16);
        Row(self.0 & !(FREE_MASK | LARGEST_MASK) | nr_free | largest << LARGEST_SHIFT)
    }

    pub fn migratetype(self) -> Migratetype {
        match (self.0 & TYPE_MASK) >> TYPE_SHIFT {
            0 => Migratetype::Unmovable,
            1 => Migratetype::Movable,
            _ => Migratetype::Reclaimable,
        }
    }

    pub fn with_migratetype(self, mt: Migratetype) -> Row {
        Row(self.0 & !TYPE_MASK | to_u32(mt.index()) << TYPE_SHIFT)
    }

    pub const fn is_isolated(self) -> bool {
        self.0 & ISOLATED != 0
    }

    pub const fn with_isolated(self, isolated: bool) -> Row {
        Row(if isolated {
            self.0 | ISOLATED
        } else {
            self.0 & !ISOLATED
        })
    }

    /// The pool its free pages belong to.
    #[inline]
    pub const fn pool(self) -> PoolIndex {
        if self.is_isolated() {
            ISOLATE_POOL
        } else {
            ((self.0 & TYPE_MASK) >> TYPE_SHIFT) as PoolIndex
        }
    }

    pub const fn skip(self) -> bool {
        self.0 & SKIP != 0
    }

    pub const fn with_skip(self, skip: bool) -> Row {
        Row(if skip { self.0 | SKIP } else { self.0 & !SKIP })
    }

    /// The cached answer to "is it whole and in this zone", if there is one.
    #[inline]
    pub const fn contiguity(self) -> Option<bool> {
        if self.0 & PB_CACHED == 0 {
            None
        } else {
            Some(self.0 & PB_CONTIGUOUS != 0)
        }
    }

    pub const fn with_contiguity(self, answer: Option<bool>) -> Row {
        let bits = match answer {
            None => 0,
            Some(false) => PB_CACHED,
            Some(true) => PB_CACHED | PB_CONTIGUOUS,
        };
        Row(self.0 & !(PB_CACHED | PB_CONTIGUOUS) | bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let row = Row::managed(Migratetype::Reclaimable).with_free(8192, 13);
        let row = row
            .with_isolated(true)
            .with_skip(true)
            .with_contiguity(Some(true));
        assert_eq!((row.nr_free(), row.largest()), (8192, 13));
        assert_eq!(row.migratetype(), Migratetype::Reclaimable);
        assert_eq!(row.pool(), ISOLATE_POOL);
        assert!(row.skip() && row.is_managed());
        assert_eq!(row.contiguity(), Some(true));
        let row = row
            .with_isolated(false)
            .with_migratetype(Migratetype::Movable);
        assert_eq!(row.pool(), Migratetype::Movable.index());
        assert_eq!(row.with_contiguity(None).contiguity(), None);
        assert_eq!((row.nr_free(), row.largest()), (8192, 13));
    }
}
