//! House rules as a test: what a compiler cannot see and a reviewer tires of.
//!
//! Not a style checker for layout (that is rustfmt) nor for idiom (clippy).
//! [`check`] reads the tree once ([`tree`]) and hands it to the rules: who may
//! depend on whom ([`imports`]), what a Rust file must look like ([`source`]),
//! and what no committed text may contain ([`words`]).
//!
//! A single line is let off by a comment on it or just above it:
//! `// tidy: RULE: reason`.

mod code;
mod imports;
mod source;
mod tree;
mod words;

use std::fmt;
use std::path::Path;

/// One broken rule at one place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    rule: &'static str,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Finding {
        Finding {
            path: path.to_owned(),
            line,
            rule,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            path,
            line,
            rule,
            message,
        } = self;
        write!(f, "{path}:{line}: {rule}: {message}")
    }
}

/// Checks every committed text under `root`; findings come in the order of paths.
pub fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let files = tree::read(root)?;
    let mut findings = Vec::new();
    imports::check(&files, &mut findings)?;
    source::check(&files, &mut findings);
    words::check(&files, &mut findings);
    findings.sort();
    Ok(findings)
}
