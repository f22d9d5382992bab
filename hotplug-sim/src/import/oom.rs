//! Out-of-memory reports and `Mem-Info`, from 2.6 to now.
//!
//! A report shows each zone twice: a `free:` line in kB and, further down, its free lists
//! (which [`oom_list`](super::oom_list) reads). Around them stand per-CPU lists, sums in
//! pages, a table of tasks and the kill. A console that cuts its lines leaves the last
//! word of a line without its unit; such a line is kept up to there and said to be cut.

use super::draft::{Amount, Aspect, Draft};
use super::event::{Event, EventKind};
use super::format::Format;
use super::line::Line;
use super::oom_list::{self, zone_and_rest};
use super::oom_report::{AllocFailure, Report, totals};
use super::outcome::Outcome;
use super::text::{self, Counter, has, strip, words};

/// Which zone the next `lowmem_reserve[]:` and the next CPU's list belong to.
#[derive(Clone, Debug, Default)]
pub struct Oom {
    zone: Option<(u32, String)>,
    pcp_zone: Option<(u32, String)>,
    /// The process that the report killed last, and when.
    killed: Option<u32>,
    /// What stands around zones and kills.
    report: Report,
}

impl Oom {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let body = line.body();
        if let Some((node, name, rest)) = zone_and_rest(body) {
            if rest.starts_with(b"free:") {
                return self.zone_line(node, name, rest, line, draft);
            }
            if let Some(list) = strip(rest, ":") {
                let outcome = oom_list::list(node, name, list, line, draft);
                if outcome != Outcome::No {
                    return outcome;
                }
            }
            if strip(rest, "per-cpu:").is_some() {
                if draft
                    .zones
                    .find(node, name)
                    .is_some_and(|zone| zone.seen & (Aspect::Report as u8) != 0)
                {
                    draft.zones.next_snapshot();
                }
                self.pcp_zone = Some((node, name.to_string()));
                return Outcome::Empty;
            }
        }
        if let Some(rest) =
            strip(body, "lowmem_reserve[]:").or_else(|| strip(body, "protections[]:"))
        {
            return self.protection(rest, line, draft);
        }
        if let Some(outcome) = self.cpu_list(body, line, draft) {
            return outcome;
        }
        if let Some(outcome) = totals(body, line, draft) {
            return outcome;
        }
        if let Some(outcome) = self.kill(body, line, draft) {
            return outcome;
        }
        if let Some(failure) = AllocFailure::read(body) {
            if failure.is_open(body) && line.wraps {
                return Outcome::More;
            }
            draft.events.push(failure.event(line));
            draft.met(Format::Oom);
            return Outcome::Yes;
        }
        if has(body, " invoked oom-killer: ") {
            // A new report: the same process may be killed again under a recycled number.
            self.killed = None;
        }
        self.report.line(body, line, draft)
    }

    /// `Node 0 DMA free:11556kB min:36kB low:48kB …`
    fn zone_line(
        &mut self,
        node: u32,
        name: &str,
        rest: &[u8],
        line: &Line<'_>,
        draft: &mut Draft,
    ) -> Outcome {
        let all: Vec<&[u8]> = words(rest).collect();
        let ended = all.last().is_some_and(|last| is_sound(last));
        // The last word has been one of these since there are such lines.
        let whole = all
            .last()
            .is_some_and(|last| matches!(*last, b"yes" | b"no") || last.starts_with(b"free_cma:"));
        if line.wraps && !(ended && whole) {
            return Outcome::More;
        }
        if line.joined && !all.iter().all(|word| is_sound(word)) {
            return Outcome::No;
        }
        draft.met(Format::Oom);
        draft.zones.show(node, name, Aspect::Report, line.number);
        self.zone = Some((node, name.to_string()));
        for (at, word) in all.iter().enumerate() {
            let last = at + 1 == all.len();
            // A value with its unit is whole, wherever the line ends.
            let open = last && line.cut && word.last().is_some_and(u8::is_ascii_digit);
            let Some((key, value)) = pair(word).filter(|_| !open) else {
                if last {
                    draft.cut(
                        line.number,
                        format!(
                            "the line of zone {name} of node {node} ends in {}",
                            text::lossy(word)
                        ),
                    );
                } else {
                    draft.warn(
                        line.number,
                        format!(
                            "zone {name} of node {node}: not understood: {}",
                            text::lossy(word)
                        ),
                    );
                }
                continue;
            };
            let Some(counter) = value else { continue };
            let kept = matches!(
                key,
                b"free"
                    | b"min"
                    | b"low"
                    | b"high"
                    | b"boost"
                    | b"present"
                    | b"managed"
                    | b"free_cma"
                    | b"reserved_highatomic"
                    | b"free_pcp"
            );
            if kept || counter.wrapped {
                let value = draft.value(
                    line.number,
                    &format!("{} of zone {name} of node {node}", text::lossy(key)),
                    counter,
                );
                self.keep(key, value, node, name, line, draft);
            }
        }
        Outcome::Yes
    }

    fn keep(
        &self,
        key: &[u8],
        kib: i64,
        node: u32,
        name: &str,
        line: &Line<'_>,
        draft: &mut Draft,
    ) {
        let zone = draft.zones.zone(node, name, line.number);
        let amount = Some(Amount::Kib(kib));
        let mut odd = None;
        match key {
            b"free" => zone.free = amount,
            b"min" => zone.min = amount,
            b"low" => zone.low = amount,
            b"high" => zone.high = amount,
            b"boost" => zone.boost = amount,
            b"present" => zone.present = amount,
            b"managed" => {
                zone.managed = amount;
                odd = zone
                    .present
                    .filter(|present| kib > present.number())
                    .map(|_| "managed is above present");
            }
            b"reserved_highatomic" => zone.reserved_highatomic = amount,
            b"free_pcp" => zone.pcp_kib = Some(kib),
            b"free_cma" => {
                zone.free_cma = amount;
                odd = zone
                    .free
                    .filter(|free| kib > free.number())
                    .map(|_| "free_cma is above free");
            }
            _ => {}
        }
        if let Some(odd) = odd {
            draft.warn(line.number, format!("zone {name} of node {node}: {odd}"));
        }
    }

    fn protection(&mut self, rest: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        // Without its zone it is still a line of its own.
        let Some((node, name)) = self.zone.clone() else {
            return Outcome::Yes;
        };
        let all: Vec<&[u8]> = words(rest).collect();
        let mut values = Vec::with_capacity(all.len());
        for (at, word) in all.iter().enumerate() {
            match text::counter(word).filter(|_| !(line.cut && at + 1 == all.len())) {
                Some(counter) => values.push(draft.value(
                    line.number,
                    &format!("protection of zone {name} of node {node}"),
                    counter,
                )),
                None => {
                    draft.cut(
                        line.number,
                        format!(
                            "the protection of zone {name} of node {node} ends in {}",
                            text::lossy(word)
                        ),
                    );
                    return Outcome::Empty;
                }
            }
        }
        if values.is_empty() {
            draft.cut(
                line.number,
                format!("the protection of zone {name} of node {node} is missing"),
            );
            return Outcome::Empty;
        }
        draft.zones.zone(node, &name, line.number).protection = Some(values);
        Outcome::Yes
    }

    /// `CPU    0: hi:  186, btch:  31 usd:  52`, with a hot and a cold list before 2.6.25; `cpu 0 hot: low 2, …` before that.
    fn cpu_list(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
        let (mut rest, key) = match strip(body, "cpu ") {
            Some(rest) if has(rest, " hot:") || has(rest, " cold:") => (rest, "used:"),
            Some(_) => return None,
            None => (strip(body, "CPU")?, "usd:"),
        };
        let (_, tail) = text::take_dec(rest.trim_ascii_start())?;
        if key == "usd:" && !(tail.starts_with(b":") && has(tail, key)) {
            return None;
        }
        let Some((node, name)) = self.pcp_zone.clone() else {
            return Some(Outcome::Empty);
        };
        let mut outcome = Outcome::Empty;
        while let Some(tail) = text::after(rest, key) {
            let (counter, tail) = text::take_counter(tail.trim_ascii_start())?;
            let zone = draft.zones.zone(node, &name, line.number);
            zone.pcp_count = Some(zone.pcp_count.unwrap_or(0).saturating_add(counter.value));
            rest = tail;
            outcome = Outcome::Yes;
        }
        Some(outcome)
    }

    /// A kill is announced, counted and done in up to three lines: that is one event.
    fn kill(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
        let (pid, task) = if let Some(rest) = strip(body, "oom-kill:") {
            let pid =
                text::number_after(rest, ",pid=").filter(|_| has(rest, ",uid=") || !line.cut)?;
            let task = text::after(rest, ",task=")?;
            let end = text::find(task, ",pid=").unwrap_or(task.len());
            (pid, &task[..end])
        } else {
            let rest = ["Killed process ", "Kill process ", "killed process "]
                .iter()
                .find_map(|verb| text::after(body, verb))?;
            let (pid, rest) = text::take_dec(rest)?;
            let name = text::after(rest, "(").unwrap_or(b"");
            let end = text::find(name, ")").unwrap_or(0);
            (pid, &name[..end])
        };
        let pid = u32::try_from(pid).ok()?;
        if self.killed.replace(pid) != Some(pid) {
            let task = text::lossy(task);
            let mut event = Event::new(EventKind::OomKill, line.number);
            event.time = line.time;
            event.pid = Some(pid);
            event.task = (!task.is_empty()).then_some(task.as_str());
            draft.events.push(event);
        }
        draft.met(Format::Oom);
        Some(Outcome::Yes)
    }
}

/// `key:12kB`, `key:12` or `all_unreclaimable?` and its answer: whether the word stops where it should.
pub(super) fn is_sound(word: &[u8]) -> bool {
    pair(word).is_some()
}

/// Key and value of a word. A value without its whole unit is none.
pub(super) fn pair(word: &[u8]) -> Option<(&[u8], Option<Counter>)> {
    if matches!(
        word,
        b"all_unreclaimable?" | b"yes" | b"no" | b"..." | b"[...]"
    ) {
        return Some((word, None));
    }
    let colon = word.iter().position(|byte| *byte == b':')?;
    let (counter, unit) = text::take_counter(&word[colon + 1..])?;
    matches!(unit, b"" | b"kB" | b"KB" | b"kb").then_some((&word[..colon], Some(counter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_its_unit_is_not_sound() {
        for word in [
            "active_anon:0kB",
            "reserved_highatomic:0KB",
            "pages_scanned:3934",
            "yes",
            "isolated(anon):0kB",
        ] {
            assert!(is_sound(word.as_bytes()), "{word}");
        }
        for word in ["active_anon:0B", "inactivB", "reB", "iss", "active_anon:"] {
            assert!(!is_sound(word.as_bytes()), "{word}");
        }
    }
}
