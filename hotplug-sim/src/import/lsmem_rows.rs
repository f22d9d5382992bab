//! Rows of `lsmem` and what follows from them: ranges, memory blocks, totals.
//!
//! A printed size is rounded to one digit behind the point, so it is only ever held
//! against the exact rows, never used where there are any.

use super::draft::Draft;
use super::lsmem_cell::{Cell, blocks};
use super::model::{Range, RangeKind, SectionState};
use super::span::hex_range;
use super::text::{self, Size, lossy};

/// One row, as far as it has cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    line: u64,
    range: Option<(u64, u64)>,
    size: Option<Size>,
    state: Option<SectionState>,
    removable: Option<bool>,
    blocks: Option<(u64, u64)>,
    node: Option<u32>,
    zones: Option<Vec<String>>,
    /// How many cells were filled.
    pub filled: usize,
}

impl Row {
    /// A row without cells.
    pub fn new(line: u64) -> Row {
        Row {
            line,
            range: None,
            size: None,
            state: None,
            removable: None,
            blocks: None,
            node: None,
            zones: None,
            filled: 0,
        }
    }

    /// Fills a cell; `false` if the word makes no sense there.
    pub fn fill(&mut self, cell: Cell, word: &[u8], megabytes: bool) -> bool {
        self.filled += 1;
        match cell {
            Cell::Range => {
                self.range = hex_range(word)
                    .filter(|(.., rest)| rest.is_empty())
                    .map(|(start, end, _)| (start, end))
            }
            Cell::Size => self.size = text::size(word, if megabytes { 1 << 20 } else { 1 }),
            Cell::State => match Cell::state(word) {
                Some(state) => self.state = state,
                None => return false,
            },
            Cell::Removable => {
                self.removable = match word {
                    b"yes" | b"1" => Some(true),
                    b"no" | b"0" => Some(false),
                    b"-" | b"?" => None,
                    _ => return false,
                }
            }
            Cell::Block => match blocks(word) {
                Some(range) => self.blocks = Some(range),
                None => return word == b"-",
            },
            Cell::Node => match text::small(word) {
                Some(node) => self.node = Some(node),
                None => return word == b"-",
            },
            Cell::Zones => {
                let none = word.eq_ignore_ascii_case(b"none");
                let names = word
                    .split(|byte| *byte == b'/' || *byte == b',')
                    .filter(|name| !name.is_empty() && !none);
                self.zones = (word != b"-").then(|| names.map(lossy).collect());
            }
            Cell::Other => {}
        }
        !(cell == Cell::Range && self.range.is_none() || cell == Cell::Size && self.size.is_none())
    }
}

/// A table: its rows and its summary.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Table {
    pub rows: Vec<Row>,
    /// Printed block size and its line.
    pub block: Option<(u64, u64)>,
    pub online: Option<(Size, u64)>,
    pub offline: Option<(Size, u64)>,
    /// The old script numbers devices, which may hold several blocks.
    pub device_bytes: Option<u64>,
}

/// A row that claims more blocks than this is damaged: 4 Mi blocks of 128 MiB are 512 TiB.
const MOST_BLOCKS: u64 = 1 << 22;

