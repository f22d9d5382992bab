//! Logs of onlining, offlining and removing memory, and of what stood in the way.
//!
//! The kernel prints ranges in bytes (`[mem 0x…-0x…]`), page frames in hexadecimal without
//! `0x`, and counts in decimal; tools and self-tests print block numbers. Who asked for it
//! is read by [`shell`](super::shell); attempt and answer meet in [`attempt`](super::attempt).

use super::attempt::Attempts;
use super::draft::Draft;
use super::event::{Event, EventKind};
use super::format::Format;
use super::line::Line;
use super::outcome::Outcome;
use super::page_size::CANDIDATES;
use super::span::mem_range;
use super::text::{self, has, lossy, strip};

/// What the lines before have told.
#[derive(Clone, Debug, Default)]
pub struct Offline {
    /// The last debug line `start_pfn: …, end_pfn: …`.
    pfns: Option<(u64, u64, u64)>,
    /// The last failed migration, whose page is dumped in the lines that follow.
    migration: Option<usize>,
}

impl Offline {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, attempts: &mut Attempts, draft: &mut Draft) -> Outcome {
        let body = line.body();
        let read = self
            .offlined(body, line, attempts, draft)
            .or_else(|| self.ranges(body, line, attempts, draft))
            .or_else(|| self.migration(body, line, draft))
            .or_else(|| blocks(body, line, attempts, draft));
        match read {
            Some(Outcome::Yes) => {
                draft.met(Format::OfflineLog);
                Outcome::Yes
            }
            Some(other) => other,
            None if is_chatter(body) => Outcome::Empty,
            None => Outcome::No,
        }
    }

    /// `Offlined Pages 32768`, and the debug line that older kernels were patched with.
    fn offlined(
        &mut self,
        body: &[u8],
        line: &Line<'_>,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) -> Option<Outcome> {
        if let Some(rest) =
            strip(body, "Offlined Pages ").or_else(|| strip(body, "Offlined pages "))
        {
            let (pages, tail) = text::take_dec(rest.trim_ascii())?;
            // Blocks are made of whole pageblocks; a number that is not may lack digits.
            if !tail.is_empty() || line.cut && pages % 512 != 0 {
                return None;
            }
            let mut event = at(EventKind::Offline, line);
            event.more.nr_pages = Some(pages);
            if let Some((start, end, _)) = self
                .pfns
                .take()
                .filter(|(start, end, _)| end.checked_sub(*start) == Some(pages))
            {
                event.pfn = Some(start);
                event.more.end_pfn = Some(end);
            }
            attempts.answer(event, draft);
            return Some(Outcome::Yes);
        }
        if let Some(rest) = strip(body, "start_pfn:") {
            let (start, rest) = text::take_number(rest.trim_ascii_start())?;
            let (end, _) = text::take_number(text::after(rest, "end_pfn:")?.trim_ascii_start())?;
            self.pfns = Some((start, end, line.number));
            return Some(Outcome::Empty);
        }
        let rest = strip(body, "remove from free list ")?;
        let mut words = text::words(rest);
        let (pfn, pages, end) = (
            text::hex(words.next()?)?,
            text::dec(words.next()?)?,
            text::hex(words.next()?)?,
        );
        if line.cut && end < pfn.saturating_add(pages) {
            return None;
        }
        let mut event = at(EventKind::FreeListRemove, line);
        event.pfn = Some(pfn);
        event.more.nr_pages = Some(pages);
        event.more.end_pfn = Some(end);
        draft.events.push(event);
        Some(Outcome::Yes)
    }

    /// Lines that name a range of addresses.
    fn ranges(
        &mut self,
        body: &[u8],
        line: &Line<'_>,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) -> Option<Outcome> {
        let (kind, rest) = if let Some(rest) =
            text::after(body, "memory offlining ").or_else(|| text::after(body, "offlining pages "))
        {
            (EventKind::OfflineFailed, rest)
        } else if let Some(rest) = text::after(body, "online_pages ") {
            (EventKind::OnlineFailed, rest)
        } else if let Some(rest) = text::after(body, "removing memory fails, because memory ") {
            (EventKind::RemoveFailed, rest)
        } else {
            return None;
        };
        let Some((start, end, tail)) = mem_range(rest) else {
            return line.unfinished();
        };
        let tail = tail.trim_ascii();
        let failed = strip(tail, "failed").or_else(|| strip(tail, "is onlined").map(|_| tail));
        if failed.is_none() && line.wraps {
            return Some(Outcome::More);
        }
        let kind = match (kind, failed) {
            (kind, Some(_)) => kind,
            (EventKind::OfflineFailed, None) if tail.is_empty() || has(tail, "succe") => {
                EventKind::Offline
            }
            (EventKind::OnlineFailed, None) if tail.is_empty() || has(tail, "succe") => {
                EventKind::Online
            }
            _ => return None,
        };
        let reason = failed
            .map(|reason| reason.trim_ascii())
            .map(|reason| strip(reason, "due to ").unwrap_or(reason))
            .unwrap_or(b"");
        let reason = lossy(reason);
        let mut event = at(kind, line);
        event.more.start_byte = Some(start);
        event.more.end_byte = Some(end);
        event.more.reason = (!reason.is_empty()).then_some(reason.as_str());
        if let Some((pfn, end_pfn)) = self.same_range(start, end, draft) {
            event.pfn = Some(pfn);
            event.more.end_pfn = Some(end_pfn);
        }
        attempts.answer(event, draft);
        Some(Outcome::Yes)
    }

    /// The debug line before, if it is this range in pages of some size: then it also tells the page size.
    fn same_range(&mut self, start: u64, end: u64, draft: &mut Draft) -> Option<(u64, u64)> {
        let (pfn, end_pfn, line) = self.pfns.take()?;
        let size = CANDIDATES.into_iter().find(|size| {
            pfn.checked_mul(*size) == Some(start) && end_pfn.checked_mul(*size) == Some(end)
        })?;
        if pfn > 0 {
            draft.page_sizes.state(
                line,
                size,
                "a range in pages beside the same range in bytes",
            );
        }
        Some((pfn, end_pfn))
    }

    /// `migrating pfn 1727813 failed ret:1` and the dump of the page that follows it.
    fn migration(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
        let (pfn, reason) = if let Some(rest) = strip(body, "migrating pfn ") {
            let (pfn, rest) = text::take_hex(rest)?;
            strip(rest, " failed")?;
            (pfn, None)
        } else if let Some(rest) = strip(body, "failed to isolate pfn ") {
            (text::take_hex(rest)?.0, Some("failed to isolate"))
        } else if let Some(rest) = strip(body, "removing pfn ") {
            let (pfn, rest) = text::take_hex(rest)?;
            strip(rest, " from LRU failed")?;
            (pfn, Some("removing from LRU failed"))
        } else {
            return self.page_dump(body, draft);
        };
        let mut event = at(EventKind::MigrateFailed, line);
        event.pfn = Some(pfn);
        event.more.reason = reason;
        if let Some(ret) = text::after(body, "ret:") {
            event.more.ret = Some(text::take_counter(ret.trim_ascii_start())?.0.value);
        }
        self.migration = Some(draft.events.push(event));
        Some(Outcome::Yes)
    }

    /// The lines of a page dump say on which node the page lies, and nothing else that is of use here.
    fn page_dump(&mut self, body: &[u8], draft: &mut Draft) -> Option<Outcome> {
        const HEADS: [&str; 13] = [
            "page:",
            "page: ",
            "memcg:",
            "aops:",
            "flags: ",
            "raw: ",
            "head: ",
            "page dumped because:",
            "page_type:",
            "page_owner ",
            "page last ",
            "page has been migrated",
            "anon flags: ",
        ];
        let known = HEADS.iter().any(|head| body.starts_with(head.as_bytes()))
            || body == b"anon"
            || body == b"ksm";
        if !known {
            return None;
        }
        if let Some((node, index)) = text::number_after(body, "|node=")
            .or_else(|| text::number_after(body, "(node="))
            .zip(self.migration)
            && let Some(kind) = draft.events.get(index).map(|event| event.kind)
        {
            let mut event = Event::new(kind, 0);
            event.more.node = u32::try_from(node).ok();
            draft.events.amend(index, event);
        }
        if body.starts_with(b"page dumped because:") {
            self.migration = None;
        }
        Some(Outcome::Empty)
    }
}

