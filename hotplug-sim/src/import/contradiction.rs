//! What two sources of one machine disagree on.

use super::model::{Diagnostic, Severity};

/// More contradictions between two sources than this are counted, not listed.
const MOST_LISTED: usize = 50;

/// Collects contradictions between the sources before and one more.
pub struct Contradictions<'a> {
    before: String,
    name: &'a str,
    found: Vec<Diagnostic>,
    left_out: usize,
}

impl<'a> Contradictions<'a> {
    /// Between the sources named `before` and the one named `name`.
    pub fn new(before: String, name: &'a str) -> Contradictions<'a> {
        Contradictions {
            before,
            name,
            found: Vec::new(),
            left_out: 0,
        }
    }

    /// All of them, and how many there were beyond those that are listed.
    pub fn end(mut self) -> Vec<Diagnostic> {
        if self.left_out > 0 {
            let what = format!(
                "{} further contradictions between {} and {} are left out",
                self.left_out, self.before, self.name
            );
            self.found.push(Diagnostic {
                line: 0,
                what,
                severity: Severity::Warning,
            });
        }
        self.found
    }

    /// One of them.
    pub fn say(&mut self, severity: Severity, subject: &str, before: &str, now: &str) {
        if self.found.len() >= MOST_LISTED {
            self.left_out += 1;
            return;
        }
        let what = format!(
            "{subject}: {before} in {}, {now} in {}",
            self.before, self.name
        );
        self.found.push(Diagnostic {
            line: 0,
            what,
            severity,
        });
    }

    /// Keeps what is known first, and says it if the other differs.
    pub fn settle<T: PartialEq + std::fmt::Debug>(
        &mut self,
        subject: &str,
        kept: &mut Option<T>,
        other: Option<T>,
    ) {
        match (kept.as_ref(), other) {
            (Some(before), Some(now)) if *before != now => self.say(
                Severity::Warning,
                subject,
                &format!("{before:?}"),
                &format!("{now:?}"),
            ),
            (None, other) => *kept = other,
            _ => {}
        }
    }

    /// The same for counters that move all the time: a small difference is only a note.
    pub fn settle_moving(&mut self, subject: &str, kept: &mut Option<i64>, other: Option<i64>) {
        let (Some(before), Some(now)) = (*kept, other) else {
            *kept = kept.or(other);
            return;
        };
        if before != now {
            let far = before.abs_diff(now) > before.unsigned_abs().max(now.unsigned_abs()) / 20;
            let severity = if far {
                Severity::Warning
            } else {
                Severity::Note
            };
            self.say(severity, subject, &before.to_string(), &now.to_string());
        }
    }
}
