//! What changes slowly, as one archive: settings, clients, what backs the sections.
//!
//! With the words ([`state`](crate::state)) it is all that a daemon needs that comes after. Saved
//! when it has changed, before anything else is done that builds on it. Read back, its shape is
//! validated first and then its meaning; only what passed both is believed.

use hugepool_mm::{Geometry, Order, SectionId, ZoneId, ZoneKind};
use rkyv::rancor::Failure;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use thiserror::Error;

use crate::Engine;
use crate::client::{AttachSpec, FixedPcp};
use crate::config::{Defaults, EngineConfig, ZoneSettings};
use crate::id::{ClientId, millis};
use crate::limits::{Allotment, Limit};
use crate::num;
use crate::quarantine::Quarantine;
use crate::report::{Backing, ClientState, OperationKind};
use crate::state::StateShape;

/// What was saved.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Saved {
    page_shift: u8,
    pageblock_order: u8,
    max_order: u8,
    section_order: u8,
    max_clients: u16,
    max_lanes: u32,
    zones: Vec<SavedZone>,
    /// Different backings of sections.
    backings: Vec<SavedBacking>,
    /// First section, how many, and which backing they have.
    backed: Vec<(u32, u32, u32)>,
    /// Those with a segment.
    pub(crate) clients: Vec<SavedClient>,
    pub(crate) incarnations: Vec<u16>,
    pub(crate) batch: u32,
    pub(crate) high: u32,
    pub(crate) each: SavedAllotment,
    pub(crate) users: Vec<(u32, SavedAllotment)>,
    pub(crate) last_operation: u64,
    /// Where sequences of parcels begin, and where they go on in each client slot.
    pub(crate) first_sequence: u32,
    pub(crate) sequences: Vec<u32>,
    /// Number and verb of those that run on sections, and the sections.
    pub(crate) operations: Vec<(u64, u8, Vec<u32>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
struct SavedZone {
    name: String,
    is_movable: bool,
    node: i32,
    reserve_pages: u64,
    ceiling_pages: Option<u64>,
    floor_pages: u64,
    /// Milliseconds; `u64::MAX`: until it is released.
    quarantine_ms: u64,
}

/// A ceiling over all zones; by zone floor and ceiling.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct SavedAllotment {
    ceiling_pages: Option<u64>,
    zones: Vec<(u64, Option<u64>)>,
}

impl SavedAllotment {
    fn of(allotment: &Allotment) -> SavedAllotment {
        let zones = allotment.zones.iter();
        SavedAllotment {
            ceiling_pages: allotment.ceiling_pages,
            zones: zones
                .map(|limit| (limit.floor_pages, limit.ceiling_pages))
                .collect(),
        }
    }

    pub(crate) fn allotment(&self) -> Allotment {
        let mut allotment = Allotment {
            ceiling_pages: self.ceiling_pages,
            ..Allotment::default()
        };
        for (limit, &(floor_pages, ceiling_pages)) in allotment.zones.iter_mut().zip(&self.zones) {
            *limit = Limit {
                floor_pages,
                ceiling_pages,
            };
        }
        allotment
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
struct SavedBacking {
    name: String,
    node: i32,
    not_taken: Vec<String>,
}

/// A client as it was saved.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct SavedClient {
    slot: u16,
    incarnation: u16,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The name it gave itself.
    pub name: String,
    /// As it came with the attachment.
    pub secret: [u8; 16],
    /// Lanes of its segment.
    pub nr_lanes: u32,
    pub(crate) client_index: u32,
    /// Of its outbox's slots.
    pub first_sequence: u32,
    pub(crate) uses_membarrier: bool,
    /// As `ClientState`, in the order of its variants.
    state: u8,
    pub(crate) attached_at_ms: u64,
    /// Of one that is quarantined.
    pub(crate) died_at_ms: u64,
    pub(crate) allotment: SavedAllotment,
    pub(crate) batch: u32,
    pub(crate) high: u32,
    pub(crate) nr_misuses: u64,
    pub(crate) zones: Vec<u8>,
}

/// Why bytes are nothing that was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotSaved {
    /// No archive of this shape.
    #[error("the saved state is no archive of this version")]
    Shape,
    /// It cannot mean anything.
    #[error("the saved state makes no sense: {what}")]
    Meaning {
        /// What does not.
        what: &'static str,
    },
    /// It could not be written.
    #[error("the state could not be saved")]
    Write,
}

