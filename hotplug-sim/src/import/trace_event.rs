//! Events of a trace that are rarer than allocations and frees, and lines that are none.
//!
//! Compaction scans, its begin and end, fallbacks; events of the two systems that say
//! nothing that the schema has are recognised. So are graph lines, call chains and the
//! remarks of the recorder.

use super::draft::Draft;
use super::event::{EventKind, More};
use super::format::Format;
use super::ftrace::{Fields, Found, Ftrace};
use super::line::Line;
use super::outcome::Outcome;
use super::text::{self, has, lossy, strip};

/// Reads an event that is neither allocation nor free.
pub(super) fn event(
    trace: &mut Ftrace,
    found: &Found<'_>,
    line: &Line<'_>,
    draft: &mut Draft,
) -> Outcome {
    let outcome = match found.name {
        b"mm_page_alloc_extfrag" => fallback(trace, found, line, draft),
        b"mm_compaction_isolate_migratepages" => {
            scan(trace, EventKind::IsolateMigrate, found, line, draft)
        }
        b"mm_compaction_isolate_freepages" | b"mm_compaction_fast_isolate_freepages" => {
            scan(trace, EventKind::IsolateFree, found, line, draft)
        }
        b"mm_compaction_begin" => compaction(trace, EventKind::CompactBegin, found, line, draft),
        b"mm_compaction_end" => compaction(trace, EventKind::CompactEnd, found, line, draft),
        b"mm_compaction_finished" => finished(trace, found, line, draft),
        _ => {
            return if is_silent(found.name) {
                silent(trace, draft)
            } else {
                Outcome::No
            };
        }
    };
    outcome.unwrap_or_else(|| lacking(found, line, draft))
}

/// An event of the two systems that is recognised and yields none here.
fn silent(trace: &mut Ftrace, draft: &mut Draft) -> Outcome {
    trace.met = true;
    draft.met(Format::Ftrace);
    Outcome::Empty
}

fn is_silent(name: &[u8]) -> bool {
    const NAMES: [&str; 22] = [
        "mm_page_alloc_zone_locked",
        "mm_page_pcpu_drain",
        "mm_compaction_migratepages",
        "mm_compaction_try_to_compact_pages",
        "mm_compaction_suitable",
        "mm_compaction_deferred",
        "mm_compaction_defer_compaction",
        "mm_compaction_defer_reset",
        "mm_compaction_kcompactd_sleep",
        "mm_compaction_kcompactd_wake",
        "mm_compaction_wakeup_kcompactd",
        "mm_setup_per_zone_wmarks",
        "mm_setup_per_zone_lowmem_reserve",
        "mm_calculate_totalreserve_pages",
        "mm_alloc_contig_migrate_range_info",
        "mm_page_alloc_bulk",
        "mm_migrate_pages",
        "mm_migrate_pages_start",
        "mm_vmscan_kswapd_wake",
        "mm_vmscan_kswapd_sleep",
        "mm_vmscan_wakeup_kswapd",
        "mm_lru_insertion",
    ];
    NAMES.iter().any(|known| known.as_bytes() == name)
}

/// An event that lacks a field it must have: the line is cut, or damaged.
pub(super) fn lacking(found: &Found<'_>, line: &Line<'_>, draft: &mut Draft) -> Outcome {
    if let Some(outcome) = line.unfinished() {
        return outcome;
    }
    let what = format!("{} lacks fields", lossy(found.name));
    if line.cut {
        draft.cut(line.number, what);
    } else {
        draft.warn(line.number, what);
    }
    draft.met(Format::Ftrace);
    Outcome::Empty
}

/// `page=… pfn=… alloc_order=0 fallback_order=3 pageblock_order=9 alloc_migratetype=0 fallback_migratetype=1 fragmenting=1 change_ownership=0`
fn fallback(
    trace: &Ftrace,
    found: &Found<'_>,
    line: &Line<'_>,
    draft: &mut Draft,
) -> Option<Outcome> {
    let mut fields = Fields::new(found.fields);
    let small = |value: u64| u32::try_from(value).ok();
    let pfn = fields.get(b"pfn")?;
    let order = fields.get(b"alloc_order")?;
    let fallback_order = fields.get(b"fallback_order")?;
    let pageblock_order = fields.get(b"pageblock_order").and_then(small);
    let migratetype = fields.word(b"alloc_migratetype")?;
    let fallback_migratetype = fields.word(b"fallback_migratetype")?;
    let fragmenting = fields.flag(b"fragmenting");
    let change_ownership = fields.flag(b"change_ownership");
    if line.cut && change_ownership.is_none() {
        return None;
    }
    let mut event = trace.event(EventKind::Fallback, found, line);
    event.pfn = Some(pfn);
    event.order = small(order);
    event.migratetype = std::str::from_utf8(migratetype).ok();
    event.more = More {
        fallback_order: small(fallback_order),
        fallback_migratetype: std::str::from_utf8(fallback_migratetype).ok(),
        pageblock_order,
        fragmenting,
        change_ownership,
        ..More::default()
    };
    draft.events.push(event);
    draft.pageblock_order = draft.pageblock_order.or(pageblock_order);
    Some(Outcome::Yes)
}

