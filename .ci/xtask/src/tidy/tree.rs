//! The texts of the tree, read once.
//!
//! Walks folders itself instead of asking git, so that the rules hold for a
//! file before it is added and for a tree without history.

use std::fs;
use std::path::Path;

use anyhow::Context;

use super::code;

/// What holds nothing written by hand (`.git` is a file in a worktree).
const SKIPPED: [&str; 2] = ["target", ".git"];

/// One text file.
pub struct File {
    /// From the root, with forward slashes.
    pub path: String,
    /// As it lies on the disk.
    pub text: String,
    /// A Rust file's text with comments and literals blanked; else empty.
    pub code: String,
}

impl File {
    /// Builds the record of one text.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> File {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") {
            code::blank(&text)
        } else {
            String::new()
        };
        File { path, text, code }
    }

    /// Whether this is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the whole file is test code.
    pub fn is_test(&self) -> bool {
        self.path
            .split('/')
            .any(|part| part == "tests" || part == "benches")
    }

    /// The first line (from 0) that is test code, the file's end if none is.
    /// Unit tests come last in a file, so one line is enough to know.
    pub fn first_test_line(&self) -> usize {
        if self.is_test() {
            return 0;
        }
        let mut lines = self.code.lines();
        lines
            .position(|line| line.trim() == "#[cfg(test)]")
            .unwrap_or(usize::MAX)
    }

    /// Whether a comment on `line` (from 0) or the one above lets it off `rule`.
    pub fn allows(&self, line: usize, rule: &str) -> bool {
        let mark = format!("tidy: {rule}: ");
        let above = line.saturating_sub(1);
        self.text
            .lines()
            .skip(above)
            .take(line - above + 1)
            .any(|text| {
                text.split_once(&mark)
                    .is_some_and(|(_, reason)| !reason.trim().is_empty())
            })
    }
}

/// Reads every text file under `root`, sorted by path.
pub fn read(root: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    walk(root, "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(folder: &Path, prefix: &str, files: &mut Vec<File>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if SKIPPED.contains(&name.as_str()) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).with_context(|| format!("read {path}"))?;
            // What is not UTF-8 is not a text of ours: a test's input, an image.
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(File::new(path, text));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_needs_a_reason_and_covers_its_line_and_the_next() {
        let file = File::new(
            "a.rs",
            "// tidy: sleep: polls\nsleep(1);\nsleep(2); // tidy: sleep: \n",
        );
        assert!(file.allows(0, "sleep"));
        assert!(file.allows(1, "sleep"));
        assert!(!file.allows(2, "sleep"));
        assert!(!file.allows(1, "unsafe"));
    }

    #[test]
    fn unit_tests_begin_at_their_attribute() {
        assert_eq!(
            File::new("a.rs", "fn f() {}\n#[cfg(test)]\nmod tests {}\n").first_test_line(),
            1
        );
        assert_eq!(File::new("tests/a.rs", "fn f() {}\n").first_test_line(), 0);
        assert_eq!(
            File::new("a.rs", "fn f() {}\n").first_test_line(),
            usize::MAX
        );
    }
}
