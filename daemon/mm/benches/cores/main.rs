//! Two cores for the same job, side by side: bitmaps per pageblock against linked
//! free lists through a record per page.
//!
//! Prints one JSON object per line: `case`, `core`, `unit`, `median`, `min`, `max`,
//! `reps`. The arms alternate, so that a slow moment of the machine meets both. The
//! bitmap arm is the whole [`Zone`], watermarks and all; the list arm is a bare core.

mod lists;
mod mixed;

use std::hint::black_box;
use std::time::Instant;

use hugepool_mm::{
    AllocFlags, ContiguityMode, Geometry, Migratetype, OnlineOrder, Order, Pfn, PfnRange,
    SectionId, Zone, ZoneConfig, ZoneId, ZoneKind,
};
use lists::ListCore;

const NR_PAGES: u32 = 1 << 20;
const MOVABLE: Migratetype = Migratetype::Movable;
const DIP: AllocFlags = AllocFlags::DIP;
const REPS: usize = 15;

fn order(order: u8) -> Order {
    Order::new(order).expect("a small order")
}

fn empty_zone(nr_pages: u32, section_order: u8) -> Zone {
    let geometry = Geometry::new(12, 9, 10, section_order).expect("a legal geometry");
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: "bench".to_owned(),
        kind: ZoneKind::Normal,
        node: 0,
        start: Pfn::new(0),
        span_pages: u64::from(nr_pages),
    };
    Zone::new(config, geometry).expect("whole sections")
}

fn add(zone: &mut Zone, section: SectionId) {
    zone.begin_add(section).expect("absent");
    zone.finish_add(section).expect("adding");
}

fn full_zone(nr_pages: u32) -> Zone {
    let mut zone = empty_zone(nr_pages, 15);
    for section in zone.lowest_absent(usize::MAX) {
        add(&mut zone, section);
        zone.online(section, OnlineOrder::Pageblock)
            .expect("offline");
    }
    zone
}

fn full_lists(nr_pages: u32) -> ListCore {
    let mut lists = ListCore::new(nr_pages);
    lists.online(0, nr_pages, 10);
    lists
}

/// Runs both arms in turns; each returns nanoseconds per unit.
fn compare(case: &str, unit: &str, mut bitmap: impl FnMut() -> f64, mut list: impl FnMut() -> f64) {
    let (mut bitmaps, mut lists) = (Vec::new(), Vec::new());
    for _ in 0..REPS {
        bitmaps.push(bitmap());
        lists.push(list());
    }
    for (core, mut values) in [("bitmap", bitmaps), ("lists", lists)] {
        values.sort_by(f64::total_cmp);
        println!(
            r#"{{"case":"{case}","core":"{core}","unit":"{unit}","median":{:.3},"min":{:.3},"max":{:.3},"reps":{REPS}}}"#,
            values[REPS / 2],
            values[0],
            values[REPS - 1]
        );
    }
}

fn time(nr: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / nr as f64
}

struct Prng(u64);

impl Prng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("below a usize")
    }
}

fn pair_of_65() {
    const CALLS: usize = 20_000;
    let mut zone = full_zone(NR_PAGES);
    let mut lists = full_lists(NR_PAGES);
    let (mut pages, mut pfns) = (Vec::new(), Vec::new());
    compare(
        "take_and_free_65",
        "ns/page",
        || {
            time(CALLS * 65, || {
                for _ in 0..CALLS {
                    pages.clear();
                    zone.rmqueue_bulk(Order::ZERO, MOVABLE, 65, DIP, &mut pages);
                    zone.free_bulk(black_box(&pages), Order::ZERO);
                }
            })
        },
        || {
            time(CALLS * 65, || {
                for _ in 0..CALLS {
                    pfns.clear();
                    lists.take_bulk(0, 1, 65, &mut pfns);
                    for &pfn in black_box(&pfns) {
                        lists.free(pfn, 0);
                    }
                }
            })
        },
    );
}

/// Takes 65 at a time until nothing is left, then gives all back in the same batches.
fn drain_by_65() {
    let mut zone = full_zone(NR_PAGES);
    let mut lists = full_lists(NR_PAGES);
    let nr = NR_PAGES as usize;
    let (mut pages, mut pfns) = (Vec::with_capacity(nr), Vec::with_capacity(nr));
    compare(
        "take_65_until_empty",
        "ns/page",
        || {
            pages.clear();
            let ns = time(nr, || {
                while zone.rmqueue_bulk(Order::ZERO, MOVABLE, 65, DIP, &mut pages) != 0 {}
            });
            zone.free_bulk(&pages, Order::ZERO);
            ns
        },
        || {
            pfns.clear();
            let ns = time(nr, || while lists.take_bulk(0, 1, 65, &mut pfns) != 0 {});
            pfns.iter().for_each(|&pfn| lists.free(pfn, 0));
            ns
        },
    );
    compare(
        "free_65_until_full",
        "ns/page",
        || {
            pages.clear();
            while zone.rmqueue_bulk(Order::ZERO, MOVABLE, 65, DIP, &mut pages) != 0 {}
            time(nr, || {
                pages
                    .chunks(65)
                    .for_each(|batch| zone.free_bulk(batch, Order::ZERO))
            })
        },
        || {
            pfns.clear();
            while lists.take_bulk(0, 1, 65, &mut pfns) != 0 {}
            time(nr, || pfns.iter().for_each(|&pfn| lists.free(pfn, 0)))
        },
    );
}

