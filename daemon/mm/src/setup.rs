//! Watermarks and list limits of zones that share one machine.
//!
//! min is shared out over the zones by size, so each zone has to know how much the
//! others have: [`setup_zones`] tells them, after boot and after every online and
//! offline. A value set by a person stands until it is taken back.

use crate::watermark::{self, Watermarks};
use crate::{AllocFlags, Mark, Zone, ZoneKind};

/// How short of free pages a zone is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    /// Above `low`.
    #[default]
    None,
    /// Below `low`, boosted: background reclaim is to bring it up to `high`.
    Low,
    /// Below `min`: only requests that may dip are served.
    Min,
}

impl Pressure {
    /// The name shown to people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Pressure::None => "none",
            Pressure::Low => "low",
            Pressure::Min => "min",
        }
    }
}

/// What a zone's watermarks and list limits come from, and what they are now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    pub watermarks: Watermarks,
    /// Pages of the other normal zones.
    normal_elsewhere: u64,
    /// `min_free_kbytes` as a person set it.
    min_free_kib: Option<u64>,
    /// batch and high as a person set them.
    pcp: Option<(u64, u64)>,
    /// Pages kept back from requests that prefer zone `i`, by position in the zone list.
    pub protection: Vec<u64>,
}

impl Zone {
    /// min, low and high, in pages.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        self.marks.watermarks
    }

    /// Pages this zone keeps back from requests that prefer the zone at each position
    /// of the list given to [`setup_zones`].
    #[must_use]
    pub fn protection(&self) -> &[u64] {
        &self.marks.protection
    }

    /// Sets batch and high of the page lists, in pages, or with `None` goes back to the
    /// kernel's formulas. Takes effect at once; lists above high are drained.
    pub fn set_pcp(&mut self, batch_and_high: Option<(u64, u64)>) {
        self.marks.pcp = batch_and_high.map(|(batch, high)| (batch.max(1), high));
        self.recompute_marks();
        self.drain_above_high();
    }

    /// batch and high of the page lists, in pages.
    #[must_use]
    pub fn pcp_limits(&self) -> (u64, u64) {
        (self.pcp.batch, self.pcp.high)
    }

    /// Pages by which background reclaim should go beyond `high` for now, because
    /// requests had to claim parts of foreign pageblocks (the kernel's watermark boost).
    #[must_use]
    pub fn watermark_boost(&self) -> u64 {
        let pageblock = u64::from(self.geometry.pageblock_pages());
        watermark::boost(
            self.buddy.claims.since_boost,
            pageblock,
            self.managed,
            self.marks.watermarks.high,
        )
    }

    /// How short of free pages the zone is. One without managed pages is not short.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        let free = self.free_pages();
        let marks = self.marks.watermarks;
        if self.managed == 0 {
            Pressure::None
        } else if free < marks.min {
            Pressure::Min
        } else if free < marks.low + self.watermark_boost() {
            Pressure::Low
        } else {
            Pressure::None
        }
    }

    /// Pages that background reclaim, once begun, has still to bring home: up to `high`,
    /// boosted, but never more than there are.
    #[must_use]
    pub fn reclaim_pages(&self) -> u64 {
        let goal = self.marks.watermarks.high + self.watermark_boost();
        goal.min(self.managed).saturating_sub(self.free_pages())
    }

    /// How a request that would rather have zone `preferred` of the list given to
    /// [`setup_zones`] may be served here.
    #[must_use]
    pub fn flags_for(&self, mark: Mark, preferred: usize) -> AllocFlags {
        AllocFlags {
            reserve_pages: self.marks.protection.get(preferred).copied().unwrap_or(0),
            ..AllocFlags::to(mark)
        }
    }

    /// Background reclaim has made up for what was claimed.
    pub fn clear_watermark_boost(&mut self) {
        self.buddy.claims.since_boost = 0;
    }

    /// Computes marks and list limits from the pages managed now.
    pub(crate) fn recompute_marks(&mut self) {
        let page_kib = self.geometry.page_bytes() >> 10;
        let here = match self.config.kind {
            ZoneKind::Normal => self.managed,
            ZoneKind::Movable => 0,
        };
        let normal = here + self.marks.normal_elsewhere;
        let min_free_kib = self
            .marks
            .min_free_kib
            .unwrap_or_else(|| watermark::min_free_kib(normal * page_kib));
        let marks = Watermarks::compute(
            self.config.kind,
            self.managed,
            normal,
            min_free_kib / page_kib,
        );
        self.marks.watermarks = marks;
        let batch = watermark::pcp_batch(self.managed, self.geometry.page_bytes());
        let (batch, high) = self
            .marks
            .pcp
            .unwrap_or_else(|| (batch, watermark::pcp_high(marks.low, batch)));
        self.pcp.batch = batch;
        self.pcp.high = high;
    }
}

