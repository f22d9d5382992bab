//! `/proc/zoneinfo`, from 2.6 to now.
//!
//! A zone is a heading and what is indented under it: marks and sizes, `protection`, the
//! counters, one paragraph for each CPU, and `start_pfn` near the end, which the kernel
//! leaves out (with all that follows `protection`) where the zone is empty. The order and
//! the indentation changed over the years, the keys did not; so lines are bound by key.
//! Counters that the model has no place for are recognised and passed over.

use super::draft::{Amount, Aspect, Draft};
use super::format::Format;
use super::line::Line;
use super::outcome::{Outcome, zone_heading};
use super::text::{self, Counter, strip};

/// Where in the file the parser is.
#[derive(Clone, Debug, Default)]
pub struct Zoneinfo {
    zone: Option<Open>,
    /// Whether every zone before had its `protection`; `None` before the first is complete.
    all_protected: Option<bool>,
}

/// The zone whose lines are being read.
#[derive(Clone, Debug)]
struct Open {
    node: u32,
    name: String,
    last_line: u64,
    pagesets: bool,
    started: bool,
    protected: bool,
    sized: bool,
    elided: bool,
}

impl Zoneinfo {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let body = line.body();
        if let Some((node, name, rest)) = zone_heading(body) {
            if !rest.is_empty() {
                return Outcome::No;
            }
            self.leave(draft, false);
            if line.cut {
                draft.cut(line.number, "the input ends in the heading of a zone");
                return Outcome::Empty;
            }
            let name = text::lossy(name);
            draft.zones.show(node, &name, Aspect::Heading, line.number);
            self.zone = Some(Open {
                node,
                name,
                last_line: line.number,
                pagesets: false,
                started: false,
                protected: false,
                sized: false,
                elided: false,
            });
            draft.met(Format::Zoneinfo);
            return Outcome::Yes;
        }
        let Some(mut open) = self.zone.take() else {
            return Outcome::No;
        };
        let outcome = open.content(body, line, draft);
        if outcome != Outcome::No {
            open.last_line = line.number;
        }
        self.zone = Some(open);
        outcome
    }

    /// An elision was met: what is missing from the zone was left out by a person.
    pub fn elide(&mut self) {
        if let Some(open) = &mut self.zone {
            open.elided = true;
        }
    }

    /// The zone being read ends here; `ended` if the input does too.
    pub fn leave(&mut self, draft: &mut Draft, ended: bool) {
        let Some(open) = self.zone.take() else { return };
        let who = format!("zone {} of node {}", open.name, open.node);
        if open.pagesets && !open.started && !open.elided {
            draft.cut(
                open.last_line,
                format!("{who} is cut: its pagesets end without a start_pfn"),
            );
        } else if ended
            && open.sized
            && !open.protected
            && !open.elided
            && self.all_protected == Some(true)
        {
            draft.cut(
                open.last_line,
                format!("{who} is cut: the zones before it have a protection"),
            );
        }
        if !open.elided {
            self.all_protected = Some(self.all_protected.unwrap_or(true) && open.protected);
        }
    }
}

impl Open {
    fn content(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        if let Some(rest) = strip(body, "pages free") {
            return self.counter("free", rest.trim_ascii(), line, draft);
        }
        if let Some(rest) = strip(body, "protection:").or_else(|| strip(body, "protections:")) {
            return self.protection(rest.trim_ascii(), line, draft);
        }
        match body {
            b"per-node stats" | b"per-node stats:" => return Outcome::Empty,
            b"pagesets" => {
                self.pagesets = true;
                return Outcome::Empty;
            }
            _ => {}
        }
        if strip(body, "vm stats threshold:").is_some() {
            return Outcome::Empty;
        }
        if let Some(rest) = strip(body, "cpu:") {
            // Old kernels had a hot and a cold list for each CPU: `cpu: 0 pcp: 1`.
            self.pagesets = true;
            return if text::words(rest).all(|word| word == b"pcp:" || text::dec(word).is_some()) {
                Outcome::Empty
            } else {
                Outcome::No
            };
        }
        let (key, rest) = text::word(body);
        let Ok(key) = std::str::from_utf8(key) else {
            return Outcome::No;
        };
        let bare = key.strip_suffix(':').unwrap_or(key);
        let sound = bare.starts_with(|first: char| first.is_ascii_lowercase())
            && bare
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !sound {
            return Outcome::No;
        }
        // `scanned  0 (aa: 0 ia: 0 af: 0 if: 0)` of the split lists.
        let value = match bare {
            "scanned" | "node_scanned" => text::word(rest).0,
            _ => rest.trim_ascii(),
        };
        self.counter(bare, value, line, draft)
    }

