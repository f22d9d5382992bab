//! The kernel's formulas: watermarks of zones, and the limits of page lists.
//!
//! Pure arithmetic over page counts; [`setup_zones`](crate::setup_zones) applies it.
//! Sources: `__setup_per_zone_wmarks`, `calculate_min_free_kbytes`,
//! `setup_per_zone_lowmem_reserve`, `zone_batchsize`, `zone_highsize`.

use crate::ZoneKind;

/// min, low and high of a zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this only a request that may dip is served.
    pub min: u64,
    /// Below this background reclaim should run.
    pub low: u64,
    /// Up to this background reclaim should go.
    pub high: u64,
}

/// Smallest `min_free_kbytes` the kernel computes.
const MIN_FREE_KIB_FLOOR: u64 = 128;
/// Largest `min_free_kbytes` the kernel computes.
const MIN_FREE_KIB_CEILING: u64 = 256 << 10;
/// `watermark_scale_factor`: the step between marks is at least this over 10000.
const SCALE_FACTOR: u64 = 10;
/// `watermark_boost_factor`: the boost is at most this over 10000 of `high`.
const BOOST_FACTOR: u64 = 15_000;
/// min of a movable zone, in pages: at least a reclaim cluster, at most four.
const MOVABLE_MIN: core::ops::RangeInclusive<u64> = 32..=128;
/// `lowmem_reserve_ratio` of a normal zone against requests that prefer a movable one.
const RESERVE_RATIO: u64 = 32;

/// `min_free_kbytes` for that much memory in normal zones: 4 times its square root.
#[must_use]
pub fn min_free_kib(normal_kib: u64) -> u64 {
    (normal_kib * 16)
        .isqrt()
        .clamp(MIN_FREE_KIB_FLOOR, MIN_FREE_KIB_CEILING)
}

impl Watermarks {
    /// The marks of a zone of `managed` pages, where all normal zones together have
    /// `normal` pages and keep `min_free` pages.
    #[must_use]
    pub fn compute(kind: ZoneKind, managed: u64, normal: u64, min_free: u64) -> Watermarks {
        let share = match u128::from(normal) {
            0 => 0,
            total => {
                let share = u128::from(min_free) * u128::from(managed) / total;
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        };
        let min = match kind {
            ZoneKind::Normal => share,
            ZoneKind::Movable => (managed / 1024).clamp(*MOVABLE_MIN.start(), *MOVABLE_MIN.end()),
        };
        // The kernel has no zones of a few pages; ours in tests must not be all reserve.
        let min = min.min(managed / 4);
        let step = (share / 4).max(managed * SCALE_FACTOR / 10_000);
        Watermarks {
            min,
            low: min + step,
            high: min + 2 * step,
        }
    }
}

/// Pages a normal zone keeps back from requests that would rather have a movable one.
#[must_use]
pub fn lowmem_reserve(movable_managed: u64) -> u64 {
    movable_managed / RESERVE_RATIO
}

/// Pages that `nr_claims` claimed pageblocks raise a zone's marks by: a pageblock each,
/// up to one and a half times `high`; none in a zone of less than four pageblocks.
#[must_use]
pub fn boost(nr_claims: u64, pageblock_pages: u64, managed: u64, high: u64) -> u64 {
    if pageblock_pages * 4 > managed {
        return 0;
    }
    let most = (high * BOOST_FACTOR / 10_000).max(pageblock_pages);
    nr_claims.saturating_mul(pageblock_pages).min(most)
}

/// What is left of `min` by requests that can neither wait nor do without: half of it, and
/// a quarter of that half.
#[must_use]
pub fn atomic_mark(min: u64) -> u64 {
    let half = min - min / 2;
    half - half / 4
}

/// Pages moved per visit between a page list and its zone.
#[must_use]
pub fn pcp_batch(managed: u64, page_bytes: u64) -> u64 {
    let batch = (managed >> 10).min((1 << 20) / page_bytes) / 4;
    let batch = batch.max(1);
    let padded = batch + batch / 2;
    // One less than a power of two, against cache aliasing (the kernel's reason).
    ((1 << padded.ilog2()) - 1u64).max(1)
}

/// Pages a list may hold before it is drained; one processor's share is the whole.
#[must_use]
pub fn pcp_high(low_mark: u64, batch: u64) -> u64 {
    low_mark.max(batch * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_the_kernels() {
        assert_eq!(pcp_batch(0, 4096), 1);
        assert_eq!(pcp_batch(4 << 18, 4096), 63);
        assert_eq!(pcp_batch(32_768, 4096), 7);
        assert_eq!(pcp_batch(u64::MAX, 65_536), 3);
        assert_eq!(pcp_high(0, 63), 252);
    }

    #[test]
    fn marks_of_a_real_machine() {
        // A public zoneinfo of two nodes that keeps 2464 pages (managed; min, low, high).
        // Its kernel still shared min out to movable zones, as to any other.
        let zones = [
            (3_977, [5, 8, 11]),
            (758_116, [1_129, 1_887, 2_645]),
            (503_620, [750, 1_253, 1_756]),
            (131_072, [195, 326, 457]),
            (257_744, [383, 640, 897]),
        ];
        let total = zones.iter().map(|(managed, _)| managed).sum();
        for (managed, expected) in zones {
            let marks = Watermarks::compute(ZoneKind::Normal, managed, total, 2_464);
            assert_eq!([marks.min, marks.low, marks.high], expected);
        }
    }

    #[test]
    fn lists_of_real_machines() {
        // Public zoneinfos: low mark, processors, managed; high and batch of a list.
        for (low, cpus, managed, high, batch) in [
            (52, 4, 3_840, 13, 1),
            (6_886, 4, 503_771, 1_721, 63),
            (7_057, 4, 507_637, 1_764, 63),
        ] {
            assert_eq!(pcp_batch(managed, 4096), batch);
            assert_eq!(pcp_high(low / cpus, batch), high);
        }
    }

    #[test]
    fn a_movable_zone_has_a_token_min_and_the_full_step() {
        let marks = Watermarks::compute(ZoneKind::Movable, 1 << 20, 1 << 20, 4_096);
        assert_eq!(marks.min, 128);
        assert_eq!(marks.low - marks.min, 1_048);
        assert_eq!(
            Watermarks::compute(ZoneKind::Movable, 0, 0, 0),
            Watermarks::default()
        );
    }

    #[test]
    fn a_boost_is_a_pageblock_a_claim_up_to_its_cap() {
        assert_eq!(boost(3, 512, 1 << 20, 4_000), 1_536);
        assert_eq!(boost(1_000, 512, 1 << 20, 4_000), 6_000);
        assert_eq!(boost(3, 512, 1_024, 4_000), 0);
    }

    #[test]
    fn min_free_grows_with_the_root() {
        assert_eq!(min_free_kib(1 << 20), 4_096);
        assert_eq!(min_free_kib(16 << 20), 16_384);
        assert_eq!(min_free_kib(0), 128);
        assert_eq!(min_free_kib(1 << 40), 262_144);
    }
}
