//! Text of ftrace, trace-cmd and perf: the `kmem` and `compaction` events.
//!
//! The one parser with a speed to keep: it finds the event by its name, reads its fields in
//! the order in which the kernel prints them, and copies nothing but task and flags, once
//! each. Everything rarer than an allocation or a free is in
//! [`trace_event`](super::trace_event), what stands before an event in
//! [`trace_prefix`](super::trace_prefix).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use memchr::memmem::Finder;

use super::draft::Draft;
use super::event::{Event, EventKind};
use super::events::Mix;
use super::format::Format;
use super::line::Line;
use super::outcome::Outcome;
use super::text::{self, take_dec, take_number};
use super::trace_event;
use super::trace_prefix::Prefix;

/// What the lines before have told.
pub struct Ftrace {
    name: Finder<'static>,
    /// Frees of a batch that the free of the single page will repeat, by page.
    batched: HashMap<u64, u64, BuildHasherDefault<Mix>>,
    /// The last scan that made no progress, and how often it came in a row.
    pub(super) idle: Option<(EventKind, u64, u32)>,
    /// A line of a trace was met, so call chains and graph lines may follow.
    pub(super) met: bool,
    frees: usize,
    allocs: usize,
}

impl Default for Ftrace {
    fn default() -> Ftrace {
        Ftrace {
            name: Finder::new("mm_"),
            batched: HashMap::default(),
            idle: None,
            met: false,
            frees: 0,
            allocs: 0,
        }
    }
}

/// Name and fields of an event in a line, and what stands before the name.
pub(super) struct Found<'a> {
    pub before: &'a [u8],
    pub name: &'a [u8],
    pub fields: &'a [u8],
}

impl Ftrace {
    /// Reads a line as it stands in the file, without the prefixes of a log taken off.
    pub fn line(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let Some(found) = self.find(line.text) else {
            return trace_event::other(self, line, draft);
        };
        let outcome = match found.name {
            b"mm_page_alloc" => self.alloc(&found, line, draft),
            b"mm_page_free" | b"mm_page_free_direct" => self.free(&found, line, draft, false),
            b"mm_page_free_batched" | b"mm_pagevec_free" => self.free(&found, line, draft, true),
            _ => trace_event::event(self, &found, line, draft),
        };
        if outcome == Outcome::Yes {
            if !self.met {
                draft.met(Format::Ftrace);
            }
            self.met = true;
        }
        outcome
    }

