//! Reads one source: which parser gets a line, and which lines belong together.
//!
//! A file is rarely of one kind: a log holds a report, a shell session holds a dump. So
//! every line is offered to the parsers in turn, and what none of them knows is one
//! diagnostic. JSON and XML are read as a block from where they begin. A line that was
//! wrapped by a mail or a terminal is joined with its continuation, if that makes sense of it.

use super::attempt::Attempts;
use super::buddyinfo::Buddyinfo;
use super::clean::clean;
use super::cxl::Cxl;
use super::draft::Draft;
use super::format::Format;
use super::ftrace::Ftrace;
use super::line::{Line, Scanner};
use super::lsmem::Lsmem;
use super::noise::{Noise, noise};
use super::offline::Offline;
use super::oom::Oom;
use super::outcome::Outcome;
use super::pagetypeinfo::Pagetypeinfo;
use super::qemu::Qemu;
use super::qemu_args::QemuArgs;
use super::qemu_monitor::QemuMonitor;
use super::virtio_mem::VirtioMem;
use super::zoneinfo::Zoneinfo;
use super::{boot, daxctl, json, libvirt, shell, text, trace_prefix};

/// Wrapped lines that nothing asked for are looked for so often only: a file of garbage has nothing else.
const MOST_GUESSES: u32 = 1000;

/// A line is joined from so many at most.
const MOST_JOINS: u32 = 12;

/// Reads a source named `source`. With `only`, nothing but that kind of text is understood.
pub fn read(source: &str, bytes: &[u8], only: Option<Format>) -> Draft {
    let cleaned = clean(bytes);
    let mut scanner = Scanner::new(&cleaned.text, cleaned.numbers.as_deref());
    let mut reader = Reader {
        only,
        ..Reader::default()
    };
    reader.draft.source = source.to_string();
    while let Some(line) = scanner.next() {
        reader.step(line, &mut scanner);
    }
    reader.end()
}

/// All parsers and what they have written.
#[derive(Default)]
struct Reader {
    only: Option<Format>,
    draft: Draft,
    attempts: Attempts,
    trace: Ftrace,
    zoneinfo: Zoneinfo,
    buddyinfo: Buddyinfo,
    pagetypeinfo: Pagetypeinfo,
    lsmem: Lsmem,
    oom: Oom,
    offline: Offline,
    virtio_mem: VirtioMem,
    qemu: Qemu,
    monitor: QemuMonitor,
    args: QemuArgs,
    cxl: Cxl,
    /// A shell was told something, so bare numbers may be its answer.
    prompted: bool,
    guesses: u32,
    /// The line before was of a log and recognised: its number and its width.
    before: Option<(u64, usize)>,
}

impl Reader {
    fn allows(&self, format: Format) -> bool {
        self.only.is_none_or(|only| only == format)
    }

