//! The zones that follow from a boot log, and what of the log they contradict.
//!
//! As the kernel does it: the span of a zone on a node is the zone's range cut to the first
//! and the last RAM of the node and, above its movable start, taken by `Movable`; present
//! is the RAM in the span. Holes are the difference.

use super::boot::{Boot, add_range};
use super::draft::{Amount, Draft};
use super::model::RangeKind;
use super::text;

/// A zone of a node, in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BootZone {
    pub node: u32,
    pub name: String,
    pub start_pfn: u64,
    pub spanned: u64,
    pub present: u64,
}

/// Adds what the log says of bytes beside pages to the evidence for the page size.
pub fn weigh(draft: &mut Draft) {
    let boot = std::mem::take(&mut draft.boot);
    let sizes = &mut draft.page_sizes;
    if let Some(line) = boot.e820_line {
        // The PC has no other; its firmware map says that it is one.
        sizes.state(line, 4096, "the firmware map of a PC");
    }
    let ram = ram_bytes(&boot, |_| true);
    let total = draft.totals_kib[1]
        .and_then(|kib| u64::try_from(kib).ok())
        .and_then(|kib| kib.checked_mul(1024))
        .unwrap_or(0);
    let bytes = if ram > 0 { ram } else { total };
    if let (Some((pages, line)), true) = (boot.listed, bytes > 0) {
        sizes.at_most(line, pages, bytes);
        sizes.most_of(line, pages, bytes);
    }
    for (node, pages, line) in &boot.total_pages {
        let bytes = ram_bytes(&boot, |other| other == *node);
        if bytes > 0 {
            sizes.exactly(*line, *pages, bytes);
        } else if total > 0 && boot.total_pages.len() == 1 {
            sizes.exactly(*line, *pages, total);
        }
    }
    for (node, zone, pages, line) in &boot.holes {
        for gap in gaps(&boot, *node, zone) {
            sizes.exactly(*line, *pages, gap);
        }
    }
    draft.boot = boot;
}

/// Bytes of RAM that the log lists in bytes, on some nodes.
fn ram_bytes(boot: &Boot, on: impl Fn(u32) -> bool) -> u64 {
    let spans = boot.nodes.iter().filter(|(node, ..)| on(*node));
    let bytes = spans.filter_map(|(_, span, _)| span.bytes(None));
    text::sum(bytes.map(|(start, end)| end - start))
}

/// Bytes of each gap between the RAM ranges of a node, cut to a zone.
fn gaps(boot: &Boot, node: u32, zone: &str) -> Vec<u64> {
    let Some((start, end)) = boot
        .zones
        .iter()
        .find(|(name, ..)| name == zone)
        .and_then(|(_, span, _)| span.as_ref()?.bytes(None))
    else {
        return Vec::new();
    };
    let mut ram: Vec<_> = boot
        .nodes
        .iter()
        .filter(|(other, ..)| *other == node)
        .filter_map(|(_, span, _)| span.bytes(None))
        .collect();
    ram.sort_unstable();
    ram.windows(2)
        .map(|two| two[1].0.min(end).saturating_sub(two[0].1.max(start)))
        .filter(|gap| *gap > 0)
        .collect()
}

/// Works out the zones, writes the ranges, and says what disagrees.
pub fn conclude(draft: &mut Draft, page_size: Option<u64>) -> Vec<BootZone> {
    let boot = std::mem::take(&mut draft.boot);
    for (node, span, line) in &boot.nodes {
        match span.bytes(page_size) {
            Some((start, end)) => match add_range(RangeKind::Node, start, end, draft) {
                Some(range) => range.node = Some(*node),
                None => draft.warn(*line, "the range is empty"),
            },
            None => draft.note(
                *line,
                "the page size is not known, so this range of page frames is left out",
            ),
        }
    }
    for (name, span, line) in &boot.zones {
        let Some(span) = span else { continue };
        match span.bytes(page_size) {
            Some((start, end)) => {
                if let Some(range) = add_range(RangeKind::Zone, start, end, draft) {
                    range.zone = Some(name.clone());
                }
            }
            None => draft.note(
                *line,
                "the page size is not known, so this range of page frames is left out",
            ),
        }
    }
    let mut zones = Vec::new();
    let mut ids: Vec<u32> = boot.nodes.iter().map(|(node, ..)| *node).collect();
    ids.sort_unstable();
    ids.dedup();
    if !boot.cut && !boot.zones.is_empty() {
        for node in &ids {
            zones_of(&boot, *node, page_size, draft, &mut zones);
        }
    }
    if zones.is_empty() {
        counted(&boot, draft);
    }
    compare(&boot, &zones, &ids, page_size, draft);
    draft.boot = boot;
    zones
}

