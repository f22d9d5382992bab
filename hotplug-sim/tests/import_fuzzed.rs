//! The parsers under mutations: each kind of text for as long as `HUGEPOOL_TEST_FUZZ_SECONDS` says
//! (CI: 5), and every file of `corpus/` again.
//!
//! Seeded and in order, so that a failure comes again: its message has the bytes. A file that once
//! broke a parser belongs into `corpus/`. `.ci/fuzz` calls the same function from libFuzzer.

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use hotplug_sim::import::examine::examine;
use hotplug_sim::import::format::Format;
use hotplug_sim::import::import;
use support::prng::Prng;

/// Pieces that every format is given, besides those of its own files.
const PIECES: [&str; 16] = [
    "18446744073709551615",
    "-9223372036854775809",
    "0x",
    "0xffffffffffffffffffff",
    "Node 0, zone",
    "[mem 0x",
    "-0x",
    "*4kB (",
    "= ",
    "\u{feff}",
    "\n\n",
    "{\"",
    "}]",
    "</",
    "page=0x",
    ">100000",
];

fn seconds() -> f64 {
    let text = std::env::var("HUGEPOOL_TEST_FUZZ_SECONDS");
    text.ok().and_then(|text| text.parse().ok()).unwrap_or(0.1)
}

fn check(bytes: &[u8], only: Option<Format>, what: &str) {
    // A panic ends the test; its message is made before, for the bytes are what is needed.
    let examined = std::panic::catch_unwind(|| examine(bytes, only));
    assert!(
        matches!(examined, Ok(Ok(()))),
        "{what}: {examined:?} for {:?}",
        String::from_utf8_lossy(bytes)
    );
}

#[test]
fn each_format_is_mutated_for_a_while() {
    let cases = support::cases();
    let budget = Duration::from_secs_f64(seconds());
    for (at, format) in Format::ALL.into_iter().enumerate() {
        let own: Vec<&Vec<u8>> = cases
            .iter()
            .map(|(_, bytes)| bytes)
            .filter(|bytes| {
                let outcome = import(&[("case".to_owned(), bytes.to_vec())], None);
                outcome
                    .import
                    .is_some_and(|import| import.formats.contains(&format))
            })
            .collect();
        // A format without a case of its own is given everybody's.
        let own = if own.is_empty() {
            cases.iter().map(|(_, bytes)| bytes).collect()
        } else {
            own
        };
        let begun = Instant::now();
        let mut prng = Prng::new(support::count(at) + 77);
        let mut nr_done = 0;
        while nr_done < 30 || begun.elapsed() < budget {
            let mut bytes = own[prng.below(own.len())].clone();
            for _ in 0..=prng.below(6) {
                mutate(&mut bytes, own[prng.below(own.len())], &mut prng);
            }
            check(&bytes, None, &format!("{format:?}, mutant {nr_done}"));
            check(
                &bytes,
                Some(format),
                &format!("{format:?} forced, mutant {nr_done}"),
            );
            nr_done += 1;
        }
    }
}

#[test]
fn the_corpus_is_read_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut nr = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        for format in Format::ALL.into_iter().map(Some).chain([None]) {
            check(&bytes, format, &format!("{} as {format:?}", path.display()));
        }
        nr += 1;
    }
    assert!(nr >= 8, "the corpus is not where it should be");
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], prng: &mut Prng) {
    let at = prng.below(bytes.len() + 1);
    let end = (at + prng.below(24)).min(bytes.len());
    match prng.below(8) {
        0 => drop(bytes.drain(at..end)),
        1 => drop(bytes.splice(at..end, PIECES[prng.below(PIECES.len())].bytes())),
        2 => {
            let from = prng.below(other.len() + 1);
            let to = (from + prng.below(200)).min(other.len());
            drop(bytes.splice(at..end, other[from..to].iter().copied()));
        }
        3 => bytes.truncate(at),
        4 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = u8::try_from(prng.below(256)).unwrap_or(0);
            }
        }
        5 => {
            if let Some(digit) = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *digit = b"0123456789"[prng.below(10)];
            }
        }
        6 => {
            let copy = bytes[at..end].to_vec();
            for _ in 0..=prng.below(20) {
                drop(bytes.splice(at..at, copy.iter().copied()));
            }
        }
        _ => {
            // A line feed more or less is what pasting does.
            match bytes[at..].iter().position(|byte| *byte == b'\n') {
                Some(line) => drop(bytes.remove(at + line)),
                None => bytes.insert(at, b'\n'),
            }
        }
    }
}
