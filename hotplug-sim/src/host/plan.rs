//! From a machine description to what is to be built: geometry, zones, where their pages are.
//!
//! A description may leave anything out. What is assumed in its place is said in
//! [`Plan::notes`], one line each; nothing is assumed in silence. Kernel zones become ours:
//! `Movable` movable, `Device` not built, all others normal.

mod assumed;

use std::collections::BTreeMap;

use hugepool_mm::{Geometry, ZoneKind};

use super::free_lists::{self, Free};
use crate::import::machine::{Machine, MachineDevice, MachineZone};
use assumed::{set_reserves, zones_of_blocks};

/// The most pages that a zone can reach over (16 TiB of 4 KiB pages).
pub const MOST_PAGES: u64 = 1 << 32;

/// No machine has a page beyond this one (2^44 of them are 64 PiB of the smallest): what a
/// description says above is not believed.
const FARTHEST: u64 = 1 << 44;

/// The end of the first MiB of a PC, in pages.
const LOW_END: u64 = 256;

/// What is to be built.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sizes, the same for all zones.
    pub geometry: Geometry,
    /// Zones, by node and address.
    pub zones: Vec<ZonePlan>,
    /// Memory blocks that are there and in no zone: number and node.
    pub offline: Vec<(u64, u32)>,
    /// Blocks said to be removable, or not.
    pub removable: BTreeMap<u64, bool>,
    /// Devices.
    pub devices: Vec<MachineDevice>,
    /// `min_free_kbytes`, as the marks of the zones add up to it.
    pub min_free_kib: Option<u64>,
    /// What was assumed, and what a person should know.
    pub notes: Vec<String>,
}

/// A zone to be built. Pages are numbered as the kernel numbers them.
#[derive(Clone, Debug)]
pub struct ZonePlan {
    /// As the kernel calls it.
    pub name: String,
    /// Its node.
    pub node: u32,
    /// What it becomes.
    pub kind: ZoneKind,
    /// Where its pages are: first and one past the last, ascending and apart.
    pub extents: Vec<(u64, u64)>,
    /// Where it may ever have pages.
    pub reserve: (u64, u64),
    /// The description says so itself.
    pub is_fixed: bool,
    /// Present pages that are not managed.
    pub reserved: u64,
    /// What is free.
    pub free: Free,
}

impl ZonePlan {
    /// Pages that exist.
    pub fn present(&self) -> u64 {
        self.extents.iter().map(|(start, end)| end - start).sum()
    }
}

/// Why no machine can be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No size is known of anything.
    #[error("the description has neither zones nor memory blocks of known size: nothing to build")]
    Nothing,
    /// Sizes that our zones cannot have.
    #[error("{0}")]
    Geometry(String),
    /// Two ends of a node are too far apart.
    #[error("node {node} reaches over {nr_pages} pages, more than {MOST_PAGES}")]
    TooFar {
        /// The node.
        node: u32,
        /// From its first page to its last.
        nr_pages: u64,
    },
}

