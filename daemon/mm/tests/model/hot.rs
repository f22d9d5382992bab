//! Sections that come and go, on the zone and its twin.

use hugepool_mm::{OnlineOrder, SectionError, SectionState};

use super::{Twin, runs};

impl Twin {
    pub(super) fn add(&mut self, section: u32, holes: &[(u16, u16)], abort: bool) {
        let (id, at) = self.section(section);
        if self.zone.begin_add(id).is_err() {
            assert_ne!(self.states[at], SectionState::Absent);
            return;
        }
        assert_eq!(self.states[at], SectionState::Absent);
        if abort {
            self.zone.abort_add(id).unwrap();
            return;
        }
        let range = self.geometry.section_range(id);
        let mut exists = vec![true; usize::try_from(range.nr_pages()).unwrap()];
        for &(from, len) in holes {
            let from = usize::from(from) % exists.len();
            let to = (from + usize::from(len)).min(exists.len());
            exists[from..to].fill(false);
        }
        if exists.iter().all(|&page| page) {
            self.zone.finish_add(id).unwrap();
        } else {
            let extents = runs(&exists, range.start);
            let added = self.zone.finish_add_with_holes(id, &extents);
            if extents.is_empty() {
                assert_eq!(added, Err(SectionError::BadExtents { section: id }));
                self.zone.abort_add(id).unwrap();
                return;
            }
            added.unwrap();
            assert_eq!(self.zone.extents(id), extents);
        }
        self.states[at] = SectionState::Offline;
        let start = self.at(range.start);
        self.present[start..start + exists.len()].copy_from_slice(&exists);
    }

    pub(super) fn online(&mut self, section: u32, by_page: bool) {
        let (id, at) = self.section(section);
        let order = if by_page {
            OnlineOrder::Page
        } else {
            OnlineOrder::Pageblock
        };
        let before = self.zone.buddyinfo();
        match self.zone.online(id, order) {
            Ok(onlined) => {
                assert_eq!(self.states[at], SectionState::Offline);
                self.states[at] = SectionState::Online;
                let pages = self.pages(id);
                self.managed[pages.clone()].copy_from_slice(&self.present[pages.clone()]);
                self.home[pages.clone()].copy_from_slice(&self.present[pages.clone()]);
                let nr_pages = self.present[pages].iter().filter(|&&page| page).count();
                assert_eq!(onlined.nr_pages, nr_pages as u64);
                let gained: u64 = (0..)
                    .zip(&onlined.blocks_by_order)
                    .map(|(o, n)| n << o)
                    .sum();
                assert_eq!(gained, nr_pages as u64);
                if !by_page {
                    let after = self.zone.buddyinfo();
                    let diff = after.iter().zip(&before).map(|(now, then)| now - then);
                    assert!(diff.eq(onlined.blocks_by_order.iter().copied()));
                }
            }
            Err(_) => assert_ne!(self.states[at], SectionState::Offline),
        }
    }

    pub(super) fn isolate(&mut self, section: u32) {
        let (id, at) = self.section(section);
        let types = self
            .zone
            .pageblocks(id)
            .map(|block| block.migratetype)
            .collect();
        if self.zone.isolate(id).is_ok() {
            assert_eq!(self.states[at], SectionState::Online);
            self.states[at] = SectionState::GoingOffline;
            self.types.insert(id.get(), types);
        } else {
            assert_ne!(self.states[at], SectionState::Online);
        }
    }

    pub(super) fn undo_isolate(&mut self, section: u32) {
        let (id, at) = self.section(section);
        if self.zone.undo_isolate(id).is_ok() {
            assert_eq!(self.states[at], SectionState::GoingOffline);
            self.states[at] = SectionState::Online;
            let before = self.types.remove(&id.get()).unwrap();
            for (block, was) in self.zone.pageblocks(id).zip(before) {
                // A block that became whole meanwhile may follow its buddy's type.
                let is_whole = block.nr_free == self.geometry.pageblock_pages();
                assert!(is_whole || block.migratetype == was);
            }
        } else {
            assert_ne!(self.states[at], SectionState::GoingOffline);
        }
    }

    pub(super) fn finish_offline(&mut self, section: u32) {
        let (id, at) = self.section(section);
        let pages = self.pages(id);
        let held: Vec<usize> = pages
            .clone()
            .filter(|&page| self.managed[page] && !self.home[page])
            .collect();
        match self.zone.finish_offline(id) {
            Ok(()) => {
                assert_eq!(self.states[at], SectionState::GoingOffline);
                assert_eq!(held, []);
                self.states[at] = SectionState::Offline;
                self.managed[pages.clone()].fill(false);
                self.home[pages].fill(false);
            }
            Err(SectionError::Busy { first, nr_held, .. }) => {
                assert_eq!(u64::from(first.get()), held[0] as u64 + self.start);
                assert_eq!(nr_held, held.len() as u64);
            }
            Err(_) => assert_ne!(self.states[at], SectionState::GoingOffline),
        }
    }

    pub(super) fn remove(&mut self, section: u32, abort: bool) {
        let (id, at) = self.section(section);
        if self.zone.begin_remove(id).is_err() {
            assert_ne!(self.states[at], SectionState::Offline);
            return;
        }
        assert_eq!(self.states[at], SectionState::Offline);
        if abort {
            self.zone.abort_remove(id).unwrap();
            return;
        }
        self.zone.finish_remove(id).unwrap();
        self.states[at] = SectionState::Absent;
        let pages = self.pages(id);
        self.present[pages].fill(false);
    }
}