/// Shares `min_free_kib` (or what the formula gives, if `None`) out over the zones of
/// one machine, and computes each zone's protection against requests that prefer a
/// later zone of the list.
pub fn setup_zones<'a>(zones: impl IntoIterator<Item = &'a mut Zone>, min_free_kib: Option<u64>) {
    let mut zones: Vec<&mut Zone> = zones.into_iter().collect();
    let managed: Vec<u64> = zones.iter().map(|zone| zone.managed).collect();
    let kinds: Vec<ZoneKind> = zones.iter().map(|zone| zone.kind()).collect();
    let normal = |at: usize| match kinds[at] {
        ZoneKind::Normal => managed[at],
        ZoneKind::Movable => 0,
    };
    let all_normal: u64 = (0..zones.len()).map(normal).sum();
    for (at, zone) in zones.iter_mut().enumerate() {
        zone.marks.normal_elsewhere = all_normal - normal(at);
        zone.marks.min_free_kib = min_free_kib;
        // Only movable requests may fall back, and only to normal zones.
        zone.marks.protection = (0..managed.len())
            .map(|from| match (kinds[from], kinds[at]) {
                (ZoneKind::Movable, ZoneKind::Normal) => watermark::lowmem_reserve(managed[from]),
                _ => 0,
            })
            .collect();
        zone.recompute_marks();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{bring_online, zone, zone_of_kind};
    use crate::{Migratetype, Order, Pfn, SectionId};

    #[test]
    fn min_is_shared_out_by_size() {
        let (mut small, mut large) = (zone(), zone());
        bring_online(&mut small, 1);
        (1..4).for_each(|section| bring_online(&mut large, section));
        let mut zones = vec![small, large];
        // 100 KiB are 25 pages, for 1024 pages in all.
        setup_zones(&mut zones, Some(100));
        assert_eq!(zones[0].watermarks().min, 6);
        assert_eq!(zones[1].watermarks().min, 18);
        assert_eq!(zones[1].protection(), [0, 0]);
    }

    #[test]
    fn a_normal_zone_protects_itself_from_movable_requests() {
        let mut zones = [zone(), zone_of_kind(ZoneKind::Movable)];
        zones.iter_mut().for_each(|zone| bring_online(zone, 1));
        setup_zones(&mut zones, None);
        assert_eq!(zones[0].protection(), [0, 8]);
        assert_eq!(zones[1].protection(), [0, 0]);
        let flags = zones[0].flags_for(Mark::None, 1);
        assert_eq!(flags.reserve_pages, 8);
        assert_eq!(zones[0].flags_for(Mark::Min, 0), AllocFlags::MIN);
        let mut pages = Vec::new();
        zones[0].rmqueue_bulk(Order::ZERO, Migratetype::Movable, 999, flags, &mut pages);
        assert_eq!(zones[0].counts().free, 8);
    }

    #[test]
    fn pressure_begins_below_low_and_reclaim_goes_up_to_high() {
        let mut zone = zone();
        assert_eq!((zone.pressure(), zone.reclaim_pages()), (Pressure::None, 0));
        bring_online(&mut zone, 1);
        let marks = zone.watermarks();
        assert!(marks.min < marks.low && marks.low < marks.high);
        let mut pages = Vec::new();
        let take = |zone: &mut Zone, down_to: u64, pages: &mut Vec<Pfn>| {
            let nr = usize::try_from(zone.free_pages() - down_to).unwrap();
            zone.rmqueue_bulk(
                Order::ZERO,
                Migratetype::Movable,
                nr,
                AllocFlags::DIP,
                pages,
            );
        };
        take(&mut zone, marks.low, &mut pages);
        assert_eq!(zone.pressure(), Pressure::None);
        take(&mut zone, marks.low - 1, &mut pages);
        assert_eq!(zone.pressure(), Pressure::Low);
        assert_eq!(zone.reclaim_pages(), marks.high - marks.low + 1);
        take(&mut zone, marks.min - 1, &mut pages);
        assert_eq!(zone.pressure(), Pressure::Min);
    }

    #[test]
    fn a_boost_raises_low_and_high_and_leaves_min() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        let mut pages = Vec::new();
        zone.rmqueue_bulk(
            Order::ZERO,
            Migratetype::Movable,
            256,
            AllocFlags::DIP,
            &mut pages,
        );
        pages
            .drain(..112)
            .for_each(|page| zone.free(page, Order::ZERO));
        // Half of a movable pageblock is claimed.
        zone.take_exact(Pfn::new(256), Order::new(6).unwrap());
        zone.take_exact(Pfn::new(320), Order::new(5).unwrap());
        let flags = AllocFlags::DIP;
        let page = zone
            .alloc(Order::ZERO, Migratetype::Unmovable, flags)
            .unwrap();
        zone.free(page, Order::ZERO);
        assert_eq!((zone.watermark_boost(), zone.free_pages()), (32, 16));
        zone.free(Pfn::new(320), Order::new(5).unwrap());
        let marks = zone.watermarks();
        assert_eq!(zone.allowance(AllocFlags::MIN), 48 - marks.min);
        assert_eq!(
            zone.allowance(AllocFlags::LOW),
            48u64.saturating_sub(marks.low + 32)
        );
        assert_eq!(zone.reclaim_pages(), (marks.high + 32).saturating_sub(48));
        zone.clear_watermark_boost();
        assert_eq!(zone.allowance(AllocFlags::LOW), 48 - marks.low);
    }

    #[test]
    fn limits_set_by_hand_stand_and_drain_at_once() {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        zone.set_pcp(Some((4, 40)));
        let mut pages = Vec::new();
        zone.rmqueue_bulk(
            Order::ZERO,
            Migratetype::Movable,
            30,
            AllocFlags::DIP,
            &mut pages,
        );
        pages
            .into_iter()
            .for_each(|page| zone.pcp_put(page, Order::ZERO));
        assert_eq!(zone.counts().pcp, 30);
        zone.set_pcp(Some((4, 10)));
        assert_eq!(zone.counts().pcp, 10);
        bring_online(&mut zone, 2);
        assert_eq!(zone.pcp_limits(), (4, 10));
        zone.isolate(SectionId::new(2)).unwrap();
        zone.finish_offline(SectionId::new(2)).unwrap();
        assert_eq!(zone.pcp_limits(), (4, 10));
        zone.set_pcp(None);
        assert_eq!(zone.pcp_limits().0, 1);
        zone.verify().unwrap();
    }
}
