//! Boot logs: firmware maps, SRAT, node and zone ranges, counts and totals.
//!
//! This collects what the lines say, in bytes or in page frames as they print it (kernels
//! before 3.6 print frames, those before 2.6.32 in decimal). What follows from it, the
//! zones of each node, is worked out in [`boot_zones`](super::boot_zones) when all is read.

use super::draft::Draft;
use super::format::Format;
use super::line::Line;
use super::model::{Range, RangeKind};
use super::outcome::Outcome;
use super::span::mem_range;
use super::text::{self, has, lossy, strip};
use super::{boot_counts, boot_firmware};

/// A range in the unit in which it was printed; the end is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Byte addresses.
    Bytes(u64, u64),
    /// Page frames.
    Pfns(u64, u64),
}

impl Span {
    /// Start and end in page frames, cut inward to whole pages.
    pub fn pfns(self, page_size: Option<u64>) -> Option<(u64, u64)> {
        match self {
            Span::Pfns(start, end) => Some((start, end)),
            Span::Bytes(start, end) => {
                let size = page_size?;
                let first = start.div_ceil(size);
                Some((first, (end / size).max(first)))
            }
        }
    }

    /// Start and end in bytes.
    pub fn bytes(self, page_size: Option<u64>) -> Option<(u64, u64)> {
        match self {
            Span::Bytes(start, end) => Some((start, end)),
            Span::Pfns(start, end) => {
                Some((start.checked_mul(page_size?)?, end.checked_mul(page_size?)?))
            }
        }
    }
}

/// Which list of rows is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    None,
    Zones,
    MovableStarts,
    NodeRanges,
}

/// A span that the log prints of a zone or node, to be held against what follows from the ranges.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Printed {
    pub line: u64,
    pub name: String,
    pub start_pfn: u64,
    pub present: u64,
    pub spanned: u64,
}

/// What a boot log says, before anything is concluded from it.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Boot {
    list: List,
    /// Zone, its range (`None`: empty), line.
    pub zones: Vec<(String, Option<Span>, u64)>,
    /// Node, a range of its RAM, line.
    pub nodes: Vec<(u32, Span, u64)>,
    /// Node, where its movable zone starts (as a range without length).
    pub movable: Vec<(u32, Span)>,
    pub printed: Vec<Printed>,
    /// Node, `totalpages`, line.
    pub total_pages: Vec<(u32, u64, u64)>,
    /// Node, zone, its present pages as counted by the kernel, line.
    pub zone_pages: Vec<(u32, String, u64, u64)>,
    /// Node, zone, pages of one hole, line.
    pub holes: Vec<(u32, String, u64, u64)>,
    /// Pages on all zone lists, line.
    pub listed: Option<(u64, u64)>,
    /// Line of the `Memory:` totals.
    pub memory_line: u64,
    /// The node whose `totalpages` was met last.
    pub current_node: u32,
    /// A firmware map of the PC was met, and where.
    pub e820_line: Option<u64>,
    /// The input stopped inside the list of node ranges: presence is not known.
    pub cut: bool,
}

/// Reads a line.
pub fn line(line: &Line<'_>, draft: &mut Draft) -> Outcome {
    let body = line.body();
    let outcome = lists(body, line, draft)
        .or_else(|| boot_firmware::line(body, line, draft))
        .or_else(|| boot_counts::line(body, line, draft))
        .or_else(|| is_chatter(body).then_some(Outcome::Empty))
        .unwrap_or(Outcome::No);
    if outcome == Outcome::Yes {
        draft.met(Format::Dmesg);
    }
    outcome
}

