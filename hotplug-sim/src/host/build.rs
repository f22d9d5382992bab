//! Builds a zone and makes it as scattered as the machine's was.
//!
//! All pages are taken, then the listed free blocks are freed at places drawn from the seed.
//! A free block of an order lies beside a buddy that is not wholly free, or the two would be
//! one block: so a place is looked for among *regions* in use that are larger than it, and the
//! halves that are left over are regions again. Which region is drawn does not matter for how
//! much fits, so the lists come out exactly wherever the machine's own did.

use hugepool_mm::{
    Migratetype, OnlineOrder, Order, Pfn, PfnRange, Zone, ZoneConfig, ZoneId, ZoneKind,
};

use super::free_lists::{Free, Lists};
use super::held::{Entry, Held, Owner};
use super::plan::{Plan, ZonePlan};
use crate::prng::Prng;

/// A zone, who holds what in it, and how the kernel numbers its pages.
#[derive(Clone, Debug)]
pub struct HostZone {
    /// The allocator's.
    pub zone: Zone,
    /// Who holds what.
    pub held: Held,
    /// As the kernel calls it.
    pub name: String,
    /// Its node.
    pub node: u32,
    /// Our pfns are the kernel's less this.
    pub shift: u64,
}

impl HostZone {
    /// A kernel's page number as ours; `None` outside of the reserve.
    pub fn ours(&self, kernel_pfn: u64) -> Option<Pfn> {
        let pfn = u32::try_from(kernel_pfn.checked_sub(self.shift)?)
            .ok()
            .map(Pfn::new)?;
        self.zone.reserve_range().contains(pfn).then_some(pfn)
    }

    /// Our page number as the kernel's.
    pub fn kernels(&self, pfn: Pfn) -> u64 {
        u64::from(pfn.get()) + self.shift
    }
}

/// The pages of one section that exist, as the kernel numbers them.
pub type SectionExtents = Vec<(u64, u64)>;

/// Cuts extents at the edges of sections: the section's number and its pages.
pub fn by_section(extents: &[(u64, u64)], section_pages: u64) -> Vec<(u64, SectionExtents)> {
    let mut sections: Vec<(u64, SectionExtents)> = Vec::new();
    for &(start, end) in extents {
        let mut at = start;
        while at < end {
            let id = at / section_pages;
            let stop = end.min((id + 1) * section_pages);
            match sections.last_mut().filter(|last| last.0 == id) {
                Some(last) => last.1.push((at, stop)),
                None => sections.push((id, vec![(at, stop)])),
            }
            at = stop;
        }
    }
    sections
}

/// Builds one zone of a plan.
pub fn build(plan: &Plan, id: usize, prng: &mut Prng, notes: &mut Vec<String>) -> HostZone {
    let geometry = plan.geometry;
    let of = &plan.zones[id];
    let shift = if of.reserve.1 <= super::plan::MOST_PAGES {
        0
    } else {
        of.reserve.0
    };
    let ours =
        |pfn: u64| Pfn::new(u32::try_from(pfn - shift).expect("the plan keeps to 2^32 pages"));
    let config = ZoneConfig {
        id: ZoneId::new(u8::try_from(id).unwrap_or(u8::MAX)),
        name: of.name.clone(),
        kind: of.kind,
        node: of.node,
        start: ours(of.reserve.0),
        span_pages: of.reserve.1 - of.reserve.0,
    };
    let span_pages = config.span_pages;
    let start = config.start;
    let zone = Zone::new(config, geometry).expect("the plan's reserves are whole sections");
    let mut host = HostZone {
        held: Held::new(start, geometry.pageblock_order(), span_pages),
        zone,
        name: of.name.clone(),
        node: of.node,
        shift,
    };
    for (section, extents) in by_section(&of.extents, u64::from(geometry.section_pages())) {
        bring_online(&mut host, section, &extents, OnlineOrder::Pageblock);
    }
    let mut builder = Builder {
        host: &mut host,
        of,
        plan,
    };
    let taken_until = builder.reserve();
    if let Free::Lists(lists) = &of.free {
        builder.fragment(lists, taken_until, prng, notes);
    }
    host
}

