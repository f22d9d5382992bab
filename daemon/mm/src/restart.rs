//! What a zone remembers between two compaction runs: where to go on, and when not to.
//!
//! The kernel's rules. Restart positions: one of the free scanner, two of the migrate
//! scanner (async runs do not move that of sync ones). When the scanners have met, the next
//! run that heeds skip bits clears them and starts over. After a failure of an order that
//! order and larger ones are turned away `2^k - 1` times, `k` rising to 6.

use crate::compact::{
    CompactCounts, CompactEnd, CompactGoal, CompactMode, CompactRefusal, CompactRequest,
};
use crate::fragmentation;
use crate::migrate_scanner::Compaction;
use crate::{AllocFlags, Order, Zone};

/// The most failures that lengthen the deferral (`COMPACT_MAX_DEFER_SHIFT`).
const MAX_DEFER_SHIFT: u32 = 6;
/// Requests above this order are costly: they look harder before they begin
/// (`PAGE_ALLOC_COSTLY_ORDER`).
const COSTLY_ORDER: u8 = 3;

/// A zone's memory of its compactions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restart {
    /// Pageblock where the migrate scanner of async and of sync runs goes on.
    migrate: [Option<u32>; 2],
    /// Pageblocks from this one up have been used up as places.
    free: Option<u32>,
    /// The scanners have met since skip bits were cleared.
    has_met: bool,
    deferral: Deferral,
    totals: CompactTotals,
}

/// How many requests are turned away after failures.
#[derive(Clone, Copy, Debug, Default)]
struct Deferral {
    /// The smallest order that failed.
    order: Option<Order>,
    shift: u32,
    /// Requests turned away since the last failure, and the one let through.
    considered: u32,
}

/// What compaction has done in a zone since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactTotals {
    /// Runs begun.
    pub nr_runs: u64,
    /// Runs that reached their goal.
    pub nr_reached: u64,
    /// Runs that ended without; those that were dropped are in neither.
    pub nr_failed: u64,
    /// Requests turned away because of earlier failures.
    pub nr_deferred: u64,
    /// Work of the runs that have ended.
    pub counts: CompactCounts,
}

impl Deferral {
    /// Whether a request is turned away, and how many more will be.
    fn turns_away(&mut self, order: Order) -> Option<u32> {
        self.order.filter(|&failed| order >= failed)?;
        let limit = 1 << self.shift;
        self.considered = (self.considered + 1).min(limit);
        (self.considered < limit).then(|| limit - 1 - self.considered)
    }

    fn failed(&mut self, order: Order) {
        self.considered = 0;
        self.shift = (self.shift + 1).min(MAX_DEFER_SHIFT);
        self.order = Some(self.order.map_or(order, |failed| failed.min(order)));
    }

    fn reached(&mut self, order: Order) {
        if self.order.is_some_and(|failed| failed <= order) {
            *self = Deferral::default();
        }
    }

    /// Turned away as often as it can be: the skip bits are to blame if it fails again.
    fn is_spent(&self, order: Order) -> bool {
        self.order.is_some_and(|failed| order >= failed)
            && self.shift == MAX_DEFER_SHIFT
            && self.considered >= 1 << MAX_DEFER_SHIFT
    }
}

impl Restart {
    /// A pageblock has been dealt with: later runs of this mode go on behind it.
    pub fn remember(&mut self, mode: CompactMode, migrate: u32, free: u32) {
        let nr_moved_on = match mode {
            CompactMode::Async => 1,
            CompactMode::Sync => 2,
            CompactMode::Manual => return,
        };
        for position in &mut self.migrate[..nr_moved_on] {
            *position = Some(position.map_or(migrate, |old| old.max(migrate)));
        }
        self.free = Some(self.free.map_or(free, |old| old.min(free)));
    }

    /// The zone has other pageblocks than before.
    pub fn forget_positions(&mut self) {
        self.migrate = [None; 2];
        self.free = None;
    }
}

impl Zone {
    /// Begins a run, and calls home what lies in the zone's own lists.
    ///
    /// # Errors
    /// [`CompactRefusal`] says why it would not be worth it.
    pub fn begin_compaction(
        &mut self,
        request: CompactRequest,
    ) -> Result<Compaction, CompactRefusal> {
        self.check_worth(request)?;
        self.pcp_drain();
        let shift = self.buddy.shape.section_shift;
        let (Some(first), Some(last)) =
            (self.present_sections.first(), self.present_sections.last())
        else {
            return Err(CompactRefusal::NotNeeded);
        };
        let (first, end) = (first << shift, (last + 1) << shift);
        let heeds_skips = request.mode.heeds_skips();
        if heeds_skips && self.starts_over(request.goal) {
            self.clear_skips();
            self.restart.forget_positions();
            self.restart.has_met = false;
        }
        let (migrate, free) = if heeds_skips {
            let at = usize::from(request.mode == CompactMode::Sync);
            let inside = |position: &u32| (first..end).contains(position);
            let above = |position: &u32| *position > first && *position <= end;
            (
                self.restart.migrate[at].filter(inside).unwrap_or(first),
                self.restart.free.filter(above).unwrap_or(end),
            )
        } else {
            (first, end)
        };
        self.restart.totals.nr_runs += 1;
        Ok(Compaction::new(
            self,
            request,
            migrate,
            free,
            migrate == first,
        ))
    }

