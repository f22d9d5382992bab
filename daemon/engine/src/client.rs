//! Who may hold pages: clients with a segment, and connections without one.
//!
//! A client's record, and the table of all of them by slot. What lies in its lanes is
//! [`lanes`](crate::lanes)' affair, what it owns the owner table's.

use hugepool_mm::{Mark, Migratetype, ZoneId, ZoneKind};
use hugepool_shm::control::ControlSegment;
use thiserror::Error;

use crate::demand::AllBounds;
use crate::id::{ClientId, Now};
use crate::lanes::Lane;
use crate::ledger::Ledger;
use crate::lending::Borrower;
use crate::misuse::Misuse;
use crate::nodes;
use crate::report::ClientState;
use crate::zones::Zones;

/// What the attach socket learnt of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachSpec {
    /// Its user, by peer credentials.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process.
    pub pid: u32,
    /// The name it gave itself.
    pub name: String,
    /// Its index among the clients of its process, 0..8: it goes into page words.
    pub client_index: u32,
    /// What its calls are known by; kept for a daemon that comes after, else not looked at.
    pub secret: [u8; 16],
    /// The zones it may use, in the order of its zonelist.
    pub zones: Vec<ZoneId>,
}

/// What a connection without a segment is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectSpec {
    /// Its user, by peer credentials.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process.
    pub pid: u32,
    /// The zones it may use, in the order of its zonelist.
    pub zones: Vec<ZoneId>,
}

/// Why a client was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AttachError {
    /// Used up.
    #[error("{max_clients} clients are attached, no more are taken")]
    TooManyClients {
        /// The most.
        max_clients: u16,
    },
    /// A bad value.
    #[error("the client's index in its process is below 8, not {client_index}")]
    ClientIndex {
        /// As asked.
        client_index: u32,
    },
    /// A bad value.
    #[error("the segment has {nr_lanes} lanes, at most {max_lanes} are given")]
    TooManyLanes {
        /// In the segment.
        nr_lanes: u32,
        /// The most.
        max_lanes: u32,
    },
    /// Used up: what it would be sure of is not there.
    #[error("the floors in zone {zone} would be {floors_pages} pages, it can keep {room_pages}")]
    Floors {
        /// The zone.
        zone: ZoneId,
        /// All floors together, with its own.
        floors_pages: u64,
        /// What the zone can keep.
        room_pages: u64,
    },
    /// A bad value: the segment was made for other zones.
    #[error(
        "the segment has {there_sections} sections and {there_pages} pages, {sections} and {pages} are needed"
    )]
    Segment {
        /// In the segment.
        there_sections: u32,
        /// In the segment.
        there_pages: u64,
        /// Sections of all zones.
        sections: u32,
        /// Pages of all zones.
        pages: u64,
    },
    /// A bad value.
    #[error("there is no zone {zone}")]
    NoSuchZone {
        /// As asked.
        zone: ZoneId,
    },
    /// A bad value.
    #[error("zone {zone} is named twice")]
    ZoneTwice {
        /// As asked.
        zone: ZoneId,
    },
}

/// batch and high as set by hand, in pages; `None` follows demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FixedPcp {
    pub batch: Option<u32>,
    pub high: Option<u32>,
}

/// What a client shares with the daemon.
#[derive(Debug)]
pub(crate) struct Link {
    pub segment: ControlSegment,
    pub lanes: Vec<Lane>,
    /// Goes into the page words lent to it.
    pub client_index: u32,
    pub uses_membarrier: bool,
    /// As it came with the attachment.
    pub secret: [u8; 16],
    /// What bounds its lanes' classes, as computed at `bounds_version`.
    pub bounds: AllBounds,
    pub bounds_version: u64,
    /// Where the next look at the free map starts.
    pub map_cursor: usize,
    /// The client was told that the daemon is awake, and must be told when it is not.
    pub is_told_awake: bool,
    /// Words may be met that a daemon before has settled: until all have been looked at once.
    pub is_replay: bool,
    /// Visits in a row that moved nothing: after some, what looks like work there (a want
    /// that nothing can fill, a mark without a bit) does not keep the daemon from sleeping.
    pub nr_fruitless: u32,
}

/// A client or a connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub id: ClientId,
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub name: String,
    pub state: ClientState,
    pub attached_at: Now,
    /// Of one that is quarantined.
    pub died_at: Now,
    pub ledger: Ledger,
    pub nr_misuses: u64,
    pub last_misuse: Option<Misuse>,
    /// Pages of blocks that were moved under it.
    pub nr_moved_pages: u64,
    /// Pages of blocks that were taken from it.
    pub nr_evicted_pages: u64,
    /// batch and high of its lanes, as set by hand.
    pub pcp: FixedPcp,
    /// `None` for a connection.
    pub link: Option<Link>,
    /// Its zones, in the order of its zonelist.
    pub zones: Vec<ZoneId>,
    /// Zone indexes, best first, for requests that any zone may serve.
    movable_zones: Vec<usize>,
    /// Those of them that serve other requests too.
    normal_zones: Vec<usize>,
}