impl SavedClient {
    /// Its name in the engine.
    pub fn id(&self) -> ClientId {
        ClientId {
            slot: self.slot,
            incarnation: self.incarnation,
        }
    }

    /// What it was taken in with.
    pub(crate) fn spec(&self) -> AttachSpec {
        AttachSpec {
            uid: self.uid,
            gid: self.gid,
            pid: self.pid,
            name: self.name.clone(),
            client_index: self.client_index,
            secret: self.secret,
            zones: self.zones().collect(),
        }
    }

    /// The zones it may use, in the order of its zonelist.
    pub fn zones(&self) -> impl Iterator<Item = ZoneId> + '_ {
        self.zones.iter().copied().map(ZoneId::new)
    }

    pub(crate) fn state(&self) -> ClientState {
        match self.state {
            0 => ClientState::Attaching,
            1 => ClientState::Attached,
            2 => ClientState::Detached,
            3 => ClientState::Poisoned,
            _ => ClientState::Quarantined,
        }
    }

    /// Whether its lanes are in service, or may still come to be.
    pub fn is_attached(&self) -> bool {
        matches!(self.state(), ClientState::Attaching | ClientState::Attached)
    }
}

impl Saved {
    /// The bytes of an archive.
    ///
    /// # Errors
    /// [`NotSaved::Write`].
    pub fn encode(&self) -> Result<Vec<u8>, NotSaved> {
        let bytes = rkyv::to_bytes::<Failure>(self).map_err(|_| NotSaved::Write)?;
        Ok(bytes.to_vec())
    }

    /// What was saved, if it can mean something.
    ///
    /// # Errors
    /// [`NotSaved`].
    pub fn decode(bytes: &[u8]) -> Result<Saved, NotSaved> {
        let mut aligned: AlignedVec<16> = AlignedVec::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        let saved = rkyv::from_bytes::<Saved, Failure>(&aligned).map_err(|_| NotSaved::Shape)?;
        saved.check().map_err(|what| NotSaved::Meaning { what })?;
        Ok(saved)
    }

