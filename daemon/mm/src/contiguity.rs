//! "Is this whole pageblock in this zone and online?", and two caches of the answer.
//!
//! The honest answer walks the section's extents. It is remembered per zone (every
//! pageblock of the span says yes) and per pageblock (`PB_cached`, `PB_contiguous`), so
//! that one hole does not lose the cache for all. Each cache can be switched off.
//!
//! The kernel loses the zone's answer at its first hot-add and never asks again while
//! memory only grows. Here it is asked again after every hot event, which is a
//! deliberate difference; a count of whole sections makes asking cheap.

use crate::pageblock::Row;
use crate::{Pfn, Zone};

/// Which caches answer before the extents are walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContiguityMode {
    /// Always walk.
    None,
    /// The zone's answer only, as the kernel has it.
    Zone,
    /// The pageblock's answer only.
    Pageblock,
    /// The zone's, then the pageblock's.
    #[default]
    Both,
}

impl ContiguityMode {
    /// The word for it, in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            ContiguityMode::None => "none",
            ContiguityMode::Zone => "zone",
            ContiguityMode::Pageblock => "pageblock",
            ContiguityMode::Both => "both",
        }
    }

    const fn asks_zone(self) -> bool {
        matches!(self, ContiguityMode::Zone | ContiguityMode::Both)
    }

    const fn asks_pageblock(self) -> bool {
        matches!(self, ContiguityMode::Pageblock | ContiguityMode::Both)
    }
}

/// A pageblock of a zone, for questions about it: whoever scans has its row at hand already, and the
/// cached answer lies in that.
#[derive(Clone, Copy, Debug)]
pub struct PageblockAt {
    pub(crate) start: Pfn,
    pub(crate) block: u32,
    pub(crate) row: Row,
}

impl PageblockAt {
    /// Its first page.
    #[must_use]
    pub fn start(self) -> Pfn {
        self.start
    }
}

/// The caches and how they have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contiguity {
    mode: ContiguityMode,
    /// The zone's answer; `None` when it has not been asked since the last change.
    zone: Option<bool>,
    /// The zone is asked, and says yes.
    trusts_zone: bool,
    /// Pageblocks are not asked.
    ignores_pageblocks: bool,
    /// Managed sections without a hole.
    pub nr_whole_sections: u64,
    zone_hits: u64,
    pageblock_hits: u64,
    misses: u64,
    walks: u64,
}

impl Contiguity {
    /// The zone's answer, if it is remembered.
    pub fn zone(&self) -> Option<bool> {
        self.zone
    }

    fn set(&mut self, mode: ContiguityMode, zone: Option<bool>) {
        self.mode = mode;
        self.zone = zone;
        self.trusts_zone = mode.asks_zone() && zone == Some(true);
        self.ignores_pageblocks = !mode.asks_pageblock();
    }
}

/// The contiguity caches of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguityReport {
    /// Which caches are in use.
    pub mode: ContiguityMode,
    /// The zone's answer; `None` when it has not been asked since it was cleared.
    pub zone: Option<bool>,
    /// Managed pageblocks.
    pub nr_pageblocks: u64,
    /// Pageblocks with a remembered answer.
    pub nr_cached: u64,
    /// Pageblocks whose remembered answer is yes.
    pub nr_contiguous: u64,
    /// Questions answered by the zone's cache.
    pub zone_hits: u64,
    /// Questions answered by the pageblock's cache.
    pub pageblock_hits: u64,
    /// Questions that no cache in use could answer.
    pub misses: u64,
    /// Walks of a section's extents.
    pub walks: u64,
}

impl Zone {
    /// The first page of the pageblock around `pfn`, if the whole pageblock is in this
    /// zone, present and online.
    #[inline]
    pub fn pageblock_pfn_to_page(&mut self, pfn: Pfn) -> Option<Pfn> {
        let start = pfn.align_down(self.geometry.pageblock_order());
        if self.is_whole_zone(start) {
            return Some(start);
        }
        let (block, _) = self.buddy.shape.split(self.offset_of(start)?);
        let row = |zone: &Zone| zone.buddy.row(block);
        self.is_whole_by_itself(start, block, row).then_some(start)
    }

    /// As [`pageblock_pfn_to_page`](Self::pageblock_pfn_to_page), by who has the row already.
    #[inline]
    pub fn is_whole(&mut self, at: PageblockAt) -> bool {
        self.is_whole_zone(at.start) || self.is_whole_by_itself(at.start, at.block, |_| at.row)
    }