    /// What compaction has done since the zone was made.
    #[must_use]
    pub fn compact_totals(&self) -> CompactTotals {
        self.restart.totals
    }

    /// Whether the goal of a run is reached now.
    #[must_use]
    pub fn is_compact_enough(&self, goal: CompactGoal) -> bool {
        match goal {
            CompactGoal::Order(order) => {
                let largest = self.largest_free_order();
                largest.is_some_and(|largest| largest >= order)
                    && self.allowance(AllocFlags::MIN) >= u64::from(order.nr_pages())
            }
            CompactGoal::Score(score) => self.fragmentation_score() <= score,
            CompactGoal::WholeZone => false,
        }
    }

    /// A run is over.
    pub(crate) fn end_compaction(
        &mut self,
        request: CompactRequest,
        end: CompactEnd,
        counts: CompactCounts,
    ) {
        let has_met = matches!(end, CompactEnd::Complete | CompactEnd::Partial);
        let totals = &mut self.restart.totals;
        totals.counts += counts;
        let is_reached = end == CompactEnd::Reached
            || (has_met && matches!(request.goal, CompactGoal::WholeZone));
        totals.nr_reached += u64::from(is_reached);
        totals.nr_failed += u64::from(!is_reached);
        if has_met && request.mode.heeds_skips() {
            self.restart.forget_positions();
            self.restart.has_met = true;
        }
        if let CompactGoal::Order(order) = request.goal {
            if is_reached {
                self.restart.deferral.reached(order);
            } else if has_met && request.mode == CompactMode::Sync {
                self.restart.deferral.failed(order);
            }
        }
    }

    fn starts_over(&self, goal: CompactGoal) -> bool {
        let is_spent = match goal {
            CompactGoal::Order(order) => self.restart.deferral.is_spent(order),
            _ => false,
        };
        self.restart.has_met || is_spent
    }

    fn check_worth(&mut self, request: CompactRequest) -> Result<(), CompactRefusal> {
        if self.is_compact_enough(request.goal) {
            return Err(CompactRefusal::NotNeeded);
        }
        let order = match request.goal {
            CompactGoal::Order(order) => order,
            CompactGoal::WholeZone => return Ok(()),
            CompactGoal::Score(_) => {
                return self.check_room(self.geometry.pageblock_order());
            }
        };
        if request.mode.heeds_skips()
            && let Some(nr_left) = self.restart.deferral.turns_away(order)
        {
            self.restart.totals.nr_deferred += 1;
            return Err(CompactRefusal::Deferred { nr_left });
        }
        self.check_room(order)?;
        if order.get() > COSTLY_ORDER
            && let Some(index) = self.fragmentation_index(order)
            && index <= fragmentation::THRESHOLD
        {
            return Err(CompactRefusal::NotFragmented { index });
        }
        Ok(())
    }

    /// Room for the pages that move, and for those that others take meanwhile.
    fn check_room(&self, order: Order) -> Result<(), CompactRefusal> {
        let marks = self.marks.watermarks;
        let is_costly = order.get() > COSTLY_ORDER;
        let mark = if is_costly { marks.low } else { marks.min };
        let needed_pages = mark + 2 * u64::from(order.nr_pages());
        let free_pages = self.free_pages() + self.pcp.nr_pages();
        if free_pages < needed_pages {
            return Err(CompactRefusal::TooFewFree {
                free_pages,
                needed_pages,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::order;

    #[test]
    fn failures_turn_more_and_more_requests_away_and_success_ends_it() {
        let mut deferral = Deferral::default();
        let tries = |deferral: &mut Deferral| {
            (0..)
                .find(|_| deferral.turns_away(order(5)).is_none())
                .unwrap()
        };
        assert_eq!(tries(&mut deferral), 0);
        for turned_away in [1, 3, 7, 15, 31, 63] {
            assert!(!deferral.is_spent(order(5)));
            deferral.failed(order(5));
            assert_eq!(
                deferral.turns_away(order(4)),
                None,
                "smaller ones are let in"
            );
            assert_eq!(tries(&mut deferral), turned_away);
        }
        assert!(deferral.is_spent(order(6)) && !deferral.is_spent(order(4)));
        deferral.failed(order(5));
        deferral.reached(order(4));
        assert!(
            deferral.turns_away(order(5)).is_some(),
            "a smaller one proves nothing"
        );
        deferral.failed(order(2));
        assert!(deferral.turns_away(order(2)).is_some());
        deferral.reached(order(3));
        assert_eq!(tries(&mut deferral), 0);
    }

    #[test]
    fn async_runs_do_not_move_the_place_where_sync_ones_go_on() {
        let mut restart = Restart::default();
        restart.remember(CompactMode::Async, 7, 20);
        assert_eq!((restart.migrate, restart.free), ([Some(7), None], Some(20)));
        restart.remember(CompactMode::Sync, 5, 22);
        assert_eq!(
            (restart.migrate, restart.free),
            ([Some(7), Some(5)], Some(20))
        );
        restart.remember(CompactMode::Manual, 9, 1);
        assert_eq!(
            (restart.migrate, restart.free),
            ([Some(7), Some(5)], Some(20))
        );
    }
}
