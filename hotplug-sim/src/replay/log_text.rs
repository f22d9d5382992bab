//! A replayed log as a table.

use core::fmt;

use super::log::ReplayedLog;

impl fmt::Display for ReplayedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "memory blocks of {} MiB (pages of {} bytes); in use are {} pages that the log says would not go, \
             all else is free",
            self.geometry.section_bytes() >> 20,
            self.geometry.page_bytes(),
            self.nr_pinned
        )?;
        writeln!(
            f,
            "\n{:>6}  {:<28} {:<36} {:<10}ours",
            "line", "what", "the log", "outcome"
        )?;
        for row in &self.rows {
            let verdict = match row.is_same {
                None => "-",
                Some(true) => "same",
                Some(false) => "differs",
            };
            writeln!(
                f,
                "{:>6}  {:<28} {:<36} {verdict:<10}{}",
                row.line, row.what, row.log, row.ours
            )?;
        }
        let count = |wanted| self.rows.iter().filter(|row| row.is_same == wanted).count();
        writeln!(
            f,
            "{} outcomes are the same, {} differ, {} the log does not tell; {} pages are managed at the end",
            count(Some(true)),
            count(Some(false)),
            count(None),
            self.managed
        )
    }
}