/// Adds a section to a zone and brings it online.
pub fn bring_online(
    host: &mut HostZone,
    section: u64,
    extents: &[(u64, u64)],
    order: OnlineOrder,
) -> u64 {
    let geometry = host.zone.geometry();
    let first = section * u64::from(geometry.section_pages());
    let id = geometry.section_of(host.ours(first).expect("the section lies in the reserve"));
    let ours: Vec<PfnRange> = extents
        .iter()
        .map(|(start, end)| PfnRange {
            start: start - host.shift,
            end: end - host.shift,
        })
        .collect();
    let added = host
        .zone
        .begin_add(id)
        .and_then(|()| host.zone.finish_add_with_holes(id, &ours))
        .and_then(|()| host.zone.online(id, order));
    added
        .expect("a section of the host is in no zone before")
        .nr_pages
}

struct Builder<'a> {
    host: &'a mut HostZone,
    of: &'a ZonePlan,
    plan: &'a Plan,
}

/// Regions in use by order, in which free blocks find their places.
struct Regions {
    by_order: Vec<Vec<u32>>,
}

impl Regions {
    /// A place for a block of `order`: its first page. At the largest order a region is its own
    /// place, for nothing merges with it.
    fn place(&mut self, order: usize, prng: &mut Prng) -> Option<u32> {
        let max = self.by_order.len() - 1;
        if order == max {
            return self.by_order[max].pop();
        }
        let nr: usize = self.by_order[order + 1..].iter().map(Vec::len).sum();
        if nr == 0 {
            return None;
        }
        let mut draw = prng.index(nr);
        let mut from = order + 1;
        while draw >= self.by_order[from].len() {
            draw -= self.by_order[from].len();
            from += 1;
        }
        let mut region = self.by_order[from].swap_remove(draw);
        for half in (order..from).rev() {
            let (low, high) = (region, region + (1 << half));
            let (kept, left) = if prng.chance(1, 2) {
                (low, high)
            } else {
                (high, low)
            };
            self.by_order[half].push(left);
            region = kept;
        }
        Some(region)
    }
}

