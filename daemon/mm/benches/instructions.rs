//! Instruction counts, the same under any load: `cargo bench -p hugepool-mm --bench instructions`,
//! or `.ci/run instructions`, which installs what it needs: valgrind, and a gungraun-runner of the
//! library's own version. Nothing else needs them.
#![allow(
    missing_docs,
    reason = "the harness makes functions that nobody calls by name"
)]

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use hugepool_mm::{
    CompactRequest, Compaction, ContiguityMode, Geometry, MovableBlock, Move, OnlineOrder, Order,
    Pfn, PfnRange, Round, SectionId, Surroundings, Zone, ZoneConfig, ZoneId, ZoneKind,
};

const PAGEBLOCK: u32 = 512;

/// A zone of sections of `2^section_order` pages; the first is online, the second offline.
fn zone(section_order: u8) -> Box<Zone> {
    let geometry = Geometry::new(12, 9, 10, section_order).expect("a legal geometry");
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: "bench".to_owned(),
        kind: ZoneKind::Movable,
        node: 0,
        start: Pfn::new(0),
        span_pages: 2 << section_order,
    };
    let mut zone = Zone::new(config, geometry).expect("whole sections");
    for section in [0, 1].map(SectionId::new) {
        zone.begin_add(section).expect("absent");
        zone.finish_add(section).expect("it is being added");
    }
    zone.online(SectionId::new(0), OnlineOrder::Pageblock)
        .expect("offline");
    // Boxed: to hand it over is not to copy it.
    Box::new(zone)
}

/// A zone whose caches are these; with an answer remembered, or with none.
fn asked(mode: ContiguityMode, is_known: bool) -> Box<Zone> {
    let mut zone = zone(15);
    zone.online(SectionId::new(1), OnlineOrder::Pageblock)
        .expect("offline");
    zone.set_contiguity_mode(mode);
    zone.invalidate_contiguity();
    if is_known {
        zone.ask_contiguity();
        zone.pageblock_pfn_to_page(Pfn::new(PAGEBLOCK));
    }
    zone
}

#[library_benchmark]
#[bench::hit_zone(asked(ContiguityMode::Zone, true))]
#[bench::hit_pageblock(asked(ContiguityMode::Pageblock, true))]
#[bench::miss_pageblock(asked(ContiguityMode::Pageblock, false))]
#[bench::walk(asked(ContiguityMode::None, false))]
fn pageblock_check(mut zone: Box<Zone>) -> Box<Zone> {
    black_box(zone.pageblock_pfn_to_page(black_box(Pfn::new(PAGEBLOCK))));
    zone
}

#[library_benchmark]
#[bench::section_of_2_pageblocks(zone(10), OnlineOrder::Pageblock)]
#[bench::section_of_64_pageblocks(zone(15), OnlineOrder::Pageblock)]
#[bench::page_by_page_64_pageblocks(zone(15), OnlineOrder::Page)]
fn online(mut zone: Box<Zone>, order: OnlineOrder) -> Box<Zone> {
    zone.online(black_box(SectionId::new(1)), order)
        .expect("offline");
    zone
}

/// Held pages, from the first on.
struct Held(u32);

impl Surroundings for Held {
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>) {
        if pageblock.start == 0 {
            let block = |pfn| MovableBlock {
                pfn: Pfn::new(pfn),
                order: Order::ZERO,
            };
            out.extend((0..self.0).map(block));
        }
    }

    fn is_still_movable(&mut self, block: &MovableBlock) -> bool {
        block.pfn.get() < self.0
    }
}

/// A run over a zone in which some pages are held: the lowest, which can be moved, and a high one.
struct BeforeAMove {
    zone: Zone,
    run: Compaction,
    held: Held,
    moves: Vec<Move>,
}

fn before_a_move(nr_pages: u32) -> Box<BeforeAMove> {
    let mut zone = *zone(15);
    for page in (0..nr_pages).chain([63 * PAGEBLOCK]) {
        let is_free = zone.take_exact(Pfn::new(page), Order::ZERO);
        assert!(is_free, "all are free");
    }
    let run = zone
        .begin_compaction(CompactRequest::MANUAL)
        .expect("whatever is found");
    Box::new(BeforeAMove {
        zone,
        run,
        held: Held(nr_pages),
        moves: Vec::with_capacity(64),
    })
}

// From the look for what can be moved to the old place free: all but the bytes themselves.
#[library_benchmark]
#[bench::one_page(before_a_move(1))]
#[bench::round_of_32_pages(before_a_move(32))]
fn migrate(mut world: Box<BeforeAMove>) -> Box<BeforeAMove> {
    let BeforeAMove {
        zone,
        run,
        held,
        moves,
    } = &mut *world;
    let round = run.next_round(zone, held, u32::MAX, moves);
    assert_eq!(round, Round::Moves);
    for one in moves.iter() {
        zone.free(one.from, one.order);
        run.moved(zone, one);
    }
    world
}

library_benchmark_group!(name = mm, benchmarks = [pageblock_check, online, migrate]);
main!(library_benchmark_groups = mm);
