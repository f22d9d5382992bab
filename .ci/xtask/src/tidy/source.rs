//! What a Rust file must look like: its head, its length, and what may not
//! stand in it at its place.
//!
//! Rules about words look at code only, with comments and literals blanked;
//! those about comments look at the text.

use std::collections::BTreeMap;

use super::Finding;
use super::code::lines_with_word;
use super::tree::File;

/// The longest file, tests included.
const MAX_LINES: usize = 600;

/// The one folder with `unsafe`.
const UNSAFE_FOLDER: &str = "proto/shm/";

/// Code that must give the same answer for the same question: it is told the
/// time, given the memory, and draws no random number, not even a hasher's.
/// The first folder that fits counts.
const PURE: [(&str, &[&str]); 4] = [
    ("daemon/mm/src/", &["std::sync", "core::sync"]),
    ("daemon/engine/src/", &[]),
    // Reads files once; its tables are looked up, never walked.
    ("hotplug-sim/src/import/", &["Instant", "SystemTime"]),
    (
        "hotplug-sim/src/",
        &["Instant", "SystemTime", "HashMap", "HashSet", "RandomState"],
    ),
];

/// What mm and engine may not touch.
const IMPURE: [&str; 12] = [
    "std::thread",
    "std::fs",
    "std::io",
    "std::net",
    "std::env",
    "std::process",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "println",
    "eprintln",
];

/// What waits, ages or backs off does it by a clock that nobody can set.
const WITHOUT_WALL_CLOCK: [&str; 3] = ["daemon/", "client/", "proto/"];

/// Holds every Rust file against the rules.
pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    let rust = || files.iter().filter(|file| file.is_rust());
    for file in rust() {
        check_shape(file, findings);
        check_unsafe(file, findings);
        check_purity(file, findings);
        check_clock(file, findings);
        check_tests(file, findings);
    }
    check_sync_tags(rust(), findings);
}

fn check_shape(file: &File, findings: &mut Vec<Finding>) {
    if !file.text.starts_with("//!") {
        findings.push(Finding::new(
            &file.path,
            1,
            "head",
            "does not open with what it is (`//!`)",
        ));
    }
    let nr_lines = file.text.lines().count();
    if nr_lines > MAX_LINES {
        let message = format!("{nr_lines} lines; at most {MAX_LINES}");
        findings.push(Finding::new(&file.path, nr_lines, "length", message));
    }
}

fn check_unsafe(file: &File, findings: &mut Vec<Finding>) {
    if file.path.starts_with(UNSAFE_FOLDER) {
        return;
    }
    words(
        file,
        "unsafe",
        "unsafe",
        "belongs into hugepool-shm",
        findings,
    );

    let is_root = ["src/lib.rs", "src/main.rs"]
        .iter()
        .any(|root| file.path.ends_with(root));
    if is_root && !file.code.contains("#![forbid(unsafe_code)]") {
        let message = "a crate's root says `#![forbid(unsafe_code)]`";
        findings.push(Finding::new(&file.path, 1, "unsafe", message));
    }
}

fn check_purity(file: &File, findings: &mut Vec<Finding>) {
    let Some((folder, own)) = PURE
        .iter()
        .find(|(folder, _)| file.path.starts_with(folder))
    else {
        return;
    };
    let common: &[&str] = if folder.starts_with("daemon/") {
        &IMPURE
    } else {
        &[]
    };
    for name in own.iter().chain(common) {
        words(
            file,
            name,
            "pure",
            "not here: no I/O, clock, thread or randomness",
            findings,
        );
    }
}

fn check_clock(file: &File, findings: &mut Vec<Finding>) {
    if !WITHOUT_WALL_CLOCK
        .iter()
        .any(|folder| file.path.starts_with(folder))
    {
        return;
    }
    for name in ["SystemTime", "CLOCK_REALTIME"] {
        for number in lines_with_word(&file.code, name) {
            if number < file.first_test_line() && !file.allows(number, "clock") {
                let message = "the wall clock jumps: wait and measure by another";
                findings.push(Finding::new(&file.path, number + 1, "clock", message));
            }
        }
    }
}

fn check_tests(file: &File, findings: &mut Vec<Finding>) {
    for number in lines_with_word(&file.code, "sleep") {
        if number >= file.first_test_line() && !file.allows(number, "sleep") {
            let message = "a test waits for a condition with a deadline, not for a while";
            findings.push(Finding::new(&file.path, number + 1, "sleep", message));
        }
    }
    for (number, line) in file.code.lines().enumerate() {
        if line.contains("#[ignore]") {
            let message = "say why: `#[ignore = \"…\"]`";
            findings.push(Finding::new(&file.path, number + 1, "ignore", message));
        }
    }
}

