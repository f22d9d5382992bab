//! Where new memory should go: the same memory, the same history, once for the kernel and once
//! as movable.

use std::path::Path;

use hugepool_mm::{Mark, Migratetype, OnlineOrder, Order, ZoneKind};

use super::history::{History, Past};
use super::{Answer, row};
use crate::host::Host;
use crate::host::alloc::{Ask, Source};
use crate::host::hotplug::Records;

/// What came of one policy.
struct Outcome {
    name: &'static str,
    gone: u64,
    refused: u64,
    reason: &'static str,
    moved: u64,
    milliseconds: u64,
    short: u64,
    asked: Option<u64>,
}

/// Brings memory online under both policies, lets the history happen, and takes it away again.
///
/// # Errors
/// The history cannot be read, or makes no sense on this machine.
pub fn online(
    host: &Host,
    size: u64,
    history: Option<&Path>,
    steps: u64,
    seed: u64,
) -> Result<Answer, String> {
    let history = History::read(history, steps)?;
    let nr = size.div_ceil(host.geometry.section_bytes());
    let outcomes = [("kernel", ZoneKind::Normal), ("movable", ZoneKind::Movable)]
        .into_iter()
        .map(|(name, kind)| one(host.clone(), name, kind, nr, &history, seed))
        .collect::<Result<Vec<_>, _>>()?;
    let mut answer = Answer::default();
    answer.number("blocks", nr);
    answer.number("block_bytes", host.geometry.section_bytes());
    for outcome in &outcomes {
        answer.rows.push(row([
            ("policy", outcome.name.into()),
            ("blocks_gone", outcome.gone.into()),
            ("blocks_refused", outcome.refused.into()),
            ("reason", outcome.reason.into()),
            ("pages_moved", outcome.moved.into()),
            ("milliseconds", outcome.milliseconds.into()),
            ("requests_short", outcome.short.into()),
        ]));
    }
    let (kernel, movable) = (&outcomes[0], &outcomes[1]);
    if let Some(asked) = kernel.asked {
        answer.number("requests", asked);
    }
    let better = if movable.gone > kernel.gone && movable.short <= kernel.short + steps / 1000 {
        "movable"
    } else if movable.short > kernel.short && movable.gone <= kernel.gone {
        "kernel"
    } else if movable.gone == kernel.gone && movable.short == kernel.short {
        "either"
    } else {
        "movable to take it away again, kernel to serve every request"
    };
    answer.number("better", better);
    answer.because = format!(
        "with the memory there is taken down to the high marks, and after the same history, {} of {nr} blocks could go that had come for the kernel, {} that had come as movable; \
         {} and {} requests fell short meanwhile, since movable memory serves no request of the kernel's",
        kernel.gone, movable.gone, kernel.short, movable.short
    );
    Ok(answer)
}

/// Memory is added where there is too little: what is free goes to an application, down to the
/// high marks.
fn fill(host: &mut Host, node: u32) {
    let owner = host.client("whoever was there");
    for order in host.geometry.orders().rev().collect::<Vec<Order>>() {
        let ask = Ask {
            owner,
            order,
            mt: Migratetype::Movable,
            is_pinned: false,
            source: Source::Node(node),
            mark: Mark::High,
        };
        while host.take(ask).is_ok() {}
    }
}

fn one(
    mut host: Host,
    name: &'static str,
    kind: ZoneKind,
    nr: u64,
    history: &History,
    seed: u64,
) -> Result<Outcome, String> {
    let node = host.zones.first().map_or(0, |zone| zone.node);
    let first = host.sections.keys().next_back().map_or(0, |last| last + 1);
    let zone = host.zone_for(node, kind)?;
    fill(&mut host, node);
    for id in first..first + nr {
        host.add(id, node, Records::None)
            .map_err(|refused| refused.what)?;
        host.online(id, zone, OnlineOrder::Pageblock)
            .map_err(|refused| refused.what)?;
    }
    let (mut host, Past { short, asked }) = history.happen(host, seed)?;
    let began = host.clock_ns;
    let mut outcome = Outcome {
        name,
        gone: 0,
        refused: 0,
        reason: "",
        moved: 0,
        milliseconds: 0,
        short,
        asked,
    };
    for id in (first..first + nr).rev() {
        match host.offline(id) {
            Ok(moved) => {
                outcome.gone += 1;
                outcome.moved += moved;
            }
            Err(refused) => {
                outcome.refused += 1;
                outcome.reason = refused.word;
                outcome.moved += refused.nr_moved;
            }
        }
    }
    outcome.milliseconds = (host.clock_ns - began) / 1_000_000;
    Ok(outcome)
}
