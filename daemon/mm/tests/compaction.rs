//! Compaction as a whole: what a run leaves behind, what it heeds, and how it is dropped.
//!
//! That each single move is right is the property test's; here are the rules that show
//! only over a run or from one run to the next.

#![allow(
    clippy::unwrap_used,
    reason = "a test says what is wrong by where it stops"
)]

use std::collections::BTreeMap;

use hugepool_mm::{
    AllocFlags, CompactEnd, CompactGoal, CompactMode, CompactRefusal, CompactRequest, Compaction,
    Geometry, Migratetype, MovableBlock, Move, OnlineOrder, Order, Pfn, PfnRange, Round, SectionId,
    Shortfall, Surroundings, Zone, ZoneConfig, ZoneId, ZoneKind,
};

const DIP: AllocFlags = AllocFlags::DIP;
const MOVABLE: Migratetype = Migratetype::Movable;
/// Pages of a pageblock, and of a section.
const BLOCK: u32 = 32;
const SECTION: u32 = 128;

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

/// A zone and who holds what in it.
struct World {
    zone: Zone,
    held: Books,
}

/// Held blocks by head: their order, and whether they may be moved.
#[derive(Default)]
struct Books(BTreeMap<u32, (Order, bool)>);

impl Surroundings for Books {
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>) {
        let range = u32::try_from(pageblock.start).unwrap()..u32::try_from(pageblock.end).unwrap();
        let movable = self.0.range(range).filter(|(_, (_, movable))| *movable);
        out.extend(movable.map(|(&pfn, &(order, _))| MovableBlock {
            pfn: Pfn::new(pfn),
            order,
        }));
    }

    fn is_still_movable(&mut self, block: &MovableBlock) -> bool {
        self.0.get(&block.pfn.get()) == Some(&(block.order, true))
    }
}

impl World {
    /// A zone of so many sections, all of it held in single movable pages.
    fn full(nr_sections: u32) -> World {
        let geometry = Geometry::new(12, 5, 6, 7).unwrap();
        let config = ZoneConfig {
            id: ZoneId::new(0),
            name: "zone".to_owned(),
            kind: ZoneKind::Normal,
            node: 0,
            start: Pfn::new(0),
            span_pages: u64::from(nr_sections * SECTION),
        };
        let mut world = World {
            zone: Zone::new(config, geometry).unwrap(),
            held: Books::default(),
        };
        for section in world.zone.lowest_absent(usize::MAX) {
            world.zone.begin_add(section).unwrap();
            world.zone.finish_add(section).unwrap();
            world.zone.online(section, OnlineOrder::Pageblock).unwrap();
        }
        let mut pages = Vec::new();
        world
            .zone
            .rmqueue_bulk(Order::ZERO, MOVABLE, usize::MAX, DIP, &mut pages);
        let held = pages.iter().map(|page| (page.get(), (Order::ZERO, true)));
        world.held.0.extend(held);
        world
    }

    fn free(&mut self, pages: impl IntoIterator<Item = u32>) -> &mut World {
        for pfn in pages {
            let (order, _) = self.held.0.remove(&pfn).unwrap();
            self.zone.free(Pfn::new(pfn), order);
        }
        self
    }

    /// These stay where they are.
    fn pin(&mut self, pages: impl IntoIterator<Item = u32>) -> &mut World {
        for pfn in pages {
            self.held.0.get_mut(&pfn).unwrap().1 = false;
        }
        self
    }

    fn begin(&mut self, request: CompactRequest) -> Result<Compaction, CompactRefusal> {
        self.zone.begin_compaction(request)
    }

    fn step(&mut self, run: &mut Compaction, budget: u32) -> (Round, Vec<Move>) {
        let mut moves = Vec::new();
        let round = run.next_round(&mut self.zone, &mut self.held, budget, &mut moves);
        (round, moves)
    }

    fn make(&mut self, run: &mut Compaction, moves: &[Move]) {
        for one in moves {
            self.zone.free(one.from, one.order);
            let block = self.held.0.remove(&one.from.get()).unwrap();
            assert!(self.held.0.insert(one.to.get(), block).is_none());
            run.moved(&self.zone, one);
        }
    }

