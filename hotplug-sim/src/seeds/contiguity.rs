//! Answers remembered about whole pageblocks: for no, for the zone, for each pageblock.
//!
//! A zone of 1 GiB in which nearly every pageblock is of a kind that the request may not touch, so
//! that each request passes by all of them and asks of each whether it is whole. Two in the middle
//! are what is worked on: one is emptied into the other. Pages move in the books only.

use std::hint::black_box;

use hugepool_mm::{
    AllocFlags, CompactEnd, CompactGoal, CompactMode, CompactRequest, ContiguityMode, Geometry,
    Migratetype, MovableBlock, Move, OnlineOrder, Order, Pfn, PfnRange, Round, Surroundings, Zone,
    ZoneConfig, ZoneId, ZoneKind,
};

use super::{median, seconds};
use crate::prng::Prng;

/// Sections of 128 MiB.
const NR_SECTIONS: u32 = 8;
/// Requests of a window; every other one starts over.
const REQUESTS: u32 = 32;
/// The zone is asked about so many times in a window.
const ROUNDS: u32 = 32;

/// The modes, in the order of the figures.
pub const MODES: [(ContiguityMode, &str); 3] = [
    (ContiguityMode::None, "none"),
    (ContiguityMode::Zone, "zone"),
    (ContiguityMode::Pageblock, "pageblock"),
];

/// For each mode.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Nanoseconds of one question.
    pub check_ns: [f64; 3],
    /// Megabytes moved a second.
    pub moved: [f64; 3],
}

/// Who holds what: a bit for each held page.
struct Books(Vec<u64>);

impl Books {
    fn flip(&mut self, pfn: Pfn) {
        self.0[(pfn.get() >> 6) as usize] ^= 1 << (pfn.get() & 63);
    }

    fn is_held(&self, pfn: Pfn) -> bool {
        self.0[(pfn.get() >> 6) as usize] >> (pfn.get() & 63) & 1 == 1
    }
}

impl Surroundings for Books {
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>) {
        let pages = (pageblock.start..pageblock.end).filter_map(|pfn| u32::try_from(pfn).ok());
        out.extend(
            pages
                .map(Pfn::new)
                .filter(|pfn| self.is_held(*pfn))
                .map(|pfn| MovableBlock {
                    pfn,
                    order: Order::ZERO,
                }),
        );
    }

    fn is_still_movable(&mut self, block: &MovableBlock) -> bool {
        self.is_held(block.pfn)
    }
}

struct World {
    zone: Zone,
    books: Books,
    source: u32,
    place: u32,
}

impl World {
    fn new() -> Result<World, String> {
        let geometry = Geometry::standard();
        let config = ZoneConfig {
            id: ZoneId::new(0),
            name: "seeds".to_owned(),
            kind: ZoneKind::Normal,
            node: 0,
            start: Pfn::new(0),
            span_pages: u64::from(NR_SECTIONS) << geometry.section_order(),
        };
        let mut zone = Zone::new(config, geometry).map_err(|error| error.to_string())?;
        for section in zone.lowest_absent(usize::MAX) {
            let online = zone
                .begin_add(section)
                .and_then(|()| zone.finish_add(section))
                .and_then(|()| zone.online(section, OnlineOrder::Pageblock));
            online.map_err(|error| error.to_string())?;
        }
        let mut pages = Vec::new();
        let (movable, all) = (Migratetype::Movable, AllocFlags::DIP);
        zone.rmqueue_bulk(Order::ZERO, movable, usize::MAX, all, &mut pages);
        let mut books = Books(vec![0; pages.len() / 64]);
        pages.iter().for_each(|&page| books.flip(page));
        let nr_pageblocks = NR_SECTIONS * geometry.section_pageblocks();
        let mut world = World {
            zone,
            books,
            source: nr_pageblocks / 2 - 1,
            place: nr_pageblocks / 2 + 1,
        };
        let mut prng = Prng::from_seed(1);
        let pageblock = geometry.pageblock_pages();
        for block in 0..nr_pageblocks {
            let is_worked_on = block == world.source || block == world.place;
            let start = Pfn::new(block * pageblock);
            if !is_worked_on {
                world.zone.set_pageblock_type(start, Migratetype::Unmovable);
            }
            for page in 0..pageblock {
                let is_free = if is_worked_on {
                    page % 2 == 0
                } else {
                    prng.chance(1, 4)
                };
                if is_free {
                    world.free(Pfn::new(start.get() + page));
                }
            }
        }
        Ok(world)
    }

