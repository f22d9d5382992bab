//! What the zone says about itself, held against the twin's flags page by page.

use hugepool_mm::{Order, Pfn, PfnRange, SectionId, SectionState};

use super::{Twin, runs};

impl Twin {
    /// Everything the zone says about itself.
    pub(super) fn check(&self) {
        self.zone.verify().unwrap();
        let counts = self.zone.counts();
        let count = |flags: &[bool]| flags.iter().filter(|&&flag| flag).count() as u64;
        let reserved: u64 = self
            .reserved
            .iter()
            .map(|(_, o)| u64::from(o.nr_pages()))
            .sum();
        let held: u64 = self.held.iter().map(|(_, o)| u64::from(o.nr_pages())).sum();
        assert_eq!(counts.present, count(&self.present));
        assert_eq!(counts.managed, count(&self.managed) - reserved);
        assert_eq!(counts.present, counts.managed + counts.reserved);
        assert_eq!(
            counts.managed,
            counts.free + counts.pcp + counts.lent + counts.isolated
        );
        assert_eq!(counts.lent, held);

        let free: Vec<bool> = (0..self.nr_pages)
            .map(|at| self.zone.is_free(self.pfn(at)))
            .collect();
        assert!(
            free.iter()
                .zip(&self.home)
                .all(|(free, home)| *home || !free)
        );
        assert_eq!(count(&self.home) - count(&free), counts.pcp);
        assert_eq!(self.zone.buddyinfo(), self.free_blocks(&free));
        self.check_sections(&free);
    }

    fn check_sections(&self, free: &[bool]) {
        let mut spanned = PfnRange::default();
        let mut isolated = 0;
        let mut listed = self.zone.sections();
        for (at, &state) in self.states.iter().enumerate() {
            let id = SectionId::new(2 + u32::try_from(at).unwrap());
            assert_eq!(self.zone.section_state(id), Some(state));
            if state == SectionState::Absent {
                continue;
            }
            let info = listed.next().unwrap();
            assert_eq!((info.id, info.state), (id, state));
            let pages = self.pages(id);
            let nr_free = free[pages.clone()].iter().filter(|&&page| page).count() as u64;
            assert_eq!(info.free + info.isolated, nr_free);
            let nr_managed = self.managed[pages].iter().filter(|&&page| page).count() as u64;
            assert_eq!(info.held, nr_managed - nr_free);
            assert_eq!(self.zone.isolated_free(id), info.isolated);
            if state == SectionState::GoingOffline {
                isolated += nr_free;
            }
            let range = self.geometry.section_range(id);
            spanned.start = if spanned.is_empty() {
                range.start
            } else {
                spanned.start
            };
            spanned.end = range.end;
            self.check_runs(id, free);
        }
        assert!(listed.next().is_none());
        assert_eq!(self.zone.span(), spanned);
        assert_eq!(self.zone.counts().isolated, isolated);
        let absent = self
            .states
            .iter()
            .filter(|&&s| s == SectionState::Absent)
            .count();
        assert_eq!(self.zone.lowest_absent(usize::MAX).len(), absent);
    }

    fn check_runs(&self, id: SectionId, free: &[bool]) {
        for block in self.zone.pageblocks(id) {
            let start = self.at(u64::from(block.start.get()));
            let pages = start..start + self.geometry.pageblock_pages() as usize;
            let held: Vec<bool> = pages
                .clone()
                .map(|page| self.managed[page] && !free[page])
                .collect();
            let pfn = u64::from(block.start.get());
            assert_eq!(self.zone.held_runs(block.start), runs(&held, pfn));
            assert_eq!(self.zone.free_runs(block.start), runs(&free[pages], pfn));
        }
    }

    /// What a buddy allocator would list for these free pages.
    fn free_blocks(&self, free: &[bool]) -> Vec<u64> {
        let mut blocks = vec![0; self.geometry.nr_orders()];
        let mut at = 0;
        while at < free.len() {
            let order = self.geometry.orders().rev().find(|order| {
                let len = order.nr_pages() as usize;
                at.is_multiple_of(len) && free[at..at + len].iter().all(|&page| page)
            });
            match order {
                Some(order) => {
                    blocks[order.index()] += 1;
                    at += order.nr_pages() as usize;
                }
                None => at += 1,
            }
        }
        blocks
    }

    /// Whether some block of the order could be handed out.
    pub(super) fn has_free_run(&self, order: Order) -> bool {
        let len = order.nr_pages() as usize;
        (0..self.nr_pages).step_by(len).any(|at| {
            let state = self
                .zone
                .section_state(self.geometry.section_of(self.pfn(at)));
            state == Some(SectionState::Online)
                && (at..at + len).all(|page| self.zone.is_free(self.pfn(page)))
        })
    }

    pub(super) fn is_whole(&self, block: Pfn) -> bool {
        let range = block.block(self.geometry.pageblock_order());
        (range.start..range.end).all(|pfn| self.managed[self.at(pfn)])
    }
}
