//! Compaction on the zone and its twin: runs that go on between all other operations.
//!
//! Which moves are yielded is the scanners' choice; what each must be is checked here page
//! by page, and that the places of moves not made come back.

use hugepool_mm::{
    CompactEnd, CompactGoal, CompactMode, CompactRefusal, CompactRequest, Compaction, Migratetype,
    MovableBlock, Move, Order, Pfn, PfnRange, ROUND_PAGES, Round, SectionState, Surroundings,
};

use super::Twin;

/// A run under way.
pub(super) struct Run {
    compaction: Compaction,
    wanted: Order,
}

/// Blocks whose head is in some residue class are pinned.
fn is_movable(pfn: Pfn) -> bool {
    !(pfn.get() / 3).is_multiple_of(5)
}

struct Held<'a>(&'a [(Pfn, Order)]);

impl Surroundings for Held<'_> {
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>) {
        let from = out.len();
        let here = self.0.iter().filter(|(pfn, _)| pageblock.contains(*pfn));
        let movable = here.filter(|(pfn, _)| is_movable(*pfn));
        out.extend(movable.map(|&(pfn, order)| MovableBlock { pfn, order }));
        out[from..].sort_unstable_by_key(|block| block.pfn);
    }

    fn is_still_movable(&mut self, block: &MovableBlock) -> bool {
        self.0.contains(&(block.pfn, block.order))
    }
}

impl Twin {
    pub(super) fn compact_begin(&mut self, mode: u8, order: u8, mt: usize) {
        let mode =
            [CompactMode::Async, CompactMode::Sync, CompactMode::Manual][usize::from(mode) % 3];
        let order = self.order(order);
        let (goal, wanted) = match mt % 5 {
            3 => (CompactGoal::WholeZone, self.geometry.pageblock_order()),
            4 => (CompactGoal::Score(20), self.geometry.pageblock_order()),
            _ => (CompactGoal::Order(order), order),
        };
        let request = CompactRequest {
            goal,
            mode,
            migratetype: Migratetype::ALL[mt % 3],
        };
        let is_enough = self.zone.is_compact_enough(goal);
        self.run = match self.zone.begin_compaction(request) {
            Ok(compaction) => {
                assert!(!is_enough);
                assert_eq!(
                    self.zone.counts().pcp,
                    0,
                    "listed pages would be in the way"
                );
                Some(Run { compaction, wanted })
            }
            Err(CompactRefusal::NotNeeded) => {
                assert!(is_enough || self.zone.span().is_empty());
                None
            }
            Err(_) => {
                assert_ne!(goal, CompactGoal::WholeZone);
                None
            }
        };
    }

    /// One step, or, with an even budget, two before the moves of the first are answered; every
    /// `fails`th move is not made. Returns whether the run goes on.
    pub(super) fn compact_step(&mut self, budget: u32, fails: usize) -> bool {
        let Some(mut run) = self.run.take() else {
            return false;
        };
        let (mut round, mut moves) = self.compact_round(&mut run, budget);
        if round == Round::Moves && budget.is_multiple_of(2) {
            let (second, more) = self.compact_round(&mut run, budget);
            assert!(
                !matches!(second, Round::Ended(_)),
                "it ends without its answers"
            );
            (round, moves) = (second, [moves, more].concat());
        }
        for (at, one) in moves.iter().enumerate() {
            if fails != 0 && at % fails == 0 {
                self.zone.free(one.to, one.order);
                self.came_home(one.to, one.order);
                run.compaction.not_moved(one);
            } else {
                self.zone.free(one.from, one.order);
                self.came_home(one.from, one.order);
                let place = self.held.iter_mut().find(|(pfn, _)| *pfn == one.from);
                place.unwrap().0 = one.to;
                run.compaction.moved(&self.zone, one);
            }
        }
        match round {
            Round::Ended(end) => {
                let goal = run.compaction.request().goal;
                assert_eq!(
                    end == CompactEnd::Reached,
                    self.zone.is_compact_enough(goal)
                );
                false
            }
            _ => {
                self.run = Some(run);
                true
            }
        }
    }

    /// One round, looked at, its moves not answered.
    fn compact_round(&mut self, run: &mut Run, budget: u32) -> (Round, Vec<Move>) {
        let free: Vec<bool> = (0..self.nr_pages)
            .map(|at| self.zone.is_free(self.pfn(at)))
            .collect();
        let checks = run.compaction.counts().nr_checks;
        let mut moves = vec![Move {
            from: Pfn::new(7),
            to: Pfn::new(7),
            order: Order::ZERO,
        }];
        let mut held = Held(&self.held);
        let round = run
            .compaction
            .next_round(&mut self.zone, &mut held, budget, &mut moves);
        let nr_checks = run.compaction.counts().nr_checks - checks;
        assert!(
            nr_checks <= u64::from(budget.max(1)),
            "more than was allowed"
        );
        assert_eq!(round == Round::Moves, !moves.is_empty());
        let pages: u32 = moves.iter().map(|one| one.order.nr_pages()).sum();
        assert!(pages <= ROUND_PAGES || moves.len() == 1);
        for one in &moves {
            self.check_move(one, &free, run.wanted);
        }
        (round, moves)
    }

    fn check_move(&mut self, one: &Move, free: &[bool], wanted: Order) {
        assert!(self.held.contains(&(one.from, one.order)) && is_movable(one.from));
        assert!(one.order < wanted && one.order < self.geometry.pageblock_order());
        let (from, to) = (self.block_of(one.from), self.block_of(one.to));
        assert!(from < to, "{one:?} does not go up");
        for block in [from, to] {
            assert!(
                self.is_whole(block),
                "{one:?} touches a pageblock with a hole"
            );
            let section = self.geometry.section_of(block);
            assert_eq!(self.zone.section_state(section), Some(SectionState::Online));
        }
        let type_there = self.zone.pageblock(to).unwrap().migratetype;
        assert_eq!(type_there, Migratetype::Movable);
        // It was free, and not part of a free block of the order that is to be made.
        assert!(one.to.is_aligned(one.order));
        let large = wanted.min(self.geometry.pageblock_order());
        let all_free = |pfn: Pfn, order: Order| {
            let at = self.at(u64::from(pfn.get()));
            free[at..at + order.nr_pages() as usize]
                .iter()
                .all(|&page| page)
        };
        assert!(all_free(one.to, one.order));
        assert!(
            !all_free(one.to.align_down(large), large),
            "{one:?} broke a free block"
        );
        let at = self.at(u64::from(one.to.get()));
        for page in &mut self.home[at..at + one.order.nr_pages() as usize] {
            assert!(core::mem::take(page), "a place was taken twice");
        }
    }

    fn block_of(&self, pfn: Pfn) -> Pfn {
        pfn.align_down(self.geometry.pageblock_order())
    }
}