    fn free(&mut self, page: Pfn) {
        self.books.flip(page);
        self.zone.free(page, Order::ZERO);
    }

    /// One request, to its end: how it ended, and the pages moved.
    fn compact(&mut self, request: CompactRequest) -> Option<(CompactEnd, u64)> {
        let World { zone, books, .. } = self;
        let mut run = zone.begin_compaction(request).ok()?;
        let (mut moves, mut sources): (Vec<Move>, Vec<Pfn>) = (Vec::new(), Vec::new());
        loop {
            match run.next_round(zone, books, u32::MAX, &mut moves) {
                Round::Ended(end) => return Some((end, run.counts().nr_moved)),
                Round::Pause | Round::Unanswered => {}
                Round::Moves => {
                    sources.clear();
                    for one in &moves {
                        books.flip(one.from);
                        books.flip(one.to);
                        sources.push(one.from);
                    }
                    zone.free_bulk(&sources, Order::ZERO);
                    moves.iter().for_each(|one| run.moved(zone, one));
                }
            }
        }
    }

    /// The block that became free is taken and used; half of it is freed again.
    fn scatter_again(&mut self) {
        let geometry = self.zone.geometry();
        let (order, pages) = (geometry.pageblock_order(), geometry.pageblock_pages());
        let start = self.source * pages;
        if !self.zone.take_exact(Pfn::new(start), order) {
            return;
        }
        (0..pages).for_each(|page| self.books.flip(Pfn::new(start + page)));
        for page in (0..pages).step_by(2) {
            self.free(Pfn::new(start + page));
            let there = Pfn::new(self.place * pages + page);
            if self.books.is_held(there) {
                self.free(there);
            }
        }
    }

    /// Megabytes moved a second, over some requests.
    fn requests(&mut self) -> f64 {
        let geometry = self.zone.geometry();
        let request = CompactRequest {
            goal: CompactGoal::Order(geometry.pageblock_order()),
            mode: CompactMode::Async,
            migratetype: Migratetype::Movable,
        };
        let (mut took, mut nr_moved) = (0.0, 0);
        for _ in 0..REQUESTS {
            let mut ended = None;
            took += seconds(|| ended = self.compact(request));
            if let Some((end, nr)) = ended {
                nr_moved += nr;
                if end == CompactEnd::Reached {
                    self.scatter_again();
                }
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "megabytes")]
        let bytes = (nr_moved * geometry.page_bytes()) as f64;
        bytes / 1e6 / took
    }

    /// Nanoseconds of one question, over all pageblocks in turn.
    fn check(&mut self) -> f64 {
        let geometry = self.zone.geometry();
        let nr = NR_SECTIONS * geometry.section_pageblocks();
        let mut ask_all = || {
            for block in 0..nr {
                let pfn = Pfn::new(block * geometry.pageblock_pages());
                black_box(self.zone.pageblock_pfn_to_page(pfn));
            }
        };
        // The first round fills the cache.
        ask_all();
        let took = seconds(|| (0..ROUNDS).for_each(|_| ask_all()));
        took * 1e9 / f64::from(ROUNDS * nr)
    }
}

/// Measures all modes in turns.
///
/// # Errors
/// There is no zone to measure on, or nothing moves in it.
pub fn measure(reps: u32) -> Result<Measured, String> {
    let mut world = World::new()?;
    let mut check: [Vec<f64>; 3] = Default::default();
    let mut moved: [Vec<f64>; 3] = Default::default();
    for _ in 0..reps {
        for (at, (mode, name)) in MODES.into_iter().enumerate() {
            world.zone.set_contiguity_mode(mode);
            world.zone.invalidate_contiguity();
            world.zone.ask_contiguity();
            let rate = world.requests();
            if rate == 0.0 {
                return Err(format!("nothing was moved with the cache for {name}"));
            }
            moved[at].push(rate);
            check[at].push(world.check());
        }
    }
    Ok(Measured {
        check_ns: check.map(median),
        moved: moved.map(median),
    })
}