/// Works out what is to be built.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(machine: &Machine) -> Result<Plan, PlanError> {
    let mut notes = Vec::new();
    let geometry = geometry(machine, &mut notes)?;
    let machine = &believable(machine, geometry, &mut notes);
    let page_bytes = geometry.page_bytes();
    let section_pages = u64::from(geometry.section_pages());
    let ram = ram(machine, page_bytes);
    let online = blocks(machine, section_pages, "online");
    let mut zones: Vec<ZonePlan> = Vec::new();
    let mut next = 0;
    for zone in &machine.zones {
        if zone.name == "Device" {
            notes.push(format!("zone Device of node {}: not built", zone.node));
            continue;
        }
        if let Some(plan) = plan_zone(zone, &ram, &online, geometry, &mut next, &mut notes) {
            zones.push(plan);
        }
    }
    if zones.is_empty() {
        zones = zones_of_blocks(&online, &ram, &mut notes);
    }
    if let (true, Some(bytes)) = (zones.is_empty(), machine.boot_bytes) {
        notes.push(format!(
            "only its size is known: one zone of {bytes} bytes, all of it free"
        ));
        zones.push(ZonePlan {
            name: "Normal".to_owned(),
            node: 0,
            kind: ZoneKind::Normal,
            extents: cut([(0, bytes / page_bytes)].into_iter(), (0, MOST_PAGES)),
            reserve: (0, 0),
            is_fixed: false,
            reserved: 0,
            free: Free::All,
        });
    }
    let offline: Vec<(u64, u32)> = blocks(machine, section_pages, "offline")
        .into_iter()
        .flat_map(|(start, end, node, _)| {
            (start / section_pages..end / section_pages).map(move |id| (id, node.unwrap_or(0)))
        })
        .collect();
    if zones.iter().all(|zone| zone.extents.is_empty()) && offline.is_empty() {
        return Err(PlanError::Nothing);
    }
    set_reserves(machine, geometry, &offline, &mut zones)?;
    zones.sort_by_key(|zone| (zone.node, zone.extents.first().map_or(u64::MAX, |at| at.0)));
    for zone in zones.iter().filter(|zone| !zone.extents.is_empty()) {
        let kind = if zone.kind == ZoneKind::Movable {
            "movable"
        } else {
            "normal"
        };
        notes.push(format!(
            "zone {} of node {}: built as a {kind} zone of {} pages present, {} of them managed; {}",
            zone.name,
            zone.node,
            zone.present(),
            zone.present() - zone.reserved,
            zone.free.describe()
        ));
    }
    Ok(Plan {
        geometry,
        offline,
        removable: removable(machine),
        devices: machine.devices.clone(),
        min_free_kib: min_free_kib(machine, page_bytes),
        zones,
        notes,
    })
}

fn geometry(machine: &Machine, notes: &mut Vec<String>) -> Result<Geometry, PlanError> {
    let page_bytes = machine.page_size_bytes.unwrap_or_else(|| {
        notes.push("page size not known: taken as 4096 bytes".to_owned());
        4096
    });
    let page_shift = match page_bytes {
        4096 => 12,
        16384 => 14,
        65536 => 16,
        other => {
            return Err(PlanError::Geometry(format!(
                "pages of {other} bytes: not 4, 16 or 64 KiB"
            )));
        }
    };
    let usual = [(12, 9), (14, 11), (16, 13)];
    let pageblock = machine
        .pageblock_order
        .and_then(|order| u8::try_from(order).ok())
        .filter(|order| (5..=13).contains(order));
    let pageblock_order = pageblock.unwrap_or_else(|| {
        let order = usual
            .iter()
            .find(|one| one.0 == page_shift)
            .map_or(9, |one| one.1);
        notes.push(format!("pageblock order not known: taken as {order}"));
        order
    });
    let orders = machine
        .zones
        .iter()
        .filter_map(|zone| zone.free_blocks_by_order.as_ref())
        .map(Vec::len)
        .max();
    let max_order = orders
        .and_then(|nr| u8::try_from(nr.saturating_sub(1)).ok())
        .unwrap_or(if page_shift == 12 {
            10
        } else {
            pageblock_order
        })
        .clamp(pageblock_order, 15);
    let wanted = machine.section_bytes.unwrap_or_else(|| {
        notes.push(
            "size of a memory block not known: taken as 128 MiB, or the largest block".to_owned(),
        );
        128 << 20
    });
    let most = 31 - page_shift;
    let pages = (wanted >> page_shift).max(1);
    let section_order = u8::try_from(pages.ilog2())
        .unwrap_or(most)
        .clamp(max_order.min(most), most);
    if pages != 1 << section_order {
        notes.push(format!(
            "memory blocks of {wanted} bytes: simulated in sections of {} bytes",
            page_bytes << section_order
        ));
    }
    let max_order = max_order.min(section_order);
    Geometry::new(page_shift, pageblock_order, max_order, section_order)
        .map_err(|error| PlanError::Geometry(error.to_string()))
}

/// First page, one past the last, node and zones of a run of memory blocks.
type Run = (u64, u64, Option<u32>, Vec<String>);

fn blocks(machine: &Machine, section_pages: u64, state: &str) -> Vec<Run> {
    machine
        .blocks
        .iter()
        .filter(|blocks| blocks.state.as_deref().unwrap_or("online") == state)
        .filter_map(|blocks| {
            let start = blocks.first.checked_mul(section_pages)?;
            let end = blocks.last.checked_add(1)?.checked_mul(section_pages)?;
            Some((
                start,
                end,
                blocks.node,
                blocks.zones.clone().unwrap_or_default(),
            ))
        })
        .collect()
}

