//! Taking a lane back: what of it is the daemon's at which moment, with and without an operation
//! of the client's in flight.
//!
//! The second half of [`LaneDaemon`]; closing and opening are in the first. An operation of reach
//! `r` takes from the front of the grants, takes from or puts to the top of a magazine or beside
//! it, or spills from its bottom, in all at most `r` blocks; so grants from `head + r` on and blocks
//! between `bottom + r` and `top - r` cannot be what it is moving, and what lies beside a magazine
//! always can.

use crate::lane_daemon::{
    LaneDaemon, Poisoned, bad_grants, bad_magazine, grants_ring, magazine, window,
};
use crate::layout::LANE_CLASSES;
use crate::raw::{Class, RawPage};
use crate::slots;
use crate::step;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};
use crate::word_run::{self, WordRun, push_word};

/// Where taking a closed lane back stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeState {
    /// An operation is in flight and may move this many blocks: nothing was taken.
    Busy {
        /// Its reach.
        reach: u32,
    },
    /// An operation has been in flight for too long: all beyond its reach was taken.
    Held {
        /// Its reach.
        reach: u32,
        /// Blocks that stay until it ends, of every class.
        nr_left: u32,
    },
    /// All was taken. The lane may be opened.
    Emptied,
}

/// Positions that were taken from under an operation in flight, half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Grants from here to the daemon's tail.
    pub(crate) grants_from: u32,
    /// Blocks of the magazine from the first to before the second position; none if all of them
    /// were within reach.
    pub(crate) magazine: Option<(u32, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Closed,
    /// Closed, and all but the reach of an operation taken.
    Partly(Box<[Taken; LANE_CLASSES]>),
    Emptied,
}

impl LaneDaemon {
    /// Takes what lies in a closed lane into `out`, as claims; `returns` is not touched.
    ///
    /// With an operation in flight nothing is taken, or, if it `is_stuck`, all that it cannot be
    /// moving; the rest follows in a later call, once the operation has ended.
    ///
    /// # Panics
    /// If the lane was not closed: whatever was taken would be doubled.
    pub fn try_take(
        &mut self,
        is_stuck: bool,
        out: &mut Vec<RawPage>,
    ) -> Result<TakeState, Poisoned> {
        self.take_by(is_stuck, &mut |claims| {
            out.extend(claims.iter().flat_map(|claim| claim.words()));
        })
    }

    /// As [`LaneDaemon::try_take`], each claim being settled by `settle` before the lane forgets
    /// it: a daemon that dies in the middle finds them all again, and knows those that are home.
    ///
    /// # Panics
    /// As there.
    pub fn take_by(
        &mut self,
        is_stuck: bool,
        settle: &mut dyn FnMut(&[WordRun]),
    ) -> Result<TakeState, Poisoned> {
        assert!(self.gate != Gate::Open, "lane {} is open", self.index);
        let reach = window(self.lane()).reach();
        match (&self.gate, reach) {
            (Gate::Emptied, _) => Ok(TakeState::Emptied),
            (_, 0) => self.take_rest(settle),
            (Gate::Partly(_), _) => Ok(TakeState::Held {
                reach,
                nr_left: self.nr_left()?,
            }),
            (_, _) if is_stuck => self.take_beyond(reach, settle),
            (_, _) => Ok(TakeState::Busy { reach }),
        }
    }

    /// Nobody is in the window and nobody will enter: the lane's words are the daemon's.
    fn take_rest(&mut self, settle: &mut dyn FnMut(&[WordRun])) -> Result<TakeState, Poisoned> {
        let partly = match &self.gate {
            Gate::Partly(taken) => Some(**taken),
            _ => None,
        };
        let mut claims = Vec::new();
        let mut heads = [0; LANE_CLASSES];
        // All cursors are judged before anything is taken, so that a poisoned lane is whole.
        for class in lane_classes() {
            let taken = partly.map(|taken| taken[class.index()]);
            heads[class.index()] = self.take_grants_rest(class, taken, &mut claims)?;
            self.take_magazine_rest(class, taken, &mut claims)?;
        }
        settle(&claims);
        step::reached("recall.cells");
        self.grants_tail = heads;
        self.gate = Gate::Emptied;
        // First: whoever finds it so knows that the tails are where the client's heads are.
        self.keep_gate();
        if let Some(kept) = &self.kept {
            for class in lane_classes() {
                step::reached("recall.tail");
                kept.keep_grants_tail(class.index(), heads[class.index()]);
            }
        }
        step::reached("recall.emptied");
        self.set_empty();
        Ok(TakeState::Emptied)
    }