    /// Finds `mm_…:` where an event name can stand: at the start, behind a blank or behind `kmem:`.
    fn find<'a>(&self, text: &'a [u8]) -> Option<Found<'a>> {
        let mut from = 0;
        while let Some(found) = self.name.find(&text[from..]) {
            let start = from + found;
            let stands = start == 0 || matches!(text[start - 1], b' ' | b':' | b'\t' | b'*');
            let length = text[start..]
                .iter()
                .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
                .unwrap_or(text.len() - start);
            let end = start + length;
            if stands && text.get(end) == Some(&b':') {
                return Some(Found {
                    before: &text[..start],
                    name: &text[start..end],
                    fields: &text[end + 1..],
                });
            }
            from = end.max(start + 1);
        }
        None
    }

    fn alloc(&mut self, found: &Found<'_>, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let mut fields = Fields::new(found.fields);
        let page_is_null = fields.page();
        let (Some(pfn), Some(order)) = (fields.get(b"pfn"), fields.get(b"order")) else {
            return trace_event::lacking(found, line, draft);
        };
        let Some(migratetype) = fields.word(b"migratetype") else {
            return trace_event::lacking(found, line, draft);
        };
        let gfp = fields.rest_after(b"gfp_flags");
        if gfp.is_none() && line.wraps {
            return Outcome::More;
        }
        // No kernel hands out page frame 0: it is printed for a null page. The other value is -1.
        let failed = pfn == 0 || pfn == u64::MAX || page_is_null;
        let kind = if failed {
            EventKind::AllocFailed
        } else {
            EventKind::Alloc
        };
        let mut event = self.event(kind, found, line);
        event.pfn = (!failed).then_some(pfn);
        event.order = u32::try_from(order).ok();
        event.migratetype = std::str::from_utf8(migratetype).ok();
        event.gfp = gfp
            .and_then(|gfp| std::str::from_utf8(gfp).ok())
            .filter(|gfp| !gfp.is_empty());
        if event.gfp.is_none() || line.cut && !ends_in_flag(event.gfp) {
            event.gfp = None;
            if line.cut {
                draft.cut(line.number, "the input ends in the flags of an allocation");
            }
        }
        draft.events.push(event);
        self.allocs += 1;
        Outcome::Yes
    }

    fn free(
        &mut self,
        found: &Found<'_>,
        line: &Line<'_>,
        draft: &mut Draft,
        batched: bool,
    ) -> Outcome {
        let mut fields = Fields::new(found.fields);
        fields.page();
        let (Some(pfn), Some(order)) = (fields.get(b"pfn"), fields.get(b"order")) else {
            return trace_event::lacking(found, line, draft);
        };
        // The order is the last field of a free, and may lack a digit.
        if line.cut && fields.is_at_end() {
            return trace_event::lacking(found, line, draft);
        }
        if batched {
            self.batched.insert(pfn, line.number);
        } else if !self.batched.is_empty() && self.batched.remove(&pfn).is_some() {
            // Since 3.3 a batch says each page once for itself before the page says it again.
            return Outcome::Empty;
        }
        let mut event = self.event(EventKind::Free, found, line);
        event.pfn = Some(pfn);
        event.order = u32::try_from(order).ok();
        draft.events.push(event);
        self.frees += 1;
        Outcome::Yes
    }

    /// An event with what its prefix says.
    pub(super) fn event<'a>(
        &self,
        kind: EventKind,
        found: &Found<'a>,
        line: &Line<'a>,
    ) -> Event<'a> {
        let prefix = Prefix::read(found.before);
        let mut event = Event::new(kind, line.number);
        event.time = prefix.time.or(line.time);
        event.cpu = prefix.cpu;
        event.pid = prefix.pid;
        event.task = prefix.task;
        event
    }

    /// The trace ends: says which pages were freed twice with no allocation between.
    pub fn end(&mut self, draft: &mut Draft) {
        if self.frees < 2 {
            return;
        }
        let mut free: HashMap<u64, u64, BuildHasherDefault<Mix>> = HashMap::default();
        let mut twice = Vec::new();
        for (kind, pfn, order, line) in draft.events.pages() {
            match (kind, pfn, order) {
                (EventKind::Alloc, Some(pfn), Some(order)) => {
                    for page in pfn..pfn.saturating_add(1 << order.min(20)) {
                        free.remove(&page);
                    }
                }
                (EventKind::Free, Some(pfn), _) => {
                    twice.extend(free.insert(pfn, line).map(|first| (pfn, first, line)))
                }
                _ => {}
            }
        }
        // Where no allocation was traced, a page that comes again has been in use between.
        if self.allocs == 0 && twice.len() > 100 {
            draft.note(
                twice[0].2,
                format!(
                    "{} pages are freed again, but the trace has no allocations",
                    twice.len()
                ),
            );
            return;
        }
        for (pfn, first, line) in twice {
            draft.warn(line, format!("page frame {pfn} is freed twice: the first time on line {first}, with no allocation between"));
        }
    }
}

/// Whether the last flag is whole, as far as one can tell without its line feed.
fn ends_in_flag(gfp: Option<&str>) -> bool {
    const FLAGS: [&str; 34] = [
        "GFP_KERNEL",
        "GFP_KERNEL_ACCOUNT",
        "GFP_ATOMIC",
        "GFP_NOWAIT",
        "GFP_NOIO",
        "GFP_NOFS",
        "GFP_USER",
        "GFP_DMA",
        "GFP_DMA32",
        "GFP_HIGHUSER",
        "GFP_HIGHUSER_MOVABLE",
        "GFP_TRANSHUGE",
        "GFP_TRANSHUGE_LIGHT",
        "GFP_TEMPORARY",
        "__GFP_ZERO",
        "__GFP_COMP",
        "__GFP_NOWARN",
        "__GFP_THISNODE",
        "__GFP_MOVABLE",
        "__GFP_HIGHMEM",
        "__GFP_NORETRY",
        "__GFP_ACCOUNT",
        "__GFP_NOMEMALLOC",
        "__GFP_MEMALLOC",
        "__GFP_HARDWALL",
        "__GFP_WRITE",
        "__GFP_RECLAIMABLE",
        "__GFP_NOFAIL",
        "__GFP_RETRY_MAYFAIL",
        "__GFP_IO",
        "__GFP_FS",
        "__GFP_RECLAIM",
        "__GFP_DIRECT_RECLAIM",
        "__GFP_KSWAPD_RECLAIM",
    ];
    gfp.and_then(|gfp| gfp.rsplit('|').next())
        .is_some_and(|last| FLAGS.contains(&last))
}

