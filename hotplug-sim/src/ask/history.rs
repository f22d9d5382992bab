//! What happens to a machine between two questions: the everyday, a scenario, or what a trace of
//! its kernel says that was asked for and given back.

use std::collections::BTreeMap;
use std::path::Path;

use hugepool_mm::{Mark, Migratetype, Order};

use crate::host::Host;
use crate::host::alloc::{Ask, Loc, Source};
use crate::import::event::EventKind;
use crate::import::events::Events;
use crate::import::model::Import;
use crate::replay::kinds::Numbering;
use crate::scenario::expr::Value;
use crate::scenario::file::{Scenario, Step};
use crate::scenario::runner::{Options, Runner};

/// A history.
pub enum History {
    /// Steps.
    Scenario(Box<Scenario>),
    /// Events of a kernel.
    Events(Box<Import>),
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Requests that fell short.
    pub short: u64,
    /// Requests in all, where they are counted.
    pub asked: Option<u64>,
}

impl History {
    /// Reads one: a scenario (`.toml`), or a trace that `import` reads; without a path the everyday
    /// of so many operations.
    ///
    /// # Errors
    /// It cannot be read, or tells of no allocation.
    pub fn read(path: Option<&Path>, steps: u64) -> Result<History, String> {
        let Some(path) = path else {
            return Ok(History::Scenario(Box::new(everyday(steps))));
        };
        let named = |error: String| format!("{}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
        if path.extension().is_some_and(|ending| ending == "toml") {
            let text = String::from_utf8(bytes).map_err(|error| named(error.to_string()))?;
            let scenario = Scenario::from_toml(&text).map_err(|error| named(error.to_string()))?;
            return Ok(History::Scenario(Box::new(scenario)));
        }
        let outcome = crate::import::import(&[(path.display().to_string(), bytes)], None);
        let import = outcome.import.ok_or_else(|| outcome.nothing.join("; "))?;
        let asks = |kind| matches!(kind, EventKind::Alloc | EventKind::AllocFailed);
        if import.events.iter().any(|event| asks(event.kind)) {
            Ok(History::Events(Box::new(import)))
        } else {
            Err(named("no page is allocated in it".to_owned()))
        }
    }

    /// Lets it happen to a machine.
    ///
    /// # Errors
    /// It makes no sense there.
    pub fn happen(&self, host: Host, seed: u64) -> Result<(Host, Past), String> {
        match self {
            History::Events(import) => Ok(happen(host, &import.events)),
            History::Scenario(scenario) => {
                let options = Options {
                    seed,
                    until: None,
                    trace: false,
                    verify_every: u64::MAX,
                    skip: Vec::new(),
                };
                let mut runner = Runner::new(host, options);
                runner.show_progress(crate::scenario::command::nr_units(scenario));
                runner.run(scenario).map_err(|stop| stop.to_string())?;
                let short = match runner.results.get("short") {
                    Some(Value::Number(number)) => u64::try_from(*number).unwrap_or(0),
                    _ => 0,
                };
                Ok((runner.host, Past { short, asked: None }))
            }
        }
    }
}

fn everyday(ops: u64) -> Scenario {
    let mix = Step {
        verb: "mix".to_owned(),
        ops: Some(ops),
        fill: Some(98),
        deaths: Some(0),
        ..Step::default()
    };
    Scenario {
        steps: vec![mix],
        ..Scenario::default()
    }
}

/// A block that the trace has in use: one past its last page there, where it is here, and how
/// many of its pages the trace has not freed yet.
struct InUse {
    end: u64,
    loc: Loc,
    left: u64,
}

/// Each request of the trace is asked of the machine. A block is given back when the trace has freed
/// the last page of it; pages that were allocated before the trace are not the history's.
fn happen(mut host: Host, events: &Events) -> (Host, Past) {
    let owner = host.client("the history");
    let node = host.zones.first().map_or(0, |zone| zone.node);
    let numbering = Numbering::of(events);
    let mut in_use: BTreeMap<u64, InUse> = BTreeMap::new();
    let (mut past, mut asked) = (Past::default(), 0);
    for event in events.iter() {
        let order = event.order.unwrap_or(0);
        let order = u8::try_from(order).ok().and_then(Order::new);
        let Some(order) = order.filter(|order| *order <= host.geometry.max_order()) else {
            continue;
        };
        let pages = u64::from(order.nr_pages());
        let ask = Ask {
            owner,
            order,
            mt: numbering.kind(&event).unwrap_or(Migratetype::Unmovable),
            is_pinned: false,
            source: Source::Node(node),
            mark: Mark::Min,
        };
        match (event.kind, event.pfn) {
            (EventKind::Alloc, Some(pfn)) => {
                asked += 1;
                // What was freed unseen.
                free(&mut host, &mut in_use, pfn, pfn.saturating_add(pages));
                match host.take(ask) {
                    Ok(loc) => {
                        let (end, left) = (pfn.saturating_add(pages), pages);
                        in_use.insert(pfn, InUse { end, loc, left });
                    }
                    Err(_) => past.short += 1,
                }
            }
            (EventKind::AllocFailed, _) => {
                asked += 1;
                match host.take(ask) {
                    // The kernel's client went without.
                    Ok(loc) => drop(host.give(loc)),
                    Err(_) => past.short += 1,
                }
            }
            (EventKind::Free, Some(pfn)) => {
                free(&mut host, &mut in_use, pfn, pfn.saturating_add(pages));
            }
            _ => {}
        }
    }
    past.asked = Some(asked);
    (host, past)
}

fn free(host: &mut Host, in_use: &mut BTreeMap<u64, InUse>, start: u64, end: u64) {
    let before = in_use.range(..start).next_back();
    let first = before.map_or(start, |(&first, _)| first);
    let mut gone = Vec::new();
    for (&first, block) in in_use.range_mut(first..end) {
        let freed = block.end.min(end).saturating_sub(first.max(start));
        block.left = block.left.saturating_sub(freed);
        if block.left == 0 {
            gone.push(first);
        }
    }
    for first in gone {
        if let Some(block) = in_use.remove(&first) {
            // It is the history's since it was taken.
            let given = host.give(block.loc);
            debug_assert!(given.is_ok(), "{given:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::file::{SmallMachine, SmallZone};

    fn host() -> Host {
        let machine = SmallMachine {
            zones: vec![SmallZone {
                name: "Normal".to_owned(),
                size: "128MiB".to_owned(),
                ..SmallZone::default()
            }],
            ..SmallMachine::default()
        };
        Host::build(&machine.to_machine().unwrap(), 1).unwrap()
    }

    fn trace(lines: &[&str]) -> History {
        let text: String = lines
            .iter()
            .enumerate()
            .map(|(at, line)| format!("  app-1  [000] .... {at}.000001: {line}\n"))
            .collect();
        let outcome = crate::import::import(&[("trace".to_owned(), text.into_bytes())], None);
        History::Events(Box::new(outcome.import.unwrap()))
    }

    #[test]
    fn a_trace_is_asked_of_the_machine_and_given_back() {
        let alloc = |pfn: u64, order: u8| {
            format!(
                "mm_page_alloc: page=00000000d2be5665 pfn={pfn} order={order} migratetype=0 \
                 gfp_flags=GFP_KERNEL"
            )
        };
        let free = |pfn: u64, order: u8| {
            format!("mm_page_free: page=00000000d2be5665 pfn={pfn} order={order}")
        };
        let lines = [
            alloc(64, 3),
            alloc(1000, 0),
            free(64, 2),
            free(7, 0),
            alloc(1000, 0),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (after, past) = trace(&lines).happen(host(), 1).unwrap();
        // Half of the first block is still in use, and it stays whole; page 1000 was freed unseen.
        assert_eq!(after.zones[0].zone.counts().lent, 8 + 1);
        assert_eq!(
            past,
            Past {
                short: 0,
                asked: Some(3)
            }
        );
        let rest = free(68, 2);
        let lines: Vec<&str> = lines.iter().copied().chain([rest.as_str()]).collect();
        let (after, _) = trace(&lines).happen(host(), 1).unwrap();
        assert_eq!(after.zones[0].zone.counts().lent, 1);
        assert_eq!(after.verify(), Ok(()));
    }
}
