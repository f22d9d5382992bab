//! Going on from what a daemon before has left: its memory, its state, its clients.
//!
//! What is fixed for the life of the memory (sizes, zones, their reserves) is as it was; what may be
//! set otherwise (who may use a zone, limits to come, timeouts) is as the configuration says now.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use hugepool_engine::{
    ClientId, Engine, EngineConfig, Limit, RecoverError, Recovered, Saved, SavedClient, StateWords,
    Survivor,
};
use hugepool_mm::SectionId;
use hugepool_shm::backing::{Backing, BackingChoice, ChosenBacking};
use hugepool_shm::control::{ControlError, ControlGeometry, ControlSegment};
use hugepool_shm::eventfd::Bell;
use hugepool_shm::mapping::MapError;
use hugepool_shm::message::Connection;
use hugepool_shm::outbox::{OUTBOX_BYTES, Outbox};
use hugepool_shm::peer::PeerCredentials;
use hugepool_shm::pidfd::PidFd;
use hugepool_shm::region::{FilePages, Region, RegionError};
use hugepool_shm::token::Token;
use hugepool_shm::transit::TransitTable;
use nix::errno::Errno;

use crate::attach::place::Place;
use crate::config::{Config, ZonePlan};
use crate::kept::{Kept, KeptClient};
use crate::memory::{FoundZone, Memory};
use crate::shared::Outer;

/// Why it cannot be gone on.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// A zone's file is not in the store.
    #[error("the memory of zone `{zone}` was not kept")]
    NoZone {
        /// Its name.
        zone: String,
    },
    /// It is not what it should be.
    #[error("the memory of zone `{zone}`")]
    Zone {
        /// Its name.
        zone: String,
        /// Why.
        source: RegionError,
    },
    /// It has another length.
    #[error("the memory of zone `{zone}` is {there} bytes long, not {wanted}")]
    ZoneLength {
        /// Its name.
        zone: String,
        /// In bytes.
        there: u64,
        /// In bytes.
        wanted: u64,
    },
    /// A client's segment.
    #[error("the segment of client {client}")]
    Segment {
        /// Whose.
        client: ClientId,
        /// Why.
        source: SegmentError,
    },
    /// What the words say.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// A descriptor or a process that cannot be had.
    #[error("the system gives no descriptor")]
    System(#[from] Errno),
}