impl Builder<'_> {
    /// Takes what the kernel never managed, and what it keeps aside, from the lowest pages up.
    /// Returns where it stopped.
    fn reserve(&mut self) -> u64 {
        let aside = match &self.of.free {
            Free::Lists(lists) => lists.set_aside.min(self.of.present() - self.of.reserved),
            Free::All => 0,
        };
        let mut stopped = 0;
        let mut left = [
            (self.of.reserved, Owner::RESERVED),
            (aside, Owner::HIGH_ATOMIC),
        ];
        for &(start, end) in &self.of.extents {
            let mut at = start;
            for (nr, owner) in &mut left {
                let stop = end.min(at + *nr);
                *nr -= stop - at;
                for (pfn, order) in
                    aligned(at - self.host.shift, stop - self.host.shift, self.max())
                {
                    self.take(pfn, order, *owner);
                }
                at = stop;
                if at > start {
                    stopped = at;
                }
            }
        }
        stopped
    }

    fn take(&mut self, pfn: Pfn, order: Order, owner: Owner) {
        assert!(
            self.host.zone.take_exact(pfn, order),
            "an online page of a new zone is free"
        );
        let off = self.host.held.page_of(pfn) & (self.plan.geometry.pageblock_pages() - 1);
        let entry = Entry {
            off: u16::try_from(off).expect("a pageblock is small"),
            order: order.get(),
            mt: Migratetype::Unmovable,
            is_pinned: true,
            owner,
            at: 0,
        };
        self.host.held.insert(pfn, entry);
        if owner.is_counted_out() {
            self.host.zone.reserve(pfn, order);
        }
    }

    fn max(&self) -> Order {
        self.plan.geometry.max_order()
    }

    fn fragment(&mut self, lists: &Lists, from: u64, prng: &mut Prng, notes: &mut Vec<String>) {
        for &(start, end) in &self.of.extents {
            let start = start.max(from);
            if start >= end {
                continue;
            }
            let (start, end) = (start - self.host.shift, end - self.host.shift);
            for (pfn, order) in aligned(start, end, self.max()) {
                assert!(
                    self.host.zone.take_exact(pfn, order),
                    "an online page of a new zone is free"
                );
                let page = self.host.held.page_of(pfn);
                self.host.held.past.set(page, order.nr_pages(), true);
            }
        }
        let mut regions = self.types(lists, from, prng);
        let mut unplaced = vec![0_u64; self.plan.geometry.nr_orders()];
        for mt in Migratetype::ALL {
            for (order, &nr) in lists.blocks[mt.index()].iter().enumerate().rev() {
                for placed in 0..nr {
                    let page = regions[mt.index()].place(order, prng).or_else(|| {
                        Migratetype::ALL
                            .iter()
                            .find_map(|other| regions[other.index()].place(order, prng))
                    });
                    match page {
                        Some(page) => self.free(page, order),
                        // Nothing of this order fits any more.
                        None => {
                            unplaced[order] += nr - placed;
                            break;
                        }
                    }
                }
            }
        }
        let of = format!("zone {} of node {}", self.of.name, self.of.node);
        if unplaced.iter().any(|nr| *nr > 0) {
            notes.push(format!(
                "{of}: free blocks that found no place, by order: {unplaced:?}; holes and reserved pages lie elsewhere than assumed, or the lists are of another moment"
            ));
        }
        let built = self.host.zone.buddyinfo();
        let wanted = lists.by_order();
        if unplaced.iter().all(|nr| *nr == 0) && built[..wanted.len()] != wanted[..] {
            notes.push(format!(
                "{of}: built with free blocks {built:?} instead of {wanted:?}"
            ));
        }
    }

    fn free(&mut self, page: u32, order: usize) {
        let order = u8::try_from(order)
            .ok()
            .and_then(Order::new)
            .expect("orders of the geometry");
        self.host.held.past.set(page, order.nr_pages(), false);
        let pfn = self.host.held.pfn_of(page);
        self.host.zone.free(pfn, order);
    }

    /// Gives pageblocks their types, and makes regions of them.
    fn types(&mut self, lists: &Lists, from: u64, prng: &mut Prng) -> [Regions; 3] {
        let geometry = self.plan.geometry;
        let (pageblock, max) = (
            geometry.pageblock_order().index(),
            geometry.max_order().index(),
        );
        let mut units = self.units(from);
        shuffle(&mut units, prng);
        // What is known to be removable is no place for pages that cannot move.
        units.sort_by_key(|&(page, _)| self.is_removable(page));
        let per_unit = 1_u64 << (max - pageblock);
        let nr_pageblocks: u64 = units
            .iter()
            .map(|(_, whole)| if *whole { per_unit } else { 1 })
            .sum();
        let mut wanted = targets(
            lists,
            nr_pageblocks,
            self.of.kind,
            geometry.pageblock_pages(),
        );
        let mut regions = [(); 3].map(|()| Regions {
            by_order: vec![Vec::new(); max + 1],
        });
        for (page, is_whole) in units {
            let kind = [Migratetype::Unmovable, Migratetype::Reclaimable]
                .into_iter()
                .find(|mt| wanted[mt.index()] > 0)
                .unwrap_or(Migratetype::Movable);
            let left = &mut wanted[kind.index()];
            let nr = if is_whole { per_unit } else { 1 };
            let is_split = is_whole && kind != Migratetype::Movable && *left < nr;
            for at in 0..u32::try_from(nr).expect("few") {
                let page = page + (at << pageblock);
                let mt = if is_split && u64::from(at) >= *left {
                    Migratetype::Movable
                } else {
                    kind
                };
                let pfn = self.host.held.pfn_of(page);
                self.host.zone.set_pageblock_type(pfn, mt);
                let block = self.host.held.block_of(pfn);
                self.host.held.past.set_migratetype(block, mt);
                if is_split || !is_whole {
                    regions[mt.index()].by_order[pageblock].push(page);
                }
            }
            if is_whole && !is_split {
                regions[kind.index()].by_order[max].push(page);
            }
            *left = left.saturating_sub(nr);
        }
        regions
    }

    /// Blocks of the largest order that lie wholly in the zone and in nobody's hands, and
    /// pageblocks of which that is true where it is not of the block: first page, which of both.
    fn units(&self, from: u64) -> Vec<(u32, bool)> {
        let geometry = self.plan.geometry;
        let (unit, pageblock) = (
            1_u64 << geometry.max_order().get(),
            u64::from(geometry.pageblock_pages()),
        );
        let base = u64::from(self.host.held.pfn_of(0).get());
        let mut units = Vec::new();
        let mut add = |pfn: u64, is_whole| {
            let page = u32::try_from(pfn - base).expect("the plan keeps to 2^32 pages");
            units.push((page, is_whole));
        };
        for &(start, end) in &self.of.extents {
            let (start, end) = (start.max(from), end);
            if start >= end {
                continue;
            }
            let (start, end) = (start - self.host.shift, end - self.host.shift);
            let mut at = start.next_multiple_of(pageblock);
            while at + pageblock <= end {
                if at.is_multiple_of(unit) && at + unit <= end {
                    add(at, true);
                    at += unit;
                } else {
                    add(at, false);
                    at += pageblock;
                }
            }
        }
        units
    }

    fn is_removable(&self, page: u32) -> bool {
        let pfn = self.host.kernels(self.host.held.pfn_of(page));
        let section = pfn / u64::from(self.plan.geometry.section_pages());
        self.plan.removable.get(&section).copied().unwrap_or(false)
    }
}