    #[inline]
    fn is_whole_zone(&mut self, start: Pfn) -> bool {
        if !self.contiguity.trusts_zone || !self.span.contains(start) {
            return false;
        }
        self.contiguity.zone_hits += 1;
        true
    }

    #[inline]
    fn is_whole_by_itself(
        &mut self,
        start: Pfn,
        block: u32,
        row: impl FnOnce(&Zone) -> Row,
    ) -> bool {
        if !self.contiguity.ignores_pageblocks
            && let Some(answer) = row(self).contiguity()
        {
            self.contiguity.pageblock_hits += 1;
            return answer;
        }
        self.ask_honestly(start, block)
    }

    /// No cache in use knows: looks, and remembers if it may.
    #[inline(never)]
    fn ask_honestly(&mut self, start: Pfn, block: u32) -> bool {
        self.contiguity.misses += 1;
        self.contiguity.walks += 1;
        let answer = self.is_whole_pageblock(start);
        let row = self.buddy.row(block);
        if self.contiguity.mode.asks_pageblock() && row.is_managed() {
            self.buddy.set_row(block, row.with_contiguity(Some(answer)));
        }
        answer
    }

    /// The honest answer: asks no cache and changes none.
    #[must_use]
    pub fn is_whole_pageblock(&self, pfn: Pfn) -> bool {
        let block = pfn
            .align_down(self.geometry.pageblock_order())
            .block(self.geometry.pageblock_order());
        let Some(section) = self.section_at(pfn) else {
            return false;
        };
        section.state.is_managed()
            && section
                .extents
                .as_deref()
                .is_none_or(|extents| extents.iter().any(|extent| extent.covers(block)))
    }

    /// Asks whether every pageblock of the span is whole and online, and remembers.
    pub fn ask_contiguity(&mut self) -> bool {
        let section_pages = u64::from(self.geometry.section_pages());
        let spanned_sections = self.span().nr_pages() / section_pages;
        let answer = spanned_sections != 0 && self.contiguity.nr_whole_sections == spanned_sections;
        self.contiguity.set(self.contiguity.mode, Some(answer));
        answer
    }

    /// Forgets all remembered answers; they are asked again as they are needed.
    pub fn invalidate_contiguity(&mut self) {
        self.contiguity.set(self.contiguity.mode, None);
        for section in self.present_sections.iter().collect::<Vec<_>>() {
            self.forget_contiguity(section);
        }
    }

    /// Chooses the caches in use; what they hold stays and stays true.
    pub fn set_contiguity_mode(&mut self, mode: ContiguityMode) {
        self.contiguity.set(mode, self.contiguity.zone);
    }

    /// The caches, as they are.
    #[must_use]
    pub fn contiguity(&self) -> ContiguityReport {
        let (mut nr_pageblocks, mut nr_cached, mut nr_contiguous) = (0, 0, 0);
        for section in self.present_sections.iter() {
            for block in self.section_blocks(section) {
                let row = self.buddy.row(block);
                nr_pageblocks += u64::from(row.is_managed());
                nr_cached += u64::from(row.contiguity().is_some());
                nr_contiguous += u64::from(row.contiguity() == Some(true));
            }
        }
        let c = &self.contiguity;
        ContiguityReport {
            mode: c.mode,
            zone: c.zone,
            nr_pageblocks,
            nr_cached,
            nr_contiguous,
            zone_hits: c.zone_hits,
            pageblock_hits: c.pageblock_hits,
            misses: c.misses,
            walks: c.walks,
        }
    }

    /// A section has come, gone or changed sides, so the zone's answer is void; it is
    /// asked again at once, since it costs two counts. The pageblocks' answers lie in
    /// rows that are made with the section's going online and gone with its going off.
    pub(crate) fn contiguity_changed(&mut self) {
        self.ask_contiguity();
    }

