//! A naive twin of a zone: one flag per page, and a list of what is held.
//!
//! It does not foresee which block a request gets; it knows which ones would be wrong,
//! and what every number must be afterwards. Everything is looked up page by page.

mod check;
mod compact;
mod hot;

use std::collections::BTreeMap;

use hugepool_mm::{
    AllocFlags, ContiguityMode, Geometry, Migratetype, Order, Pfn, PfnRange, SectionId,
    SectionState, Shortfall, Zone, ZoneConfig, ZoneId, ZoneKind,
};

/// One thing to do to a zone. Numbers are reduced to what exists when it is done.
#[derive(Clone, Debug)]
pub enum Op {
    Add {
        section: u32,
        holes: Vec<(u16, u16)>,
        abort: bool,
    },
    Online {
        section: u32,
        by_page: bool,
    },
    Isolate {
        section: u32,
    },
    UndoIsolate {
        section: u32,
    },
    FinishOffline {
        section: u32,
    },
    Remove {
        section: u32,
        abort: bool,
    },
    Alloc {
        order: u8,
        mt: usize,
        dip: bool,
        no_fragment: bool,
    },
    Bulk {
        order: u8,
        mt: usize,
        nr: u16,
    },
    TakeFrom {
        pfn: u32,
        order: u8,
        nr: u16,
    },
    TakeExact {
        pfn: u32,
        order: u8,
    },
    SetType {
        pfn: u32,
        mt: usize,
    },
    Free {
        which: u32,
    },
    FreeMany {
        from: u32,
        nr: u16,
        by_address: bool,
    },
    ListTake {
        order: u8,
        mt: usize,
        nr: u16,
    },
    ListPut {
        which: u32,
        nr: u16,
    },
    ListDrain,
    SetPcp {
        batch: u64,
        high: u64,
    },
    Reserve {
        which: u32,
    },
    Unreserve {
        which: u32,
    },
    Ask {
        pfn: u32,
    },
    AskZone,
    Invalidate,
    Mode {
        mode: u8,
    },
    Skip {
        pfn: u32,
    },
    CompactBegin {
        mode: u8,
        order: u8,
        mt: usize,
    },
    CompactSteps {
        nr: u8,
        budget: u32,
        fails: usize,
    },
}

/// The zone under test beside what it should be.
pub struct Twin {
    pub zone: Zone,
    geometry: Geometry,
    start: u64,
    nr_pages: usize,
    /// Exists and is online.
    managed: Vec<bool>,
    /// Exists.
    present: Vec<bool>,
    /// Managed and with the zone (free or in its lists).
    home: Vec<bool>,
    held: Vec<(Pfn, Order)>,
    reserved: Vec<(Pfn, Order)>,
    states: Vec<SectionState>,
    /// Types of a section's pageblocks when it was isolated.
    types: BTreeMap<u32, Vec<Migratetype>>,
    run: Option<compact::Run>,
}

impl Twin {
    pub fn new(geometry: Geometry, nr_sections: u32, kind: ZoneKind) -> Twin {
        let start = Pfn::new(2 << geometry.section_order());
        let span_pages = u64::from(nr_sections) << geometry.section_order();
        let config = ZoneConfig {
            id: ZoneId::new(0),
            name: "twin".to_owned(),
            kind,
            node: 0,
            start,
            span_pages,
        };
        let nr_pages = usize::try_from(span_pages).unwrap();
        Twin {
            zone: Zone::new(config, geometry).unwrap(),
            geometry,
            start: u64::from(start.get()),
            nr_pages,
            managed: vec![false; nr_pages],
            present: vec![false; nr_pages],
            home: vec![false; nr_pages],
            held: Vec::new(),
            reserved: Vec::new(),
            states: vec![SectionState::Absent; nr_sections as usize],
            types: BTreeMap::new(),
            run: None,
        }
    }

