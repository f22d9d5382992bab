//! Emptying sections that leave, of what can be moved: pass after pass over their blocks.
//!
//! A pass goes through the sections once and moves what is not pinned; what finds no place is
//! taken from its client if it may be. A block that was taken back [`HOT_AFTER`] times in the middle
//! of its move is *hot*: it is left alone until the last pass, at the operation's deadline. Between
//! passes that brought nothing the pauses grow.

use std::collections::BTreeMap;

use hugepool_mm::{Pfn, SectionId};

use crate::Engine;
use crate::evict::Evicted;
use crate::id::Now;
use crate::migrate::{MAX_BLOCKS, Moved, Source, Standing, anywhere};
use crate::moves::MoveOutcome;
use crate::num;
use crate::operation::{Operation, Step};
use crate::tally::Place;

/// Batches that the runner has at a time: while one is copied the next is settled and made ready.
const MAX_BATCHES: usize = 2;

/// So many lost moves make a block hot.
const HOT_AFTER: u8 = 3;
/// So often in a pass others' evictable blocks are taken to make room.
const MAX_MAKINGS: u32 = 16;
/// So many blocks are looked at under one hold of the lock; the rest of the pass goes on later.
const MAX_LOOKS: usize = 4096;
/// First and longest pause between passes.
const FIRST_PAUSE: Now = Now::from_millis(1);
const MAX_PAUSE: Now = Now::from_millis(80);

/// How far the last pass is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    #[default]
    NotYet,
    Running,
    Over,
}

/// A page, as a pass comes to it: by task, pageblock of its section, and page of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct At {
    task: usize,
    block: usize,
    page: u32,
}

/// Where an operation is with its moves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shift {
    /// Batches that the runner is at.
    nr_batches: usize,
    /// The next page to look at.
    at: At,
    /// When the next pass may begin.
    next_pass: Now,
    pause: Now,
    has_moved: bool,
    last: Last,
    /// Lost moves of blocks that have some.
    lost: BTreeMap<Pfn, u8>,
    /// How often room was made in this pass.
    nr_makings: u32,
}

impl Shift {
    /// Whether the last pass is over.
    pub fn is_over(&self) -> bool {
        self.last == Last::Over && self.nr_batches == 0
    }

    /// Whether the block was taken back so often that it is left alone.
    pub fn is_hot(&self, pfn: Pfn) -> bool {
        self.lost.get(&pfn).is_some_and(|&lost| lost >= HOT_AFTER)
    }

    /// What came of a batch.
    pub fn note(&mut self, moved: &[Moved]) {
        self.nr_batches = self.nr_batches.saturating_sub(1);
        for one in moved {
            match one.outcome {
                MoveOutcome::Moved => {
                    self.has_moved = true;
                    self.lost.remove(&one.from);
                }
                MoveOutcome::TakenBack | MoveOutcome::Fault => {
                    let lost = self.lost.entry(one.from).or_insert(0);
                    *lost = lost.saturating_add(1);
                }
                MoveOutcome::Pinned | MoveOutcome::Gone => {}
            }
        }
    }

    /// A pass is through.
    fn end_pass(&mut self, now: Now) {
        (self.at, self.nr_makings) = (At::default(), 0);
        if self.last == Last::Running {
            self.last = Last::Over;
        }
        self.pause = if core::mem::take(&mut self.has_moved) {
            FIRST_PAUSE
        } else {
            (self.pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE)
        };
        self.next_pass = now + self.pause;
    }
}

impl Engine {
    /// Goes on with an operation's moves: hands the runner the next batch, unless it is at one, or
    /// it is not yet time.
    pub(crate) fn advance_shift(&mut self, operation: &mut Operation, now: Now) {
        if operation.shift.last == Last::NotYet && now >= operation.deadline {
            let shift = &mut operation.shift;
            (shift.last, shift.at, shift.next_pass) = (Last::Running, At::default(), now);
        }
        while operation.shift.nr_batches < MAX_BATCHES
            && operation.shift.last != Last::Over
            && (now >= operation.shift.next_pass || operation.shift.at != At::default())
        {
            let (sources, is_through) = self.next_sources(operation);
            if sources.is_empty() {
                // What is under way belongs to this pass.
                if is_through && operation.shift.nr_batches == 0 {
                    operation.shift.end_pass(now);
                }
                return;
            }
            self.shift_some(operation, &sources, now);
        }
    }

