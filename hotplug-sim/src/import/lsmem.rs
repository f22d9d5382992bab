//! `lsmem`: tables in columns or raw, pairs, the old script of s390, and listings of `/sys`.
//!
//! A table is its header, rows, and a summary after a blank line. Columns are bound by the
//! names in the header; where a cell is blank (REMOVABLE of an offline block) the row has
//! fewer words than columns, and the columns at which the words end decide. Rows are kept
//! until the table ends, because the size of a block may be told only then; what becomes
//! of them is [`lsmem_rows`](super::lsmem_rows)'s. JSON comes from [`json`](super::json).

use super::draft::Draft;
use super::format::Format;
use super::json::Json;
use super::line::Line;
use super::lsmem_cell::Cell;
use super::lsmem_rows::{Row, Table};
use super::model::SectionState;
use super::outcome::Outcome;
use super::shell::block_file;
use super::text::{self, Size, lossy, strip, words};

/// A column and where its header ends in the line.
#[derive(Clone, Debug, PartialEq)]
struct Column {
    cell: Cell,
    start: usize,
    end: usize,
}

/// The table being read, and those before.
#[derive(Clone, Debug, Default)]
pub struct Lsmem {
    columns: Vec<Column>,
    /// Cells are separated by single blanks, two in a row being an empty one.
    raw: bool,
    /// Sizes without a unit are in MB: the old script.
    megabytes: bool,
    table: Table,
    tables: Vec<Table>,
}

