//! One lane as the daemon has it: lending, settling, and taking back without the client's help.
//!
//! The cursors here are the daemon's own; what lies in the lane is a publication of them. What
//! the client wrote is checked at each read, and nonsense comes back as [`Poisoned`], with the
//! numbers. Page words that come out of here are claims: whoever keeps the owners judges them.
//!
//! A recall goes: [`LaneDaemon::close`] on all lanes of the round, one `membarrier` for all of
//! them, [`LaneDaemon::try_take`] until it says [`TakeState::Emptied`], [`LaneDaemon::open`].
//!
//! The daemon may die at any instruction and another one take over ([`LaneDaemon::resume`]). So a
//! cursor is kept ([`lane_cursors`](crate::lane_cursors)) before the lane is told of it, and a word
//! is taken before the cursor behind it is kept: what is met twice is known to be settled already.

use crate::control::ControlSegment;
use crate::lane_cursors::LaneCursors;
use crate::layout::{LANE_CLASSES, Lane};
use crate::magazine::Magazine;
use crate::raw::{Class, RawPage};
use crate::ring::{BadCursors, Ring};
use crate::sync::{Acquire, Relaxed, Release};
use crate::window::{Window, is_closed, next_closed};
use crate::word_run::{WordRun, runs_of};

use crate::lane_recall::Gate;
pub use crate::lane_recall::TakeState;
use crate::step;

/// A lane's words that make no sense. The lane, and with it the client, is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Poisoned {
    /// More grants taken than given, or an absurd cursor.
    #[error("{class:?}: grants stand at {tail}, the client has taken {head}")]
    Grants {
        /// Whose ring.
        class: Class,
        /// The client's cursor.
        head: u32,
        /// The daemon's cursor.
        tail: u32,
    },
    /// More returns than the ring holds.
    #[error("returns are read up to {head}, the client has put {tail}")]
    Returns {
        /// The daemon's cursor.
        head: u32,
        /// The client's cursor.
        tail: u32,
    },
    /// More blocks in a magazine than it holds.
    #[error("{class:?}: the magazine goes from {bottom} to {top}")]
    Magazine {
        /// Whose magazine.
        class: Class,
        /// The client's lower cursor.
        bottom: u32,
        /// The client's upper cursor.
        top: u32,
    },
    /// An operation has moved blocks beyond the reach that it had said.
    #[error("{class:?}: cursors stand at {low} and {high}, beyond the reach of {from}..{to}")]
    Overreach {
        /// Whose blocks.
        class: Class,
        /// First position that had been taken back.
        from: u32,
        /// Position behind the last that had been taken back.
        to: u32,
        /// The client's lower cursor afterwards.
        low: u32,
        /// The client's upper cursor afterwards.
        high: u32,
    },
}

/// How a lane caches one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSettings {
    /// Blocks to spill at once.
    pub batch: u32,
    /// Blocks above which the magazine spills.
    pub high: u32,
    /// Blocks in `grants` below which the client rings.
    pub low_mark: u32,
    /// Bit per zone index: blocks of these zones may lie in the magazine; others go home. The
    /// client looks at it when it first uses the lane and after each recall.
    pub zones: u32,
}

/// Blocks of one class that lie in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneDepth {
    /// In the grants ring.
    pub grants: u32,
    /// In the magazine.
    pub magazine: u32,
}

/// One lane of one client, on the daemon's side.
#[derive(Clone, Debug)]
pub struct LaneDaemon {
    pub(crate) segment: ControlSegment,
    pub(crate) index: u32,
    pub(crate) epoch: u32,
    pub(crate) returns_head: u32,
    pub(crate) grants_tail: [u32; LANE_CLASSES],
    pub(crate) wanted_seen: [u32; LANE_CLASSES],
    pub(crate) gate: Gate,
    /// Where the cursors are kept for a daemon that comes after this one.
    pub(crate) kept: Option<LaneCursors>,
}

impl LaneDaemon {
    /// Takes the daemon's side of a lane of a fresh segment, if there is a lane of that index.
    pub fn new(segment: ControlSegment, index: u32) -> Option<LaneDaemon> {
        segment.lane(index)?;
        let lane = LaneDaemon {
            segment,
            index,
            epoch: 0,
            returns_head: 0,
            grants_tail: [0; LANE_CLASSES],
            wanted_seen: [0; LANE_CLASSES],
            gate: Gate::Open,
            kept: None,
        };
        Some(lane)
    }

    /// The same, with its cursors kept in `kept`, which may outlive this daemon.
    pub fn kept_in(segment: ControlSegment, index: u32, kept: LaneCursors) -> Option<LaneDaemon> {
        let mut lane = LaneDaemon::new(segment, index)?;
        kept.clear();
        kept.keep_gate(lane.epoch, &lane.gate);
        lane.kept = Some(kept);
        Some(lane)
    }

