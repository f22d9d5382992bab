//! From a draft to the object: amounts become pages, lists become sums, totals are added up.
//!
//! The page size is decided first, from all drafts of the machine if one alone does not
//! say it. What only that size could have told stays unknown without it.

use super::boot_zones::{self, BootZone};
use super::draft::{Amount, Draft, NodeDraft, ZoneDraft};
use super::model::{Import, Node, Pairs, Snapshot, Totals, Watermarks, Zone};
use super::page_size::Derived;

/// Adds the evidence for the page size that only shows when all is read, and derives it.
pub fn page_size(draft: &mut Draft) -> Option<Derived> {
    boot_zones::weigh(draft);
    weigh_report(draft);
    if let Some(other) = draft.page_sizes.contradiction.take() {
        draft.warn(
            other.line,
            format!(
                "a page would be {} bytes by {}, which contradicts what was stated before",
                other.bytes, other.how
            ),
        );
    }
    let derived = draft.page_sizes.derive()?;
    draft.note(
        derived.line,
        format!("the page size is {} bytes: {}", derived.bytes, derived.how),
    );
    Some(derived)
}

/// `7680 pages RAM` beside the present kB of all zones.
fn weigh_report(draft: &mut Draft) {
    let Some(pages) = draft
        .totals
        .present
        .and_then(|pages| u64::try_from(pages).ok())
    else {
        return;
    };
    let zones = draft.zones.now.iter().flat_map(|node| &node.zones);
    let mut kib: u64 = 0;
    let mut line = 0;
    for zone in zones {
        let Some(Amount::Kib(present)) = zone.present else {
            continue;
        };
        kib = kib.saturating_add(u64::try_from(present).unwrap_or(0));
        line = zone.line;
    }
    if kib > 0 {
        draft
            .page_sizes
            .exactly(line, pages, kib.saturating_mul(1024));
    }
}

/// Turns a draft into the object. `page_size` is its own or that of the machine.
pub fn finish(mut draft: Draft, page_size: Option<u64>) -> Import {
    let boot = boot_zones::conclude(&mut draft, page_size);
    let last_line = draft.zones.line;
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for (line, nodes) in std::mem::take(&mut draft.zones.before) {
        let nodes = nodes_of(nodes, line, &boot, page_size, &mut draft);
        snapshots.push(Snapshot { line, nodes });
    }
    let now = std::mem::take(&mut draft.zones.now);
    let nodes = nodes_of(now, last_line, &boot, page_size, &mut draft);
    if !snapshots.is_empty() {
        snapshots.push(Snapshot {
            line: last_line,
            nodes: nodes.clone(),
        });
    }
    sections(&mut draft, page_size);
    let totals = totals(&mut draft, &nodes, page_size);
    draft.diagnostics.sort_by_key(|diagnostic| diagnostic.line);
    Import {
        formats: draft.formats,
        page_size_bytes: page_size,
        pageblock_order: draft.pageblock_order,
        nodes,
        snapshots,
        sections: draft.sections,
        section_bytes: draft.section_bytes,
        ranges: draft.ranges,
        devices: draft.devices,
        events: draft.events,
        totals,
        diagnostics: draft.diagnostics,
        truncated: draft.truncated,
    }
}

fn nodes_of(
    drafts: Vec<NodeDraft>,
    line: u64,
    boot: &[BootZone],
    page_size: Option<u64>,
    draft: &mut Draft,
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for node in drafts {
        let zones = node
            .zones
            .into_iter()
            .map(|zone| zone_of(zone, node.node, page_size, draft))
            .collect();
        nodes.push(Node {
            node: node.node,
            zones,
        });
    }
    for from in boot {
        let at = match nodes.iter().position(|node| node.node == from.node) {
            Some(at) => at,
            None => {
                nodes.push(Node {
                    node: from.node,
                    zones: Vec::new(),
                });
                nodes.len() - 1
            }
        };
        let zones = &mut nodes[at].zones;
        let zone = match zones.iter_mut().find(|zone| zone.name == from.name) {
            Some(zone) => zone,
            None => {
                zones.push(Zone {
                    name: from.name.clone(),
                    ..Zone::default()
                });
                let end = zones.len() - 1;
                &mut zones[end]
            }
        };
        overlay(zone, from, line, draft);
    }
    nodes
}