    /// Sets the lane's rings and magazines empty, while it is closed. Harmless when repeated.
    pub(crate) fn set_empty(&self) {
        for class in lane_classes() {
            let tail = self.grants_tail[class.index()];
            // Published by the opening, SYNC(window.epoch).
            grants_ring(self.lane(), class).tail.store(tail, Relaxed);
            let magazine = magazine(self.lane(), class);
            let (bottom, top) = (magazine.bottom.load(Relaxed), magazine.top.load(Relaxed));
            // The client's word, written while it keeps off; published by the opening,
            // SYNC(window.epoch).
            magazine.bottom.store(top, Relaxed);
            let nr_beside = u32::from(magazine.pop_last().is_some());
            self.count_recalled(class, top.wrapping_sub(bottom).wrapping_add(nr_beside));
        }
    }

    /// Takes the grants that are left; returns the client's cursor.
    fn take_grants_rest(
        &self,
        class: Class,
        taken: Option<Taken>,
        out: &mut Vec<WordRun>,
    ) -> Result<u32, Poisoned> {
        let ring = grants_ring(self.lane(), class);
        let head = ring.head.load(Relaxed);
        let tail = self.grants_tail[class.index()];
        let used = ring
            .depth_checked(head, tail)
            .map_err(|bad| bad_grants(class, bad))?;
        let end = taken.map_or(tail, |taken| taken.grants_from);
        let nr_left = end.wrapping_sub(head);
        if nr_left > used {
            let (from, to) = (end, tail);
            return Err(Poisoned::Overreach {
                class,
                from,
                to,
                low: head,
                high: tail,
            });
        }
        out.extend(word_run::load_all(ring.slots, head, end));
        Ok(head)
    }

    /// Takes the blocks of the magazine that are left.
    fn take_magazine_rest(
        &self,
        class: Class,
        taken: Option<Taken>,
        out: &mut Vec<WordRun>,
    ) -> Result<(), Poisoned> {
        let lane = self.lane();
        let magazine = magazine(lane, class);
        let (bottom, top) = magazine
            .span_checked()
            .map_err(|bad| bad_magazine(class, bad))?;
        let used = top.wrapping_sub(bottom);
        let (from, to) = taken.and_then(|taken| taken.magazine).unwrap_or((top, top));
        let (nr_below, nr_above) = (from.wrapping_sub(bottom), top.wrapping_sub(to));
        let nr_gone = to.wrapping_sub(from);
        if u64::from(nr_below) + u64::from(nr_gone) + u64::from(nr_above) != u64::from(used) {
            return Err(Poisoned::Overreach {
                class,
                from,
                to,
                low: bottom,
                high: top,
            });
        }
        take_words(magazine.slots, bottom, nr_below, out);
        take_words(magazine.slots, to, nr_above, out);
        let last = magazine.last.load(Relaxed);
        out.extend((last != 0).then(|| WordRun::of_one(RawPage::from_bits(last))));
        Ok(())
    }

    /// Takes all that an operation of this reach cannot be moving: it takes from the front of the
    /// grants, from and to the top of the magazine, or from its bottom.
    fn take_beyond(
        &mut self,
        reach: u32,
        settle: &mut dyn FnMut(&[WordRun]),
    ) -> Result<TakeState, Poisoned> {
        let mut claims = Vec::new();
        let nothing = Taken {
            grants_from: 0,
            magazine: None,
        };
        let mut taken = [(nothing, 0); LANE_CLASSES];
        // All cursors are judged before anything is taken, so that a poisoned lane is whole.
        for class in lane_classes() {
            taken[class.index()] = self.beyond(class, reach)?;
        }
        for class in lane_classes() {
            let Taken {
                grants_from,
                magazine: from_magazine,
            } = taken[class.index()].0;
            let tail = self.grants_tail[class.index()];
            let slots = grants_ring(self.lane(), class).slots;
            claims.extend(runs_behind(
                slots,
                taken[class.index()].1,
                grants_from,
                tail,
            ));
            if let Some((from, to)) = from_magazine {
                let slots = magazine(self.lane(), class).slots;
                take_words(slots, from, to.wrapping_sub(from), &mut claims);
            }
        }
        settle(&claims);
        step::reached("recall.beyond");
        self.gate = Gate::Partly(Box::new(taken.map(|(taken, _)| taken)));
        self.keep_gate();
        Ok(TakeState::Held {
            reach,
            nr_left: self.nr_left()?,
        })
    }

