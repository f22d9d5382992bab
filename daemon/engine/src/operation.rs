//! Long tasks: what is asked, where it stands, and the table of those that run or have ended.
//!
//! An operation is a list of tasks, one a section, each all or nothing, or a drain of
//! lanes. The steps themselves are [`hotplug`](crate::hotplug)'s and
//! [`drain`](crate::drain)'s; here is what they leave behind.

use std::collections::{BTreeMap, VecDeque};

use hugepool_mm::{OnlineOrder, SectionId};

use crate::command::SectionRefusal;
use crate::compacting::Compacting;
use crate::id::{ClientId, Now, OperationId, millis};
use crate::migrate::Moved;
use crate::moves::MoveOutcome;
use crate::num;
use crate::report::{
    Compacted, CompactedEnd, OperationKind, OperationReport, OperationState, Recalled,
    SectionOutcome,
};
use crate::shift::Shift;
use crate::zones::Zones;

/// Ended operations that are remembered.
const KEPT: usize = 64;
/// Operations at a time.
pub(crate) const MAX_RUNNING: usize = 32;

/// Where a section is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The runner makes its backing.
    Populating,
    /// Isolated; its pages come home.
    Leaving,
    /// The runner gives its backing back.
    Punching,
    /// The runner gives back what it has made, because the operation was cancelled.
    Unwinding,
    /// Done or refused.
    Ended,
}

/// One section's part of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub step: Step,
    pub outcome: SectionOutcome,
}

impl Task {
    /// The section.
    pub fn section(&self) -> SectionId {
        self.outcome.section
    }
}

/// Lanes that are being emptied.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    /// Whose.
    pub clients: Vec<ClientId>,
    /// When the next round may begin.
    pub next: Now,
    /// Time between the next two.
    pub pause: Now,
}

/// A long task.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub id: OperationId,
    pub kind: OperationKind,
    pub began: Now,
    /// Until when it waits.
    pub deadline: Now,
    pub is_cancelled: bool,
    pub online_order: OnlineOrder,
    pub keep_offline: bool,
    pub tasks: Vec<Task>,
    pub rounds: Rounds,
    pub shift: Shift,
    /// Of a drain or an eviction.
    pub recalled: Option<Recalled>,
    /// Of a compaction.
    pub compact: Option<Compacting>,
}

/// First pause between two rounds of one operation.
pub(crate) const FIRST_PAUSE: Now = Now::from_millis(10);

impl Operation {
    pub fn new(kind: OperationKind, now: Now, deadline: Now) -> Operation {
        Operation {
            id: OperationId(0),
            kind,
            began: now,
            deadline,
            is_cancelled: false,
            online_order: OnlineOrder::default(),
            keep_offline: false,
            tasks: Vec::new(),
            rounds: Rounds {
                clients: Vec::new(),
                next: now,
                pause: FIRST_PAUSE,
            },
            shift: Shift::default(),
            recalled: None,
            compact: None,
        }
    }

    /// Counts blocks that were moved out of its sections.
    pub fn note_moved(&mut self, zones: &Zones, moved: &[Moved]) {
        for one in moved.iter().filter(|one| one.outcome == MoveOutcome::Moved) {
            if let Some(at) = self.task_of(zones.geometry().section_of(one.from)) {
                self.tasks[at].outcome.nr_moved_pages += u64::from(one.nr_pages);
            }
        }
    }

    /// Counts a block that was taken out of one of its sections.
    pub fn note_evicted(&mut self, section: SectionId, nr_pages: u32) {
        if let Some(at) = self.task_of(section) {
            self.tasks[at].outcome.nr_evicted_pages += u64::from(nr_pages);
        }
    }

    /// Whether all its sections are done or refused.
    pub fn has_ended(&self) -> bool {
        self.tasks.iter().all(|task| task.step == Step::Ended)
    }

    /// The tasks at a step, by index.
    pub fn at(&self, step: Step) -> Vec<usize> {
        let tasks = self.tasks.iter().enumerate();
        tasks
            .filter(|(_, task)| task.step == step)
            .map(|(at, _)| at)
            .collect()
    }

    /// The task of a section.
    pub fn task_of(&self, section: SectionId) -> Option<usize> {
        self.tasks.iter().position(|task| task.section() == section)
    }

    /// Where a section of it is.
    pub fn step_of(&self, section: SectionId) -> Option<Step> {
        Some(self.tasks[self.task_of(section)?].step)
    }

    /// A section is done, or refused.
    pub fn end_task(&mut self, at: usize, result: Result<(), SectionRefusal>, now: Now) {
        let began = self.began;
        let task = &mut self.tasks[at];
        task.step = Step::Ended;
        task.outcome.done = Some(result);
        let took = now.saturating_sub(began).as_micros();
        task.outcome.took_us = u64::try_from(took).unwrap_or(u64::MAX);
    }

    fn state(&self, is_running: bool) -> OperationState {
        let is_reached = self.compact.as_ref().is_none_or(|compacting| {
            let end = compacting.report().0.end;
            end == Some(CompactedEnd::Reached)
        });
        if is_running {
            OperationState::Running
        } else if self.is_cancelled {
            OperationState::Cancelled
        } else if !is_reached {
            OperationState::Failed
        } else if self
            .tasks
            .iter()
            .all(|task| task.outcome.done == Some(Ok(())))
        {
            OperationState::Done
        } else {
            OperationState::Failed
        }
    }