impl Lsmem {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let body = line.body();
        if let Some(columns) = header(line.text) {
            self.end_table();
            self.raw = columns.windows(2).all(|two| two[1].start == two[0].end + 1);
            self.megabytes = false;
            self.columns = columns;
            return Outcome::Empty;
        }
        if body.starts_with(b"Address range") && text::has(body, "Size (MB)") {
            self.end_table();
            self.columns = [
                Cell::Range,
                Cell::Size,
                Cell::State,
                Cell::Removable,
                Cell::Block,
            ]
            .into_iter()
            .map(|cell| Column {
                cell,
                start: 0,
                end: 0,
            })
            .collect();
            (self.raw, self.megabytes) = (false, true);
            return Outcome::Empty;
        }
        if let Some(outcome) = self.summary(body, line, draft) {
            return outcome;
        }
        if body.starts_with(b"RANGE=\"")
            || body.starts_with(b"SIZE=\"")
            || body.starts_with(b"STATE=\"")
        {
            return self.pairs(body, line, draft);
        }
        if let Some(outcome) = sysfs(body, line, draft) {
            return outcome;
        }
        self.row(line, draft)
    }

    /// A row of a table. Without a header (`-n`) the default columns are told by what stands in them.
    fn row(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let body = line.body();
        let ranged =
            body.starts_with(b"0x") && super::span::hex_range(text::word(body).0).is_some();
        let headed = !self.columns.is_empty() && self.columns[0].cell != Cell::Range;
        if !ranged && !headed {
            return Outcome::No;
        }
        let mut row = Row::new(line.number);
        let cells = if self.columns.is_empty() {
            by_kind(body, &Cell::ALL)
        } else {
            self.cells(line.text)
        };
        let Some(cells) = cells else {
            if headed {
                return Outcome::No;
            }
            return self.broken(line, draft, "the row does not fit its header");
        };
        // A cell that ends under its header is whole, even where the line feed is missing.
        let under = self.columns.last().map(|column| column.end) == Some(line.text.len());
        let open = line.cut && (self.raw || !under);
        let last = cells.len() - usize::from(open).min(cells.len());
        if open {
            self.broken(line, draft, "the input may end in a cell of a row");
        }
        for (cell, word) in cells.into_iter().take(last) {
            if !row.fill(cell, word, self.megabytes) {
                if headed && !ranged {
                    return Outcome::No;
                }
                draft.warn(
                    line.number,
                    format!("the {cell:?} of the row is not understood: {}", lossy(word)),
                );
            }
        }
        self.table.rows.push(row);
        draft.met(Format::Lsmem);
        Outcome::Yes
    }

    fn broken(&self, line: &Line<'_>, draft: &mut Draft, what: &str) -> Outcome {
        if line.cut {
            draft.cut(line.number, what);
        } else {
            draft.warn(line.number, what);
        }
        Outcome::Empty
    }

    /// Which word of a row is in which column.
    fn cells<'l>(&self, text: &'l [u8]) -> Option<Vec<(Cell, &'l [u8])>> {
        if self.raw {
            let cells: Vec<&[u8]> = text.split(|byte| *byte == b' ').collect();
            // A blank last cell is a trailing blank, which has been taken off.
            if cells.len() <= self.columns.len() && cells.len() + 1 >= self.columns.len() {
                return Some(
                    self.columns
                        .iter()
                        .map(|column| column.cell)
                        .zip(cells)
                        .filter(|(_, cell)| !cell.is_empty())
                        .collect(),
                );
            }
        }
        let placed: Vec<(usize, &[u8])> = words(text)
            .map(|word| {
                (
                    word.as_ptr() as usize - text.as_ptr() as usize + word.len(),
                    word,
                )
            })
            .collect();
        if placed.len() == self.columns.len() {
            return Some(
                self.columns
                    .iter()
                    .zip(placed)
                    .map(|(column, (_, word))| (column.cell, word))
                    .collect(),
            );
        }
        if placed.len() > self.columns.len() {
            return None;
        }
        self.by_end(&placed).or_else(|| {
            let kinds: Vec<Cell> = self.columns.iter().map(|column| column.cell).collect();
            by_kind(text, &kinds)
        })
    }

    /// Binds each word to the column under whose header it ends (the first is left-aligned).
    fn by_end<'l>(&self, placed: &[(usize, &'l [u8])]) -> Option<Vec<(Cell, &'l [u8])>> {
        let mut cells = Vec::with_capacity(placed.len());
        let mut from = 0;
        for (at, (end, word)) in placed.iter().enumerate() {
            let column = if at == 0 && self.columns[0].cell == Cell::Range {
                0
            } else {
                from + self.columns[from..]
                    .iter()
                    .position(|column| column.end == *end)?
            };
            let cell = self.columns[column].cell;
            if !cell.accepts(word) {
                return None;
            }
            cells.push((cell, *word));
            from = column + 1;
        }
        Some(cells)
    }

    /// `Memory block size:       256M` and the totals, also those of the old script.
    fn summary(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
        const KEYS: [&str; 4] = [
            "Memory block size",
            "Total online memory",
            "Total offline memory",
            "Memory device size",
        ];
        let (key, rest) = KEYS
            .iter()
            .find_map(|key| strip(body, key).map(|rest| (*key, rest)))?;
        let value = strip(rest.trim_ascii_start(), ":")?.trim_ascii();
        if value.is_empty() || line.cut && value.last().is_some_and(u8::is_ascii_digit) {
            if line.cut {
                draft.cut(line.number, "the input ends in the summary");
            }
            return Some(Outcome::Empty);
        }
        // The old script writes `256 MB` and means binary megabytes.
        let value = value
            .strip_suffix(b" MB")
            .map_or((value, 1), |value| (value, 1 << 20));
        let size: Size = text::size(value.0, value.1)?;
        match key {
            "Memory block size" => self.table.block = Some((size.bytes, line.number)),
            "Total online memory" => self.table.online = Some((size, line.number)),
            "Total offline memory" => self.table.offline = Some((size, line.number)),
            _ => self.table.device_bytes = Some(size.bytes),
        }
        draft.met(Format::Lsmem);
        Some(Outcome::Yes)
    }

    /// `RANGE="0x…" SIZE="1.8G" STATE="online" …` of `--pairs`.
    fn pairs(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let mut row = Row::new(line.number);
        let mut rest = body;
        while let Some(equals) = text::find(rest, "=\"") {
            let name = rest[..equals].trim_ascii();
            let tail = &rest[equals + 2..];
            let Some(end) = text::find(tail, "\"") else {
                return self.broken(line, draft, "the row ends in a value");
            };
            let word = &tail[..end];
            if let Some(cell) = Cell::named(name)
                && !word.is_empty()
                && !row.fill(cell, word, false)
            {
                draft.warn(
                    line.number,
                    format!("the {cell:?} of the row is not understood: {}", lossy(word)),
                );
            }
            rest = &tail[end + 1..];
        }
        self.table.rows.push(row);
        draft.met(Format::Lsmem);
        Outcome::Yes
    }

    /// The rows of `lsmem -J`: objects with a `range`, in whatever they are wrapped.
    pub fn json(&mut self, value: &Json, draft: &mut Draft) -> bool {
        let rows = value.objects_with("range");
        if rows.is_empty()
            || rows
                .iter()
                .all(|row| row.get("size").is_none() && row.get("state").is_none())
        {
            return false;
        }
        self.end_table();
        for object in rows {
            let mut row = Row::new(object.line());
            for (name, value) in object.entries() {
                let Some(cell) = Cell::named(name.to_ascii_uppercase().as_bytes()) else {
                    continue;
                };
                let Some(word) = value.scalar() else { continue };
                let word = match word.as_str() {
                    "true" => "yes".to_string(),
                    "false" => "no".to_string(),
                    _ => word,
                };
                if !word.is_empty() && !row.fill(cell, word.as_bytes(), false) {
                    draft.warn(
                        object.line(),
                        format!("the {cell:?} of the row is not understood: {word}"),
                    );
                }
            }
            self.table.rows.push(row);
        }
        self.end_table();
        draft.met(Format::Lsmem);
        true
    }

    fn end_table(&mut self) {
        let table = std::mem::take(&mut self.table);
        if !table.is_empty() {
            self.tables.push(table);
        }
    }

    /// The input ends: turns the rows into ranges and blocks.
    pub fn end(&mut self, draft: &mut Draft) {
        self.end_table();
        Table::conclude_all(&self.tables, draft);
    }
}

