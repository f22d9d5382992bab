//! A table: named columns, rows of cells, printed aligned or as JSON.
//!
//! A column has a short name for people and `-o`, and a key with its unit for JSON. Numbers stand
//! right, words left; the last column is never padded.

use serde_json::{Map, Value, json};

use super::Output;
use crate::{outcome::Failure, size};

/// One column of a table.
#[derive(Debug)]
pub struct Column {
    /// As printed above the column and typed after `-o`.
    pub name: &'static str,
    /// As in JSON, with the unit in the name.
    pub key: &'static str,
    /// What it says.
    pub about: &'static str,
    /// Whether it is printed when no columns are asked for.
    pub shown: bool,
}

impl Column {
    /// A column that is printed unless others are asked for.
    pub const fn shown(name: &'static str, key: &'static str, about: &'static str) -> Column {
        Column {
            name,
            key,
            about,
            shown: true,
        }
    }

    /// A column that is printed when asked for.
    pub const fn hidden(name: &'static str, key: &'static str, about: &'static str) -> Column {
        Column {
            name,
            key,
            about,
            shown: false,
        }
    }
}

/// One value, with what it needs to be printed in either form.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    Number(i128),
    /// Bytes: a size for people, a number in JSON.
    Bytes(u64),
    /// Pages of so many bytes: a size for people, the count of pages in JSON.
    Pages {
        count: u64,
        page_bytes: u64,
    },
    /// Milliseconds: a span of time for people.
    Millis(u64),
    /// `yes` or `no` for people, true or false in JSON.
    Flag(bool),
    List(Vec<String>),
    /// No value: `-` for people, null in JSON.
    Absent,
}

impl Cell {
    /// A count of anything.
    pub fn number(number: impl Into<i128>) -> Cell {
        Cell::Number(number.into())
    }

    /// Words.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    fn to_text(&self, out: &Output) -> String {
        match self {
            Cell::Text(text) if text.is_empty() => "-".into(),
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => number.to_string(),
            Cell::Bytes(bytes) => out.size(*bytes),
            Cell::Pages { count, page_bytes } => out.size(count.saturating_mul(*page_bytes)),
            Cell::Millis(millis) => size::human_millis(*millis),
            Cell::Flag(true) => "yes".into(),
            Cell::Flag(false) => "no".into(),
            Cell::List(items) if items.is_empty() => "-".into(),
            Cell::List(items) => items.join(","),
            Cell::Absent => "-".into(),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            // Every number of the contract fits one of the two; a wider one would be a bug of ours.
            Cell::Number(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => json!(number),
                (_, Ok(number)) => json!(number),
                _ => json!(number.to_string()),
            },
            Cell::Bytes(number) | Cell::Millis(number) => json!(number),
            Cell::Pages { count, .. } => json!(count),
            Cell::Flag(flag) => json!(flag),
            Cell::List(items) => json!(items),
            Cell::Absent => Value::Null,
        }
    }

    fn is_number(&self) -> bool {
        matches!(
            self,
            Cell::Number(_) | Cell::Bytes(_) | Cell::Pages { .. } | Cell::Millis(_)
        )
    }
}

/// Rows under named columns.
#[derive(Debug)]
pub struct Table {
    /// Name of the list in JSON.
    pub key: &'static str,
    pub columns: &'static [Column],
    /// Each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// The places of the columns asked for: by name, any case, in that order.
    pub fn pick(&self, asked: Option<&[String]>) -> Result<Vec<usize>, Failure> {
        let all = || 0..self.columns.len();
        let Some(asked) = asked else {
            return Ok(all().filter(|&place| self.columns[place].shown).collect());
        };
        let find = |name: &String| {
            let place = all().find(|&place| self.columns[place].name.eq_ignore_ascii_case(name));
            place.ok_or_else(|| self.no_such_column(name))
        };
        asked.iter().map(find).collect()
    }

    /// A line for each column: what `-o help` prints.
    pub fn columns_text(&self) -> String {
        let width = self
            .columns
            .iter()
            .map(|column| column.name.len())
            .max()
            .unwrap_or(0);
        let line = |column: &Column| format!("{:<width$}  {}\n", column.name, column.about);
        self.columns.iter().map(line).collect()
    }

    fn no_such_column(&self, name: &str) -> Failure {
        let known: Vec<_> = self.columns.iter().map(|column| column.name).collect();
        let next = format!(
            "choose from {}, or ask what they say with -o help",
            known.join(",")
        );
        Failure::usage(format_args!("no column {name}"), next)
    }