    fn check(&self) -> Result<(), &'static str> {
        self.geometry().ok_or("the sizes")?;
        let nr_sections = self.nr_sections().ok_or("the reserves of the zones")?;
        if self.zones.is_empty() || self.zones.len() > hugepool_shm::raw::NR_ZONES {
            return Err("the number of zones");
        }
        let known = u32::try_from(self.backings.len()).unwrap_or(u32::MAX);
        for &(first, nr, backing) in &self.backed {
            let end = u64::from(first) + u64::from(nr);
            if end > nr_sections || backing >= known {
                return Err("the backings");
            }
        }
        let users = self.users.iter().map(|(_, user)| user);
        let clients = self.clients.iter().map(|client| &client.allotment);
        let is_sane = |allotment: &SavedAllotment| {
            let mut floors = allotment.zones.iter().map(|&(floor, _)| floor);
            floors.all(|floor| floor <= 1 << 32)
        };
        if !users.chain(clients).chain([&self.each]).all(is_sane) {
            return Err("the floors");
        }
        let nr_slots = self.incarnations.len();
        if nr_slots > usize::from(self.max_clients) + 1 {
            return Err("the number of slots");
        }
        let mut last = 0;
        for client in &self.clients {
            let is_placed = client.slot > last
                && self.incarnations.get(usize::from(client.slot)) == Some(&client.incarnation);
            let mut zones = client.zones.clone();
            zones.sort_unstable();
            zones.dedup();
            let is_zoned = zones.len() == client.zones.len()
                && zones.iter().all(|&at| usize::from(at) < self.zones.len());
            let is_dead = client.state() == ClientState::Quarantined;
            let is_whole = (is_dead || (1..=self.max_lanes).contains(&client.nr_lanes))
                && num::index(client.client_index) < hugepool_shm::raw::NR_CLIENTS
                && client.state <= 4;
            if !is_placed || !is_zoned || !is_whole {
                return Err("a client");
            }
            last = client.slot;
        }
        Ok(())
    }

    /// Those that were attached, and those that had hung up and lived.
    pub fn clients(&self) -> &[SavedClient] {
        &self.clients
    }

    fn geometry(&self) -> Option<Geometry> {
        Geometry::new(
            self.page_shift,
            self.pageblock_order,
            self.max_order,
            self.section_order,
        )
        .ok()
    }

    fn nr_sections(&self) -> Option<u64> {
        let mut pages = 0u64;
        for zone in &self.zones {
            let is_whole = zone.reserve_pages.trailing_zeros() >= u32::from(self.section_order);
            pages = pages.checked_add(zone.reserve_pages)?;
            if !is_whole || pages > 1 << 32 {
                return None;
            }
        }
        Some(pages >> self.section_order)
    }

    /// The settings that the words were made for; what may be set otherwise is as in `defaults`.
    pub fn config(&self, defaults: Defaults) -> EngineConfig {
        let zone = |zone: &SavedZone| ZoneSettings {
            name: zone.name.clone(),
            kind: if zone.is_movable {
                ZoneKind::Movable
            } else {
                ZoneKind::Normal
            },
            node: zone.node,
            reserve_pages: zone.reserve_pages,
            ceiling_pages: zone.ceiling_pages,
            floor_pages: zone.floor_pages,
            quarantine: match zone.quarantine_ms {
                0 => Quarantine::None,
                u64::MAX => Quarantine::UntilReleased,
                ms => Quarantine::For(core::time::Duration::from_millis(ms)),
            },
        };
        EngineConfig {
            geometry: self.geometry().expect("decode has checked the sizes"),
            zones: self.zones.iter().map(zone).collect(),
            defaults: Defaults {
                client_ceiling_pages: self.each.ceiling_pages,
                max_clients: self.max_clients,
                max_lanes: self.max_lanes,
                ..defaults
            },
        }
    }

    /// What decides the lengths of the words.
    pub fn shape(&self) -> StateShape {
        StateShape::of(&self.config(Defaults::default()))
    }

    /// What each section is made of, as it was saved.
    pub fn backings(&self) -> impl Iterator<Item = (SectionId, Backing)> + '_ {
        self.backed.iter().flat_map(|&(first, nr, backing)| {
            let saved = &self.backings[num::index(backing)];
            (first..first + nr).map(|section| {
                let backing = Backing {
                    name: saved.name.clone(),
                    node: saved.node,
                    not_taken: saved.not_taken.clone(),
                };
                (SectionId::new(section), backing)
            })
        })
    }
}

