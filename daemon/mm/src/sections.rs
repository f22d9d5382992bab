//! Questions about a zone's sections: states, extents, what is free or held in them.
//!
//! Changes nothing; the transitions are [`hotplug`](crate::hotplug).

use crate::num::index;
use crate::section::Section;
use crate::{Pfn, PfnRange, SectionId, SectionInfo, SectionState, Zone};

impl Zone {
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
        (0..crate::num::to_u32(self.sections.len()))
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
        self.span
    }

    /// Looks up the outermost present sections.
    pub(crate) fn find_span(&self) -> PfnRange {
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
}
