//! What the tests of the importer share.

// Each test binary uses a part of this.
#![allow(dead_code)]
// The exemption of tests covers test functions, not what they call.
#![allow(clippy::unwrap_used)]

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
