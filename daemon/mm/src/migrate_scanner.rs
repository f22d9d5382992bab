//! The migrate scanner: from the zone's start up, yielding moves a round at a time.
//!
//! A step looks at a bounded number of pageblocks and ends with moves, with a pause, or
//! with the run's end; between two steps a run may be dropped. Before anything else is done
//! with a pageblock it is asked whether it is whole.

use crate::compact::{
    CompactCounts, CompactEnd, CompactGoal, CompactMode, CompactRequest, MovableBlock, Move,
    ROUND_PAGES, Round, Surroundings,
};
use crate::contiguity::PageblockAt;
use crate::free_scanner::{FreeScanner, Places};
use crate::pageblock::Row;
use crate::{Order, Pfn, Zone};

/// A compaction run. Dropping it cancels it.
#[derive(Clone, Debug)]
pub struct Compaction {
    request: CompactRequest,
    /// The order that is to be made, or the pageblock's.
    wanted: Order,
    counts: CompactCounts,
    /// Moves that were yielded and not answered yet.
    nr_unanswered: usize,
    /// The pageblock that is opened next.
    next: u32,
    first: u32,
    end: u32,
    is_whole: bool,
    /// The pageblock in work, and its blocks from `at` on that are still to be moved.
    open: Option<u32>,
    sources: Vec<MovableBlock>,
    at: usize,
    places: FreeScanner,
    /// The free block counted last.
    last_made: Option<Pfn>,
    ended: Option<CompactEnd>,
    taken: Vec<Pfn>,
}

/// What became of looking for the next pageblock with something to move.
enum Opened {
    Block,
    Met,
    Pause,
}

impl Compaction {
    pub(crate) fn new(
        zone: &Zone,
        request: CompactRequest,
        migrate: u32,
        free: u32,
        is_whole: bool,
    ) -> Compaction {
        let wanted = match request.goal {
            CompactGoal::Order(order) => order,
            CompactGoal::Score(_) | CompactGoal::WholeZone => zone.geometry.pageblock_order(),
        };
        Compaction {
            request,
            wanted,
            counts: CompactCounts::default(),
            nr_unanswered: 0,
            next: migrate,
            first: migrate,
            end: free,
            is_whole,
            open: None,
            sources: Vec::new(),
            at: 0,
            places: FreeScanner::new(free, wanted, request.mode),
            last_made: None,
            ended: None,
            taken: Vec::new(),
        }
    }

    /// Goes on until there are moves to be made, `most_pageblocks` pageblocks have been
    /// looked at, or the run is over. Fills `moves`; their places have been taken from the
    /// zone and are the caller's: each move is made and its old block freed, or its place
    /// is freed. Every move is answered ([`moved`](Self::moved),
    /// [`not_moved`](Self::not_moved)), in any order and perhaps after further rounds: of the same
    /// pageblock, and where the whole zone is packed of the next ones too. Otherwise whether the
    /// goal is reached is looked at between two pageblocks, and the run waits there for its answers.
    pub fn next_round(
        &mut self,
        zone: &mut Zone,
        around: &mut impl Surroundings,
        most_pageblocks: u32,
        moves: &mut Vec<Move>,
    ) -> Round {
        moves.clear();
        let mut budget = most_pageblocks.max(1);
        loop {
            if let Some(end) = self.ended {
                return Round::Ended(end);
            }
            if let Some(block) = self.open {
                let places = self.pair(zone, around, block, &mut budget, moves);
                if !moves.is_empty() {
                    self.nr_unanswered += moves.len();
                    return Round::Moves;
                }
                let is_over = places == Places::TooFewFree;
                if self.nr_unanswered > 0 && (is_over || !self.runs_ahead()) {
                    return Round::Unanswered;
                }
                match places {
                    Places::Pause => return Round::Pause,
                    Places::TooFewFree => {
                        self.over(zone, CompactEnd::TooFewFree);
                        continue;
                    }
                    Places::Found | Places::Met => self.close(zone),
                }
                continue;
            }
            match self.open_next(zone, around, &mut budget) {
                Opened::Block => {}
                Opened::Pause => return Round::Pause,
                Opened::Met if self.nr_unanswered > 0 => return Round::Unanswered,
                Opened::Met if self.is_whole => self.over(zone, CompactEnd::Complete),
                Opened::Met => self.over(zone, CompactEnd::Partial),
            }
        }
    }