/// What the boot log makes of a zone fills what a later report does not say.
fn overlay(zone: &mut Zone, from: &BootZone, line: u64, draft: &mut Draft) {
    let signed = |value: u64| i64::try_from(value).ok();
    let present = signed(from.present);
    if zone.present.is_some() && zone.present != present {
        draft.note(
            line,
            format!(
                "zone {} of node {} has {} pages present here, the boot log makes {}",
                zone.name,
                from.node,
                zone.present.unwrap_or(0),
                from.present
            ),
        );
    } else {
        zone.present = present;
        zone.spanned = zone.spanned.or(signed(from.spanned));
        if from.spanned > 0 {
            zone.start_pfn = zone.start_pfn.or(Some(from.start_pfn));
        }
    }
    derive(zone);
}

/// What follows from spanned and present.
fn derive(zone: &mut Zone) {
    zone.holes = zone
        .spanned
        .zip(zone.present)
        .and_then(|(spanned, present)| spanned.checked_sub(present));
    zone.populated = zone.present.map(|present| present > 0);
}

fn zone_of(from: ZoneDraft, node: u32, page_size: Option<u64>, draft: &mut Draft) -> Zone {
    let reference = from.spanned.or(from.present).map(Amount::number);
    let mut pages = |amount: Option<Amount>, field: &str| -> Option<i64> {
        let amount = amount?;
        let amount = match narrow(amount, reference) {
            Some(narrow) => {
                draft.error(
                    from.line,
                    format!(
                        "{field} of zone {} of node {node} is wrapped below zero in 32 bits: {}",
                        from.name,
                        narrow.number()
                    ),
                );
                narrow
            }
            None => amount,
        };
        amount.pages(page_size)
    };
    let mut zone = Zone {
        start_pfn: from.start_pfn,
        spanned: pages(from.spanned, "spanned"),
        present: pages(from.present, "present"),
        managed: pages(from.managed, "managed"),
        free: pages(from.free, "free"),
        free_cma: pages(from.free_cma, "free_cma"),
        reserved_highatomic: pages(from.reserved_highatomic, "reserved_highatomic"),
        watermarks: Watermarks {
            min: from.min.and_then(|min| min.pages(page_size)),
            low: from.low.and_then(|low| low.pages(page_size)),
            high: from.high.and_then(|high| high.pages(page_size)),
            boost: from.boost.and_then(|boost| boost.pages(page_size)),
        },
        protection: from.protection,
        pcp_count: from.pcp_count.or(from
            .pcp_kib
            .and_then(|kib| Amount::Kib(kib).pages(page_size))),
        free_types_by_order: from.letters,
        pageblocks_by_type: Pairs(from.pageblocks),
        name: from.name,
        ..Zone::default()
    };
    let summed = if from.types_cut {
        None
    } else {
        sum_of_types(&from.by_type)
    };
    if let (Some(lists), Some(summed)) = (&from.free_blocks, &summed)
        && lists != summed
    {
        draft.note(
            from.line,
            format!(
                "the free blocks of zone {} of node {node} differ between its lists and its types",
                zone.name
            ),
        );
    }
    let cut = from.list_cut && from.free_blocks.is_some();
    zone.free_blocks_by_order = from.free_blocks.or(summed);
    zone.free_pages_by_order_and_type = Pairs(from.by_type);
    fill_lists(&mut zone);
    if cut && zone.free_is_summed {
        // A part of a list is less than the zone has.
        zone.free = None;
        zone.free_is_summed = false;
    }
    derive(&mut zone);
    zone
}

/// Pages from blocks, and the sum where the zone has no counter of its own.
pub fn fill_lists(zone: &mut Zone) {
    let Some(blocks) = &zone.free_blocks_by_order else {
        return;
    };
    let pages: Vec<Option<i64>> = blocks
        .iter()
        .enumerate()
        .map(|(order, blocks)| {
            blocks.and_then(|blocks| {
                blocks.checked_mul(1_i64.checked_shl(u32::try_from(order).ok()?)?)
            })
        })
        .collect();
    if zone.free.is_none() {
        zone.free = pages
            .iter()
            .try_fold(0_i64, |sum, pages| sum.checked_add((*pages)?));
        zone.free_is_summed = zone.free.is_some();
    }
    zone.free_pages_by_order = Some(pages);
}

