//! What a trace shows of compaction: ranges scanned, pages taken, and scans that get nowhere.

use core::fmt;

use crate::import::event::{Event, EventKind};
use crate::import::events::Events;

/// So many scans of one range that take nothing, in a row, are a loop.
const LOOP: u64 = 3;

/// One of the two scanners, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanner {
    /// Ranges looked at.
    pub nr_ranges: u64,
    /// Pages (or blocks) looked at.
    pub nr_scanned: u64,
    /// Pages taken.
    pub nr_taken: u64,
}

/// Scans of the same range, one behind the other, that took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The first and the last line.
    pub lines: (u64, u64),
    /// First page of the range, and one past its last.
    pub range: (u64, u64),
    /// How often.
    pub times: u64,
}

/// Compaction in a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scans {
    /// Looking for pages to move.
    pub migrate: Scanner,
    /// Looking for free pages.
    pub free: Scanner,
    /// Loops.
    pub stuck: Vec<Stuck>,
}

impl Scans {
    /// Goes through the scans of a trace; `None` if it has none. It ends with the trace: a loop
    /// in it is named, not followed.
    pub fn of(events: &Events) -> Option<Scans> {
        let mut scans = Scans::default();
        let mut last: Option<(EventKind, Stuck)> = None;
        for event in events.iter() {
            let scanner = match event.kind {
                EventKind::IsolateMigrate => &mut scans.migrate,
                EventKind::IsolateFree => &mut scans.free,
                _ => continue,
            };
            scanner.nr_ranges += 1;
            scanner.nr_scanned += event.more.nr_scanned.unwrap_or(0);
            scanner.nr_taken += event.more.nr_taken.unwrap_or(0);
            last = scans.follow(&event, last);
        }
        scans.close(last);
        (scans.migrate.nr_ranges + scans.free.nr_ranges > 0).then_some(scans)
    }

    fn follow(
        &mut self,
        event: &Event<'_>,
        last: Option<(EventKind, Stuck)>,
    ) -> Option<(EventKind, Stuck)> {
        let range = event.pfn.zip(event.more.end_pfn);
        let now = range
            .filter(|_| event.more.nr_taken == Some(0))
            .map(|range| Stuck {
                lines: (event.line, event.line),
                range,
                times: 1,
            });
        match (last, now) {
            (Some((kind, before)), Some(now))
                if kind == event.kind && before.range == now.range =>
            {
                let lines = (before.lines.0, event.line);
                let times = before.times + 1;
                Some((
                    kind,
                    Stuck {
                        lines,
                        times,
                        ..now
                    },
                ))
            }
            (before, now) => {
                self.close(before);
                now.map(|now| (event.kind, now))
            }
        }
    }

    fn close(&mut self, last: Option<(EventKind, Stuck)>) {
        self.stuck.extend(
            last.map(|(_, stuck)| stuck)
                .filter(|stuck| stuck.times >= LOOP),
        );
    }
}

impl fmt::Display for Scans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<26}{:>10}{:>12}{:>12}",
            "compaction scans", "ranges", "scanned", "taken"
        )?;
        for (name, scanner) in [
            ("for pages to move", self.migrate),
            ("for free pages", self.free),
        ] {
            let Scanner {
                nr_ranges,
                nr_scanned,
                nr_taken,
            } = scanner;
            writeln!(f, "{name:<26}{nr_ranges:>10}{nr_scanned:>12}{nr_taken:>12}")?;
        }
        for stuck in &self.stuck {
            let ((first, last), (start, end)) = (stuck.lines, stuck.range);
            writeln!(
                f,
                "no progress: lines {first} to {last} scan {start:#x} to {end:#x} {} times and take nothing",
                stuck.times
            )?;
        }
        Ok(())
    }
}
