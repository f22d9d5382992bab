//! The object as tables for people.
//!
//! Counts are printed as they are, an unknown one as `-`. Events are counted by kind and
//! only listed while they are few; the JSON has them all.

use std::fmt::{self, Write as _};

use super::model::{Import, Section, SectionState, Severity};

/// Events are listed up to this many.
const MOST_EVENTS: usize = 40;

/// Writes an import as tables.
pub struct Table<'a>(pub &'a Import);

/// Columns, the first left-aligned and the others right-aligned.
fn columns(out: &mut String, rows: &[Vec<String>]) {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..width)
        .map(|at| {
            rows.iter()
                .filter_map(|row| row.get(at))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let pad = widths[at].saturating_sub(cell.chars().count());
            let gap = if at == 0 { "" } else { "  " };
            if at == 0 {
                let _ = write!(line, "{gap}{cell}{}", " ".repeat(pad));
            } else {
                let _ = write!(line, "{gap}{}{cell}", " ".repeat(pad));
            }
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn shown<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_string(), |value| value.to_string())
}

fn heads(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let import = self.0;
        let mut out = String::new();
        let formats: Vec<_> = import.formats.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            out,
            "formats {}, page size {}, pageblock order {}, section size {}",
            formats.join(" "),
            shown(import.page_size_bytes),
            shown(import.pageblock_order),
            shown(import.section_bytes)
        );
        zones(&mut out, import);
        blocks(&mut out, &import.sections);
        devices(&mut out, import);
        events(&mut out, import);
        totals(&mut out, import);
        for diagnostic in &import.diagnostics {
            let severity = match diagnostic.severity {
                Severity::Note => "note",
                Severity::Warning => "warning",
                Severity::Error => "error",
            };
            let place = if diagnostic.line > 0 {
                format!("line {}", diagnostic.line)
            } else {
                "all".to_string()
            };
            let _ = writeln!(out, "{severity}: {place}: {}", diagnostic.what);
        }
        if import.truncated {
            let _ = writeln!(
                out,
                "truncated: the input, or a line of it, stops in the middle"
            );
        }
        f.write_str(&out)
    }
}

fn zones(out: &mut String, import: &Import) {
    if import.nodes.is_empty() {
        return;
    }
    let mut rows = vec![heads(&[
        "NODE ZONE",
        "START_PFN",
        "SPANNED",
        "PRESENT",
        "MANAGED",
        "FREE",
        "MIN",
        "LOW",
        "HIGH",
        "CMA",
        "LARGEST",
    ])];
    for node in &import.nodes {
        for zone in &node.zones {
            let largest = zone.free_blocks_by_order.as_ref().and_then(|blocks| {
                blocks
                    .iter()
                    .rposition(|blocks| blocks.is_some_and(|blocks| blocks > 0))
            });
            rows.push(vec![
                format!("{} {}", node.node, zone.name),
                shown(zone.start_pfn),
                shown(zone.spanned),
                shown(zone.present),
                shown(zone.managed),
                shown(zone.free),
                shown(zone.watermarks.min),
                shown(zone.watermarks.low),
                shown(zone.watermarks.high),
                shown(zone.free_cma),
                shown(largest),
            ]);
        }
    }
    let _ = writeln!(out);
    columns(out, &rows);
    if !import.snapshots.is_empty() {
        let _ = writeln!(
            out,
            "{} snapshots, the last is shown",
            import.snapshots.len()
        );
    }
}

fn blocks(out: &mut String, sections: &[Section]) {
    if sections.is_empty() {
        return;
    }
    let mut rows = vec![heads(&["BLOCKS", "STATE", "REMOVABLE", "NODE", "ZONES"])];
    let mut at = 0;
    while at < sections.len() {
        let first = &sections[at];
        let alike = |next: &Section, id: u64| {
            next.id == id
                && next.state == first.state
                && next.removable == first.removable
                && next.zones == first.zones
                && next.node == first.node
        };
        let mut end = at + 1;
        while end < sections.len() && alike(&sections[end], sections[end - 1].id.saturating_add(1))
        {
            end += 1;
        }
        let state = match first.state {
            Some(SectionState::Online) => "online",
            Some(SectionState::Offline) => "offline",
            Some(SectionState::GoingOffline) => "on->off",
            Some(SectionState::Absent) => "absent",
            None => "-",
        };
        let range = if end - at == 1 {
            first.id.to_string()
        } else {
            format!("{}-{}", first.id, sections[end - 1].id)
        };
        let zones = first.zones.as_ref().map(|zones| {
            if zones.is_empty() {
                "none".to_string()
            } else {
                zones.join("/")
            }
        });
        let removable = first
            .removable
            .map(|removable| if removable { "yes" } else { "no" });
        rows.push(vec![
            range,
            state.to_string(),
            shown(removable),
            shown(first.node),
            shown(zones),
        ]);
        at = end;
    }
    let _ = writeln!(out);
    columns(out, &rows);
}

fn devices(out: &mut String, import: &Import) {
    if import.devices.is_empty() {
        return;
    }
    let mut rows = vec![heads(&[
        "DEVICE",
        "KIND",
        "NODE",
        "ADDRESS",
        "SIZE",
        "REQUESTED",
        "PLUGGED",
        "BLOCK",
        "ONLINE/TOTAL",
    ])];
    for device in &import.devices {
        let counted = device
            .online_blocks
            .zip(device.total_blocks)
            .map(|(online, total)| format!("{online}/{total}"));
        rows.push(vec![
            device.id.clone(),
            shown(device.kind.map(|kind| kind.name())),
            shown(device.node),
            shown(device.address.map(|address| format!("{address:#x}"))),
            shown(device.size_bytes),
            shown(device.requested_bytes),
            shown(device.plugged_bytes),
            shown(device.block_bytes),
            shown(counted),
        ]);
    }
    let _ = writeln!(out);
    columns(out, &rows);
}

fn events(out: &mut String, import: &Import) {
    if import.events.is_empty() {
        return;
    }
    let _ = writeln!(out);
    let mut counts: Vec<(String, usize)> = Vec::new();
    for event in import.events.iter() {
        let name = serde_json::to_value(event.kind)
            .ok()
            .and_then(|value| value.as_str().map(str::to_string))
            .unwrap_or_default();
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    let counts: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let _ = writeln!(out, "events: {}", counts.join(", "));
    if import.events.len() <= MOST_EVENTS {
        for event in import.events.iter() {
            let text = serde_json::to_string(&event).unwrap_or_default();
            let _ = writeln!(out, "  {text}");
        }
    }
}

fn totals(out: &mut String, import: &Import) {
    let Ok(serde_json::Value::Object(totals)) = serde_json::to_value(&import.totals) else {
        return;
    };
    if !totals.is_empty() {
        let totals: Vec<_> = totals
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let _ = writeln!(out, "\ntotals: {}", totals.join(", "));
    }
}
