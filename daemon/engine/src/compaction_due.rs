//! When a zone is compacted, and for whom: on demand, for a call that would fall short, and in
//! the background.
//!
//! Decides; the work is [`compact`](crate::compact)'s. A call that waits and falls short because
//! memory is scattered has it done and waits for it (direct). One that does not wait, or a lane,
//! only leaves a note, and the background sees to it; so it does when a zone is more scattered
//! than it should be (proactive). What failed is not tried again at once.

use hugepool_mm::{CompactGoal, CompactMode, CompactRequest, Migratetype, Order};
use hugepool_shm::raw::NR_ZONES;

use crate::Engine;
use crate::command::{CommandError, Reply};
use crate::compacting::{Caller, Cause, Compacting, Plan};
use crate::id::{ClientId, Now};
use crate::lanes::PATIENCE;
use crate::operation::{MAX_RUNNING, Operation};
use crate::outside::Outside;
use crate::report::{CompactedEnd, OperationKind};

/// A run in vain makes the next one wait twice as long, from the first of these to the second.
const MIN_PAUSE: Now = Now::from_millis(5);
const MAX_PAUSE: Now = Now::from_millis(160);
/// A background run that left the zone as scattered as it was has so many ticks left out, at most
/// (the kernel's `COMPACT_MAX_DEFER_SHIFT`).
const MAX_TICKS_OUT: u32 = 64;
/// How often the background is told what it may do.
const TICK: Now = Now::from_secs(1);
/// The score above which the background begins is so much above the one at which it stops.
const SCORE_STEP: u32 = 10;

/// How a zone's last runs went.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    not_before: Now,
    pause: Now,
    /// Ticks of the background to be left out, and how many after the next run in vain.
    ticks_out: u32,
    next_out: u32,
    /// Score when the background began.
    score: u32,
}

impl Pace {
    /// It was in vain.
    fn wait(&mut self, now: Now) {
        self.pause = (self.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE);
        self.not_before = now + self.pause;
    }
}

/// What is known of the zones' needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Due {
    paces: [Pace; NR_ZONES],
    /// Pages that a background run may move until the next tick, and when the last was.
    budget_pages: u64,
    told: Option<Now>,
}