    fn forget_contiguity(&mut self, section: u32) {
        for block in self.section_blocks(section) {
            let row = self.buddy.row(block);
            self.buddy.set_row(block, row.with_contiguity(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{add_with_holes, bring_online, zone};
    use crate::{OnlineOrder, SectionId};

    fn ask_all(zone: &mut Zone, section: u32) -> usize {
        let start = section * 256;
        (start..start + 256)
            .step_by(32)
            .filter(|&pfn| zone.pageblock_pfn_to_page(Pfn::new(pfn + 7)).is_some())
            .count()
    }

    #[test]
    fn a_zone_without_holes_answers_for_its_pageblocks() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        bring_online(&mut zone, 2);
        assert_eq!(
            zone.contiguity().zone,
            Some(true),
            "asked again after the second hot-add"
        );
        assert_eq!(ask_all(&mut zone, 1), 8);
        let report = zone.contiguity();
        assert_eq!((report.zone_hits, report.misses, report.walks), (8, 0, 0));
        assert_eq!(
            zone.pageblock_pfn_to_page(Pfn::new(256 + 40)),
            Some(Pfn::new(256 + 32))
        );
        assert_eq!(
            zone.pageblock_pfn_to_page(Pfn::new(3 * 256)),
            None,
            "past the span"
        );
    }

    #[test]
    fn a_hole_loses_the_zones_answer_and_not_the_pageblocks() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        add_with_holes(&mut zone, 2, &[(0, 100), (101, 256)]);
        zone.online(SectionId::new(2), OnlineOrder::Pageblock)
            .unwrap();
        zone.verify().unwrap();
        assert_eq!(zone.contiguity().zone, Some(false));
        for walks in [8, 8] {
            assert_eq!(ask_all(&mut zone, 2), 7);
            assert_eq!(
                zone.contiguity().walks,
                walks,
                "the second round asks the cache"
            );
        }
        let report = zone.contiguity();
        assert_eq!(
            (
                report.nr_cached,
                report.nr_contiguous,
                report.pageblock_hits
            ),
            (8, 7, 8)
        );
        zone.verify().unwrap();
    }

    #[test]
    fn each_cache_can_be_switched_off() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        for (mode, hits, walks) in [
            (ContiguityMode::None, (0, 0), 16),
            (ContiguityMode::Zone, (16, 0), 16),
            (ContiguityMode::Pageblock, (16, 8), 24),
            (ContiguityMode::Both, (32, 8), 24),
        ] {
            zone.set_contiguity_mode(mode);
            assert_eq!(ask_all(&mut zone, 1) + ask_all(&mut zone, 1), 16);
            let report = zone.contiguity();
            assert_eq!((report.zone_hits, report.pageblock_hits), hits, "{mode:?}");
            assert_eq!(report.walks, walks, "{mode:?}");
        }
    }

    #[test]
    fn hot_events_clear_what_they_touch_and_no_more() {
        let mut zone = zone();
        let two = SectionId::new(2);
        bring_online(&mut zone, 1);
        zone.set_contiguity_mode(ContiguityMode::Pageblock);
        ask_all(&mut zone, 1);
        bring_online(&mut zone, 2);
        ask_all(&mut zone, 2);
        assert_eq!(zone.contiguity().nr_cached, 16);
        zone.isolate(two).unwrap();
        assert_eq!(ask_all(&mut zone, 2), 8, "online until it is taken");
        zone.finish_offline(two).unwrap();
        assert_eq!(zone.contiguity().nr_cached, 8);
        assert_eq!(
            zone.contiguity().zone,
            Some(false),
            "an offline section lies in the span"
        );
        assert_eq!(ask_all(&mut zone, 2), 0);
        zone.verify().unwrap();
        zone.begin_remove(two).unwrap();
        zone.finish_remove(two).unwrap();
        assert_eq!(zone.contiguity().zone, Some(true), "the span has shrunk");
    }

    #[test]
    fn invalidated_answers_are_asked_again_when_needed() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        ask_all(&mut zone, 1);
        zone.invalidate_contiguity();
        assert_eq!(
            (zone.contiguity().zone, zone.contiguity().nr_cached),
            (None, 0)
        );
        assert_eq!(ask_all(&mut zone, 1), 8);
        assert_eq!(zone.contiguity().walks, 8);
        assert!(zone.ask_contiguity());
    }

    #[test]
    fn a_pageblock_that_two_zones_share_is_whole_in_neither() {
        let (mut low, mut high) = (zone(), zone());
        add_with_holes(&mut low, 1, &[(0, 48)]);
        add_with_holes(&mut high, 1, &[(48, 256)]);
        for zone in [&mut low, &mut high] {
            zone.online(SectionId::new(1), OnlineOrder::Pageblock)
                .unwrap();
            zone.verify().unwrap();
            assert_eq!(zone.pageblock_pfn_to_page(Pfn::new(256 + 40)), None);
        }
        assert!(low.pageblock_pfn_to_page(Pfn::new(256)).is_some());
        assert!(high.pageblock_pfn_to_page(Pfn::new(256 + 64)).is_some());
    }
}
