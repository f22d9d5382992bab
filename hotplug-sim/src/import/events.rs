//! All events of a source, in its order, small enough for a trace of 100 MB.
//!
//! Such a trace holds most of a million of them, so they are kept in rows of 48 bytes; what
//! only some kinds have lies in a side table, and each text is kept once. [`Events::iter`]
//! gives them back as [`Event`]s, which is also how they are printed.
//!
//! Shape: `Row { pfn, time, line, pid, task, gfp, migratetype, extra, cpu, kind, order }`,
//! an all-ones value standing for unknown.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde::{Serialize, Serializer};

use super::event::{Event, EventKind, More};

/// A text that is kept once; `u32::MAX` is none.
type Symbol = u32;
const UNKNOWN: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Row {
    pfn: u64,
    time: f64,
    line: u32,
    pid: u32,
    task: Symbol,
    gfp: Symbol,
    migratetype: Symbol,
    extra: u32,
    cpu: u16,
    kind: EventKind,
    order: u8,
}

/// A [`More`] without borrowed texts: what a side-table row owns.
#[derive(Clone, Debug)]
enum Extra {
    /// The frequent kinds of compaction have these three and nothing else.
    Scan {
        end_pfn: u64,
        nr_scanned: u64,
        nr_taken: u64,
    },
    /// Texts are symbols here, in the order reason, zone, device, policy, result, fallback type, tag.
    Full(Box<(More<'static>, [Symbol; 7])>),
}

/// All events of a source.
#[derive(Clone, Debug, Default)]
pub struct Events {
    rows: Vec<Row>,
    extras: Vec<Extra>,
    texts: Texts,
}

fn known64(value: Option<u64>) -> u64 {
    value.unwrap_or(u64::MAX)
}

fn get64(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}

fn get32(value: u32) -> Option<u32> {
    (value != UNKNOWN).then_some(value)
}

impl Events {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds one at the end and says at which index it stands.
    pub fn push(&mut self, event: Event<'_>) -> usize {
        let extra = self.keep(&event.more);
        let row = Row {
            pfn: known64(event.pfn),
            time: event.time.unwrap_or(f64::NAN),
            line: u32::try_from(event.line).unwrap_or(UNKNOWN),
            pid: event.pid.unwrap_or(UNKNOWN),
            task: self.texts.symbol(event.task),
            gfp: self.texts.symbol(event.gfp),
            migratetype: self.texts.symbol(event.migratetype),
            extra,
            cpu: event
                .cpu
                .and_then(|cpu| u16::try_from(cpu).ok())
                .unwrap_or(u16::MAX),
            kind: event.kind,
            order: event
                .order
                .and_then(|order| u8::try_from(order).ok())
                .unwrap_or(u8::MAX),
        };
        self.rows.push(row);
        self.rows.len() - 1
    }

    /// Writes what `change` knows over the event at `index`: its answer came later. The line stays.
    pub fn amend(&mut self, index: usize, change: Event<'_>) {
        let Some(old) = self.rows.get(index).copied() else {
            return;
        };
        let fresh = self.push(change);
        let new = self.rows.swap_remove(fresh);
        let (bare, symbols) = self.expand(new.extra);
        let (old_bare, old_symbols) = self.expand(old.extra);
        let mut merged = symbols;
        for (symbol, before) in merged.iter_mut().zip(old_symbols) {
            *symbol = if *symbol == UNKNOWN { before } else { *symbol };
        }
        let over = |value: u32, before: u32| if value == UNKNOWN { before } else { value };
        self.extras
            .push(Extra::Full(Box::new((bare.over(old_bare), merged))));
        let row = Row {
            pfn: get64(new.pfn).unwrap_or(old.pfn),
            time: if new.time.is_nan() {
                old.time
            } else {
                new.time
            },
            line: old.line,
            pid: over(new.pid, old.pid),
            task: over(new.task, old.task),
            gfp: over(new.gfp, old.gfp),
            migratetype: over(new.migratetype, old.migratetype),
            extra: u32::try_from(self.extras.len() - 1).unwrap_or(UNKNOWN),
            cpu: if new.cpu == u16::MAX {
                old.cpu
            } else {
                new.cpu
            },
            kind: new.kind,
            order: if new.order == u8::MAX {
                old.order
            } else {
                new.order
            },
        };
        self.rows[index] = row;
    }

    /// A side-table row without borrowed texts.
    fn expand(&self, extra: u32) -> (More<'static>, [Symbol; 7]) {
        match usize::try_from(extra)
            .ok()
            .and_then(|index| self.extras.get(index))
        {
            None => (More::default(), [UNKNOWN; 7]),
            Some(Extra::Scan {
                end_pfn,
                nr_scanned,
                nr_taken,
            }) => {
                let more = More {
                    end_pfn: get64(*end_pfn),
                    nr_scanned: Some(*nr_scanned),
                    nr_taken: Some(*nr_taken),
                    ..More::default()
                };
                (more, [UNKNOWN; 7])
            }
            Some(Extra::Full(full)) => **full,
        }
    }

    fn keep(&mut self, more: &More<'_>) -> u32 {
        if *more == More::default() {
            return UNKNOWN;
        }
        let scan = More {
            end_pfn: more.end_pfn,
            nr_scanned: more.nr_scanned,
            nr_taken: more.nr_taken,
            ..More::default()
        };
        let extra = match (*more == scan, more.end_pfn, more.nr_scanned, more.nr_taken) {
            (true, end_pfn, Some(nr_scanned), Some(nr_taken)) => Extra::Scan {
                end_pfn: known64(end_pfn),
                nr_scanned,
                nr_taken,
            },
            _ => {
                let symbols = [
                    more.reason,
                    more.zone,
                    more.device,
                    more.policy,
                    more.result,
                    more.fallback_migratetype,
                    more.tag,
                ]
                .map(|text| self.texts.symbol(text));
                Extra::Full(Box::new((more.over(More::default()), symbols)))
            }
        };
        self.extras.push(extra);
        u32::try_from(self.extras.len() - 1).unwrap_or(UNKNOWN)
    }

    /// The event at `index`.
    pub fn get(&self, index: usize) -> Option<Event<'_>> {
        self.rows.get(index).map(|row| self.event(row))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Event<'_>> {
        self.rows.iter().map(|row| self.event(row))
    }

    /// The kind, first page, order and line of each, in order: what an audit of a long trace reads.
    pub fn pages(&self) -> impl Iterator<Item = (EventKind, Option<u64>, Option<u32>, u64)> {
        self.rows.iter().map(|row| {
            let order = (row.order != u8::MAX).then(|| u32::from(row.order));
            (row.kind, get64(row.pfn), order, u64::from(row.line))
        })
    }

    fn event(&self, row: &Row) -> Event<'_> {
        Event {
            line: u64::from(row.line),
            time: (!row.time.is_nan()).then_some(row.time),
            kind: row.kind,
            pfn: get64(row.pfn),
            order: (row.order != u8::MAX).then(|| u32::from(row.order)),
            migratetype: self.texts.get(row.migratetype),
            cpu: (row.cpu != u16::MAX).then(|| u32::from(row.cpu)),
            pid: get32(row.pid),
            task: self.texts.get(row.task),
            gfp: self.texts.get(row.gfp),
            more: self.more(row.extra),
        }
    }