impl Engine {
    /// What a daemon that comes after must know beside the words.
    pub fn save(&self) -> Saved {
        let zones = &self.custody.zones;
        let geometry = zones.geometry();
        let order = |order: Order| order.get();
        let mut saved = Saved {
            page_shift: geometry.page_shift(),
            pageblock_order: order(geometry.pageblock_order()),
            max_order: order(geometry.max_order()),
            section_order: geometry.section_order(),
            max_clients: self.defaults.max_clients,
            max_lanes: self.defaults.max_lanes,
            zones: Vec::new(),
            backings: Vec::new(),
            backed: Vec::new(),
            clients: Vec::new(),
            incarnations: self.clients.incarnations().to_vec(),
            batch: self.pcp.batch.unwrap_or(0),
            high: self.pcp.high.unwrap_or(0),
            each: SavedAllotment::of(self.custody.limits.each()),
            users: self
                .custody
                .limits
                .users()
                .iter()
                .map(|(uid, user)| (*uid, SavedAllotment::of(user)))
                .collect(),
            last_operation: self.operations.last_id(),
            first_sequence: self.custody.posts.beginnings().0,
            sequences: self.custody.posts.beginnings().1.to_vec(),
            operations: Vec::new(),
        };
        for (_, zone, settings) in zones.iter() {
            saved.zones.push(SavedZone {
                name: settings.name.clone(),
                is_movable: settings.kind == ZoneKind::Movable,
                node: settings.node,
                reserve_pages: settings.reserve_pages,
                ceiling_pages: settings.ceiling_pages,
                floor_pages: settings.floor_pages,
                quarantine_ms: match settings.quarantine {
                    Quarantine::None => 0,
                    Quarantine::For(time) => millis(time).min(u64::MAX - 1),
                    Quarantine::UntilReleased => u64::MAX,
                },
            });
            for info in zone.sections() {
                let row = zones.section(info.id);
                if let Some(backing) = row.and_then(|row| row.backing.as_ref()) {
                    saved.add_backing(info.id.get(), backing);
                }
            }
        }
        for client in self.clients.iter() {
            let link = client.link.as_ref();
            // A mere connection ends with this daemon.
            if link.is_none() && client.state != ClientState::Quarantined {
                continue;
            }
            let FixedPcp { batch, high } = client.pcp;
            let allotment = self.custody.limits.client(client.id);
            saved.clients.push(SavedClient {
                slot: client.id.slot,
                incarnation: client.id.incarnation,
                pid: client.pid,
                uid: client.uid,
                gid: client.gid,
                name: client.name.clone(),
                secret: link.map_or([0; 16], |link| link.secret),
                nr_lanes: link.map_or(0, |link| link.segment.geometry().nr_lanes),
                client_index: link.map_or(0, |link| link.client_index),
                first_sequence: self.custody.posts.first_sequence_of(client.id),
                uses_membarrier: link.is_some_and(|link| link.uses_membarrier),
                state: match client.state {
                    ClientState::Attaching => 0,
                    ClientState::Attached => 1,
                    ClientState::Detached => 2,
                    ClientState::Poisoned => 3,
                    ClientState::Quarantined => 4,
                },
                attached_at_ms: millis(client.attached_at),
                died_at_ms: millis(client.died_at),
                allotment: SavedAllotment::of(allotment.unwrap_or(&Allotment::default())),
                batch: batch.unwrap_or(0),
                high: high.unwrap_or(0),
                nr_misuses: client.nr_misuses,
                zones: client.zones.iter().copied().map(ZoneId::get).collect(),
            });
        }
        for operation in self.operations.running() {
            let sections = operation.tasks.iter().map(|task| task.section().get());
            let kind = match operation.kind {
                OperationKind::Add => 1,
                OperationKind::Online => 2,
                OperationKind::Offline => 3,
                OperationKind::Remove => 4,
                _ => continue,
            };
            let sections = sections.collect();
            saved.operations.push((operation.id.0, kind, sections));
        }
        saved
    }
}

impl Saved {
    /// The verb of a saved operation.
    pub(crate) fn kind(code: u8) -> Option<OperationKind> {
        Some(match code {
            1 => OperationKind::Add,
            2 => OperationKind::Online,
            3 => OperationKind::Offline,
            4 => OperationKind::Remove,
            _ => return None,
        })
    }

    fn add_backing(&mut self, section: u32, backing: &Backing) {
        let backing = SavedBacking {
            name: backing.name.clone(),
            node: backing.node,
            not_taken: backing.not_taken.clone(),
        };
        let known = self.backings.iter().position(|known| *known == backing);
        let at = known.unwrap_or_else(|| {
            self.backings.push(backing);
            self.backings.len() - 1
        });
        let at = num::saturate(num::count(at));
        match self.backed.last_mut() {
            Some((first, nr, last)) if *last == at && *first + *nr == section => *nr += 1,
            _ => self.backed.push((section, 1, at)),
        }
    }
}
