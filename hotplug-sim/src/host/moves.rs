//! A held block changes its place: compaction and offline do nothing else to it.

use hugepool_mm::{Mark, Migratetype, Order, Pfn};

use super::Host;
use super::alloc::{Ask, Loc, Short, Source};
use super::held::Owner;

impl Host {
    /// Moves the block at `from` to `to`, which has been taken for it, and frees `from`.
    pub(super) fn move_to(&mut self, from: Loc, to: Loc, order: Order) {
        self.nr_moved += u64::from(order.nr_pages());
        match self.forget(from) {
            Some(entry) => {
                if entry.owner.is_counted_out() {
                    self.zones[from.zone()].zone.unreserve(from.pfn, order);
                }
                self.note(
                    to,
                    Ask {
                        owner: entry.owner,
                        order,
                        mt: entry.mt,
                        is_pinned: entry.is_pinned,
                        source: Source::Zone(to.zone()),
                        mark: Mark::None,
                    },
                );
            }
            None => self.move_past(from, to, order),
        }
        self.zones[from.zone()].zone.free(from.pfn, order);
        self.touch(from);
        self.touch(to);
    }

    /// A page of the past: it stays a bit where its new pageblock has none of another kind.
    fn move_past(&mut self, from: Loc, to: Loc, order: Order) {
        let zone = &mut self.zones[from.zone()].held;
        let page = zone.page_of(from.pfn);
        let mt = zone.past.migratetype(zone.block_of(from.pfn));
        zone.past.set(page, order.nr_pages(), false);
        let zone = &mut self.zones[to.zone()].held;
        let block = zone.block_of(to.pfn);
        if zone.past.count(block) == 0 {
            zone.past.set_migratetype(block, mt);
        }
        if zone.past.migratetype(block) == mt {
            let page = zone.page_of(to.pfn);
            zone.past.set(page, order.nr_pages(), true);
        } else {
            let source = Source::Zone(to.zone());
            self.note(
                to,
                Ask {
                    owner: Owner::PAST,
                    order,
                    mt,
                    is_pinned: false,
                    source,
                    mark: Mark::None,
                },
            );
        }
    }

    /// Finds another place for a block: its own zone first, then its node, then anywhere.
    pub(super) fn find_elsewhere(&mut self, from: Loc, order: Order) -> Result<Loc, Short> {
        let ask = Ask {
            owner: Owner::PAST,
            order,
            mt: Migratetype::Movable,
            is_pinned: false,
            source: Source::Zone(from.zone()),
            mark: Mark::Min,
        };
        let node = self.zones[from.zone()].node;
        self.find(ask).or_else(|_| {
            self.find(Ask {
                source: Source::Node(node),
                ..ask
            })
        })
    }

    /// Every held block of a pageblock: place, order, whether it may be moved.
    pub(super) fn blocks_of(&self, zone: usize, block: usize) -> Vec<(Loc, Order, bool)> {
        let at = u16::try_from(zone).expect("few zones");
        let loc = |pfn: Pfn| Loc { zone: at, pfn };
        let blocks = self.zones[zone].held.blocks(block);
        blocks
            .into_iter()
            .map(|(pfn, order, is_movable)| (loc(pfn), order, is_movable))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::file::{SmallMachine, SmallZone};

    /// Seen to fail with a note of each page that moves: 32 768 pages left 98 304.
    #[test]
    fn what_moves_is_noted_by_pageblock() {
        let machine = SmallMachine {
            zones: vec![SmallZone {
                name: "Movable".to_owned(),
                size: "512MiB".to_owned(),
                ..SmallZone::default()
            }],
            ..SmallMachine::default()
        };
        let mut host = Host::build(&machine.to_machine().unwrap(), 1).unwrap();
        let ask = Ask {
            owner: host.client("holder"),
            order: Order::ZERO,
            mt: Migratetype::Movable,
            is_pinned: false,
            source: Source::Section(2),
            mark: Mark::None,
        };
        let nr_pages = u64::from(host.geometry.section_pages());
        for _ in 0..nr_pages {
            host.take(ask).unwrap();
        }
        host.check().unwrap();
        assert_eq!(
            host.offline(2).unwrap_or_else(|why| panic!("{why:?}")),
            nr_pages
        );
        let nr_pageblocks = usize::try_from(host.geometry.section_pageblocks()).unwrap();
        let nr_notes = host.touched.len();
        assert!(nr_notes <= 4 * nr_pageblocks, "{nr_notes} notes");
        host.check().unwrap();
    }
}