/// An event at this line.
fn at<'a>(kind: EventKind, line: &Line<'_>) -> Event<'a> {
    let mut event = Event::new(kind, line.number);
    event.time = line.time;
    event
}

/// Lines that name a memory block by its number.
fn blocks(
    body: &[u8],
    line: &Line<'_>,
    attempts: &mut Attempts,
    draft: &mut Draft,
) -> Option<Outcome> {
    if let Some(rest) = strip(body, "memory memory") {
        let (block, rest) = text::take_dec(rest)?;
        let rest = strip(rest, ":")?.trim_ascii();
        let kind = match rest {
            b"Offline failed." | b"Offline disabled." => EventKind::OfflineFailed,
            _ => return None,
        };
        let reason = lossy(rest.strip_suffix(b".").unwrap_or(rest));
        let mut event = at(kind, line);
        event.more.block = Some(block);
        event.more.reason = Some(&reason);
        attempts.answer(event, draft);
        return Some(Outcome::Yes);
    }
    // The self-test of the kernel.
    for (arrow, kind) in [
        ("online->offline memory", EventKind::Offline),
        ("offline->online memory", EventKind::Online),
    ] {
        if let Some(rest) = strip(body, arrow) {
            let mut event = at(kind, line);
            event.more.block = Some(text::dec(rest.trim_ascii()).filter(|_| !line.cut)?);
            attempts.try_it(event, draft);
            return Some(Outcome::Yes);
        }
    }
    if let Some(rest) =
        strip(body, "offline_memory_expect_").or_else(|| strip(body, "online_memory_expect_"))
    {
        let failed = has(rest, "unexpected fail");
        let block = text::words(rest)
            .nth(1)
            .and_then(|word| text::dec(word.strip_suffix(b":").unwrap_or(word)));
        if failed && block.is_some() && block == attempts.block() {
            attempts.refuse("unexpected fail", line.number, line.time, draft);
            return Some(Outcome::Yes);
        }
        return Some(Outcome::Empty);
    }
    // `bash: echo: write error: Device or resource busy`, and how tee and busybox say it.
    let of_tee = strip(body, "tee: ").and_then(|rest| text::after(rest, ": "));
    let refusal = text::after(body, "write error: ")
        .or(of_tee)
        .or_else(|| text::after(body, "echo: "));
    if let Some(reason) = refusal {
        return Some(
            if attempts.refuse(&lossy(reason), line.number, line.time, draft) {
                Outcome::Yes
            } else {
                Outcome::Empty
            },
        );
    }
    chmem(body, line, attempts, draft).or_else(|| power(body, line, draft))
}