/// The three lists and their headers.
fn lists(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    if matches!(body, b"Zone ranges:" | b"Zone PFN ranges:") {
        if !draft.boot.zones.is_empty() {
            draft.note(
                line.number,
                "another boot begins here; the zones are those of the last one",
            );
            draft
                .ranges
                .retain(|range| range.kind != RangeKind::Node && range.kind != RangeKind::Zone);
            draft.boot = Boot::default();
        }
        draft.boot.list = List::Zones;
        return Some(Outcome::Empty);
    }
    if body.starts_with(b"Movable zone start for each node")
        || body.starts_with(b"Movable zone start PFN for each node")
    {
        draft.boot.list = List::MovableStarts;
        return Some(Outcome::Empty);
    }
    if body == b"Early memory node ranges"
        || body.starts_with(b"early_node_map[")
        || body.starts_with(b"Early memory PFN ranges")
    {
        draft.boot.list = List::NodeRanges;
        return Some(Outcome::Empty);
    }
    node_row(body, line, draft)
        .or_else(|| movable_row(body, line, draft))
        .or_else(|| zone_row(body, line, draft))
}

/// `node   0: [mem 0x0000000000001000-0x000000000009efff]`, or `0: 0x00000001 -> 0x0000009f` in frames.
fn node_row(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let (node, span) = if let Some(rest) = strip(body, "node ") {
        let (node, rest) = text::take_dec(rest.trim_ascii_start())?;
        let rest = strip(rest, ":")?;
        match mem_range(rest) {
            Some((start, end, _)) => (node, Span::Bytes(start, end)),
            None if is_unfinished(rest) => return unfinished(line, draft, true),
            None => return None,
        }
    } else if draft.boot.list == List::NodeRanges {
        let (node, rest) = text::take_dec(body)?;
        let span = frames(strip(rest, ":")?)?;
        if line.cut {
            return unfinished(line, draft, true);
        }
        (node, span)
    } else {
        return None;
    };
    let node = u32::try_from(node).ok()?;
    edges(span, line.number, draft);
    draft.boot.nodes.push((node, span, line.number));
    Some(Outcome::Yes)
}

/// `DMA      [mem 0x0000000000001000-0x0000000000ffffff]`, `Normal   empty`, `DMA  0x00000010 -> 0x00001000`.
fn zone_row(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    const NAMES: [&[u8]; 8] = [
        b"DMA", b"DMA32", b"Normal", b"HighMem", b"Movable", b"Device", b"Elastic", b"LowMem",
    ];
    let (name, rest) = text::word(body);
    let listed = draft.boot.list == List::Zones
        && name.first().is_some_and(u8::is_ascii_uppercase)
        && name.iter().all(u8::is_ascii_alphanumeric);
    if !listed && !NAMES.contains(&name) {
        return None;
    }
    let rest = rest.trim_ascii();
    let span = if rest == b"empty" {
        None
    } else if let Some((start, end, _)) = mem_range(rest) {
        Some(Span::Bytes(start, end))
    } else if is_unfinished(rest) {
        return unfinished(line, draft, false);
    } else {
        let Span::Pfns(start, end) = frames(rest)? else {
            return None;
        };
        if line.cut {
            return unfinished(line, draft, false);
        }
        Some(Span::Pfns(start, end))
    };
    if let Some(span) = span {
        edges(span, line.number, draft);
    }
    draft.boot.zones.push((lossy(name), span, line.number));
    Some(if span.is_some() {
        Outcome::Yes
    } else {
        Outcome::Empty
    })
}

/// `Node 1: 0x0000001080000000`, or a decimal frame in older kernels.
fn movable_row(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    if draft.boot.list != List::MovableStarts {
        return None;
    }
    let (node, rest) = text::take_dec(strip(body, "Node ")?)?;
    let word = strip(rest, ":")?.trim_ascii();
    let span = if word.starts_with(b"0x") {
        let start = text::hex(word)?;
        draft.page_sizes.edge(line.number, start);
        Span::Bytes(start, start)
    } else {
        let start = text::dec(word)?;
        Span::Pfns(start, start)
    };
    if line.cut {
        draft.boot.cut = true;
        draft.cut(line.number, "the input ends in the list of movable starts");
        return Some(Outcome::Empty);
    }
    draft.boot.movable.push((u32::try_from(node).ok()?, span));
    Some(Outcome::Yes)
}

/// `0x00000010 -> 0x00001000` or `0 -> 4096`: frames, the end exclusive.
fn frames(bytes: &[u8]) -> Option<Span> {
    let (start, rest) = text::take_number(bytes.trim_ascii_start())?;
    let (end, _) = text::take_number(strip(rest.trim_ascii_start(), "->")?.trim_ascii_start())?;
    (end > start).then_some(Span::Pfns(start, end))
}

