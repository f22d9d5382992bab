//! Compaction: scanners of the allocator, moves of the runner, and whom it is done for.
//!
//! A run yields moves ([`hugepool_mm::Compaction`]); here each is made by the primitive under offline
//! too ([`migrate`](crate::migrate)), at most a pageblock's worth in a batch, and answered. The runner
//! has two batches, so that one is copied while the other is settled and its successor made ready. A
//! step looks at a bounded number of pageblocks under the lock; between two steps the operation can be
//! cancelled, or dropped because nobody waits for it any more. When and for whom one is begun is
//! [`compaction_due`](crate::compaction_due)'s.

use hugepool_mm::{
    CompactCounts, CompactEnd, Compaction, MovableBlock, Move, Pfn, PfnRange, Round, Surroundings,
};

use crate::Engine;
use crate::client::Clients;
use crate::compacting::{Cause, Compacting, Plan, UnderWay};
use crate::custody::Custody;
use crate::drain::POLL_SOON;
use crate::events::About;
use crate::id::{Now, OperationId};
use crate::intent::Intents;
use crate::migrate::{MAX_BLOCKS, Source, Standing, standing};
use crate::operation::Operation;
use crate::owners::Owners;
use crate::recall::is_pending;
use crate::report::CompactedEnd;
use crate::zones::ZoneIndex;

/// Pageblocks looked at under one hold of the lock.
const VISIT_PAGEBLOCKS: u32 = 16;
/// What a background run waits between two such looks.
const BREATH: Now = Now::from_millis(1);
/// Pages of a batch, beyond which no further round is added to it.
const BATCH_PAGES: u32 = 512;

/// Who knows which blocks can be moved now.
struct Lookout<'a> {
    owners: &'a Owners,
    intents: &'a Intents,
    clients: &'a Clients,
    /// Blocks that were found to be movable still, in order.
    found: Vec<Source>,
}

impl Surroundings for Lookout<'_> {
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>) {
        let Ok(first) = u32::try_from(pageblock.start) else {
            return;
        };
        let place = self.owners.place(Pfn::new(first));
        self.owners.for_each_head(place, &mut |pfn, lent| {
            if let Standing::Free(_) = standing(self.clients, self.intents, pfn, &lent) {
                let order = lent.order;
                out.push(MovableBlock { pfn, order });
            }
        });
    }

    fn is_still_movable(&mut self, block: &MovableBlock) -> bool {
        let found = self.source(block);
        self.found.extend(found);
        found.is_some()
    }
}

impl Lookout<'_> {
    fn source(&self, block: &MovableBlock) -> Option<Source> {
        let crate::cell::Cell::Lent(lent) = self.owners.cell(block.pfn) else {
            return None;
        };
        let pfn = block.pfn;
        match standing(self.clients, self.intents, pfn, &lent) {
            Standing::Free(named) if lent.order == block.order => Some(Source { pfn, lent, named }),
            _ => None,
        }
    }
}

/// What a step gathered.
enum Gathered {
    /// Moves for a batch; perhaps more in the same pageblock.
    Moves(Vec<(Source, Move)>),
    /// As many pageblocks were looked at as one hold of the lock allows.
    Pause,
    /// The runner's answers are needed to go on.
    Unanswered,
    /// The run is over.
    Ended(CompactEnd),
}

impl Engine {
    /// Goes on with a compaction, and files it when it has ended.
    pub(crate) fn advance_compact(&mut self, mut operation: Operation, now: Now) {
        let Some(mut compacting) = operation.compact.take() else {
            return;
        };
        let nobody_waits =
            matches!(&compacting.cause, Cause::Direct(callers) if callers.is_empty());
        if operation.is_cancelled || nobody_waits {
            // It goes no further; what the runner has is answered first.
            if compacting.under_way.is_empty() {
                operation.is_cancelled = true;
                compacting.stop();
            }
        } else if compacting.has_room() {
            if now < operation.deadline && is_pending(&self.clients, &operation.rounds.clients) {
                // Lanes are being emptied: what lies in them cannot be moved, and will be free.
                compacting.next = Some(now + POLL_SOON);
            } else if compacting.next.is_some_and(|next| next <= now) {
                self.step_compact(&operation, &mut compacting, now);
            }
        }
        let has_ended = compacting.plans.is_empty() && compacting.under_way.is_empty();
        if has_ended {
            self.note_pace(&compacting, now);
            self.tell_compacted(operation.id, &compacting, now);
        }
        operation.compact = Some(compacting);
        if has_ended {
            let report = operation.report(&self.custody.zones, now, false);
            self.operations.end(report);
        } else {
            self.operations.put(operation);
        }
    }

