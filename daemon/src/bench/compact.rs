//! Compaction with the contiguity caches on and off, and one question to them alone.
//!
//! A zone of 4 GiB, simulated: pages are moved in the books, no byte is copied, so what the caches
//! can gain is as plain as it can be. Two workloads:
//!
//! * `ablation`: what the caches were invented for. Nearly all pageblocks are of a type that the
//!   request may not touch, so each request that starts over walks past all of them; in the middle
//!   half a pageblock's pages are to be moved.
//! * `ablation_whole_zone`: every other page is free everywhere, and all of the zone is packed.
//!
//! Each over the allocator's own extents, and over a [kernel-like map](super::kernel_map)
//! (`_kernel_walk`). The arms take turns.

use std::hint::black_box;
use std::io::{self, Write};

use hugepool_mm::{
    AllocFlags, CompactEnd, CompactGoal, CompactMode, CompactRequest, ContiguityMode, Geometry,
    Migratetype, MovableBlock, Move, Order, PageblockAt, Pfn, PfnRange, Round, Surroundings, Zone,
};

use super::kernel_map::KernelMap;
use super::lines::Line;
use super::zones::{Prng, online, seconds};

const PAGEBLOCK_PAGES: u32 = 512;
/// Pageblocks of a section of 128 MiB.
const SECTION_PAGEBLOCKS: u32 = 64;
const MODES: [(ContiguityMode, &str); 4] = [
    (ContiguityMode::None, "none"),
    (ContiguityMode::Zone, "zone"),
    (ContiguityMode::Pageblock, "pageblock"),
    (ContiguityMode::Both, "both"),
];
/// Requests in a window of `ablation`; every other one starts over.
const REQUESTS: u32 = 64;
/// Questions in a window of `check`: the zone, so many times.
const ROUNDS_OF_CHECKS: u32 = 16;

/// Who holds what: a bit for each held page. Every page is a block of its own.
#[derive(Clone)]
struct Books {
    held: Vec<u64>,
}

impl Books {
    fn flip(&mut self, pfn: Pfn) {
        self.held[(pfn.get() >> 6) as usize] ^= 1 << (pfn.get() & 63);
    }

    fn is_held(&self, pfn: Pfn) -> bool {
        self.held[(pfn.get() >> 6) as usize] >> (pfn.get() & 63) & 1 == 1
    }
}

/// The books, and who is asked whether a pageblock is whole.
struct Around<'a> {
    books: &'a mut Books,
    /// Asked in place of the allocator, where that is measured.
    kernel: Option<&'a mut KernelMap>,
}

impl Surroundings for Around<'_> {
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>) {
        let start = u32::try_from(pageblock.start).expect("a page number");
        for (at, &word) in (0u32..).zip(&self.books.held[(start >> 6) as usize..][..8]) {
            let mut left = word;
            while left != 0 {
                let pfn = Pfn::new(start + (at << 6) + left.trailing_zeros());
                let order = Order::ZERO;
                out.push(MovableBlock { pfn, order });
                left &= left - 1;
            }
        }
    }

    fn is_still_movable(&mut self, block: &MovableBlock) -> bool {
        self.books.is_held(block.pfn)
    }

    #[inline]
    fn is_whole(&mut self, zone: &mut Zone, at: PageblockAt) -> bool {
        match &mut self.kernel {
            None => zone.is_whole(at),
            Some(map) => map.pageblock_pfn_to_page(at.start()).is_some(),
        }
    }
}

/// A zone and its books.
#[derive(Clone)]
struct World {
    nr_pageblocks: u32,
    zone: Zone,
    books: Books,
}

impl World {
    /// A zone with every page held, but for one that may not exist.
    fn full(nr_sections: u32, hole: bool) -> World {
        let mut zone = online(nr_sections, hole);
        let nr_pageblocks = nr_sections * SECTION_PAGEBLOCKS;
        let mut pages = Vec::new();
        let (movable, flags) = (Migratetype::Movable, AllocFlags::DIP);
        zone.rmqueue_bulk(Order::ZERO, movable, usize::MAX, flags, &mut pages);
        let held = vec![0; (nr_pageblocks * PAGEBLOCK_PAGES / 64) as usize];
        let mut books = Books { held };
        pages.iter().for_each(|&page| books.flip(page));
        World {
            nr_pageblocks,
            zone,
            books,
        }
    }

    /// The pageblock to move out of and the one to move to, near the middle. The one at the
    /// middle is left out: its first page may lack.
    fn sides(&self) -> (u32, u32) {
        (self.nr_pageblocks / 2 - 1, self.nr_pageblocks / 2 + 1)
    }

    fn free(&mut self, page: Pfn) {
        self.books.flip(page);
        self.zone.free(page, Order::ZERO);
    }