/// Why a client's segment cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum SegmentError {
    /// The file.
    Region(#[from] RegionError),
    /// Its map.
    Map(#[from] MapError),
    /// Its shape.
    Control(#[from] ControlError),
}

/// A client that lives on.
#[derive(Debug)]
pub struct Found {
    /// What it was given.
    pub place: Place,
    /// Its connection; none if it had hung up.
    pub connection: Option<Connection>,
    /// Who it is.
    pub credentials: PeerCredentials,
    /// Its segment.
    pub segment: ControlSegment,
    /// What its calls are known by.
    pub token: Token,
}

/// The configuration with the zones and sizes that the memory has.
pub fn config_of(config: &Config, saved: &EngineConfig) -> Config {
    let mut start_pfn = 0;
    let mut zones = Vec::new();
    for zone in &saved.zones {
        let configured = config.zones.iter().find(|plan| plan.name == zone.name);
        if configured.is_none() {
            tracing::warn!(
                zone = zone.name,
                "not configured any more: kept as it is, for root alone, until the daemon is stopped"
            );
        }
        let (allow_uids, allow_gids, backing) = match configured {
            Some(plan) => (
                plan.allow_uids.clone(),
                plan.allow_gids.clone(),
                plan.backing,
            ),
            None => (vec![0], Vec::new(), BackingChoice::Auto),
        };
        zones.push(ZonePlan {
            name: zone.name.clone(),
            kind: zone.kind,
            start_pfn,
            nr_sections: 0,
            span_pages: zone.reserve_pages,
            node: u32::try_from(zone.node).ok(),
            backing,
            allow_uids,
            allow_gids,
            limit: Limit {
                floor_pages: zone.floor_pages,
                ceiling_pages: zone.ceiling_pages,
            },
            quarantine: zone.quarantine,
        });
        let end = u64::from(start_pfn) + zone.reserve_pages;
        // The last zone may end with the last pfn.
        start_pfn = u32::try_from(end).unwrap_or(u32::MAX);
    }
    for plan in &config.zones {
        if !zones.iter().any(|zone| zone.name == plan.name) {
            tracing::warn!(
                zone = plan.name,
                "new in the configuration: made at the next start from nothing"
            );
        }
    }
    let index = |name: &str| zones.iter().position(|zone| zone.name == name);
    let wanted = config.zonelist.iter();
    let wanted = wanted.filter_map(|&at| index(&config.zones.get(usize::from(at))?.name));
    let mut zonelist: Vec<u8> = wanted.filter_map(|at| u8::try_from(at).ok()).collect();
    for at in (0..zones.len()).filter_map(|at| u8::try_from(at).ok()) {
        if !zonelist.contains(&at) {
            zonelist.push(at);
        }
    }
    Config {
        geometry: saved.geometry,
        zones,
        zonelist,
        ..config.clone()
    }
}

/// The zones' memory, as it lies there: of the sections that their words say have some.
///
/// # Errors
/// [`TakeoverError`].
pub fn memory(
    config: &Config,
    saved: &Saved,
    words: &StateWords,
    kept: &mut Kept,
) -> Result<Memory, TakeoverError> {
    let named: BTreeMap<SectionId, Backing> = saved
        .backings()
        .filter_map(|(section, backing)| Some((section, backing_named(&backing.name)?)))
        .collect();
    let with_memory: Vec<SectionId> = words.sections_with_memory().collect();
    let mut zones = Vec::new();
    for (at, plan) in config.zones.iter().enumerate() {
        let zone = || plan.name.clone();
        let fd = u8::try_from(at).ok().and_then(|at| kept.zones.remove(&at));
        let fd = fd.ok_or_else(|| TakeoverError::NoZone { zone: zone() })?;
        let region = Region::adopt(fd).map_err(|source| TakeoverError::Zone {
            zone: zone(),
            source,
        })?;
        let wanted = plan.span_pages.saturating_mul(config.geometry.page_bytes());
        let there = region.len_bytes();
        if there != wanted {
            let zone = zone();
            return Err(TakeoverError::ZoneLength {
                zone,
                there,
                wanted,
            });
        }
        let first = u64::from(plan.start_pfn) >> config.geometry.section_order();
        let end = first + (plan.span_pages >> config.geometry.section_order());
        let ours = with_memory
            .iter()
            .filter(|section| (first..end).contains(&u64::from(section.get())));
        let ours: Vec<SectionId> = ours.copied().collect();
        let usual = match region.pages() {
            FilePages::Huge2M => Backing::Hugetlb,
            FilePages::Huge1G => Backing::Hugetlb1G,
            FilePages::Shmem => {
                let known = ours.iter().find_map(|section| named.get(section));
                known.copied().unwrap_or(Backing::Shm)
            }
        };
        // One that had just come was not saved yet.
        let backing = |section: &SectionId| named.get(section).copied().unwrap_or(usual);
        let populated = ours.iter().map(|section| (*section, backing(section)));
        let populated = populated.collect();
        let transits = u8::try_from(at)
            .ok()
            .and_then(|at| kept.transits.remove(&at));
        let transits = transits.ok_or_else(|| TakeoverError::NoZone { zone: zone() })?;
        let transits = Region::adopt(transits).map_err(|source| TakeoverError::Zone {
            zone: zone(),
            source,
        })?;
        zones.push(FoundZone {
            transits,
            plan: plan.clone(),
            at_start: ChosenBacking {
                backing: usual,
                passed_over: Vec::new(),
            },
            region,
            populated,
        });
    }
    Memory::take_over(config.geometry, zones)
        .map_err(|(zone, source)| TakeoverError::Zone { zone, source })
}

fn backing_named(name: &str) -> Option<Backing> {
    [
        Backing::Hugetlb,
        Backing::Hugetlb1G,
        Backing::Thp,
        Backing::Shm,
    ]
    .into_iter()
    .find(|backing| backing.name() == name)
}

/// The engine made anew, and the clients that live on.
///
/// # Errors
/// [`TakeoverError`].
pub fn engine(
    saved: &Saved,
    config: EngineConfig,
    words: StateWords,
    transits: Vec<TransitTable>,
    kept: &mut Kept,
) -> Result<(Engine, Recovered, Vec<Found>), TakeoverError> {
    let nr_pages: u64 = config.zones.iter().map(|zone| zone.reserve_pages).sum();
    let nr_sections = nr_pages >> config.geometry.section_order();
    let shape = |nr_lanes| ControlGeometry {
        nr_lanes,
        nr_sections: u32::try_from(nr_sections).unwrap_or(u32::MAX),
        nr_pages,
    };
    let (mut survivors, mut found) = (Vec::new(), Vec::new());
    for client in saved.clients() {
        let id = client.id();
        let Some(parts) = kept.clients.remove(&id) else {
            // It was never told that it is attached: nothing was lent to it.
            continue;
        };
        let is_lost = parts.control.is_none();
        if is_lost || parts.pidfd.is_none() || parts.bell.is_none() {
            tracing::error!(client = %id, ?parts, "not all of the client was kept");
        }
        let Some(one) = find(client, parts, shape(client.nr_lanes))? else {
            tracing::info!(client = %id, "has ended meanwhile");
            continue;
        };
        survivors.push(Survivor {
            client: id,
            segment: one.segment.clone(),
            outbox: Outbox::of_peer(one.place.outbox.as_fd())
                .inspect_err(|error| tracing::error!(client = %id, %error, "its outbox is lost"))
                .ok(),
            is_lost,
        });
        found.push(one);
    }
    let now = crate::shared::now();
    let outside = &mut Outer::default();
    let (engine, what) = Engine::recover(
        saved,
        config.defaults,
        words,
        survivors,
        transits,
        now,
        outside,
    )?;
    Ok((engine, what, found))
}

fn find(
    client: &SavedClient,
    parts: KeptClient,
    shape: ControlGeometry,
) -> Result<Option<Found>, TakeoverError> {
    let id = client.id();
    let (region, segment) = segment(client, parts.control, shape)
        .map_err(|source| TakeoverError::Segment { client: id, source })?;
    let bell = match parts.bell {
        Some(fd) => Bell::from_fd(fd),
        None => Bell::new()?,
    };
    let pidfd = match parts.pidfd {
        Some(fd) => PidFd::from_fd(fd),
        // Another process may have its number by now: then what it held comes home when that ends.
        None => match PidFd::open(client.pid) {
            Ok(pidfd) => pidfd,
            Err(Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        },
    };
    let outbox = match parts.outbox {
        Some(fd) => Region::adopt(fd),
        None => Region::for_outbox(client.pid, u64::try_from(OUTBOX_BYTES).unwrap_or(u64::MAX)),
    };
    let outbox = outbox.map_err(|source| TakeoverError::Segment {
        client: id,
        source: source.into(),
    })?;
    let token = Token::from_bytes(client.secret);
    let place = Place {
        client: id,
        bell,
        pidfd: Arc::new(pidfd),
        region,
        outbox,
        first_sequence: client.first_sequence,
        zones: client.zones().collect(),
        token,
    };
    Ok(Some(Found {
        place,
        connection: parts.connection.map(Connection::from_fd),
        credentials: PeerCredentials {
            pid: client.pid,
            uid: client.uid,
            gid: client.gid,
        },
        segment,
        token,
    }))
}

fn segment(
    client: &SavedClient,
    fd: Option<OwnedFd>,
    shape: ControlGeometry,
) -> Result<(Region, ControlSegment), SegmentError> {
    let region = match fd {
        Some(fd) => Region::adopt(fd)?,
        None => {
            let nr_bytes = u64::try_from(shape.len_bytes()?).unwrap_or(u64::MAX);
            Region::for_client(client.pid, nr_bytes)?
        }
    };
    // The header says what it said before.
    let segment = ControlSegment::create(region.map()?, shape)?;
    Ok((region, segment))
}