    /// Makes every move until the run is over.
    fn finish(&mut self, run: &mut Compaction) -> CompactEnd {
        loop {
            match self.step(run, 4) {
                (Round::Ended(end), _) => {
                    self.zone.verify().unwrap();
                    return end;
                }
                (_, moves) => self.make(run, &moves),
            }
        }
    }

    /// Free pages by pageblock.
    fn free_by_block(&self) -> Vec<u32> {
        let sections = self.zone.sections().map(|section| section.id);
        sections
            .flat_map(|section| self.zone.pageblocks(section).collect::<Vec<_>>())
            .map(|block| block.nr_free)
            .collect()
    }

    fn skipped(&self) -> Vec<u32> {
        let sections = self.zone.sections().map(|section| section.id);
        sections
            .flat_map(|section| self.zone.pageblocks(section).collect::<Vec<_>>())
            .filter(|block| block.skip)
            .map(|block| block.start.get() / BLOCK)
            .collect()
    }
}

fn every_other(pages: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
    pages.step_by(2)
}

fn direct(nr: u8, mode: CompactMode) -> CompactRequest {
    CompactRequest::direct(order(nr), MOVABLE, mode)
}

#[test]
fn a_whole_zone_by_hand_packs_all_to_its_end() {
    let mut world = World::full(4);
    world.free(every_other(0..512));
    let mut run = world.begin(CompactRequest::MANUAL).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Complete);
    assert_eq!(
        world.free_by_block(),
        [32, 32, 32, 32, 32, 32, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    let counts = run.counts();
    assert_eq!((counts.nr_moved, counts.nr_failed), (128, 0));
    assert_eq!(counts.nr_blocks_made, 8);
    assert_eq!(
        (counts.nr_migrate_scanned, counts.nr_free_scanned),
        (256, 256)
    );
    assert_eq!(counts.nr_checks, 16, "each pageblock is asked for once");
    assert_eq!(run.progress(), (16, 16));
    assert_eq!(world.skipped(), [], "by hand leaves no marks");
    let totals = world.zone.compact_totals();
    assert_eq!((totals.nr_runs, totals.nr_reached), (1, 1));
    assert_eq!(totals.counts, counts);
}

/// Symptom: "full", though half of the memory is free, at odd pages.
#[test]
fn r20_compaction_makes_room_or_the_answer_says_fragmented() {
    let mut world = World::full(4);
    world.free(every_other(1..512));
    let wanted = order(6);
    let short = Shortfall::Fragmented {
        free_pages: 256,
        largest_order: Order::ZERO,
    };
    assert_eq!(world.zone.alloc(wanted, MOVABLE, DIP), Err(short));
    let mut run = world.begin(direct(6, CompactMode::Async)).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    assert!(
        run.counts().nr_moved <= 64,
        "it stops when the order is there: {:?}",
        run.counts()
    );
    assert!(world.zone.alloc(wanted, MOVABLE, DIP).is_ok());

    // Where nothing moves, the answer is what it was.
    let mut world = World::full(4);
    world.free(every_other(1..512)).pin(every_other(0..512));
    let mut run = world.begin(direct(6, CompactMode::Sync)).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Complete);
    assert_eq!(world.zone.alloc(wanted, MOVABLE, DIP), Err(short));
}

/// Symptom: compaction spins for ever when its caller is about to be killed.
#[test]
fn r08_a_dropped_run_is_over_within_one_scan_unit_and_keeps_nothing() {
    for nr_steps in 0..12 {
        let mut world = World::full(4);
        world.free(every_other(0..512));
        let mut run = world.begin(direct(6, CompactMode::Sync)).unwrap();
        for _ in 0..nr_steps {
            let (_, moves) = world.step(&mut run, 1);
            world.make(&mut run, &moves);
        }
        let free = world.zone.free_pages();
        assert_eq!(free, 256);
        let checks = run.counts().nr_checks;
        let (_, moves) = world.step(&mut run, 1);
        assert!(run.counts().nr_checks <= checks + 1, "one pageblock a step");
        // The caller is gone: what the step took goes back, and that is all there is.
        for one in &moves {
            world.zone.free(one.to, one.order);
        }
        drop(run);
        assert_eq!(world.zone.free_pages(), free);
        assert_eq!(world.zone.counts().lent, 256);
        world.zone.verify().unwrap();
    }
}