    /// Takes over a lane from a daemon that has died at whatever instruction: its cursors are
    /// those that it kept, and the lane is told of them again, since it may have died before it
    /// told. A lane found closed stays so; a barrier must be issued before it is taken.
    pub fn resume(segment: ControlSegment, index: u32, kept: LaneCursors) -> Option<LaneDaemon> {
        let mut lane = LaneDaemon::new(segment, index)?;
        (lane.epoch, lane.gate) = kept.gate();
        if is_closed(lane.epoch) != lane.is_closed() {
            // Of a state that something else has written over: the gate is believed.
            lane.epoch = match lane.gate {
                Gate::Open => lane.epoch.wrapping_add(1),
                _ => next_closed(lane.epoch),
            };
        }
        lane.returns_head = kept.returns_head();
        for class in Class::all().take(LANE_CLASSES) {
            lane.grants_tail[class.index()] = kept.grants_tail(class.index());
        }
        lane.kept = Some(kept);
        let words = lane.segment.lane(index).expect(LANE);
        // SYNC(ring.head): the slots before it have been read.
        words.settled.returns_head.store(lane.returns_head, Release);
        for class in Class::all().take(LANE_CLASSES) {
            let at = class.index();
            lane.wanted_seen[at] = words.class(at).client.wanted.load(Relaxed);
            let ring = grants_ring(words, class);
            if lane.gate == Gate::Emptied {
                // All was taken, and the client keeps off: it may not be kept yet.
                lane.grants_tail[at] = ring.head.load(Relaxed);
                if let Some(kept) = &lane.kept {
                    kept.keep_grants_tail(at, lane.grants_tail[at]);
                }
            }
            // SYNC(ring.tail): the slots before it have been written.
            ring.tail.store(lane.grants_tail[at], Release);
        }
        if lane.gate == Gate::Emptied {
            lane.set_empty();
        }
        if is_closed(lane.epoch) {
            window(lane.lane()).close(lane.epoch);
        } else {
            window(lane.lane()).open(lane.epoch);
        }
        Some(lane)
    }

    /// Index of the lane in its client.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Where the daemon's cursor of a class's grants stands; 0 for a class that lanes have not.
    pub fn grants_tail(&self, class: Class) -> u32 {
        self.grants_tail.get(class.index()).copied().unwrap_or(0)
    }

    /// The segment that the lane lies in.
    pub fn segment(&self) -> &ControlSegment {
        &self.segment
    }

    /// Publishes how a class is cached; the client clamps it to what the lane holds.
    pub fn configure(&self, class: Class, settings: ClassSettings) {
        let words = &self.lane().class(class.index()).settings;
        words.batch.store(settings.batch, Relaxed);
        words.high.store(settings.high, Relaxed);
        words.low_mark.store(settings.low_mark, Relaxed);
        words.zones.store(settings.zones, Relaxed);
    }

    /// How a class is cached, as published.
    pub fn settings(&self, class: Class) -> ClassSettings {
        let words = &self.lane().class(class.index()).settings;
        ClassSettings {
            batch: words.batch.load(Relaxed),
            high: words.high.load(Relaxed),
            low_mark: words.low_mark.load(Relaxed),
            zones: words.zones.load(Relaxed),
        }
    }

    /// Lends blocks into the lane, as many as there is room for; returns how many. Custody must
    /// have been recorded before. A lane that is closed takes none.
    pub fn grant(&mut self, class: Class, pages: &[RawPage]) -> Result<usize, Poisoned> {
        self.grant_runs(class, runs_of(pages))
    }

    /// The same by runs.
    pub fn grant_runs(
        &mut self,
        class: Class,
        runs: impl Iterator<Item = WordRun>,
    ) -> Result<usize, Poisoned> {
        if self.gate != Gate::Open || class.index() >= LANE_CLASSES {
            return Ok(0);
        }
        let ring = grants_ring(self.segment.lane(self.index).expect(LANE), class);
        let kept = &self.kept;
        let keep = |tail| {
            if let Some(kept) = kept {
                step::reached("grant.slots");
                kept.keep_grants_tail(class.index(), tail);
                step::reached("grant.cursor");
            }
        };
        ring.push_checked(&mut self.grants_tail[class.index()], runs, keep)
            .map_err(|bad| bad_grants(class, bad))
    }

    /// Blocks that could be lent into the lane now.
    pub fn room(&self, class: Class) -> Result<u32, Poisoned> {
        if self.gate != Gate::Open || class.index() >= LANE_CLASSES {
            return Ok(0);
        }
        let ring = grants_ring(self.lane(), class);
        Ok(ring.capacity() - self.grants_depth(class)?)
    }

    /// Blocks of a class that lie in the lane, by the client's word. Of the magazine a guess
    /// only, at most what it holds: its owner may be moving both cursors at this moment, and no
    /// sense can be asked of them while the lane is open.
    pub fn depth(&self, class: Class) -> Result<LaneDepth, Poisoned> {
        if class.index() >= LANE_CLASSES {
            return Ok(LaneDepth::default());
        }
        let nr_cached = magazine(self.lane(), class).nr_blocks();
        Ok(LaneDepth {
            grants: self.grants_depth(class)?,
            magazine: u32::try_from(nr_cached).unwrap_or(u32::MAX),
        })
    }

