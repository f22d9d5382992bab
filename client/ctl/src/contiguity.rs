//! `hugepoolctl contiguity show` and `contiguity invalidate`.

use hugepool_proto::v1::{GetContiguityRequest, InvalidateContiguityRequest, ZoneContiguity};
use serde_json::json;

use crate::{
    cli::ContiguityVerb,
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Cell, Column, Output, Table},
    status::counted,
};

const COLUMNS: &[Column] = &[
    Column::shown("ZONE", "zone", "name of the zone"),
    Column::shown(
        "MODE",
        "mode",
        "which caches are on: none, zone, pageblock or both",
    ),
    Column::shown(
        "CONTIGUOUS",
        "contiguous",
        "the zone's answer: every pageblock of the span is here",
    ),
    Column::shown("HITS", "nr_hits", "questions answered by a cache"),
    Column::shown("MISSES", "nr_misses", "questions that walked a section"),
    Column::shown("WALKS", "nr_walks", "walks of the whole zone"),
    Column::shown("PAGEBLOCKS", "nr_pageblocks", "pageblocks in the span"),
    Column::shown(
        "CACHED",
        "nr_pb_cached",
        "of these, with a remembered answer",
    ),
    Column::shown("YES", "nr_pb_contiguous", "of these, remembered as whole"),
];

const PAGEBLOCK_COLUMNS: &[Column] = &[
    Column::shown("ZONE", "zone", "name of the zone"),
    Column::shown("PAGEBLOCK", "pageblock", "number in the span, from 0"),
    Column::shown("CACHED", "pb_cached", "whether an answer is remembered"),
    Column::shown("CONTIGUOUS", "pb_contiguous", "the remembered answer"),
];

/// Runs a verb on the contiguity caches.
pub async fn run(
    verb: ContiguityVerb,
    admin: &mut Admin,
    out: &Output,
) -> Result<Outcome, Failure> {
    match verb {
        ContiguityVerb::Show { zone, pageblocks } => {
            let request = GetContiguityRequest {
                zone: zone.unwrap_or_default(),
            };
            let zones = admin.get_contiguity(request).await?.into_inner().zones;
            out.table(&if pageblocks {
                pageblock_table(&zones)
            } else {
                table(&zones)
            })?;
        }
        ContiguityVerb::Invalidate { zone } => {
            let request = InvalidateContiguityRequest {
                zone: zone.unwrap_or_default(),
            };
            let done = admin.invalidate_contiguity(request).await?.into_inner();
            let json = json!({
                "nr_zones": done.nr_zones,
                "nr_pageblocks_cleared": done.nr_pageblocks_cleared,
            });
            let text = format!(
                "cleared {} and {}\n",
                counted(done.nr_zones.into(), "zone answer"),
                counted(done.nr_pageblocks_cleared, "pageblock answer"),
            );
            out.either(|| json, || text)?;
        }
    }
    Ok(Outcome::Done)
}

fn table(zones: &[ZoneContiguity]) -> Table {
    let row = |zone: &ZoneContiguity| {
        vec![
            Cell::text(&zone.zone),
            Cell::text(&zone.mode),
            Cell::Flag(zone.contiguous),
            Cell::number(zone.nr_hits),
            Cell::number(zone.nr_misses),
            Cell::number(zone.nr_walks),
            Cell::number(zone.nr_pageblocks),
            Cell::number(zone.nr_pb_cached),
            Cell::number(zone.nr_pb_contiguous),
        ]
    };
    Table {
        key: "zones",
        columns: COLUMNS,
        rows: zones.iter().map(row).collect(),
    }
}

fn pageblock_table(zones: &[ZoneContiguity]) -> Table {
    let rows = zones.iter().flat_map(|zone| {
        (0..zone.nr_pageblocks).map(|pageblock| {
            vec![
                Cell::text(&zone.zone),
                Cell::number(pageblock),
                Cell::Flag(bit(&zone.pb_cached, pageblock)),
                Cell::Flag(bit(&zone.pb_contiguous, pageblock)),
            ]
        })
    });
    Table {
        key: "pageblocks",
        columns: PAGEBLOCK_COLUMNS,
        rows: rows.collect(),
    }
}

/// Bit `index`, lowest bit of the first byte first; bits beyond the end are not set.
fn bit(bytes: &[u8], index: u64) -> bool {
    let byte = usize::try_from(index / 8)
        .ok()
        .and_then(|place| bytes.get(place));
    byte.is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_lowest() {
        let bytes = [0b0000_0010, 0b1000_0000];
        let set: Vec<u64> = (0..24).filter(|&index| bit(&bytes, index)).collect();
        assert_eq!(set, [1, 15]);
    }

    #[test]
    fn pageblocks_are_lines_with_both_bits() {
        let zone = ZoneContiguity {
            zone: "normal".into(),
            nr_pageblocks: 2,
            pb_cached: vec![0b11],
            pb_contiguous: vec![0b01],
            ..ZoneContiguity::default()
        };
        let table = pageblock_table(&[zone]);
        assert_eq!(
            table.text(&table.pick(None).unwrap(), &Output::plain()),
            "ZONE    PAGEBLOCK  CACHED  CONTIGUOUS\n\
             normal          0  yes     yes\n\
             normal          1  yes     no\n"
        );
    }
}