    /// What of a class lies beyond the reach, and where the client's cursor of the grants stood:
    /// from there on they can be read, whatever the operation does meanwhile to those in its reach.
    fn beyond(&self, class: Class, reach: u32) -> Result<(Taken, u32), Poisoned> {
        let tail = self.grants_tail[class.index()];
        let nr_grants = self.grants_depth(class)?;
        let grants_from = tail.wrapping_sub(nr_grants.saturating_sub(reach));
        let (bottom, top) = magazine(self.lane(), class)
            .span_in_flight(reach)
            .map_err(|bad| bad_magazine(class, bad))?;
        let nr_magazine = top
            .wrapping_sub(bottom)
            .saturating_sub(reach.saturating_mul(2));
        let from = bottom.wrapping_add(reach);
        let magazine = (nr_magazine > 0).then(|| (from, from.wrapping_add(nr_magazine)));
        let taken = Taken {
            grants_from,
            magazine,
        };
        Ok((taken, tail.wrapping_sub(nr_grants)))
    }

    /// Shows each word that lies in the lane, open or closed, by the client's cursors; what was
    /// taken from under an operation in flight is left out. Claims, as of a moment ago: nothing
    /// is taken, and cursors that make no sense show nothing.
    pub fn look(&self, found: &mut dyn FnMut(RawPage)) {
        for class in lane_classes() {
            let taken = match &self.gate {
                Gate::Partly(taken) => Some(taken[class.index()]),
                _ => None,
            };
            let ring = grants_ring(self.lane(), class);
            // SYNC(ring.head): pairs with the client's pop.
            let head = ring.head.load(Acquire);
            let tail = taken.map_or(self.grants_tail[class.index()], |taken| taken.grants_from);
            if tail.wrapping_sub(head) as usize <= ring.slots.len() {
                let runs = word_run::load_all(ring.slots, head, tail);
                runs.flat_map(WordRun::words).for_each(&mut *found);
            }
            let magazine = magazine(self.lane(), class);
            let (bottom, top) = (magazine.bottom.load(Relaxed), magazine.top.load(Relaxed));
            match taken.and_then(|taken| taken.magazine) {
                Some((from, to)) => {
                    show_run(magazine.slots, bottom, from, found);
                    show_run(magazine.slots, to, top, found);
                }
                None => show_run(magazine.slots, bottom, top, found),
            }
            let last = magazine.last.load(Relaxed);
            if last != 0 {
                found(RawPage::from_bits(last));
            }
        }
    }

    /// Blocks that lie in the lane still, after all beyond the reach was taken.
    fn nr_left(&self) -> Result<u32, Poisoned> {
        let Gate::Partly(taken) = &self.gate else {
            return Ok(0);
        };
        let mut nr_left = 0u32;
        for class in lane_classes() {
            let depth = self.depth(class)?;
            let Taken {
                grants_from,
                magazine,
            } = taken[class.index()];
            let nr_grants = self.grants_tail[class.index()].wrapping_sub(grants_from);
            let nr_taken = nr_grants + magazine.map_or(0, |(from, to)| to.wrapping_sub(from));
            let nr_there = depth.grants + depth.magazine;
            nr_left = nr_left.saturating_add(nr_there.saturating_sub(nr_taken));
        }
        Ok(nr_left)
    }

    fn count_recalled(&self, class: Class, count: u32) {
        let word = &self.lane().class(class.index()).settings.nr_recalled;
        // SYNC(lane.recalled): the magazine was set empty before.
        word.store(word.load(Relaxed).wrapping_add(count), Release);
    }
}

/// The classes that a lane has.
fn lane_classes() -> impl Iterator<Item = Class> {
    Class::all().take(LANE_CLASSES)
}

/// Shows the words from one position to another, unless no ring could hold so many.
fn show_run(slots: &[AtomicU64], from: u32, to: u32, found: &mut dyn FnMut(RawPage)) {
    let count = to.wrapping_sub(from);
    if count as usize <= slots.len() {
        for offset in 0..count {
            found(RawPage::from_bits(slots::load(
                slots,
                from.wrapping_add(offset),
            )));
        }
    }
}

/// The runs between two positions, which are to be read from an earlier one on.
fn runs_behind(
    slots: &[AtomicU64],
    head: u32,
    from: u32,
    to: u32,
) -> impl Iterator<Item = WordRun> + '_ {
    let mut nr_before = from.wrapping_sub(head);
    word_run::load_all(slots, head, to).filter_map(move |run| {
        let nr_skipped = nr_before.min(run.nr_blocks);
        nr_before -= nr_skipped;
        (nr_skipped < run.nr_blocks).then(|| run.behind(nr_skipped))
    })
}

fn take_words(slots: &[AtomicU64], from: u32, count: u32, out: &mut Vec<WordRun>) {
    for offset in 0..count {
        let word = slots::load(slots, from.wrapping_add(offset));
        push_word(out, RawPage::from_bits(word));
    }
}
