//! Several sources of one machine become one object, and what they disagree on is said.
//!
//! What one source does not know, another fills in. Where two know different things the
//! first given is kept, except that a zone's own counter of free pages goes before a sum of
//! its lists. Each contradiction is a diagnostic that names both sources.

use super::contradiction::Contradictions;
use super::finish::fill_lists;
use super::model::{
    Device, Diagnostic, Import, Node, Pairs, Range, RangeKind, Section, Severity, Totals, Zone,
};
use super::text;

/// A source that was read: how messages call it, and what it says.
pub struct Part {
    /// File and format, such as `zoneinfo of Z03.txt`.
    pub name: String,
    /// What it says.
    pub import: Import,
}

/// Merges the parts, in the order given. One part is left as it is.
pub fn merge(parts: Vec<Part>) -> Import {
    let several = parts.len() > 1;
    let mut parts = parts.into_iter();
    let Some(first) = parts.next() else {
        return Import::default();
    };
    let mut all = first.import;
    if !several {
        return all;
    }
    prefix(&mut all.diagnostics, &first.name);
    let mut owner = Owner {
        names: vec![first.name],
    };
    for mut part in parts {
        prefix(&mut part.import.diagnostics, &part.name);
        owner.names.push(part.name.clone());
        all.take_in(part.import, &part.name, &owner);
    }
    for zone in all.nodes.iter_mut().flat_map(|node| &mut node.zones) {
        fill_lists(zone);
    }
    if all.totals.summed {
        let zones = || all.nodes.iter().flat_map(|node| &node.zones);
        all.totals.free = zones().try_fold(0_i64, |sum, zone| sum.checked_add(zone.free?));
    }
    all
}

/// The sources merged so far.
struct Owner {
    names: Vec<String>,
}

impl Owner {
    /// The names of those before the last: the ones that a contradiction is with.
    fn before(&self) -> String {
        let (_, before) = self
            .names
            .split_last()
            .map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
        before.join(" and ")
    }
}

fn prefix(diagnostics: &mut [Diagnostic], name: &str) {
    for diagnostic in diagnostics {
        diagnostic.what = format!("{name}: {}", diagnostic.what);
    }
}

impl Import {
    fn take_in(&mut self, other: Import, name: &str, owner: &Owner) {
        let mut said = Contradictions::new(owner.before(), name);
        for format in other.formats {
            if !self.formats.contains(&format) {
                self.formats.push(format);
            }
        }
        said.settle(
            "page size in bytes",
            &mut self.page_size_bytes,
            other.page_size_bytes,
        );
        said.settle(
            "pageblock order",
            &mut self.pageblock_order,
            other.pageblock_order,
        );
        said.settle(
            "section size in bytes",
            &mut self.section_bytes,
            other.section_bytes,
        );
        for node in other.nodes {
            self.take_node(node, &mut said);
        }
        self.snapshots.extend(other.snapshots);
        take_sections(&mut self.sections, other.sections, &mut said);
        take_ranges(&mut self.ranges, other.ranges, &mut said);
        for device in other.devices {
            match self.devices.iter_mut().find(|known| known.id == device.id) {
                Some(known) => known.take(device, &mut said),
                None => self.devices.push(device),
            }
        }
        self.events.append(&other.events);
        self.totals.take(other.totals, &mut said);
        self.truncated |= other.truncated;
        self.diagnostics.extend(other.diagnostics);
        self.diagnostics.append(&mut said.end());
    }

    fn take_node(&mut self, other: Node, said: &mut Contradictions<'_>) {
        let Some(node) = self.nodes.iter_mut().find(|node| node.node == other.node) else {
            self.nodes.push(other);
            return;
        };
        for zone in other.zones {
            match node.zones.iter_mut().find(|known| known.name == zone.name) {
                Some(known) => known.take(zone, node.node, said),
                None => node.zones.push(zone),
            }
        }
    }
}

