//! `/proc/pagetypeinfo`: free blocks by order and migratetype, and pageblocks by type.
//!
//! Two tables. The rows of the first name their type; the columns of the second are bound
//! by the names in its header, because the set and the order of the types changed. Where
//! the kernel gave up counting it prints `>100000`, which is kept and said.

use super::draft::{Aspect, Draft};
use super::format::Format;
use super::line::Line;
use super::outcome::{Outcome, zone_heading};
use super::text::{self, strip};

/// The last order of most kernels; a header that ends before it may go on in the next line.
const LAST_ORDER: u64 = 10;

/// Pages of 2 to this power have no number of 64 bits.
const ORDERS_END: u64 = 64;

/// Which table is being read.
#[derive(Clone, Debug, Default)]
pub struct Pagetypeinfo {
    /// The column names of the pageblock table, once its header was met, and where it ends.
    columns: Option<(Vec<String>, usize)>,
    /// Number of orders in the header of the first table.
    header: Option<usize>,
    /// The table of mixed blocks, which only looks like the other.
    mixed: bool,
    /// Number of orders in the rows so far, and the column at which the last row ended.
    shape: Option<(usize, usize)>,
}

impl Pagetypeinfo {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let body = line.body();
        if let Some(rest) = strip(body, "Page block order:") {
            return match text::small(rest.trim_ascii()) {
                Some(order) if u64::from(order) < ORDERS_END && !line.cut => {
                    draft.pageblock_order = Some(order);
                    draft.met(Format::Pagetypeinfo);
                    Outcome::Yes
                }
                _ => Outcome::No,
            };
        }
        if let Some(rest) = strip(body, "Pages per block:") {
            return self.pages_per_block(rest.trim_ascii(), line, draft);
        }
        if let Some(orders) = strip(body, "Free pages count per migrate type at order") {
            let last = text::words(orders).last().and_then(text::dec);
            if line.wraps && last.is_none_or(|last| last < LAST_ORDER) {
                return Outcome::More;
            }
            self.columns = None;
            if last.is_some_and(|last| last >= ORDERS_END) {
                self.header = None;
                return Outcome::No;
            }
            self.header = last
                .and_then(|last| usize::try_from(last).ok())
                .map(|last| last + 1);
            return Outcome::Empty;
        }
        if let Some(rest) =
            strip(body, "Number of blocks type").or_else(|| strip(body, "Number of mixed blocks"))
        {
            if line.wraps && !rest.trim_ascii_end().ends_with(b"Isolate") {
                return Outcome::More;
            }
            self.mixed = body.starts_with(b"Number of mixed");
            let names = text::words(rest).map(text::lossy).collect();
            self.columns = Some((names, line.text.len()));
            return Outcome::Empty;
        }
        let Some((node, name, rest)) = zone_heading(body) else {
            return Outcome::No;
        };
        if let Some(typed) = strip(rest.trim_ascii_start(), "type") {
            return self.free_row(node, &text::lossy(name), typed, line, draft);
        }
        self.block_row(node, &text::lossy(name), rest, line, draft)
    }

    fn pages_per_block(&mut self, value: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let Some(pages) = text::dec(value) else {
            return Outcome::No;
        };
        if let Some(order) = draft
            .pageblock_order
            .filter(|order| pages.checked_shr(*order) != Some(1) || !pages.is_power_of_two())
        {
            if !line.cut {
                draft.warn(
                    line.number,
                    format!("{pages} pages per block contradict a page block order of {order}"),
                );
            }
        } else if draft.pageblock_order.is_none() && pages.is_power_of_two() {
            draft.pageblock_order = Some(pages.trailing_zeros());
        }
        Outcome::Empty
    }

    /// `type    Unmovable   7744   7519 …`
    fn free_row(
        &mut self,
        node: u32,
        zone: &str,
        typed: &[u8],
        line: &Line<'_>,
        draft: &mut Draft,
    ) -> Outcome {
        let (kind, rest) = text::word(typed);
        if kind.is_empty() {
            return Outcome::No;
        }
        let usual = self.shape.map(|(orders, _)| orders).or(self.header);
        if line.wraps && usual.is_some_and(|usual| text::words(rest).count() < usual) {
            return Outcome::More;
        }
        let kind = text::lossy(kind);
        let mut blocks = Vec::new();
        for (order, word) in text::words(rest).enumerate() {
            let field = format!("{kind} order {order} of zone {zone} of node {node}");
            let (capped, digits) = strip(word, ">").map_or((false, word), |digits| (true, digits));
            match text::counter(digits) {
                Some(counter) => {
                    if capped {
                        draft.note(
                            line.number,
                            format!(
                                "{field} is more than {}: the kernel stopped counting",
                                counter.value
                            ),
                        );
                    }
                    blocks.push(Some(draft.value(line.number, &field, counter)));
                }
                None => {
                    draft.warn(
                        line.number,
                        format!("{field} is no number: {}", text::lossy(word)),
                    );
                    blocks.push(None);
                }
            }
        }
        let end = line.text.len();
        if line.cut
            && self
                .shape
                .is_none_or(|(orders, other_end)| blocks.len() < orders || end < other_end)
        {
            blocks.pop();
            draft.cut(
                line.number,
                format!("the input ends in the {kind} blocks of zone {zone} of node {node}"),
            );
        } else if self.shape.is_some_and(|(orders, _)| blocks.len() != orders) {
            draft.warn(line.number, format!("{kind} of zone {zone} of node {node} has {} orders, the row before has another number", blocks.len()));
        } else {
            self.shape = Some((blocks.len(), end));
        }
        if blocks.is_empty() {
            // Not even the name of the type is known to be whole.
            draft.met(Format::Pagetypeinfo);
            return Outcome::Empty;
        }
        if draft
            .zones
            .find(node, zone)
            .is_some_and(|shown| shown.by_type.iter().any(|(other, _)| *other == kind))
        {
            draft.zones.next_snapshot();
        }
        draft
            .zones
            .zone(node, zone, line.number)
            .by_type
            .push((kind, blocks));
        draft.met(Format::Pagetypeinfo);
        Outcome::Yes
    }

    /// A row of the pageblock table: as many numbers as its header has names.
    fn block_row(
        &mut self,
        node: u32,
        zone: &str,
        rest: &[u8],
        line: &Line<'_>,
        draft: &mut Draft,
    ) -> Outcome {
        let Some((columns, width)) = &self.columns else {
            return Outcome::No;
        };
        let words: Vec<&[u8]> = text::words(rest).collect();
        if words.is_empty()
            || words.len() > columns.len()
            || words.iter().any(|word| text::counter(word).is_none())
        {
            self.columns = None;
            return Outcome::No;
        }
        // The kernel pads its numbers to the width of the names.
        let short = words.len() < columns.len() || line.cut && line.text.len() < *width;
        if self.mixed {
            return Outcome::Empty;
        }
        if short && line.wraps {
            return Outcome::More;
        }
        // The last number of a last line that lacks columns may itself lack digits.
        let whole = if short && line.cut {
            words.len() - 1
        } else {
            words.len()
        };
        let mut pairs = Vec::with_capacity(whole);
        for (name, word) in columns.iter().zip(&words).take(whole) {
            if let Some(counter) = text::counter(word) {
                pairs.push((
                    name.clone(),
                    draft.value(
                        line.number,
                        &format!("{name} pageblocks of zone {zone} of node {node}"),
                        counter,
                    ),
                ));
            }
        }
        if short {
            draft.cut(
                line.number,
                format!("the pageblocks of zone {zone} of node {node} lack columns"),
            );
        }
        draft
            .zones
            .show(node, zone, Aspect::Pageblocks, line.number)
            .pageblocks = pairs;
        draft.met(Format::Pagetypeinfo);
        Outcome::Yes
    }

    /// The input ends: a zone that lacks types which the first one has was cut.
    pub fn end(&self, draft: &mut Draft) {
        let mut zones = draft
            .zones
            .now
            .iter_mut()
            .flat_map(|node| &mut node.zones)
            .filter(|zone| !zone.by_type.is_empty());
        let Some(first) = zones.next().map(|zone| zone.by_type.len()) else {
            return;
        };
        let Some(last) = zones.last() else { return };
        if last.by_type.len() < first {
            last.types_cut = true;
            let (line, name) = (last.line, last.name.clone());
            draft.cut(
                line,
                format!("zone {name} lacks types that the zones before it have"),
            );
        }
    }
}
