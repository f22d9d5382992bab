//! What an import yields: the object that `hotplug-sim import -J` prints, field for field.
//!
//! Counts are pages of [`Import::page_size_bytes`] unless a name says bytes or blocks.
//! `None` is unknown, and is not printed; nothing here is ever a guess. The parsers do
//! not fill this in: they write a [`Draft`](super::draft::Draft), in the units of their
//! source, which [`finish`](super::finish) turns into this once the page size is known.

use serde::{Serialize, Serializer};

use super::events::Events;
use super::format::Format;

/// Everything that was read from one or several sources of one machine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Import {
    /// What kinds of text were understood, in the order in which they were met.
    pub formats: Vec<Format>,
    /// Stated or derived; a diagnostic says which.
    pub page_size_bytes: Option<u64>,
    /// The order of a pageblock.
    pub pageblock_order: Option<u32>,
    /// The last state that the sources show.
    pub nodes: Vec<Node>,
    /// Every state, where the source shows a zone more than once; else empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// One entry for each memory block that a source names.
    pub sections: Vec<Section>,
    /// The size of a memory block.
    pub section_bytes: Option<u64>,
    /// Ranges of physical addresses.
    pub ranges: Vec<Range>,
    /// Memory devices.
    pub devices: Vec<Device>,
    /// What happened.
    pub events: Events,
    /// Sums over the machine.
    pub totals: Totals,
    /// What was not understood, contradicts itself or was derived.
    pub diagnostics: Vec<Diagnostic>,
    /// The input, or a line of it, stops in the middle.
    pub truncated: bool,
}

/// The state at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// The line that begins it.
    pub line: u64,
    /// Its nodes.
    pub nodes: Vec<Node>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its number.
    pub node: u32,
    /// Its zones, in the order of the source.
    pub zones: Vec<Zone>,
}

/// A zone of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Zone {
    /// As printed: `DMA`, `Normal`, `Movable`, ...
    pub name: String,
    /// First page frame of the span.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_pfn: Option<u64>,
    /// From the first to the last page, holes included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spanned: Option<i64>,
    /// Pages that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<i64>,
    /// Pages that the allocator was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed: Option<i64>,
    /// `spanned - present`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holes: Option<i64>,
    /// The zone's own counter; without one, its lists summed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<i64>,
    /// [`Zone::free`] is the sum of the lists, because the source has no counter.
    #[serde(skip)]
    pub free_is_summed: bool,
    /// Free pages that belong to CMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_cma: Option<i64>,
    /// Pages reserved for high-order atomic requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_highatomic: Option<i64>,
    /// The marks below which the allocator gets careful.
    #[serde(skip_serializing_if = "Watermarks::is_unknown")]
    pub watermarks: Watermarks,
    /// Pages that requests for a higher zone must leave here, by zone index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protection: Option<Vec<i64>>,
    /// Free blocks; the index is the order. `None` where the source was damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_blocks_by_order: Option<Vec<Option<i64>>>,
    /// The same in pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_pages_by_order: Option<Vec<Option<i64>>>,
    /// The letters of the types that an out-of-memory report prints beside each order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_types_by_order: Option<Vec<String>>,
    /// Free *blocks* by order, for each migratetype.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    pub free_pages_by_order_and_type: Pairs<Vec<Option<i64>>>,
    /// Pageblocks of each migratetype.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    pub pageblocks_by_type: Pairs<i64>,
    /// Pages in the per-CPU lists, over the CPUs printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcp_count: Option<i64>,
    /// `present > 0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub populated: Option<bool>,
}

/// Watermarks of a zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Watermarks {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<i64>,
    /// What fragmentation has raised the marks by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boost: Option<i64>,
}

impl Watermarks {
    /// Whether nothing is known of them.
    pub fn is_unknown(&self) -> bool {
        *self == Watermarks::default()
    }
}

/// Values by name, in the order of the source. Printed as an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs<T>(pub Vec<(String, T)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Pairs(Vec::new())
    }
}

impl<T> Pairs<T> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value)
    }
}

impl<T: Serialize> Serialize for Pairs<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The state of a memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum SectionState {
    Online,
    Offline,
    GoingOffline,
    Absent,
}

/// A memory block, named by the number that the source gives it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Section {
    pub id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_pfn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nr_pages: Option<u64>,
    pub state: Option<SectionState>,
    pub removable: Option<bool>,
    /// The zones it is in or may go to, the owner first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
}

/// Which text a range of addresses was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum RangeKind {
    E820,
    Memblock,
    Node,
    Zone,
    Srat,
    Lsmem,
    Present,
}

/// A range of physical addresses.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Range {
    pub kind: RangeKind,
    pub start_byte: u64,
    /// One past the last byte.
    pub end_byte: u64,
    /// What the firmware or the memory map says of it.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<SectionState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hotplug: Option<bool>,
}

/// What kind of device holds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum DeviceKind {
    VirtioMem,
    Dimm,
    Dax,
    Cxl,
}

impl DeviceKind {
    /// The name that the schema has for it.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::VirtioMem => "virtio-mem",
            DeviceKind::Dimm => "dimm",
            DeviceKind::Dax => "dax",
            DeviceKind::Cxl => "cxl",
        }
    }
}

/// A memory device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Device {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// The whole region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    /// What is there now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugged_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subblock_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_blocks: Option<u64>,
}

impl Device {
    /// A device of which no more is known than its name.
    pub fn new(id: &str) -> Device {
        Device {
            id: id.to_string(),
            kind: None,
            node: None,
            address: None,
            size_bytes: None,
            requested_bytes: None,
            plugged_bytes: None,
            block_bytes: None,
            subblock_bytes: None,
            online_blocks: None,
            total_blocks: None,
        }
    }
}

/// Sums over the machine: what the source prints, or else the sums of the zones and blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Totals {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_cma: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cma_reserved: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highmem: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offline_bytes: Option<u64>,
    /// Memory present without any device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_bytes: Option<u64>,
    /// The ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maxmem_bytes: Option<u64>,
    /// The totals of pages are sums of the zones, not printed.
    #[serde(skip)]
    pub summed: bool,
}

/// How much a diagnostic matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something was derived, or two sources differ as they do between two moments.
    Note,
    /// A line was not understood, or what it says can hardly be right.
    Warning,
    /// What the source says cannot be, or it stops in the middle.
    Error,
}

/// A remark about the source.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Diagnostic {
    /// The line it is about; 0 if it is about no single one.
    pub line: u64,
    pub what: String,
    pub severity: Severity,
}

impl Import {
    /// Whether all was understood: no error, and nothing stops in the middle.
    pub fn is_whole(&self) -> bool {
        !self.truncated
            && self
                .diagnostics
                .iter()
                .all(|diagnostic| diagnostic.severity != Severity::Error)
    }
}