fn order_9() {
    const CALLS: usize = 100_000;
    let mut zone = full_zone(NR_PAGES);
    let mut lists = full_lists(NR_PAGES);
    compare(
        "take_and_free_order_9",
        "ns/call",
        || {
            time(CALLS, || {
                for _ in 0..CALLS {
                    let block = zone.alloc(order(9), MOVABLE, DIP).expect("a free block");
                    zone.free(black_box(block), order(9));
                }
            })
        },
        || {
            time(CALLS, || {
                for _ in 0..CALLS {
                    let block = lists.take(9, 1).expect("a free block");
                    lists.free(black_box(block), 9);
                }
            })
        },
    );
}

/// Random replacement with nine tenths of all pages in use: free one, take one.
fn churn_at_90_percent() {
    const CALLS: usize = 400_000;
    let mut zone = full_zone(NR_PAGES);
    let mut lists = full_lists(NR_PAGES);
    let mut prng = Prng(0x9e37_79b9_7f4a_7c15);
    let in_use = NR_PAGES as usize / 10 * 9;
    let (mut pages, mut pfns) = (Vec::new(), Vec::new());
    zone.rmqueue_bulk(Order::ZERO, MOVABLE, NR_PAGES as usize, DIP, &mut pages);
    lists.take_bulk(0, 1, NR_PAGES as usize, &mut pfns);
    while pages.len() > in_use {
        let at = prng.below(pages.len());
        zone.free(pages.swap_remove(at), Order::ZERO);
        lists.free(pfns.swap_remove(at), 0);
    }
    let mut draw = || (0..CALLS).map(|_| prng.below(in_use)).collect::<Vec<_>>();
    let victims = draw();
    let mut again = Prng(0x2545_f491_4f6c_dd1d);
    let mut other = || (0..CALLS).map(|_| again.below(in_use)).collect::<Vec<_>>();
    // What the harness itself costs: a random touch of four megabytes of page numbers.
    let bare = time(CALLS, || {
        for &at in &victims {
            pfns[at] = black_box(pfns[at]) ^ black_box(0);
        }
    });
    println!(
        r#"{{"case":"churn_at_90_percent","core":"none","unit":"ns/pair","median":{bare:.3}}}"#
    );
    compare(
        "churn_at_90_percent",
        "ns/pair",
        || {
            let victims = draw();
            time(CALLS, || {
                for &at in &victims {
                    zone.free(pages[at], Order::ZERO);
                    pages[at] = zone.alloc(Order::ZERO, MOVABLE, DIP).expect("a free page");
                }
            })
        },
        || {
            let victims = other();
            time(CALLS, || {
                for &at in &victims {
                    lists.free(pfns[at], 0);
                    pfns[at] = lists.take(0, 1).expect("a free page");
                }
            })
        },
    );
    let large = |blocks: &[u64]| {
        blocks
            .iter()
            .skip(6)
            .zip(6..)
            .map(|(nr, order)| nr << order)
            .sum::<u64>()
    };
    let (zone_large, lists_large) = (large(&zone.buddyinfo()), large(&lists.free_blocks()));
    println!(
        r#"{{"case":"free_in_blocks_of_64_after_churn","core":"bitmap","unit":"pages","median":{zone_large}}}"#
    );
    println!(
        r#"{{"case":"free_in_blocks_of_64_after_churn","core":"lists","unit":"pages","median":{lists_large}}}"#
    );
    zone.verify().expect("a sound zone");
}

fn online_256_mib() {
    let nr_pages = 1 << 16;
    for (case, online_order, list_order) in [
        ("online_256MiB_pageblock", OnlineOrder::Pageblock, 9),
        ("online_256MiB_order_0", OnlineOrder::Page, 0),
    ] {
        let mut zone = empty_zone(nr_pages * 4, 16);
        let sections: Vec<SectionId> = zone.lowest_absent(2);
        // A zone is seldom born with the section; the neighbour warms what is shared.
        add(&mut zone, sections[0]);
        zone.online(sections[0], OnlineOrder::Pageblock)
            .expect("offline");
        add(&mut zone, sections[1]);
        let mut lists = ListCore::new(nr_pages * 2);
        lists.online(0, nr_pages, 10);
        compare(
            case,
            "us",
            || {
                let us = time(1000, || {
                    zone.online(sections[1], online_order).expect("offline");
                });
                zone.isolate(sections[1]).expect("online");
                zone.finish_offline(sections[1]).expect("all free");
                us
            },
            || {
                let us = time(1000, || lists.online(nr_pages, nr_pages, list_order));
                lists.offline(nr_pages, nr_pages);
                us
            },
        );
    }
}