/// The fields of an event, which come in a fixed order: each is looked for behind the one before.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Starts before the first field.
    pub fn new(fields: &'a [u8]) -> Fields<'a> {
        Fields { rest: fields }
    }

    /// Steps over `page=…`, which may be `page= (null)`, and says if it is null.
    fn page(&mut self) -> bool {
        let Some(rest) = self.behind(b"page") else {
            return false;
        };
        let rest = rest.trim_ascii_start();
        let end = rest
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        self.rest = tail;
        match word {
            b"(null)" | b"(nil)" | b"0x0" | b"0" => true,
            [b'0', ..] => text::hex(word) == Some(0),
            _ => false,
        }
    }

    /// What follows `key=`.
    fn behind(&self, key: &[u8]) -> Option<&'a [u8]> {
        let mut at = 0;
        loop {
            let found = at + memchr::memchr(b'=', &self.rest[at..])?;
            let before = &self.rest[..found];
            if before.ends_with(key)
                && !before
                    .get(..found - key.len())
                    .and_then(|head| head.last())
                    .is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
            {
                return Some(&self.rest[found + 1..]);
            }
            at = found + 1;
        }
    }

    /// The number of a field.
    pub fn get(&mut self, key: &[u8]) -> Option<u64> {
        let rest = self.behind(key)?;
        // Some writers show the page frame of a null page signed.
        let (value, tail) = match rest.strip_prefix(b"-1") {
            Some(tail) => (u64::MAX, tail),
            None => take_number(rest)?,
        };
        self.rest = tail;
        Some(value)
    }

    /// The word of a field, without a comma at its end.
    pub fn word(&mut self, key: &[u8]) -> Option<&'a [u8]> {
        let rest = self.behind(key)?;
        let end = rest
            .iter()
            .position(|byte| byte.is_ascii_whitespace() || *byte == b',')
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        self.rest = tail;
        (!word.is_empty()).then_some(word)
    }

    /// All that follows `key=`, without the end of a comment.
    fn rest_after(&mut self, key: &[u8]) -> Option<&'a [u8]> {
        let rest = self.behind(key)?.trim_ascii_end();
        let rest = rest.strip_suffix(b"*/").unwrap_or(rest).trim_ascii_end();
        Some(rest)
    }

    /// Whether nothing is left behind the last field read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// A field that is 0 or 1.
    pub fn flag(&mut self, key: &[u8]) -> Option<bool> {
        take_dec(self.word(key)?).map(|(value, _)| value != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::read;

    #[test]
    fn a_batch_and_its_single_frees_are_one() {
        let text = "a-1 [000] .... 1.000001: mm_page_free_batched: page=00000000d2be5665 pfn=0x10 order=0 cold=0\n\
                    a-1 [000] .... 1.000002: mm_page_free: page=00000000d2be5665 pfn=0x10 order=0\n\
                    a-1 [000] .... 1.000003: mm_page_free: page=00000000d2be5665 pfn=0x10 order=0\n";
        let draft = read("trace", text.as_bytes(), None);
        assert_eq!(draft.events.len(), 2);
        assert_eq!(draft.diagnostics.len(), 1, "{:?}", draft.diagnostics);
        assert_eq!(draft.diagnostics[0].line, 3);
    }

    #[test]
    fn an_allocation_between_makes_a_second_free_right() {
        let text = "a-1 [000] 1.000001: mm_page_free: page=00000000d2be5665 pfn=0x11 order=0\n\
                    a-1 [000] 1.000002: mm_page_alloc: page=00000000d2be5666 pfn=0x10 order=1 migratetype=0 gfp_flags=GFP_KERNEL\n\
                    a-1 [000] 1.000003: mm_page_free: page=00000000d2be5665 pfn=0x11 order=0\n";
        assert_eq!(read("trace", text.as_bytes(), None).diagnostics, []);
    }
}
