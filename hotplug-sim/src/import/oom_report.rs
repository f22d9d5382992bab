//! What a report says beside its zones: sums, tables, failed allocations.
//!
//! Only the sums in pages and the failed allocation are kept; the rest is recognised, so
//! that what is not understood stands out.

use super::draft::Draft;
use super::event::{Event, EventKind};
use super::format::Format;
use super::line::Line;
use super::oom::{is_sound, pair};
use super::outcome::Outcome;
use super::text::{self, has, words};

/// Whether a table is being read.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the table of tasks, of slabs or of allocation sites.
    table: bool,
}

impl Report {
    /// Lines of a report that the model has no place for.
    pub fn line(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        if has(body, " invoked oom-killer: ") {
            self.table = false;
            return Outcome::Empty;
        }
        if body.starts_with(b"Mem-Info:") || body.starts_with(b"Mem-info:") {
            self.table = false;
            return Outcome::Empty;
        }
        if TABLES.iter().any(|head| body.starts_with(head.as_bytes()))
            || (has(body, " uid ") && has(body, "total_vm"))
        {
            self.table = true;
            return Outcome::Empty;
        }
        if HEADS.iter().any(|head| body.starts_with(head.as_bytes()))
            || has(body, "hugepages_total=")
            || has(body, ": slabs: ")
            || has(body, "oom_reaper: reaped process")
            || (has(body, " cpuset=") && has(body, " mems_allowed="))
        {
            return Outcome::Empty;
        }
        if self.table && is_table_row(body) {
            return Outcome::Empty;
        }
        self.node_or_global(body, line, draft)
    }

    /// `Node 0 active_anon:12484kB …` and the sums before it, which carry pages without a unit.
    fn node_or_global(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let mut all: Vec<&[u8]> = words(body).collect();
        if all.len() > 2 && all[0] == b"Node" && text::small(all[1]).is_some() {
            all.drain(..2);
        }
        let known = all.first().is_some_and(|word| {
            FIRSTS
                .iter()
                .any(|first| word.starts_with(first.as_bytes()))
        });
        if !known {
            return Outcome::No;
        }
        if !all.last().is_some_and(|last| is_sound(last))
            && let Some(outcome) = line.unfinished()
        {
            return outcome;
        }
        let (mut free, mut odd) = (None, None);
        for (at, word) in all.iter().enumerate() {
            if is_sound(word) && !(line.cut && at + 1 == all.len()) {
                match pair(word) {
                    Some((b"free", Some(counter))) if !word.ends_with(b"B") => {
                        free = Some(draft.value(line.number, "free", counter));
                        draft.totals.free = free;
                    }
                    Some((b"free_cma", Some(counter))) if free.is_some() => {
                        draft.totals.free_cma = Some(counter.value);
                        odd = free.filter(|free| counter.value > *free);
                    }
                    Some((key, Some(counter))) if counter.wrapped => {
                        draft.value(line.number, &text::lossy(key), counter);
                    }
                    _ => {}
                }
            } else if at + 1 == all.len() {
                draft.cut(
                    line.number,
                    format!("the line ends in {}", text::lossy(word)),
                );
            } else {
                draft.warn(
                    line.number,
                    format!("not understood: {}", text::lossy(word)),
                );
            }
        }
        if let Some(free) = odd {
            draft.warn(
                line.number,
                format!("free_cma is above the {free} free pages"),
            );
        }
        if free.is_some() {
            draft.met(Format::Oom);
            return Outcome::Yes;
        }
        Outcome::Empty
    }
}

/// What a page allocation that failed says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocFailure {
    task: Option<String>,
    what: &'static str,
    /// The order that was asked for.
    pub order: Option<u32>,
    gfp: Option<String>,
}

impl AllocFailure {
    /// `kworker/0:1: page allocation failure: order:9, mode:0x4cc0(GFP_KERNEL|…), nodemask=…`
    pub fn read(body: &[u8]) -> Option<AllocFailure> {
        let what = [
            "vmemmap alloc failure",
            "page allocation failure",
            "page allocation stalls",
            "warn_alloc",
        ]
        .into_iter()
        .find(|what| has(body, what))?;
        let at = text::find(body, what)?;
        let task = body[..at].trim_ascii_end();
        let task = task.strip_suffix(b":").unwrap_or(task);
        let rest = &body[at..];
        let order = text::number_after(rest, "order:").and_then(|order| u32::try_from(order).ok());
        let mode = text::after(rest, "mode:").map(|mode| {
            &mode[..mode
                .iter()
                .position(|byte| *byte == b' ')
                .unwrap_or(mode.len())]
        });
        let gfp = mode.map(|mode| {
            let mode = mode.strip_suffix(b",").unwrap_or(mode);
            match (text::find(mode, "("), mode.strip_suffix(b")")) {
                (Some(open), Some(inside)) => text::lossy(&inside[open + 1..]),
                _ => text::lossy(mode),
            }
        });
        Some(AllocFailure {
            task: (!task.is_empty()).then(|| text::lossy(task)),
            what,
            order,
            gfp,
        })
    }

