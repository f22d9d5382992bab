//! What is free in a zone that is to be built: blocks by order and type, as the kernel lists
//! them, put into the types that we have.

use hugepool_mm::{Geometry, Migratetype, ZoneKind};

use super::plan::MOST_PAGES;
use crate::import::machine::MachineZone;

/// Orders above this one are not believed.
const MOST_ORDERS: usize = 32;

/// Types of the kernel whose pageblocks are kept for urgent requests, not handed out.
const SET_ASIDE: [&str; 2] = ["HighAtomic", "Reserve"];

/// What is free.
#[derive(Clone, Debug, PartialEq)]
pub enum Free {
    /// Everything that is managed.
    All,
    /// Blocks.
    Lists(Lists),
}

/// Free blocks and pageblocks by type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lists {
    /// For each of our types, free blocks by order.
    pub blocks: [Vec<u64>; 3],
    /// Pageblocks of each of our types; `None` if not known.
    pub pageblocks: Option<[u64; 3]>,
    /// Free pages that are set aside.
    pub set_aside: u64,
    /// The types of the free blocks are known.
    pub is_typed: bool,
}

impl Free {
    /// So many pages in the largest blocks.
    pub fn large(pages: u64, kind: ZoneKind, geometry: Geometry) -> Free {
        let mut lists = Lists::default();
        let mut left = pages;
        let mut orders = vec![0; geometry.nr_orders()];
        for order in (0..orders.len()).rev() {
            orders[order] = left >> order;
            left -= orders[order] << order;
        }
        lists.blocks[Migratetype::Movable.index()] = orders;
        lists.is_typed = kind == ZoneKind::Movable;
        Free::Lists(lists)
    }

    /// Free pages; `None` for all of them.
    pub fn nr_pages(&self) -> Option<u64> {
        match self {
            Free::All => None,
            Free::Lists(lists) => Some(lists.nr_pages()),
        }
    }

    /// A few words for people.
    pub fn describe(&self) -> String {
        match self {
            Free::All => "all of them free".to_owned(),
            Free::Lists(lists) => {
                let typed = if lists.is_typed {
                    ""
                } else {
                    " (types assumed)"
                };
                let aside = match lists.set_aside {
                    0 => String::new(),
                    pages => format!(", {pages} free ones set aside as the kernel's HighAtomic"),
                };
                format!(
                    "{} free in the listed blocks{typed}{aside}",
                    lists.nr_pages()
                )
            }
        }
    }
}

impl Lists {
    /// Pages in all blocks.
    pub fn nr_pages(&self) -> u64 {
        let pages = |blocks: &Vec<u64>| {
            blocks
                .iter()
                .enumerate()
                .map(|(order, nr)| nr << order)
                .sum::<u64>()
        };
        self.blocks.iter().map(pages).sum()
    }

    /// Blocks by order, all types.
    pub fn by_order(&self) -> Vec<u64> {
        let len = self.blocks.iter().map(Vec::len).max().unwrap_or(0);
        let nr = |order: usize| {
            self.blocks
                .iter()
                .filter_map(|blocks| blocks.get(order))
                .sum()
        };
        (0..len).map(nr).collect()
    }

    fn add(&mut self, mt: Migratetype, blocks: &[u64], max_order: usize) {
        let to = &mut self.blocks[mt.index()];
        to.resize(to.len().max(max_order + 1), 0);
        for (order, nr) in blocks.iter().enumerate() {
            // A block larger than ours can be is several of our largest.
            let extra = order.saturating_sub(max_order);
            to[order - extra] += nr << extra;
        }
    }
}

/// Which of our types a kernel's type becomes in a zone of that kind.
fn ours(name: &str, kind: ZoneKind) -> Migratetype {
    match (kind, name) {
        (ZoneKind::Movable, _) => Migratetype::Movable,
        (ZoneKind::Normal, "Unmovable") => Migratetype::Unmovable,
        (ZoneKind::Normal, "Reclaimable") => Migratetype::Reclaimable,
        (ZoneKind::Normal, _) => Migratetype::Movable,
    }
}