/// `Memory Block 32 (0x0000000100000000-0x0000000107ffffff) disable failed: Device or resource busy` of chmem.
fn chmem(
    body: &[u8],
    line: &Line<'_>,
    attempts: &mut Attempts,
    draft: &mut Draft,
) -> Option<Outcome> {
    let body = strip(body, "chmem: ").unwrap_or(body);
    let rest = strip(body, "Memory Block ").or_else(|| strip(body, "Memory block "))?;
    let (block, rest) = text::take_dec(rest)?;
    let open = strip(rest.trim_ascii_start(), "(")?;
    let (start, rest) = text::take_hex(open)?;
    let (last, rest) = text::take_hex(strip(rest, "-")?)?;
    let says = strip(rest, ")")?.trim_ascii();
    let (says, reason) = match text::find(says, ": ") {
        Some(at) => (&says[..at], Some(lossy(&says[at + 2..]))),
        None => (says, None),
    };
    let kind = match says {
        b"enabled" => EventKind::Online,
        b"disabled" => EventKind::Offline,
        b"enable failed" => EventKind::OnlineFailed,
        b"disable failed" => EventKind::OfflineFailed,
        b"already enabled" | b"already disabled" => return Some(Outcome::Empty),
        _ => return None,
    };
    let mut event = at(kind, line);
    event.more.block = Some(block);
    event.more.start_byte = Some(start);
    event.more.end_byte = last.checked_add(1);
    event.more.reason = reason.as_deref();
    attempts.answer(event, draft);
    Some(Outcome::Yes)
}

