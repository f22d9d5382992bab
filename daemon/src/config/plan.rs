//! Each part of the plan, from flags and file: defaults filled in, ranges checked.

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use hugepool_engine::{Limit, Quarantine};
use hugepool_mm::{ContiguityMode, Geometry, ZoneKind};
use hugepool_shm::backing::BackingChoice;

use super::error::ConfigError;
use super::file::{
    CompactionTable, GeometryTable, LanesTable, LimitTable, LimitsTable, SocketsTable,
    TimeoutsTable, ZoneTable,
};
use super::{
    CompactionPlan, GroupPlan, LimitPlan, Limits, MAX_ZONES, SocketPlan, Timeouts, ZonePlan,
};
use crate::flags::ZoneFlag;
use crate::size::Bytes;

/// What a zone grows to when nobody says.
const DEFAULT_RESERVE: Bytes = Bytes(1 << 40);
/// What a zone has at the start when there is no zone in flags and file.
const DEFAULT_SIZE: Bytes = Bytes(128 << 20);
/// What the background moves in a second when nobody says.
const DEFAULT_BACKGROUND_RATE: Bytes = Bytes(100 << 20);
/// From how many processors on the lanes thread spins when nobody says, and how long.
const MANY_PROCESSORS: usize = 4;
const DEFAULT_SPIN_US: u32 = 50;
/// Words for a quarantine, for people.
const QUARANTINES: &str = "none, a time like 500ms or 10s, until-released";
/// Words for a backing, for people.
const BACKINGS: &str = "auto, hugetlb, hugetlb-1GiB, thp, shm";
/// Sections of all zones together: each costs some bytes in the engine and in every client's
/// segment, present or not.
const MAX_SECTIONS: u64 = 1 << 20;
/// Pages that a 32-bit pfn can name.
const MAX_PAGES: u64 = 1 << 32;

/// Page, pageblock, largest block and section.
pub fn geometry(
    section_flag: Option<Bytes>,
    table: &GeometryTable,
) -> Result<Geometry, ConfigError> {
    let standard = Geometry::standard();
    let page = table.page_size.unwrap_or(Bytes(standard.page_bytes()));
    let section = section_flag
        .or(table.section_size)
        .unwrap_or(Bytes(standard.section_bytes()));
    let page_shift = shift("page_size", page)?;
    let section_shift = shift("section_size", section)?;
    let section_order = section_shift.checked_sub(page_shift).ok_or_else(|| {
        ConfigError::Geometry(format!(
            "section_size {section} is smaller than page_size {page}: raise section_size"
        ))
    })?;
    Geometry::new(
        page_shift,
        table
            .pageblock_order
            .unwrap_or(standard.pageblock_order().get()),
        table.max_page_order.unwrap_or(standard.max_order().get()),
        section_order,
    )
    .map_err(|error| ConfigError::Geometry(format!("{error} (page {page}, section {section})")))
}

fn shift(key: &str, value: Bytes) -> Result<u8, ConfigError> {
    if !value.0.is_power_of_two() {
        return Err(ConfigError::Geometry(format!(
            "{key} {value} is not a power of two"
        )));
    }
    Ok(u8::try_from(value.0.trailing_zeros()).expect("64 bits have at most 63 zeros below a one"))
}

/// Zones with their places among the pfns. Flags, given any, replace the file's.
pub fn zones(
    flags: &[ZoneFlag],
    tables: &[ZoneTable],
    geometry: Geometry,
) -> Result<Vec<ZonePlan>, ConfigError> {
    let from_flags = flags.iter().map(|flag| Asked {
        name: &flag.name,
        size: flag.size,
        kind: flag.kind.as_deref(),
        reserve: flag.reserve,
        node: flag.node,
        backing: flag.backing.as_deref(),
        access: None,
    });
    let from_file = tables.iter().map(|table| Asked {
        name: &table.name,
        size: table.size,
        kind: table.kind.as_deref(),
        reserve: table.reserve,
        node: table.node,
        backing: table.backing.as_deref(),
        access: Some(table),
    });
    let defaults = [("normal", "normal"), ("movable", "movable")].map(|(name, kind)| Asked {
        name,
        size: DEFAULT_SIZE,
        kind: Some(kind),
        reserve: None,
        node: None,
        backing: None,
        access: None,
    });
    let asked: Vec<Asked> = match (flags.is_empty(), tables.is_empty()) {
        (false, _) => from_flags.collect(),
        (true, false) => from_file.collect(),
        (true, true) => defaults.into(),
    };
    if asked.is_empty() || asked.len() > MAX_ZONES {
        return Err(ConfigError::NrZones {
            count: asked.len(),
            max: MAX_ZONES,
        });
    }
    place(&asked, geometry)
}

