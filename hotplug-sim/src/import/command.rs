//! `hotplug-sim import`: reads the files, prints the object or tables, saves the machine.
//!
//! The only file of the importer that does I/O. Exit status: 0 understood, 1 nothing
//! understood, 2 usage (by the argument parser), 64 partly.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use super::import;
use super::machine::Machine;
use super::merge::Part;
use super::model::{Import, Severity};
use super::table::Table;
use crate::flags::ImportArgs;

/// Partly understood.
const PARTLY: u8 = 64;

/// Runs the command.
pub fn run(args: &ImportArgs) -> ExitCode {
    let mut sources = Vec::new();
    let mut unread = false;
    for path in &args.files {
        match load(path) {
            Ok(bytes) => sources.push((name_of(path), bytes)),
            Err(error) => {
                complain(&format!("{}: {error}", path.display()));
                unread = true;
            }
        }
    }
    let outcome = import(&sources, args.format);
    for nothing in &outcome.nothing {
        complain(nothing);
    }
    let Some(import) = outcome.import else {
        return ExitCode::from(1);
    };
    if let Err(error) = print(&import, args.json) {
        // A reader that has seen enough is no failure.
        if error.kind() != io::ErrorKind::BrokenPipe {
            complain(&format!("cannot write: {error}"));
            return ExitCode::from(1);
        }
    }
    if let Some(path) = &args.save {
        let sources = sources.into_iter().map(|(name, _)| name).collect();
        let saved = Machine::of(&import, sources)
            .to_toml()
            .map_err(|error| error.to_string());
        if let Err(error) =
            saved.and_then(|text| std::fs::write(path, text).map_err(|error| error.to_string()))
        {
            complain(&format!("{}: {error}", path.display()));
            return ExitCode::from(1);
        }
    }
    if import.is_whole() && !unread {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(PARTLY)
    }
}

/// The bytes of a file, or of standard input for `-`.
pub(crate) fn load(path: &Path) -> io::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(path)
}

/// How a source is called in remarks.
pub(crate) fn name_of(path: &Path) -> String {
    if path == Path::new("-") {
        return "standard input".to_string();
    }
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn complain(what: &str) {
    // There is nowhere to tell that standard error is closed.
    let _ = writeln!(io::stderr().lock(), "hotplug-sim: {what}");
}

fn print(import: &Import, json: bool) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 20, io::stdout().lock());
    if json {
        serde_json::to_writer(&mut out, import)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", Table(import))?;
    }
    out.flush()
}

/// Why a part yields nothing: its first remark, with file and line.
pub(super) fn reason(part: &Part) -> String {
    let worst = part
        .import
        .diagnostics
        .iter()
        .filter(|one| one.severity != Severity::Note)
        .min_by_key(|one| one.line);
    match worst {
        Some(one) => format!(
            "{}:{}: nothing understood: {}",
            part.name, one.line, one.what
        ),
        None => format!(
            "{}:1: nothing understood: there is no text of a kind that is known",
            part.name
        ),
    }
}
