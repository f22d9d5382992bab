//! Clients of a daemon before, and their lanes: taken over as they are, and looked at once before
//! anything is lent.

use hugepool_shm::lane_daemon::LaneDaemon;

use crate::Engine;
use crate::client::{Client, FixedPcp, Link};
use crate::id::{ClientId, Now, millis};
use crate::lanes::{Gate, Lane};
use crate::late::Key;
use crate::ledger_words;
use crate::outside::Outside;
use crate::reclaim::announce_all;
use crate::recover::{RecoverError, Recovered, Survivor};
use crate::report::ClientState;
use crate::saved::{Saved, SavedClient};
use crate::worker::publish_allowance;

impl Engine {
    /// Puts the clients back into their slots; their accounts are empty yet.
    pub(crate) fn enter_survivors(
        &mut self,
        saved: &Saved,
        survivors: Vec<Survivor>,
        now: Now,
    ) -> Result<(), RecoverError> {
        self.clients.set_incarnations(saved.incarnations.clone());
        for mut survivor in survivors {
            let id = survivor.client;
            let is_it = |client: &&SavedClient| {
                client.id() == id && client.state() != ClientState::Quarantined
            };
            let Some(client) = saved.clients.iter().find(is_it) else {
                continue;
            };
            let shape = survivor.segment.geometry();
            let zones = &self.custody.zones;
            let is_right = (shape.nr_lanes, shape.nr_sections, shape.nr_pages)
                == (client.nr_lanes, zones.nr_sections(), zones.nr_pages());
            if !is_right {
                return Err(RecoverError::Segment { client: id });
            }
            let outbox = survivor.outbox.take().filter(|_| !survivor.is_lost);
            let segment = survivor.segment.clone();
            let entered = self.survivor(client, survivor, now);
            self.custody.owners.open(id);
            let allotment = client.allotment.allotment();
            let zones = entered.zone_bits();
            self.custody.limits.open(id, entered.uid, zones, allotment);
            self.clients.insert(entered);
            if let Some(outbox) = outbox.filter(|_| client.first_sequence != 0) {
                let zones = client.zones.iter().fold(0, |bits, at| bits | 1 << at);
                // What was settled is behind its blocks' generations, and so not settled again.
                self.custody.posts.open(id, outbox, segment, zones);
            }
        }
        if self.has_quarantine() {
            for client in saved.clients() {
                if self.clients.get(client.id()).is_none() {
                    self.enter_dead(client, now);
                }
            }
        }
        Ok(())
    }

    /// One that has ended: pages of it may have to wait.
    fn enter_dead(&mut self, saved: &SavedClient, now: Now) {
        let id = saved.id();
        let attached_at = Now::from_millis(saved.attached_at_ms).min(now);
        let mut client = Client::new(id, saved.spec(), &self.custody.zones, attached_at);
        client.died_at = match saved.state() {
            ClientState::Quarantined => Now::from_millis(saved.died_at_ms).min(now),
            _ => now,
        };
        client.state = ClientState::Quarantined;
        self.custody.owners.open(id);
        let allotment = saved.allotment.allotment();
        self.custody.limits.open(id, client.uid, 0, allotment);
        self.clients.insert(client);
    }

    fn survivor(&self, saved: &SavedClient, survivor: Survivor, now: Now) -> Client {
        let id = saved.id();
        let state = match saved.state() {
            _ if survivor.is_lost => ClientState::Poisoned,
            // It may have said that it is ready, and been heard by the daemon before alone. It is
            // lent nothing but what it says it has mapped.
            ClientState::Attaching => ClientState::Attached,
            state => state,
        };
        let fixed = |pages: u32| Some(pages).filter(|&pages| pages > 0);
        let attached_at = Now::from_millis(saved.attached_at_ms).min(now);
        let mut client = Client::new(id, saved.spec(), &self.custody.zones, attached_at);
        client.state = state;
        client.nr_misuses = saved.nr_misuses;
        client.pcp = FixedPcp {
            batch: fixed(saved.batch),
            high: fixed(saved.high),
        };
        let is_shut = matches!(state, ClientState::Detached | ClientState::Poisoned);
        if !is_shut {
            client.ledger = ledger_words::find(&self.state.ledger(id), id.incarnation);
        }
        let segment = survivor.segment;
        let lanes = (0..saved.nr_lanes).filter_map(|at| {
            let kept = self.state.lane(id, at)?;
            let daemon = if state == ClientState::Poisoned {
                // Not looked at again, and so not told anything.
                LaneDaemon::new(segment.clone(), at)?
            } else {
                LaneDaemon::resume(segment.clone(), at, kept)?
            };
            let mut lane = Lane::resumed(daemon, is_shut, now);
            if state == ClientState::Poisoned {
                lane.gate = Gate::Poisoned;
            }
            Some(lane)
        });
        client.link = Some(Link {
            lanes: lanes.collect(),
            segment,
            client_index: saved.client_index,
            secret: saved.secret,
            uses_membarrier: saved.uses_membarrier,
            bounds: crate::demand::NO_BOUNDS,
            bounds_version: 0,
            map_cursor: 0,
            is_told_awake: false,
            is_replay: true,
            nr_fruitless: 0,
        });
        client
    }