/// `range=(0x70bb80 ~ 0x70bb80) nr_scanned=0 nr_taken=0`; no range before 4.0.
fn scan(
    trace: &mut Ftrace,
    kind: EventKind,
    found: &Found<'_>,
    line: &Line<'_>,
    draft: &mut Draft,
) -> Option<Outcome> {
    let range = text::after(found.fields, "range=(").and_then(|range| {
        let (start, rest) = text::take_number(range)?;
        let (end, _) = text::take_number(strip(rest, " ~ ")?)?;
        Some((start, end))
    });
    let mut fields = Fields::new(found.fields);
    let (scanned, taken) = (fields.get(b"nr_scanned")?, fields.get(b"nr_taken")?);
    if line.cut && fields.is_at_end() {
        return None;
    }
    let mut event = trace.event(kind, found, line);
    event.pfn = range.map(|(start, _)| start);
    event.more.end_pfn = range.map(|(_, end)| end);
    event.more.nr_scanned = Some(scanned);
    event.more.nr_taken = Some(taken);
    draft.events.push(event);
    progress(trace, kind, range, scanned == 0 && taken == 0, line, draft);
    Some(Outcome::Yes)
}

/// A scan of the same place that finds nothing to look at, again: it will not end by itself.
fn progress(
    trace: &mut Ftrace,
    kind: EventKind,
    range: Option<(u64, u64)>,
    idle: bool,
    line: &Line<'_>,
    draft: &mut Draft,
) {
    let Some((start, _)) = range.filter(|_| idle) else {
        trace.idle = None;
        return;
    };
    let times = match trace.idle {
        Some((other, place, times)) if other == kind && place == start => times.saturating_add(1),
        _ => 1,
    };
    trace.idle = Some((kind, start, times));
    if times == 2 {
        draft.warn(line.number, format!("the scan makes no progress: page frame {start} again, nothing scanned, nothing taken"));
    }
}

/// `zone_start=0x1000 migrate_pfn=0x1000 free_pfn=0x2000 zone_end=0x2000, mode=sync status=success`
fn compaction(
    trace: &Ftrace,
    kind: EventKind,
    found: &Found<'_>,
    line: &Line<'_>,
    draft: &mut Draft,
) -> Option<Outcome> {
    let mut fields = Fields::new(found.fields);
    let start = fields.get(b"zone_start")?;
    let migrate = fields
        .get(b"migrate_pfn")
        .or_else(|| fields.get(b"migrate_start"));
    let free = fields
        .get(b"free_pfn")
        .or_else(|| fields.get(b"free_start"));
    let end = fields.get(b"zone_end")?;
    let result = fields.word(b"status");
    let open = line.cut && fields.is_at_end();
    if open || kind == EventKind::CompactEnd && result.is_none() && line.wraps {
        return None;
    }
    let mut event = trace.event(kind, found, line);
    event.pfn = Some(start);
    event.more.end_pfn = Some(end);
    event.more.migrate_pfn = migrate;
    event.more.free_pfn = free;
    event.more.result = result.and_then(|result| std::str::from_utf8(result).ok());
    draft.events.push(event);
    Some(Outcome::Yes)
}

/// `node=0 zone=Normal   order=9 ret=continue`
fn finished(
    trace: &Ftrace,
    found: &Found<'_>,
    line: &Line<'_>,
    draft: &mut Draft,
) -> Option<Outcome> {
    let mut fields = Fields::new(found.fields);
    let node = fields.get(b"node")?;
    let zone = fields.word(b"zone")?;
    let order = text::after(found.fields, "order=")
        .and_then(text::take_counter)?
        .0
        .value;
    let result = fields.word(b"ret").filter(|_| !line.cut)?;
    let mut event = trace.event(EventKind::CompactFinished, found, line);
    // kcompactd and the knob compact for order -1, which is none.
    event.order = u32::try_from(order).ok();
    event.more.node = u32::try_from(node).ok();
    event.more.zone = std::str::from_utf8(zone).ok();
    event.more.result = std::str::from_utf8(result).ok();
    draft.events.push(event);
    Some(Outcome::Yes)
}

/// A line without an event of ours: of a graph, of the recorder, of the slab allocator.
pub(super) fn other(trace: &mut Ftrace, line: &Line<'_>, draft: &mut Draft) -> Outcome {
    let body = line.body();
    if is_graph(body) {
        return Outcome::Empty;
    }
    if body.starts_with(b"CPU") && (has(body, "is empty") || has(body, "EVENTS]"))
        || body.starts_with(b"cpus=")
    {
        if let Some(lost) = text::number_after(body, "[LOST ") {
            draft.note(line.number, format!("the recorder lost {lost} events"));
        }
        return Outcome::Empty;
    }
    // `bash-1 [000] 1.0: kmalloc: …` and the lines of the function tracer.
    const NAMES: [&str; 10] = [
        " kmalloc: ",
        " kmalloc_node: ",
        " kmem_cache_alloc: ",
        " kmem_cache_alloc_node: ",
        " kfree: ",
        " kmem_cache_free: ",
        " rss_stat: ",
        ":kmalloc: ",
        ":kfree: ",
        ":rss_stat: ",
    ];
    let slab = NAMES.iter().any(|name| has(body, name)) || has(body, "kmem:kmem_cache_");
    let function = has(body, " <-") && has(body, ": ") && has(body, "] ");
    if slab || function {
        trace.met = true;
        return Outcome::Empty;
    }
    Outcome::No
}

/// ` 24)   0.160 us    |      __zone_watermark_ok();`, also with a time or a task before the bar.
fn is_graph(body: &[u8]) -> bool {
    let after_time = match text::take_seconds(body) {
        Some((_, rest)) => {
            strip(rest.trim_ascii_start(), "|").map_or(body, <[u8]>::trim_ascii_start)
        }
        None => body,
    };
    let Some((_, rest)) = text::take_dec(after_time) else {
        return false;
    };
    let Some(rest) = strip(rest, ")") else {
        return false;
    };
    has(rest, "|") || has(rest, "=>") || rest.is_empty()
}