    fn counter(&mut self, key: &str, value: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let Some(counter) = text::counter(value) else {
            if value.is_empty() && line.cut {
                draft.cut(
                    line.number,
                    format!("the input ends before the value of {key}"),
                );
                return Outcome::Empty;
            }
            return Outcome::No;
        };
        if line.cut {
            self.started |= key == "start_pfn";
            draft.cut(
                line.number,
                format!("the input may end in the value of {key}"),
            );
            return Outcome::Empty;
        }
        let field = format!("{key} of zone {} of node {}", self.name, self.node);
        let value = draft.value(line.number, &field, counter);
        self.keep(key, value, counter, line, draft)
    }

    /// Puts a value in its place. In the pagesets `high` and `low` are those of a list, not of the zone.
    fn keep(
        &mut self,
        key: &str,
        value: i64,
        counter: Counter,
        line: &Line<'_>,
        draft: &mut Draft,
    ) -> Outcome {
        let zone = draft.zones.zone(self.node, &self.name, line.number);
        let pages = Some(Amount::Pages(value));
        let mut odd = None;
        match key {
            "free" => zone.free = pages,
            "min" if !self.pagesets => zone.min = pages,
            "low" if !self.pagesets => zone.low = pages,
            "high" if !self.pagesets => zone.high = pages,
            "boost" => zone.boost = pages,
            "spanned" => zone.spanned = pages,
            "present" => {
                zone.present = pages;
                self.sized = true;
                odd = above(zone.spanned, value, "present", "spanned");
            }
            "managed" => {
                zone.managed = pages;
                odd = above(zone.present, value, "managed", "present");
            }
            "nr_free_pages" => zone.free = zone.free.or(pages),
            "nr_free_cma" => {
                zone.free_cma = pages;
                odd = above(zone.free, value, "free_cma", "free");
            }
            "reserved_highatomic" => zone.reserved_highatomic = pages,
            "count" if self.pagesets => {
                zone.pcp_count = Some(zone.pcp_count.unwrap_or(0).saturating_add(value))
            }
            "start_pfn" => {
                self.started = true;
                zone.start_pfn = u64::try_from(counter.value).ok();
            }
            _ => {
                return if is_counter(key) {
                    Outcome::Empty
                } else {
                    Outcome::No
                };
            }
        }
        if let Some(odd) = odd {
            draft.warn(
                line.number,
                format!("zone {} of node {}: {odd}", self.name, self.node),
            );
        }
        Outcome::Yes
    }

    fn protection(&mut self, list: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let Some(inside) = list
            .strip_prefix(b"(")
            .and_then(|list| list.strip_suffix(b")"))
        else {
            if let Some(outcome) = line.unfinished() {
                return outcome;
            }
            draft.cut(line.number, "the line ends in the protection");
            return Outcome::Empty;
        };
        let mut values = Vec::new();
        for word in inside.split(|byte| *byte == b',') {
            let Some(counter) = text::counter(word.trim_ascii()) else {
                return Outcome::No;
            };
            values.push(draft.value(line.number, "protection", counter));
        }
        self.protected = true;
        draft
            .zones
            .zone(self.node, &self.name, line.number)
            .protection = Some(values);
        Outcome::Yes
    }
}

/// Says so if `value` is above a known bound, which it cannot be for long.
fn above(bound: Option<Amount>, value: i64, what: &str, bound_name: &str) -> Option<String> {
    let bound = bound?.number();
    (value > bound && bound >= 0).then(|| format!("{what} {value} is above {bound_name} {bound}"))
}

/// Whether a key looks like one of the kernel's counters or of a CPU's list.
fn is_counter(key: &str) -> bool {
    key.contains('_')
        || matches!(
            key,
            "cma"
                | "promo"
                | "scanned"
                | "active"
                | "inactive"
                | "high"
                | "low"
                | "batch"
                | "allocstall"
                | "kswapd"
        )
}

#[cfg(test)]
mod tests {
    use super::super::read::read;

    #[test]
    fn pagesets_with_hot_and_cold_lists_are_summed() {
        let text = "Node 0, zone Normal\n  pages free 5\n  pagesets\n    cpu: 0 pcp: 0\n count: 3\n low: 62\n high: 186\n batch: 31\n    cpu: 0 pcp: 1\n count: 4\n numa_hit: 9\n  all_unreclaimable: 0\n  prev_priority: 12\n  start_pfn: 4096\n";
        let draft = read("zoneinfo", text.as_bytes(), None);
        let zone = &draft.zones.now[0].zones[0];
        assert_eq!(
            (zone.pcp_count, zone.high, zone.start_pfn),
            (Some(7), None, Some(4096))
        );
        assert_eq!(draft.diagnostics, []);
    }
}