impl Zone {
    fn take(&mut self, other: Zone, node: u32, said: &mut Contradictions<'_>) {
        let of = |field: &str| format!("{field} of zone {} of node {node}", other.name);
        said.settle(&of("start_pfn"), &mut self.start_pfn, other.start_pfn);
        said.settle(&of("spanned"), &mut self.spanned, other.spanned);
        said.settle(&of("present"), &mut self.present, other.present);
        said.settle(&of("managed"), &mut self.managed, other.managed);
        said.settle_moving(&of("free"), &mut self.free, other.free);
        if self.free_is_summed && other.free.is_some() && !other.free_is_summed {
            self.free = other.free;
            self.free_is_summed = false;
        }
        said.settle_moving(&of("free_cma"), &mut self.free_cma, other.free_cma);
        said.settle_moving(
            &of("reserved_highatomic"),
            &mut self.reserved_highatomic,
            other.reserved_highatomic,
        );
        for (field, kept, new) in [
            ("min", &mut self.watermarks.min, other.watermarks.min),
            ("low", &mut self.watermarks.low, other.watermarks.low),
            ("high", &mut self.watermarks.high, other.watermarks.high),
            ("boost", &mut self.watermarks.boost, other.watermarks.boost),
        ] {
            said.settle(&of(field), kept, new);
        }
        said.settle(&of("protection"), &mut self.protection, other.protection);
        said.settle(
            &of("free blocks by order"),
            &mut self.free_blocks_by_order,
            other.free_blocks_by_order,
        );
        self.free_types_by_order = self
            .free_types_by_order
            .take()
            .or(other.free_types_by_order);
        take_pairs(
            &of("free blocks"),
            &mut self.free_pages_by_order_and_type,
            other.free_pages_by_order_and_type,
            said,
        );
        take_pairs(
            &of("pageblocks"),
            &mut self.pageblocks_by_type,
            other.pageblocks_by_type,
            said,
        );
        self.pcp_count = self.pcp_count.or(other.pcp_count);
        self.holes = self
            .spanned
            .zip(self.present)
            .and_then(|(spanned, present)| spanned.checked_sub(present));
        self.populated = self.present.map(|present| present > 0);
    }
}

fn take_pairs<T: PartialEq + std::fmt::Debug>(
    subject: &str,
    kept: &mut Pairs<T>,
    other: Pairs<T>,
    said: &mut Contradictions<'_>,
) {
    for (name, value) in other.0 {
        match kept.0.iter().find(|(known, _)| *known == name) {
            Some((_, known)) if *known != value => {
                said.say(
                    Severity::Warning,
                    &format!("{subject} of type {name}"),
                    &format!("{known:?}"),
                    &format!("{value:?}"),
                );
            }
            Some(_) => {}
            None => kept.0.push((name, value)),
        }
    }
}

fn take_sections(kept: &mut Vec<Section>, other: Vec<Section>, said: &mut Contradictions<'_>) {
    let index: std::collections::HashMap<u64, usize> = kept
        .iter()
        .enumerate()
        .map(|(at, section)| (section.id, at))
        .collect();
    for section in other {
        let Some(at) = index.get(&section.id) else {
            kept.push(section);
            continue;
        };
        let known = &mut kept[*at];
        let of = |field: &str| format!("{field} of memory block {}", section.id);
        said.settle(&of("state"), &mut known.state, section.state);
        said.settle(&of("removable"), &mut known.removable, section.removable);
        said.settle(&of("zones"), &mut known.zones, section.zones);
        said.settle(&of("node"), &mut known.node, section.node);
        known.start_pfn = known.start_pfn.or(section.start_pfn);
        known.nr_pages = known.nr_pages.or(section.nr_pages);
    }
}

