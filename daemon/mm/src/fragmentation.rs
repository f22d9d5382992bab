//! How scattered free memory is: the kernel's three numbers.
//!
//! Pure questions over counts that are kept anyway. They decide whether compaction is
//! worth it ([`restart`](crate::restart)) and tell people how a zone is doing.

use crate::num::index;
use crate::pageblock::ISOLATE_POOL;
use crate::{Order, Zone};

/// Above this index a request is taken to fail because memory is scattered
/// (`sysctl_extfrag_threshold`).
pub(crate) const THRESHOLD: u32 = 500;

/// Index of a request that would not fail.
const FITS: u32 = 1000;

impl Zone {
    /// Free pages that lie in free blocks of at least this order.
    #[must_use]
    pub fn free_pages_in(&self, order: Order) -> u64 {
        let order = u32::from(order.get());
        let base = self.buddy.shape.pageblock_order;
        let mut nr_pages = 0;
        for pool in &self.buddy.pools[..ISOLATE_POOL] {
            if order < base {
                // Wholly free pageblocks are not counted among the runs.
                let runs = u64::try_from(pool.runs[index(order)]).expect("counts of runs");
                nr_pages += runs << order;
            }
            for large in order.max(base)..=self.buddy.shape.max_order {
                nr_pages += u64::from(pool.set(large).len()) << large;
            }
        }
        nr_pages
    }

    /// Of the free memory, the part that is no use to a request of this order, in
    /// thousandths; 0 if nothing is free.
    #[must_use]
    pub fn unusable_index(&self, order: Order) -> u32 {
        let free = self.free_pages();
        let unusable = free - self.free_pages_in(order);
        ratio(unusable * 1000, free)
    }

    /// Why a request of this order would fail: towards 0 for want of memory, towards 1000
    /// because memory is scattered; `None` if it would not fail.
    #[must_use]
    pub fn fragmentation_index(&self, order: Order) -> Option<u32> {
        if self.free_pages_in(order) > 0 {
            return None;
        }
        let nr_blocks: u64 = self.buddy.pools[..ISOLATE_POOL]
            .iter()
            .map(|pool| {
                let blocks = pool.free_blocks(self.buddy.shape.pageblock_order);
                blocks.into_iter().sum::<u64>()
            })
            .sum();
        if nr_blocks == 0 {
            return Some(0);
        }
        let requested = u64::from(order.nr_pages());
        let wanted_blocks = 1000 + self.free_pages() * 1000 / requested;
        Some(FITS.saturating_sub(ratio(wanted_blocks, nr_blocks)))
    }

    /// Of the free memory, the part that lies outside of free pageblocks, in hundredths.
    #[must_use]
    pub fn fragmentation_score(&self) -> u32 {
        let free = self.free_pages();
        let scattered = free - self.free_pages_in(self.geometry.pageblock_order());
        ratio(scattered * 100, free)
    }
}

fn ratio(part: u64, whole: u64) -> u32 {
    u32::try_from(part.checked_div(whole).unwrap_or(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use crate::fixture::{bring_online, order, zone};
    use crate::{AllocFlags, Migratetype, Order, Pfn, SectionId};

    const DIP: AllocFlags = AllocFlags::DIP;

    #[test]
    fn an_empty_and_a_whole_zone_are_not_scattered() {
        let mut zone = zone();
        assert_eq!(zone.fragmentation_score(), 0);
        // Nothing at all is free: for want of memory.
        assert_eq!(zone.fragmentation_index(Order::ZERO), Some(0));
        bring_online(&mut zone, 1);
        assert_eq!(zone.free_pages_in(order(6)), 256);
        assert_eq!(zone.fragmentation_score(), 0);
        assert_eq!(zone.fragmentation_index(order(6)), None);
    }

    #[test]
    fn scattered_pages_are_told_from_too_few() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let mut pages = Vec::new();
        zone.rmqueue_bulk(Order::ZERO, Migratetype::Movable, 256, DIP, &mut pages);
        zone.free(Pfn::new(256), Order::ZERO);
        // One page is free and one block: more than half the reason is want of memory.
        assert_eq!(zone.fragmentation_index(order(5)), Some(0));
        for pfn in (258..512).step_by(2) {
            zone.free(Pfn::new(pfn), Order::ZERO);
        }
        // 128 pages free would be 4 blocks; they are 128.
        assert_eq!(zone.fragmentation_index(order(5)), Some(1000 - 5000 / 128));
        assert_eq!(zone.fragmentation_score(), 100);
        assert_eq!(zone.unusable_index(order(1)), 1000);
        assert_eq!(zone.unusable_index(Order::ZERO), 0);
        (257..288)
            .step_by(2)
            .for_each(|pfn| zone.free(Pfn::new(pfn), Order::ZERO));
        assert_eq!(zone.fragmentation_index(order(5)), None);
        assert_eq!(zone.free_pages_in(order(3)), 32);
        assert_eq!(zone.free_pages_in(Order::ZERO), zone.free_pages());
        zone.isolate(SectionId::new(1)).unwrap();
        assert_eq!(zone.free_pages_in(Order::ZERO), 0);
    }
}
