//! What an engine is made from, as plain settings.
//!
//! Parsing and files are the daemon's; values are checked when the
//! [`Engine`](crate::Engine) is made.

use core::time::Duration;

use hugepool_mm::{ContiguityMode, Geometry, ZoneKind};

use crate::quarantine::Quarantine;

/// Settings that a zone is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// Unique name.
    pub name: String,
    /// What it serves.
    pub kind: ZoneKind,
    /// NUMA node; -1: any.
    pub node: i32,
    /// Length of its reserve in pages, a multiple of the section.
    pub reserve_pages: u64,
    /// The most pages lent out of it at a time; `None`: no ceiling.
    pub ceiling_pages: Option<u64>,
    /// Managed pages that offline leaves of it; 0: none.
    pub floor_pages: u64,
    /// How long pages of the dead wait there.
    pub quarantine: Quarantine,
}

/// What an engine is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Sizes, the same for all zones.
    pub geometry: Geometry,
    /// The zones, in order of index and of the zonelist; at most 8.
    pub zones: Vec<ZoneSettings>,
    /// The rest.
    pub defaults: Defaults,
}

/// Settings with a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// The most pages a client may own; `None`: no ceiling.
    pub client_ceiling_pages: Option<u64>,
    /// The most pages the daemon keeps in one class of one lane's grants.
    pub lane_credit_pages: u32,
    /// How long `OfflineSections` waits for held pages when it is not told.
    pub offline_timeout: Duration,
    /// Clients and connections at a time.
    pub max_clients: u16,
    /// Contiguity caches in use.
    pub contiguity: ContiguityMode,
    /// How readily the background makes large blocks, 0 (never) to 100: it begins when more than
    /// `110 - proactiveness` per cent of a zone's free memory lie outside of free pageblocks.
    pub proactiveness: u32,
    /// The most pages that the background moves in a second.
    pub background_pages_per_second: u64,
    /// Lanes of a client.
    pub max_lanes: u32,
    /// Batches remembered for a session until it acknowledges them.
    pub max_unacknowledged: usize,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            client_ceiling_pages: None,
            lane_credit_pages: 4096,
            offline_timeout: Duration::from_secs(5),
            max_clients: 1024,
            contiguity: ContiguityMode::default(),
            proactiveness: 20,
            background_pages_per_second: 25_600,
            max_lanes: 64,
            max_unacknowledged: 64,
        }
    }
}