impl Engine {
    /// Begins a compaction that an administrator asks for. What lies unused in lanes goes home
    /// first: it is in the way, and cannot be moved.
    pub(crate) fn begin_compact(
        &mut self,
        zone: Option<&str>,
        order: Option<u32>,
        mode: CompactMode,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<Reply, CommandError> {
        let zones = self.zones_named(zone)?;
        let goal = match order {
            None => CompactGoal::WholeZone,
            Some(order) => CompactGoal::Order(self.compact_order(order)?),
        };
        let running = self.operations.nr_running();
        if running >= MAX_RUNNING {
            return Err(CommandError::TooManyOperations { running });
        }
        let migratetype = Migratetype::Movable;
        let request = CompactRequest {
            goal,
            mode,
            migratetype,
        };
        let plans = zones.into_iter().map(|zone| Plan { zone, request });
        let compacting = Compacting::new(Cause::Asked, plans.collect(), now);
        let mut operation = self.new_compaction(compacting, now, now + PATIENCE);
        operation.rounds.clients = self.clients.ids();
        let clients = operation.rounds.clients.clone();
        self.recall(&clients, now, outside);
        self.run(operation, now, outside)
    }

    /// A call that waits falls short of one block because memory is scattered: has some moved for
    /// it, if that is worth it.
    pub(crate) fn compact_for(
        &mut self,
        caller: Caller,
        zonelist: &[usize],
        order: Order,
        migratetype: Migratetype,
        now: Now,
    ) {
        if self.joins_compaction(caller, zonelist, order) {
            return;
        }
        let mut plans = Vec::new();
        for &zone in zonelist {
            let is_due = now >= self.due.paces[zone].not_before
                && !self.is_compacting(zone)
                && self.custody.zones.zone(zone).admits(migratetype);
            if is_due {
                let modes = [CompactMode::Async, CompactMode::Sync];
                plans.extend(modes.map(|mode| Plan {
                    zone,
                    request: CompactRequest::direct(order, migratetype, mode),
                }));
            }
        }
        if plans.is_empty() || self.operations.nr_running() >= MAX_RUNNING {
            return;
        }
        let cause = Cause::Direct(vec![caller]);
        let Some(compacting) = self.begin_first(cause, plans, now) else {
            return;
        };
        let operation = self.new_compaction(compacting, now, now);
        self.advance_compact(operation, now);
    }

    /// A caller waits no longer: of that call, or of any. A compaction that nobody waits for ends
    /// at its next step.
    pub(crate) fn leave_compactions(&mut self, session: ClientId, request_id: Option<u64>) {
        for operation in self.operations.running_mut() {
            if let Some(compacting) = &mut operation.compact
                && let Cause::Direct(callers) = &mut compacting.cause
            {
                callers.retain(|caller| {
                    caller.session != session
                        || request_id.is_some_and(|id| id != caller.request_id)
                });
            }
        }
    }

    /// Does what calls that did not wait have left a note for.
    pub(crate) fn compact_noted(&mut self, now: Now) {
        let noted = core::mem::take(&mut self.custody.wanted_orders);
        for (zone, order) in noted.into_iter().enumerate() {
            if let Some(order) = order {
                let (migratetype, mode) = (Migratetype::Movable, CompactMode::Sync);
                let request = CompactRequest::direct(order, migratetype, mode);
                self.begin_background(zone, request, now);
            }
        }
    }

    /// Once a second the background may move some more pages, and looks which zones are too
    /// scattered.
    pub(crate) fn tick_compaction(&mut self, now: Now) {
        let told = self.due.told;
        if told.is_some_and(|told| now.saturating_sub(told) < TICK) {
            return;
        }
        self.due.told = Some(now);
        // Not saved up: what was not used in a second is gone.
        self.due.budget_pages = self.defaults.background_pages_per_second;
        let budget = self.due.budget_pages;
        for operation in self.operations.running_mut() {
            if let Some(compacting) = &mut operation.compact {
                compacting.allow(budget, now);
            }
        }
        let proactiveness = self.defaults.proactiveness.min(100);
        if proactiveness == 0 {
            return;
        }
        let low = (100 - proactiveness).max(5);
        let high = (low + SCORE_STEP).min(100);
        for at in 0..self.custody.zones.len() {
            let score = self.custody.zones.zone(at).fragmentation_score();
            let pace = &mut self.due.paces[at];
            if score <= high {
                (pace.ticks_out, pace.next_out) = (0, 0);
            } else if pace.ticks_out > 0 {
                pace.ticks_out -= 1;
            } else {
                pace.score = score;
                self.begin_background(at, CompactRequest::proactive(low), now);
            }
        }
    }

    fn begin_background(&mut self, zone: usize, request: CompactRequest, now: Now) {
        let is_due = now >= self.due.paces[zone].not_before
            && self.due.budget_pages > 0
            && !self.is_compacting(zone)
            && self.operations.nr_running() < MAX_RUNNING;
        if !is_due {
            return;
        }
        let plans = vec![Plan { zone, request }];
        if let Some(compacting) = self.begin_first(Cause::Background, plans, now) {
            let compacting = compacting.within(self.due.budget_pages);
            let operation = self.new_compaction(compacting, now, now);
            self.advance_compact(operation, now);
        }
    }

    /// Begins the first of these that is worth it. Where none is, there is nothing to be told of,
    /// and the next is not tried at once.
    fn begin_first(&mut self, cause: Cause, plans: Vec<Plan>, now: Now) -> Option<Compacting> {
        let zones = plans.iter().map(|plan| plan.zone).collect::<Vec<_>>();
        for at in 0..plans.len() {
            let Plan { zone, request } = plans[at];
            if let Ok(run) = self.custody.zones.zone_mut(zone).begin_compaction(request) {
                return Some(Compacting::new(cause, plans[at..].to_vec(), now).begun(run));
            }
        }
        for zone in zones {
            self.due.paces[zone].wait(now);
        }
        None
    }

    /// A compaction has ended: what was in vain is not tried again at once.
    pub(crate) fn note_pace(&mut self, compacting: &Compacting, now: Now) {
        let is_reached = compacting.report().0.end == Some(CompactedEnd::Reached);
        for &zone in &compacting.zones {
            let score = self.custody.zones.zone(zone).fragmentation_score();
            let pace = &mut self.due.paces[zone];
            match compacting.cause {
                Cause::Asked => {}
                _ if is_reached => *pace = Pace::default(),
                Cause::Direct(_) => pace.wait(now),
                Cause::Background => {
                    pace.wait(now);
                    if score >= pace.score {
                        pace.next_out = (pace.next_out * 2 + 1).min(MAX_TICKS_OUT);
                        pace.ticks_out = pace.next_out;
                    }
                }
            }
        }
    }

    /// Waits for a compaction under way that is for such a block, if there is one.
    fn joins_compaction(&mut self, caller: Caller, zonelist: &[usize], order: Order) -> bool {
        for operation in self.operations.running_mut() {
            let Some(compacting) = &mut operation.compact else {
                continue;
            };
            let is_for_it = compacting.plans.iter().any(|plan| {
                let large_enough = match plan.request.goal {
                    CompactGoal::Order(wanted) => wanted >= order,
                    CompactGoal::WholeZone | CompactGoal::Score(_) => true,
                };
                large_enough && zonelist.contains(&plan.zone)
            });
            if is_for_it {
                if let Cause::Direct(callers) = &mut compacting.cause
                    && !callers.contains(&caller)
                {
                    callers.push(caller);
                }
                return true;
            }
        }
        false
    }

    /// Whether a compaction works on the zone: there is one at a time.
    fn is_compacting(&self, zone: usize) -> bool {
        let compactions = self.operations.running();
        let mut compactions = compactions.filter_map(|operation| operation.compact.as_ref());
        compactions.any(|compacting| compacting.plans.iter().any(|plan| plan.zone == zone))
    }

    fn new_compaction(&mut self, compacting: Compacting, now: Now, deadline: Now) -> Operation {
        let mut operation = Operation::new(OperationKind::Compact, now, deadline);
        operation.compact = Some(compacting);
        operation.id = self.operations.next_id();
        operation
    }

    fn compact_order(&self, order: u32) -> Result<Order, CommandError> {
        let max_order = self.custody.zones.geometry().max_order();
        u8::try_from(order)
            .ok()
            .and_then(Order::new)
            .filter(|&order| order <= max_order)
            .ok_or(CommandError::Order {
                order,
                max_order: max_order.get().into(),
            })
    }
}
