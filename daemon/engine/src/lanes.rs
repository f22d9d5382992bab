//! One lane of one client, on the engine's side: filling it, settling it, taking it back.
//!
//! Over [`LaneDaemon`], which keeps the cursors and judges the client's, this knows what the
//! lane is at and what it wants. Words that come out are claims: the caller hands them
//! to the owner table.

use hugepool_mm::{Migratetype, Order};
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon, Poisoned, TakeState};
use hugepool_shm::raw::{Class, NR_CLASSES, RawMigratetype, RawPage};
use hugepool_shm::word_run::WordRun;

use crate::demand::{AllBounds, Demand};
use crate::id::Now;
use crate::num;
use crate::report::{LaneReport, LaneState};

/// How long an operation in flight keeps its lane from being taken at all.
pub(crate) const PATIENCE: Now = Now::from_millis(10);

/// What the lane is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// In service.
    Open,
    /// Closed, to be taken as soon as nobody is in it.
    Closing { since: Now },
    /// All beyond the reach of an operation in flight was taken; so many blocks were left.
    Stuck { nr_left: u32 },
    /// Emptied, and stays closed.
    Shut,
    /// Its words made no sense; never looked at again but for the report.
    Poisoned,
}

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub daemon: LaneDaemon,
    pub gate: Gate,
    /// Once emptied it stays closed: the client is detached.
    is_to_be_shut: bool,
    demands: [Demand; NR_CLASSES],
    published: [Option<ClassSettings>; NR_CLASSES],
    nr_refills: u64,
    /// Ticks since it was last refilled, or overflowed.
    ticks_idle: u32,
}

/// What a lane wants of one class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hunger {
    pub class: Class,
    pub nr_blocks: u32,
    /// Nothing was missed: it is for what may come.
    pub is_ahead: bool,
    /// The demand before, to go back to if there is nothing to be had.
    before: Demand,
}

impl Lane {
    pub fn new(daemon: LaneDaemon) -> Lane {
        Lane {
            daemon,
            gate: Gate::Open,
            is_to_be_shut: false,
            demands: [Demand::default(); NR_CLASSES],
            published: [None; NR_CLASSES],
            nr_refills: 0,
            ticks_idle: 0,
        }
    }

    /// A lane of a daemon before, whose cursors are as that one left them.
    pub fn resumed(daemon: LaneDaemon, to_be_shut: bool, now: Now) -> Lane {
        let gate = if daemon.is_closed() {
            Gate::Closing { since: now }
        } else {
            Gate::Open
        };
        Lane {
            gate,
            is_to_be_shut: to_be_shut,
            ..Lane::new(daemon)
        }
    }

    /// Hands what was returned to `take`; returns how many words there were.
    pub fn settle(&mut self, take: &mut dyn FnMut(WordRun)) -> Result<usize, Poisoned> {
        match self.gate {
            Gate::Poisoned => Ok(0),
            _ => self.daemon.settle_runs(take),
        }
    }

    /// Notes how many blocks of each class came back through this lane.
    pub fn note_freed(&mut self, nr_freed: &[u32; NR_CLASSES]) {
        for (demand, &nr_blocks) in self.demands.iter_mut().zip(nr_freed) {
            demand.note_freed(nr_blocks);
        }
    }

    /// The classes in which the lane should be given something, and how much; counts as a
    /// refill of each.
    pub fn hungers(&mut self, bounds: &AllBounds) -> Result<Vec<Hunger>, Poisoned> {
        let mut hungers = Vec::new();
        if self.gate != Gate::Open {
            return Ok(hungers);
        }
        for class in Class::all() {
            let (demand, bounds) = (&mut self.demands[class.index()], &bounds[class.index()]);
            demand.note_wanted(self.daemon.take_wanted(class));
            demand.overflowed(bounds);
            let nr_grants = self.daemon.depth(class)?.grants;
            let room = bounds.capacity.saturating_sub(nr_grants);
            let before = *demand;
            let nr_blocks = demand.refill(nr_grants, bounds).min(room);
            if nr_blocks > 0 {
                hungers.push(Hunger {
                    class,
                    nr_blocks,
                    is_ahead: !before.is_wanted(),
                    before,
                });
            }
        }
        Ok(hungers)
    }