#[test]
fn an_async_run_does_not_work_on_a_block_that_cannot_become_free() {
    let mut world = World::full(4);
    // In each pageblock of the lower half but one, the last page stays.
    world.free(every_other(0..512)).pin(
        (0..8)
            .filter(|&block| block != 5)
            .map(|block| block * BLOCK + 31),
    );
    let mut run = world.begin(direct(5, CompactMode::Async)).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    assert_eq!(run.counts().nr_moved, 16, "only pageblock 5 was emptied");
    assert_eq!(world.free_by_block()[5], 32);
    assert_eq!(world.skipped(), [0, 1, 2, 3, 4]);

    // Within a pageblock too: runs of 8 with a page that stays are left.
    let mut world = World::full(4);
    world.free(every_other(0..512)).pin([1, 9, 25]);
    let mut run = world.begin(direct(3, CompactMode::Async)).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    assert_eq!((run.counts().nr_moved, run.counts().nr_blocks_made), (4, 1));
    assert!(world.zone.is_free_block(Pfn::new(16), order(3)));
}

#[test]
fn an_async_run_stays_in_pageblocks_of_its_own_type() {
    for (mode, moved) in [(CompactMode::Async, 0), (CompactMode::Sync, 16)] {
        let mut world = World::full(4);
        world.free(every_other(0..512));
        for block in 1..8 {
            let start = Pfn::new(block * BLOCK);
            world.zone.set_pageblock_type(start, Migratetype::Unmovable);
        }
        world.pin(every_other(1..32));
        let mut run = world.begin(direct(5, mode)).unwrap();
        world.finish(&mut run);
        let first_half = &world.free_by_block()[..8];
        let emptied = first_half.iter().filter(|&&free| free == 32).count();
        assert_eq!(emptied * 16, moved, "{mode:?} {first_half:?}");
    }
}

#[test]
fn places_are_never_cut_from_what_is_wanted() {
    let mut world = World::full(4);
    // The last pageblock has a free run of 8 and single pages, the lower ones single pages.
    world
        .free(every_other(0..480))
        .free(480..488)
        .free(every_other(488..512));
    let mut run = world.begin(direct(3, CompactMode::Manual));
    assert!(run.is_err(), "the order is there");
    run = world.begin(CompactRequest {
        goal: CompactGoal::Order(order(4)),
        ..CompactRequest::MANUAL
    });
    let mut run = run.unwrap();
    let (_, moves) = world.step(&mut run, 99);
    assert!(moves.iter().any(|one| (480..488).contains(&one.to.get())));
    drop(run);

    let mut world = World::full(4);
    world
        .free(every_other(0..480))
        .free(480..488)
        .free(every_other(488..512));
    let taken = world.zone.alloc(order(3), MOVABLE, DIP).unwrap();
    let mut run = world.begin(direct(3, CompactMode::Sync)).unwrap();
    world.zone.free(taken, order(3));
    let (round, moves) = world.step(&mut run, 99);
    assert_eq!(round, Round::Moves);
    assert!(
        moves.iter().all(|one| !(480..488).contains(&one.to.get())),
        "{moves:?}"
    );
}

#[test]
fn a_pageblock_that_is_free_already_is_no_place() {
    // Also where two of them are wanted side by side.
    let mut world = World::full(4);
    world.free(every_other(0..480)).free(480..512);
    for request in [direct(6, CompactMode::Sync), CompactRequest::MANUAL] {
        let mut run = world.begin(request).unwrap();
        let (round, moves) = world.step(&mut run, 99);
        assert_eq!(round, Round::Moves);
        assert!(moves.iter().all(|one| one.to.get() < 480), "{moves:?}");
        for one in &moves {
            world.zone.free(one.to, one.order);
        }
    }
}