    fn shift_some(&mut self, operation: &mut Operation, sources: &[Source], now: Now) {
        let mut rest = sources;
        let mut has_begun = false;
        while !rest.is_empty() && !has_begun {
            let begun = self.migrate(operation.id, rest, &mut anywhere, now);
            has_begun = begun.batch.is_some();
            operation.shift.nr_batches += usize::from(has_begun);
            rest = &rest[begun.nr_seen.max(1)..];
            let is_roomier = self.settle_homeless(operation, &begun.homeless, now);
            if let Some(first) = begun.homeless.first().filter(|_| is_roomier) {
                operation.shift.at = self.place_in(operation, first.pfn);
                return;
            }
        }
        if let Some(first) = rest.first() {
            // What did not fit the batch is looked at again.
            operation.shift.at = self.place_in(operation, first.pfn);
        }
    }

    /// Takes blocks that have no other place from their clients, where they may be taken, and others'
    /// evictable ones to make room for the rest. Returns whether there is more room now.
    fn settle_homeless(
        &mut self,
        operation: &mut Operation,
        homeless: &[Source],
        now: Now,
    ) -> bool {
        let mut evicted = Evicted::default();
        let mut staying = Vec::new();
        for source in homeless {
            if self.evict_block(source, &mut evicted) {
                let section = self.custody.zones.geometry().section_of(source.pfn);
                operation.note_evicted(section, source.lent.order.nr_pages());
                operation.shift.has_moved = true;
            } else {
                staying.push(source);
            }
        }
        self.tell_evicted(&evicted, now);
        let Some(first) = staying.first() else {
            return false;
        };
        let Some(client) = self.clients.get(first.lent.client) else {
            return false;
        };
        if operation.shift.nr_makings == MAX_MAKINGS {
            return false;
        }
        operation.shift.nr_makings += 1;
        let zonelist = client.zonelist(first.lent.migratetype).to_vec();
        let nr_blocks = num::saturate(num::count(staying.len()));
        self.evict_for(&zonelist, first.lent.order, nr_blocks, now) > 0
    }

    /// The next blocks that can be moved: a batch of them, or what there is among as many as may be
    /// looked at. And whether the pass is through.
    fn next_sources(&self, operation: &mut Operation) -> (Vec<Source>, bool) {
        let geometry = self.custody.zones.geometry();
        let nr_blocks = num::index(geometry.section_pageblocks());
        let mut at = operation.shift.at;
        let mut sources = Vec::new();
        let mut nr_looks = 0;
        let is_enough = |nr_sources, nr_looks| nr_sources >= MAX_BLOCKS || nr_looks >= MAX_LOOKS;
        while at.task < operation.tasks.len() && !is_enough(sources.len(), nr_looks) {
            let task = &operation.tasks[at.task];
            if at.block == nr_blocks || task.step != Step::Leaving {
                at = At {
                    task: at.task + 1,
                    ..At::default()
                };
                continue;
            }
            let section = task.section().get();
            let block = at.block;
            let place = Place { section, block };
            let look = &mut |pfn, lent| {
                nr_looks += 1;
                let shift = &operation.shift;
                let is_left_out = shift.last == Last::NotYet && shift.is_hot(pfn);
                if let Standing::Free(named) = self.standing(pfn, &lent)
                    && !is_left_out
                {
                    sources.push(Source { pfn, lent, named });
                }
                !is_enough(sources.len(), nr_looks)
            };
            let rest = self.custody.owners.heads_from(place, at.page, look);
            at = match rest {
                Some(page) => At { page, ..at },
                None => At {
                    block: block + 1,
                    page: 0,
                    ..at
                },
            };
        }
        operation.shift.at = at;
        (sources, at.task == operation.tasks.len())
    }

    fn place_in(&self, operation: &Operation, pfn: Pfn) -> At {
        let place = self.custody.owners.place(pfn);
        let geometry = self.custody.zones.geometry();
        let task = operation.task_of(SectionId::new(place.section));
        At {
            task: task.unwrap_or(operation.tasks.len()),
            block: place.block,
            page: pfn.get() & (geometry.pageblock_pages() - 1),
        }
    }
}
