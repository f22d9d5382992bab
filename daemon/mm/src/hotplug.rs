//! Sections come and go: add, online, isolate, offline, remove.
//!
//! Two phases up and two down, each a pair of calls where the caller has slow work to
//! do in between (backing, recalls). Every call either makes its transition or leaves
//! everything as it was. Legal transitions:
//!
//! ```text
//! Absent ─begin_add→ Adding ─finish_add→ Offline ─online→ Online ─isolate→ GoingOffline
//!    ↑       abort_add │                  │    ↑             ↑ undo_isolate │     │
//!    └─────────────────┘                  │    └─────────────┼──────────────┼─────┘ finish_offline
//!    └──finish_remove── Removing ←begin_remove┘              └──────────────┘
//! ```

use crate::num::{index, low_u32};
use crate::section::Section;
use crate::{
    Migratetype, Order, Pfn, PfnRange, SectionError, SectionId, SectionInfo, SectionState, Zone,
};

/// In which units a section's pages are freed when it comes online.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnlineOrder {
    /// Whole pageblocks (in blocks of `MAX_PAGE_ORDER`, which are whole pageblocks too).
    #[default]
    Pageblock,
    /// Page by page through the page lists, merging upward: what old kernels did.
    Page,
}

/// What an online brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Onlined {
    /// Pageblocks that have pages.
    pub nr_pageblocks: u64,
    /// Pages that are managed and free now.
    pub nr_pages: u64,
    /// Free blocks gained, by order `0..=MAX_PAGE_ORDER`.
    pub blocks_by_order: Vec<u64>,
}