    /// Whether it leaves a pageblock before all of its moves are answered: nothing that they bring
    /// would end it.
    fn runs_ahead(&self) -> bool {
        self.request.goal == CompactGoal::WholeZone
    }

    /// A move was made: its old block is free.
    pub fn moved(&mut self, zone: &Zone, made: &Move) {
        self.nr_unanswered = self.nr_unanswered.saturating_sub(1);
        self.counts.nr_moved += u64::from(made.order.nr_pages());
        let head = made.from.align_down(self.wanted);
        if self.last_made != Some(head) && zone.is_free_block(head, self.wanted) {
            self.last_made = Some(head);
            self.counts.nr_blocks_made += 1;
        }
    }

    /// A move was not made: its place is free.
    pub fn not_moved(&mut self, not_made: &Move) {
        self.nr_unanswered = self.nr_unanswered.saturating_sub(1);
        self.counts.nr_failed += u64::from(not_made.order.nr_pages());
    }

    /// Whether nothing of the pageblock in work is left to be moved.
    #[must_use]
    pub fn is_between_pageblocks(&self) -> bool {
        self.at >= self.sources.len()
    }

    /// What was asked for.
    #[must_use]
    pub fn request(&self) -> CompactRequest {
        self.request
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> CompactCounts {
        self.counts
    }

    /// Pageblocks that both scanners have behind them, and pageblocks in all.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        let total = self.end - self.first;
        let left = match self.ended {
            Some(_) => 0,
            None => self.places.position().saturating_sub(self.next),
        };
        (total - left.min(total), total)
    }

    /// Moves the next blocks of the open pageblock on paper.
    fn pair(
        &mut self,
        zone: &mut Zone,
        around: &mut impl Surroundings,
        block: u32,
        budget: &mut u32,
        moves: &mut Vec<Move>,
    ) -> Places {
        let mut room = ROUND_PAGES;
        // Between two steps the section may have begun to leave; its pages go elsewhere then.
        if zone.buddy.row(block).is_isolated() {
            self.at = self.sources.len();
        }
        while let Some(&source) = self.sources.get(self.at) {
            let order = source.order;
            let fit = crate::num::index((room >> order.get()).max(1));
            let alike = self.sources[self.at..]
                .iter()
                .take(fit)
                .take_while(|next| next.order == order && around.is_still_movable(next))
                .count();
            if alike == 0 {
                self.at += 1;
                continue;
            }
            self.taken.clear();
            let places = self.places.take(
                zone,
                around,
                block,
                order,
                alike,
                budget,
                &mut self.counts,
                &mut self.taken,
            );
            match places {
                Places::Found => {}
                // Others of the pageblock may be smaller and still find a place.
                Places::Met => {
                    self.at += alike;
                    continue;
                }
                none => return none,
            }
            for (source, &to) in self.sources[self.at..].iter().zip(&self.taken) {
                moves.push(Move {
                    from: source.pfn,
                    to,
                    order,
                });
            }
            self.at += self.taken.len();
            let pages = crate::num::to_u32(self.taken.len()) << order.get();
            room = room.saturating_sub(pages);
            if room == 0 {
                break;
            }
        }
        Places::Found
    }