fn metadata() {
    let bits = |bytes: u64| bytes as f64 * 8.0 / f64::from(NR_PAGES);
    let mut zone = full_zone(NR_PAGES);
    let whole = bits(zone.metadata_bytes());
    let mut pages = Vec::new();
    zone.rmqueue_bulk(Order::ZERO, MOVABLE, NR_PAGES as usize, DIP, &mut pages);
    pages
        .iter()
        .step_by(2)
        .for_each(|&page| zone.free(page, Order::ZERO));
    let broken = bits(zone.metadata_bytes());
    let lists = bits(full_lists(NR_PAGES).metadata_bytes());
    println!(
        r#"{{"case":"metadata_all_free","core":"bitmap","unit":"bits/page","median":{whole:.3}}}"#
    );
    println!(
        r#"{{"case":"metadata_every_other_page","core":"bitmap","unit":"bits/page","median":{broken:.3}}}"#
    );
    println!(r#"{{"case":"metadata","core":"lists","unit":"bits/page","median":{lists:.3}}}"#);
}

/// A zone of 12 TiB, all of it free: what it costs to bring up and to keep.
fn twelve_tib() {
    const NR_PAGES: u64 = 12 << 28;
    let geometry = Geometry::standard();
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: "large".to_owned(),
        kind: ZoneKind::Movable,
        node: 0,
        start: Pfn::new(0),
        span_pages: NR_PAGES,
    };
    let mut zone = Zone::new(config, geometry).expect("whole sections");
    let sections = zone.lowest_absent(usize::MAX);
    let ns = time(sections.len(), || {
        for &section in &sections {
            add(&mut zone, section);
            zone.online(section, OnlineOrder::Pageblock)
                .expect("offline");
        }
    });
    let bytes = zone.metadata_bytes();
    let bits = bytes as f64 * 8.0 / NR_PAGES as f64;
    println!(
        r#"{{"case":"add_and_online_12TiB","core":"bitmap","unit":"ns/section","median":{ns:.0}}}"#
    );
    println!(
        r#"{{"case":"metadata_12TiB","core":"bitmap","unit":"bits/page","median":{bits:.3},"bytes":{bytes}}}"#
    );
}

/// One question "is this pageblock whole", by cache and with or without a hole.
fn contiguity_check() {
    let geometry = Geometry::standard();
    for hole in [false, true] {
        let mut zone = empty_zone(NR_PAGES, geometry.section_order());
        for section in zone.lowest_absent(usize::MAX) {
            zone.begin_add(section).expect("absent");
            let mut extents = vec![geometry.section_range(section)];
            if hole && section.get() == 3 {
                let start = extents[0].start;
                extents[0].start += 9;
                extents.insert(
                    0,
                    PfnRange {
                        start,
                        end: start + 8,
                    },
                );
            }
            zone.finish_add_with_holes(section, &extents)
                .expect("adding");
            zone.online(section, OnlineOrder::Pageblock)
                .expect("offline");
        }
        for (name, mode) in [
            ("none", ContiguityMode::None),
            ("zone", ContiguityMode::Zone),
            ("pageblock", ContiguityMode::Pageblock),
            ("both", ContiguityMode::Both),
        ] {
            zone.set_contiguity_mode(mode);
            let nr = NR_PAGES >> 9;
            let mut values: Vec<f64> = (0..REPS)
                .map(|_| {
                    time(nr as usize, || {
                        for block in 0..nr {
                            black_box(zone.pageblock_pfn_to_page(Pfn::new(block << 9)));
                        }
                    })
                })
                .collect();
            values.sort_by(f64::total_cmp);
            println!(
                r#"{{"case":"contiguity_check","contiguity":"{name}","hole":{},"unit":"ns/check","median":{:.3},"reps":{REPS}}}"#,
                u8::from(hole),
                values[REPS / 2]
            );
        }
    }
}

fn main() {
    // Words after `--` choose cases by a part of their function's name.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let cases: [(&str, fn()); 9] = [
        ("pair_of_65", pair_of_65),
        ("drain_by_65", drain_by_65),
        ("order_9", order_9),
        ("churn_at_90_percent", churn_at_90_percent),
        ("online_256_mib", online_256_mib),
        ("metadata", metadata),
        ("twelve_tib", twelve_tib),
        ("contiguity_check", contiguity_check),
        (
            "high_order_after_mixed_churn",
            mixed::high_order_after_mixed_churn,
        ),
    ];
    for (name, run) in cases {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            run();
        }
    }
}
