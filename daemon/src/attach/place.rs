//! A client's place: segment, bell, token and hold on its process, made in one step or not at all.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use hugepool_engine::{AttachError, AttachSpec, ClientId};
use hugepool_mm::{ZoneId, ZoneKind};
use hugepool_shm::attach::{
    AttachGeometry, AttachMessage, AttachReply, AttachRequest, AttachZone, AttachZoneKind,
    RefusalCode, agree_on_layout,
};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::eventfd::Bell;
use hugepool_shm::message::Connection;
use hugepool_shm::outbox::{OUTBOX_BYTES, Outbox};
use hugepool_shm::peer::{self, PeerCredentials, PeerError};
use hugepool_shm::pidfd::PidFd;
use hugepool_shm::region::{Region, RegionError};
use hugepool_shm::token::Token;

use crate::kept::{Part, client_name};
use crate::shared::Shared;
use crate::store::Store;

/// What a client was given.
#[derive(Debug)]
pub struct Place {
    /// Its name in the engine.
    pub client: ClientId,
    /// What it rings.
    pub bell: Bell,
    /// Tells its death.
    pub pidfd: Arc<PidFd>,
    /// Its control segment.
    pub region: Region,
    /// Its outbox.
    pub outbox: Region,
    /// Where the sequences of its slots begin.
    pub first_sequence: u32,
    /// What it was given; for the greeting alone.
    pub zones: Vec<ZoneId>,
    /// What its calls are known by.
    pub token: Token,
}

/// Why there is no place.
#[derive(Debug)]
pub struct Refusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people.
    pub message: String,
}

impl Refusal {
    fn new(code: RefusalCode, message: impl ToString) -> Refusal {
        Refusal {
            code,
            message: message.to_string(),
        }
    }
}

