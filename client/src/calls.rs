//! Numbers of calls: which have been answered, which were given up.
//!
//! The daemon keeps the answer of a call until it is told that nobody waits for it any more. So
//! each call names the highest id up to which all are settled, and the ids that were given up:
//! what was lent for those goes home (a reply that was lost must not lose its pages).

use std::collections::BTreeSet;

/// The calls of one session.
#[derive(Debug)]
pub(crate) struct Calls {
    next: u64,
    in_flight: BTreeSet<u64>,
    /// Given up, and not yet named in a call that was answered.
    abandoned: BTreeSet<u64>,
}

/// What a call says beside its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its own id.
    pub(crate) id: u64,
    /// Every id up to this one has been answered or given up.
    pub(crate) acknowledged: u64,
    /// Ids given up.
    pub(crate) abandoned: Vec<u64>,
}

impl Calls {
    pub(crate) fn new() -> Calls {
        Calls {
            next: 1,
            in_flight: BTreeSet::new(),
            abandoned: BTreeSet::new(),
        }
    }

    /// Begins a call.
    pub(crate) fn begin(&mut self) -> Header {
        let id = self.next;
        self.next += 1;
        self.in_flight.insert(id);
        let oldest = self.in_flight.first().copied().unwrap_or(id);
        Header {
            id,
            acknowledged: oldest - 1,
            abandoned: self.abandoned.iter().copied().collect(),
        }
    }

    /// The call was answered: what it named as given up need not be named again.
    pub(crate) fn answered(&mut self, header: &Header) {
        self.in_flight.remove(&header.id);
        for id in &header.abandoned {
            self.abandoned.remove(id);
        }
    }

    /// The call was given up: its answer, should it still come, is not read.
    pub(crate) fn give_up(&mut self, header: &Header) {
        self.in_flight.remove(&header.id);
        self.abandoned.insert(header.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_from_one_and_are_acknowledged_in_order() {
        let mut calls = Calls::new();
        let first = calls.begin();
        assert_eq!(
            first,
            Header {
                id: 1,
                acknowledged: 0,
                abandoned: vec![]
            }
        );
        let second = calls.begin();
        assert_eq!(second.acknowledged, 0, "the first is in flight");
        calls.answered(&second);
        assert_eq!(
            calls.begin().acknowledged,
            0,
            "the first is in flight still"
        );
        calls.answered(&first);
        assert_eq!(
            calls.begin(),
            Header {
                id: 4,
                acknowledged: 2,
                abandoned: vec![]
            }
        );
    }

    #[test]
    fn a_call_given_up_is_named_until_a_call_that_names_it_is_answered() {
        let mut calls = Calls::new();
        let lost = calls.begin();
        calls.give_up(&lost);
        let lost_too = calls.begin();
        assert_eq!(
            lost_too,
            Header {
                id: 2,
                acknowledged: 1,
                abandoned: vec![1]
            }
        );
        calls.give_up(&lost_too);
        let third = calls.begin();
        assert_eq!(third.abandoned, [1, 2]);
        calls.answered(&third);
        assert_eq!(calls.begin().abandoned, [0_u64; 0]);
    }
}
