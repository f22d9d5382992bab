//! How much of one class a lane is given, and when: batch and high follow demand.
//!
//! Policy only, as the kernel's for its per-CPU lists: refills in a row double the batch,
//! refills and overflows raise high, idleness lowers both. Moves no page; the lane
//! that asks is [`lanes`](crate::lanes)'.

use hugepool_shm::lane_daemon::ClassSettings;
use hugepool_shm::raw::NR_CLASSES;

/// Refills in a row raise the batch up to so many times its base.
const MAX_SCALE: u32 = 32;
/// high starts at so many batches.
const HIGH_BATCHES: u32 = 4;
/// Idle, high falls by its 2^-3 each tick.
const HIGH_DECAY_SHIFT: u32 = 3;

/// What bounds a class, the same for all lanes of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Blocks moved per visit without demand.
    pub base_batch: u32,
    /// Blocks that a magazine may keep without demand.
    pub base_high: u32,
    /// Blocks that the grants of the class hold.
    pub capacity: u32,
    /// The most blocks kept in its grants.
    pub credit: u32,
    /// batch as set by hand.
    pub fixed_batch: Option<u32>,
    /// high as set by hand.
    pub fixed_high: Option<u32>,
    /// Bit per zone index whose blocks may stay in the magazine.
    pub zones: u32,
}

/// Bounds of all classes.
pub(crate) type AllBounds = [Bounds; NR_CLASSES];

/// Bounds before any were computed: nothing is cached.
pub(crate) const NO_BOUNDS: AllBounds = [Bounds {
    base_batch: 1,
    base_high: 1,
    capacity: 1,
    credit: 1,
    fixed_batch: None,
    fixed_high: None,
    zones: 0,
}; NR_CLASSES];

impl Bounds {
    fn max_batch(&self) -> u32 {
        let most = (self.capacity / 2).min(self.credit.div_ceil(2));
        self.base_batch.saturating_mul(MAX_SCALE).min(most).max(1)
    }

    /// The most blocks in the grants: a batch that was set by hand goes beyond the credit.
    fn most(&self) -> u32 {
        match self.fixed_batch {
            Some(_) => self.capacity,
            None => self.credit.min(self.capacity).max(1),
        }
    }

    fn base_high(&self) -> u32 {
        self.base_batch
            .saturating_mul(HIGH_BATCHES)
            .max(self.base_high)
            .clamp(1, self.capacity)
    }
}

/// What one lane wants of one class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// Was wanted at least once.
    is_active: bool,
    /// Blocks missed since the last refill.
    wanted: u32,
    /// 0 before the first refill.
    batch: u32,
    high: u32,
    /// Blocks freed since the last refill.
    freed: u32,
    /// Refilled or overflowed since the last tick.
    is_busy: bool,
}

impl Demand {
    /// Notes blocks that were asked for and not there.
    pub fn note_wanted(&mut self, nr_blocks: u32) {
        if nr_blocks > 0 {
            self.is_active = true;
            self.wanted = self.wanted.saturating_add(nr_blocks);
        }
    }

    /// Notes blocks that came back.
    pub fn note_freed(&mut self, nr_blocks: u32) {
        self.freed = self.freed.saturating_add(nr_blocks);
    }

    /// Whether a lane with so many grants would be given some.
    pub fn is_hungry(&self, nr_grants: u32, bounds: &Bounds) -> bool {
        self.wanted > 0 || (self.is_active && nr_grants < self.low_mark(bounds))
    }

    /// Whether blocks were missed since the last refill.
    pub fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// What was cached for it was taken back: nothing is given ahead until some is missed again.
    pub fn rest(&mut self) {
        self.is_active = false;
    }

    /// How many blocks to lend to a lane with so many grants; 0 mostly.
    pub fn refill(&mut self, nr_grants: u32, bounds: &Bounds) -> u32 {
        if !self.is_hungry(nr_grants, bounds) {
            return 0;
        }
        if self.is_busy && self.freed == 0 {
            self.batch = self.batch(bounds).saturating_mul(2);
        }
        self.batch = self
            .batch
            .max(self.wanted)
            .max(self.batch(bounds))
            .min(bounds.max_batch());
        self.raise_high(bounds);
        let wanted = core::mem::take(&mut self.wanted);
        self.freed = 0;
        let most = bounds.most();
        let target = self.target(bounds).max(nr_grants.saturating_add(wanted));
        target.min(most).saturating_sub(nr_grants)
    }

    /// As it stands after a refill that brought nothing.
    #[must_use]
    pub fn unanswered(self) -> Demand {
        Demand { wanted: 0, ..self }
    }

    /// Settles how many blocks came back at once: above a batch, the magazine overflows.
    pub fn overflowed(&mut self, bounds: &Bounds) {
        if self.freed >= self.batch(bounds) {
            self.raise_high(bounds);
        }
    }

    /// Some time has passed: an idle class falls back towards its base. Returns whether it was
    /// not idle.
    pub fn tick(&mut self, bounds: &Bounds) -> bool {
        if core::mem::take(&mut self.is_busy) {
            return true;
        }
        self.batch = (self.batch / 2).max(bounds.base_batch.min(bounds.max_batch()));
        let high = self.high.max(bounds.base_high());
        self.high = (high - (high >> HIGH_DECAY_SHIFT)).max(bounds.base_high());
        false
    }