/// The reply, ready to be sent.
#[derive(Debug)]
pub struct Greeting {
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Place {
    /// Makes a place for who asks, and makes it known to engine and registry.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is left of the attempt then.
    pub fn make(
        request: &AttachRequest,
        nr_lanes: u32,
        connection: &Connection,
        peer: PeerCredentials,
        shared: &Shared,
    ) -> Result<Place, Refusal> {
        agree_on_layout(request.layout_version)
            .map_err(|error| Refusal::new(RefusalCode::LayoutVersion, error))?;
        // A system that does not tell them leaves the primary group.
        let groups = peer::groups(connection).unwrap_or_default();
        let zones = shared.zones_open_to(peer, &groups);
        if zones.is_empty() {
            let text = format!(
                "no zone is open to user {}, group {}, groups {groups:?}",
                peer.uid, peer.gid
            );
            return Err(Refusal::new(RefusalCode::NotAllowed, text));
        }
        let (pidfd, _) = connection.peer_pidfd().map_err(|error| match error {
            PeerError::System(errno) => no_room("pidfd", errno),
            error => Refusal::new(RefusalCode::Unwatchable, error),
        })?;
        let pidfd = Arc::new(pidfd);
        let bell = Bell::new().map_err(|errno| no_room("doorbell", errno))?;
        let token = Token::random().map_err(|errno| no_room("token", errno))?;
        let (region, segment) = segment(nr_lanes, peer, shared)?;
        let (outbox_region, outbox) = outbox(peer)?;
        let spec = AttachSpec {
            uid: peer.uid,
            gid: peer.gid,
            pid: peer.pid,
            name: request.name.clone(),
            client_index: request.client_index.into(),
            secret: token.to_bytes(),
            zones: zones.clone(),
        };
        let (client, first_sequence) = shared
            .with(|engine, now, _| {
                let client = engine.attach(spec, segment.clone(), now)?;
                let first_sequence = engine.open_post(client, outbox);
                Ok((client, first_sequence.expect("it has just been attached")))
            })
            .map_err(refused)?;
        shared
            .registry()
            .add(client, peer, token, segment, pidfd.clone());
        Ok(Place {
            client,
            bell,
            pidfd,
            region,
            outbox: outbox_region,
            first_sequence,
            zones,
            token,
        })
    }

    /// What the client is told.
    ///
    /// # Errors
    /// A value of ours that the client would refuse, in words.
    pub fn greeting(
        &self,
        request: &AttachRequest,
        nr_lanes: u32,
        shared: &Shared,
    ) -> Result<Greeting, String> {
        let g = shared.geometry();
        let zone = |id: &ZoneId| {
            let plan = shared.zones().get(usize::from(id.get()))?;
            Some(AttachZone {
                zone: id.get(),
                name: plan.name.clone(),
                kind: match plan.kind {
                    ZoneKind::Normal => AttachZoneKind::Normal,
                    ZoneKind::Movable => AttachZoneKind::Movable,
                },
                start_pfn: plan.start_pfn.into(),
                span_pages: plan.span_pages,
                writable: true,
            })
        };
        let reply = AttachMessage::Reply(AttachReply {
            layout_version: agree_on_layout(request.layout_version).map_err(|e| e.to_string())?,
            slot: self.client.slot,
            incarnation: self.client.incarnation,
            token: self.token.to_bytes(),
            nr_lanes,
            geometry: AttachGeometry {
                page_shift: g.page_shift(),
                pageblock_order: g.pageblock_order().get(),
                max_order: g.max_order().get(),
                section_order: g.section_order(),
            },
            zones: self.zones.iter().filter_map(zone).collect(),
            control_bytes: self.region.len_bytes(),
            first_sequence: self.first_sequence,
        });
        let bytes = reply.encode().map_err(|error| error.to_string())?;
        Ok(Greeting { bytes })
    }

    /// Its outbox, for others: they can read it only.
    ///
    /// # Errors
    /// When the system gives no further descriptor.
    pub fn outbox_to_read(&self) -> Result<OwnedFd, RegionError> {
        self.outbox.read_only()
    }

    /// The descriptors that go with it: control segment, bell, zones, outbox, the zones' transit
    /// words.
    pub fn descriptors<'a>(&'a self, shared: &'a Shared) -> Vec<BorrowedFd<'a>> {
        let memory = shared.memory();
        let zones = self.zones.iter().map(|zone| memory.file(*zone));
        let transits = self.zones.iter().map(|zone| memory.transits(*zone));
        [self.region.as_fd(), self.bell.as_fd()]
            .into_iter()
            .chain(zones)
            .chain([self.outbox.as_fd()])
            .chain(transits)
            .collect()
    }
}

impl Place {
    /// Puts all that the client needs over a restart into the store.
    pub fn keep(&self, connection: &Connection, store: &Store) {
        let parts: [(Part, BorrowedFd<'_>); 5] = [
            (Part::Control, self.region.as_fd()),
            (Part::Bell, self.bell.as_fd()),
            (Part::Process, self.pidfd.as_fd()),
            (Part::Connection, connection.as_fd()),
            (Part::Outbox, self.outbox.as_fd()),
        ];
        for (part, fd) in parts {
            store.keep(&client_name(self.client, part), fd);
        }
    }
}

/// A control segment that only the two sides will ever map.
fn segment(
    nr_lanes: u32,
    peer: PeerCredentials,
    shared: &Shared,
) -> Result<(Region, ControlSegment), Refusal> {
    let used_up = |what: &str, error: &dyn std::error::Error| {
        Refusal::new(RefusalCode::UsedUp, format!("{what}: {error}"))
    };
    let geometry = shared.with(|engine, _, _| engine.control_geometry(nr_lanes));
    let len = geometry
        .len_bytes()
        .map_err(|error| used_up("control segment", &error))?;
    let len = u64::try_from(len).unwrap_or(u64::MAX);
    let region =
        Region::for_client(peer.pid, len).map_err(|error| used_up("control segment", &error))?;
    let mapping = region
        .map()
        .map_err(|error| used_up("control segment", &error))?;
    let segment = ControlSegment::create(mapping, geometry)
        .map_err(|error| used_up("control segment", &error))?;
    Ok((region, segment))
}

/// An outbox that the client alone will write.
fn outbox(peer: PeerCredentials) -> Result<(Region, Outbox), Refusal> {
    let used_up = |error: &dyn std::error::Error| {
        Refusal::new(RefusalCode::UsedUp, format!("outbox: {error}"))
    };
    let len = u64::try_from(OUTBOX_BYTES).unwrap_or(u64::MAX);
    let region = Region::for_outbox(peer.pid, len).map_err(|error| used_up(&error))?;
    // Mapped to be read: the daemon could not harm it either.
    let outbox = Outbox::of_peer(region.as_fd()).map_err(|error| used_up(&error))?;
    Ok((region, outbox))
}

fn no_room(what: &str, errno: nix::errno::Errno) -> Refusal {
    Refusal::new(
        RefusalCode::UsedUp,
        format!("no {what} can be had: {errno}"),
    )
}

fn refused(error: AttachError) -> Refusal {
    let code = match error {
        AttachError::TooManyClients { .. } | AttachError::Floors { .. } => RefusalCode::UsedUp,
        AttachError::ClientIndex { .. }
        | AttachError::Segment { .. }
        | AttachError::TooManyLanes { .. }
        | AttachError::NoSuchZone { .. }
        | AttachError::ZoneTwice { .. } => RefusalCode::BadRequest,
    };
    Refusal::new(code, error)
}
