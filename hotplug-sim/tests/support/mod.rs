//! What the tests of the importer share.

#![allow(dead_code, reason = "each test binary uses a part of this")]
#![allow(
    clippy::unwrap_used,
    reason = "the exemption of tests covers test functions, not what they call"
)]

pub mod expect;
pub mod invariants;
pub mod prng;

use std::fs;
use std::path::PathBuf;

use expect::Run;
use hotplug_sim::import::import;
use serde_json::Value;

/// The folder of the real inputs.
pub fn cases_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// Name and bytes of every real input.
pub fn cases() -> Vec<(String, Vec<u8>)> {
    let mut names: Vec<_> = fs::read_dir(cases_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    assert!(
        names.len() > 50,
        "the real inputs are not where they should be"
    );
    names
        .into_iter()
        .map(|name| (name.clone(), fs::read(cases_dir().join(name)).unwrap()))
        .collect()
}

/// Imports sources as the command does: the object, and the status it would end with.
pub fn run(sources: &[(String, Vec<u8>)]) -> Run {
    let outcome = import(sources, None);
    match outcome.import {
        None => {
            assert!(
                !outcome.nothing.is_empty(),
                "nothing understood, and not a word why"
            );
            Run {
                document: Value::Null,
                status: 1,
            }
        }
        Some(import) => {
            let status = if import.is_whole() { 0 } else { 64 };
            Run {
                document: serde_json::to_value(&import).unwrap(),
                status,
            }
        }
    }
}

/// Imports one text.
pub fn run_text(text: &[u8]) -> Run {
    run(&[("text".to_string(), text.to_vec())])
}

/// A count as a seed.
pub fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap()
}

/// Imports `text` and holds it against a table of path and value.
///
/// `null` means that nothing is there; an object is tests by name (`{"len": 0}`); anything else
/// is the one value. `status` is what the command would end with.
pub fn assert_import(name: &str, text: &str, status: u8, table: &[(&str, Value)]) {
    let run = run_text(text.as_bytes());
    let mut bad = invariants::invariants(&run);
    for (path, value) in table {
        let mut assertion = match value {
            Value::Null => serde_json::json!({ "absent_or_null": true }),
            Value::Object(_) => value.clone(),
            _ => serde_json::json!({ "eq": value }),
        };
        assertion["path"] = (*path).into();
        bad.extend(expect::failures(&assertion, &run));
    }
    let diagnostics = &run.document["diagnostics"];
    assert!(
        bad.is_empty(),
        "{name}:\n{}\ndiagnostics: {diagnostics:#}",
        bad.join("\n")
    );
    assert_eq!(
        run.status, status,
        "{name}: exit status; diagnostics: {diagnostics:#}"
    );
}