    /// What the client is told.
    pub fn settings(&self, bounds: &Bounds) -> ClassSettings {
        let high = self.high.max(bounds.base_high()).min(bounds.capacity);
        ClassSettings {
            batch: self.batch(bounds),
            high: bounds
                .fixed_high
                .map_or(high, |fixed| fixed.min(bounds.capacity)),
            low_mark: if self.is_active {
                self.low_mark(bounds)
            } else {
                0
            },
            zones: bounds.zones,
        }
    }

    fn raise_high(&mut self, bounds: &Bounds) {
        self.is_busy = true;
        let high = self.high.max(bounds.base_high());
        self.high = high.saturating_add(self.batch(bounds)).min(bounds.capacity);
    }

    fn batch(&self, bounds: &Bounds) -> u32 {
        match bounds.fixed_batch {
            Some(fixed) => fixed.min(bounds.capacity / 2).max(1),
            None => self.batch.clamp(
                bounds.base_batch.min(bounds.max_batch()),
                bounds.max_batch(),
            ),
        }
    }

    /// Grants after a refill.
    fn target(&self, bounds: &Bounds) -> u32 {
        self.batch(bounds).saturating_mul(2).min(bounds.most())
    }

    fn low_mark(&self, bounds: &Bounds) -> u32 {
        self.target(bounds).div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        base_batch: 4,
        base_high: 1,
        capacity: 1024,
        credit: 512,
        fixed_batch: None,
        fixed_high: None,
        zones: 1,
    };

    #[test]
    fn a_class_that_was_never_wanted_gets_nothing() {
        let mut demand = Demand::default();
        assert_eq!(demand.refill(0, &BOUNDS), 0);
        assert_eq!(demand.settings(&BOUNDS).low_mark, 0);
        demand.note_wanted(1);
        assert_eq!(demand.refill(0, &BOUNDS), 8);
        assert_eq!(demand.settings(&BOUNDS).low_mark, 4);
        assert_eq!(demand.refill(4, &BOUNDS), 0);
    }

    #[test]
    fn refills_in_a_row_double_the_batch_up_to_32_times() {
        let mut demand = Demand::default();
        demand.note_wanted(1);
        let mut batches = Vec::new();
        for _ in 0..8 {
            demand.refill(0, &BOUNDS);
            batches.push(demand.settings(&BOUNDS).batch);
        }
        assert_eq!(batches, [4, 8, 16, 32, 64, 128, 128, 128]);
        demand.note_freed(1);
        assert!(demand.refill(0, &BOUNDS) <= BOUNDS.credit);
        assert_eq!(demand.settings(&BOUNDS).batch, 128);
    }

    #[test]
    fn a_refill_that_brings_nothing_raises_nothing() {
        let mut demand = Demand::default();
        demand.note_wanted(1);
        demand.refill(0, &BOUNDS);
        let before = demand.settings(&BOUNDS);
        for _ in 0..5 {
            demand.note_wanted(100);
            let asked = demand;
            assert!(demand.refill(0, &BOUNDS) > 0);
            demand = asked.unanswered();
        }
        assert_eq!(demand.settings(&BOUNDS), before);
    }

    #[test]
    fn a_miss_of_many_is_answered_at_once_within_the_credit() {
        let mut demand = Demand::default();
        demand.note_wanted(300);
        assert_eq!(demand.refill(2, &BOUNDS), 300);
        demand.note_wanted(1_000_000);
        assert_eq!(demand.refill(2, &BOUNDS), BOUNDS.credit - 2);
    }

    #[test]
    fn idleness_lowers_batch_and_high_to_their_base() {
        let mut demand = Demand::default();
        demand.note_wanted(200);
        demand.refill(0, &BOUNDS);
        let busy = demand.settings(&BOUNDS);
        assert!(busy.batch > 4 && busy.high > 16);
        assert!(demand.tick(&BOUNDS), "was refilled");
        (0..50).for_each(|_| assert!(!demand.tick(&BOUNDS)));
        let idle = demand.settings(&BOUNDS);
        assert_eq!((idle.batch, idle.high), (4, 16));
    }

    #[test]
    fn what_is_set_by_hand_stands() {
        let bounds = Bounds {
            fixed_batch: Some(10),
            fixed_high: Some(3),
            ..BOUNDS
        };
        let mut demand = Demand::default();
        demand.note_wanted(500);
        demand.refill(0, &bounds);
        demand.refill(0, &bounds);
        let settings = demand.settings(&bounds);
        assert_eq!(
            (settings.batch, settings.high, settings.low_mark),
            (10, 3, 10)
        );
    }

    #[test]
    fn a_credit_of_one_block_still_gives_one() {
        let bounds = Bounds {
            base_batch: 1,
            credit: 1,
            capacity: 64,
            ..BOUNDS
        };
        let mut demand = Demand::default();
        demand.note_wanted(5);
        assert_eq!(demand.refill(0, &bounds), 1);
        assert_eq!(demand.refill(1, &bounds), 0);
        assert_eq!(demand.refill(0, &bounds), 1);
    }
}