/// The columns of a header line, if it is one.
fn header(text: &[u8]) -> Option<Vec<Column>> {
    let mut columns = Vec::new();
    for word in words(text) {
        let end = word.as_ptr() as usize - text.as_ptr() as usize + word.len();
        columns.push(Column {
            cell: Cell::named(word)?,
            start: end - word.len(),
            end,
        });
    }
    (columns.len() > 1
        || columns
            .first()
            .is_some_and(|column| column.cell == Cell::Range))
    .then_some(columns)
}

/// Binds each word to the next column that can hold it.
fn by_kind<'l>(text: &'l [u8], kinds: &[Cell]) -> Option<Vec<(Cell, &'l [u8])>> {
    let mut cells = Vec::new();
    let mut from = 0;
    for word in words(text) {
        let column = from + kinds[from..].iter().position(|cell| cell.accepts(word))?;
        cells.push((kinds[column], word));
        from = column + 1;
    }
    Some(cells)
}

/// `/sys/devices/system/memory/memory32/state:online` of `grep .`, and the block size beside it.
fn sysfs(body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
    let path = if body.starts_with(b"memory") && text::has(body, "/") {
        body
    } else {
        text::after(body, "/sys/devices/system/memory/")?
    };
    let colon = path.iter().position(|byte| *byte == b':')?;
    let value = path[colon + 1..].trim_ascii();
    if let Some(b"") = strip(&path[..colon], "block_size_bytes") {
        let bytes = text::hex(value).filter(|bytes| bytes.is_power_of_two() && !line.cut)?;
        draft.section_size(line.number, bytes);
        draft.met(Format::Lsmem);
        return Some(Outcome::Yes);
    }
    let mut slashed = Vec::with_capacity(colon + 1);
    slashed.push(b'/');
    slashed.extend_from_slice(&path[..colon]);
    let (block, file) = block_file(&slashed)?;
    match file {
        b"state" => {
            let state = Cell::state(value)?;
            draft.section(block).state = state;
        }
        b"online" => {
            draft.section(block).state = Some(if value == b"1" {
                SectionState::Online
            } else {
                SectionState::Offline
            })
        }
        b"removable" => {
            draft.section(block).removable = text::dec(value).map(|removable| removable == 1)
        }
        b"valid_zones" if line.cut => return None,
        b"valid_zones" => {
            draft.section(block).zones = Some(
                words(value)
                    .filter(|word| *word != b"none")
                    .map(lossy)
                    .collect(),
            )
        }
        b"phys_index" | b"phys_device" | b"uevent" => return Some(Outcome::Empty),
        _ => return None,
    }
    draft.met(Format::Lsmem);
    Some(Outcome::Yes)
}
