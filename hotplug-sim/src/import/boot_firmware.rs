//! What firmware says of memory in a boot log: e820, SRAT, device trees, memblock.
//!
//! Rows become ranges as printed. A map that a kernel parameter has changed is recognised
//! and left out: the schema wants what the firmware gave.

use super::boot::{add_range, is_unfinished};
use super::draft::Draft;
use super::line::Line;
use super::model::RangeKind;
use super::outcome::Outcome;
use super::span::mem_range;
use super::text::{self, has, lossy, strip};

/// Reads a line of a firmware map; `None` if it is of none.
pub fn line(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    e820(body, line, draft)
        .or_else(|| srat(body, line, draft))
        .or_else(|| memblock(body, line, draft))
        .or_else(|| mips(body, draft))
}

/// `BIOS-e820: [mem 0x0000000000000000-0x000000000009fbff] usable`, or `BIOS-e820: 0000000000000000 - 000000000009fc00 (usable)`.
fn e820(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    const CHANGED: [&str; 5] = [
        "user: [mem",
        "modified: [mem",
        "reserve setup_data: [mem",
        "user: 0",
        "modified: 0",
    ];
    if CHANGED.iter().any(|head| body.starts_with(head.as_bytes())) {
        return Some(Outcome::Empty);
    }
    let body = strip(body, "e820: ").unwrap_or(body);
    let rest = ["BIOS-e820: ", "BIOS-e801: ", "BIOS-88: ", "Xen: "]
        .iter()
        .find_map(|head| strip(body, head))?
        .trim_ascii_start();
    if rest.starts_with(b"[gap ") {
        return Some(Outcome::Empty);
    }
    draft.boot.e820_line.get_or_insert(line.number);
    let (start, end, kind) = if let Some((start, end, rest)) = mem_range(rest) {
        (start, end, rest.trim_ascii())
    } else if is_unfinished(rest) {
        if let Some(outcome) = line.unfinished() {
            return Some(outcome);
        }
        draft.cut(line.number, "the line ends in a range");
        return Some(Outcome::Empty);
    } else {
        // Before 3.6 the end was printed exclusive.
        let (start, tail) = text::take_hex(rest)?;
        let (end, tail) = text::take_hex(strip(tail.trim_ascii_start(), "-")?.trim_ascii_start())?;
        (start, end, tail.trim_ascii())
    };
    let kind = kind
        .strip_prefix(b"(")
        .and_then(|kind| kind.strip_suffix(b")"))
        .unwrap_or(kind);
    if kind.is_empty() && line.wraps {
        return Some(Outcome::More);
    }
    let kind = memory_type(kind);
    let partial = kind.is_empty()
        || line.cut
            && ["usable", "reserved", "ACPI data", "ACPI NVS", "unusable"]
                .iter()
                .all(|known| *known != kind);
    if partial && line.cut {
        draft.cut(line.number, "the line ends in the type of a range");
    }
    match add_range(RangeKind::E820, start, end, draft) {
        Some(range) => range.what = (!partial).then_some(kind),
        None => draft.warn(line.number, "the range is empty"),
    }
    Some(Outcome::Yes)
}

/// The type of an e820 row, without the size that newer kernels print before it.
fn memory_type(kind: &[u8]) -> String {
    let mut kind = kind;
    let (size, rest) = text::word(kind);
    if text::take_dec(size).is_some() && !rest.is_empty() {
        let (unit, after) = text::word(rest);
        if matches!(
            unit.strip_suffix(b",").unwrap_or(unit),
            b"B" | b"KB" | b"MB" | b"GB" | b"TB" | b"KiB" | b"MiB" | b"GiB"
        ) {
            kind = after.trim_ascii();
        }
    }
    match kind {
        b"System RAM" | b"kernel usable RAM" | b"usable RAM" => "usable".to_string(),
        _ => lossy(kind),
    }
}

/// `ACPI: SRAT: Node 0 PXM 0 [mem 0x00000000-0x0009ffff] hotplug`, or `SRAT: Node 0 PXM 0 0-a0000` before 3.6.
fn srat(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let body = strip(body, "ACPI: ").unwrap_or(body);
    let body = strip(body, "NUMA: ").unwrap_or(body);
    let rest = strip(body, "SRAT: Node ")?;
    let (node, rest) = text::take_dec(rest)?;
    let rest = strip(rest.trim_ascii_start(), "PXM ")?;
    let (_, rest) = text::take_dec(rest)?;
    let rest = rest.trim_ascii_start();
    let (start, end, tail) = if let Some(range) = mem_range(rest) {
        range
    } else if is_unfinished(rest) {
        if let Some(outcome) = line.unfinished() {
            return Some(outcome);
        }
        draft.cut(line.number, "the line ends in a range");
        return Some(Outcome::Empty);
    } else {
        let (start, tail) = text::take_hex(rest)?;
        let (end, tail) = text::take_hex(strip(tail, "-")?)?;
        (start, end, tail)
    };
    draft.page_sizes.edge(line.number, start);
    draft.page_sizes.edge(line.number, end);
    let node = u32::try_from(node).ok()?;
    match add_range(RangeKind::Srat, start, end, draft) {
        Some(range) => {
            range.node = Some(node);
            range.hotplug = Some(has(tail, "hotplug")).filter(|known| *known || !line.cut);
        }
        None => draft.warn(line.number, "the range is empty"),
    }
    Some(Outcome::Yes)
}

/// `memory[0x0]  [0x0000000000001000-0x000000000009efff], 0x000000000009e000 bytes on node 0 flags: 0x0`,
/// and `NUMA: Adding memblock [0x40000000 - 0x7fffffff] on node 0`.
fn memblock(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let body = strip(body, "NUMA: ").unwrap_or(body);
    let (rest, what) = if let Some(rest) = strip(body, "Adding memblock ") {
        (rest, "usable")
    } else if let Some(rest) = strip(body, "memory[") {
        (text::after(rest, "]")?, "usable")
    } else if let Some(rest) = strip(body, "reserved[") {
        (text::after(rest, "]")?, "reserved")
    } else {
        return None;
    };
    let (start, end, tail) = mem_range(rest)?;
    let node = text::number_after(tail, "on node ").and_then(|node| u32::try_from(node).ok());
    match add_range(RangeKind::Memblock, start, end, draft) {
        Some(range) => {
            range.node = node;
            range.what = Some(what.to_string());
        }
        None => draft.warn(line.number, "the range is empty"),
    }
    Some(Outcome::Yes)
}

/// `memory: 10000000 @ 00000000 (usable)`: size and start, in hexadecimal.
fn mips(body: &[u8], draft: &mut Draft) -> Option<Outcome> {
    let rest = strip(body, "memory: ")?;
    let (size, rest) = text::take_hex(rest)?;
    let (start, rest) = text::take_hex(strip(rest, " @ ")?)?;
    let kind = rest.trim_ascii().strip_prefix(b"(")?.strip_suffix(b")")?;
    let range = add_range(RangeKind::Memblock, start, start.checked_add(size)?, draft)?;
    range.what = Some(lossy(kind));
    Some(Outcome::Yes)
}