impl Client {
    pub fn new(id: ClientId, spec: AttachSpec, zones: &Zones, now: Now) -> Client {
        let all: Vec<usize> = spec
            .zones
            .iter()
            .map(|zone| usize::from(zone.get()))
            .collect();
        let movable_zones = nodes::movable_first(&all, zones);
        let mut normal_zones = all;
        normal_zones.retain(|&at| zones.settings(at).kind == ZoneKind::Normal);
        Client {
            id,
            pid: spec.pid,
            uid: spec.uid,
            gid: spec.gid,
            name: spec.name,
            state: ClientState::Attaching,
            attached_at: now,
            died_at: Now::ZERO,
            ledger: Ledger::default(),
            nr_misuses: 0,
            last_misuse: None,
            nr_moved_pages: 0,
            nr_evicted_pages: 0,
            pcp: FixedPcp::default(),
            link: None,
            zones: spec.zones,
            movable_zones,
            normal_zones,
        }
    }

    /// Whether pages may be lent to it.
    pub fn is_in_service(&self) -> bool {
        self.state == ClientState::Attached
    }

    /// Whether the zone is open to it.
    pub fn may_use(&self, zone: usize) -> bool {
        self.movable_zones.contains(&zone)
    }

    /// Bit per zone that is open to it.
    pub fn zone_bits(&self) -> u32 {
        self.movable_zones.iter().fold(0, |bits, at| bits | 1 << at)
    }

    /// Where its requests of a type go, best first.
    pub fn zonelist(&self, migratetype: Migratetype) -> &[usize] {
        match migratetype {
            Migratetype::Movable => &self.movable_zones,
            Migratetype::Unmovable | Migratetype::Reclaimable => &self.normal_zones,
        }
    }

    /// It as a borrower from these zones.
    pub fn borrower<'a>(&'a self, zonelist: &'a [usize]) -> Borrower<'a> {
        Borrower {
            client: self.id,
            zonelist,
            segment: self.link.as_ref().map(|link| &link.segment),
            mark: Mark::Min,
        }
    }

    /// Counts a wrong claim.
    pub fn note_misuse(&mut self, misuse: Misuse) {
        self.nr_misuses += 1;
        self.last_misuse = Some(misuse);
    }
}

/// All clients and connections, by slot.
#[derive(Debug)]
pub(crate) struct Clients {
    slots: Vec<Option<Client>>,
    /// Of each slot: its last incarnation.
    incarnations: Vec<u16>,
    max_clients: u16,
}

impl Clients {
    pub fn new(max_clients: u16) -> Clients {
        // Slot 0 is the daemon.
        Clients {
            slots: vec![None],
            incarnations: vec![0],
            max_clients,
        }
    }

    /// The name that the next client gets: the lowest free slot, in its next life.
    pub fn next_id(&self) -> Result<ClientId, AttachError> {
        let taken = self.slots.iter().flatten().count();
        if taken >= usize::from(self.max_clients) {
            return Err(AttachError::TooManyClients {
                max_clients: self.max_clients,
            });
        }
        let free = self.slots.iter().skip(1).position(Option::is_none);
        let at = free.map_or(self.slots.len(), |at| at + 1);
        let Ok(slot) = u16::try_from(at) else {
            return Err(AttachError::TooManyClients {
                max_clients: self.max_clients,
            });
        };
        // 0 is no incarnation.
        let last = self.incarnations.get(at).copied().unwrap_or(0);
        Ok(ClientId {
            slot,
            incarnation: last.checked_add(1).unwrap_or(1),
        })
    }

    /// The last incarnation of each slot.
    pub fn incarnations(&self) -> &[u16] {
        &self.incarnations
    }

    /// The same, as a daemon before left them; nobody is in a slot yet.
    pub fn set_incarnations(&mut self, incarnations: Vec<u16>) {
        self.slots = incarnations.iter().map(|_| None).collect();
        self.incarnations = incarnations;
    }

    /// Takes a client in under the name it was given.
    pub fn insert(&mut self, client: Client) {
        let at = usize::from(client.id.slot);
        while at >= self.slots.len() {
            self.slots.push(None);
            self.incarnations.push(0);
        }
        self.incarnations[at] = client.id.incarnation;
        self.slots[at] = Some(client);
    }

    /// Forgets a client.
    pub fn remove(&mut self, id: ClientId) -> Option<Client> {
        self.get(id)?;
        self.slots[usize::from(id.slot)].take()
    }

    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.in_slot(id.slot).filter(|client| client.id == id)
    }

    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        let client = self.slots.get_mut(usize::from(id.slot))?.as_mut();
        client.filter(|client| client.id == id)
    }

    /// Whoever is in the slot.
    pub fn in_slot(&self, slot: u16) -> Option<&Client> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    /// All, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.slots.iter().flatten()
    }

    /// All, by slot, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.slots.iter_mut().flatten()
    }

    /// Their names, by slot.
    pub fn ids(&self) -> Vec<ClientId> {
        self.iter().map(|client| client.id).collect()
    }
}