/// The lists of a zone; [`Free::All`] if it has none.
pub fn of(
    zone: &MachineZone,
    kind: ZoneKind,
    geometry: Geometry,
    of: &str,
    notes: &mut Vec<String>,
) -> Free {
    let max_order = geometry.max_order().index();
    let mut lists = Lists::default();
    for (name, blocks) in &zone.free_blocks_by_type {
        let blocks = numbers(blocks);
        if SET_ASIDE.contains(&name.as_str()) {
            lists.set_aside += blocks
                .iter()
                .enumerate()
                .map(|(order, nr)| nr << order)
                .sum::<u64>();
            continue;
        }
        if matches!(name.as_str(), "CMA" | "Isolate") && blocks.iter().any(|nr| *nr > 0) {
            notes.push(format!("{of}: free {name} blocks become Movable ones"));
        }
        lists.add(ours(name, kind), &blocks, max_order);
        lists.is_typed = true;
    }
    let mut pageblocks = [0; 3];
    for (name, value) in &zone.pageblocks_by_type {
        let nr = value
            .as_integer()
            .and_then(|nr| u64::try_from(nr).ok())
            .map(|nr| nr.min(MOST_PAGES))
            .unwrap_or(0);
        let mt = if SET_ASIDE.contains(&name.as_str()) {
            Migratetype::Unmovable
        } else {
            ours(name, kind)
        };
        pageblocks[mt.index()] += nr;
    }
    if pageblocks.iter().any(|nr| *nr > 0) {
        lists.pageblocks = Some(pageblocks);
    }
    if lists.is_typed {
        return Free::Lists(lists);
    }
    let Some(blocks) = &zone.free_blocks_by_order else {
        return Free::All;
    };
    let blocks: Vec<u64> = blocks
        .iter()
        .enumerate()
        .take(MOST_ORDERS)
        .map(|(order, nr)| believable(order, *nr))
        .collect();
    if kind == ZoneKind::Movable {
        lists.is_typed = true;
        lists.add(Migratetype::Movable, &blocks, max_order);
    } else {
        notes.push(format!(
            "{of}: types are not known; of its pageblocks 1 in 10 is taken as Unmovable, 1 in 20 as \
             Reclaimable, and free blocks below a pageblock lie in them in that proportion"
        ));
        share(&mut lists, &blocks, geometry);
    }
    Free::Lists(lists)
}

/// Shares free blocks of unknown type out.
fn share(lists: &mut Lists, blocks: &[u64], geometry: Geometry) {
    let pageblock = geometry.pageblock_order().index();
    let max_order = geometry.max_order().index();
    let part =
        |of: u64| move |(order, nr): (usize, &u64)| if order < pageblock { nr / of } else { 0 };
    let unmovable: Vec<u64> = blocks.iter().enumerate().map(part(10)).collect();
    let reclaimable: Vec<u64> = blocks.iter().enumerate().map(part(20)).collect();
    let movable: Vec<u64> = blocks
        .iter()
        .zip(unmovable.iter().zip(&reclaimable))
        .map(|(all, (one, other))| all - one - other)
        .collect();
    lists.add(Migratetype::Unmovable, &unmovable, max_order);
    lists.add(Migratetype::Reclaimable, &reclaimable, max_order);
    lists.add(Migratetype::Movable, &movable, max_order);
}

/// A count of free blocks; no more than a zone can have.
fn believable(order: usize, nr: i64) -> u64 {
    u64::try_from(nr).unwrap_or(0).min(MOST_PAGES >> order)
}

fn numbers(value: &toml::Value) -> Vec<u64> {
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    let numbers = items.iter().enumerate().take(MOST_ORDERS);
    numbers
        .map(|(order, item)| believable(order, item.as_integer().unwrap_or(0)))
        .collect()
}
