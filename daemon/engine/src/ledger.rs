//! Answers that a session may still ask for again (PROTOCOLS P7).
//!
//! A reply can be lost; its pages are lent all the same. So each answer is kept until
//! the caller acknowledges its id, given again when the id is repeated, and undone when
//! the id is abandoned. Knows ids and answers only; the pages of an abandoned answer are
//! taken home by [`engine`](crate::Engine), block by block, if they still are what was lent.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::{AllocReply, CallError, FreeReply, LentRun};

/// The most runs that all answers of a session may have together; more are not remembered.
pub(crate) const MAX_RUNS: usize = 1 << 17;
/// The most ids that may be abandoned and not yet acknowledged.
pub(crate) const MAX_ABANDONED: usize = 1024;

/// What was answered, or has been found so far for a caller that waits.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Alloc {
        reply: AllocReply,
        /// Given as an answer; nothing is added any more.
        is_final: bool,
    },
    Free(FreeReply),
}

/// What is known of an id that comes with a call.
#[derive(Debug)]
pub(crate) enum Known<'a> {
    /// Not seen before.
    New,
    /// Seen, and this is what there is.
    Answer(&'a mut Answer),
}

/// The answers of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) acknowledged: u64,
    pub(crate) answers: BTreeMap<u64, Answer>,
    pub(crate) abandoned: BTreeSet<u64>,
    nr_runs: usize,
}

impl Ledger {
    /// Forgets the answers up to `acknowledged`.
    pub fn acknowledge(&mut self, acknowledged: u64) {
        if acknowledged <= self.acknowledged {
            return;
        }
        self.acknowledged = acknowledged;
        // Splitting at u64::MAX + 1 is the same as forgetting all.
        let later = acknowledged.checked_add(1);
        self.answers = later.map_or(BTreeMap::new(), |id| self.answers.split_off(&id));
        self.abandoned = later.map_or(BTreeSet::new(), |id| self.abandoned.split_off(&id));
        self.nr_runs = self.answers.values().map(nr_runs).sum();
    }

    /// The caller gave an id up: its call is refused should it still come. Returns what
    /// was lent for it.
    pub fn abandon(&mut self, request_id: u64) -> Result<Vec<LentRun>, CallError> {
        if request_id <= self.acknowledged {
            return Ok(Vec::new());
        }
        if !self.abandoned.contains(&request_id) {
            if self.abandoned.len() >= MAX_ABANDONED {
                return Err(CallError::TooManyUnacknowledged {
                    remembered: self.abandoned.len(),
                });
            }
            self.abandoned.insert(request_id);
        }
        match self.answers.remove(&request_id) {
            Some(Answer::Alloc { reply, .. }) => {
                self.nr_runs -= reply.runs.len();
                Ok(reply.runs)
            }
            Some(Answer::Free(_)) | None => Ok(Vec::new()),
        }
    }

    /// Whether a call of this id may be served, and what was answered before.
    pub fn look_up(&mut self, request_id: u64, most: usize) -> Result<Known<'_>, CallError> {
        if request_id <= self.acknowledged || self.abandoned.contains(&request_id) {
            return Err(CallError::Settled { request_id });
        }
        let remembered = self.answers.len();
        let is_full = remembered >= most || self.nr_runs >= MAX_RUNS;
        match self.answers.get_mut(&request_id) {
            Some(answer) => Ok(Known::Answer(answer)),
            None if is_full => Err(CallError::TooManyUnacknowledged { remembered }),
            None => Ok(Known::New),
        }
    }

    /// Remembers what was answered, or found so far.
    pub fn remember(&mut self, request_id: u64, answer: Answer) {
        self.nr_runs += nr_runs(&answer);
        if let Some(before) = self.answers.insert(request_id, answer) {
            self.nr_runs -= nr_runs(&before);
        }
    }

    /// Forgets everything; for a session that has ended.
    pub fn clear(&mut self) {
        self.answers.clear();
        self.nr_runs = 0;
    }
}

fn nr_runs(answer: &Answer) -> usize {
    match answer {
        Answer::Alloc { reply, .. } => reply.runs.len(),
        Answer::Free(reply) => reply.refused.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugepool_mm::{Order, Pfn};

    fn lent(first: u32) -> Answer {
        let run = LentRun {
            first: Pfn::new(first),
            nr_blocks: 1,
            order: Order::ZERO,
            generation: 1,
        };
        let reply = AllocReply {
            runs: vec![run],
            nr_blocks: 1,
            shortfall: None,
        };
        Answer::Alloc {
            reply,
            is_final: true,
        }
    }

    #[test]
    fn an_answer_is_kept_until_it_is_acknowledged() {
        let mut ledger = Ledger::default();
        assert!(matches!(ledger.look_up(1, 2), Ok(Known::New)));
        ledger.remember(1, lent(10));
        assert!(matches!(ledger.look_up(1, 2), Ok(Known::Answer(_))));
        ledger.acknowledge(1);
        let answer = ledger.look_up(1, 2).map(|_| ());
        assert_eq!(answer, Err(CallError::Settled { request_id: 1 }));
        assert_eq!((ledger.answers.len(), ledger.nr_runs), (0, 0));
    }

    #[test]
    fn an_abandoned_id_gives_back_what_was_lent_and_is_never_served() {
        let mut ledger = Ledger::default();
        ledger.remember(3, lent(10));
        assert_eq!(ledger.abandon(3).unwrap().len(), 1);
        assert!(ledger.abandon(3).unwrap().is_empty());
        assert!(ledger.abandon(4).unwrap().is_empty());
        for request_id in [3, 4] {
            let answer = ledger.look_up(request_id, 8).map(|_| ());
            assert_eq!(answer, Err(CallError::Settled { request_id }));
        }
        ledger.acknowledge(u64::MAX);
        assert!(ledger.abandoned.is_empty());
    }

    #[test]
    fn a_full_ledger_refuses_new_ids_and_still_knows_the_old() {
        let mut ledger = Ledger::default();
        ledger.remember(1, lent(1));
        ledger.remember(2, lent(2));
        let answer = ledger.look_up(3, 2).map(|_| ());
        assert_eq!(
            answer,
            Err(CallError::TooManyUnacknowledged { remembered: 2 })
        );
        assert!(matches!(ledger.look_up(2, 2), Ok(Known::Answer(_))));
    }

    #[test]
    fn abandoned_ids_are_bounded() {
        let mut ledger = Ledger::default();
        for id in 1..=MAX_ABANDONED as u64 {
            ledger.abandon(id).unwrap();
        }
        assert!(ledger.abandon(MAX_ABANDONED as u64 + 1).is_err());
        assert!(ledger.abandon(1).is_ok());
    }
}