    fn step<'a>(&mut self, line: Line<'a>, scanner: &mut Scanner<'a>) {
        if self.trace.met {
            // The fast lane: nothing else is looked at while the trace goes on.
            let mut tried = line;
            tried.wraps = true;
            if matches!(
                self.trace.line(&tried, &mut self.draft),
                Outcome::Yes | Outcome::Empty
            ) {
                return;
            }
        }
        if self.block(&line, scanner) {
            self.before = None;
            return;
        }
        let outcome = self.wrapped(&line, scanner);
        if outcome == Outcome::No {
            self.not_understood(&line);
        }
        let known = matches!(outcome, Outcome::Yes | Outcome::Empty);
        self.before = (known && line.logged).then_some((line.number, line.width));
    }

    /// Reads a line, with the lines that continue it.
    fn wrapped(&mut self, line: &Line<'_>, scanner: &mut Scanner<'_>) -> Outcome {
        let Some(mut next) = scanner
            .clone()
            .next()
            .filter(|next| may_continue(line, next))
        else {
            return self.parse(line);
        };
        let mut tried = *line;
        tried.wraps = true;
        let outcome = self.parse(&tried);
        let guess = outcome == Outcome::No && line.logged && self.guesses < MOST_GUESSES;
        if !(outcome == Outcome::More || guess) {
            return outcome;
        }
        self.guesses += u32::from(guess);
        let mut joined = (line.text.to_vec(), line.cut, line.width);
        let mut end = scanner.clone();
        for _ in 0..MOST_JOINS {
            if stands_alone(&next, self.only) {
                break;
            }
            let mut ahead = end.clone();
            ahead.next();
            // A terminal breaks at its edge, a mail at a blank, which it eats.
            let edge = matches!(joined.2, 80 | 100 | 120 | 132);
            let gap: &[u8] = if edge { b"" } else { b" " };
            let glued = [joined.0.as_slice(), gap, next.text.trim_ascii()].concat();
            let after = ahead.clone().next();
            let after = after.filter(|after| may_continue(line, after) && !guess);
            let mut tried = line.with_text(&glued, next.cut);
            tried.wraps = after.is_some();
            match self.parse(&tried) {
                Outcome::More => {}
                Outcome::No => break,
                outcome => {
                    *scanner = ahead;
                    return outcome;
                }
            }
            joined = (glued, next.cut, next.width);
            end = ahead;
            let Some(after) = after else { break };
            next = after;
        }
        // No more lines belong to it: what was joined so far may do, or else the line alone.
        if joined.0.len() > line.text.len() && !guess {
            let outcome = self.parse(&line.with_text(&joined.0, joined.1));
            if matches!(outcome, Outcome::Yes | Outcome::Empty) {
                *scanner = end;
                return outcome;
            }
        }
        self.parse(line)
    }

    /// Offers a line to the parsers.
    fn parse(&mut self, line: &Line<'_>) -> Outcome {
        let body = line.body();
        match noise(body) {
            Some(Noise::Plain) => return Outcome::Empty,
            Some(Noise::Elision) => {
                self.zoneinfo.elide();
                return Outcome::Empty;
            }
            Some(Noise::Prompt(command)) => {
                self.zoneinfo.leave(&mut self.draft, false);
                self.prompted = true;
                if !self.allows(Format::OfflineLog) && self.only.is_some() {
                    return Outcome::Empty;
                }
                return shell::command(command, line, &mut self.attempts, &mut self.draft);
            }
            None => {}
        }
        for family in Family::ORDER {
            if family.formats().iter().any(|format| self.allows(*format)) {
                let outcome = self.offer(family, line);
                if outcome != Outcome::No {
                    self.prompted &= outcome == Outcome::Empty;
                    return outcome;
                }
            }
        }
        if self.prompted && shell::is_output(body) {
            Outcome::Empty
        } else {
            Outcome::No
        }
    }

    fn offer(&mut self, family: Family, line: &Line<'_>) -> Outcome {
        let draft = &mut self.draft;
        match family {
            Family::Trace => self.trace.line(line, draft),
            Family::Zoneinfo => self.zoneinfo.line(line, draft),
            Family::Pagetypeinfo => self.pagetypeinfo.line(line, draft),
            Family::Buddyinfo => self.buddyinfo.line(line, draft),
            Family::VirtioMem => self.virtio_mem.line(line, draft),
            Family::Boot => boot::line(line, draft),
            Family::Oom => self.oom.line(line, draft),
            Family::Offline => self.offline.line(line, &mut self.attempts, draft),
            Family::Lsmem => self.lsmem.line(line, draft),
            Family::Monitor => self
                .monitor
                .line(line, &mut self.qemu, &mut self.attempts, draft),
            Family::Args => self.args.line(line, &mut self.qemu, draft),
            Family::Daxctl => daxctl::line(line, &mut self.attempts, draft),
        }
    }

    /// Reads JSON or XML that begins here; `false` if none does.
    fn block<'a>(&mut self, line: &Line<'a>, scanner: &mut Scanner<'a>) -> bool {
        let mut line = *line;
        // A session with the machine protocol is shown with arrows.
        for arrow in ["-> ", "<- "] {
            if let Some(rest) =
                text::strip(line.body(), arrow).filter(|rest| rest.starts_with(b"{"))
            {
                line.text = rest;
            }
        }
        if json::begins(&line, scanner) {
            let document = json::read(&line, scanner);
            if document.cut {
                self.draft
                    .cut(line.number, "the JSON that begins here stops in the middle");
            } else if let Some(broken) = document.broken {
                self.draft.error(broken, "the JSON is damaged here");
            }
            if !self.document(&document.value) && !document.cut && document.broken.is_none() {
                self.draft.warn(
                    line.number,
                    "the JSON that begins here is of no kind that is known",
                );
            }
            return true;
        }
        if self.allows(Format::LibvirtXml) && libvirt::begins(&line) {
            libvirt::read(&line, scanner, &mut self.draft);
            return true;
        }
        false
    }

    fn document(&mut self, value: &json::Json) -> bool {
        let listed = value
            .items()
            .iter()
            .any(|item| item.get("execute").is_some() || item.get("return").is_some());
        if listed {
            return value
                .items()
                .iter()
                .fold(false, |known, item| self.document(item) | known);
        }
        if self.allows(Format::CxlDcd) && self.cxl.json(value, &mut self.draft) {
            return true;
        }
        if self.allows(Format::QemuMonitor)
            && self
                .monitor
                .json(value, &mut self.qemu, &mut self.attempts, &mut self.draft)
                .is_some()
        {
            return true;
        }
        self.allows(Format::Daxctl) && daxctl::json(value, &mut self.draft)
            || self.allows(Format::Lsmem) && self.lsmem.json(value, &mut self.draft)
            || value.is_empty()
    }

    fn not_understood(&mut self, line: &Line<'_>) {
        let shown: String = text::lossy(line.body()).chars().take(60).collect();
        match self.before {
            Some((number, width)) if !line.logged && width >= 72 => {
                self.draft.note(
                    line.number,
                    format!("taken for the rest of line {number}: {shown}"),
                );
            }
            _ if line.cut => self
                .draft
                .cut(line.number, format!("the input ends in a line: {shown}")),
            _ => self
                .draft
                .warn(line.number, format!("not understood: {shown}")),
        }
    }

    fn end(mut self) -> Draft {
        let draft = &mut self.draft;
        self.zoneinfo.leave(draft, true);
        self.pagetypeinfo.end(draft);
        self.lsmem.end(draft);
        self.cxl.settle(draft);
        self.qemu.settle(draft);
        self.trace.end(draft);
        self.draft
    }
}