#[test]
fn blocks_of_all_orders_move_to_places_of_their_own_order() {
    let mut world = World::full(4);
    world.free(0..512);
    // One pageblock of mixed blocks at the bottom; at the top a hole for each order.
    for (pfn, nr) in [(0, 3), (9, 0), (10, 1), (12, 2), (18, 1)] {
        assert!(world.zone.take_exact(Pfn::new(pfn), order(nr)));
        world.held.0.insert(pfn, (order(nr), true));
    }
    for pfn in [480, 448] {
        assert!(world.zone.take_exact(Pfn::new(pfn), order(4)));
        world.held.0.insert(pfn, (order(4), false));
    }
    let mut run = world.begin(CompactRequest::MANUAL).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Complete);
    assert_eq!(world.free_by_block()[0], 32);
    assert_eq!(run.counts().nr_moved, 8 + 1 + 2 + 4 + 2);
    let mut orders: Vec<u8> = world
        .held
        .0
        .range(480..)
        .map(|(_, block)| block.0.get())
        .collect();
    orders.sort_unstable();
    assert_eq!(
        orders,
        [0, 1, 2, 3, 4],
        "one of the two of order 1 had to go further down"
    );
    // A block as large as a pageblock is in nobody's way.
    let mut world = World::full(4);
    world.free(0..512);
    world.zone.take_exact(Pfn::new(32), order(5));
    world.held.0.insert(32, (order(5), true));
    let mut run = world.begin(CompactRequest::MANUAL).unwrap();
    world.finish(&mut run);
    assert_eq!(run.counts().nr_moved, 0);
}

#[test]
fn a_pageblock_that_gave_nothing_is_passed_by_until_the_scanners_have_met() {
    let mut world = World::full(8);
    world
        .free(every_other(0..1024))
        .pin(every_other(1..128))
        .pin(every_other(257..1024));
    let request = direct(6, CompactMode::Sync);
    let mut run = world.begin(request).unwrap();
    // Four pageblocks give nothing; the next two are made free, and that is enough.
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    assert_eq!(world.skipped(), [0, 1, 2, 3]);
    let taken = world.zone.alloc(order(6), MOVABLE, DIP).unwrap();
    assert_eq!(taken, Pfn::new(128));

    // The next run goes on behind them, and does not look at what was passed.
    let mut run = world.begin(request).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    assert_eq!(run.counts().nr_migrate_scanned, 64);
    world.zone.alloc(order(6), MOVABLE, DIP).unwrap();

    // Nothing is left to be made, and the scanners meet.
    let mut run = world.begin(request).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Partial);
    assert!(world.skipped().contains(&20));

    // Whoever starts over asks everybody again.
    world.held.0.values_mut().for_each(|block| block.1 = true);
    let mut run = (0..9).find_map(|_| world.begin(request).ok()).unwrap();
    assert_eq!(world.skipped(), []);
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    assert!(world.zone.is_free_block(Pfn::new(0), order(6)));
}

#[test]
fn by_hand_looks_at_what_others_pass_by() {
    let mut world = World::full(4);
    world.free(every_other(0..512));
    for block in 0..16 {
        world.zone.set_skip(Pfn::new(block * BLOCK), true);
    }
    let mut run = world.begin(direct(5, CompactMode::Async)).unwrap();
    world.finish(&mut run);
    assert_eq!((run.counts().nr_moved, run.counts().nr_checks), (0, 15));
    let mut run = world.begin(CompactRequest::MANUAL).unwrap();
    world.finish(&mut run);
    assert_eq!(run.counts().nr_moved, 128);
    assert_eq!(
        world.skipped().len(),
        16,
        "and leaves the marks as they were"
    );
}

#[test]
fn failures_turn_requests_away_until_memory_moves_again() {
    let mut world = World::full(4);
    world.free(every_other(0..512)).pin(every_other(1..512));
    let request = direct(5, CompactMode::Sync);
    for turned_away in [0, 1, 3, 7] {
        for _ in 0..turned_away {
            let refusal = world.begin(request).unwrap_err();
            assert!(matches!(refusal, CompactRefusal::Deferred { .. }));
        }
        let mut run = world.begin(request).unwrap();
        assert_eq!(world.finish(&mut run), CompactEnd::Complete);
    }
    assert_eq!(world.zone.compact_totals().nr_deferred, 11);
    assert!(world.begin(direct(4, CompactMode::Sync)).is_ok());
    assert!(world.begin(CompactRequest::MANUAL).is_ok());
    // One that is let through and succeeds ends it.
    for pfn in every_other(1..512) {
        world.held.0.get_mut(&pfn).unwrap().1 = true;
    }
    let mut run = (0..16).find_map(|_| world.begin(request).ok()).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    let block = world.zone.alloc(order(5), MOVABLE, DIP).unwrap();
    assert!(world.begin(request).is_ok());
    world.zone.free(block, order(5));
}