    /// All rows as JSON. Without a choice of columns, hidden ones are there too.
    pub fn json(&self, picked: &[usize]) -> Value {
        let is_default = picked.iter().all(|&place| self.columns[place].shown)
            && picked.len() == self.columns.iter().filter(|column| column.shown).count();
        let places: Vec<usize> = if is_default {
            (0..self.columns.len()).collect()
        } else {
            picked.to_vec()
        };
        let object = |row: &Vec<Cell>| {
            let pairs = places
                .iter()
                .map(|&p| (self.columns[p].key.to_owned(), row[p].to_json()));
            Value::Object(pairs.collect::<Map<_, _>>())
        };
        json!({ self.key: self.rows.iter().map(object).collect::<Vec<_>>() })
    }

    /// All rows as text, a heading first.
    pub fn text(&self, picked: &[usize], out: &Output) -> String {
        let grid: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                picked
                    .iter()
                    .map(|&place| row[place].to_text(out))
                    .collect()
            })
            .collect();
        let width = |column: usize| {
            let name = self.columns[picked[column]].name.len();
            grid.iter()
                .map(|row| row[column].chars().count())
                .fold(name, usize::max)
        };
        let widths: Vec<usize> = (0..picked.len()).map(width).collect();
        let right: Vec<bool> = picked
            .iter()
            .map(|&place| self.rows.first().is_some_and(|row| row[place].is_number()))
            .collect();

        let line = |texts: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for (column, text) in texts.enumerate() {
                let width = widths[column];
                let is_last = column + 1 == widths.len();
                line += &match (right[column], is_last) {
                    (true, _) => format!("{text:>width$}"),
                    (false, false) => format!("{text:<width$}"),
                    (false, true) => text.to_owned(),
                };
                line += if is_last { "" } else { "  " };
            }
            line
        };
        let mut text = out.heading(&line(
            &mut picked.iter().map(|&place| self.columns[place].name),
        ));
        text.push('\n');
        for row in &grid {
            text += &line(&mut row.iter().map(String::as_str));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column::shown("ZONE", "zone", "name"),
        Column::shown("FREE", "free_pages", "free"),
        Column::hidden("START", "start_pfn", "first page"),
        Column::shown("BACKING", "backing", "links in use"),
    ];

    fn table() -> Table {
        let pages = |count| Cell::Pages {
            count,
            page_bytes: 4096,
        };
        Table {
            key: "zones",
            columns: COLUMNS,
            rows: vec![
                vec![
                    Cell::text("normal"),
                    pages(1),
                    Cell::number(0),
                    Cell::List(vec!["shm".into()]),
                ],
                vec![
                    Cell::text("m"),
                    pages(32768),
                    Cell::number(-1),
                    Cell::List(vec![]),
                ],
            ],
        }
    }

    #[test]
    fn text_aligns_numbers_right_and_words_left() {
        let table = table();
        let picked = table.pick(None).unwrap();
        assert_eq!(
            table.text(&picked, &Output::plain()),
            "ZONE      FREE  BACKING\n\
             normal    4KiB  shm\n\
             m       128MiB  -\n"
        );
    }

    #[test]
    fn columns_come_as_asked_in_any_case() {
        let table = table();
        let picked = table.pick(Some(&["start".into(), "zone".into()])).unwrap();
        assert_eq!(
            table.text(&picked, &Output::plain()),
            "START  ZONE\n    0  normal\n   -1  m\n"
        );
        let json = table.json(&picked);
        assert_eq!(
            json,
            json!({"zones": [{"start_pfn": 0, "zone": "normal"}, {"start_pfn": -1, "zone": "m"}]})
        );
    }

    #[test]
    fn an_unknown_column_is_a_usage_error_that_names_the_known() {
        let failure = table().pick(Some(&["SIZE".into()])).unwrap_err();
        assert_eq!(failure.outcome(), crate::outcome::Outcome::Usage);
        assert_eq!(
            failure.to_string(),
            "no column SIZE; choose from ZONE,FREE,START,BACKING, or ask what they say with -o help"
        );
        assert!(table().columns_text().ends_with("BACKING  links in use\n"));
    }

    #[test]
    fn bytes_on_request_and_pages_in_json() {
        let table = table();
        let picked = table.pick(Some(&["FREE".into()])).unwrap();
        assert_eq!(
            table.text(&picked, &Output::in_bytes()),
            "     FREE\n     4096\n134217728\n"
        );
        assert_eq!(table.json(&picked)["zones"][1]["free_pages"], 32768);
    }

    #[test]
    fn json_without_a_choice_has_the_hidden_columns_too() {
        let table = table();
        assert_eq!(
            table.json(&table.pick(None).unwrap())["zones"][0]["start_pfn"],
            0
        );
    }

    #[test]
    fn an_empty_table_still_has_its_heading() {
        let table = Table {
            rows: vec![],
            ..table()
        };
        let picked = table.pick(None).unwrap();
        assert_eq!(
            table.text(&picked, &Output::plain()),
            "ZONE  FREE  BACKING\n"
        );
        assert_eq!(table.json(&picked), json!({"zones": []}));
    }
}
