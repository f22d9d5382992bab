//! Keeping zones above their marks: the kernel's background reclaim, and who is told of shortage.
//!
//! A zone that falls below `low` is short until it is back at `high`. Meanwhile lanes get smaller
//! refills, lanes that nobody uses are emptied, and evictable pages are taken, a step under each
//! hold of the lock; what a request takes when it would fall short itself is
//! [`recall`](crate::recall)'s and [`evict`](crate::evict)'s. Where nothing can be had it is looked
//! again a second later. Each change is an event: worse ones at once, better ones only when they
//! last a moment.

use hugepool_mm::{Pressure, Watermarks, ZoneId};
use hugepool_shm::raw::NR_ZONES;

use crate::Engine;
use crate::drain::POLL_SOON;
use crate::events::About;
use crate::id::{ClientId, Now};
use crate::outside::Outside;
use crate::recall::{Which, is_pending};
use crate::zones::ZoneIndex;

/// The most evictable pages taken in a step, beyond the last block.
const STEP_PAGES: u64 = 256;
/// Until a zone where nothing could be had is looked through again.
const FRUITLESS_PAUSE: Now = Now::from_secs(1);
/// A zone is told to be better when the last change was told that long ago.
const SETTLED: Now = Now::from_millis(100);

/// How a zone stands.
#[derive(Clone, Copy, Debug, Default)]
struct Stand {
    /// Fell below `low` and has not been at `high` since.
    is_short: bool,
    told: Pressure,
    told_at: Now,
    /// When a step may be made.
    not_before: Now,
}

/// How a zone stands, for those who use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonePressure {
    /// Which.
    pub zone: ZoneId,
    /// How short it is, as told last.
    pub level: Pressure,
    /// Free pages now.
    pub free_pages: u64,
    /// Its marks.
    pub watermarks: Watermarks,
}

/// How all zones stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Balance {
    stands: [Stand; NR_ZONES],
}

impl Balance {
    /// How short a zone is, as told last.
    pub fn told(&self, zone: usize) -> Pressure {
        self.stands[zone].told
    }

    /// Bit per zone that is short.
    pub fn short(&self) -> u32 {
        let stands = self.stands.iter().enumerate();
        stands.fold(0, |bits, (zone, stand)| {
            bits | u32::from(stand.is_short) << zone
        })
    }
}

impl Engine {
    /// Looks at all zones' marks, and makes a step for each that is short. Returns when the next
    /// look is due; `None`: when something happens.
    pub(crate) fn balance(&mut self, now: Now, outside: &mut dyn Outside) -> Option<Now> {
        let mut next: Option<Now> = None;
        for zone in 0..self.custody.zones.len() {
            let level = self.look(zone);
            let mut due = self.tell_pressure(zone, now);
            if level != Pressure::None && now >= self.balance.stands[zone].not_before {
                let goes_on = self.step(zone, now, outside);
                let level = self.look(zone);
                let goes_on = goes_on.filter(|_| level != Pressure::None);
                due = [goes_on, self.tell_pressure(zone, now)]
                    .into_iter()
                    .flatten()
                    .min();
            }
            next = [next, due].into_iter().flatten().min();
        }
        next
    }

    /// How the zones stand that a session may use; `None` when it has ended.
    pub fn pressure_of(&self, session: ClientId) -> Option<Vec<ZonePressure>> {
        let client = self.clients.get(session)?;
        let zones = (0..self.custody.zones.len()).filter(|&at| client.may_use(at));
        let stands = zones.map(|at| {
            let zone = self.custody.zones.zone(at);
            ZonePressure {
                zone: zone.id(),
                level: self.balance.told(at),
                free_pages: zone.free_pages(),
                watermarks: zone.watermarks(),
            }
        });
        Some(stands.collect())
    }