    /// Words that wait in `returns`, by the client's word.
    pub fn returns_depth(&self) -> Result<u32, Poisoned> {
        let ring = returns_ring(self.lane());
        // SYNC(ring.tail): pairs with the client's push.
        ring.depth_checked(self.returns_head, ring.tail.load(Acquire))
            .map_err(bad_returns)
    }

    /// Blocks asked for and not there since the last call, by the client's word.
    pub fn take_wanted(&mut self, class: Class) -> u32 {
        let Some(seen) = self.wanted_seen.get_mut(class.index()) else {
            return 0;
        };
        let lane = self.segment.lane(self.index).expect(LANE);
        let now = lane.class(class.index()).client.wanted.load(Relaxed);
        now.wrapping_sub(core::mem::replace(seen, now))
    }

    /// Hands each returned word to `take`, then publishes that they were read; returns how many.
    /// At most one ring's worth, however fast the client goes on.
    pub fn settle(&mut self, take: &mut dyn FnMut(RawPage)) -> Result<usize, Poisoned> {
        self.settle_runs(&mut |run| run.words().for_each(&mut *take))
    }

    /// The same by runs.
    pub fn settle_runs(&mut self, take: &mut dyn FnMut(WordRun)) -> Result<usize, Poisoned> {
        let ring = returns_ring(self.segment.lane(self.index).expect(LANE));
        let kept = &self.kept;
        let keep = |head| {
            if let Some(kept) = kept {
                step::reached("settle.cells");
                kept.keep_returns_head(head);
                step::reached("settle.cursor");
            }
        };
        ring.pop_checked(&mut self.returns_head, take, keep)
            .map_err(bad_returns)
    }

    /// Shuts the lane. A barrier on all processors must follow before [`LaneDaemon::try_take`].
    /// A lane that is shut already stays as it is.
    pub fn close(&mut self) {
        if self.gate != Gate::Open {
            return;
        }
        self.epoch = next_closed(self.epoch);
        debug_assert!(is_closed(self.epoch));
        self.gate = Gate::Closed;
        self.keep_gate();
        step::reached("recall.gate");
        window(self.lane()).close(self.epoch);
    }

    pub(crate) fn keep_gate(&self) {
        if let Some(kept) = &self.kept {
            kept.keep_gate(self.epoch, &self.gate);
        }
    }

    /// Whether the lane is shut.
    pub fn is_closed(&self) -> bool {
        self.gate != Gate::Open
    }

    /// Thread that uses the lane, by the client's word; 0 while it is parked.
    pub fn thread(&self) -> u32 {
        self.lane().client.thread.load(Relaxed)
    }

    /// Opens an emptied lane; false if it is not emptied, and nothing has changed then.
    pub fn open(&mut self) -> bool {
        if self.gate != Gate::Emptied {
            return false;
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.gate = Gate::Open;
        self.keep_gate();
        step::reached("recall.open");
        window(self.lane()).open(self.epoch);
        true
    }

    pub(crate) fn grants_depth(&self, class: Class) -> Result<u32, Poisoned> {
        let ring = grants_ring(self.lane(), class);
        // SYNC(ring.head): pairs with the client's pop.
        ring.depth_checked(ring.head.load(Acquire), self.grants_tail[class.index()])
            .map_err(|bad| bad_grants(class, bad))
    }

    pub(crate) fn lane(&self) -> &Lane {
        self.segment.lane(self.index).expect(LANE)
    }
}

pub(crate) const LANE: &str = "`new` has checked that the segment has this lane";

#[inline(always)]
pub(crate) fn window(lane: &Lane) -> Window<'_> {
    Window {
        busy: &lane.client.busy,
        epoch: &lane.gate.epoch,
    }
}

#[inline(always)]
pub(crate) fn grants_ring(lane: &Lane, class: Class) -> Ring<'_> {
    let words = lane.class(class.index());
    Ring {
        head: &words.client.grants_head,
        tail: &words.granted.grants_tail,
        slots: lane.grants(class.index()),
    }
}

#[inline(always)]
pub(crate) fn returns_ring(lane: &Lane) -> Ring<'_> {
    Ring {
        head: &lane.settled.returns_head,
        tail: &lane.client.returns_tail,
        slots: &lane.returns,
    }
}

#[inline(always)]
pub(crate) fn magazine(lane: &Lane, class: Class) -> Magazine<'_> {
    let words = lane.class(class.index());
    Magazine {
        bottom: &words.client.mag_bottom,
        top: &words.client.mag_top,
        last: &words.client.mag_last,
        slots: lane.magazine(class.index()),
    }
}

pub(crate) fn bad_grants(class: Class, BadCursors { head, tail }: BadCursors) -> Poisoned {
    Poisoned::Grants { class, head, tail }
}

pub(crate) fn bad_magazine(class: Class, BadCursors { head, tail }: BadCursors) -> Poisoned {
    Poisoned::Magazine {
        class,
        bottom: head,
        top: tail,
    }
}

fn bad_returns(BadCursors { head, tail }: BadCursors) -> Poisoned {
    Poisoned::Returns { head, tail }
}
