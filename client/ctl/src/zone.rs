//! `hugepoolctl zone list`.

use hugepool_proto::v1::{ListZonesRequest, Zone};

use crate::{
    cli::ZoneVerb,
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Cell, Column, Output, Table},
    status,
};

const COLUMNS: &[Column] = &[
    Column::shown("NAME", "name", "name of the zone"),
    Column::shown("KIND", "kind", "normal, or movable"),
    Column::shown("NODE", "node", "NUMA node its memory is on"),
    Column::shown("PRESENT", "present_pages", "in its sections"),
    Column::shown("MANAGED", "managed_pages", "given to the buddy"),
    Column::shown("FREE", "free_pages", "on the buddy's lists"),
    Column::shown("PCP", "pcp_pages", "in the daemon's own lists"),
    Column::shown("LENT", "lent_pages", "in custody of clients"),
    Column::shown(
        "ISOLATED",
        "isolated_pages",
        "free, in isolated pageblocks or quarantined",
    ),
    Column::shown(
        "BACKING",
        "backing",
        "links of the backing chain in use, and for how many sections",
    ),
    Column::hidden("RESERVED", "reserved_pages", "present, never given out"),
    Column::hidden(
        "SPANNED",
        "spanned_pages",
        "from its first to its last section",
    ),
    Column::hidden("MIN", "min_pages", "watermark: the last reserve"),
    Column::hidden("LOW", "low_pages", "watermark: where pressure begins"),
    Column::hidden("HIGH", "high_pages", "watermark: where pressure ends"),
    Column::hidden(
        "PRESSURE",
        "pressure",
        "none, low (until it is back at HIGH) or min: how short of pages it is",
    ),
    Column::hidden(
        "FLOOR",
        "floor_pages",
        "managed pages that offline leaves of it",
    ),
    Column::hidden("CEILING", "ceiling_pages", "the most pages lent out of it"),
    Column::hidden(
        "QUARANTINED",
        "quarantined_pages",
        "of the isolated: pages of the dead, which wait",
    ),
    Column::hidden("START", "start_pfn", "pfn of its first page"),
    Column::hidden("RESERVE", "reserve_bytes", "address space it may grow into"),
    Column::hidden("INDEX", "index", "number of the zone"),
    Column::hidden(
        "NOT-TAKEN",
        "not_taken",
        "why earlier links of the backing chain did not serve",
    ),
];

/// Runs a verb on zones.
pub async fn run(verb: ZoneVerb, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    let ZoneVerb::List = verb;
    let zones = admin
        .list_zones(ListZonesRequest {})
        .await?
        .into_inner()
        .zones;
    let page_bytes = status::page_bytes(admin).await?;
    out.table(&table(&zones, page_bytes))?;
    Ok(Outcome::Done)
}

/// A NUMA node; -1 is any.
pub fn node(node: i32) -> Cell {
    if node < 0 {
        Cell::Absent
    } else {
        Cell::number(node)
    }
}

fn table(zones: &[Zone], page_bytes: u64) -> Table {
    let pages = |count| Cell::Pages { count, page_bytes };
    let row = |zone: &Zone| {
        let counts = zone.pages.unwrap_or_default();
        let marks = zone.watermarks.unwrap_or_default();
        let backing = zone
            .backing
            .iter()
            .map(|used| format!("{}:{}", used.backing, used.nr_sections));
        let not_taken = zone
            .backing
            .iter()
            .flat_map(|used| used.not_taken.iter().cloned());
        vec![
            Cell::text(&zone.name),
            Cell::text(&zone.kind),
            node(zone.node),
            pages(counts.present),
            pages(counts.managed),
            pages(counts.free),
            pages(counts.pcp),
            pages(counts.lent),
            pages(counts.isolated),
            Cell::List(backing.collect()),
            pages(counts.reserved),
            pages(counts.spanned),
            pages(marks.min),
            pages(marks.low),
            pages(marks.high),
            Cell::text(&zone.pressure),
            pages(zone.floor_pages),
            zone.ceiling_pages.map_or(Cell::Absent, pages),
            pages(zone.quarantined_pages),
            Cell::number(zone.start_pfn),
            Cell::Bytes(zone.reserve_bytes),
            Cell::number(zone.index),
            Cell::List(not_taken.collect()),
        ]
    };
    Table {
        key: "zones",
        columns: COLUMNS,
        rows: zones.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use hugepool_proto::v1::{BackingUse, PageCounts};

    use super::*;

    #[test]
    fn a_zone_is_a_line_of_sizes() {
        let zone = Zone {
            name: "movable".into(),
            kind: "movable".into(),
            node: -1,
            pages: Some(PageCounts {
                present: 32768,
                managed: 32768,
                free: 32705,
                pcp: 63,
                ..PageCounts::default()
            }),
            backing: vec![BackingUse {
                backing: "hugetlb".into(),
                nr_sections: 1,
                not_taken: vec![],
            }],
            ..Zone::default()
        };
        let table = table(&[zone], 4096);
        let text = table.text(&table.pick(None).unwrap(), &Output::plain());
        assert_eq!(
            text,
            "NAME     KIND     NODE  PRESENT  MANAGED      FREE     PCP  LENT  ISOLATED  BACKING\n\
             movable  movable  -      128MiB   128MiB  127.7MiB  252KiB     0         0  hugetlb:1\n"
        );
        assert!(table.rows.iter().all(|row| row.len() == COLUMNS.len()));
    }
}
