//! An attempt and the answer to it: one event, of the kind that the answer tells.
//!
//! A shell asks for a memory block to go offline; the kernel answers in its log, the shell
//! with `write error`, or nobody. The attempt is an event as soon as it is read, as if it
//! had succeeded, and what answers it amends that event.

use super::draft::Draft;
use super::event::{Event, EventKind};
use super::model::SectionState;

/// The last thing that somebody tried, until something else is tried.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    last: Option<Attempt>,
}

/// One attempt.
#[derive(Clone, Debug)]
struct Attempt {
    index: usize,
    kind: EventKind,
    block: Option<u64>,
    start: Option<u64>,
    line: u64,
    answered: bool,
}

/// An answer that comes later than so many lines after the attempt is about something else.
const NEAR: u64 = 60;

impl Attempts {
    /// Adds the event of an attempt, to be amended by the answer.
    pub fn try_it(&mut self, event: Event<'_>, draft: &mut Draft) {
        self.add(event, false, draft);
    }

    fn add(&mut self, event: Event<'_>, answered: bool, draft: &mut Draft) {
        let (kind, block, line) = (event.kind, event.more.block, event.line);
        let start = event.more.start_byte;
        let index = draft.events.push(event);
        draft.section_is(block, state_after(kind));
        self.last = Some(Attempt {
            index,
            kind,
            block,
            start,
            line,
            answered,
        });
    }

    /// The answer of the kernel or of a tool. It becomes an event of its own if nothing was tried that it answers.
    pub fn answer(&mut self, event: Event<'_>, draft: &mut Draft) {
        let good = success_of(event.kind);
        let open = self.last.take().filter(|last| {
            let same = success_of(last.kind) == good;
            let near = event.line.saturating_sub(last.line) <= NEAR;
            let (block, start) = (event.more.block, event.more.start_byte);
            let blocks = last.block.is_none() || block.is_none() || last.block == block;
            // The kernel names the range, then whoever asked it names the block.
            let range_first = last.start.is_some() && last.block.is_none();
            let complements = range_first && block.is_some() && start.is_none();
            let fresh = !last.answered || failed(event.kind) && failed(last.kind) && complements;
            same && near && blocks && fresh
        });
        let Some(open) = open else {
            return self.add(event, true, draft);
        };
        let block = event.more.block.or(open.block);
        let mut event = event;
        if open.answered {
            // The first reason is the kernel's own; what repeats it is less exact.
            let before = draft.events.get(open.index);
            if before.is_some_and(|before| before.more.reason.is_some()) {
                event.more.reason = None;
            }
        }
        let (kind, line, start) = (event.kind, event.line, event.more.start_byte.or(open.start));
        draft.events.amend(open.index, event);
        draft.section_is(block, state_after(kind));
        self.last = Some(Attempt {
            index: open.index,
            kind,
            block,
            start,
            line,
            answered: true,
        });
    }

    /// An error message that names no attempt: it answers the last one, if that is open. Says whether it did.
    pub fn refuse(
        &mut self,
        reason: &str,
        line: u64,
        time: Option<f64>,
        draft: &mut Draft,
    ) -> bool {
        let Some(last) = self
            .last
            .as_ref()
            .filter(|last| line.saturating_sub(last.line) <= NEAR)
        else {
            return false;
        };
        if last.answered {
            // Shell and self-test say again what the kernel or the shell has said already.
            return failed(last.kind);
        }
        let mut event = Event::new(failure_of(last.kind), line);
        event.time = time;
        event.more.block = last.block;
        event.more.reason = Some(reason);
        self.answer(event, draft);
        true
    }

    /// The block of the last attempt.
    pub fn block(&self) -> Option<u64> {
        self.last.as_ref().and_then(|last| last.block)
    }
}

fn failed(kind: EventKind) -> bool {
    failure_of(kind) == kind
}

/// The kind of the same attempt, had it succeeded.
fn success_of(kind: EventKind) -> EventKind {
    match kind {
        EventKind::OfflineFailed => EventKind::Offline,
        EventKind::OnlineFailed => EventKind::Online,
        EventKind::RemoveFailed => EventKind::Remove,
        EventKind::PlugFailed => EventKind::Plug,
        other => other,
    }
}

/// The kind of the same attempt, had it failed.
fn failure_of(kind: EventKind) -> EventKind {
    match kind {
        EventKind::Offline => EventKind::OfflineFailed,
        EventKind::Online => EventKind::OnlineFailed,
        EventKind::Remove => EventKind::RemoveFailed,
        EventKind::Plug => EventKind::PlugFailed,
        EventKind::Unplug => EventKind::RemoveFailed,
        other => other,
    }
}

/// A block that could not go offline is still online.
fn state_after(kind: EventKind) -> SectionState {
    match kind {
        EventKind::Offline | EventKind::OnlineFailed | EventKind::RemoveFailed => {
            SectionState::Offline
        }
        EventKind::Remove => SectionState::Absent,
        _ => SectionState::Online,
    }
}