impl Table {
    /// Whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
            && self.block.is_none()
            && self.online.is_none()
            && self.offline.is_none()
    }

    /// Writes all tables of a source into its draft. A table that shows the same memory again adds no ranges.
    pub fn conclude_all(tables: &[Table], draft: &mut Draft) {
        for table in tables {
            let block = table.block_bytes(draft);
            if let Some((bytes, line)) = block {
                draft.section_size(line, bytes);
            }
            let known: u64 = covered(
                draft
                    .ranges
                    .iter()
                    .filter(|range| range.kind == RangeKind::Lsmem)
                    .map(|range| (range.start_byte, range.end_byte))
                    .collect(),
            );
            let mut fresh = Vec::new();
            for row in &table.rows {
                row.conclude(draft.section_bytes, table.device_bytes, draft, &mut fresh);
            }
            let mut both: Vec<(u64, u64)> = draft
                .ranges
                .iter()
                .filter(|range| range.kind == RangeKind::Lsmem)
                .map(|range| (range.start_byte, range.end_byte))
                .collect();
            both.extend(
                fresh
                    .iter()
                    .map(|range: &Range| (range.start_byte, range.end_byte)),
            );
            if known == 0 || covered(both) > known {
                draft.ranges.extend(fresh);
            }
            table.totals(draft);
        }
    }

    /// The size of a block: stated, or what a row of so many blocks has for each.
    fn block_bytes(&self, draft: &mut Draft) -> Option<(u64, u64)> {
        let numbered =
            self.device_bytes.is_none() || self.device_bytes == self.block.map(|(bytes, _)| bytes);
        let worked_out = self.rows.iter().filter(|_| numbered).find_map(|row| {
            let ((start, end), (first, last)) = row.range.zip(row.blocks)?;
            let count = (last - first).checked_add(1)?;
            ((end - start) % count == 0).then_some(((end - start) / count, row.line))
        });
        if let (Some((stated, line)), Some((bytes, row))) = (self.block, worked_out)
            && stated != bytes
        {
            draft.warn(
                line,
                format!(
                    "a block is {stated} bytes here, but {bytes} bytes in the row of line {row}"
                ),
            );
            return worked_out;
        }
        self.block.or(worked_out)
    }

    fn totals(&self, draft: &mut Draft) {
        let stated = self.rows.iter().any(|row| row.state.is_some());
        for (printed, state) in [
            (self.online, SectionState::Online),
            (self.offline, SectionState::Offline),
        ] {
            let rows = self
                .rows
                .iter()
                .filter(|row| row.state == Some(state))
                .filter_map(|row| row.range);
            let exact = stated.then(|| text::sum(rows.map(|(start, end)| end - start)));
            let name = if state == SectionState::Online {
                "online"
            } else {
                "offline"
            };
            if let (Some((size, line)), Some(exact)) = (printed, exact)
                && size.bytes.abs_diff(exact) > size.slack.saturating_add(1)
            {
                draft.warn(
                    line,
                    format!(
                        "the summary says that {} bytes are {name}, the rows make {exact}",
                        size.bytes
                    ),
                );
            }
            let total = exact.or_else(|| unrounded(printed, draft.section_bytes, name, draft));
            let place = if state == SectionState::Online {
                &mut draft.totals.online_bytes
            } else {
                &mut draft.totals.offline_bytes
            };
            *place = place.or(total);
        }
    }
}

/// What a rounded total must have been, if one number of whole blocks rounds to it.
fn unrounded(
    printed: Option<(Size, u64)>,
    block: Option<u64>,
    name: &str,
    draft: &mut Draft,
) -> Option<u64> {
    let (size, line) = printed?;
    if size.slack == 0 || size.bytes == 0 {
        return Some(size.bytes);
    }
    let block = block.filter(|block| *block > 0)?;
    let least = size.bytes.saturating_sub(size.slack).div_ceil(block);
    let most = size.bytes.saturating_add(size.slack) / block;
    if least != most {
        draft.note(
            line,
            format!("the {name} total is rounded and there are no rows to count"),
        );
        return None;
    }
    draft.note(
        line,
        format!("the {name} total is rounded; {least} blocks are the only number that fits"),
    );
    least.checked_mul(block)
}

/// Bytes in the union of ranges.
fn covered(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut sum, mut reached) = (0, 0);
    for (start, end) in ranges {
        let start = start.max(reached);
        if end > start {
            sum += end - start;
            reached = end;
        }
    }
    sum
}

impl Row {
    fn conclude(
        &self,
        block: Option<u64>,
        device: Option<u64>,
        draft: &mut Draft,
        ranges: &mut Vec<Range>,
    ) {
        if let Some((start, end)) = self.range {
            if let Some(size) = self
                .size
                .filter(|size| size.bytes.abs_diff(end - start) > size.slack.saturating_add(1))
            {
                draft.warn(
                    self.line,
                    format!(
                        "the size of the row is {} bytes, its range {} bytes",
                        size.bytes,
                        end - start
                    ),
                );
            }
            let zone = self.zones.as_ref().and_then(|zones| zones.first().cloned());
            ranges.push(Range {
                kind: RangeKind::Lsmem,
                start_byte: start,
                end_byte: end,
                what: None,
                node: self.node,
                zone,
                state: self.state,
                hotplug: None,
            });
        }
        let named = self
            .blocks
            .filter(|_| device.is_none_or(|device| Some(device) == block));
        let Some((first, last)) = named.or_else(|| {
            // Blocks are numbered by their address.
            let ((start, end), block) = self.range.zip(block.filter(|block| *block > 0))?;
            (start % block == 0 && end % block == 0).then(|| (start / block, end / block - 1))
        }) else {
            return;
        };
        if last - first >= MOST_BLOCKS {
            draft.warn(self.line, format!("the row claims {} blocks", last - first));
            return;
        }
        if let (Some((start, end)), Some(block)) = (self.range, block)
            && block
                .checked_mul((last - first).saturating_add(1))
                .is_some_and(|bytes| bytes != end - start)
        {
            draft.warn(
                self.line,
                format!("blocks {first}-{last} of {block} bytes are not the range of the row"),
            );
        }
        for id in first..=last {
            let section = draft.section(id);
            section.state = self.state.or(section.state);
            section.removable = self.removable.or(section.removable);
            section.zones = self.zones.clone().or(section.zones.take());
            section.node = self.node.or(section.node);
        }
    }
}