    /// Does one thing to both, and checks all that can be checked.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Add {
                section,
                holes,
                abort,
            } => self.add(*section, holes, *abort),
            Op::Online { section, by_page } => self.online(*section, *by_page),
            Op::Isolate { section } => self.isolate(*section),
            Op::UndoIsolate { section } => self.undo_isolate(*section),
            Op::FinishOffline { section } => self.finish_offline(*section),
            Op::Remove { section, abort } => self.remove(*section, *abort),
            Op::Alloc {
                order,
                mt,
                dip,
                no_fragment,
            } => {
                self.alloc(*order, *mt, *dip, *no_fragment);
            }
            Op::Bulk { order, mt, nr } => {
                let (order, mt) = (self.order(*order), Migratetype::ALL[mt % 3]);
                let mut out = vec![Pfn::new(7)];
                let nr = usize::from(*nr);
                let taken = self
                    .zone
                    .rmqueue_bulk(order, mt, nr, AllocFlags::DIP, &mut out);
                self.taken(&out[1..], order, taken, nr);
                if taken < nr && self.zone.admits(mt) {
                    assert!(
                        !self.has_free_run(order),
                        "a bulk request fell short of a free block"
                    );
                }
            }
            Op::TakeFrom { pfn, order, nr } => {
                let pfn = self.page(*pfn);
                let order = self.order(*order);
                let mut out = Vec::new();
                let nr = usize::from(*nr);
                let taken = self.zone.take_from_pageblock(pfn, order, nr, &mut out);
                let block = pfn.align_down(self.geometry.pageblock_order());
                let inside = block.block(self.geometry.pageblock_order());
                assert!(out.iter().all(|&pfn| inside.contains(pfn)));
                self.taken(&out, order, taken, nr);
            }
            Op::TakeExact { pfn, order } => {
                let order = self.order(*order);
                let pfn = self.page(*pfn).align_down(order);
                let section = self.geometry.section_of(pfn);
                let range = pfn.block(order);
                let all_free =
                    (range.start..range.end).all(|page| self.zone.is_free(self.pfn(self.at(page))));
                let is_online = self.zone.section_state(section) == Some(SectionState::Online);
                assert_eq!(self.zone.take_exact(pfn, order), all_free && is_online);
                if all_free && is_online {
                    self.taken(&[pfn], order, 1, 1);
                }
            }
            Op::SetType { pfn, mt } => {
                let pfn = self.page(*pfn);
                let mt = Migratetype::ALL[mt % 3];
                let isolated = self.zone.pageblock(pfn).is_some_and(|block| block.isolated);
                if !isolated && self.zone.set_pageblock_type(pfn, mt) {
                    assert_eq!(self.zone.pageblock(pfn).unwrap().migratetype, mt);
                }
            }
            Op::Free { which } => {
                if let Some((pfn, order)) = self.pick(*which) {
                    self.zone.free(pfn, order);
                    self.came_home(pfn, order);
                }
            }
            Op::FreeMany {
                from,
                nr,
                by_address,
            } => self.free_many(*from, *nr, *by_address),
            Op::ListTake { order, mt, nr } => {
                let (order, mt) = (self.order(*order), Migratetype::ALL[mt % 3]);
                let mut out = Vec::new();
                let nr = usize::from(*nr);
                let taken = self.zone.pcp_take(order, mt, nr, AllocFlags::DIP, &mut out);
                self.taken(&out, order, taken, nr);
            }
            Op::ListPut { which, nr } => {
                for _ in 0..*nr {
                    if let Some((pfn, order)) = self.pick(*which) {
                        self.zone.pcp_put(pfn, order);
                        self.came_home(pfn, order);
                    }
                }
            }
            Op::ListDrain => {
                self.zone.pcp_drain();
                assert_eq!(self.zone.counts().pcp, 0);
            }
            Op::SetPcp { batch, high } => {
                self.zone.set_pcp(Some((*batch, *high)));
                assert!(self.zone.counts().pcp <= *high);
            }
            Op::Reserve { which } => {
                if let Some((pfn, order)) = self.pick(*which) {
                    self.zone.reserve(pfn, order);
                    self.reserved.push((pfn, order));
                }
            }
            Op::Unreserve { which } => {
                if !self.reserved.is_empty() {
                    let at = *which as usize % self.reserved.len();
                    let (pfn, order) = self.reserved.swap_remove(at);
                    self.zone.unreserve(pfn, order);
                    self.held.push((pfn, order));
                }
            }
            Op::Ask { pfn } => {
                let pfn = self.page(*pfn);
                let answer = self.zone.pageblock_pfn_to_page(pfn);
                let block = pfn.align_down(self.geometry.pageblock_order());
                assert_eq!(answer, self.is_whole(block).then_some(block));
            }
            Op::AskZone => {
                let span = self.zone.span();
                let all = !span.is_empty()
                    && (span.start..span.end).all(|pfn| self.managed[self.at(pfn)]);
                assert_eq!(self.zone.ask_contiguity(), all);
            }
            Op::Invalidate => {
                self.zone.invalidate_contiguity();
                let report = self.zone.contiguity();
                assert_eq!((report.zone, report.nr_cached), (None, 0));
            }
            Op::Mode { mode } => {
                let modes = [
                    ContiguityMode::None,
                    ContiguityMode::Zone,
                    ContiguityMode::Pageblock,
                    ContiguityMode::Both,
                ];
                self.zone.set_contiguity_mode(modes[usize::from(*mode) % 4]);
            }
            Op::Skip { pfn } => {
                let pfn = self.page(*pfn);
                self.zone.set_skip(pfn, true);
                assert!(self.zone.pageblock(pfn).is_none_or(|block| block.skip));
                self.zone.clear_skips();
                assert!(self.zone.pageblock(pfn).is_none_or(|block| !block.skip));
            }
            Op::CompactBegin { mode, order, mt } => self.compact_begin(*mode, *order, *mt),
            Op::CompactSteps { nr, budget, fails } => {
                for _ in 0..*nr {
                    if !self.compact_step(*budget, *fails) {
                        break;
                    }
                }
            }
        }
        self.check();
    }

    fn alloc(&mut self, order: u8, mt: usize, dip: bool, no_fragment: bool) {
        let (order, mt) = (self.order(order), Migratetype::ALL[mt % 3]);
        let mut flags = if dip {
            AllocFlags::DIP
        } else {
            AllocFlags::MIN
        };
        flags.no_fragment = no_fragment;
        let own = &self.zone.pagetypeinfo().rows[mt.index()].free_blocks[order.index()..];
        let own_serves = own.iter().any(|&nr| nr != 0);
        let min = self.zone.watermarks().min;
        match self.zone.alloc(order, mt, flags) {
            Ok(pfn) => {
                assert!(self.zone.admits(mt));
                let block = self.zone.pageblock(pfn).unwrap();
                assert!(
                    !own_serves || block.migratetype == mt,
                    "left its own type needlessly"
                );
                self.taken(&[pfn], order, 1, 1);
                assert!(dip || self.zone.counts().free >= min);
            }
            Err(Shortfall::WrongKind) => assert!(!self.zone.admits(mt)),
            Err(Shortfall::OrderTooLarge { .. }) => panic!("the order was legal"),
            Err(Shortfall::BelowWatermark {
                free_pages,
                mark_pages,
            }) => {
                assert!(!dip);
                assert_eq!((free_pages, mark_pages), (self.zone.counts().free, min));
                assert!(free_pages < mark_pages + u64::from(order.nr_pages()));
            }
            Err(Shortfall::ZoneEmpty) => assert_eq!(self.zone.counts().free, 0),
            Err(Shortfall::Fragmented {
                largest_order,
                free_pages,
            }) => {
                assert_eq!(free_pages, self.zone.counts().free);
                assert!(self.has_free_run(largest_order));
                assert!(
                    largest_order
                        .up()
                        .is_none_or(|order| !self.has_free_run(order))
                );
                assert!(no_fragment || !dip || largest_order < order);
            }
        }
    }

    fn free_many(&mut self, from: u32, nr: u16, by_address: bool) {
        if self.held.is_empty() {
            return;
        }
        let order = self.held[from as usize % self.held.len()].1;
        let mut batch = Vec::new();
        self.held.retain(|&(pfn, held_order)| {
            let goes = held_order == order && batch.len() < usize::from(nr);
            if goes {
                batch.push(pfn);
            }
            !goes
        });
        if by_address {
            batch.sort_unstable();
        }
        self.zone.free_bulk(&batch, order);
        batch.into_iter().for_each(|pfn| self.came_home(pfn, order));
    }

    /// Blocks that the zone has just handed out.
    fn taken(&mut self, blocks: &[Pfn], order: Order, taken: usize, wanted: usize) {
        assert_eq!(taken, blocks.len());
        assert!(taken <= wanted);
        for &pfn in blocks {
            assert!(pfn.is_aligned(order));
            let state = self.zone.section_state(self.geometry.section_of(pfn));
            assert_eq!(
                state,
                Some(SectionState::Online),
                "handed out an isolated page"
            );
            let first = self.at(u64::from(pfn.get()));
            for page in first..first + order.nr_pages() as usize {
                assert!(self.home[page], "page {page} handed out twice");
                self.home[page] = false;
            }
            self.held.push((pfn, order));
        }
    }

    fn came_home(&mut self, pfn: Pfn, order: Order) {
        let first = self.at(u64::from(pfn.get()));
        self.home[first..first + order.nr_pages() as usize].fill(true);
    }

    fn pick(&mut self, which: u32) -> Option<(Pfn, Order)> {
        if self.held.is_empty() {
            return None;
        }
        let at = which as usize % self.held.len();
        Some(self.held.swap_remove(at))
    }

    fn order(&self, order: u8) -> Order {
        Order::new(order % (self.geometry.max_order().get() + 1)).unwrap()
    }

    fn section(&self, section: u32) -> (SectionId, usize) {
        let at = section as usize % self.states.len();
        (SectionId::new(2 + u32::try_from(at).unwrap()), at)
    }

    fn pages(&self, id: SectionId) -> std::ops::Range<usize> {
        let range = self.geometry.section_range(id);
        self.at(range.start)..self.at(range.start) + usize::try_from(range.nr_pages()).unwrap()
    }

    fn page(&self, pfn: u32) -> Pfn {
        self.pfn(pfn as usize % self.nr_pages)
    }

    fn pfn(&self, at: usize) -> Pfn {
        Pfn::new(u32::try_from(self.start + at as u64).unwrap())
    }

    fn at(&self, pfn: u64) -> usize {
        usize::try_from(pfn - self.start).unwrap()
    }
}

/// Runs of set flags as page ranges, the first flag being page `start`.
pub(crate) fn runs(flags: &[bool], start: u64) -> Vec<PfnRange> {
    let mut runs: Vec<PfnRange> = Vec::new();
    for (pfn, _) in (start..).zip(flags).filter(|(_, flag)| **flag) {
        match runs.last_mut().filter(|run| run.end == pfn) {
            Some(run) => run.end += 1,
            None => runs.push(PfnRange {
                start: pfn,
                end: pfn + 1,
            }),
        }
    }
    runs
}