/// An ordering names its partner: a tag stands at both ends, in the code that
/// runs. What a test or a file's head says about a tag does not count.
fn check_sync_tags<'a>(files: impl Iterator<Item = &'a File>, findings: &mut Vec<Finding>) {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for file in files.filter(|file| !file.is_test()) {
        let first_test = file.first_test_line();
        for (number, line) in file
            .text
            .lines()
            .enumerate()
            .take_while(|(n, _)| *n < first_test)
        {
            let line = line.trim_start();
            let comment = line.starts_with("//") && !line.starts_with("//!");
            for tag in line.split("SYNC(").skip(1).filter(|_| comment) {
                let tag = tag.split(')').next().unwrap_or_default();
                places
                    .entry(tag)
                    .or_default()
                    .push((&file.path, number + 1));
            }
        }
    }
    for (tag, places) in places {
        if let [(path, line)] = places[..] {
            let message = format!("SYNC({tag}) names a partner that is nowhere");
            findings.push(Finding::new(path, line, "sync", message));
        }
    }
}

fn words(file: &File, name: &str, rule: &'static str, why: &str, findings: &mut Vec<Finding>) {
    for number in lines_with_word(&file.code, name) {
        if number < file.first_test_line() && !file.allows(number, rule) {
            let message = format!("`{name}` {why}");
            findings.push(Finding::new(&file.path, number + 1, rule, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let mut findings = Vec::new();
        check(&[File::new(path, text)], &mut findings);
        findings.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_file_says_what_it_is_and_ends_in_time() {
        assert_eq!(rules("a.rs", "fn f() {}\n"), ["head"]);
        assert!(rules("a.rs", &"//! A.\n".repeat(MAX_LINES)).is_empty());
        assert_eq!(rules("a.rs", &"//! A.\n".repeat(MAX_LINES + 1)), ["length"]);
    }

    #[test]
    fn unsafe_lives_in_one_crate() {
        let text = "//! A.\nfn f() { unsafe { g() } }\n";
        assert!(rules("proto/shm/src/a.rs", text).is_empty());
        assert_eq!(rules("client/src/a.rs", text), ["unsafe"]);
        assert_eq!(rules("client/src/lib.rs", "//! A.\n"), ["unsafe"]);
        assert!(rules("client/src/a.rs", "//! A.\n// unsafe\n").is_empty());
    }

    #[test]
    fn the_engine_reads_no_clock_and_its_tests_may() {
        let text = "//! A.\nuse std::time::Instant;\n";
        assert_eq!(rules("daemon/engine/src/a.rs", text), ["pure"]);
        assert!(rules("daemon/engine/tests/a.rs", text).is_empty());
        assert!(rules("daemon/src/a.rs", text).is_empty());
        let excused = "//! A.\n// tidy: pure: a name\nuse std::time::Instant;\n";
        assert!(rules("daemon/engine/src/a.rs", excused).is_empty());
    }

    #[test]
    fn nothing_waits_by_a_clock_that_can_be_set() {
        let text = "//! A.\nfn f() { SystemTime::now() }\n";
        assert_eq!(rules("client/src/a.rs", text), ["clock"]);
        assert!(rules("client/tests/a.rs", text).is_empty());
        let stamp = "//! A.\n// tidy: clock: a stamp for people\nfn f() { SystemTime::now() }\n";
        assert!(rules("client/src/a.rs", stamp).is_empty());
    }

    #[test]
    fn tests_do_not_sleep_and_hope() {
        let text = "//! A.\nfn f() { sleep(x) }\n";
        assert!(rules("client/src/a.rs", text).is_empty());
        assert_eq!(rules("client/tests/a.rs", text), ["sleep"]);
        assert!(rules("client/tests/a.rs", "//! A.\nfn f() { before_sleep() }\n").is_empty());
        let unit = "//! A.\n#[cfg(test)]\nmod tests { fn f() { sleep(x) } }\n";
        assert_eq!(rules("client/src/a.rs", unit), ["sleep"]);
        assert_eq!(
            rules("client/tests/a.rs", "//! A.\n#[ignore]\nfn f() {}\n"),
            ["ignore"]
        );
    }

    #[test]
    fn a_tag_has_a_partner_in_code_that_runs() {
        let one = "//! SYNC(tag)\n// SYNC(ring.tail): publishes.\n";
        assert_eq!(rules("a.rs", one), ["sync"]);
        assert!(rules("a.rs", &format!("{one}{one}")).is_empty());
        let in_test = format!("{one}#[cfg(test)]\n// SYNC(ring.tail)\n");
        assert_eq!(rules("a.rs", &in_test), ["sync"]);
    }
}
