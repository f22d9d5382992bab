//! What is printed, and how: tables, JSON, sizes.
//!
//! All output of a verb is made first and written once, so that a failure half way prints nothing
//! that could be taken for an answer. [`table`] knows rows; [`equation`] knows pages that add up.

pub mod equation;
pub mod table;

use std::io::{self, IsTerminal as _, Write as _};

use serde_json::Value;

use crate::{cli::Global, outcome::Failure, size};

pub use table::{Cell, Column, Table};

/// The choices of form that were typed.
#[derive(Debug)]
pub struct Output {
    json: bool,
    columns: Option<Vec<String>>,
    bytes: bool,
    bold: bool,
}

impl Output {
    /// Takes the choices, and looks whether a person reads along.
    pub fn new(global: &Global) -> Output {
        let wants_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Output {
            json: global.json,
            columns: global.output.clone(),
            bytes: global.bytes,
            bold: io::stdout().is_terminal() && !wants_plain,
        }
    }

    /// Whether JSON was asked for.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A size as asked: for people, or in bytes.
    pub fn size(&self, bytes: u64) -> String {
        if self.bytes {
            bytes.to_string()
        } else {
            size::human_bytes(bytes)
        }
    }

    /// Prints a table, as text or as JSON.
    pub fn table(&self, table: &Table) -> Result<(), Failure> {
        if self
            .columns
            .as_deref()
            .is_some_and(|asked| asked == ["help"])
        {
            return self.text(&table.columns_text());
        }
        let picked = table.pick(self.columns.as_deref())?;
        if self.json {
            self.json(&table.json(&picked))
        } else {
            self.text(&table.text(&picked, self))
        }
    }

    /// Prints one of two forms of an answer that is no table.
    pub fn either(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if let Some(columns) = &self.columns {
            let next = "leave -o out: this answer has no columns";
            return Err(Failure::usage(
                format_args!("no column {}", columns.join(",")),
                next,
            ));
        }
        if self.json {
            self.json(&json())
        } else {
            self.text(&text())
        }
    }

    /// Prints one JSON value, on lines of its own.
    pub fn json(&self, value: &Value) -> Result<(), Failure> {
        self.text(&format!("{value:#}\n"))
    }

    /// Prints one JSON value on one line, for streams.
    pub fn json_line(&self, value: &Value) -> Result<(), Failure> {
        self.text(&format!("{value}\n"))
    }

    /// Writes text as it is.
    pub fn text(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }

    /// A heading, bold where a person reads along.
    fn heading(&self, text: &str) -> String {
        if self.bold {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    #[cfg(test)]
    pub fn plain() -> Output {
        Output {
            json: false,
            columns: None,
            bytes: false,
            bold: false,
        }
    }

    #[cfg(test)]
    pub fn in_bytes() -> Output {
        Output {
            bytes: true,
            ..Output::plain()
        }
    }
}