fn ram(machine: &Machine, page_bytes: u64) -> Vec<(u64, u64, Option<u32>)> {
    let mut ram: Vec<_> = machine
        .ram
        .iter()
        .map(|ram| {
            (
                ram.start_byte.div_ceil(page_bytes),
                ram.end_byte / page_bytes,
                ram.node,
            )
        })
        .filter(|(start, end, _)| start < end)
        .collect();
    ram.sort_unstable();
    ram
}

fn removable(machine: &Machine) -> BTreeMap<u64, bool> {
    let mut by_block = BTreeMap::new();
    for blocks in &machine.blocks {
        if let Some(removable) = blocks.removable {
            by_block.extend((blocks.first..=blocks.last).map(|id| (id, removable)));
        }
    }
    by_block
}

fn min_free_kib(machine: &Machine, page_bytes: u64) -> Option<u64> {
    let normal = machine
        .zones
        .iter()
        .filter(|zone| zone.name != "Movable" && zone.name != "Device");
    let sum: i64 = normal
        .filter_map(|zone| zone.min)
        .filter(|min| *min > 0)
        .fold(0, i64::saturating_add);
    u64::try_from(sum)
        .ok()
        .filter(|sum| (1..=MOST_PAGES).contains(sum))
        .map(|pages| pages.saturating_mul(page_bytes >> 10))
}

fn count(value: Option<i64>) -> Option<u64> {
    value
        .and_then(|value| u64::try_from(value).ok())
        .filter(|pages| *pages <= FARTHEST)
}

/// The description without what no machine can have, which is said.
fn believable(machine: &Machine, geometry: Geometry, notes: &mut Vec<String>) -> Machine {
    let mut machine = machine.clone();
    let most_blocks = FARTHEST / u64::from(geometry.section_pages());
    let most_bytes = FARTHEST.saturating_mul(geometry.page_bytes());
    let mut left_out = |what: &str, nr: usize| {
        if nr > 0 {
            notes.push(format!("{nr} {what} beyond all bounds: left out"));
        }
    };
    let before = machine.blocks.len();
    machine.blocks.retain(|blocks| {
        blocks.last < most_blocks
            && blocks.last - blocks.first < MOST_PAGES / u64::from(geometry.section_pages())
    });
    left_out("runs of memory blocks", before - machine.blocks.len());
    let before = machine.ram.len();
    machine.ram.retain(|ram| ram.end_byte <= most_bytes);
    left_out("ranges of memory", before - machine.ram.len());
    let before = machine.devices.len();
    let most_device = MOST_PAGES * geometry.page_bytes();
    machine.devices.retain(|device| {
        device.size_bytes.unwrap_or(0) <= most_device
            && device.address.unwrap_or(0) <= most_bytes - most_device
    });
    left_out("devices", before - machine.devices.len());
    let before = machine.zones.len();
    machine.zones.retain(|zone| {
        let pages = [zone.present, zone.managed, zone.free]
            .into_iter()
            .filter_map(count)
            .max();
        zone.start_pfn.unwrap_or(0) <= FARTHEST && pages.unwrap_or(0) <= MOST_PAGES
    });
    left_out("zones", before - machine.zones.len());
    machine
}