    /// How short a zone is now, pages claimed from foreign pageblocks included, and what follows for
    /// lanes.
    fn look(&mut self, at: usize) -> Pressure {
        let zone = self.custody.zones.zone(at);
        let stand = &mut self.balance.stands[at];
        let level = match zone.pressure() {
            Pressure::None if stand.is_short && zone.reclaim_pages() > 0 => Pressure::Low,
            level => level,
        };
        let is_short = level != Pressure::None;
        if stand.is_short != is_short {
            stand.is_short = is_short;
            stand.not_before = Now::ZERO;
            // Refills are bounded by it.
            self.bounds_version += 1;
            if !is_short {
                self.made_up_for(at);
            }
        }
        level
    }

    /// Pages were claimed from foreign pageblocks, and that much was brought home for it: larger
    /// blocks are to be made of it.
    fn made_up_for(&mut self, at: usize) {
        let pageblock_order = self.custody.zones.geometry().pageblock_order();
        let zone = self.custody.zones.zone_mut(at);
        if zone.watermark_boost() > 0 {
            zone.clear_watermark_boost();
            let wanted = &mut self.custody.wanted_orders[at];
            *wanted = (*wanted).max(Some(pageblock_order));
        }
    }

    /// Brings some pages home. Returns when to go on.
    fn step(&mut self, at: usize, now: Now, outside: &mut dyn Outside) -> Option<Now> {
        let before = self.custody.zones.zone(at).free_pages();
        let mut users = self.clients.ids();
        users.retain(|&id| self.clients.get(id).is_some_and(|one| one.may_use(at)));
        // Of those first that own more than their share.
        let (greedy, others) = self.by_greed(&users, &[at]);
        let enough = self.custody.zones.zone(at).reclaim_pages();
        if self.recall_lanes(&greedy, Which::Idle, now, outside) < enough {
            self.recall_lanes(&others, Which::Idle, now, outside);
        }
        // What comes home lies in the zone's own lists at first.
        let zone = self.custody.zones.zone_mut(at);
        zone.pcp_drain();
        let high = zone.watermarks().high.min(zone.counts().managed);
        let wanted = high.saturating_sub(zone.free_pages());
        if wanted > 0 {
            self.evict_some(at, wanted.min(STEP_PAGES), now);
        }
        let zone = self.custody.zones.zone_mut(at);
        zone.pcp_drain();
        let came = zone.free_pages() > before;
        let stand = &mut self.balance.stands[at];
        if came {
            return Some(now);
        }
        if is_pending(&self.clients, &users) {
            stand.not_before = now + POLL_SOON;
            return Some(stand.not_before);
        }
        stand.not_before = now + FRUITLESS_PAUSE;
        self.made_up_for(at);
        None
    }

    /// Tells of a change, by the marks as they are: that pages were claimed from foreign pageblocks
    /// is no client's affair. Returns when a change that is not worth telling yet is.
    fn tell_pressure(&mut self, at: usize, now: Now) -> Option<Now> {
        let stand = &mut self.balance.stands[at];
        let zone = self.custody.zones.zone(at);
        let (free, marks) = (zone.free_pages(), zone.watermarks());
        let goal = if stand.told == Pressure::None {
            marks.low
        } else {
            marks.high.min(zone.counts().managed)
        };
        let level = match zone.pressure() {
            Pressure::Low if free >= goal => Pressure::None,
            Pressure::None if free < goal => Pressure::Low,
            level => level,
        };
        if level == stand.told {
            return None;
        }
        let tell_at = stand.told_at + SETTLED;
        if level < stand.told && now < tell_at {
            return Some(tell_at);
        }
        (stand.told, stand.told_at) = (level, now);
        let text = format!(
            "zone {}: pressure {}: {} pages free, min {} low {} high {}",
            self.custody.zones.settings(at).name,
            level.name(),
            free,
            marks.min,
            marks.low,
            marks.high
        );
        let about = About {
            zone: Some(ZoneIndex(at).id()),
            ..About::default()
        };
        self.events.note(now, "pressure", about, text);
        None
    }
}
