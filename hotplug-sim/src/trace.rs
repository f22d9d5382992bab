//! What a run did, one line a step; the same for the same seed, byte for byte.
//!
//! Shape of a line: `STEP MS WORDS`, the step counted from 0, the told time in milliseconds,
//! then what was done and, behind `->`, what came of it. The lines are always made
//! and hashed (so that two runs can be compared cheaply) and printed if asked for.

use core::fmt::{self, Write as _};
use std::io::Write as _;

/// The lines of a run.
#[derive(Debug)]
pub struct Trace {
    is_printed: bool,
    line: String,
    hash: u64,
}

impl Trace {
    /// A trace that is printed to standard output, or only hashed.
    pub fn new(is_printed: bool) -> Trace {
        // The offset basis of FNV-1a.
        Trace {
            is_printed,
            line: String::new(),
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// Begins the line of a step.
    pub fn begin(&mut self, step: u64, ms: u128) {
        self.line.clear();
        self.add(format_args!("{step} {ms}"));
    }

    /// Adds words to the line.
    pub fn add(&mut self, words: fmt::Arguments<'_>) {
        let start = self.line.len();
        if start > 0 {
            self.line.push(' ');
        }
        // Writing to a string does not fail.
        let _ = self.line.write_fmt(words);
    }

    /// Ends the line.
    pub fn end(&mut self) {
        self.line.push('\n');
        for &byte in self.line.as_bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.is_printed {
            // Nobody listening is no reason to stop.
            let _ = std::io::stdout().lock().write_all(self.line.as_bytes());
        }
    }

    /// The line as it stands, for reports of what broke.
    pub fn line(&self) -> &str {
        self.line.trim_end()
    }

    /// Hash of all lines ended so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