/// Ranges of a kind that is known already are only added where they tell of other memory.
fn take_ranges(kept: &mut Vec<Range>, other: Vec<Range>, said: &mut Contradictions<'_>) {
    let kinds = [
        RangeKind::E820,
        RangeKind::Memblock,
        RangeKind::Node,
        RangeKind::Zone,
        RangeKind::Srat,
        RangeKind::Lsmem,
        RangeKind::Present,
    ];
    let known: Vec<RangeKind> = kinds
        .into_iter()
        .filter(|kind| kept.iter().any(|range| range.kind == *kind))
        .collect();
    let before = joined(kept);
    for kind in &known {
        let of = |ranges: &[(RangeKind, u64, u64)]| {
            ranges
                .iter()
                .filter(|range| range.0 == *kind)
                .copied()
                .collect::<Vec<_>>()
        };
        let (mine, theirs) = (of(&before), of(&joined(&other)));
        if !theirs.is_empty() && mine != theirs {
            let bytes = |ranges: &[(RangeKind, u64, u64)]| {
                text::sum(ranges.iter().map(|(_, start, end)| end - start))
            };
            said.say(
                Severity::Warning,
                &format!("ranges of kind {kind:?}"),
                &format!("{} bytes", bytes(&mine)),
                &format!("{} bytes", bytes(&theirs)),
            );
        }
    }
    for range in other {
        let covered = before.iter().any(|(kind, start, end)| {
            *kind == range.kind && *start <= range.start_byte && range.end_byte <= *end
        });
        if !known.contains(&range.kind) || !covered {
            kept.push(range);
        }
    }
}

/// The ranges of each kind, touching ones joined, in order.
fn joined(ranges: &[Range]) -> Vec<(RangeKind, u64, u64)> {
    let mut all: Vec<_> = ranges
        .iter()
        .map(|range| (range.kind, range.start_byte, range.end_byte))
        .collect();
    all.sort_unstable();
    let mut joined: Vec<(RangeKind, u64, u64)> = Vec::new();
    for (kind, start, end) in all {
        match joined.last_mut() {
            Some((last, _, reached)) if *last == kind && start <= *reached => {
                *reached = end.max(*reached)
            }
            _ => joined.push((kind, start, end)),
        }
    }
    joined
}

impl Device {
    fn take(&mut self, other: Device, said: &mut Contradictions<'_>) {
        let of = |field: &str| format!("{field} of device {}", other.id);
        said.settle(&of("kind"), &mut self.kind, other.kind);
        said.settle(&of("node"), &mut self.node, other.node);
        for (field, kept, new) in [
            ("address", &mut self.address, other.address),
            ("size", &mut self.size_bytes, other.size_bytes),
            (
                "requested size",
                &mut self.requested_bytes,
                other.requested_bytes,
            ),
            ("plugged size", &mut self.plugged_bytes, other.plugged_bytes),
            ("block size", &mut self.block_bytes, other.block_bytes),
            (
                "subblock size",
                &mut self.subblock_bytes,
                other.subblock_bytes,
            ),
            (
                "online blocks",
                &mut self.online_blocks,
                other.online_blocks,
            ),
            ("total blocks", &mut self.total_blocks, other.total_blocks),
        ] {
            said.settle(&of(field), kept, new);
        }
    }
}

impl Totals {
    fn take(&mut self, other: Totals, said: &mut Contradictions<'_>) {
        // Sums have been compared zone by zone already.
        let printed = !self.summed && !other.summed;
        for (field, kept, new) in [
            ("present", &mut self.present, other.present),
            ("managed", &mut self.managed, other.managed),
            ("reserved", &mut self.reserved, other.reserved),
            ("cma_reserved", &mut self.cma_reserved, other.cma_reserved),
            ("highmem", &mut self.highmem, other.highmem),
            ("free", &mut self.free, other.free),
            ("free_cma", &mut self.free_cma, other.free_cma),
        ] {
            match field {
                "free" | "free_cma" if printed => {
                    said.settle_moving(&format!("total of {field}"), kept, new)
                }
                _ if printed => said.settle(&format!("total of {field}"), kept, new),
                _ => *kept = kept.or(new),
            }
        }
        self.summed &= other.summed || other.free.is_none();
        for (field, kept, new) in [
            ("online_bytes", &mut self.online_bytes, other.online_bytes),
            (
                "offline_bytes",
                &mut self.offline_bytes,
                other.offline_bytes,
            ),
            ("boot_bytes", &mut self.boot_bytes, other.boot_bytes),
            ("maxmem_bytes", &mut self.maxmem_bytes, other.maxmem_bytes),
        ] {
            said.settle(&format!("total of {field}"), kept, new);
        }
    }
}