    /// Whether its line goes on: it lacks its flags, or ends in a comma.
    pub fn is_open(&self, body: &[u8]) -> bool {
        self.order.is_none() || self.gfp.is_none() || body.trim_ascii_end().ends_with(b",")
    }

    /// The event that it is.
    pub fn event(&self, line: &Line<'_>) -> Event<'_> {
        let mut event = Event::new(EventKind::AllocFailed, line.number);
        event.time = line.time;
        event.order = self.order;
        event.task = self.task.as_deref();
        event.gfp = self.gfp.as_deref().filter(|gfp| !gfp.is_empty());
        event.more.reason = Some(self.what);
        event
    }
}

/// `1048445 pages RAM` and its kin.
pub fn totals(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let (counter, rest) = text::take_counter(body)?;
    let rest = rest.trim_ascii_start();
    let field = match rest {
        b"pages RAM" | b"pages of RAM" => &mut draft.totals.present,
        b"pages reserved" | b"reserved pages" => &mut draft.totals.reserved,
        b"pages HighMem/MovableOnly" | b"pages HighMem" | b"pages of HIGHMEM" => {
            &mut draft.totals.highmem
        }
        b"pages cma reserved" => &mut draft.totals.cma_reserved,
        b"pages hwpoisoned"
        | b"pages shared"
        | b"pages non-shared"
        | b"pages swap cached"
        | b"pages in swap cache"
        | b"total pagecache pages"
        | b"pagecache pages"
        | b"free pages"
        | b"slab pages"
        | b"pages in pagetable cache"
        | b"pages slab"
        | b"hwpoisoned pages" => return Some(Outcome::Empty),
        _ => return None,
    };
    *field = Some(counter.value);
    if rest == b"pages RAM" || rest == b"pages of RAM" {
        draft.total_line = line.number;
    }
    draft.value(line.number, &text::lossy(rest), counter);
    draft.met(Format::Oom);
    Some(Outcome::Yes)
}

/// First words of the sums and of the node lines, over the years.
const FIRSTS: [&str; 17] = [
    "active_anon:",
    "Active:",
    "active_file:",
    "inactive_anon:",
    "inactive_file:",
    "unevictable:",
    "slab_reclaimable:",
    "mapped:",
    "free:",
    "free_cma:",
    "sec_pagetables:",
    "kernel_misc_reclaimable:",
    "unaccepted:",
    "dirty:",
    "slab:",
    "isolated(anon):",
    "pagetables:",
];

/// Heads of tables whose rows follow.
const TABLES: [&str; 5] = [
    "Tasks state",
    "Unreclaimable slab info",
    "Memory allocations:",
    "Memory cgroup stats for",
    "[ pid ]",
];

/// Heads of lines that say nothing about zones.
const HEADS: [&str; 25] = [
    "Swap cache stats:",
    "Swap cache: ",
    "oom-killer: gfp_mask=",
    "Free swap",
    "Total swap",
    "Free pages:",
    "SLUB: Unable to allocate",
    "cache: ",
    "Out of memory and no killable",
    "Kernel panic - not syncing: Out of memory",
    "oom_reaper:",
    "Memory cgroup stats",
    "Memory cgroup out of memory",
    "memory: usage",
    "swap: usage",
    "memory+swap: usage",
    "kmem: usage",
    "Cpuset ",
    "cpuset=",
    "Mem abort",
    "warn_alloc_show_mem",
    "DMA: empty",
    "HighMem: empty",
    "SysRq :",
    "sysrq: Show Memory",
];

/// A row of the tables of tasks (`[  456]     0   456 …`), slabs (`kmalloc-8  1KB  2KB`) or allocation sites.
fn is_table_row(body: &[u8]) -> bool {
    if body.starts_with(b"Name ") || has(body, " func:") {
        return true;
    }
    if body.starts_with(b"[") {
        let numbers = text::after(body, "]").map(|rest| {
            words(rest)
                .take(3)
                .filter(|word| text::dec(word).is_some())
                .count()
        });
        return numbers == Some(3);
    }
    // `anon 1073741824` of the statistics of a memory cgroup.
    let mut pair = words(body);
    if let (Some(key), Some(value), None) = (pair.next(), pair.next(), pair.next())
        && key
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || *byte == b'_')
        && text::dec(value).is_some()
    {
        return true;
    }
    let mut all = words(body).skip(1);
    let sizes = all
        .by_ref()
        .take(2)
        .filter(|word| word.ends_with(b"KB") && text::take_dec(word).is_some())
        .count();
    sizes == 2 && all.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_allocation_says_its_order_and_flags() {
        let failure = AllocFailure::read(b"kworker/0:1: page allocation failure: order:9, mode:0x4cc0(GFP_KERNEL|__GFP_RETRY_MAYFAIL), nodemask=(null)").unwrap();
        assert_eq!(
            (
                failure.task.as_deref(),
                failure.order,
                failure.gfp.as_deref()
            ),
            (
                Some("kworker/0:1"),
                Some(9),
                Some("GFP_KERNEL|__GFP_RETRY_MAYFAIL")
            )
        );
        let old =
            AllocFailure::read(b"swapper: page allocation failure. order:3, mode:0x20").unwrap();
        assert_eq!((old.order, old.gfp.as_deref()), (Some(3), Some("0x20")));
    }
}
