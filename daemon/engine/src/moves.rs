//! Moves that the runner carries out, without the engine's lock.
//!
//! A [`MoveBatch`] has all that it takes: for each block its handle and both its places.
//! [`carry_out`](MoveBatch::carry_out) closes the handle's word, lets the runner copy, and opens it at the
//! new place, one block after the other, so that a client that wants one waits for one copy and
//! no more. What came of it is the answer, [`Engine::moved`](crate::Engine::moved).

use hugepool_mm::{Pfn, ZoneId};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::handle::CloseError;
use hugepool_shm::handles::{Named, PageRecord};
use hugepool_shm::step;

use crate::intent::IntentId;

/// One block to be copied; the two places do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// First page of its old place.
    pub from: Pfn,
    /// The zone of that.
    pub from_zone: ZoneId,
    /// First page of its new place.
    pub to: Pfn,
    /// The zone of that.
    pub to_zone: ZoneId,
    /// Its pages.
    pub nr_pages: u32,
}

/// What came of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// It is at its new place.
    Moved,
    /// Somebody had it pinned.
    Pinned,
    /// The client wanted it in the middle of the copy, and took it back.
    TakenBack,
    /// The client has freed it, or its words say so.
    Gone,
    /// It could not be copied.
    Fault,
}

/// One block's move.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub intent: IntentId,
    /// Whose segment, by position in the batch.
    pub segment: usize,
    pub named: Named,
    pub copy: BlockCopy,
    /// What the client is to find at the new place.
    pub record: PageRecord,
}

/// Moves to be carried out together.
#[derive(Clone)]
pub struct MoveBatch {
    pub(crate) number: u64,
    pub(crate) segments: Vec<ControlSegment>,
    pub(crate) moves: Vec<Move>,
}

/// What came of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the engine waits for it"]
pub struct MovedBatch {
    pub(crate) number: u64,
    pub(crate) outcomes: Vec<(IntentId, MoveOutcome)>,
}

impl PartialEq for MoveBatch {
    fn eq(&self, other: &MoveBatch) -> bool {
        self.number == other.number
    }
}

impl Eq for MoveBatch {}

impl core::fmt::Debug for MoveBatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "MoveBatch({}, {} blocks)", self.number, self.moves.len())
    }
}

impl MoveBatch {
    /// Carries the moves out. `copy` copies one block and says whether it could; the handle's word
    /// is closed meanwhile. Each batch is carried out once.
    pub fn carry_out(&self, copy: &mut dyn FnMut(&BlockCopy) -> bool) -> MovedBatch {
        let outcomes = self.moves.iter();
        let outcomes = outcomes.map(|one| (one.intent, self.carry_out_one(one, copy)));
        MovedBatch {
            number: self.number,
            outcomes: outcomes.collect(),
        }
    }

    /// The answer of a runner that will not carry it out.
    pub fn leave_undone(&self) -> MovedBatch {
        let outcomes = self.moves.iter();
        MovedBatch {
            number: self.number,
            outcomes: outcomes
                .map(|one| (one.intent, MoveOutcome::Fault))
                .collect(),
        }
    }

    /// The blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = &BlockCopy> {
        self.moves.iter().map(|one| &one.copy)
    }

    fn carry_out_one(&self, one: &Move, copy: &mut dyn FnMut(&BlockCopy) -> bool) -> MoveOutcome {
        let Some(segment) = self.segments.get(one.segment) else {
            return MoveOutcome::Fault;
        };
        let begun = match segment.handles().begin_move(one.copy.from.get(), one.named) {
            Ok(begun) => begun,
            Err(CloseError::Pinned) => return MoveOutcome::Pinned,
            Err(CloseError::OtherPage) => return MoveOutcome::Gone,
        };
        step::reached("move.closed");
        if !copy(&one.copy) {
            begun.give_up();
            return MoveOutcome::Fault;
        }
        step::reached("move.copied");
        let outcome = if begun.finish(one.copy.to.get(), one.record) {
            MoveOutcome::Moved
        } else {
            MoveOutcome::TakenBack
        };
        step::reached("move.opened");
        outcome
    }
}
