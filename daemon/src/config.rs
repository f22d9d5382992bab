//! From what was typed, the environment and the file to one checked plan.
//!
//! [`Config::load`] is the only way in: a [`Config`] that exists is consistent, so nothing after
//! it looks at a flag or a file again. What the system then has to say to the plan (memory,
//! sockets, groups) is found out by [`app`](crate::app) and [`check`](crate::check).
//!
//! Order of precedence: flag, environment, file, default.

mod error;
mod file;
mod plan;
mod show;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hugepool_engine::{Limit, Quarantine, Whom};
use hugepool_mm::{ContiguityMode, Geometry, ZoneKind};
use hugepool_shm::backing::BackingChoice;
use hugepool_shm::runtime_dir;

pub use error::ConfigError;
pub use file::File;
pub use show::explain;

use crate::flags::{Flags, ZoneFlag};
use crate::size::Bytes;

/// Zones a page word can name.
pub const MAX_ZONES: usize = 8;

/// Everything the daemon is told, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where sockets and the lock lie.
    pub runtime_dir: PathBuf,
    /// Sizes of page, pageblock, largest block and section.
    pub geometry: Geometry,
    /// Zones in the order of their pfns.
    pub zones: Vec<ZonePlan>,
    /// Indices of zones, in the order that a request without a zone takes them.
    pub zonelist: Vec<u8>,
    /// Who may open the sockets.
    pub sockets: SocketPlan,
    /// Ceilings.
    pub limits: Limits,
    /// Floors and ceilings of users and clients.
    pub allotments: Vec<LimitPlan>,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Compaction and its caches.
    pub compaction: CompactionPlan,
    /// How long the lanes thread goes on looking for work after the last, before it sleeps.
    pub spin: Duration,
    /// Filter of the log.
    pub log: String,
}

/// One zone, as it is to be at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZonePlan {
    /// What requests call it.
    pub name: String,
    /// Whether unmovable pages may come from it.
    pub kind: ZoneKind,
    /// Page frame number of its first page.
    pub start_pfn: u32,
    /// Sections that are there at the start.
    pub nr_sections: u32,
    /// Pages it may grow to: the length of its file.
    pub span_pages: u64,
    /// NUMA node, any if none.
    pub node: Option<u32>,
    /// Where its memory may come from.
    pub backing: BackingChoice,
    /// Users who may use it; with no users and no groups, all who may attach.
    pub allow_uids: Vec<u32>,
    /// Groups that may use it, be it as primary or as supplementary group.
    pub allow_gids: Vec<u32>,
    /// Of all its clients together: what offline leaves of it, and the most lent out of it.
    pub limit: Limit,
    /// How long pages of the dead wait.
    pub quarantine: Quarantine,
}

/// A floor and a ceiling of each client or of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPlan {
    /// The user; without one each client.
    pub uid: Option<u32>,
    /// The zone; without one all together.
    pub zone: Option<String>,
    /// What is set.
    pub limit: Limit,
}

impl LimitPlan {
    /// Whom it is for.
    pub fn whom(&self) -> Whom {
        self.uid.map_or(Whom::EachClient, Whom::User)
    }
}

impl ZonePlan {
    /// Whether a client of this user, with this primary and these supplementary groups, may use the
    /// zone. Root always may.
    pub fn allows(&self, uid: u32, gid: u32, groups: &[u32]) -> bool {
        let open = self.allow_uids.is_empty() && self.allow_gids.is_empty();
        let in_group = |allowed: &u32| *allowed == gid || groups.contains(allowed);
        open || uid == 0 || self.allow_uids.contains(&uid) || self.allow_gids.iter().any(in_group)
    }
}

/// Groups of the sockets; without one a socket is for the daemon's own user and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPlan {
    /// Of `pages.sock` and `attach.sock`.
    pub pages_group: GroupPlan,
    /// Of `admin.sock`.
    pub admin_group: GroupPlan,
}

/// A group, and whether it must exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name.
    pub name: String,
    /// Named by the operator: its absence is an error. The default group may be missing.
    pub is_required: bool,
}

/// Ceilings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients attached at once.
    pub clients: u16,
    /// Connections to `attach.sock` of one user at once.
    pub connections_per_uid: u32,
    /// Lanes of one client.
    pub lanes_per_client: u16,
    /// Pages one client may own; none: all there are.
    pub client_ceiling_pages: Option<u64>,
}

/// Compaction and its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionPlan {
    /// Contiguity caches in use.
    pub contiguity: ContiguityMode,
    /// How readily large blocks are made in the background: 0 (never) to 100.
    pub proactiveness: u32,
    /// Pages moved in the background in a second, at most.
    pub background_pages_per_second: u64,
}

/// Deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For each step of attaching.
    pub attach: Duration,
    /// How long an offline waits for held pages when the request does not say.
    pub offline: Duration,
    /// How long calls in flight may still run after a signal to stop.
    pub drain: Duration,
}

/// What of the environment decides where the run-time directory is. A value, so that a test need
/// not touch the process.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `$RUNTIME_DIRECTORY`: set by systemd, several separated by colons.
    pub runtime_directory: Option<String>,
    /// `$XDG_RUNTIME_DIR`.
    pub xdg_runtime_dir: Option<String>,
    /// Whether the daemon runs as root.
    pub is_root: bool,
}

impl Surroundings {
    /// Those of this process.
    pub fn of_this_process() -> Surroundings {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Surroundings {
            runtime_directory: text("RUNTIME_DIRECTORY"),
            xdg_runtime_dir: text("XDG_RUNTIME_DIR"),
            is_root: nix::unistd::geteuid().is_root(),
        }
    }

    /// Where the run-time directory is, by the one rule of all programs.
    fn runtime_dir(&self, flag: Option<&Path>, configured: Option<&Path>) -> Option<PathBuf> {
        let variable = |name: &str| match name {
            "RUNTIME_DIRECTORY" => self.runtime_directory.clone().map(OsString::from),
            "XDG_RUNTIME_DIR" => self.xdg_runtime_dir.clone().map(OsString::from),
            // Our own variable comes with the flags.
            _ => None,
        };
        let place = runtime_dir::of_daemon(&runtime_dir::Surroundings {
            flag,
            variable: &variable,
            configured,
            is_root: self.is_root,
        });
        place.ok().map(|place| place.path)
    }
}

impl Config {
    /// Reads the file that the flags name, if any, and checks the whole.
    ///
    /// # Errors
    /// [`ConfigError`]: what is wrong and what to do next. Nothing has been opened or changed.
    pub fn load(flags: &Flags, around: &Surroundings) -> Result<Config, ConfigError> {
        let file = match &flags.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        Config::build(flags, file, around)
    }

    /// As [`load`](Self::load), of a file's text; `path` is what messages call it.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn of_text(
        text: &str,
        path: &Path,
        flags: &Flags,
        around: &Surroundings,
    ) -> Result<Config, ConfigError> {
        Config::build(flags, parse(text, path)?, around)
    }

    /// The defaults of this process in a run-time directory of its own, for a program that
    /// carries the daemon in itself.
    ///
    /// # Errors
    /// [`ConfigError`] when `zones` do not make a plan.
    pub fn embedded(runtime_dir: &Path, zones: Vec<ZoneFlag>) -> Result<Config, ConfigError> {
        let flags = Flags {
            runtime_dir: Some(runtime_dir.to_owned()),
            zones,
            ..Flags::default()
        };
        Config::build(&flags, File::default(), &Surroundings::default())
    }

    fn build(flags: &Flags, file: File, around: &Surroundings) -> Result<Config, ConfigError> {
        let runtime_dir = around
            .runtime_dir(flags.runtime_dir.as_deref(), file.runtime_dir.as_deref())
            .ok_or(ConfigError::NoRuntimeDir)?;
        let log = flags
            .log
            .clone()
            .or(file.log)
            .unwrap_or_else(|| "info".to_owned());
        crate::telemetry::check_filter(&log)?;

        let geometry = plan::geometry(flags.section_size, &file.geometry)?;
        let zones = plan::zones(&flags.zones, &file.zone, geometry)?;
        let zonelist = plan::zonelist(file.zonelist, &zones)?;
        Ok(Config {
            runtime_dir,
            geometry,
            zonelist,
            sockets: plan::sockets(file.sockets),
            limits: plan::limits(&file.limits, geometry)?,
            allotments: plan::allotments(&file.limit, &zones, geometry)?,
            timeouts: plan::timeouts(&file.timeouts)?,
            compaction: plan::compaction(&file.compaction, geometry)?,
            spin: plan::spin(flags.spin_us, &file.lanes)?,
            log,
            zones,
        })
    }
}

fn read(path: &Path) -> Result<File, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<File, ConfigError> {
    toml::from_str(text).map_err(|source| ConfigError::Parse {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Bytes of `nr_pages` pages, for messages.
pub fn pages_as_bytes(nr_pages: u64, geometry: Geometry) -> Bytes {
    Bytes(nr_pages.saturating_mul(geometry.page_bytes()))
}

#[cfg(test)]
mod tests;
