//! Clients that come and go: attach, detach, eviction, poisoning, burial.
//!
//! A hang-up shuts a client's lanes and takes home what lies in them; what it holds stays its
//! own until its pidfd says that it is dead (PROTOCOLS P8). Only then is it buried: its
//! custody swept, its slot free for a next life.

use hugepool_mm::ZoneId;
use hugepool_shm::control::ControlSegment;
use hugepool_shm::lane_daemon::LaneDaemon;
use hugepool_shm::outbox::Outbox;
use hugepool_shm::transit::TransitTable;

use crate::client::{AttachError, AttachSpec, Client, ConnectSpec, Link};
use crate::custody::Custody;
use crate::events::About;
use crate::id::{ClientId, Now, millis};
use crate::lanes::{Gate, Lane};
use crate::ledger_words;
use crate::num;
use crate::outside::{Effect, Outside};
use crate::recall::{Which, close_lanes};
use crate::report::ClientState;
use crate::worker::{Sick, publish_allowance};
use crate::{CallError, Engine};

/// Why a segment was closed, as its client reads it.
const CLOSED_DETACHED: u32 = 1;
const CLOSED_POISONED: u32 = 2;

impl Engine {
    /// Takes a client in that has a fresh segment. It is lent nothing before
    /// [`ready`](Self::ready).
    ///
    /// # Errors
    /// [`AttachError`]: nothing has changed.
    pub fn attach(
        &mut self,
        spec: AttachSpec,
        segment: ControlSegment,
        now: Now,
    ) -> Result<ClientId, AttachError> {
        let client_index = spec.client_index;
        if num::index(client_index) >= hugepool_shm::raw::NR_CLIENTS {
            return Err(AttachError::ClientIndex { client_index });
        }
        let zones = &self.custody.zones;
        let shape = segment.geometry();
        if (shape.nr_sections, shape.nr_pages) != (zones.nr_sections(), zones.nr_pages()) {
            return Err(AttachError::Segment {
                there_sections: shape.nr_sections,
                there_pages: shape.nr_pages,
                sections: zones.nr_sections(),
                pages: zones.nr_pages(),
            });
        }
        if shape.nr_lanes > self.defaults.max_lanes {
            return Err(AttachError::TooManyLanes {
                nr_lanes: shape.nr_lanes,
                max_lanes: self.defaults.max_lanes,
            });
        }
        let secret = spec.secret;
        let id = self.enter(spec, now)?;
        announce_all(&self.custody, &segment);
        let client = self.clients.get_mut(id).expect("it has just been entered");
        let lanes = (0..shape.nr_lanes).filter_map(|at| {
            let kept = self.state.lane(id, at)?;
            LaneDaemon::kept_in(segment.clone(), at, kept)
        });
        client.link = Some(Link {
            lanes: lanes.map(Lane::new).collect(),
            segment,
            client_index,
            secret,
            uses_membarrier: false,
            bounds: crate::demand::NO_BOUNDS,
            bounds_version: 0,
            map_cursor: 0,
            is_told_awake: true,
            is_replay: false,
            nr_fruitless: 0,
        });
        publish_allowance(client, &self.custody);
        self.bounds_version += 1;
        self.refresh_bounds(id);
        self.slow_changed();
        let text = format!("client {id} attaches");
        self.events.note(now, "attach", About::client(id), text);
        Ok(id)
    }

    /// The client has mapped its segment; whether it relies on the daemon's barrier. Its
    /// lanes are in service from now on.
    ///
    /// # Errors
    /// [`CallError::NoSession`], [`CallError::Detached`].
    pub fn ready(&mut self, id: ClientId, uses_membarrier: bool) -> Result<(), CallError> {
        let client = self.clients.get_mut(id).ok_or(CallError::NoSession)?;
        match client.state {
            ClientState::Attaching | ClientState::Attached => client.state = ClientState::Attached,
            ClientState::Detached | ClientState::Poisoned | ClientState::Quarantined => {
                return Err(CallError::Detached);
            }
        }
        if let Some(link) = &mut client.link {
            link.uses_membarrier = uses_membarrier;
        }
        self.slow_changed();
        Ok(())
    }

