//! Who stands in the way: the clients that hold pages of a section, and what an operation
//! in flight may be moving.

use std::collections::BTreeMap;

use hugepool_mm::{Geometry, Migratetype, Pfn, SectionId};

use crate::Engine;
use crate::cell::Lent;
use crate::client::Client;
use crate::id::{ClientId, Now, millis};
use crate::lanes::Gate;
use crate::migrate::Standing;
use crate::num;
use crate::report::Holder;
use crate::shift::Shift;
use crate::tally::Place;

/// What is known of one holder while pages are counted.
#[derive(Clone, Debug)]
struct Count {
    nr_pages: u64,
    nr_in_flight: u64,
    nr_pinned: u64,
    nr_hot: u64,
    nr_homeless: u64,
    blocks_by_order: Vec<u64>,
    pages_by_type: [u64; 3],
    first: Pfn,
}

impl Count {
    fn new(geometry: Geometry, first: Pfn) -> Count {
        Count {
            nr_pages: 0,
            nr_in_flight: 0,
            nr_pinned: 0,
            nr_hot: 0,
            nr_homeless: 0,
            blocks_by_order: vec![0; geometry.nr_orders()],
            pages_by_type: [0; 3],
            first,
        }
    }

    fn add(&mut self, pfn: Pfn, lent: Lent) {
        let pages = u64::from(lent.order.nr_pages());
        self.nr_pages += pages;
        self.blocks_by_order[lent.order.index()] += 1;
        self.pages_by_type[lent.migratetype.index()] += pages;
        self.first = self.first.min(pfn);
    }

    fn migratetype(&self) -> Migratetype {
        // The first of the largest: ties go to what moves least.
        let pages = |mt: &Migratetype| self.pages_by_type[mt.index()];
        let by_pages = |a: &Migratetype, b: &Migratetype| pages(a).cmp(&pages(b));
        Migratetype::ALL
            .into_iter()
            .rev()
            .max_by(by_pages)
            .unwrap_or(Migratetype::Unmovable)
    }
}

impl Engine {
    /// The clients that hold pages of a section, most pages first; `shift` has tried to move them.
    pub(crate) fn holders_of(&self, section: SectionId, shift: &Shift, now: Now) -> Vec<Holder> {
        let geometry = self.custody.zones.geometry();
        let mut counts: BTreeMap<ClientId, Count> = BTreeMap::new();
        let nr_blocks = num::index(geometry.section_pageblocks());
        for block in 0..nr_blocks {
            let place = Place {
                section: section.get(),
                block,
            };
            self.custody.owners.for_each_head(place, &mut |pfn, lent| {
                let count = counts
                    .entry(lent.client)
                    .or_insert_with(|| Count::new(geometry, pfn));
                count.add(pfn, lent);
                let pages = u64::from(lent.order.nr_pages());
                match self.standing(pfn, &lent) {
                    Standing::Pinned => count.nr_pinned += pages,
                    Standing::Free(_) if shift.is_hot(pfn) => count.nr_hot += pages,
                    Standing::Free(_) => count.nr_homeless += pages,
                    Standing::UnderWay | Standing::Fixed => {}
                }
            });
        }
        for (&id, count) in &mut counts {
            let Some(client) = self.clients.get(id) else {
                continue;
            };
            count.nr_in_flight = self
                .in_flight(client)
                .into_iter()
                .filter(|&(pfn, _)| geometry.section_of(pfn) == section)
                .map(|(_, lent)| u64::from(lent.order.nr_pages()))
                .sum();
        }
        let since = |id| {
            self.custody
                .owners
                .tally()
                .client(id)?
                .since_ms(section.get())
        };
        self.name_all(counts, now, since)
    }

    /// The clients that an operation in flight keeps from giving their lanes' last blocks up.
    pub(crate) fn holders_in_flight(&self, ids: &[ClientId], now: Now) -> Vec<Holder> {
        let geometry = self.custody.zones.geometry();
        let mut counts = BTreeMap::new();
        for client in ids.iter().filter_map(|&id| self.clients.get(id)) {
            for (pfn, lent) in self.in_flight(client) {
                let count = counts
                    .entry(client.id)
                    .or_insert_with(|| Count::new(geometry, pfn));
                count.add(pfn, lent);
                count.nr_in_flight = count.nr_pages;
            }
        }
        self.name_all(counts, now, |_| None)
    }

    /// The client's own blocks that lie in a lane which an operation in flight keeps closed.
    pub(crate) fn in_flight(&self, client: &Client) -> Vec<(Pfn, Lent)> {
        let mut found = BTreeMap::new();
        let lanes = client.link.as_ref().map_or(&[][..], |link| &link.lanes);
        for lane in lanes
            .iter()
            .filter(|lane| matches!(lane.gate, Gate::Stuck { .. }))
        {
            lane.look(&mut |claim| {
                let (pfn, order, generation) = (claim.pfn(), claim.order(), claim.generation());
                if let Ok(lent) = self.custody.owners.check(client.id, pfn, order, generation) {
                    // A page named twice is one page.
                    found.insert(Pfn::new(pfn), lent);
                }
            });
        }
        found.into_iter().collect()
    }

    /// Since when the client has held something in the pageblock of a page, in milliseconds.
    pub(crate) fn age_ms(&self, id: ClientId, pfn: Pfn, now: Now) -> u64 {
        let place = self.custody.owners.place(pfn);
        let account = self.custody.owners.tally().client(id);
        let row = account.and_then(|account| account.section(place.section));
        row.map_or(0, |row| {
            millis(now).saturating_sub(row.blocks[place.block].since_ms)
        })
    }

    fn name_all(
        &self,
        counts: BTreeMap<ClientId, Count>,
        now: Now,
        since_ms: impl Fn(ClientId) -> Option<u64>,
    ) -> Vec<Holder> {
        let mut holders: Vec<Holder> = counts
            .into_iter()
            .filter_map(|(id, count)| {
                let client = self.clients.get(id)?;
                let migratetype = count.migratetype();
                let age_ms = match since_ms(id) {
                    Some(since_ms) => millis(now).saturating_sub(since_ms),
                    None => self.age_ms(id, count.first, now),
                };
                Some(Holder {
                    client: id,
                    pid: client.pid,
                    name: client.name.clone(),
                    nr_pages: count.nr_pages,
                    blocks_by_order: count.blocks_by_order,
                    migratetype,
                    first: count.first,
                    age_ms,
                    nr_in_flight: count.nr_in_flight,
                    nr_pinned: count.nr_pinned,
                    nr_hot: count.nr_hot,
                    nr_homeless: count.nr_homeless,
                })
            })
            .collect();
        holders.sort_by_key(|holder| (core::cmp::Reverse(holder.nr_pages), holder.client));
        holders
    }
}
