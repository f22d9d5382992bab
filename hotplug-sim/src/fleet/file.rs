//! What a fleet is made of, and what comes to it: the TOML file.

use serde::Deserialize;

use crate::scenario::file::parse_size;

/// Bytes of a page and pages of a pageblock: x86's.
pub const PAGE_BYTES: u64 = 4096;
/// Pages of a pageblock.
pub const BLOCK_PAGES: u32 = 512;
/// Bytes of a pageblock.
pub const BLOCK_BYTES: u64 = PAGE_BYTES * BLOCK_PAGES as u64;

/// A fleet as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    about: Option<String>,
    hosts: u32,
    host_memory: String,
    pool_memory: String,
    #[serde(default = "section")]
    section: String,
    pool_per_host: Option<String>,
    keep_free: Option<String>,
    own_reserve: Option<String>,
    hours: u32,
    load_percent: u32,
    hot_percent: Option<u32>,
    hot_factor: Option<u32>,
    moves_per_hour: Option<String>,
    seed: Option<u64>,
    policies: Option<Vec<Policy>>,
    tenant: Vec<WrittenKind>,
}

fn section() -> String {
    "128MiB".to_owned()
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenKind {
    memory: String,
    weight: u32,
    hours: u32,
    unmovable: Option<String>,
}

/// How memory goes between the hosts and the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// No pool: each host has its share of that memory for good.
    Static,
    /// A host takes sections when it needs them, as kernel memory, and gives back those that
    /// happen to be free.
    Kernel,
    /// The same, as movable memory: what cannot be moved stays in the host's own.
    Movable,
    /// And each hour what lies in nearly empty sections of the pool is moved together.
    Compact,
}

impl Policy {
    /// All.
    pub const ALL: [Policy; 4] = [
        Policy::Static,
        Policy::Kernel,
        Policy::Movable,
        Policy::Compact,
    ];

    /// As written in the file.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Static => "static",
            Policy::Kernel => "kernel",
            Policy::Movable => "movable",
            Policy::Compact => "compact",
        }
    }
}

/// A kind of tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Pages that it takes, those that cannot be moved among them.
    pub pages: u64,
    /// Pages of them that cannot be moved (the host's kernel's, for it).
    pub unmovable: u64,
    /// Comes so often, against the others.
    pub weight: u32,
    /// Stays so long on average: from 1 to twice that, each as likely.
    pub hours: u32,
}

/// A fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// What it is about.
    pub about: String,
    /// Hosts.
    pub nr_hosts: u32,
    /// Pageblocks of a section.
    pub section_blocks: u16,
    /// Sections that a host has of its own.
    pub own_sections: u32,
    /// Sections of the pool.
    pub pool_sections: u64,
    /// The most sections of the pool that a host may have.
    pub most_per_host: u32,
    /// Free sections that a host keeps before it gives any back.
    pub keep_free: u32,
    /// Sections of its own that what can be moved leaves to what cannot.
    pub own_reserve: u32,
    /// Hours simulated.
    pub nr_hours: u32,
    /// Memory asked for on average, in hundredths of all there is.
    pub load_percent: u32,
    /// Hosts, in hundredths, to which `hot_factor` times as many tenants come.
    pub hot_percent: u32,
    /// How many times as many.
    pub hot_factor: u32,
    /// The most pages a host moves in an hour to empty sections.
    pub moves_per_hour: u64,
    /// Where chance comes from.
    pub seed: u64,
    /// What is compared.
    pub policies: Vec<Policy>,
    /// What comes.
    pub kinds: Vec<Kind>,
}

