//! What happened: one event, of one of the kinds that the schema has.
//!
//! Fields that only some kinds have are in [`More`]. The store of all events of a source is
//! [`Events`](super::events::Events).

use serde::Serialize;

/// What kind of thing happened. The names printed are those of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum EventKind {
    Alloc,
    AllocFailed,
    Free,
    FreeListRemove,
    Online,
    OnlineFailed,
    Offline,
    OfflineFailed,
    Remove,
    RemoveFailed,
    MigrateFailed,
    Plug,
    Unplug,
    PlugFailed,
    Request,
    OomKill,
    CompactBegin,
    CompactEnd,
    CompactFinished,
    IsolateMigrate,
    IsolateFree,
    Fallback,
    AddCapacity,
    ReleaseCapacity,
}

/// One thing that happened. `None` is unknown, and is not printed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Event<'a> {
    /// The line of the source, from 1.
    pub line: u64,
    /// Seconds since boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    pub kind: EventKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pfn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<u32>,
    /// As printed: a name, or the number of a kernel that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migratetype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'a str>,
    /// Allocation flags as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gfp: Option<&'a str>,
    /// What only some kinds have.
    #[serde(flatten)]
    pub more: More<'a>,
}

/// The fields that only some kinds have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct More<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nr_pages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_pfn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// The number of the memory block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_byte: Option<u64>,
    /// One past the last byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_byte: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<&'a str>,
    /// `movable` or `kernel`, where the onlining said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ret: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugged_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nr_scanned: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nr_taken: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrate_pfn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_pfn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_order: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_migratetype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pageblock_order: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmenting: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_ownership: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<&'a str>,
}

impl<'a> Event<'a> {
    /// An event of which no more is known than its kind and its line.
    pub fn new(kind: EventKind, line: u64) -> Event<'a> {
        Event {
            line,
            time: None,
            kind,
            pfn: None,
            order: None,
            migratetype: None,
            cpu: None,
            pid: None,
            task: None,
            gfp: None,
            more: More::default(),
        }
    }
}

impl More<'_> {
    /// The numbers of `self`, and where it knows none, those of `under`. Texts are left out.
    pub(super) fn over(self, under: More<'static>) -> More<'static> {
        More {
            nr_pages: self.nr_pages.or(under.nr_pages),
            end_pfn: self.end_pfn.or(under.end_pfn),
            block: self.block.or(under.block),
            start_byte: self.start_byte.or(under.start_byte),
            end_byte: self.end_byte.or(under.end_byte),
            node: self.node.or(under.node),
            ret: self.ret.or(under.ret),
            requested_bytes: self.requested_bytes.or(under.requested_bytes),
            plugged_bytes: self.plugged_bytes.or(under.plugged_bytes),
            nr_scanned: self.nr_scanned.or(under.nr_scanned),
            nr_taken: self.nr_taken.or(under.nr_taken),
            migrate_pfn: self.migrate_pfn.or(under.migrate_pfn),
            free_pfn: self.free_pfn.or(under.free_pfn),
            fallback_order: self.fallback_order.or(under.fallback_order),
            pageblock_order: self.pageblock_order.or(under.pageblock_order),
            fragmenting: self.fragmenting.or(under.fragmenting),
            change_ownership: self.change_ownership.or(under.change_ownership),
            region: self.region.or(under.region),
            ..More::default()
        }
    }
}
