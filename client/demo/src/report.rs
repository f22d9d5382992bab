//! What the demo found, as one JSON object and as lines for a terminal.

use hugepool_proto::v1::PageCounts;
use serde::Serialize;

use crate::worker::{ARMS, Arm};

/// The object that `--json` prints.
#[derive(Serialize)]
pub struct Report {
    /// Every check passed.
    pub ok: bool,
    /// Links of the backing chain in use, joined by `+`.
    pub backing: String,
    /// Worker processes, the killed one included.
    pub workers: u32,
    /// Bytes of the file that the surviving workers served.
    pub bytes_served: u64,
    /// Every pass gave the file's own checksum.
    pub checksums_ok: bool,
    /// The three ways to refill 65 empty slots.
    pub arms: Arms,
    pub hot_add: HotAdd,
    pub hot_remove: HotRemove,
    pub moved: Moved,
    pub kill: Kill,
    pub restart: Restart,
    pub verify: Verify,
    /// From the first process to the last check.
    pub seconds: f64,
    /// What failed, one line each; empty when `ok`.
    pub failures: Vec<String>,
}

#[derive(Serialize)]
pub struct Arms {
    pub single: ArmFigures,
    pub list: ArmFigures,
    pub array: ArmFigures,
}

/// Figures of the calls that needed all 65 pages.
#[derive(Serialize)]
pub struct ArmFigures {
    pub calls: u64,
    pub pages: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

#[derive(Serialize)]
pub struct HotAdd {
    pub section_ids: Vec<u32>,
    pub nr_pageblocks: u64,
    /// Counted in the one step of onlining; index is the order.
    pub free_blocks_gained_by_order: Vec<u64>,
    pub ms: f64,
}

/// The daemon was killed while workers served, and another one took over.
#[derive(Serialize)]
pub struct Restart {
    /// The daemon that was killed.
    pub killed_pid: u32,
    /// From the kill to the moment that clients could attach again.
    pub back_ms: f64,
    /// Clients that the next daemon found.
    pub nr_clients: u64,
    /// Pages that it found in their custody.
    pub pages_kept: u64,
    /// Wrong claims that it counted; honest clients make none.
    pub nr_misuses: u64,
}

#[derive(Serialize)]
pub struct HotRemove {
    pub section_ids: Vec<u32>,
    pub ms: f64,
}

/// A section that was taken away under a worker that used its pages.
#[derive(Serialize)]
pub struct Moved {
    pub section_ids: Vec<u32>,
    /// Pages in use that were moved out of it.
    pub pages: u64,
    pub ms: f64,
    /// Megabytes (10^6) moved a second.
    pub mb_per_s: f64,
    /// Pins that the worker made from its first to its last, and how long they took.
    pub pins: u64,
    pub pin_p999_us: f64,
    pub pin_max_us: f64,
    /// Each page had its bytes, at each look and at the end.
    pub bytes_ok: bool,
}

#[derive(Serialize)]
pub struct Kill {
    pub pages_held: u64,
    pub home_ms: f64,
}

/// The equation at the end: `present = managed + reserved`, `managed = free + pcp + lent + isolated`.
#[derive(Serialize)]
pub struct Verify {
    pub ok: bool,
    pub present: u64,
    pub reserved: u64,
    pub managed: u64,
    pub free: u64,
    pub pcp: u64,
    pub lent: u64,
    pub isolated: u64,
}

impl Verify {
    /// Takes the daemon's verdict, and adds the numbers up again.
    pub fn new(daemon_says_ok: bool, pages: &PageCounts) -> Verify {
        let adds_up = pages.present == pages.managed + pages.reserved
            && pages.managed == pages.free + pages.pcp + pages.lent + pages.isolated;
        Verify {
            ok: daemon_says_ok && adds_up,
            present: pages.present,
            reserved: pages.reserved,
            managed: pages.managed,
            free: pages.free,
            pcp: pages.pcp,
            lent: pages.lent,
            isolated: pages.isolated,
        }
    }
}

impl ArmFigures {
    /// Figures of `calls`, each of which took 65 pages; sorts them.
    pub fn new(calls: &mut [u32]) -> ArmFigures {
        calls.sort_unstable();
        let nr_calls = calls.len();
        let at = |per_cent: usize| {
            calls
                .get((nr_calls.saturating_sub(1)) * per_cent / 100)
                .map_or(0, |&ns| u64::from(ns))
        };
        let sum: u64 = calls.iter().map(|&ns| u64::from(ns)).sum();
        ArmFigures {
            calls: nr_calls as u64,
            pages: (nr_calls * crate::worker::SLOTS) as u64,
            mean_ns: if nr_calls == 0 {
                0.0
            } else {
                sum as f64 / nr_calls as f64
            },
            p50_ns: at(50),
            p99_ns: at(99),
        }
    }
}

/// Published cost of one call for 65 pages on an instrumented kernel, nanoseconds.
///
/// Source: the mailing-list threads that brought `alloc_pages_bulk` to the kernel and to the
/// NFS server (2021); the earlier figures there were about 29 and 4 microseconds.
const fn published_ns(arm: Arm) -> f64 {
    match arm {
        Arm::Single => 25_007.0,
        Arm::List => 6_258.0,
        Arm::Array => 4_590.0,
    }
}

impl Report {
    /// The table of the three arms, beside the published figures.
    pub fn arms_table(&self) -> String {
        let mut text = format!(
            "  {:<8}{:>9}{:>11}{:>12}{:>10}{:>10}   {:>18}\n",
            "arm", "calls", "pages", "mean us", "p50 us", "p99 us", "published (kernel)"
        );
        for arm in ARMS {
            let (name, figures) = match arm {
                Arm::Single => ("single", &self.arms.single),
                Arm::List => ("list", &self.arms.list),
                Arm::Array => ("array", &self.arms.array),
            };
            text += &format!(
                "  {:<8}{:>9}{:>11}{:>12.3}{:>10.3}{:>10.3}   {:>15.3} us\n",
                name,
                figures.calls,
                figures.pages,
                figures.mean_ns / 1e3,
                figures.p50_ns as f64 / 1e3,
                figures.p99_ns as f64 / 1e3,
                published_ns(arm) / 1e3
            );
        }
        text + "  published: per call for 65 pages, on an instrumented kernel, another machine; an earlier\n  \
                version of the same thread gave about 29 us (loop) and 4 us (bulk). Not measured here.\n"
    }

    /// The equation of pages, as a sum.
    pub fn equation(&self) -> String {
        let v = &self.verify;
        format!(
            "  present {} = managed {} + reserved {}\n  managed {} = free {} + pcp {} + lent {} + isolated {}\n",
            v.present, v.managed, v.reserved, v.managed, v.free, v.pcp, v.lent, v.isolated
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_hundred_calls() {
        let mut calls: Vec<u32> = (1..=100).rev().collect();
        let figures = ArmFigures::new(&mut calls);
        assert_eq!(
            (figures.calls, figures.pages, figures.p50_ns, figures.p99_ns),
            (100, 6500, 50, 99)
        );
        assert!((figures.mean_ns - 50.5).abs() < 1e-9);
    }

    #[test]
    fn a_sum_that_does_not_add_up_is_not_ok() {
        let mut pages = PageCounts {
            present: 10,
            managed: 10,
            free: 7,
            pcp: 1,
            lent: 2,
            ..Default::default()
        };
        assert!(Verify::new(true, &pages).ok);
        assert!(!Verify::new(false, &pages).ok);
        pages.lent = 3;
        assert!(!Verify::new(true, &pages).ok);
    }
}
