//! How much of what is free can be had in large blocks, after a million operations of all types.
//!
//! A zone of 4 GiB, four fifths in use: mostly movable blocks, some unmovable and reclaimable ones, of
//! small orders, freed and taken at random. Asked twice: at once, and with all movable blocks gone,
//! which is what compaction, offline and eviction can come to at best. Arms: blocks are filed by
//! type, as they are asked for; all as one type, by best fit alone; and linked lists without types.

use hugepool_mm::{AllocFlags, Migratetype, Order, Pfn, Zone};

use super::lists::ListCore;
use super::{NR_PAGES, Prng, full_lists, full_zone};

const OPERATIONS: u32 = 1_000_000;
/// The order that is asked for at the end.
const LARGE: u8 = 9;
/// Of ten pages in use: unmovable, movable, reclaimable.
const PARTS: [usize; 3] = [1, 8, 1];
const MOVABLE: usize = 1;
const ORDERS: [u8; 8] = [0, 0, 0, 0, 1, 2, 3, 5];

/// What blocks are taken from.
trait Core {
    fn take(&mut self, order: u8, migratetype: usize) -> Option<u32>;
    fn free(&mut self, pfn: u32, order: u8);
    fn nr_free(&self) -> u64;
}

/// A zone, and whether types are told to it.
struct Bitmap {
    zone: Zone,
    by_type: bool,
}

fn order(order: u8) -> Order {
    Order::new(order).expect("a small order")
}

impl Core for Bitmap {
    fn take(&mut self, of: u8, migratetype: usize) -> Option<u32> {
        let migratetype = if self.by_type { migratetype } else { MOVABLE };
        let migratetype = Migratetype::ALL[migratetype];
        let taken = self.zone.alloc(order(of), migratetype, AllocFlags::DIP);
        taken.ok().map(Pfn::get)
    }

    fn free(&mut self, pfn: u32, of: u8) {
        self.zone.free(Pfn::new(pfn), order(of));
    }

    fn nr_free(&self) -> u64 {
        self.zone.free_pages()
    }
}

impl Core for ListCore {
    fn take(&mut self, order: u8, _: usize) -> Option<u32> {
        ListCore::take(self, order.into(), 1)
    }

    fn free(&mut self, pfn: u32, order: u8) {
        ListCore::free(self, pfn, order.into());
    }

    fn nr_free(&self) -> u64 {
        let blocks = self.free_blocks();
        blocks.iter().zip(0..).map(|(nr, order)| nr << order).sum()
    }
}

/// Measures all arms.
pub fn high_order_after_mixed_churn() {
    let bitmap = |by_type| {
        let zone = full_zone(NR_PAGES);
        Box::new(Bitmap { zone, by_type })
    };
    let arms: [(&str, &str, Box<dyn Core>); 3] = [
        ("bitmap", "by_type", bitmap(true)),
        ("bitmap", "one", bitmap(false)),
        ("lists", "one", Box::new(full_lists(NR_PAGES))),
    ];
    for (name, types, mut core) in arms {
        let mut held = churned(core.as_mut());
        let at_once = share_in_large_blocks(core.as_mut());
        for (pfn, order) in held[MOVABLE].drain(..) {
            core.free(pfn, order);
        }
        let without_movable = share_in_large_blocks(core.as_mut());
        for (case, share) in [
            ("high_order_after_churn", at_once),
            ("high_order_after_churn_movable_gone", without_movable),
        ] {
            println!(
                r#"{{"case":"{case}","core":"{name}","types":"{types}","order":{LARGE},"unit":"share","median":{share:.4}}}"#
            );
        }
    }
}

/// Blocks in use after the operations, by type.
fn churned(core: &mut dyn Core) -> [Vec<(u32, u8)>; 3] {
    let mut prng = Prng(0x9e37_79b9_7f4a_7c15);
    let mut held: [Vec<(u32, u8)>; 3] = Default::default();
    let mut nr_held = [0_usize; 3];
    let in_use = NR_PAGES as usize / 5 * 4;
    let mut step = 0;
    while step < OPERATIONS {
        let drawn = prng.below(10);
        let mt = usize::from(drawn >= PARTS[0]) + usize::from(drawn >= PARTS[0] + PARTS[1]);
        let is_full = nr_held[mt] >= in_use / 10 * PARTS[mt];
        // Filling up at the start is no operation of the million.
        step += u32::from(is_full);
        if is_full {
            let at = prng.below(held[mt].len());
            let (pfn, order) = held[mt].swap_remove(at);
            nr_held[mt] -= 1 << order;
            core.free(pfn, order);
        }
        let order = ORDERS[prng.below(ORDERS.len())];
        if let Some(pfn) = core.take(order, mt) {
            nr_held[mt] += 1 << order;
            held[mt].push((pfn, order));
        }
    }
    held
}

/// Takes large blocks until there is none, and gives them back: their share of what is free.
fn share_in_large_blocks(core: &mut dyn Core) -> f64 {
    let nr_free = core.nr_free();
    let mut taken = Vec::new();
    while let Some(pfn) = core.take(LARGE, MOVABLE) {
        taken.push(pfn);
    }
    let nr_taken = (taken.len() as u64) << LARGE;
    taken.into_iter().for_each(|pfn| core.free(pfn, LARGE));
    nr_taken as f64 / nr_free as f64
}