fn zones_of(
    boot: &Boot,
    node: u32,
    page_size: Option<u64>,
    draft: &mut Draft,
    zones: &mut Vec<BootZone>,
) {
    let mut ram = Vec::new();
    for (_, span, line) in boot.nodes.iter().filter(|(other, ..)| *other == node) {
        let Some((start, end)) = span.pfns(page_size) else {
            return;
        };
        ram.push((start, end, *line));
    }
    let (Some(first), Some(last)) = (
        ram.iter().map(|(start, ..)| *start).min(),
        ram.iter().map(|(_, end, _)| *end).max(),
    ) else {
        return;
    };
    let movable = boot
        .movable
        .iter()
        .find(|(other, _)| *other == node)
        .and_then(|(_, span)| span.pfns(page_size))
        .map(|(start, _)| start);
    let mut covered = Vec::new();
    let mut names: Vec<(&str, u64, u64)> = Vec::new();
    for (name, span, _) in &boot.zones {
        let (low, high) = match span {
            Some(span) => match span.pfns(page_size) {
                Some(range) => range,
                None => return,
            },
            None => (0, 0),
        };
        let high = movable.map_or(high, |movable| high.min(movable));
        names.push((name, low, high));
    }
    if let Some(start) = movable {
        let ceiling = boot
            .zones
            .iter()
            .filter_map(|(_, span, _)| span.as_ref()?.pfns(page_size))
            .map(|(_, end)| end)
            .max()
            .unwrap_or(last);
        names.retain(|(name, ..)| *name != "Movable");
        let at = names
            .iter()
            .position(|(name, ..)| *name == "Device")
            .unwrap_or(names.len());
        names.insert(at, ("Movable", start, ceiling.max(start)));
    }
    for (name, low, high) in names {
        let (start, end) = (
            first.clamp(low, high.max(low)),
            last.clamp(low, high.max(low)),
        );
        let spanned = end.saturating_sub(start);
        let inside =
            |(from, to, _): &(u64, u64, u64)| (*to).min(end).saturating_sub((*from).max(start));
        let present = text::sum(ram.iter().map(inside));
        covered.push((start, end));
        zones.push(BootZone {
            node,
            name: name.to_string(),
            start_pfn: start,
            spanned,
            present,
        });
    }
    for (from, to, line) in ram {
        let inside = |(start, end): &(u64, u64)| to.min(*end).saturating_sub(from.max(*start));
        let outside = (to - from).saturating_sub(text::sum(covered.iter().map(inside)));
        if outside > 0 {
            draft.warn(
                line,
                format!(
                    "{outside} of the {} pages of this range lie in no zone",
                    to - from
                ),
            );
        }
    }
}

/// Without ranges, the pages that the kernel counted are all that is known of its zones.
fn counted(boot: &Boot, draft: &mut Draft) {
    for (node, name, pages, line) in &boot.zone_pages {
        let zone = draft.zones.zone(*node, name, *line);
        zone.present = zone
            .present
            .or(i64::try_from(*pages).ok().map(Amount::Pages));
    }
}

/// Holds counts and spans that the log prints against what follows from its ranges.
fn compare(
    boot: &Boot,
    zones: &[BootZone],
    nodes: &[u32],
    page_size: Option<u64>,
    draft: &mut Draft,
) {
    if zones.is_empty() {
        return;
    }
    let span_of = |node: u32| {
        let ram: Vec<_> = boot
            .nodes
            .iter()
            .filter(|(other, ..)| *other == node)
            .filter_map(|(_, span, _)| span.pfns(page_size))
            .collect();
        Some((
            ram.iter().map(|(start, _)| *start).min()?,
            ram.iter().map(|(_, end)| *end).max()?,
        ))
    };
    for printed in &boot.printed {
        let Some(node) = nodes.iter().copied().find(|node| {
            span_of(*node).is_some_and(|(start, end)| (start..end).contains(&printed.start_pfn))
        }) else {
            continue;
        };
        let of_node = |zone: &&BootZone| zone.node == node;
        let (spanned, present) = match zones
            .iter()
            .filter(of_node)
            .find(|zone| zone.name == printed.name)
        {
            Some(zone) => (zone.spanned, zone.present),
            None => (
                span_of(node).map_or(0, |(start, end)| end - start),
                text::sum(zones.iter().filter(of_node).map(|zone| zone.present)),
            ),
        };
        if (spanned, present) != (printed.spanned, printed.present) {
            draft.warn(
                printed.line,
                format!(
                    "{} of node {node} is printed with {} pages spanned and {} present, the ranges make {spanned} and {present}",
                    printed.name, printed.spanned, printed.present
                ),
            );
        }
    }
    for (node, pages, line) in &boot.total_pages {
        let of_node = zones.iter().filter(|zone| zone.node == *node);
        let present = text::sum(of_node.map(|zone| zone.present));
        if nodes.contains(node) && present != *pages {
            draft.warn(
                *line,
                format!("node {node} is printed with {pages} pages, the ranges make {present}"),
            );
        }
    }
    let size = page_size.unwrap_or(0);
    let present = text::sum(zones.iter().map(|zone| zone.present));
    if let Some(total) = draft.totals_kib[1].and_then(|kib| u64::try_from(kib).ok()) {
        let ranged = present.saturating_mul(size) / 1024;
        if ranged != total && size > 0 {
            draft.note(
                boot.memory_line,
                format!("{total}K are printed in all, the ranges make {ranged}K"),
            );
        }
    }
}
