//! Who stands in the way: one holder as a line, or as JSON.

use hugepool_proto::v1::{Holder, Migratetype};
use serde_json::{Value, json};

use crate::{size, status::counted};

/// A migratetype in words.
pub fn migratetype(holder: &Holder) -> &'static str {
    match holder.migratetype() {
        Migratetype::Unspecified => "any",
        Migratetype::Unmovable => "unmovable",
        Migratetype::Movable => "movable",
        Migratetype::Reclaimable => "reclaimable",
    }
}

/// One holder as a line without its end.
pub fn text(holder: &Holder) -> String {
    let name = if holder.name.is_empty() {
        "unnamed"
    } else {
        &holder.name
    };
    let orders = holder
        .blocks_by_order
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0);
    let blocks: Vec<_> = orders
        .map(|(order, count)| format!("{count} of order {order}"))
        .collect();
    let in_flight = if holder.in_flight {
        ", in a lane with an operation in flight"
    } else {
        ""
    };
    let staying = [
        (holder.pinned, "pinned"),
        (holder.hot, "hot"),
        (holder.homeless, "with no other place"),
    ];
    let staying = staying
        .into_iter()
        .filter(|(pages, _)| *pages > 0)
        .map(|(pages, why)| format!(", {} {why}", counted(pages, "page")))
        .collect::<String>();
    let blocks = if blocks.is_empty() {
        String::new()
    } else {
        format!(" ({})", blocks.join(", "))
    };
    format!(
        "client {} (pid {}, {name}) holds {}{blocks}, {}, for {}, the first at pfn {}{staying}{in_flight}",
        holder.slot,
        holder.pid,
        counted(holder.nr_pages, "page"),
        migratetype(holder),
        size::human_millis(holder.age_ms),
        holder.first_pfn,
    )
}

/// One holder as JSON.
pub fn json(holder: &Holder) -> Value {
    json!({
        "slot": holder.slot,
        "incarnation": holder.incarnation,
        "pid": holder.pid,
        "name": holder.name,
        "held_pages": holder.nr_pages,
        "blocks_by_order": holder.blocks_by_order,
        "migratetype": migratetype(holder),
        "first_pfn": holder.first_pfn,
        "age_ms": holder.age_ms,
        "in_flight": holder.in_flight,
        "pinned_pages": holder.pinned,
        "hot_pages": holder.hot,
        "homeless_pages": holder.homeless,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_with_what_it_holds_and_since_when() {
        let holder = Holder {
            slot: 3,
            pid: 4711,
            name: "nfsd".into(),
            nr_pages: 17,
            blocks_by_order: vec![1, 0, 0, 2],
            migratetype: Migratetype::Unmovable.into(),
            first_pfn: 98304,
            age_ms: 3200,
            ..Holder::default()
        };
        assert_eq!(
            text(&holder),
            "client 3 (pid 4711, nfsd) holds 17 pages (1 of order 0, 2 of order 3), unmovable, \
             for 3.2s, the first at pfn 98304"
        );
        let movable = Holder {
            pinned: 1,
            hot: 2,
            blocks_by_order: vec![],
            migratetype: Migratetype::Movable.into(),
            ..holder
        };
        assert_eq!(
            text(&movable),
            "client 3 (pid 4711, nfsd) holds 17 pages, movable, for 3.2s, the first at pfn 98304, \
             1 page pinned, 2 pages hot"
        );
    }
}