    fn more(&self, extra: u32) -> More<'_> {
        if extra == UNKNOWN {
            return More::default();
        }
        let (bare, symbols) = self.expand(extra);
        let [
            reason,
            zone,
            device,
            policy,
            result,
            fallback_migratetype,
            tag,
        ] = symbols.map(|symbol| self.texts.get(symbol));
        More {
            reason,
            zone,
            device,
            policy,
            result,
            fallback_migratetype,
            tag,
            ..bare
        }
    }

    /// Adds all events of another source behind these.
    pub fn append(&mut self, other: &Events) {
        if self.is_empty() {
            *self = other.clone();
            return;
        }
        for event in other.iter() {
            self.push(event);
        }
    }
}

impl Serialize for Events {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// Each text once.
#[derive(Clone, Debug, Default)]
struct Texts {
    texts: Vec<Box<str>>,
    index: HashMap<Box<str>, Symbol, BuildHasherDefault<Mix>>,
}

impl Texts {
    fn symbol(&mut self, text: Option<&str>) -> Symbol {
        let Some(text) = text else { return UNKNOWN };
        if let Some(symbol) = self.index.get(text) {
            return *symbol;
        }
        let symbol = u32::try_from(self.texts.len()).unwrap_or(UNKNOWN);
        self.texts.push(text.into());
        self.index.insert(text.into(), symbol);
        symbol
    }

    fn get(&self, symbol: Symbol) -> Option<&str> {
        self.texts
            .get(usize::try_from(symbol).ok()?)
            .map(AsRef::as_ref)
    }
}

/// A short mixing hash: the texts are few, and the default one costs more than the parsing.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.write_u64(
                chunk
                    .iter()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte)),
            );
        }
        let tail = chunks
            .remainder()
            .iter()
            .fold(1, |word, byte| word << 8 | u64::from(*byte));
        self.write_u64(tail);
    }

    fn write_u64(&mut self, word: u64) {
        // The odd constant is 2^64 divided by the golden ratio.
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_in_comes_out() {
        let mut events = Events::default();
        let mut first = Event::new(EventKind::Alloc, 7);
        first.pfn = Some(970_744);
        first.order = Some(0);
        first.gfp = Some("GFP_KERNEL");
        let mut second = Event::new(EventKind::OfflineFailed, 9);
        second.more.block = Some(32);
        second.more.reason = Some("busy");
        let mut third = Event::new(EventKind::IsolateFree, 10);
        third.more = More {
            end_pfn: Some(5),
            nr_scanned: Some(0),
            nr_taken: Some(1),
            ..More::default()
        };
        for event in [first, second, third] {
            events.push(event);
        }
        assert_eq!(events.iter().collect::<Vec<_>>(), [first, second, third]);
    }

    #[test]
    fn an_answer_takes_the_place_of_the_attempt() {
        let mut events = Events::default();
        let mut offline = Event::new(EventKind::Offline, 1);
        offline.more.block = Some(272);
        let attempt = events.push(offline);
        events.push(Event::new(EventKind::Online, 2));
        let mut answer = Event::new(EventKind::OfflineFailed, 5);
        answer.more.reason = Some("busy");
        events.amend(attempt, answer);
        let all: Vec<_> = events
            .iter()
            .map(|event| (event.kind, event.line, event.more.block, event.more.reason))
            .collect();
        assert_eq!(
            all,
            [
                (EventKind::OfflineFailed, 1, Some(272), Some("busy")),
                (EventKind::Online, 2, None, None)
            ]
        );
    }

    #[test]
    fn only_what_is_known_is_printed() {
        let mut events = Events::default();
        events.push(Event::new(EventKind::AllocFailed, 3));
        assert_eq!(
            serde_json::to_string(&events).unwrap(),
            r#"[{"line":3,"kind":"alloc-failed"}]"#
        );
    }
}