/// A zone as asked for, from wherever.
struct Asked<'a> {
    name: &'a str,
    size: Bytes,
    kind: Option<&'a str>,
    reserve: Option<Bytes>,
    node: Option<u32>,
    backing: Option<&'a str>,
    access: Option<&'a ZoneTable>,
}

fn place(asked: &[Asked], geometry: Geometry) -> Result<Vec<ZonePlan>, ConfigError> {
    let mut zones: Vec<ZonePlan> = Vec::with_capacity(asked.len());
    let mut start: u64 = 0;
    for zone in asked {
        if zones.iter().any(|before| before.name == zone.name) {
            return Err(ConfigError::ZoneTwice(zone.name.to_owned()));
        }
        let mut plan = zone.check(geometry)?;
        // A start past the pfns is caught by the sum below, which is what helps to mend it.
        plan.start_pfn = u32::try_from(start).unwrap_or(u32::MAX);
        start = start.saturating_add(plan.span_pages);
        zones.push(plan);
    }
    if start > MAX_PAGES {
        let bytes = |pages: u64| Bytes(pages.saturating_mul(geometry.page_bytes()));
        return Err(ConfigError::SpanTooLarge {
            total: bytes(start),
            max: bytes(MAX_PAGES),
        });
    }
    let nr_sections = start >> geometry.section_order();
    if nr_sections > MAX_SECTIONS {
        return Err(ConfigError::TooManySections {
            nr_sections,
            section: Bytes(geometry.section_bytes()),
            max: MAX_SECTIONS,
        });
    }
    Ok(zones)
}

impl Asked<'_> {
    fn check(&self, geometry: Geometry) -> Result<ZonePlan, ConfigError> {
        let name = self.name;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 31 || !name.chars().all(is_plain) {
            return Err(ConfigError::ZoneName(name.to_owned()));
        }
        let kind = match self.kind.unwrap_or("normal") {
            "normal" => ZoneKind::Normal,
            "movable" => ZoneKind::Movable,
            other => return Err(self.unknown("kind", other, "normal, movable")),
        };
        let word = self.backing.unwrap_or("auto");
        let backing: BackingChoice = word
            .parse()
            .map_err(|_| self.unknown("backing", word, BACKINGS))?;
        let reserve = self.reserve.unwrap_or(DEFAULT_RESERVE.max(self.size));
        let nr_sections = self.sections("size", self.size, geometry)?;
        self.sections("reserve", reserve, geometry)?;
        if reserve.0 == 0 {
            return Err(ConfigError::NoReserve(name.to_owned()));
        }
        if self.size > reserve {
            return Err(ConfigError::AboveReserve {
                zone: name.to_owned(),
                size: self.size,
                reserve,
            });
        }
        Ok(ZonePlan {
            name: name.to_owned(),
            kind,
            start_pfn: 0,
            nr_sections: u32::try_from(nr_sections).unwrap_or(u32::MAX),
            span_pages: reserve.0 >> geometry.page_shift(),
            node: self.node,
            backing,
            allow_uids: self.access.map_or_else(Vec::new, |a| a.allow_uids.clone()),
            allow_gids: self.access.map_or_else(Vec::new, |a| a.allow_gids.clone()),
            limit: self.limit(geometry)?,
            quarantine: self.quarantine()?,
        })
    }

    fn limit(&self, geometry: Geometry) -> Result<Limit, ConfigError> {
        let (floor, ceiling) = self.access.map_or((None, None), |a| (a.floor, a.ceiling));
        limit(floor, ceiling, geometry, || format!("zone `{}`", self.name))
    }

    fn quarantine(&self) -> Result<Quarantine, ConfigError> {
        match self.access.and_then(|a| a.quarantine.as_deref()) {
            None | Some("none") => Ok(Quarantine::None),
            Some("until-released") => Ok(Quarantine::UntilReleased),
            Some(text) => match duration(text) {
                Some(time) => Ok(Quarantine::For(time)),
                None => Err(self.unknown("quarantine", text, QUARANTINES)),
            },
        }
    }

    fn sections(
        &self,
        key: &'static str,
        value: Bytes,
        geometry: Geometry,
    ) -> Result<u64, ConfigError> {
        let section = geometry.section_bytes();
        let nr = value.0 / section;
        if value.0.is_multiple_of(section) {
            return Ok(nr);
        }
        Err(ConfigError::NotSections {
            zone: self.name.to_owned(),
            key,
            value,
            section: Bytes(section),
            below: Bytes(nr * section),
            above: Bytes((nr + 1).saturating_mul(section)),
        })
    }

    fn unknown(&self, key: &'static str, value: &str, allowed: &'static str) -> ConfigError {
        ConfigError::ZoneWord {
            zone: self.name.to_owned(),
            key,
            value: value.to_owned(),
            allowed,
        }
    }
}