impl Zone {
    /// Starts to add an absent section: its backing is about to be made.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn begin_add(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Absent)?;
        self.sections[index(at)].state = SectionState::Adding;
        self.absent_sections.remove(at);
        Ok(())
    }

    /// The backing could not be made: the section is absent again.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn abort_add(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Adding)?;
        self.sections[index(at)].state = SectionState::Absent;
        self.absent_sections.insert(at);
        Ok(())
    }

    /// The backing is there: all pages of the section are present, and it is offline.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn finish_add(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Adding)?;
        self.set_present(at, self.geometry.section_pages(), None);
        Ok(())
    }

    /// As [`finish_add`](Self::finish_add) for a section of which only `extents` exist.
    ///
    /// # Errors
    /// As there, and [`SectionError::BadExtents`] if the extents are not ascending,
    /// apart, inside the section, and at least one page.
    pub fn finish_add_with_holes(
        &mut self,
        section: SectionId,
        extents: &[PfnRange],
    ) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Adding)?;
        let range = self.geometry.section_range(section);
        let ascending = extents.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let inside = extents
            .iter()
            .all(|extent| !extent.is_empty() && range.covers(*extent));
        if extents.is_empty() || !ascending || !inside {
            return Err(SectionError::BadExtents { section });
        }
        // Extents that touch are one, so that a pageblock is whole if one extent has it.
        let mut joined: Vec<PfnRange> = Vec::with_capacity(extents.len());
        for &extent in extents {
            match joined.last_mut().filter(|last| last.end == extent.start) {
                Some(last) => last.end = extent.end,
                None => joined.push(extent),
            }
        }
        let present = low_u32(joined.iter().map(|extent| extent.nr_pages()).sum());
        let is_whole = joined == [range];
        self.set_present(at, present, (!is_whole).then(|| joined.into_boxed_slice()));
        Ok(())
    }

    /// Brings an offline section's pages to the free lists, as movable pageblocks.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn online(
        &mut self,
        section: SectionId,
        order: OnlineOrder,
    ) -> Result<Onlined, SectionError> {
        let at = self.expect_state(section, SectionState::Offline)?;
        let blocks = self.section_blocks(at);
        if order == OnlineOrder::Page {
            // What is listed of other sections must not be counted as gained here.
            self.pcp_drain();
        }
        let before = self.free_blocks_movable();
        let is_whole = self.sections[index(at)].is_whole();
        match order {
            OnlineOrder::Pageblock if is_whole => {
                self.buddy
                    .insert_whole(blocks.start, blocks.end, Migratetype::Movable);
            }
            OnlineOrder::Pageblock => self.online_extents(at, Self::free_aligned),
            OnlineOrder::Page => {
                self.online_extents(at, Self::free_page_by_page);
                self.pcp_drain_section(section);
            }
        }
        let row = &mut self.sections[index(at)];
        row.state = SectionState::Online;
        row.managed = row.present;
        let nr_pages = u64::from(row.present);
        self.managed += nr_pages;
        self.contiguity.nr_whole_sections += u64::from(is_whole);
        self.contiguity_changed(at);
        self.recompute_marks();
        let gained = self.free_blocks_movable();
        let blocks_by_order = gained
            .iter()
            .zip(&before)
            .map(|(now, then)| now - then)
            .collect();
        let nr_pageblocks = blocks
            .filter(|&block| self.buddy.row(block).is_managed())
            .count();
        Ok(Onlined {
            nr_pageblocks: nr_pageblocks as u64,
            nr_pages,
            blocks_by_order,
        })
    }

    /// Puts all pageblocks of an online section out of reach, and calls its pages home
    /// from the zone's own lists. What is freed into it later stays out of reach.
    /// Returns the pages still held.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn isolate(&mut self, section: SectionId) -> Result<u64, SectionError> {
        let at = self.expect_state(section, SectionState::Online)?;
        self.set_isolated(at, true);
        self.sections[index(at)].state = SectionState::GoingOffline;
        self.pcp_drain_section(section);
        Ok(self.held_pages(at))
    }

    /// Gives an isolated section back exactly as it was: types and free lists.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn undo_isolate(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::GoingOffline)?;
        self.set_isolated(at, false);
        self.sections[index(at)].state = SectionState::Online;
        Ok(())
    }

    /// Takes an isolated section out of management, once all of it is free.
    ///
    /// # Errors
    /// [`SectionError::Busy`] while pages are held; also
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn finish_offline(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::GoingOffline)?;
        let nr_held = self.held_pages(at);
        if nr_held != 0 {
            let first = self.first_held(at).expect("a held page is not free");
            return Err(SectionError::Busy {
                section,
                first,
                nr_held,
            });
        }
        for block in self.section_blocks(at) {
            if self.buddy.row(block).is_managed() {
                self.buddy.remove_block(block);
            }
        }
        self.buddy.drop_bits(at);
        let row = &mut self.sections[index(at)];
        row.state = SectionState::Offline;
        let managed = u64::from(core::mem::take(&mut row.managed));
        let is_whole = row.is_whole();
        self.managed = self
            .managed
            .checked_sub(managed)
            .expect("a zone manages its sections' pages");
        self.contiguity.nr_whole_sections -= u64::from(is_whole);
        self.contiguity_changed(at);
        self.recompute_marks();
        Ok(())
    }

    /// Starts to remove an offline section: its backing is about to be given up.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn begin_remove(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Offline)?;
        self.sections[index(at)].state = SectionState::Removing;
        Ok(())
    }

    /// The backing could not be given up: the section is offline again.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn abort_remove(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Removing)?;
        self.sections[index(at)].state = SectionState::Offline;
        Ok(())
    }

    /// The backing is gone: the section is absent, and the span shrinks if it was outermost.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn finish_remove(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Removing)?;
        let row = core::mem::take(&mut self.sections[index(at)]);
        self.present = self
            .present
            .checked_sub(u64::from(row.present))
            .expect("a zone has its sections' pages");
        self.present_sections.remove(at);
        self.absent_sections.insert(at);
        self.contiguity_changed(at);
        Ok(())
    }

    /// The `nr` lowest absent sections, fewer if there are not that many.
    #[must_use]
    pub fn lowest_absent(&self, nr: usize) -> Vec<SectionId> {
        self.absent_sections
            .iter()
            .take(nr)
            .map(|at| self.section_id(at))
            .collect()
    }

    /// The state of a section; `None` outside this zone's reserve.
    #[must_use]
    pub fn section_state(&self, section: SectionId) -> Option<SectionState> {
        self.section_index(section)
            .map(|at| self.sections[index(at)].state)
    }

    /// One section's line; `None` outside this zone's reserve.
    #[must_use]
    pub fn section(&self, section: SectionId) -> Option<SectionInfo> {
        self.section_index(section).map(|at| self.section_info(at))
    }

    /// Sections that are not absent, ascending.
    pub fn sections(&self) -> impl Iterator<Item = SectionInfo> + '_ {
        (0..self.present_sections_end())
            .filter(|&at| self.sections[index(at)].state != SectionState::Absent)
            .map(|at| self.section_info(at))
    }

    /// The pages of a section that exist, ascending; empty while not present.
    #[must_use]
    pub fn extents(&self, section: SectionId) -> Vec<PfnRange> {
        match self
            .section_index(section)
            .map(|at| &self.sections[index(at)])
        {
            Some(row) if row.state.is_present() => match &row.extents {
                Some(extents) => extents.to_vec(),
                None => vec![self.geometry.section_range(section)],
            },
            _ => Vec::new(),
        }
    }

    /// Free pages in a section's isolated pageblocks.
    #[must_use]
    pub fn isolated_free(&self, section: SectionId) -> u64 {
        self.section(section).map_or(0, |info| info.isolated)
    }

    /// Managed and reserved pages of a section that are not free.
    #[must_use]
    pub fn held_in(&self, section: SectionId) -> u64 {
        self.section_index(section)
            .map_or(0, |at| self.held_pages(at))
    }

    /// First to last present section, as pages; empty if none is present.
    #[must_use]
    pub fn span(&self) -> PfnRange {
        match (self.present_sections.first(), self.present_sections.last()) {
            (Some(first), Some(last)) => PfnRange {
                start: self.geometry.section_range(self.section_id(first)).start,
                end: self.geometry.section_range(self.section_id(last)).end,
            },
            _ => PfnRange::default(),
        }
    }

    pub(crate) fn section_blocks(&self, at: u32) -> core::ops::Range<u32> {
        let shift = self.buddy.shape.section_shift;
        at << shift..(at + 1) << shift
    }

    pub(crate) fn section_id(&self, at: u32) -> SectionId {
        SectionId::new((self.config.start.get() >> self.geometry.section_order()) + at)
    }

    pub(crate) fn section_index(&self, section: SectionId) -> Option<u32> {
        let start = self.geometry.section_start(section)?;
        self.offset_of(start)
            .map(|offset| offset >> self.geometry.section_order())
    }

    pub(crate) fn section_at(&self, pfn: Pfn) -> Option<&Section> {
        let offset = self.offset_of(pfn)?;
        Some(&self.sections[index(offset >> self.geometry.section_order())])
    }

    pub(crate) fn held_pages(&self, at: u32) -> u64 {
        let row = &self.sections[index(at)];
        let total = u64::from(row.managed) + u64::from(row.reserved);
        total - self.section_free(at)
    }

    fn section_free(&self, at: u32) -> u64 {
        self.section_blocks(at)
            .map(|block| u64::from(self.buddy.row(block).nr_free()))
            .sum()
    }

    fn expect_state(&self, section: SectionId, wanted: SectionState) -> Result<u32, SectionError> {
        let Some(at) = self.section_index(section) else {
            return Err(SectionError::NotInZone { section });
        };
        let state = self.sections[index(at)].state;
        if state != wanted {
            return Err(SectionError::WrongState { section, state });
        }
        Ok(at)
    }

    fn set_present(&mut self, at: u32, present: u32, extents: Option<Box<[PfnRange]>>) {
        self.sections[index(at)] = Section {
            state: SectionState::Offline,
            present,
            managed: 0,
            reserved: 0,
            extents,
        };
        self.present += u64::from(present);
        self.present_sections.insert(at);
        self.contiguity_changed(at);
    }

    /// Manages the pageblocks of a section that have pages, and frees each extent.
    fn online_extents(&mut self, at: u32, free: fn(&mut Zone, PfnRange)) {
        let pageblock = self.geometry.pageblock_order();
        for extent in self.extents(self.section_id(at)) {
            let base = u64::from(self.config.start.get());
            let first = low_u32(extent.start - base) >> pageblock.get();
            let last = low_u32(extent.end - 1 - base) >> pageblock.get();
            for block in first..=last {
                if !self.buddy.row(block).is_managed() {
                    self.buddy.insert_full(block, Migratetype::Movable);
                }
            }
            free(self, extent);
        }
    }

    /// Frees a range in the largest aligned blocks.
    fn free_aligned(&mut self, range: PfnRange) {
        let max = u32::from(self.geometry.max_order().get());
        let mut at = range.start;
        while at < range.end {
            let fits = (range.end - at).ilog2();
            let order = Order::from_bits(at.trailing_zeros().min(fits).min(max));
            self.free(Pfn::new(low_u32(at)), order);
            at += u64::from(order.nr_pages());
        }
    }

    /// Frees a range page by page through the page lists; each page merges by itself.
    fn free_page_by_page(&mut self, range: PfnRange) {
        for pfn in range.start..range.end {
            self.pcp_put(Pfn::new(low_u32(pfn)), Order::ZERO);
        }
    }

    fn set_isolated(&mut self, at: u32, isolated: bool) {
        for block in self.section_blocks(at) {
            let row = self.buddy.row(block);
            if row.is_managed() {
                self.buddy.move_block(block, row.with_isolated(isolated));
            }
        }
    }

    fn section_info(&self, at: u32) -> SectionInfo {
        let row = &self.sections[index(at)];
        let id = self.section_id(at);
        let nr_free = self.section_free(at);
        let is_isolated = row.state == SectionState::GoingOffline;
        SectionInfo {
            id,
            start: self.absolute(at << self.geometry.section_order()),
            nr_pages: u64::from(self.geometry.section_pages()),
            state: row.state,
            present: u64::from(row.present),
            managed: u64::from(row.managed),
            free: if is_isolated { 0 } else { nr_free },
            isolated: if is_isolated { nr_free } else { 0 },
            held: self.held_pages(at),
        }
    }

    fn free_blocks_movable(&self) -> Vec<u64> {
        self.buddy.pools[Migratetype::Movable.index()].free_blocks(self.buddy.shape.pageblock_order)
    }

    /// One past the last section that is not absent, or close above it.
    fn present_sections_end(&self) -> u32 {
        crate::num::to_u32(self.sections.len())
    }
}
