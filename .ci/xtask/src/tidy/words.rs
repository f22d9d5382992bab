//! What no committed text may contain: unfinished places, paths of one
//! machine, hosts of package registries.
//!
//! The words below are put together from halves, so that this file passes too.

use super::Finding;
use super::code::is_word;
use super::tree::File;

/// Marks of something left undone.
const UNFINISHED: [&str; 5] = [
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("TO", "DO"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
];

/// Folders that only one machine has.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/fa", "rm/"),
];

/// Parts of the names of hosts that packages come from: a machine may have
/// others, so no text may rely on one.
const REGISTRIES: [&str; 5] = [
    concat!("deb", "ian"),
    concat!("crat", "es"),
    concat!("py", "pi"),
    concat!("pythonho", "sted"),
    concat!("npm", "js"),
];

/// Holds every text against the lists; the lock file is cargo's own.
pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    for file in files
        .iter()
        .filter(|file| !file.path.ends_with("Cargo.lock"))
    {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(message) = fault(line)
                && !file.allows(number, "words")
            {
                findings.push(Finding::new(&file.path, number + 1, "words", message));
            }
        }
    }
}

fn fault(line: &str) -> Option<String> {
    for word in UNFINISHED {
        if starts_a_word(line, word) {
            return Some(format!("`{word}`: finish it or say it in the tracker"));
        }
    }
    for path in MACHINE_PATHS {
        if starts_a_word(line, path) {
            return Some(format!("`{path}` is a path of one machine"));
        }
    }
    for url in line.split("://").skip(1) {
        let host = url.split('/').next().unwrap_or_default();
        if let Some(part) = REGISTRIES.iter().find(|part| host.contains(*part)) {
            return Some(format!("the host of a registry (`{part}`)"));
        }
    }
    None
}

/// Whether `word` stands in `line` and not as the end of a longer name or path.
fn starts_a_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| is_word(c) || c == '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_is_looked_for() {
        for word in UNFINISHED.iter().chain(&MACHINE_PATHS) {
            assert!(fault(&format!("see {word}x")).is_some(), "{word}");
            assert!(fault(&format!("see a{word}")).is_none(), "{word}");
        }
        for part in REGISTRIES {
            assert!(
                fault(&format!("from https://a.{part}.org/x")).is_some(),
                "{part}"
            );
            assert!(fault(&format!("the {part} archive, https://example.org/{part}")).is_none());
        }
    }

    #[test]
    fn a_line_is_let_off_with_a_reason() {
        let text = format!("{} // tidy: words: quoted from elsewhere\n", UNFINISHED[0]);
        let mut findings = Vec::new();
        check(&[File::new("a.md", text)], &mut findings);
        assert!(findings.is_empty());
    }
}