/// The order of zones for requests that name none: as configured, else as listed.
pub fn zonelist(names: Option<Vec<String>>, zones: &[ZonePlan]) -> Result<Vec<u8>, ConfigError> {
    let index = |place: usize| u8::try_from(place).expect("there are at most 8 zones");
    let Some(named) = names else {
        return Ok((0..zones.len()).map(index).collect());
    };
    let mut list: Vec<u8> = Vec::new();
    for name in &named {
        let place = zones.iter().position(|zone| zone.name == *name);
        match place.map(index) {
            Some(zone) if !list.contains(&zone) => list.push(zone),
            _ => return Err(ConfigError::Zonelist(name.clone())),
        }
    }
    let left_out = zones.iter().find(|zone| !named.contains(&zone.name));
    match left_out {
        None => Ok(list),
        Some(zone) => Err(ConfigError::ZonelistLacks(zone.name.clone())),
    }
}

/// Groups of the sockets.
pub fn sockets(table: SocketsTable) -> SocketPlan {
    let plan = |named: Option<String>, default: &str| GroupPlan {
        is_required: named.is_some(),
        name: named.unwrap_or_else(|| default.to_owned()),
    };
    SocketPlan {
        pages_group: plan(table.pages_group, "hugepool"),
        admin_group: plan(table.admin_group, "hugepool-admin"),
    }
}

/// Ceilings.
pub fn limits(table: &LimitsTable, geometry: Geometry) -> Result<Limits, ConfigError> {
    let clients = in_range("limits.clients", table.clients.unwrap_or(1024), 1, 4096)?;
    let lanes = table.lanes_per_client.unwrap_or(64);
    Ok(Limits {
        clients,
        connections_per_uid: in_range(
            "limits.connections_per_uid",
            table.connections_per_uid.unwrap_or(512),
            1,
            65_536,
        )?,
        lanes_per_client: in_range("limits.lanes_per_client", lanes, 1, 256)?,
        client_ceiling_pages: table
            .client_ceiling
            .map(|ceiling| ceiling.0 >> geometry.page_shift()),
    })
}

/// Floors and ceilings of users and clients. Each zone can hold the floors in it, as far as can be
/// said without it.
pub fn allotments(
    tables: &[LimitTable],
    zones: &[ZonePlan],
    geometry: Geometry,
) -> Result<Vec<LimitPlan>, ConfigError> {
    let mut plans: Vec<LimitPlan> = Vec::new();
    for table in tables {
        let plan = LimitPlan {
            uid: table.uid,
            zone: table.zone.clone(),
            limit: limit(table.floor, table.ceiling, geometry, || {
                let whom = table
                    .uid
                    .map_or("each client".to_owned(), |uid| format!("user {uid}"));
                format!("limit of {whom}")
            })?,
        };
        let is_known = |name: &String| zones.iter().any(|zone| zone.name == *name);
        if let Some(name) = plan.zone.as_ref().filter(|name| !is_known(name)) {
            return Err(ConfigError::LimitZone(name.clone()));
        }
        if plan.zone.is_none() && plan.limit.floor_pages > 0 {
            return Err(ConfigError::FloorWithoutZone);
        }
        if plans
            .iter()
            .any(|other| (other.uid, &other.zone) == (plan.uid, &plan.zone))
        {
            return Err(ConfigError::LimitTwice {
                whom: plan
                    .uid
                    .map_or("each client".to_owned(), |uid| format!("user {uid}")),
                zone: plan.zone.unwrap_or_else(|| "all zones".to_owned()),
            });
        }
        plans.push(plan);
    }
    for zone in zones {
        let here = plans
            .iter()
            .filter(|plan| plan.zone.as_ref() == Some(&zone.name));
        let users: u64 = here.map(|plan| plan.limit.floor_pages).sum();
        let pages = u64::from(zone.nr_sections) << geometry.section_order();
        let floors = users.max(zone.limit.floor_pages);
        if floors > pages {
            return Err(ConfigError::Floors {
                zone: zone.name.clone(),
                floors: super::pages_as_bytes(floors, geometry),
                size: super::pages_as_bytes(pages, geometry),
            });
        }
    }
    Ok(plans)
}

