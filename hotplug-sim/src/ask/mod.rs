//! `hotplug-sim ask`: what would happen to a machine, in numbers with the reason.
//!
//! Each question is put to a machine built from the description, or to copies of it: nothing
//! is guessed that can be tried. [`blocks`] asks what could go, [`room`] what could be had,
//! [`scan`] what contiguity questions cost, [`policy`] where new memory should go after a
//! [`history`].

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use crate::host::Host;
use crate::scenario::command::read_machine;
use crate::scenario::file::parse_size;

mod blocks;
mod history;
mod policy;
mod room;
mod scan;

/// `ask`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: 0 answered, 1 no machine can be built of the file, 2 usage.")]
pub struct AskArgs {
    /// The machine: saved by `import --save`, or any file that `import` reads.
    machine: PathBuf,
    /// The question.
    #[command(subcommand)]
    question: Question,
    /// Where chance comes from: places of what the description does not place.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
    /// Print JSON.
    #[arg(short = 'J', long, global = true)]
    json: bool,
}

/// The questions.
#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Which memory blocks could go, and what stands in the way of the others.
    Removable,
    /// How far the machine can shrink, how many pages move, how long it takes.
    Shrink {
        /// The memory that is to stay online.
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        to: u64,
    },
    /// Whether allocations would succeed, with and without compaction.
    Order {
        /// The order of each.
        order: u8,
        /// How many.
        #[arg(long, default_value_t = 1)]
        count: u64,
    },
    /// Which zones are contiguous, and what each cache costs in checks.
    Contiguity,
    /// Whether new memory should come online for the kernel or as movable, after a history.
    OnlinePolicy {
        /// The memory that comes.
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GiB")]
        size: u64,
        /// What happens between its coming and its going: a scenario, or a trace of page
        /// allocations (`kmem:*`); without one the everyday.
        #[arg(long, value_name = "FILE")]
        history: Option<PathBuf>,
        /// Operations of the everyday.
        #[arg(long, default_value_t = 200_000)]
        steps: u64,
    },
}

/// Names and values, in the order in which they are shown.
pub type Row = Vec<(String, Value)>;

/// An answer: rows of numbers, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The numbers, by name.
    pub numbers: Row,
    /// Rows, each with the same names.
    pub rows: Vec<Row>,
    /// The reasoning, in one line.
    pub because: String,
}

impl Answer {
    fn number(&mut self, name: &str, value: impl Into<Value>) {
        self.numbers.push((name.to_owned(), value.into()));
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let mut all: Map<String, Value> = self.numbers.iter().cloned().collect();
        if !self.rows.is_empty() {
            let rows = self
                .rows
                .iter()
                .map(|row| Value::Object(row.iter().cloned().collect()));
            all.insert("rows".to_owned(), rows.collect());
        }
        all.insert("because".to_owned(), self.because.clone().into());
        Value::Object(all)
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.numbers {
            text.push_str(&format!(
                "{:<22} {}\n",
                name.replace('_', " "),
                plain(value)
            ));
        }
        if let Some(first) = self.rows.first() {
            let head: Vec<String> = first
                .iter()
                .map(|(name, _)| name.replace('_', " "))
                .collect();
            let cells =
                |row: &Row| -> Vec<String> { row.iter().map(|(_, value)| plain(value)).collect() };
            let body: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
            let width = |at: usize| {
                body.iter()
                    .map(|row| row[at].len())
                    .chain([head[at].len()])
                    .max()
            };
            let widths: Vec<usize> = (0..head.len()).map(|at| width(at).unwrap_or(0)).collect();
            for row in std::iter::once(&head).chain(&body) {
                let cells = row.iter().zip(&widths);
                let line: Vec<String> = cells
                    .map(|(cell, width)| format!("{cell:<width$}"))
                    .collect();
                text.push_str(line.join("  ").trim_end());
                text.push('\n');
            }
        }
        text.push_str(&format!("because: {}\n", self.because));
        text
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// A row of names and values.
fn row<const N: usize>(cells: [(&str, Value); N]) -> Row {
    cells
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Asks.
pub fn run(args: &AskArgs) -> ExitCode {
    let complain = |what: &str, code| {
        eprintln!("hotplug-sim: {what}");
        ExitCode::from(code)
    };
    let machine = match read_machine(&args.machine) {
        Ok(machine) => machine,
        Err(error) => return complain(&error, 2),
    };
    let host = match Host::build(&machine, args.seed) {
        Ok(host) => host,
        Err(error) => return complain(&error.to_string(), 1),
    };
    let notes = host.notes.clone();
    let answer = match &args.question {
        Question::Removable => Ok(blocks::removable(&host)),
        Question::Shrink { to } => Ok(blocks::shrink(host, *to)),
        Question::Order { order, count } => room::order(&host, *order, *count),
        Question::Contiguity => Ok(scan::contiguity(host)),
        Question::OnlinePolicy {
            size,
            history,
            steps,
        } => policy::online(&host, *size, history.as_deref(), *steps, args.seed),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return complain(&error, 2),
    };
    if args.json {
        let mut json = answer.to_json();
        json["notes"] = notes.into();
        println!("{json}");
    } else {
        for note in notes {
            println!("note: {note}");
        }
        print!("{}", answer.to_text());
    }
    ExitCode::SUCCESS
}