    /// Takes a session in that has no segment and no token: what it is lent goes home when it
    /// [`disconnect`](Self::disconnect)s.
    ///
    /// # Errors
    /// [`AttachError`]: nothing has changed.
    pub fn connect(&mut self, spec: ConnectSpec, now: Now) -> Result<ClientId, AttachError> {
        let ConnectSpec {
            uid,
            gid,
            pid,
            zones,
        } = spec;
        let name = String::from("(connection)");
        let id = self.enter(
            AttachSpec {
                uid,
                gid,
                pid,
                name,
                client_index: 0,
                secret: [0; 16],
                zones,
            },
            now,
        )?;
        let client = self.clients.get_mut(id).expect("it has just been entered");
        client.state = ClientState::Attached;
        Ok(id)
    }

    /// The connection is closed: its pages go home. Harmless for a session that is not there.
    pub fn disconnect(&mut self, id: ClientId) {
        if self
            .clients
            .get(id)
            .is_some_and(|client| client.link.is_none() && client.state != ClientState::Quarantined)
        {
            self.leave_compactions(id, None);
            self.custody.sweep_home(id);
            self.custody.close(id);
            self.clients.remove(id);
        }
    }

    /// The client hung up: its lanes are shut, what lies in them goes home, its calls are
    /// refused. What it holds stays its own. Harmless when repeated.
    pub fn detach(&mut self, id: ClientId, now: Now, outside: &mut dyn Outside) {
        let Some(client) = self.clients.get(id) else {
            return;
        };
        if matches!(client.state, ClientState::Attaching | ClientState::Attached) {
            let text = format!("client {id} hangs up");
            self.events.note(now, "detach", About::client(id), text);
            self.shut(id, ClientState::Detached, now, outside);
        }
    }

    /// The outbox of a client that attaches, and the zones' words beside it: it may hand pages
    /// over. Returns the first sequence of its slots.
    ///
    /// # Errors
    /// [`CallError::NoSession`].
    pub fn open_post(&mut self, id: ClientId, outbox: Outbox) -> Result<u32, CallError> {
        let client = self.clients.get(id).ok_or(CallError::NoSession)?;
        let link = client.link.as_ref().ok_or(CallError::NoSession)?;
        let zones = (0..self.custody.zones.len()).filter(|&at| client.may_use(at));
        let zones = zones.fold(0, |bits, at| bits | 1 << at);
        let segment = link.segment.clone();
        let first = self.custody.posts.open(id, outbox, segment, zones);
        self.slow_changed();
        Ok(first)
    }

    /// The transit words of a zone, which all of its clients share.
    pub fn set_transit(&mut self, zone: ZoneId, table: TransitTable) {
        self.custody
            .posts
            .set_transit(usize::from(zone.get()), table);
    }

    /// Where the sequences of outboxes begin: a number that no other daemon begins at, so that
    /// tickets of another one name nothing.
    pub fn set_first_sequence(&mut self, first: u32) {
        self.custody.posts.set_first_sequence(first.max(1));
    }

    /// Whether two clients share a zone: only then may one see what the other offers.
    pub fn share_zone(&self, id: ClientId, slot: u16) -> Option<ClientId> {
        let posts = &self.custody.posts;
        let (ours, theirs) = (posts.get(id)?, posts.in_slot(slot)?);
        (ours.zones & theirs.zones != 0).then_some(theirs.client)
    }

    /// The client is dead: what others have taken from it is theirs, all that is its own goes
    /// home, its slot is free. Returns the pages that came home. Harmless when repeated.
    pub fn bury(&mut self, id: ClientId, now: Now) -> u64 {
        if self
            .clients
            .get(id)
            .is_none_or(|client| client.link.is_none())
        {
            return 0;
        }
        self.leave_compactions(id, None);
        self.wind_up(id, now);
        let (nr_pages, nr_waiting) = self.lay_to_rest(id, now);
        self.nr_reclaimed_pages += nr_pages;
        self.bounds_version += 1;
        self.slow_changed();
        self.effects.push(Effect::Forget { client: id });
        let waiting = match nr_waiting {
            0 => String::new(),
            nr => format!(", {nr} wait in quarantine"),
        };
        let text = format!("client {id} is dead, {nr_pages} pages came home{waiting}");
        self.events.note(now, "bury", About::client(id), text);
        nr_pages
    }

    /// Settles all that a client which is gone may have part in (PROTOCOLS P5.5).
    fn wind_up(&mut self, id: ClientId, now: Now) {
        if self.custody.posts.get(id).is_none() {
            return;
        }
        for client in self.clients.ids() {
            self.settle_rings(client, now);
        }
        self.settle_deferred(now);
        self.custody.wind_up(id, millis(now));
    }

