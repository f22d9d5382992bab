//! Where a compaction is: what is still to be done, for whom, and what has been.
//!
//! The steps themselves are [`compact`](crate::compact)'s.

use std::collections::VecDeque;

use hugepool_mm::{
    CompactCounts, CompactEnd, CompactGoal, CompactRefusal, CompactRequest, Compaction, Move,
    PfnRange,
};

use crate::custody::Custody;
use crate::id::{ClientId, Now};
use crate::migrate::Moved;
use crate::moves::MoveOutcome;
use crate::report::{Compacted, CompactedEnd};

/// A call that waits for what compaction may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub session: ClientId,
    /// 0: the session's calls without an id.
    pub request_id: u64,
}

/// Why it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An administrator asked.
    Asked,
    /// These calls would fall short; it ends when none of them waits.
    Direct(Vec<Caller>),
    /// A zone is more scattered than it should be, or a call that did not wait fell short.
    Background,
}

/// A zone to be compacted, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub zone: usize,
    pub request: CompactRequest,
}

/// Batches that the runner has at a time: while one is copied the next is settled and made ready.
pub(crate) const MAX_BATCHES: usize = 2;

/// A batch that the runner is at.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    pub number: u64,
    /// Its moves, in the order of its blocks.
    pub moves: Vec<Move>,
}

/// Where a compaction is.
#[derive(Clone, Debug)]
pub(crate) struct Compacting {
    pub cause: Cause,
    /// What is still to be done; the front is in work.
    pub plans: VecDeque<Plan>,
    /// The zones it was begun for.
    pub zones: Vec<usize>,
    /// The run over the front's zone.
    pub run: Option<Compaction>,
    /// What the runner is at.
    pub under_way: Vec<UnderWay>,
    /// Work of the runs that have ended.
    counts: CompactCounts,
    /// Pageblocks that these had done, and pageblocks of them in all.
    behind: (u64, u64),
    pub end: Option<CompactedEnd>,
    /// When it is to be gone on with; `None`: when somebody says so.
    pub next: Option<Now>,
    /// Pages it may move until it is allowed more, where it has a budget.
    pub budget_pages: Option<u64>,
}

impl Compacting {
    pub fn new(cause: Cause, plans: Vec<Plan>, now: Now) -> Compacting {
        let mut zones: Vec<usize> = plans.iter().map(|plan| plan.zone).collect();
        zones.dedup();
        Compacting {
            cause,
            zones,
            plans: plans.into(),
            run: None,
            under_way: Vec::new(),
            counts: CompactCounts::default(),
            behind: (0, 0),
            end: None,
            next: Some(now),
            budget_pages: None,
        }
    }

    /// As [`new`](Self::new), over the first zone already.
    pub fn begun(self, run: Compaction) -> Compacting {
        let run = Some(run);
        Compacting { run, ..self }
    }

    /// The same within a budget.
    pub fn within(self, budget_pages: u64) -> Compacting {
        let budget_pages = Some(budget_pages);
        Compacting {
            budget_pages,
            ..self
        }
    }

    /// So many pages may be moved from now on, if it has a budget.
    pub fn allow(&mut self, budget_pages: u64, now: Now) {
        if self.budget_pages.is_some() {
            self.budget_pages = Some(budget_pages);
            self.next.get_or_insert(now);
        }
    }

    /// When it wants to be gone on with; `None`: when the runner answers, or more is allowed.
    pub fn wakes_at(&self) -> Option<Now> {
        self.next.filter(|_| self.has_room())
    }

    /// Whether the runner may be given one more batch.
    pub fn has_room(&self) -> bool {
        self.under_way.len() < MAX_BATCHES
    }

    /// How it stands: what it has done, pageblocks done, pageblocks in all.
    pub fn report(&self) -> (Compacted, u64, u64) {
        let mut counts = self.counts;
        let (mut done, mut total) = self.behind;
        if let Some(run) = &self.run {
            counts += run.counts();
            let (nr_done, nr_total) = run.progress();
            done += u64::from(nr_done);
            total += u64::from(nr_total);
        }
        let report = Compacted {
            counts,
            end: self.end,
            took_us: 0,
        };
        (report, done, total)
    }

    /// The run over the front's zone is over.
    pub fn end_plan(&mut self, end: CompactedEnd) {
        self.end_run();
        // The worst end of all is told; a direct one goes on only while nothing is reached.
        self.end = Some(match (&self.cause, self.end) {
            (Cause::Direct(_), _) | (_, None) => end,
            (_, Some(before)) => before.max(end),
        });
        self.plans.pop_front();
        if matches!(self.cause, Cause::Direct(_)) && end == CompactedEnd::Reached {
            self.plans.clear();
        }
    }

    /// It goes no further.
    pub fn stop(&mut self) {
        self.end_run();
        self.plans.clear();
        self.end = Some(CompactedEnd::Cancelled);
    }

    fn end_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.counts += run.counts();
            let (done, total) = run.progress();
            self.behind.0 += u64::from(done);
            self.behind.1 += u64::from(total);
        }
    }

    /// What came of a batch that the runner was at.
    pub fn note(&mut self, custody: &mut Custody, number: u64, moved: &[Moved]) {
        let Some(at) = self
            .under_way
            .iter()
            .position(|batch| batch.number == number)
        else {
            return;
        };
        let mut moves = self.under_way.swap_remove(at).moves.into_iter();
        self.next = Some(Now::ZERO);
        let (Some(plan), Some(run)) = (self.plans.front(), &mut self.run) else {
            return;
        };
        let pageblock_order = custody.zones.geometry().pageblock_order();
        let zone = custody.zones.zone_mut(plan.zone);
        let mut drained: Option<PfnRange> = None;
        for one in moved {
            // Answers come in the order of the batch.
            let Some(planned) = moves.find(|planned| planned.from == one.from) else {
                continue;
            };
            let pageblock = one.from.align_down(pageblock_order).block(pageblock_order);
            if drained != Some(pageblock) {
                // Pages that came home lie in the daemon's own lists, in the way of a free block.
                zone.pcp_drain_range(pageblock);
                drained = Some(pageblock);
            }
            match one.outcome {
                MoveOutcome::Moved => run.moved(zone, &planned),
                _ => run.not_moved(&planned),
            }
        }
    }
}

impl CompactedEnd {
    /// What a run's end means for what was asked.
    pub(crate) fn of(goal: CompactGoal, end: CompactEnd) -> CompactedEnd {
        match end {
            CompactEnd::Reached => CompactedEnd::Reached,
            CompactEnd::TooFewFree => CompactedEnd::TooFewFree,
            CompactEnd::Complete | CompactEnd::Partial if goal == CompactGoal::WholeZone => {
                CompactedEnd::Reached
            }
            CompactEnd::Complete | CompactEnd::Partial => CompactedEnd::NotReached,
        }
    }

    /// What it means that none was begun.
    pub(crate) fn of_refusal(refusal: CompactRefusal) -> CompactedEnd {
        match refusal {
            CompactRefusal::NotNeeded => CompactedEnd::Reached,
            CompactRefusal::Deferred { .. } => CompactedEnd::Deferred,
            CompactRefusal::TooFewFree { .. } => CompactedEnd::TooFewFree,
            CompactRefusal::NotFragmented { .. } => CompactedEnd::NotFragmented,
        }
    }
}