impl Fleet {
    /// Reads a file's text.
    ///
    /// # Errors
    /// It is no TOML, has a name that is not known, or numbers that make no fleet.
    pub fn from_toml(text: &str) -> Result<Fleet, String> {
        let written: Written = toml::from_str(text).map_err(|error| error.to_string())?;
        let section = parse_size(&written.section)?;
        let section_blocks = u16::try_from(section / BLOCK_BYTES)
            .ok()
            .filter(|blocks| *blocks > 1 && section.is_multiple_of(BLOCK_BYTES))
            .ok_or_else(|| {
                format!("a section of {section} bytes is not at least two pageblocks")
            })?;
        let sections = |text: &str| Ok::<u64, String>(parse_size(text)? / section);
        let own = sections(&written.host_memory)?;
        let own_sections = u32::try_from(own)
            .ok()
            .filter(|nr| *nr > 0)
            .ok_or("a host has no section, or too many")?;
        let pool_sections = sections(&written.pool_memory)?;
        let few = |text: Option<&String>, or: u64| -> Result<u32, String> {
            let nr = text.map_or(Ok(or), |text| sections(text))?;
            u32::try_from(nr).map_err(|_| "too many sections".to_owned())
        };
        let mut kinds = Vec::new();
        for kind in &written.tenant {
            let pages = parse_size(&kind.memory)? / PAGE_BYTES;
            let unmovable = kind.unmovable.as_deref().map_or(Ok(0), parse_size)? / PAGE_BYTES;
            if pages == 0 || unmovable > pages || kind.hours == 0 || kind.hours > 1 << 20 {
                return Err(format!(
                    "a tenant of {} for {} hours makes no sense",
                    kind.memory, kind.hours
                ));
            }
            kinds.push(Kind {
                pages,
                unmovable,
                weight: kind.weight,
                hours: kind.hours,
            });
        }
        let weights: u64 = kinds.iter().map(|kind| u64::from(kind.weight)).sum();
        let is_sound = written.hosts > 0
            && written.hosts <= 1 << 20
            && weights > 0
            && written.load_percent <= 1000;
        if !is_sound {
            return Err(
                "a fleet has hosts (up to 2^20), tenants that come, and a load of up to 1000 %"
                    .to_owned(),
            );
        }
        Ok(Fleet {
            about: written.about.unwrap_or_default(),
            nr_hosts: written.hosts,
            section_blocks,
            own_sections,
            pool_sections,
            most_per_host: few(written.pool_per_host.as_ref(), own)?,
            keep_free: few(written.keep_free.as_ref(), own / 64)?,
            own_reserve: few(written.own_reserve.as_ref(), own / 64)?,
            nr_hours: written.hours,
            load_percent: written.load_percent,
            hot_percent: written.hot_percent.unwrap_or(0).min(100),
            hot_factor: written.hot_factor.unwrap_or(1).clamp(1, 1000),
            moves_per_hour: written
                .moves_per_hour
                .as_deref()
                .map_or(Ok(64 << 30), parse_size)?
                / PAGE_BYTES,
            seed: written.seed.unwrap_or(1),
            policies: written.policies.unwrap_or_else(|| Policy::ALL.to_vec()),
            kinds,
        })
    }

    /// All memory, in pageblocks.
    pub fn total_blocks(&self) -> u64 {
        let own = u64::from(self.nr_hosts) * u64::from(self.own_sections);
        (own + self.pool_sections) * u64::from(self.section_blocks)
    }

    /// Tenants that come in an hour, in thousandths, so that the load is what is asked for: what
    /// comes in an hour, times how long it stays, is what is there.
    pub fn arrivals_per_1000_hours(&self) -> u64 {
        let weights: u128 = self.kinds.iter().map(|kind| u128::from(kind.weight)).sum();
        let page_hours: u128 = self
            .kinds
            .iter()
            .map(|kind| u128::from(kind.weight) * u128::from(kind.pages) * u128::from(kind.hours))
            .sum();
        let pages = u128::from(self.total_blocks()) * u128::from(BLOCK_PAGES);
        let wanted = pages * u128::from(self.load_percent) / 100;
        u64::try_from(wanted * weights * 1000 / page_hours.max(1)).unwrap_or(u64::MAX)
    }
}