    /// Lets go of clients that hung up and own nothing any more: a process that lives on may
    /// come and go as often as it likes and keeps no slot.
    pub(crate) fn retire_detached(&mut self, now: Now) {
        let is_empty = |client: &&Client| {
            let link = client.link.as_ref();
            client.state == ClientState::Detached
                && link
                    .is_some_and(|link| !link.lanes.iter().any(|l| l.is_pending() || l.is_stuck()))
                && self
                    .custody
                    .owners
                    .tally()
                    .client(client.id)
                    .is_none_or(|tally| tally.pages == 0)
                && !self.custody.posts.holds_any(client.id)
                && !self.custody.shares.holds_any(client.id)
        };
        let ids: Vec<ClientId> = self
            .clients
            .iter()
            .filter(is_empty)
            .map(|client| client.id)
            .collect();
        for id in ids {
            self.wind_up(id, now);
            self.custody.close(id);
            self.clients.remove(id);
            self.bounds_version += 1;
            self.slow_changed();
            self.effects.push(Effect::Forget { client: id });
            let text = format!("client {id} had hung up and owns nothing any more");
            self.events.note(now, "retire", About::client(id), text);
        }
    }

    /// Gives a client up whose words made no sense: the lane is never touched again, the
    /// others are shut.
    pub(crate) fn poison(&mut self, id: ClientId, sick: Sick, now: Now, outside: &mut dyn Outside) {
        let Some(client) = self.clients.get_mut(id) else {
            return;
        };
        let lane = client
            .link
            .as_mut()
            .and_then(|link| link.lanes.get_mut(sick.lane));
        if let Some(lane) = lane {
            lane.gate = Gate::Poisoned;
        }
        client.nr_misuses += 1;
        self.nr_misuses += 1;
        let text = format!("client {id} is poisoned, lane {}: {}", sick.lane, sick.why);
        self.events.note(now, "poison", About::client(id), text);
        let was_in_service = client.is_in_service();
        self.shut(id, ClientState::Poisoned, now, outside);
        if was_in_service {
            self.effects.push(Effect::Close { client: id });
        }
    }

    /// Shuts the client's lanes for good and takes what lies in them.
    pub(crate) fn shut(
        &mut self,
        id: ClientId,
        state: ClientState,
        now: Now,
        outside: &mut dyn Outside,
    ) -> u64 {
        let Some(client) = self.clients.get_mut(id) else {
            return 0;
        };
        client.state = state;
        client.ledger.clear();
        ledger_words::forget(&self.state.ledger(id));
        self.slow_version += 1;
        self.leave_compactions(id, None);
        let Some(client) = self.clients.get_mut(id) else {
            return 0;
        };
        let Some(link) = &client.link else { return 0 };
        link.segment.close(match state {
            ClientState::Poisoned => CLOSED_POISONED,
            _ => CLOSED_DETACHED,
        });
        if link.segment.raise_wake() {
            outside.wake(id);
        }
        // Closing all looks at no cursor, so it finds no lane sick.
        let nr_closed = close_lanes(client, Which::ToBeShut, now).unwrap_or(0);
        if nr_closed > 0 {
            outside.barrier();
        }
        self.take_lanes(id, now, outside)
    }

    fn enter(&mut self, spec: AttachSpec, now: Now) -> Result<ClientId, AttachError> {
        let nr_zones = self.custody.zones.len();
        for (at, &zone) in spec.zones.iter().enumerate() {
            if usize::from(zone.get()) >= nr_zones {
                return Err(AttachError::NoSuchZone { zone });
            }
            if spec.zones[..at].contains(&zone) {
                return Err(AttachError::ZoneTwice { zone });
            }
        }
        let id = self.clients.next_id()?;
        self.custody.admit(spec.uid, &spec.zones)?;
        let mut client = Client::new(id, spec, &self.custody.zones, now);
        let allotment = *self.custody.limits.each();
        let zones = client.zone_bits();
        self.custody.limits.open(id, client.uid, zones, allotment);
        client.pcp = self.pcp;
        self.custody.owners.open(id);
        ledger_words::forget(&self.state.ledger(id));
        self.clients.insert(client);
        Ok(id)
    }
}

/// Tells a new client which sections are there.
pub(crate) fn announce_all(custody: &Custody, segment: &ControlSegment) {
    for (_, zone, _) in custody.zones.iter() {
        for section in zone.sections() {
            let incarnation = custody.zones.announced(section.id);
            segment.announce(section.id.get(), incarnation);
        }
    }
    segment.raise_section_epoch(custody.zones.epoch());
}