/// `Memory at 10000000 (drc index 80000001) was hot-added` of POWER, what was undone there, and
/// devices and ranges that could not be added.
fn power(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let body = strip(body, "pseries-hotplug-mem: ").unwrap_or(body);
    if let Some(rest) = strip(body, "Memory at ") {
        let (start, rest) = text::take_hex(rest)?;
        let kind = match (has(rest, "was hot-added"), has(rest, "was hot-removed")) {
            (true, _) => EventKind::Plug,
            (_, true) => EventKind::Remove,
            _ => return None,
        };
        let mut event = at(kind, line);
        event.more.start_byte = Some(start);
        draft.events.push(event);
        return Some(Outcome::Yes);
    }
    let undone = [
        ("-remove failed, adding", EventKind::RemoveFailed),
        ("-add failed, removing", EventKind::PlugFailed),
    ];
    for (says, kind) in undone {
        if body.starts_with(b"Memory ") && has(body, says) {
            let mut event = at(kind, line);
            let reason = lossy(body);
            event.more.reason = Some(&reason);
            draft.events.push(event);
            return Some(Outcome::Yes);
        }
    }
    if let Some(rest) = text::after(body, "unaligned hotplug range: start ") {
        let (start, rest) = text::take_number(rest)?;
        let (size, _) = text::take_number(strip(rest, ", size ")?)?;
        if line.cut {
            return None;
        }
        let mut event = at(EventKind::PlugFailed, line);
        event.more.start_byte = Some(start);
        event.more.end_byte = start.checked_add(size);
        event.more.reason = Some("unaligned hotplug range");
        draft.events.push(event);
        return Some(Outcome::Yes);
    }
    let colon = text::find(body, ": add_memory failed")
        .or_else(|| text::find(body, ": acpi_memory_enable_device() error"))?;
    let device = lossy(text::words(&body[..colon]).last()?);
    let reason = lossy(&body[colon + 2..]);
    let mut event = at(EventKind::PlugFailed, line);
    event.more.device = Some(&device);
    event.more.reason = Some(&reason);
    draft.events.push(event);
    Some(Outcome::Yes)
}

/// Lines that stand around these and say nothing of a block or a page.
fn is_chatter(body: &[u8]) -> bool {
    const HEADS: [&str; 18] = [
        "chmem: Could only",
        "min_free_kbytes is not updated",
        "khugepaged: raising min_free_kbytes",
        "Test scope:",
        "trying to offline ",
        "trying to online ",
        "SKIPPED",
        "Test with memory notifier",
        "memory_hotplug",
        "pseries-hotplug-mem: Attempting",
        "pseries-hotplug-mem: Memory hot-",
        "Fallback order for Node",
        "Auto-onlining",
        "auto_movable",
        "Removing memory",
        "page_isolation",
        "skipped: ",
        "memory hotplug",
    ];
    HEADS.iter().any(|head| body.starts_with(head.as_bytes())) || has(body, " hot-pluggable memory")
}