    /// How long the rest takes at the pace so far, if anything tells: sections that have come or
    /// gone, pageblocks packed, pages that were moved or taken out of what leaves. What waits for
    /// its client to free it has no pace.
    fn estimate_ms(&self, age_ms: u64, done_pages: u64, total_pages: u64) -> Option<u64> {
        let left_pages = total_pages.saturating_sub(done_pages);
        let (done, left) = if self.compact.is_some() {
            (done_pages, left_pages)
        } else if self.kind == OperationKind::Offline {
            let outcomes = self.tasks.iter().map(|task| &task.outcome);
            let out = outcomes.map(|outcome| outcome.nr_moved_pages + outcome.nr_evicted_pages);
            (out.sum(), left_pages)
        } else {
            let nr_ended = num::count(self.at(Step::Ended).len());
            (nr_ended, num::count(self.tasks.len()) - nr_ended)
        };
        age_ms.checked_mul(left)?.checked_div(done)
    }

    /// Where it stands.
    pub fn report(&self, zones: &Zones, now: Now, is_running: bool) -> OperationReport {
        let section_pages = u64::from(zones.geometry().section_pages());
        let done = |task: &Task| match task.step {
            Step::Ended if task.outcome.done == Some(Ok(())) => section_pages,
            Step::Leaving => zones
                .section(task.section())
                .map_or(0, |row| zones.zone(row.zone).isolated_free(task.section())),
            _ => 0,
        };
        let mut sections: Vec<SectionOutcome> = Vec::with_capacity(self.tasks.len());
        for task in &self.tasks {
            let state = zones.state(task.section());
            sections.push(SectionOutcome {
                state,
                ..task.outcome.clone()
            });
        }
        let age = now.saturating_sub(self.began);
        let compacted = self.compact.as_ref().map(Compacting::report);
        let (done_pages, total_pages) = match &compacted {
            None => (
                self.tasks.iter().map(done).sum(),
                num::count(self.tasks.len()) * section_pages,
            ),
            Some((_, done, total)) => {
                let pages = u64::from(zones.geometry().pageblock_pages());
                (done * pages, total * pages)
            }
        };
        OperationReport {
            id: self.id,
            kind: self.kind,
            state: self.state(is_running),
            dry_run: self.id == OperationId(0),
            done_pages,
            total_pages,
            estimate_ms: is_running
                .then(|| self.estimate_ms(millis(age), done_pages, total_pages))
                .flatten(),
            age_ms: millis(age),
            sections,
            recalled: self.recalled.clone(),
            compacted: compacted.map(|(report, ..)| Compacted {
                took_us: u64::try_from(age.as_micros()).unwrap_or(u64::MAX),
                ..report
            }),
        }
    }
}

/// All operations, running and ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    last: u64,
    running: BTreeMap<OperationId, Operation>,
    ended: VecDeque<OperationReport>,
    /// Rises when an operation, or one section of it, is done or refused. Not when one is only
    /// looked at: whoever waits would wake by its own look. Progress is looked at now and then.
    pub nr_steps: u64,
}

impl Operations {
    /// Rises with each one that begins or ends.
    pub fn nr_changes(&self) -> u64 {
        self.last + self.nr_steps
    }

    /// The number of the last one.
    pub fn last_id(&self) -> u64 {
        self.last
    }

    /// Goes on from the number that a daemon before gave last.
    pub fn go_on_from(&mut self, last: u64) {
        self.last = last;
    }

    /// The number of the next operation.
    pub fn next_id(&mut self) -> OperationId {
        self.last += 1;
        OperationId(self.last)
    }

    pub fn nr_running(&self) -> usize {
        self.running.len()
    }

    pub fn get(&self, id: OperationId) -> Option<&Operation> {
        self.running.get(&id)
    }

    /// Those that run, by id.
    pub fn running(&self) -> impl Iterator<Item = &Operation> {
        self.running.values()
    }

    /// As [`running`](Self::running), to be changed.
    pub fn running_mut(&mut self) -> impl Iterator<Item = &mut Operation> {
        self.running.values_mut()
    }

    /// Their ids.
    pub fn ids(&self) -> Vec<OperationId> {
        self.running.keys().copied().collect()
    }

    /// Takes an operation out to work on it.
    pub fn take(&mut self, id: OperationId) -> Option<Operation> {
        self.running.remove(&id)
    }

    /// Puts an operation that runs on back.
    pub fn put(&mut self, operation: Operation) {
        self.running.insert(operation.id, operation);
    }

    /// Remembers how an operation has ended.
    pub fn end(&mut self, report: OperationReport) {
        self.nr_steps += 1;
        if self.ended.len() == KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(report);
    }

    /// How an operation has ended, while that is remembered.
    pub fn ended(&self, id: OperationId) -> Option<&OperationReport> {
        self.ended.iter().find(|report| report.id == id)
    }

    /// All that have ended and are remembered, by the time of their end.
    pub fn all_ended(&self) -> impl Iterator<Item = &OperationReport> {
        self.ended.iter()
    }
}