    /// What is kept of parcels and shared pages, taken in again before any ring is looked at.
    pub(crate) fn recover_parcels(&mut self, now: Now) {
        let now_ms = millis(now);
        let (mut sealed, mut claimed) = (Vec::new(), Vec::new());
        for (key, late) in self.custody.posts.lates.find() {
            let is_known = self.clients.get(late.taker).is_some();
            match (key, late.place(), late.words.first()) {
                (Key::Sealed, Some(place), Some(&word)) if is_known => {
                    sealed.push((late.taker, word, place));
                }
                (Key::Ticket(ticket), _, Some(&word)) if is_known => {
                    if late.is_shared {
                        claimed.push((late.taker, word));
                    }
                    self.custody.posts.lates.put_back(ticket, late);
                }
                (_, place, _) => self.custody.posts.lates.let_go(place),
            }
        }
        let unfinished = self.custody.unfinished_parcels();
        self.custody.recover_shares(sealed, &claimed, now_ms);
        self.custody.finish_parcels(unfinished, now_ms);
        self.custody.drop_strays_of_shares();
        self.custody.deferred.find();
    }

    /// Tells the clients of the sections again, and looks at all that they gave back: what the
    /// daemon before had settled is known as such, once. Lanes found closed are taken.
    pub(crate) fn resume_clients(
        &mut self,
        now: Now,
        outside: &mut dyn Outside,
        found: &mut Recovered,
    ) {
        self.custody.zones.set_epoch(self.state.section_epoch());
        let epoch = self.custody.zones.raise_epoch();
        self.state.keep_section_epoch(epoch);
        self.bounds_version += 1;
        let ids = self.clients.ids();
        let is_poisoned = |client: &Client| client.state == ClientState::Poisoned;
        for &id in &ids {
            found.nr_clients += 1;
            let Some(client) = self.clients.get(id).filter(|client| !is_poisoned(client)) else {
                continue;
            };
            if let Some(link) = &client.link {
                announce_all(&self.custody, &link.segment);
            }
            publish_allowance(client, &self.custody);
        }
        // Lanes may have been found closed, of which their clients do not know yet.
        outside.barrier();
        for &id in &ids {
            self.replay(id, now, outside);
        }
        self.settle_deferred_of(now, true);
    }

    fn replay(&mut self, id: ClientId, now: Now, outside: &mut dyn Outside) {
        let is_shut = self
            .clients
            .get(id)
            .is_some_and(|client| client.state == ClientState::Detached);
        if is_shut {
            // It may have been cut short in the middle.
            self.shut(id, ClientState::Detached, now, outside);
        }
        // A whole free map may take several looks.
        let nr_looks = self.nr_map_looks();
        for _ in 0..nr_looks {
            let nr_home = self.take_lanes(id, now, outside);
            let has_more = self.clients.get(id).is_some_and(|client| {
                let link = client.link.as_ref();
                link.is_some_and(|link| link.segment.free_map().may_have_any())
            });
            if nr_home == 0 && !has_more {
                break;
            }
        }
        let Some(link) = self.clients.get_mut(id).and_then(|c| c.link.as_mut()) else {
            return;
        };
        // A lane that somebody is still in is taken later, and may hold what is settled already.
        link.is_replay = link
            .lanes
            .iter()
            .any(|lane| lane.is_pending() || lane.is_stuck());
    }

    /// So many looks see all of a free map.
    fn nr_map_looks(&self) -> u64 {
        let nr_words = self.custody.zones.nr_pages() / 64;
        (nr_words / 512 + 2).min(64)
    }
}