fn plan_zone(
    zone: &MachineZone,
    ram: &[(u64, u64, Option<u32>)],
    online: &[Run],
    geometry: Geometry,
    next: &mut u64,
    notes: &mut Vec<String>,
) -> Option<ZonePlan> {
    let of = format!("zone {} of node {}", zone.name, zone.node);
    let kind = match zone.kind.as_deref() {
        Some("movable") => ZoneKind::Movable,
        Some(_) => ZoneKind::Normal,
        None if zone.name == "Movable" => ZoneKind::Movable,
        None => ZoneKind::Normal,
    };
    let wrapped = [zone.present, zone.managed, zone.spanned, zone.free]
        .iter()
        .any(|value| value.is_some_and(|value| value < 0));
    if wrapped {
        notes.push(format!("{of}: a counter below zero is taken as not known"));
    }
    let lists = free_lists::of(zone, kind, geometry, &of, notes);
    let in_blocks = count_pageblocks(zone) << geometry.pageblock_order().get();
    let present = count(zone.present)
        .or(count(zone.managed))
        .or((in_blocks > 0).then_some(in_blocks))
        .or(count(zone.spanned))
        .unwrap_or_else(|| {
            let free = lists.nr_pages().or(count(zone.free)).unwrap_or(0);
            if free > 0 {
                notes.push(format!(
                    "{of}: its size is not known; half of it is taken to be free"
                ));
            }
            (2 * free).next_multiple_of(u64::from(geometry.section_pages()))
        });
    let section_pages = u64::from(geometry.section_pages());
    let fixed = zone
        .reserve_first
        .zip(zone.reserve_bytes)
        .map(|(first, bytes)| {
            let start = first.saturating_mul(section_pages);
            let end = start.saturating_add((bytes / geometry.page_bytes()).max(section_pages));
            (start, end / section_pages * section_pages)
        });
    if present == 0 && fixed.is_none() {
        return None;
    }
    let start = zone.start_pfn.unwrap_or_else(|| {
        let start = next.next_multiple_of(section_pages);
        notes.push(format!(
            "{of}: where it starts is not known; it is put at pfn {start}"
        ));
        start
    });
    let spanned = count(zone.spanned).unwrap_or(present).max(present);
    *next = (*next).max(start + spanned);
    let span = (start, start + spanned);
    let named = |run: &&Run| run.3.is_empty() || run.3.first() == Some(&zone.name);
    let here = |node: Option<u32>| node.is_none_or(|node| node == zone.node);
    let from_ram = cut(
        ram.iter()
            .filter(|one| here(one.2))
            .map(|one| (one.0, one.1)),
        span,
    );
    let from_blocks = cut(
        online
            .iter()
            .filter(|run| here(run.2))
            .filter(named)
            .map(|run| (run.0, run.1)),
        span,
    );
    let total =
        |extents: &[(u64, u64)]| extents.iter().map(|(start, end)| end - start).sum::<u64>();
    let extents = if total(&from_ram) == present {
        from_ram
    } else if total(&from_blocks) == present {
        from_blocks
    } else if spanned == present {
        vec![span]
    } else if start < LOW_END && spanned - present < LOW_END - start && span.1 > LOW_END {
        // What a PC lacks of its first MiB lies at the end of it.
        cut(
            [(start, LOW_END - (spanned - present)), (LOW_END, span.1)].into_iter(),
            span,
        )
    } else {
        // The last memory block of a span is there, or the span would be shorter.
        let tail = present
            .min(section_pages)
            .min(spanned - present)
            .min(present / 2 + 1);
        notes.push(format!(
            "{of}: where its {} pages of holes are is not known; they are put before its last {tail} pages",
            spanned - present
        ));
        cut(
            [(start, start + present - tail), (span.1 - tail, span.1)].into_iter(),
            span,
        )
    };
    let managed = count(zone.managed).unwrap_or(present).min(present);
    let free = match lists {
        Free::All => match count(zone.free) {
            Some(pages) => Free::large(pages, kind, geometry),
            None => Free::All,
        },
        lists => lists,
    };
    Some(ZonePlan {
        name: zone.name.clone(),
        node: zone.node,
        kind,
        reserve: fixed.unwrap_or(span),
        is_fixed: fixed.is_some(),
        extents,
        reserved: present - managed,
        free,
    })
}

fn count_pageblocks(zone: &MachineZone) -> u64 {
    let counts = zone.pageblocks_by_type.values();
    counts
        .filter_map(|count| u64::try_from(count.as_integer()?).ok())
        .fold(0, |sum, nr| (sum + nr.min(MOST_PAGES)).min(MOST_PAGES))
}

/// The parts of ranges that lie in a span, joined where they touch.
fn cut(ranges: impl Iterator<Item = (u64, u64)>, span: (u64, u64)) -> Vec<(u64, u64)> {
    let mut sorted: Vec<_> = ranges
        .map(|(start, end)| (start.max(span.0), end.min(span.1)))
        .filter(|(start, end)| start < end)
        .collect();
    sorted.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in sorted {
        match joined.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}
