//! `hugepoolctl limit list` and `limit set`.

use hugepool_proto::v1::{Limit, ListLimitsRequest, SetLimitsRequest};
use serde_json::json;

use crate::{
    cli::limit::{LimitSet, LimitVerb},
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Cell, Column, Output, Table},
    status::{self, counted},
};

const COLUMNS: &[Column] = &[
    Column::shown(
        "WHOM",
        "whom",
        "each client, one client, a user, or a whole zone",
    ),
    Column::shown("ID", "id", "slot of the client, or the user"),
    Column::shown("ZONE", "zone", "where; - in all together"),
    Column::shown("FLOOR", "floor_pages", "kept until it is owned"),
    Column::shown("CEILING", "ceiling_pages", "the most that may be owned"),
    Column::shown("OWNED", "owned_pages", "owned now, in lanes or held"),
];

/// Runs a verb on limits.
pub async fn run(verb: LimitVerb, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    match verb {
        LimitVerb::List => {
            let limits = admin.list_limits(ListLimitsRequest {}).await?;
            let page_bytes = status::page_bytes(admin).await?;
            out.table(&table(&limits.into_inner().limits, page_bytes))?;
        }
        LimitVerb::Set(set) => set_limit(set, admin, out).await?,
    }
    Ok(Outcome::Done)
}

async fn set_limit(set: LimitSet, admin: &mut Admin, out: &Output) -> Result<(), Failure> {
    let LimitSet {
        client,
        uid,
        whole_zone,
        zone,
        floor,
        ceiling,
    } = set;
    let request = SetLimitsRequest {
        slot: client,
        uid,
        whole_zone,
        zone: zone.unwrap_or_default(),
        floor_pages: floor,
        ceiling_pages: ceiling.0,
    };
    let done = admin.set_limits(request).await?.into_inner();
    let json = json!({
        "nr_clients": done.nr_clients,
        "floor_pages": floor,
        "ceiling_pages": ceiling.0,
    });
    let most = match ceiling.0 {
        Some(pages) => format!("at most {}", counted(pages, "page")),
        None => "no ceiling".to_owned(),
    };
    let kept = match floor {
        0 => "no floor".to_owned(),
        pages => format!("{} kept", counted(pages, "page")),
    };
    let whom = counted(done.nr_clients.into(), "client");
    out.either(|| json, || format!("{kept}, {most}: for {whom} now\n"))
}

fn table(limits: &[Limit], page_bytes: u64) -> Table {
    let pages = |count| Cell::Pages { count, page_bytes };
    let row = |limit: &Limit| {
        let id = limit.slot.or(limit.uid);
        let zone = Some(&limit.zone).filter(|zone| !zone.is_empty());
        vec![
            Cell::text(&limit.whom),
            id.map_or(Cell::Absent, Cell::number),
            zone.map_or(Cell::Absent, Cell::text),
            pages(limit.floor_pages),
            limit.ceiling_pages.map_or(Cell::Absent, pages),
            match limit.whom.as_str() {
                "each" => Cell::Absent,
                _ => pages(limit.owned_pages),
            },
        ]
    };
    Table {
        key: "limits",
        columns: COLUMNS,
        rows: limits.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_line_of_sizes() {
        let limit = Limit {
            whom: "user".into(),
            uid: Some(1000),
            zone: "normal".into(),
            floor_pages: 256,
            owned_pages: 3,
            ..Limit::default()
        };
        let table = table(&[limit], 4096);
        let text = table.text(&table.pick(None).unwrap(), &Output::plain());
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["user", "1000", "normal", "1MiB", "-", "12KiB"]);
        assert!(table.rows.iter().all(|row| row.len() == COLUMNS.len()));
    }
}