fn limit(
    floor: Option<Bytes>,
    ceiling: Option<Bytes>,
    geometry: Geometry,
    whose: impl Fn() -> String,
) -> Result<Limit, ConfigError> {
    if let (Some(floor), Some(ceiling)) = (floor, ceiling)
        && floor > ceiling
    {
        let whose = whose();
        return Err(ConfigError::FloorAboveCeiling {
            whose,
            floor,
            ceiling,
        });
    }
    let pages = |bytes: Bytes| bytes.0 >> geometry.page_shift();
    Ok(Limit {
        floor_pages: floor.map_or(0, pages),
        ceiling_pages: ceiling.map(pages),
    })
}

/// Reads `500ms`, `10s`, `5m`, `1h`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = u64::from(digits.parse::<u32>().ok()?);
    let ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(Duration::from_millis(number * ms))
}

/// Compaction and its caches.
pub fn compaction(
    table: &CompactionTable,
    geometry: Geometry,
) -> Result<CompactionPlan, ConfigError> {
    let contiguity = match table.contiguity.as_deref().unwrap_or("both") {
        "none" => ContiguityMode::None,
        "zone" => ContiguityMode::Zone,
        "pageblock" => ContiguityMode::Pageblock,
        "both" => ContiguityMode::Both,
        other => {
            return Err(ConfigError::Word {
                key: "compaction.contiguity",
                value: other.to_owned(),
                allowed: "none, zone, pageblock, both",
            });
        }
    };
    let rate = table.background_rate.unwrap_or(DEFAULT_BACKGROUND_RATE);
    Ok(CompactionPlan {
        contiguity,
        proactiveness: in_range(
            "compaction.proactiveness",
            table.proactiveness.unwrap_or(20),
            0,
            100,
        )?,
        background_pages_per_second: rate.0 >> geometry.page_shift(),
    })
}

/// How long the lanes thread spins.
pub fn spin(flag: Option<u32>, table: &LanesTable) -> Result<Duration, ConfigError> {
    // Where processors are few, one that spins is one that a client lacks.
    let nr_processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let default = if nr_processors < MANY_PROCESSORS {
        0
    } else {
        DEFAULT_SPIN_US
    };
    let us = flag.or(table.spin_us).unwrap_or(default);
    let us = in_range("lanes.spin_us", us, 0, 10_000)?;
    Ok(Duration::from_micros(us.into()))
}

/// Deadlines.
pub fn timeouts(table: &TimeoutsTable) -> Result<Timeouts, ConfigError> {
    let ms = |key, value: Option<u32>, default, max| {
        let ms = in_range(key, value.unwrap_or(default), 1, max)?;
        Ok::<_, ConfigError>(Duration::from_millis(ms.into()))
    };
    Ok(Timeouts {
        attach: ms("timeouts.attach_ms", table.attach_ms, 10_000, 60_000)?,
        offline: ms("timeouts.offline_ms", table.offline_ms, 10_000, 3_600_000)?,
        drain: ms("timeouts.drain_ms", table.drain_ms, 5_000, 600_000)?,
    })
}

fn in_range<T>(key: &'static str, value: T, min: T, max: T) -> Result<T, ConfigError>
where
    T: Copy + PartialOrd + Into<u64>,
{
    if value < min || value > max {
        return Err(ConfigError::Range {
            key,
            value: value.into(),
            min: min.into(),
            max: max.into(),
        });
    }
    Ok(value)
}
