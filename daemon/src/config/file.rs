//! The configuration file as it is written: TOML, every key optional, unknown keys refused.
//!
//! A shape only; [`config`](super) gives it meaning.
//!
//! ```toml
//! runtime_dir = "/run/hugepool"
//! log = "info"
//! zonelist = ["normal", "movable"]
//!
//! [geometry]
//! section_size = "128MiB"
//!
//! [[zone]]
//! name = "normal"
//! size = "512MiB"
//! backing = "hugetlb"
//! ```

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::size::Bytes;

/// The whole file.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// Where sockets and the lock lie.
    pub runtime_dir: Option<PathBuf>,
    /// What is logged.
    pub log: Option<String>,
    /// Zones in the order that a request without a zone takes them.
    pub zonelist: Option<Vec<String>>,
    /// Sizes of page, pageblock and section.
    pub geometry: GeometryTable,
    /// Zones, in the order of their pfns.
    pub zone: Vec<ZoneTable>,
    /// Who may open the sockets.
    pub sockets: SocketsTable,
    /// Ceilings.
    pub limits: LimitsTable,
    /// Floors and ceilings of users and clients.
    pub limit: Vec<LimitTable>,
    /// Deadlines.
    pub timeouts: TimeoutsTable,
    /// Compaction and its caches.
    pub compaction: CompactionTable,
    /// Service of the clients' lanes.
    pub lanes: LanesTable,
}

/// `[geometry]`.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GeometryTable {
    /// 4KiB, 16KiB or 64KiB.
    pub page_size: Option<Bytes>,
    /// Pages of a pageblock, as a power of two.
    pub pageblock_order: Option<u8>,
    /// Largest block, as a power of two of pages; inclusive.
    pub max_page_order: Option<u8>,
    /// Grain of hot-add and hot-remove.
    pub section_size: Option<Bytes>,
}

/// `[[zone]]`.
#[derive(Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneTable {
    /// What requests call it.
    pub name: String,
    /// Bytes that are there at the start.
    pub size: Bytes,
    /// `normal` or `movable`.
    pub kind: Option<String>,
    /// Bytes it may grow to.
    pub reserve: Option<Bytes>,
    /// NUMA node: its memory comes from there, and clients that run there are served from it first.
    pub node: Option<u32>,
    /// `auto`, `hugetlb`, `thp` or `shm`.
    pub backing: Option<String>,
    /// Users who may use it; with no users and no groups, all who may open the sockets.
    #[serde(default)]
    pub allow_uids: Vec<u32>,
    /// Groups that may use it, be it as primary or as supplementary group.
    #[serde(default)]
    pub allow_gids: Vec<u32>,
    /// Bytes that offline leaves of it.
    pub floor: Option<Bytes>,
    /// The most bytes lent out of it at a time.
    pub ceiling: Option<Bytes>,
    /// How long pages of a client that died wait before they are lent again, for devices that may
    /// still write them: `none`, a time like `500ms` or `10s`, or `until-released`.
    pub quarantine: Option<String>,
}

/// `[[limit]]`.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitTable {
    /// For all clients of this user together; without it for each client.
    pub uid: Option<u32>,
    /// In this zone; without it in all together, which a floor cannot be.
    pub zone: Option<String>,
    /// Bytes that are kept for it.
    pub floor: Option<Bytes>,
    /// The most bytes it may own.
    pub ceiling: Option<Bytes>,
}

/// `[sockets]`.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SocketsTable {
    /// Group of `pages.sock` and `attach.sock`.
    pub pages_group: Option<String>,
    /// Group of `admin.sock`.
    pub admin_group: Option<String>,
}

/// `[limits]`.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsTable {
    /// Clients attached at once.
    pub clients: Option<u16>,
    /// Connections to `attach.sock` of one user at once.
    pub connections_per_uid: Option<u32>,
    /// Lanes of one client.
    pub lanes_per_client: Option<u16>,
    /// Bytes that one client may own.
    pub client_ceiling: Option<Bytes>,
}

/// `[compaction]`.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompactionTable {
    /// Contiguity caches in use: `none`, `zone`, `pageblock` or `both`.
    pub contiguity: Option<String>,
    /// How readily large blocks are made in the background: 0 (never) to 100.
    pub proactiveness: Option<u32>,
    /// Bytes moved in the background in a second, at most.
    pub background_rate: Option<Bytes>,
}

/// `[lanes]`.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LanesTable {
    /// Microseconds that the daemon goes on looking for work after the last was done, before it
    /// sleeps; 0 on machines with fewer than 4 processors, 50 else.
    pub spin_us: Option<u32>,
}

/// `[timeouts]`.
#[derive(Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutsTable {
    /// From connecting to the attach request, and from the reply to its confirmation; for gRPC from
    /// connecting to the first words.
    pub attach_ms: Option<u32>,
    /// How long an offline waits for held pages when the request does not say.
    pub offline_ms: Option<u32>,
    /// How long calls in flight may still run after a signal to stop.
    pub drain_ms: Option<u32>,
}
