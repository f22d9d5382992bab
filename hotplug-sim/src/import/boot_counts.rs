//! Counts and totals of a boot log: `totalpages`, pages of a zone, `Memory: … available`.

use super::boot::Printed;
use super::draft::Draft;
use super::line::Line;
use super::outcome::Outcome;
use super::text::{self, has, lossy, strip};

/// Reads a line that counts pages or memory; `None` if it does not.
pub fn line(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    if let Some(rest) = strip(body, "On node ") {
        return on_node(rest, line, draft);
    }
    if let Some(rest) = strip(body, "Memory: ") {
        return memory(rest, line, draft);
    }
    // On a line of its own where a mail has wrapped it.
    let wrapped = strip(body, "Total pages:");
    if let Some(rest) = wrapped.or_else(|| {
        text::after(body, "mobility grouping").and_then(|rest| text::after(rest, "Total pages:"))
    }) {
        let rest = rest.trim_ascii();
        if rest.is_empty()
            && let Some(outcome) = line.unfinished()
        {
            return Some(outcome);
        }
        if let Some(pages) = text::dec(rest).filter(|_| !line.cut) {
            draft.boot.listed = Some((pages, line.number));
        }
        return Some(Outcome::Empty);
    }
    if let Some(rest) = strip(body, "x86/mm: Memory block size: ") {
        // The kernel writes MB and shifts by twenty.
        let megabytes = text::dec(rest.trim_ascii().strip_suffix(b"MB")?)?;
        draft.section_size(line.number, megabytes.checked_mul(1 << 20)?);
        return Some(Outcome::Yes);
    }
    if let Some(rest) = strip(body, "Page orders: ") {
        // POWER prints the shift of a page as `virtual = 16`.
        if let Some(shift) = text::number_after(rest, "virtual = ")
            .and_then(|shift| u32::try_from(shift).ok())
            .filter(|shift| *shift < 32)
        {
            draft
                .page_sizes
                .state(line.number, 1 << shift, "the page orders of the log");
        }
        return Some(Outcome::Empty);
    }
    printed_span(body, line, draft).or_else(|| zone_pages(body, line, draft))
}

/// `totalpages: 1048442`, or `zone Normal: 16384 pages in unavailable ranges`.
fn on_node(rest: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let (node, rest) = text::take_dec(rest)?;
    let node = u32::try_from(node).ok()?;
    if let Some(pages) = strip(rest, " totalpages:") {
        let pages = text::dec(pages.trim_ascii())?;
        draft.boot.current_node = node;
        if !line.cut {
            draft.boot.total_pages.push((node, pages, line.number));
        }
        return Some(Outcome::Yes);
    }
    let rest = strip(rest, ", zone ")?;
    let colon = text::find(rest, ":")?;
    let name = lossy(rest[..colon].trim_ascii());
    let (pages, rest) = text::take_dec(rest[colon + 1..].trim_ascii_start())?;
    strip(rest, " pages in unavailable ranges")?;
    draft.boot.holes.push((node, name, pages, line.number));
    Some(Outcome::Empty)
}

/// `DMA zone: 3998 pages, LIFO batch:0`.
fn zone_pages(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let (name, rest) = text::word(body);
    let rest = strip(rest, " zone: ")?;
    let (pages, rest) = text::take_dec(rest)?;
    strip(rest, " pages, LIFO batch:")?;
    let node = draft.boot.current_node;
    draft
        .boot
        .zone_pages
        .push((node, lossy(name), pages, line.number));
    Some(Outcome::Empty)
}

/// `Normal, start=0x1080000, present=0x0, spanned=0x1000000`, of a kernel patched to say so.
fn printed_span(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let comma = text::find(body, ", start=")?;
    let rest = &body[comma..];
    let get = |key: &str| text::number_after(rest, key);
    let printed = Printed {
        line: line.number,
        name: lossy(body[..comma].trim_ascii()),
        start_pfn: get(", start=")?,
        present: get("present=")?,
        spanned: get("spanned=")?,
    };
    if line.cut {
        return None;
    }
    draft.boot.printed.push(printed);
    Some(Outcome::Yes)
}

/// `3991708K/4193768K available (…, 202060K reserved, 0K cma-reserved)`, with small letters before 4.0.
///
/// The second number of old kernels on x86 counts up to the end of memory and says how much
/// of it is absent; that is subtracted, so that it is always what is there.
fn memory(rest: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    if has(rest, "MB = ") {
        // Old ARM: `Memory: 256MB 256MB = 512MB total`, rounded.
        return Some(Outcome::Empty);
    }
    let (free, tail) = text::take_counter(rest)?;
    let tail = kib(tail)?;
    let (total, tail) = match strip(tail, "/") {
        Some(tail) => {
            let (total, tail) = text::take_counter(tail)?;
            (Some(total), kib(tail)?)
        }
        None => (None, tail),
    };
    if !has(tail, "available") {
        return if line.wraps {
            Some(Outcome::More)
        } else {
            None
        };
    }
    if line.wraps && !tail.contains(&b')') && tail.contains(&b'(') {
        return Some(Outcome::More);
    }
    let free = draft.value(line.number, "available memory", free);
    let total = total.map(|total| draft.value(line.number, "total memory", total));
    let part = |name: &str| -> Option<i64> {
        let end = text::find(tail, name)?;
        let start = tail[..end].iter().rposition(|byte| {
            !byte.is_ascii_digit()
                && !byte.eq_ignore_ascii_case(&b'k')
                && *byte != b'-'
                && *byte != b' '
        })?;
        let word = tail[start + 1..end].trim_ascii();
        text::take_counter(word).map(|(counter, _)| counter.value)
    };
    let absent = part("absent").unwrap_or(0);
    let reserved = part(" reserved");
    if reserved.is_some_and(|reserved| reserved < 0) {
        draft.error(
            line.number,
            format!(
                "reserved memory is {}K, which cannot be",
                reserved.unwrap_or(0)
            ),
        );
    }
    draft.totals_kib = [
        Some(free),
        total.map(|total| total.saturating_sub(absent)),
        reserved,
    ];
    draft.boot.memory_line = line.number;
    Some(Outcome::Yes)
}

/// What follows the `K` or `k` of an amount.
fn kib(tail: &[u8]) -> Option<&[u8]> {
    let tail = strip(tail, "K").or_else(|| strip(tail, "k"))?;
    Some(strip(tail, "B").unwrap_or(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(text: &str) -> [Option<i64>; 3] {
        let mut draft = Draft::default();
        let read = line(
            text.as_bytes(),
            &Line::new(1, text.as_bytes(), false),
            &mut draft,
        );
        assert_eq!(read, Some(Outcome::Yes), "{text}");
        draft.totals_kib
    }

    #[test]
    fn memory_lines_of_all_years() {
        let new = totals(
            "Memory: 3991708K/4193768K available (14339K kernel code, 4948K bss, 202060K reserved, 0K cma-reserved)",
        );
        assert_eq!(new, [Some(3_991_708), Some(4_193_768), Some(202_060)]);
        let old = totals(
            "Memory: 8174028k/9175040k available (2567k kernel code, 787864k absent, 213148k reserved, 1296k data)",
        );
        assert_eq!(
            old,
            [Some(8_174_028), Some(9_175_040 - 787_864), Some(213_148)]
        );
        assert_eq!(
            totals(
                "Memory: 2056848k/2097088k available (2567k kernel code, 39852k reserved, 0k highmem)"
            )[2],
            Some(39_852)
        );
    }
}