/// Whether a range was begun and has no end.
pub fn is_unfinished(rest: &[u8]) -> bool {
    let rest = rest.trim_ascii_start();
    rest.starts_with(b"[") && !rest.contains(&b']')
}

fn unfinished(line: &Line<'_>, draft: &mut Draft, in_nodes: bool) -> Option<Outcome> {
    if let Some(outcome) = line.unfinished() {
        return Some(outcome);
    }
    draft.boot.cut |= in_nodes && line.cut;
    draft.cut(line.number, "the line ends in a range");
    Some(Outcome::Empty)
}

/// Ranges of RAM and of zones consist of whole pages.
fn edges(span: Span, line: u64, draft: &mut Draft) {
    if let Span::Bytes(start, end) = span {
        draft.page_sizes.edge(line, start);
        draft.page_sizes.edge(line, end);
    }
}

/// Adds a range as printed.
pub fn add_range(kind: RangeKind, start: u64, end: u64, draft: &mut Draft) -> Option<&mut Range> {
    if end <= start {
        return None;
    }
    draft.ranges.push(Range {
        kind,
        start_byte: start,
        end_byte: end,
        what: None,
        node: None,
        zone: None,
        state: None,
        hotplug: None,
    });
    draft.ranges.last_mut()
}

/// Lines of a boot log that say nothing of ranges and counts, or say it again.
fn is_chatter(body: &[u8]) -> bool {
    const HEADS: [&str; 79] = [
        "Policy zone:",
        "Could not find start_pfn",
        "mapped low ram",
        "low ram:",
        "Faking node",
        "Built ",
        "Fallback order for Node",
        "No NUMA configuration found",
        "NUMA: ",
        "Faking a node at",
        "Fake node",
        "NODE_DATA(",
        "NODE_DATA [",
        "Hypervisor detected:",
        "Booting paravirtualized kernel",
        "Linux version ",
        "Command line:",
        "Kernel command line:",
        "BIOS-provided physical RAM map",
        "user-defined physical RAM map",
        "extended physical RAM map",
        "Zeroed struct page",
        "Reserved but unavailable",
        "e820: ",
        "Top of RAM:",
        "Memory hole size:",
        "cma: Reserved",
        "cma: ",
        "OF: fdt:",
        "OF: reserved mem:",
        "Reserved memory:",
        "mem auto-init:",
        "Determined physical RAM map",
        "Initrd ",
        "Primary ",
        "Movable zone: ",
        "early_node_map",
        "ACPI: SRAT: ",
        "SRAT: ",
        "SMBIOS",
        "DMI:",
        "efi: ",
        "EFI v",
        "last_pfn",
        "found SMP MP-table",
        "Using GB pages",
        "init_memory_mapping",
        "kernel direct mapping",
        "RAMDISK:",
        "Initmem setup",
        "MEMBLOCK configuration",
        "memblock_",
        "reserved.cnt",
        "memory.cnt",
        "memory size =",
        "setup: ",
        "Physical memory",
        "phys_mem_size",
        "Booting Linux",
        "Machine model:",
        "percpu:",
        "pcpu-alloc:",
        "Inode-cache",
        "Dentry cache",
        "SLUB:",
        "x86/PAT:",
        "MTRR ",
        "Sorting __ex_table",
        "User-defined physical RAM map",
        "numa: ",
        "Memory policy:",
        "Memory map:",
        "free_area_init",
        "Page sizes from device-tree",
        "base_shift=",
        "ppc64_pft_size",
        "dcache_bsize",
        "icache_bsize",
        "PERCPU: ",
    ];
    HEADS.iter().any(|head| body.starts_with(head.as_bytes()))
        || has(body, "MB HIGHMEM available")
        || has(body, "MB LOWMEM available")
        || has(body, "zonelists, mobility grouping")
        || has(body, " pages used for memmap")
        || has(body, " pages reserved") && has(body, " zone:")
}
