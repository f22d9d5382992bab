//! `hugepoolctl config`: what the daemon's program says of configuration.
//!
//! The rules are the daemon's; this tool starts its program and gives the answer its form.

use std::{
    path::Path,
    process::{Command, Output as Ended, Stdio},
};

use serde_json::Value;

use crate::{
    cli::ConfigVerb,
    outcome::{Failure, Outcome},
    output::{Cell, Column, Output, Table},
    program,
};

const COLUMNS: &[Column] = &[
    Column::shown("KEY", "key", "name in the file, tables before it"),
    Column::shown("TYPE", "type", "what may stand there"),
    Column::shown("DEFAULT", "default", "what holds when it is left out"),
    Column::shown("MEANING", "what", "what it decides"),
];

/// Shows, checks or explains.
pub fn run(
    verb: &ConfigVerb,
    runtime_dir: Option<&Path>,
    out: &Output,
) -> Result<Outcome, Failure> {
    match verb {
        ConfigVerb::Show { config } => show(config.as_deref(), runtime_dir, out),
        ConfigVerb::Check { config } => check(config.as_deref(), runtime_dir, out),
        ConfigVerb::Explain { key } => explain(key.as_deref(), out),
    }
}

fn show(file: Option<&Path>, runtime_dir: Option<&Path>, out: &Output) -> Result<Outcome, Failure> {
    let mut args = vec!["config", "show"];
    if out.is_json() {
        args.push("--json");
    }
    let ended = start(file, runtime_dir, &args)?;
    if !ended.status.success() {
        return Err(said(&ended));
    }
    let text = String::from_utf8_lossy(&ended.stdout);
    let as_value = || serde_json::from_str(&text).unwrap_or(Value::Null);
    out.either(as_value, || text.to_string())?;
    Ok(Outcome::Done)
}

/// The daemon's 2 says that it could not start: here that is a check with findings. What it says
/// on standard error is a configuration that makes no plan.
fn check(
    file: Option<&Path>,
    runtime_dir: Option<&Path>,
    out: &Output,
) -> Result<Outcome, Failure> {
    let ended = start(file, runtime_dir, &["--check"])?;
    if ended.stdout.is_empty() {
        return Err(said(&ended));
    }
    let could_start = ended.status.success();
    let text = String::from_utf8_lossy(&ended.stdout);
    let lines = || {
        let lines: Vec<_> = text.lines().collect();
        serde_json::json!({ "could_start": could_start, "lines": lines })
    };
    out.either(lines, || text.to_string())?;
    Ok(if could_start {
        Outcome::Done
    } else {
        Outcome::Refused
    })
}

fn explain(key: Option<&str>, out: &Output) -> Result<Outcome, Failure> {
    let ended = start(None, None, &["config", "explain"])?;
    if !ended.status.success() {
        return Err(said(&ended));
    }
    let text = String::from_utf8_lossy(&ended.stdout);
    let mut rows = Vec::new();
    let mut names = Vec::new();
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line).map_err(|error| cannot(&error))?;
        let word = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let name = word("key");
        if key.is_none_or(|key| is_in(&name, key)) {
            let default = match &entry["default"] {
                Value::Null => "-".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            rows.push(vec![
                Cell::Text(name.clone()),
                Cell::Text(word("type")),
                Cell::Text(default),
                Cell::Text(word("what")),
            ]);
        }
        names.push(name);
    }
    if let Some(key) = key.filter(|key| !names.iter().any(|name| is_in(name, key))) {
        let next = format!("known are {}", names.join(", "));
        return Err(Failure::usage(
            format_args!("there is no key `{key}`"),
            next,
        ));
    }
    out.table(&Table {
        key: "keys",
        columns: COLUMNS,
        rows,
    })?;
    Ok(Outcome::Done)
}

/// Whether a name is this key, or lies in the table of this name.
fn is_in(name: &str, key: &str) -> bool {
    let plain = name.replace("[]", "");
    let rest = plain.strip_prefix(key).or_else(|| name.strip_prefix(key));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn start(file: Option<&Path>, runtime_dir: Option<&Path>, args: &[&str]) -> Result<Ended, Failure> {
    let mut command = Command::new(program::of_daemon());
    if let Some(file) = file {
        command.arg("--config").arg(file);
    }
    if let Some(dir) = runtime_dir {
        command.arg("--runtime-dir").arg(dir);
    }
    command.args(args).stdin(Stdio::null());
    command.output().map_err(|error| cannot(&error))
}

/// The daemon's own words, which say what to do next.
fn said(ended: &Ended) -> Failure {
    let text = String::from_utf8_lossy(&ended.stderr);
    Failure::usage(text.trim(), "mend the configuration and check it again")
}

fn cannot(why: &dyn std::fmt::Display) -> Failure {
    Failure::refused(
        format_args!("hugepoold does not say: {why}"),
        "build or install it beside this tool, or in PATH",
    )
}

#[cfg(test)]
mod tests {
    use super::is_in;

    #[test]
    fn a_key_is_asked_for_by_name_or_table() {
        assert!(is_in("limits.clients", "limits"));
        assert!(is_in("limits.clients", "limits.clients"));
        assert!(is_in("zone[].size", "zone") && is_in("zone[].size", "zone.size"));
        assert!(!is_in("zonelist", "zone") && !is_in("limits.clients", "limit"));
    }
}
