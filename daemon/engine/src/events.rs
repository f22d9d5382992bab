//! The last things that happened, numbered without gaps.
//!
//! A ring of bounded length: who asks too late is told how many are lost. No event
//! needs a listener, and none waits for one.

use std::collections::VecDeque;

use hugepool_mm::{SectionId, ZoneId};

use crate::id::{ClientId, Now, millis};
use crate::num;
use crate::report::{Event, EventBatch};

/// Events kept.
const KEPT: usize = 1024;

/// The ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    last_seq: u64,
    kept: VecDeque<Event>,
}

/// What an event is about, where it is about something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About {
    pub section: Option<SectionId>,
    pub client: Option<ClientId>,
    pub zone: Option<ZoneId>,
}

impl About {
    pub fn client(client: ClientId) -> About {
        About {
            client: Some(client),
            ..About::default()
        }
    }

    pub fn section(section: SectionId, zone: ZoneId) -> About {
        About {
            section: Some(section),
            zone: Some(zone),
            client: None,
        }
    }
}

impl Events {
    /// Notes that something happened.
    pub fn note(&mut self, now: Now, kind: &'static str, about: About, text: String) {
        self.last_seq += 1;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Event {
            seq: self.last_seq,
            at_ms: millis(now),
            kind,
            text,
            section: about.section,
            client: about.client,
            zone: about.zone,
        });
    }

    /// Number of the last event, 0 before the first.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Those kept that came after `after`.
    pub fn since(&self, after: u64) -> EventBatch {
        let first_kept = self.last_seq + 1 - num::count(self.kept.len());
        let nr_lost = first_kept.saturating_sub(after.saturating_add(1));
        let events = self
            .kept
            .iter()
            .filter(|event| event.seq > after)
            .cloned()
            .collect();
        EventBatch { events, nr_lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gaps_and_losses_are_told() {
        let mut events = Events::default();
        for _ in 0..KEPT + 10 {
            events.note(Now::ZERO, "test", About::default(), String::new());
        }
        let batch = events.since(3);
        assert_eq!(batch.nr_lost, 7);
        assert_eq!(batch.events.len(), KEPT);
        assert_eq!(batch.events[0].seq, 11);
        assert_eq!(events.since(events.last_seq()), EventBatch::default());
        assert_eq!(events.since(events.last_seq() - 1).events.len(), 1);
    }
}