    /// One run to its end; returns how it ended and the pages moved.
    fn compact(
        &mut self,
        request: CompactRequest,
        kernel: Option<&mut KernelMap>,
    ) -> Option<(CompactEnd, u64)> {
        let World { zone, books, .. } = self;
        let mut run = zone.begin_compaction(request).ok()?;
        let mut around = Around { books, kernel };
        let (mut moves, mut sources): (Vec<Move>, Vec<Pfn>) = (Vec::new(), Vec::new());
        loop {
            match run.next_round(zone, &mut around, u32::MAX, &mut moves) {
                Round::Ended(end) => return Some((end, run.counts().nr_moved)),
                Round::Pause | Round::Unanswered => {}
                Round::Moves => {
                    sources.clear();
                    for one in &moves {
                        around.books.flip(one.from);
                        around.books.flip(one.to);
                        sources.push(one.from);
                    }
                    zone.free_bulk(&sources, Order::ZERO);
                    moves.iter().for_each(|one| run.moved(zone, one));
                }
            }
        }
    }
}

/// Measures all cases on a zone of so many sections of 128 MiB.
pub fn run(reps: u32, nr_sections: u32, out: &mut dyn Write) -> io::Result<()> {
    let mut bench = [false, true].map(|hole| Side::new(nr_sections, hole));
    let nr_pages = u64::from(nr_sections * SECTION_PAGEBLOCKS * PAGEBLOCK_PAGES);
    for (suffix, walk) in [("", "extents"), ("_kernel_walk", "kernel")] {
        let is_kernel = walk == "kernel";
        let mut arms: Vec<Arm> = Vec::new();
        for hole in [false, true] {
            arms.extend(MODES.map(|(mode, name)| Arm {
                mode,
                name,
                hole,
                samples: Default::default(),
            }));
        }
        for _ in 0..reps {
            for arm in &mut arms {
                bench[usize::from(arm.hole)].window(arm, is_kernel);
            }
        }
        for (at, (case, is_of_zone, unit)) in CASES.into_iter().enumerate() {
            let n = if is_of_zone { nr_pages } else { 1 };
            for arm in &arms {
                Line::case(&format!("{case}{suffix}"), n, unit)
                    .word("contiguity", arm.name)
                    .number("hole", u8::from(arm.hole))
                    .word("walk", walk)
                    .print(&arm.samples[at], out)?;
            }
        }
    }
    Ok(())
}

/// What is printed for each arm, in the order of its samples, and whether it is of the zone.
const CASES: [(&str, bool, &str); 4] = [
    ("ablation", true, "MB/s"),
    ("ablation_whole_zone", true, "MB/s"),
    ("check", false, "ns/call"),
    ("checks_per_second", false, "1/s"),
];

/// One arm of every case.
struct Arm {
    mode: ContiguityMode,
    name: &'static str,
    hole: bool,
    samples: [Vec<f64>; 4],
}

/// What is measured on: with a hole, or without.
struct Side {
    passed_by: World,
    every_other: World,
    map: KernelMap,
}

impl Side {
    fn new(nr_sections: u32, hole: bool) -> Side {
        let nr_pages = nr_sections * SECTION_PAGEBLOCKS * PAGEBLOCK_PAGES;
        let middle = hole.then_some(u64::from(nr_pages / 2));
        Side {
            passed_by: passed_by(nr_sections, hole),
            every_other: every_other(nr_sections, hole),
            map: KernelMap::new(Geometry::standard(), nr_sections as usize, middle),
        }
    }

    fn window(&mut self, arm: &mut Arm, is_kernel: bool) {
        for world in [&mut self.passed_by, &mut self.every_other] {
            world.zone.set_contiguity_mode(arm.mode);
            world.zone.invalidate_contiguity();
            world.zone.ask_contiguity();
        }
        self.map.set_mode(arm.mode);
        let map = &mut is_kernel.then_some(&mut self.map);
        let (rate, checks) = requests(&mut self.passed_by, map);
        arm.samples[0].push(rate);
        arm.samples[3].push(checks);
        arm.samples[1].push(whole_zone(&self.every_other, map));
        arm.samples[2].push(check(&mut self.every_other, map));
    }
}

/// Nearly all pageblocks are unmovable. Of two in the middle, the lower is half full of movable
/// pages and the upper half free.
fn passed_by(nr_sections: u32, hole: bool) -> World {
    let mut world = World::full(nr_sections, hole);
    let mut prng = Prng(0x9e37_79b9_7f4a_7c15);
    let (source, place) = world.sides();
    for block in 0..world.nr_pageblocks {
        let start = Pfn::new(block * PAGEBLOCK_PAGES);
        let is_free = |page: u32, prng: &mut Prng| match block {
            _ if block == source || block == place => page.is_multiple_of(2),
            _ => prng.next().is_multiple_of(4),
        };
        if block != source && block != place {
            world.zone.set_pageblock_type(start, Migratetype::Unmovable);
        }
        for page in 0..PAGEBLOCK_PAGES {
            let pfn = Pfn::new(start.get() + page);
            if is_free(page, &mut prng) && world.books.is_held(pfn) {
                world.free(pfn);
            }
        }
    }
    world
}