/// Pageblocks that each type is to get, of those there are.
fn targets(lists: &Lists, nr: u64, kind: ZoneKind, pageblock_pages: u32) -> [u64; 3] {
    if kind == ZoneKind::Movable {
        return [0, nr, 0];
    }
    let known = lists
        .pageblocks
        .unwrap_or([nr / 10, nr - nr / 10 - nr / 20, nr / 20]);
    let needed = |mt: Migratetype| {
        let blocks = &lists.blocks[mt.index()];
        let pages: u64 = blocks
            .iter()
            .enumerate()
            .map(|(order, nr)| nr << order)
            .sum();
        if pages == 0 {
            0
        } else {
            pages.div_ceil(u64::from(pageblock_pages)) + 1
        }
    };
    let mut targets = known;
    for mt in Migratetype::ALL {
        targets[mt.index()] = targets[mt.index()].max(needed(mt)).min(nr);
    }
    targets
}

/// The largest aligned blocks that make up a range.
pub fn aligned(start: u64, end: u64, max: Order) -> impl Iterator<Item = (Pfn, Order)> {
    let mut at = start;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let fits = u8::try_from((end - at).ilog2()).expect("below 64");
        let lies = u8::try_from(at.trailing_zeros()).expect("below 64");
        let order = Order::new(fits.min(lies).min(max.get())).expect("no larger than the largest");
        let pfn = Pfn::new(u32::try_from(at).expect("pages of a zone"));
        at += u64::from(order.nr_pages());
        Some((pfn, order))
    })
}

fn shuffle<T>(items: &mut [T], prng: &mut Prng) {
    for at in (1..items.len()).rev() {
        items.swap(at, prng.index(at + 1));
    }
}
