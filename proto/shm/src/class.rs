//! Which of a lane's caches a block belongs to: by its order and the migratetype asked for.
//!
//! Lanes cache the small orders and the pageblock order, as the kernel does; blocks of other
//! orders have no class and are served by call.

use crate::raw::{NR_MIGRATETYPES, RawMigratetype, RawPage};

/// The orders that lanes cache beside the pageblock order: 0..=3.
pub const NR_SMALL_ORDERS: u32 = 4;
/// Order slots of the classes: the small orders and the pageblock order.
pub const NR_ORDER_SLOTS: usize = NR_SMALL_ORDERS as usize + 1;
/// Classes of a lane.
pub const NR_CLASSES: usize = NR_ORDER_SLOTS * NR_MIGRATETYPES;

/// One of a lane's caches: an order slot and a migratetype.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u8);

impl Class {
    /// Order 0, unmovable: what a plain page is.
    pub const PAGE: Class = Class(0);

    /// Every class, in order of index.
    pub const ALL: [Class; NR_CLASSES] = {
        let mut all = [Class(0); NR_CLASSES];
        let mut index = 1;
        while index < NR_CLASSES {
            all[index] = Class(all[index - 1].0 + 1);
            index += 1;
        }
        all
    };

    /// The class of blocks of `order` asked for as `migratetype`, if lanes cache that order.
    #[inline]
    pub const fn new(
        order: u32,
        migratetype: RawMigratetype,
        pageblock_order: u32,
    ) -> Option<Class> {
        let slot = if order < NR_SMALL_ORDERS {
            order
        } else if order == pageblock_order {
            NR_SMALL_ORDERS
        } else {
            return None;
        };
        Class::from_index(slot as usize * NR_MIGRATETYPES + migratetype as usize - 1)
    }

    /// The class that a page word belongs to, if any.
    #[inline]
    pub const fn of(raw: RawPage, pageblock_order: u32) -> Option<Class> {
        match raw.migratetype() {
            Some(migratetype) => Class::new(raw.order(), migratetype, pageblock_order),
            None => None,
        }
    }

    /// The class at `index`, below [`NR_CLASSES`].
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "just found to be below 15")]
    pub const fn from_index(index: usize) -> Option<Class> {
        if index < NR_CLASSES {
            Some(Class(index as u8))
        } else {
            None
        }
    }

    /// Its index, below [`NR_CLASSES`]: order slot times three plus migratetype.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Every class, in order of index.
    pub fn all() -> impl ExactSizeIterator<Item = Class> + Clone {
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
            .into_iter()
            .map(Class)
    }

    /// The order of its blocks.
    pub const fn order(self, pageblock_order: u32) -> u32 {
        const SMALL: [u32; NR_SMALL_ORDERS as usize] = [0, 1, 2, 3];
        let slot = self.index() / NR_MIGRATETYPES;
        if slot < SMALL.len() {
            SMALL[slot]
        } else {
            pageblock_order
        }
    }

    /// The migratetype of its blocks.
    pub const fn migratetype(self) -> RawMigratetype {
        RawMigratetype::ALL[self.0 as usize % NR_MIGRATETYPES]
    }
}

impl core::fmt::Debug for Class {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let slot = usize::from(self.0) / NR_MIGRATETYPES;
        write!(f, "Class(order slot {slot}, {:?})", self.migratetype())
    }
}

const _: () = assert!(NR_CLASSES == 15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_is_found_again_by_its_order_and_type() {
        for pageblock_order in [5, 9, 13] {
            for (index, class) in Class::all().enumerate() {
                assert_eq!(class.index(), index);
                let order = class.order(pageblock_order);
                let found = Class::new(order, class.migratetype(), pageblock_order);
                assert_eq!(found, Some(class));
            }
        }
        assert_eq!(Class::new(4, RawMigratetype::Movable, 9), None);
        assert_eq!(Class::new(10, RawMigratetype::Movable, 9), None);
        assert_eq!(Class::from_index(NR_CLASSES), None);
    }
}