    /// So many blocks were given for a hunger. With none, it was no refill: what was wanted is
    /// forgotten, and batch and high stay as they were.
    pub fn was_given(&mut self, hunger: &Hunger, nr_blocks: usize) {
        if nr_blocks > 0 {
            self.nr_refills += 1;
        } else {
            self.demands[hunger.class.index()] = hunger.before.unanswered();
        }
    }

    /// Whether words wait to be settled.
    pub fn has_returns(&self) -> Result<bool, Poisoned> {
        match self.gate {
            Gate::Poisoned => Ok(false),
            _ => Ok(self.daemon.returns_depth()? > 0),
        }
    }

    /// Whether it would be given something.
    pub fn is_hungry(&mut self, bounds: &AllBounds) -> Result<bool, Poisoned> {
        if self.gate != Gate::Open {
            return Ok(false);
        }
        for class in Class::all() {
            let demand = &mut self.demands[class.index()];
            demand.note_wanted(self.daemon.take_wanted(class));
            if demand.is_hungry(self.daemon.depth(class)?.grants, &bounds[class.index()]) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells the client how its classes are cached, where that has changed.
    pub fn publish(&mut self, bounds: &AllBounds) {
        for class in Class::all() {
            let settings = self.demands[class.index()].settings(&bounds[class.index()]);
            let published = &mut self.published[class.index()];
            if *published != Some(settings) {
                self.daemon.configure(class, settings);
                *published = Some(settings);
            }
        }
    }

    /// Some time has passed.
    pub fn tick(&mut self, bounds: &AllBounds) {
        let mut was_busy = false;
        for class in Class::all() {
            was_busy |= self.demands[class.index()].tick(&bounds[class.index()]);
        }
        self.ticks_idle = if was_busy {
            0
        } else {
            self.ticks_idle.saturating_add(1)
        };
    }

    /// Whether it has neither been refilled nor overflowed for a while. One whose pages go in and
    /// out of its magazine counts too: it is refilled when it is emptied.
    pub fn is_idle(&self) -> bool {
        self.ticks_idle > 0
    }

    /// Blocks that lie in it, by class; a recall of a lane with none is not worth a barrier.
    pub fn blocks(&self) -> Result<u32, Poisoned> {
        let mut nr_blocks = 0u32;
        for class in Class::all() {
            let depth = self.daemon.depth(class)?;
            nr_blocks = nr_blocks
                .saturating_add(depth.grants)
                .saturating_add(depth.magazine);
        }
        Ok(nr_blocks)
    }

    /// Closes an open lane; a barrier must follow before [`take`](Self::take). To be shut, it
    /// will not be opened again. Returns whether it was open.
    pub fn close(&mut self, to_be_shut: bool, now: Now) -> bool {
        self.is_to_be_shut |= to_be_shut;
        if self.gate != Gate::Open {
            return false;
        }
        self.daemon.close();
        self.gate = Gate::Closing { since: now };
        if self.is_idle() {
            self.rest();
        }
        self.ticks_idle = 0;
        true
    }

    /// Nothing is given to it ahead of use, until something is missed in it.
    pub fn rest(&mut self) {
        self.demands.iter_mut().for_each(Demand::rest);
    }

    /// Takes what can be taken from a closed lane, has `settle` settle it, and opens the lane when
    /// it is empty. Does nothing to a lane that is open, shut or poisoned.
    pub fn take(&mut self, now: Now, settle: &mut dyn FnMut(&[WordRun])) -> Result<(), Poisoned> {
        let is_stuck = match self.gate {
            Gate::Open | Gate::Shut | Gate::Poisoned => return Ok(()),
            Gate::Closing { since } => now.saturating_sub(since) >= PATIENCE,
            Gate::Stuck { .. } => true,
        };
        match self.daemon.take_by(is_stuck, settle)? {
            TakeState::Busy { .. } => {}
            TakeState::Held { nr_left, .. } => self.gate = Gate::Stuck { nr_left },
            TakeState::Emptied if self.is_to_be_shut => self.gate = Gate::Shut,
            TakeState::Emptied => {
                let is_open = self.daemon.open();
                debug_assert!(is_open, "an emptied lane opens");
                self.gate = Gate::Open;
            }
        }
        Ok(())
    }

    /// Whether somebody who waits for it to be taken has to go on waiting.
    pub fn is_pending(&self) -> bool {
        matches!(self.gate, Gate::Closing { .. })
    }

    /// Shows each word that lies in it, by the client's cursors: claims, nothing is taken.
    pub fn look(&self, found: &mut dyn FnMut(RawPage)) {
        self.daemon.look(found);
    }

    /// Whether an operation in flight has kept it closed for too long.
    pub fn is_stuck(&self) -> bool {
        matches!(self.gate, Gate::Stuck { .. })
    }

    /// What can be seen of it from outside.
    pub fn report(&self, pageblock_order: Order) -> LaneReport {
        let (mut granted, mut magazine) = (0, 0);
        for class in Class::all() {
            let depth = self.daemon.depth(class).unwrap_or_default();
            let order = class.order(u32::from(pageblock_order.get()));
            granted += u64::from(depth.grants) << order;
            magazine += u64::from(depth.magazine) << order;
        }
        let state = match self.gate {
            Gate::Open => LaneState::Open,
            Gate::Closing { .. } | Gate::Shut => LaneState::Closed,
            Gate::Stuck { .. } => LaneState::Stuck,
            Gate::Poisoned => LaneState::Poisoned,
        };
        // What was taken from under an operation in flight still lies between the cursors.
        let is_taken = matches!(state, LaneState::Stuck | LaneState::Poisoned);
        LaneReport {
            index: self.daemon.index(),
            state,
            granted: if is_taken { 0 } else { granted },
            magazine: if is_taken { 0 } else { magazine },
            returns: u64::from(self.daemon.returns_depth().unwrap_or(0)),
            nr_refills: self.nr_refills,
        }
    }
}

/// The order of a class's blocks.
pub(crate) fn class_order(class: Class, pageblock_order: Order) -> Order {
    let order = class.order(u32::from(pageblock_order.get()));
    u8::try_from(order)
        .ok()
        .and_then(Order::new)
        .expect("a class has an order")
}

/// The migratetype of a class's blocks.
pub(crate) fn class_migratetype(class: Class) -> Migratetype {
    match class.migratetype() {
        RawMigratetype::Unmovable => Migratetype::Unmovable,
        RawMigratetype::Movable => Migratetype::Movable,
        RawMigratetype::Reclaimable => Migratetype::Reclaimable,
    }
}

/// The migratetype as it stands in a page word.
pub(crate) fn raw_migratetype(migratetype: Migratetype) -> RawMigratetype {
    match migratetype {
        Migratetype::Unmovable => RawMigratetype::Unmovable,
        Migratetype::Movable => RawMigratetype::Movable,
        Migratetype::Reclaimable => RawMigratetype::Reclaimable,
    }
}

/// Capacity of the grants of a class, as laid out.
pub(crate) fn class_capacity(class: Class) -> u32 {
    let slots = if class.index() < hugepool_shm::raw::NR_MIGRATETYPES {
        hugepool_shm::layout::PAGE_GRANTS
    } else {
        hugepool_shm::layout::BLOCK_GRANTS
    };
    num::saturate(num::count(slots))
}