/// A counter of a 32-bit kernel that has wrapped: within 16 Mi of 2^32, in a zone of much less than that.
fn narrow(amount: Amount, reference: Option<i64>) -> Option<Amount> {
    const WIDTH: i64 = 1 << 32;
    let number = amount.number();
    let wrapped = (WIDTH - (1 << 24)..WIDTH).contains(&number)
        && reference.is_some_and(|reference| (1..WIDTH / 4).contains(&reference));
    wrapped.then(|| match amount {
        Amount::Pages(pages) => Amount::Pages(pages - WIDTH),
        Amount::Kib(kib) => Amount::Kib(kib - WIDTH),
    })
}

/// Blocks by order over all types; an order that a type does not know is not known.
fn sum_of_types(by_type: &[(String, Vec<Option<i64>>)]) -> Option<Vec<Option<i64>>> {
    let orders = by_type.first()?.1.len();
    if by_type.iter().any(|(_, blocks)| blocks.len() != orders) {
        return None;
    }
    Some(
        (0..orders)
            .map(|order| {
                by_type
                    .iter()
                    .try_fold(0_i64, |sum, (_, blocks)| sum.checked_add(blocks[order]?))
            })
            .collect(),
    )
}

/// Page frames of the memory blocks, where both sizes are known.
fn sections(draft: &mut Draft, page_size: Option<u64>) {
    let Some((bytes, page)) = draft.section_bytes.zip(page_size) else {
        return;
    };
    let pages = bytes / page;
    for section in &mut draft.sections {
        section.start_pfn = section.id.checked_mul(pages);
        section.nr_pages = Some(pages);
    }
}

/// Totals as printed, or else the sums. A cut input has no sums: a part of it is missing.
/// The sum of the `totalpages` of a boot log, if every node has one.
fn by_node(draft: &mut Draft, nodes: &[Node]) -> Option<i64> {
    let printed = &draft.boot.total_pages;
    let has_one = |node: &Node| printed.iter().any(|(of, ..)| *of == node.node);
    if draft.truncated || nodes.is_empty() || !nodes.iter().all(has_one) {
        return None;
    }
    let line = printed.iter().map(|(.., line)| *line).max()?;
    let sum = printed
        .iter()
        .try_fold(0_u64, |sum, (_, pages, _)| sum.checked_add(*pages))?;
    draft.total_line = draft.total_line.max(line);
    i64::try_from(sum).ok()
}

fn totals(draft: &mut Draft, nodes: &[Node], page_size: Option<u64>) -> Totals {
    let mut totals = std::mem::take(&mut draft.totals);
    let [free, all, reserved] = draft
        .totals_kib
        .map(|kib| kib.and_then(|kib| Amount::Kib(kib).pages(page_size)));
    totals.free = totals.free.or(free);
    totals.present = totals.present.or(all).or_else(|| by_node(draft, nodes));
    totals.reserved = totals.reserved.or(reserved);
    for (what, total) in [
        ("present", totals.present),
        ("reserved", totals.reserved),
        ("free", totals.free),
    ] {
        if total.is_some_and(|total| total < 0)
            && !draft
                .diagnostics
                .iter()
                .any(|one| one.severity == super::model::Severity::Error)
        {
            draft.error(
                draft.boot.memory_line,
                format!(
                    "the total of {what} is {}, which cannot be",
                    total.unwrap_or(0)
                ),
            );
        }
    }
    if draft.truncated || nodes.is_empty() {
        return totals;
    }
    let zones = || nodes.iter().flat_map(|node| &node.zones);
    let sum = |of: fn(&Zone) -> Option<i64>| {
        zones().try_fold(0_i64, |sum, zone| sum.checked_add(of(zone)?))
    };
    let present = sum(|zone| zone.present);
    if let (Some(printed), Some(summed)) = (totals.present, present)
        && printed != summed
    {
        draft.note(
            draft.total_line.max(draft.boot.memory_line),
            format!("{printed} pages are printed in all, the zones make {summed}"),
        );
    }
    totals.summed = totals.present.is_none() && totals.free.is_none();
    totals.present = totals.present.or(present);
    totals.managed = totals.managed.or(sum(|zone| zone.managed));
    totals.free = totals.free.or(sum(|zone| zone.free));
    totals.reserved = totals
        .reserved
        .or_else(|| sum(|zone| zone.present?.checked_sub(zone.managed?)));
    totals
}
