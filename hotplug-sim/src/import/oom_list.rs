//! The free lists of an out-of-memory report: `Node 0 DMA: 7*4kB (U) 5*8kB (UE) … = 1316kB`.
//!
//! The first label is the size of a page. Each count may be followed by the letters of the
//! types that have blocks of that order (since 3.9). A list without its sum was cut.

use super::draft::{Aspect, Draft};
use super::format::Format;
use super::line::Line;
use super::outcome::Outcome;
use super::text::{self, strip, words};

/// `Node 0 DMA free:…`, `DMA free:…`, `Node 0 DMA: …`, `DMA: …`: node (0 if none), zone, and what follows the name.
pub fn zone_and_rest(body: &[u8]) -> Option<(u32, &str, &[u8])> {
    let (node, rest) = match strip(body, "Node ") {
        Some(rest) => {
            let (node, rest) = text::take_dec(rest.trim_ascii_start())?;
            (
                u32::try_from(node).ok()?,
                strip(rest, " ")?.trim_ascii_start(),
            )
        }
        None => (0, body),
    };
    let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric())?;
    let name = std::str::from_utf8(&rest[..end])
        .ok()
        .filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase()))?;
    let rest = &rest[end..];
    match rest.first()? {
        b':' => Some((node, name, rest)),
        b' ' => Some((node, name, rest.trim_ascii_start())),
        _ => None,
    }
}

/// A list as far as it goes.
#[derive(Default)]
struct List {
    blocks: Vec<Option<i64>>,
    letters: Vec<String>,
    page_kib: Option<u64>,
    sum_kib: Option<u64>,
    /// The word at which it stops making sense.
    broken: Option<String>,
    lettered: bool,
    wrapped: bool,
}

/// Reads a list. `rest` is what follows the colon.
pub fn list(node: u32, name: &str, rest: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
    if rest.trim_ascii() == b"empty" {
        return Outcome::Empty;
    }
    let first = words(rest).next().and_then(entry);
    if first.is_none() {
        return Outcome::No;
    }
    let read = parse(rest);
    let complete = read.sum_kib.is_some() && read.broken.is_none();
    if !complete && let Some(outcome) = line.unfinished() {
        return outcome;
    }
    let who = format!("the list of zone {name} of node {node}");
    if read.wrapped {
        draft.error(line.number, format!("{who} has a count wrapped below zero"));
    }
    if let Some(page_kib) = read.page_kib {
        draft.page_sizes.state(
            line.number,
            page_kib * 1024,
            format!("the first label of {who}"),
        );
    }
    if !complete {
        let at = read
            .broken
            .as_deref()
            .map_or(String::new(), |word| format!(" in {word}"));
        draft.cut(
            line.number,
            format!("{who} stops{at} after {} orders", read.blocks.len()),
        );
    } else if let (Some(sum), Some(page)) = (read.sum_kib, read.page_kib) {
        let counted = read
            .blocks
            .iter()
            .enumerate()
            .try_fold(0_i64, |sum, (order, blocks)| {
                sum.checked_add(
                    blocks
                        .unwrap_or(0)
                        .checked_shl(u32::try_from(order).ok()?)?,
                )
            });
        let counted = counted.and_then(|pages| pages.checked_mul(i64::try_from(page).ok()?));
        if counted != i64::try_from(sum).ok() {
            draft.warn(
                line.number,
                format!(
                    "{who} says {sum}kB, its counts make {}kB",
                    counted.map_or("too many ".to_string(), |kib| kib.to_string())
                ),
            );
        }
    }
    let zone = draft.zones.show(node, name, Aspect::List, line.number);
    zone.free_blocks = Some(read.blocks);
    zone.list_cut = !complete;
    zone.letters = read.lettered.then_some(read.letters);
    draft.met(Format::Oom);
    Outcome::Yes
}

/// `7*4kB`: how many, and of how many kB.
fn entry(word: &[u8]) -> Option<(text::Counter, u64)> {
    let (count, rest) = text::take_counter(word)?;
    let (kib, unit) = text::take_dec(strip(rest, "*")?)?;
    (unit == b"kB" && kib.is_power_of_two()).then_some((count, kib))
}

fn parse(rest: &[u8]) -> List {
    let mut list = List::default();
    let mut all = words(rest);
    // The last word was a count of some blocks, whose letters have not been seen.
    let mut bare = false;
    while let Some(word) = all.next() {
        if word == b"=" {
            let sum = all
                .next()
                .and_then(text::take_dec)
                .filter(|(_, unit)| *unit == b"kB");
            match sum {
                Some((sum, _)) => list.sum_kib = Some(sum),
                None => list.broken = Some("the sum".to_string()),
            }
            // What follows the sum is no business of the list.
            return list;
        }
        if let Some(letters) = strip(word, "(") {
            match letters
                .strip_suffix(b")")
                .filter(|letters| letters.iter().all(u8::is_ascii_uppercase))
            {
                Some(letters) => {
                    list.lettered = true;
                    bare = false;
                    if let Some(place) = list.letters.last_mut() {
                        *place = text::lossy(letters);
                    }
                }
                None => {
                    list.broken = Some(text::lossy(word));
                    break;
                }
            }
            continue;
        }
        let Some((count, kib)) = entry(word) else {
            list.broken = Some(text::lossy(word));
            break;
        };
        let page = *list.page_kib.get_or_insert(kib);
        let order = (kib / page)
            .checked_ilog2()
            .and_then(|order| usize::try_from(order).ok());
        if order != Some(list.blocks.len()) {
            list.broken = Some(text::lossy(word));
            break;
        }
        list.wrapped |= count.wrapped;
        list.blocks.push(Some(count.value));
        list.letters.push(String::new());
        bare = count.value != 0;
    }
    if bare {
        // The count is whole, only its letters are not known.
        list.letters.pop();
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_with_and_without_a_node_are_read() {
        assert_eq!(
            zone_and_rest(b"Node 1 Normal free:1kB"),
            Some((1, "Normal", b"free:1kB".as_slice()))
        );
        assert_eq!(
            zone_and_rest(b"DMA32: 1*4kB"),
            Some((0, "DMA32", b": 1*4kB".as_slice()))
        );
        assert_eq!(zone_and_rest(b"Node 0 active_anon:1kB"), None);
        assert_eq!(zone_and_rest(b"free:12 free_pcp:1"), None);
    }

    #[test]
    fn a_cut_list_keeps_what_was_complete() {
        let list = parse(b" 1985*4kB (UME) 1321*8kB (UME) 138*16kB (B");
        assert_eq!(list.blocks, [Some(1985), Some(1321), Some(138)]);
        assert_eq!(list.letters, ["UME", "UME"]);
        assert!(list.broken.is_some());
        let list = parse(b" 7*4kB (U) 2*8B");
        assert_eq!(list.blocks, [Some(7)]);
    }
}