    fn step_compact(&mut self, operation: &Operation, compacting: &mut Compacting, now: Now) {
        while let Some(&Plan { zone, request }) = compacting.plans.front() {
            if compacting.run.is_none() {
                match self.custody.zones.zone_mut(zone).begin_compaction(request) {
                    Ok(run) => compacting.run = Some(run),
                    Err(refusal) => {
                        compacting.end_plan(CompactedEnd::of_refusal(refusal));
                        continue;
                    }
                }
            }
            if compacting.budget_pages == Some(0) {
                // Until more is allowed.
                compacting.next = None;
                return;
            }
            let Some(run) = &mut compacting.run else {
                return;
            };
            match self.gather(zone, run, compacting.budget_pages) {
                Gathered::Moves(gathered) => {
                    let has_begun = self.begin_batch(operation, compacting, gathered, now);
                    if has_begun && !compacting.has_room() {
                        compacting.next = None;
                        return;
                    }
                }
                Gathered::Unanswered => {
                    // Each answer says when.
                    compacting.next = None;
                    return;
                }
                Gathered::Pause => {
                    let is_patient = compacting.cause == Cause::Background;
                    compacting.next = Some(if is_patient { now + BREATH } else { now });
                    return;
                }
                Gathered::Ended(end) => compacting.end_plan(CompactedEnd::of(request.goal, end)),
            }
        }
    }

    /// Rounds up to the end of a pageblock, or until there is enough for a batch.
    fn gather(&mut self, zone: usize, run: &mut Compaction, budget: Option<u64>) -> Gathered {
        let Custody {
            zones,
            owners,
            intents,
            ..
        } = &mut self.custody;
        let clients = &self.clients;
        let mut around = Lookout {
            owners,
            intents,
            clients,
            found: Vec::new(),
        };
        let mut gathered: Vec<(Source, Move)> = Vec::new();
        let (mut moves, mut nr_pages) = (Vec::new(), 0);
        let most_blocks = MAX_BLOCKS.min(around.intents.room());
        let most_pages = u64::from(BATCH_PAGES).min(budget.unwrap_or(u64::MAX));
        loop {
            match run.next_round(
                zones.zone_mut(zone),
                &mut around,
                VISIT_PAGEBLOCKS,
                &mut moves,
            ) {
                Round::Moves => {}
                // What is gathered already goes first; the run says so again.
                _ if !gathered.is_empty() => return Gathered::Moves(gathered),
                Round::Unanswered => return Gathered::Unanswered,
                Round::Pause => return Gathered::Pause,
                Round::Ended(end) => return Gathered::Ended(end),
            }
            let mut found = around.found.drain(..);
            for one in &moves {
                nr_pages += u64::from(one.order.nr_pages());
                match found.find(|source| source.pfn == one.from) {
                    Some(source) => gathered.push((source, *one)),
                    None => {
                        zones.zone_mut(zone).free(one.to, one.order);
                        run.not_moved(one);
                    }
                }
            }
            let is_full = nr_pages >= most_pages
                || gathered.len() + hugepool_mm::ROUND_PAGES as usize > most_blocks;
            if is_full || run.is_between_pageblocks() {
                return Gathered::Moves(gathered);
            }
        }
    }

    /// Hands the runner a batch; false if none of the blocks could be in it.
    fn begin_batch(
        &mut self,
        operation: &Operation,
        compacting: &mut Compacting,
        gathered: Vec<(Source, Move)>,
        now: Now,
    ) -> bool {
        let (sources, moves): (Vec<Source>, Vec<Move>) = gathered.into_iter().unzip();
        // Sources are taken in order, perhaps not all of them.
        let mut rest = moves.into_iter();
        let (mut left, mut placed) = (Vec::new(), Vec::new());
        let begun = self.migrate(
            operation.id,
            &sources,
            &mut |custody, who, source| {
                let one = rest.by_ref().find(|one| {
                    let is_it = one.from == source.pfn;
                    if !is_it {
                        left.push(*one);
                    }
                    is_it
                })?;
                // A client that has not mapped the place's section must not find its block there.
                if !custody.is_mapped(who, one.to) {
                    left.push(one);
                    return None;
                }
                placed.push(one);
                Some(one.to)
            },
            now,
        );
        left.extend(rest);
        debug_assert_eq!(begun.batch.is_some(), !placed.is_empty());
        if let (Some(run), Some(plan)) = (&mut compacting.run, compacting.plans.front()) {
            let zone = self.custody.zones.zone_mut(plan.zone);
            for one in &left {
                zone.free(one.to, one.order);
                run.not_moved(one);
            }
        }
        let nr_pages: u64 = placed
            .iter()
            .map(|one| u64::from(one.order.nr_pages()))
            .sum();
        if let Some(budget) = &mut compacting.budget_pages {
            *budget = budget.saturating_sub(nr_pages);
        }
        if let Some(number) = begun.batch {
            let moves = placed;
            compacting.under_way.push(UnderWay { number, moves });
        }
        begun.batch.is_some()
    }

    fn tell_compacted(&mut self, id: OperationId, compacting: &Compacting, now: Now) {
        let (done, ..) = compacting.report();
        let why = match compacting.cause {
            Cause::Asked => "asked for",
            Cause::Direct(_) => "for a request",
            Cause::Background => "in the background",
        };
        let ended = done.end.map_or("", CompactedEnd::name);
        let CompactCounts {
            nr_moved,
            nr_blocks_made,
            ..
        } = done.counts;
        let text = format!(
            "operation {id}: compaction {why}: {ended}, {nr_moved} pages moved, {nr_blocks_made} blocks made"
        );
        let zone = match compacting.zones[..] {
            [zone] => Some(ZoneIndex(zone).id()),
            _ => None,
        };
        let about = About {
            zone,
            ..About::default()
        };
        self.events.note(now, "compact", about, text);
    }
}
