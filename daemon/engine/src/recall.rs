//! Taking unused pages back from lanes without their clients' help (PROTOCOLS P3).
//!
//! A round closes the lanes that hold something, issues one barrier for all of them, and
//! takes each that nobody is in; who is in one is waited for, and after 10 ms all beyond
//! its reach is taken. Later visits of [`service`](Engine::service) and
//! [`poll`](Engine::poll) finish what a round has left open.

use crate::Engine;
use crate::client::{Client, Clients};
use crate::id::{ClientId, Now};
use crate::lanes::Lane;
use crate::outside::Outside;
use crate::worker::{Sick, collect};

/// A round that brought nothing makes the next one wait twice as long, up to this.
pub(crate) const MAX_PAUSE: Now = Now::from_millis(160);
/// Time between two rounds under pressure.
const MIN_PAUSE: Now = Now::from_millis(5);

/// Lanes that a round is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that hold something.
    Holding,
    /// Those of them that nobody has used for a while.
    Idle,
    /// All, never to be opened again.
    ToBeShut,
}

/// When lanes may next be emptied for a caller that would fall short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    not_before: Now,
    pause: Now,
}

impl Default for Pressure {
    fn default() -> Pressure {
        Pressure {
            not_before: Now::ZERO,
            pause: MIN_PAUSE,
        }
    }
}

impl Engine {
    /// Starts a round over these clients' lanes that hold something, and takes what can be
    /// taken at once. Returns the pages that came home.
    pub(crate) fn recall(&mut self, ids: &[ClientId], now: Now, outside: &mut dyn Outside) -> u64 {
        self.recall_lanes(ids, Which::Holding, now, outside)
    }

    /// As [`recall`](Self::recall), of these lanes.
    pub(crate) fn recall_lanes(
        &mut self,
        ids: &[ClientId],
        which: Which,
        now: Now,
        outside: &mut dyn Outside,
    ) -> u64 {
        let mut nr_closed = 0;
        let mut sick = Vec::new();
        for &id in ids {
            let Some(client) = self.clients.get_mut(id) else {
                continue;
            };
            match close_lanes(client, which, now) {
                Ok(nr) => nr_closed += nr,
                Err(found) => sick.push((id, found)),
            }
        }
        for (id, sick) in sick {
            self.poison(id, sick, now, outside);
        }
        if nr_closed > 0 {
            outside.barrier();
        }
        self.advance_recalls(ids, now, outside)
    }

    /// Goes on with the rounds under way: takes what can be taken now. Returns the pages
    /// that came home.
    pub(crate) fn advance_recalls(
        &mut self,
        ids: &[ClientId],
        now: Now,
        outside: &mut dyn Outside,
    ) -> u64 {
        ids.iter()
            .map(|&id| self.take_lanes(id, now, outside))
            .sum()
    }

    /// Takes home what one client gave back, and what can be taken from its closed lanes.
    pub(crate) fn take_lanes(&mut self, id: ClientId, now: Now, outside: &mut dyn Outside) -> u64 {
        let Some(client) = self.clients.get_mut(id) else {
            return 0;
        };
        let before = client.nr_misuses;
        let taken = collect(client, &mut self.custody, now);
        self.nr_misuses += client.nr_misuses - before;
        let nr_pages = match taken {
            Ok(nr_pages) => nr_pages,
            Err(sick) => {
                self.poison(id, sick, now, outside);
                0
            }
        };
        self.settle_deferred(now);
        nr_pages
    }

    /// Before a caller falls short of so many pages of these zones: empties the lanes of those that
    /// own more than their share there, if that is not enough of the others, and if that brings
    /// nothing its own. Returns the pages that came home.
    pub(crate) fn relieve(
        &mut self,
        id: ClientId,
        zones: &[usize],
        wanted: u64,
        now: Now,
        outside: &mut dyn Outside,
    ) -> u64 {
        if now < self.pressure.not_before {
            return 0;
        }
        let mut others = self.clients.ids();
        others.retain(|&other| other != id);
        let (greedy, others) = self.by_greed(&others, zones);
        let mut nr_pages = self.recall(&greedy, now, outside);
        if nr_pages < wanted {
            nr_pages += self.recall(&others, now, outside);
        }
        if nr_pages == 0 {
            nr_pages = self.recall(&[id], now, outside);
        }
        let pause = if nr_pages > 0 {
            MIN_PAUSE
        } else {
            self.pressure.pause * 2
        };
        self.pressure = Pressure {
            not_before: now + pause,
            pause: pause.min(MAX_PAUSE),
        };
        nr_pages
    }
}

impl Engine {
    /// Those that own more than their share of one of these zones, and the others.
    pub(crate) fn by_greed(
        &self,
        ids: &[ClientId],
        zones: &[usize],
    ) -> (Vec<ClientId>, Vec<ClientId>) {
        let is_greedy = |id: &ClientId| {
            zones.iter().any(|&at| {
                let managed = self.custody.zones.counts(at).managed;
                let tally = self.custody.owners.tally();
                self.custody.limits.is_greedy(at, *id, managed, tally)
            })
        };
        ids.iter().copied().partition(is_greedy)
    }
}

/// Whether a round over these clients has lanes that it waits for.
pub(crate) fn is_pending(clients: &Clients, ids: &[ClientId]) -> bool {
    let links = ids.iter().filter_map(|&id| clients.get(id)?.link.as_ref());
    links.flat_map(|link| &link.lanes).any(Lane::is_pending)
}

/// Whether an operation in flight keeps a lane of these clients closed.
pub(crate) fn is_stuck(clients: &Clients, ids: &[ClientId]) -> bool {
    let links = ids.iter().filter_map(|&id| clients.get(id)?.link.as_ref());
    links.flat_map(|link| &link.lanes).any(Lane::is_stuck)
}

/// Closes these of a client's open lanes. Returns how many it closed.
pub(crate) fn close_lanes(client: &mut Client, which: Which, now: Now) -> Result<usize, Sick> {
    let Some(link) = &mut client.link else {
        return Ok(0);
    };
    let mut nr_closed = 0;
    for (at, lane) in link.lanes.iter_mut().enumerate() {
        let holds = |lane: &Lane| lane.blocks().map_err(|why| Sick { lane: at, why });
        let is_meant = match which {
            Which::Holding => holds(lane)? > 0,
            Which::Idle => lane.is_idle() && holds(lane)? > 0,
            Which::ToBeShut => true,
        };
        nr_closed += usize::from(is_meant && lane.close(which == Which::ToBeShut, now));
    }
    Ok(nr_closed)
}