/// The parsers of lines, in the order in which they are asked: the more exact their rules, the sooner.
#[derive(Clone, Copy)]
enum Family {
    Trace,
    Zoneinfo,
    Pagetypeinfo,
    Buddyinfo,
    VirtioMem,
    Boot,
    Oom,
    Offline,
    Lsmem,
    Monitor,
    Args,
    Daxctl,
}

impl Family {
    const ORDER: [Family; 12] = [
        Family::Trace,
        Family::Zoneinfo,
        Family::Pagetypeinfo,
        Family::Buddyinfo,
        Family::VirtioMem,
        Family::Boot,
        Family::Oom,
        Family::Offline,
        Family::Lsmem,
        Family::Monitor,
        Family::Args,
        Family::Daxctl,
    ];

    fn formats(self) -> &'static [Format] {
        match self {
            Family::Trace => &[Format::Ftrace],
            Family::Zoneinfo => &[Format::Zoneinfo],
            Family::Pagetypeinfo => &[Format::Pagetypeinfo],
            Family::Buddyinfo => &[Format::Buddyinfo],
            Family::VirtioMem => &[Format::VirtioMem],
            Family::Boot => &[Format::Dmesg],
            Family::Oom => &[Format::Oom],
            Family::Offline => &[Format::OfflineLog],
            Family::Lsmem => &[Format::Lsmem],
            Family::Monitor => &[Format::QemuMonitor],
            Family::Args => &[Format::QemuArgs],
            Family::Daxctl => &[Format::Daxctl],
        }
    }
}

/// Whether `next` can be the rest of `line`: it has text, and no prefix where `line` has one.
fn may_continue(line: &Line<'_>, next: &Line<'_>) -> bool {
    let body = next.body();
    !body.is_empty()
        && !next.logged
        && !matches!(noise(body), Some(Noise::Prompt(_) | Noise::Elision))
        && !body.starts_with(b"(qemu)")
        && !trace_prefix::is_headed(body)
        && !line.cut
}

/// Whether a line says something by itself.
fn stands_alone(line: &Line<'_>, only: Option<Format>) -> bool {
    let mut scratch = Reader {
        only,
        ..Reader::default()
    };
    scratch.parse(line) == Outcome::Yes
}