#[test]
fn the_reserve_is_not_used_up_as_places() {
    let mut world = World::full(4);
    let min = u32::try_from(world.zone.watermarks().min).unwrap();
    assert!(min > 4);
    world.free(every_other(512 - 2 * min..512));
    let mut run = world.begin(CompactRequest::MANUAL).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::TooFewFree);
    assert_eq!(run.counts().nr_moved, 0);
    let refusal = world.begin(direct(3, CompactMode::Sync)).unwrap_err();
    assert_eq!(
        refusal,
        CompactRefusal::TooFewFree {
            free_pages: u64::from(min),
            needed_pages: u64::from(min) + 16
        }
    );
}

#[test]
fn a_request_that_lacks_memory_is_not_helped_by_moving() {
    let mut world = World::full(4);
    // Six blocks of the next smaller order, three blocks' worth: 1000 - 4000 / 6.
    world.free((0..6).flat_map(|block| block * 64..block * 64 + 32));
    assert_eq!(
        world.zone.fragmentation_index(order(6)),
        Some(1000 - 4000 / 6)
    );
    let refusal = world.begin(direct(6, CompactMode::Sync)).unwrap_err();
    assert_eq!(refusal, CompactRefusal::NotFragmented { index: 334 });
}

#[test]
fn a_background_run_stops_at_its_score() {
    let mut world = World::full(8);
    world.free(every_other(0..1024));
    assert_eq!(world.zone.fragmentation_score(), 100);
    let mut run = world.begin(CompactRequest::proactive(70)).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Reached);
    let score = world.zone.fragmentation_score();
    assert!((60..=70).contains(&score), "{score}");
    let enough = world.begin(CompactRequest::proactive(70)).unwrap_err();
    assert_eq!(enough, CompactRefusal::NotNeeded);
}

#[test]
fn gaps_between_sections_are_stepped_over() {
    let mut world = World::full(8);
    world.free(every_other(0..1024));
    for section in [2, 3, 5] {
        world.free((section * SECTION + 1..(section + 1) * SECTION).step_by(2));
        let id = SectionId::new(section);
        world.zone.isolate(id).unwrap();
        world.zone.finish_offline(id).unwrap();
        world.zone.begin_remove(id).unwrap();
        world.zone.finish_remove(id).unwrap();
    }
    let mut run = world.begin(CompactRequest::MANUAL).unwrap();
    assert_eq!(world.finish(&mut run), CompactEnd::Complete);
    assert_eq!(
        run.counts().nr_checks,
        5 * 4,
        "nothing is asked of what is absent"
    );
    assert_eq!(run.counts().nr_moved, 5 * 32);
}

#[test]
fn a_section_that_begins_to_leave_is_left_at_once() {
    let mut world = World::full(4);
    world.free(every_other(0..512));
    let mut run = world.begin(CompactRequest::MANUAL).unwrap();
    let (_, moves) = world.step(&mut run, 9);
    let half = moves.len() / 2;
    world.make(&mut run, &moves[..half]);
    for one in &moves[half..] {
        world.zone.free(one.to, one.order);
        run.not_moved(one);
    }
    world.zone.isolate(SectionId::new(0)).unwrap();
    world.zone.isolate(SectionId::new(3)).unwrap();
    loop {
        let (round, moves) = world.step(&mut run, 9);
        let touched = moves.iter().flat_map(|one| [one.from.get(), one.to.get()]);
        assert!(touched.into_iter().all(|pfn| (128..384).contains(&pfn)));
        world.make(&mut run, &moves);
        if round == Round::Ended(CompactEnd::Complete) {
            break;
        }
    }
    world.zone.verify().unwrap();
}
