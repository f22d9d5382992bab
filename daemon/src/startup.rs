//! The first memory: every zone's backing chosen, its file made, its sections populated and online.
//!
//! The same way that a hot-add goes later, through the engine. A shortage is an error with numbers;
//! the files have no name, so dropping them gives every page back.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugepool_engine::{
    Command, CommandError, ConfigError as EngineError, Defaults, Engine, EngineConfig,
    OperationReport, OperationState, Reply, Sections, SectionsRequest, Whom, ZoneSettings,
};
use hugepool_mm::ZoneId;
use hugepool_shm::backing::{BackingFacts, ChosenBacking, NoBacking};
use hugepool_shm::mapping::MapError;
use hugepool_shm::region::RegionError;
use hugepool_shm::token::Token;
use nix::errno::Errno;

use crate::backing_plan::choose_all;
use crate::config::{Config, ZonePlan};
use crate::effects::{self, Jobs};
use crate::exit;
use crate::keeping::{Keeping, KeepingError};
use crate::kept::{ChannelEnd, Kept, transit_name, zone_name};
use crate::memory::Memory;
use crate::sealed;
use crate::shared::{self, Shared};
use crate::store::Store;
use crate::systemd;
use crate::takeover::{self, Found};

/// How much longer starting may take, told to systemd at each section.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no memory to serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The chain has no link for a zone.
    #[error("zone `{zone}`")]
    NoBacking {
        /// The zone.
        zone: String,
        /// Every link, and why not.
        source: Box<NoBacking>,
    },
    /// Its file cannot be made.
    #[error("zone `{zone}`")]
    Region {
        /// The zone.
        zone: String,
        /// Why.
        source: RegionError,
    },
    /// A section of it has no memory: it was there when it was looked for, and then not.
    #[error("zone `{zone}`: {reason}")]
    Section {
        /// The zone.
        zone: String,
        /// The engine's or the system's answer, with numbers.
        reason: String,
    },
    /// The engine refuses the plan.
    #[error("the engine cannot be made")]
    Engine(#[from] EngineError),
    /// The engine refuses the first sections.
    #[error("the first sections cannot be added")]
    Command(#[from] CommandError),
    /// The engine refuses a limit.
    #[error("a limit cannot be set")]
    Limit(#[source] CommandError),
    /// Memory of our own that could not be mapped.
    #[error("the words that clients share cannot be mapped")]
    Map(#[from] MapError),
    /// The state segment.
    #[error("no state can be kept")]
    Keeping(#[from] KeepingError),
    /// What a daemon before has left cannot be gone on from.
    #[error("sealed: {why}")]
    Sealed {
        /// Why.
        why: String,
        /// All of it.
        held: sealed::Held,
    },
    /// A descriptor that the system did not give.
    #[error("the system gives no descriptor")]
    System(#[from] Errno),
}

/// What the daemon starts with.
pub struct Started {
    /// The configuration; sizes and zones are those of the memory.
    pub config: Config,
    /// The engine among its surroundings.
    pub shared: Shared,
    /// What it left to be done.
    pub jobs: Jobs,
    /// Clients of a daemon before.
    pub found: Vec<Found>,
    /// Ends of their channels.
    pub channels: Vec<(ChannelEnd, OwnedFd)>,
}

/// Makes the engine: with all its first memory, or from what a daemon before has left.
///
/// # Errors
/// [`StartError`]; no memory is held then.
pub fn engine(config: Config, kept: Kept, store: &Store) -> Result<Started, StartError> {
    for name in &kept.strange {
        tracing::warn!(
            name,
            "a kept descriptor that is unknown or there twice: let go"
        );
    }
    match kept.state {
        Some(_) => take_over(&config, kept, store),
        None => {
            for name in kept.names() {
                tracing::warn!(name, "kept without a state: let go");
                store.forget(&name);
            }
            fresh(config, store)
        }
    }
}

fn fresh(config: Config, store: &Store) -> Result<Started, StartError> {
    let memory = Arc::new(files(&config)?);
    let settings = engine_config(&config);
    let (keeping, words) = Keeping::fresh(&settings, store)?;
    let mut engine = Engine::with_state(settings, words)?;
    for (zone, table) in (0..).map(ZoneId::new).zip(memory.map_transits()?) {
        engine.set_transit(zone, table);
    }
    let [a, b, c, d, ..] = Token::random()?.to_bytes();
    engine.set_first_sequence(u32::from_le_bytes([a, b, c, d]));
    for at in 0..config.zones.len() {
        let id = ZoneId::new(u8::try_from(at).unwrap_or(u8::MAX));
        store.keep(&zone_name(at), memory.file(id));
        store.keep(&transit_name(at), memory.transits(id));
    }
    let (effects, jobs) = effects::queue();
    let shared = Shared::new(engine, keeping, &config, memory, effects)?;
    for zone in &config.zones {
        if zone.nr_sections > 0 {
            fill(zone, &shared, &jobs)?;
        }
    }
    for command in limit_commands(&config) {
        shared.apply(command).map_err(StartError::Limit)?;
    }
    report(&shared)?;
    Ok(Started {
        config,
        shared,
        jobs,
        found: Vec::new(),
        channels: Vec::new(),
    })
}

fn take_over(config: &Config, mut kept: Kept, store: &Store) -> Result<Started, StartError> {
    let fd = kept.state.take().ok_or(Errno::EBADF)?;
    // Held as they are, should they turn out to be of no use.
    let held = sealed::Held::of(&fd, &kept)?;
    let begun = Instant::now();
    let sealed = move |why: &dyn std::error::Error| StartError::Sealed {
        why: exit::one_line(why),
        held,
    };
    let (keeping, words, saved) = match Keeping::adopt(fd) {
        Ok(adopted) => adopted,
        Err(error) => return Err(sealed(&error)),
    };
    let now_ms = u64::try_from(shared::now().as_millis()).unwrap_or(u64::MAX);
    if let Err(error) = keeping.note_start(now_ms) {
        return Err(sealed(&error));
    }
    let settings = saved.config(engine_config(config).defaults);
    let config = takeover::config_of(config, &settings);
    let memory = match takeover::memory(&config, &saved, &words, &mut kept) {
        Ok(memory) => Arc::new(memory),
        Err(error) => return Err(sealed(&error)),
    };
    let transits = memory.map_transits()?;
    let recovered = takeover::engine(&saved, settings, words, transits, &mut kept);
    let (engine, what, found) = match recovered {
        Ok(recovered) => recovered,
        Err(error) => return Err(sealed(&error)),
    };
    let channels = std::mem::take(&mut kept.channels);
    for name in kept.names() {
        // Of clients that never came to be, or ended.
        store.forget(&name);
    }
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    tracing::info!(
        ?what,
        took_us,
        "gone on from what the daemon before has left"
    );
    let (effects, jobs) = effects::queue();
    let shared = Shared::new(engine, keeping, &config, memory, effects)?;
    // Saves what was recovered, and puts what is left to be done where the workers find it.
    shared.with(|_, _, _| ());
    Ok(Started {
        config,
        shared,
        jobs,
        found,
        channels,
    })
}

fn files(config: &Config) -> Result<Memory, StartError> {
    let chosen = choose_all(config, &BackingFacts::probe());
    let zones = config.zones.iter().cloned().zip(chosen);
    let zones: Vec<(ZonePlan, ChosenBacking)> = zones
        .map(|(zone, chosen)| match chosen {
            Ok(chosen) => Ok((zone, chosen)),
            Err(error) => Err(StartError::NoBacking {
                zone: zone.name,
                source: Box::new(error),
            }),
        })
        .collect::<Result<_, _>>()?;
    Memory::new(config.geometry, config.limits.clients, zones)
        .map_err(|(zone, source)| StartError::Region { zone, source })
}

fn engine_config(config: &Config) -> EngineConfig {
    let zone = |plan: &ZonePlan| ZoneSettings {
        name: plan.name.clone(),
        kind: plan.kind,
        node: plan
            .node
            .and_then(|node| i32::try_from(node).ok())
            .unwrap_or(-1),
        reserve_pages: plan.span_pages,
        ceiling_pages: plan.limit.ceiling_pages,
        // Set when there is something to keep.
        floor_pages: 0,
        quarantine: plan.quarantine,
    };
    EngineConfig {
        geometry: config.geometry,
        zones: config.zones.iter().map(zone).collect(),
        defaults: Defaults {
            client_ceiling_pages: config.limits.client_ceiling_pages,
            offline_timeout: config.timeouts.offline,
            max_clients: config.limits.clients,
            max_lanes: config.limits.lanes_per_client.into(),
            contiguity: config.compaction.contiguity,
            proactiveness: config.compaction.proactiveness,
            background_pages_per_second: config.compaction.background_pages_per_second,
            ..Defaults::default()
        },
    }
}

/// The limits of a configuration.
pub fn limit_commands(config: &Config) -> impl Iterator<Item = Command> {
    let zones = config.zones.iter().map(|zone| Command::SetLimits {
        whom: Whom::Zone,
        zone: Some(zone.name.clone()),
        limit: zone.limit,
    });
    let others = config.allotments.iter().map(|plan| Command::SetLimits {
        whom: plan.whom(),
        zone: plan.zone.clone(),
        limit: plan.limit,
    });
    zones.chain(others)
}

/// Adds a zone's first sections, doing the slow work here: no other thread runs yet.
fn fill(zone: &ZonePlan, shared: &Shared, jobs: &Jobs) -> Result<(), StartError> {
    let command = Command::AddSections {
        request: SectionsRequest {
            zone: Some(zone.name.clone()),
            sections: Sections::Count(zone.nr_sections),
            dry_run: false,
        },
        online_order: None,
        keep_offline: false,
    };
    let mut operation = operation(shared, command)?;
    while operation.state == OperationState::Running {
        systemd::starting(&format!("populating zone {}", zone.name), PATIENCE);
        while let Some(job) = jobs.next() {
            effects::perform(job, shared);
        }
        operation = self::operation(shared, Command::GetOperation { id: operation.id })?;
    }
    let refusal = operation.sections.iter().find_map(|section| {
        let refusal = section.done.as_ref()?.as_ref().err()?;
        Some(refusal.to_string())
    });
    match refusal {
        None => Ok(()),
        Some(reason) => Err(StartError::Section {
            zone: zone.name.clone(),
            reason,
        }),
    }
}

fn operation(shared: &Shared, command: Command) -> Result<OperationReport, StartError> {
    match shared.apply(command)? {
        Reply::Operation(report) => Ok(report),
        other => unreachable!("an operation answers as one, not as {other:?}"),
    }
}

/// Says which link of the chain serves each zone, and why the earlier ones do not.
fn report(shared: &Shared) -> Result<(), StartError> {
    let Reply::Zones(zones) = shared.apply(Command::ListZones)? else {
        unreachable!("zones are answered by zones")
    };
    for zone in zones {
        for backing in &zone.backing {
            tracing::info!(
                zone = zone.name,
                backing = backing.name,
                nr_sections = backing.nr_sections,
                "online"
            );
            for reason in &backing.not_taken {
                tracing::info!(zone = zone.name, "not taken: {reason}");
            }
        }
    }
    Ok(())
}
