//! What could be had: allocations of an order, as things are and after compaction.

use hugepool_mm::{CompactMode, CompactRequest, Mark, Migratetype, Order};

use super::{Answer, row};
use crate::host::Host;
use crate::host::alloc::{Ask, Short, Source};

/// Whether `count` blocks of an order could be had.
///
/// # Errors
/// There is no such order here.
pub fn order(host: &Host, order: u8, count: u64) -> Result<Answer, String> {
    let max = host.geometry.max_order();
    let order = Order::new(order)
        .filter(|order| *order <= max)
        .ok_or_else(|| format!("orders are 0 to {max} on this machine"))?;
    let mut answer = Answer::default();
    answer.number("order", u64::from(order.get()));
    answer.number("count", count);
    answer.number(
        "block_bytes",
        u64::from(order.nr_pages()) * host.geometry.page_bytes(),
    );
    let mut reasons = Vec::new();
    for mt in [Migratetype::Movable, Migratetype::Unmovable] {
        for compacts in [false, true] {
            let mut host = host.clone();
            let tried = attempt(&mut host, order, mt, count, compacts);
            let name = mt.name().to_lowercase();
            answer.rows.push(row([
                ("migratetype", name.clone().into()),
                ("compaction", compacts.into()),
                ("succeed", tried.done.into()),
                ("fail", (count - tried.done).into()),
                ("reason", tried.why.as_ref().map_or("", Short::word).into()),
                ("pages_moved", tried.moved.into()),
            ]));
            if let Some(why) = tried.why.filter(|_| tried.done < count) {
                let how = if compacts { "with" } else { "without" };
                reasons.push(format!("{name} {how} compaction: {why}"));
            }
        }
    }
    let whole = host
        .zones
        .iter()
        .map(|zone| zone.zone.free_pages_in(order))
        .sum::<u64>();
    let free: u64 = host.zones.iter().map(|zone| zone.zone.free_pages()).sum();
    answer.because = format!(
        "{} of {free} free pages lie in blocks of order {order} and larger, watermarks apart; {}",
        whole,
        if reasons.is_empty() {
            "all succeed".to_owned()
        } else {
            reasons.join("; ")
        }
    );
    Ok(answer)
}

struct Tried {
    done: u64,
    moved: u64,
    why: Option<Short>,
}

fn attempt(host: &mut Host, order: Order, mt: Migratetype, count: u64, compacts: bool) -> Tried {
    let owner = host.client("asker");
    let mut nodes: Vec<u32> = host.zones.iter().map(|zone| zone.node).collect();
    nodes.dedup();
    let ask = Ask {
        owner,
        order,
        mt,
        is_pinned: true,
        source: Source::Node(nodes.first().copied().unwrap_or(0)),
        mark: Mark::Min,
    };
    let before = host.nr_moved;
    let mut tried = Tried {
        done: 0,
        moved: 0,
        why: None,
    };
    // A zone is compacted as long as it helps.
    let mut zones: Vec<usize> = (0..host.zones.len()).collect();
    while tried.done < count {
        match host.take(ask) {
            Ok(_) => tried.done += 1,
            Err(why) => {
                tried.why = Some(why);
                let Some(&at) = zones.last().filter(|_| compacts) else {
                    break;
                };
                let request = CompactRequest::direct(order, mt, CompactMode::Sync);
                let is_better = host
                    .compact(at, request, None)
                    .is_ok_and(|run| run.counts.nr_blocks_made > 0);
                if !is_better {
                    zones.pop();
                }
            }
        }
    }
    tried.moved = host.nr_moved - before;
    tried
}