/// Every page free or held by the toss of a coin, and all that is held movable.
fn every_other(nr_sections: u32, hole: bool) -> World {
    let mut world = World::full(nr_sections, hole);
    let mut prng = Prng(0x2545_f491_4f6c_dd1d);
    for pfn in (0..world.nr_pageblocks * PAGEBLOCK_PAGES).map(Pfn::new) {
        if prng.next() >> 40 & 1 == 1 && world.books.is_held(pfn) {
            world.free(pfn);
        }
    }
    world
}

/// Requests for a block of the pageblock order: megabytes moved a second, checks a second.
fn requests(world: &mut World, map: &mut Option<&mut KernelMap>) -> (f64, f64) {
    let order = Geometry::standard().pageblock_order();
    let request = CompactRequest {
        goal: CompactGoal::Order(order),
        mode: CompactMode::Async,
        migratetype: Migratetype::Movable,
    };
    let checks = world.zone.compact_totals().counts.nr_checks;
    let (mut took, mut nr_moved) = (0.0, 0);
    for _ in 0..REQUESTS {
        let mut ended = None;
        took += seconds(|| ended = world.compact(request, map.as_deref_mut()));
        if let Some((end, nr)) = ended {
            nr_moved += nr;
            if end == CompactEnd::Reached {
                scatter_again(world, order);
            }
        }
    }
    let checks = world.zone.compact_totals().counts.nr_checks - checks;
    (megabytes(nr_moved) / took, checks as f64 / took)
}

/// The block is taken by its requester and used; half of its pages are freed again, and what had
/// moved goes.
fn scatter_again(world: &mut World, order: Order) {
    let (source, place) = world.sides();
    let start = Pfn::new(source * PAGEBLOCK_PAGES);
    assert!(world.zone.take_exact(start, order), "it was made free");
    for page in 0..PAGEBLOCK_PAGES {
        world.books.flip(Pfn::new(start.get() + page));
    }
    for page in (0..PAGEBLOCK_PAGES).step_by(2) {
        world.free(Pfn::new(source * PAGEBLOCK_PAGES + page));
        world.free(Pfn::new(place * PAGEBLOCK_PAGES + page));
    }
}

/// The whole zone packed by hand: megabytes moved a second.
fn whole_zone(world: &World, map: &mut Option<&mut KernelMap>) -> f64 {
    let mut world = world.clone();
    let mut ended = None;
    let took = seconds(|| ended = world.compact(CompactRequest::MANUAL, map.as_deref_mut()));
    megabytes(ended.map_or(0, |(_, nr_moved)| nr_moved)) / took
}

/// One question, asked of every pageblock in turn: nanoseconds.
fn check(world: &mut World, map: &mut Option<&mut KernelMap>) -> f64 {
    let World {
        zone,
        nr_pageblocks,
        ..
    } = world;
    let mut kernel = map.as_deref_mut();
    let mut ask_all = || {
        for block in 0..*nr_pageblocks {
            let pfn = Pfn::new(block * PAGEBLOCK_PAGES);
            black_box(match &mut kernel {
                None => zone.pageblock_pfn_to_page(pfn),
                Some(map) => map.pageblock_pfn_to_page(pfn),
            });
        }
    };
    // The first round fills the cache.
    ask_all();
    let took = seconds(|| (0..ROUNDS_OF_CHECKS).for_each(|_| ask_all()));
    took * 1e9 / f64::from(ROUNDS_OF_CHECKS * *nr_pageblocks)
}

fn megabytes(nr_pages: u64) -> f64 {
    (nr_pages << Geometry::standard().page_shift()) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_line_for_every_arm_and_memory_moves() {
        let mut out = Vec::new();
        run(1, 1, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2 * 4 * 8);
        for case in ["ablation", "ablation_whole_zone_kernel_walk"] {
            let lines = text
                .lines()
                .filter(|line| line.contains(&format!("\"{case}\"")));
            let samples = lines.map(|line| line.split("samples").nth(1).unwrap());
            assert_eq!(
                samples.filter(|text| !text.contains("[0.000000]")).count(),
                8,
                "{text}"
            );
        }
    }

    #[test]
    fn a_request_that_starts_over_asks_all_pageblocks_and_moves_half_of_one() {
        for hole in [false, true] {
            let mut world = passed_by(2, hole);
            let order = Geometry::standard().pageblock_order();
            let request = CompactRequest::direct(order, Migratetype::Movable, CompactMode::Async);
            let ended = world.compact(request, None);
            assert_eq!(ended, Some((CompactEnd::Reached, 256)), "hole {hole}");
            let checks = world.zone.compact_totals().counts.nr_checks;
            assert!((126..=128).contains(&checks), "{checks}");
            scatter_again(&mut world, order);
            let again = world.compact(request, None);
            assert_eq!(again, Some((CompactEnd::Partial, 0)));
            let again = world.compact(request, None);
            assert_eq!(again, Some((CompactEnd::Reached, 256)));
            world.zone.verify().unwrap();
        }
    }
}
