//! Memory twice: once as our allocator hands it out, once as the kernel did.
//!
//! Both are zones of ours over the same memory blocks, so what is measured of one is measured of
//! the other by the same code. In the kernel's copy a block is taken exactly where it was.

use std::collections::BTreeMap;

use hugepool_mm::{
    AllocFlags, Geometry, Migratetype, OnlineOrder, Order, Pfn, SectionId, Zone, ZoneConfig,
    ZoneId, ZoneKind,
};

/// One copy of memory.
#[derive(Clone, Debug)]
pub struct Side {
    zone: Zone,
    /// For each pageblock with pages whose kind is known: how many of each kind.
    used: BTreeMap<u32, [u32; 3]>,
}

/// How scattered memory is, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scatter {
    /// Free pages.
    pub free: u64,
    /// Free blocks by order.
    pub free_blocks: Vec<u64>,
    /// Thousandths of the free pages that are no use to a request of a pageblock
    /// (Gorman and Whitcroft's unusable free space index).
    pub unusable: u32,
    /// Pageblocks that are wholly free.
    pub free_pageblocks: u64,
    /// Pageblocks that unmovable or reclaimable pages are in: what could not go away.
    pub stuck_pageblocks: u64,
    /// Pageblocks that pages of more than one kind are in.
    pub mixed_pageblocks: u64,
}

impl Side {
    /// These sections (numbers, ascending), online and free.
    ///
    /// # Errors
    /// They make no zone: too far apart, or too high.
    pub fn new(geometry: Geometry, sections: &[u64]) -> Result<Side, String> {
        let (Some(&first), Some(&last)) = (sections.first(), sections.last()) else {
            return Err("the trace names no page".to_owned());
        };
        let pages = u64::from(geometry.section_pages());
        let start = u32::try_from(first * pages)
            .map_err(|_| format!("page frame {} is past 2^32", first * pages))?;
        let config = ZoneConfig {
            id: ZoneId::new(0),
            name: "trace".to_owned(),
            kind: ZoneKind::Normal,
            node: 0,
            start: Pfn::new(start),
            span_pages: (last + 1 - first) * pages,
        };
        let mut zone = Zone::new(config, geometry).map_err(|error| error.to_string())?;
        for &section in sections {
            let number = u32::try_from(section).map_err(|error| error.to_string())?;
            let id = SectionId::new(number);
            let added = zone
                .begin_add(id)
                .and_then(|()| zone.finish_add(id))
                .and_then(|()| zone.online(id, OnlineOrder::Pageblock));
            added.map_err(|error| error.to_string())?;
        }
        Ok(Side {
            zone,
            used: BTreeMap::new(),
        })
    }

    /// The zone behind it.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Takes exactly this block; false if a page of it is not free.
    pub fn mark(&mut self, start: u64, order: Order, kind: Option<Migratetype>) -> bool {
        let Ok(start) = u32::try_from(start) else {
            return false;
        };
        let pfn = Pfn::new(start);
        let is_taken = pfn.is_aligned(order) && self.zone.take_exact(pfn, order);
        if is_taken {
            self.count(pfn, order, kind, true);
        }
        is_taken
    }

    /// Takes a block wherever our allocator says.
    ///
    /// # Errors
    /// It has none; the words say why.
    pub fn take(&mut self, order: Order, kind: Option<Migratetype>) -> Result<Pfn, String> {
        let mt = kind.unwrap_or(Migratetype::Movable);
        let pfn = self
            .zone
            .alloc(order, mt, AllocFlags::DIP)
            .map_err(|shortfall| shortfall.to_string())?;
        self.count(pfn, order, kind, true);
        Ok(pfn)
    }

    /// Gives back a block or a part of one.
    pub fn give(&mut self, pfn: Pfn, order: Order, kind: Option<Migratetype>) {
        self.zone.free(pfn, order);
        self.count(pfn, order, kind, false);
    }

    fn count(&mut self, pfn: Pfn, order: Order, kind: Option<Migratetype>, is_more: bool) {
        let Some(kind) = kind else { return };
        let pageblock = self.zone.geometry().pageblock_order();
        let first = pfn.get() >> pageblock.get();
        let nr = 1 << order.get().saturating_sub(pageblock.get());
        let pages = order.nr_pages().min(pageblock.nr_pages());
        for block in first..first + nr {
            let used = self.used.entry(block).or_default();
            let count = &mut used[kind.index()];
            *count = if is_more {
                *count + pages
            } else {
                count.saturating_sub(pages)
            };
            if *used == [0; 3] {
                self.used.remove(&block);
            }
        }
    }

    /// How scattered it is.
    pub fn scatter(&self) -> Scatter {
        let pageblock = self.zone.geometry().pageblock_order();
        let is_stuck = |used: &&[u32; 3]| {
            used[Migratetype::Unmovable.index()] + used[Migratetype::Reclaimable.index()] > 0
        };
        let is_mixed = |used: &&[u32; 3]| used.iter().filter(|pages| **pages > 0).count() > 1;
        Scatter {
            free: self.zone.free_pages(),
            free_blocks: self.zone.buddyinfo(),
            unusable: self.zone.unusable_index(pageblock),
            free_pageblocks: self.zone.free_pages_in(pageblock) >> pageblock.get(),
            stuck_pageblocks: self.used.values().filter(is_stuck).count() as u64,
            mixed_pageblocks: self.used.values().filter(is_mixed).count() as u64,
        }
    }
}