    /// Looks for the next pageblock with something to move.
    fn open_next(
        &mut self,
        zone: &mut Zone,
        around: &mut impl Surroundings,
        budget: &mut u32,
    ) -> Opened {
        let shape = zone.buddy.shape;
        let in_section = (1 << shape.section_shift) - 1;
        loop {
            let block = self.next;
            if self.places.has_met(block) {
                return Opened::Met;
            }
            let section = block >> shape.section_shift;
            if block & in_section == 0 && !zone.present_sections.contains(section) {
                match zone.present_sections.first_from(section) {
                    Some(section) => self.next = section << shape.section_shift,
                    None => return Opened::Met,
                }
                continue;
            }
            if *budget == 0 {
                return Opened::Pause;
            }
            *budget -= 1;
            self.next += 1;
            self.counts.nr_checks += 1;
            let start = zone.absolute(shape.join(block, 0));
            let row = zone.buddy.row(block);
            let at = PageblockAt { start, block, row };
            if !around.is_whole(zone, at) || !self.is_source(row, shape.block_pages) {
                continue;
            }
            self.counts.nr_migrate_scanned += u64::from(shape.block_pages);
            self.list_sources(zone, around, start, block);
            if !self.sources.is_empty() {
                self.open = Some(block);
                return Opened::Block;
            }
            if self.request.mode.heeds_skips() {
                zone.skip_block(block);
                self.remember(zone);
            }
        }
    }

    /// Whether there can be something to move in a pageblock, as far as its row says.
    #[inline]
    fn is_source(&self, row: Row, block_pages: u32) -> bool {
        let has_held = row.is_managed() && !row.is_isolated() && row.nr_free() < block_pages;
        let is_skipped = row.skip() && self.request.mode.heeds_skips();
        has_held
            && !is_skipped
            && (self.request.mode != CompactMode::Async
                || row.migratetype() == self.request.migratetype)
    }

    /// Lists what is to be moved out of a pageblock.
    fn list_sources(
        &mut self,
        zone: &Zone,
        around: &mut impl Surroundings,
        start: Pfn,
        block: u32,
    ) {
        let pageblock_order = zone.geometry.pageblock_order();
        self.sources.clear();
        self.at = 0;
        around.movable_blocks(start.block(pageblock_order), &mut self.sources);
        // A block that is as large as what is wanted is in nobody's way.
        let most = self.wanted.min(pageblock_order);
        self.sources.retain(|source| source.order < most);
        if self.request.mode == CompactMode::Async {
            self.drop_hopeless(zone, start, block, most);
        }
    }

    /// Leaves alone what shares a block of the wanted order with a page that cannot move.
    fn drop_hopeless(&mut self, zone: &Zone, start: Pfn, block: u32, order: Order) {
        let mut kept = 0;
        let mut from = 0;
        while from < self.sources.len() {
            let head = self.sources[from].pfn.align_down(order);
            let (mut to, mut nr_movable) = (from, 0);
            while let Some(source) = self.sources.get(to)
                && source.pfn.align_down(order) == head
            {
                nr_movable += source.order.nr_pages();
                to += 1;
            }
            let off = head.get() - start.get();
            let nr_held = order.nr_pages() - zone.buddy.nr_free_in(block, off, order.nr_pages());
            if nr_movable >= nr_held {
                self.sources.copy_within(from..to, kept);
                kept += to - from;
            }
            from = to;
        }
        self.sources.truncate(kept);
    }

    /// The open pageblock is done with.
    fn close(&mut self, zone: &mut Zone) {
        self.open = None;
        self.remember(zone);
        if zone.is_compact_enough(self.request.goal) {
            self.over(zone, CompactEnd::Reached);
        }
    }

    fn remember(&self, zone: &mut Zone) {
        let free = self.places.position();
        zone.restart.remember(self.request.mode, self.next, free);
    }

    fn over(&mut self, zone: &mut Zone, end: CompactEnd) {
        // What others freed meanwhile may have done it.
        let end = if zone.is_compact_enough(self.request.goal) {
            CompactEnd::Reached
        } else {
            end
        };
        zone.end_compaction(self.request, end, self.counts);
        self.ended = Some(end);
    }
}
