//! `hugepoolctl client list`, `limit`, `release` and `evict`.

use hugepool_proto::v1::{
    Client, EvictClientRequest, ListClientsRequest, ReleaseQuarantinedRequest, SetLimitsRequest,
};
use serde_json::json;

use crate::{
    cli::ClientVerb,
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Cell, Column, Output, Table},
    status::{self, counted},
};

const COLUMNS: &[Column] = &[
    Column::shown("SLOT", "slot", "place among the clients; what evict takes"),
    Column::shown("PID", "pid", "process"),
    Column::shown("UID", "uid", "user"),
    Column::shown("NAME", "name", "as it called itself"),
    Column::shown(
        "STATE",
        "state",
        "attached, detached, poisoned or quarantined (dead, its pages wait)",
    ),
    Column::shown("LANES", "nr_lanes", "lanes it has"),
    Column::shown("LENT", "lent_pages", "pages in its custody"),
    Column::shown(
        "IN-LANES",
        "in_lanes_pages",
        "of these, unused in its lanes",
    ),
    Column::shown("HELD", "held_pages", "of these, held"),
    Column::shown("MISUSES", "nr_misuses", "wrong claims refused"),
    Column::shown("SINCE", "attached_ms", "time since it attached"),
    Column::hidden("INCARNATION", "incarnation", "which client of this slot"),
    Column::hidden("GID", "gid", "group"),
    Column::hidden(
        "BARRIER",
        "barrier",
        "how its lanes are fenced: membarrier, or fence",
    ),
    Column::hidden(
        "MOVED",
        "moved_pages",
        "movable pages that were moved under it",
    ),
    Column::hidden(
        "EVICTED",
        "evicted_pages",
        "evictable pages that were taken",
    ),
    Column::hidden("GRANTED", "granted_pages", "per lane: unused grants"),
    Column::hidden("MAGAZINE", "magazine_pages", "per lane: in the magazine"),
    Column::hidden("RETURNS", "returns_pages", "per lane: on the way home"),
    Column::hidden(
        "LANE-STATE",
        "lane_state",
        "per lane: open, closed, poisoned or unused",
    ),
];

/// Runs a verb on clients.
pub async fn run(verb: ClientVerb, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    match verb {
        ClientVerb::List => {
            let clients = admin
                .list_clients(ListClientsRequest {})
                .await?
                .into_inner()
                .clients;
            let page_bytes = status::page_bytes(admin).await?;
            out.table(&table(&clients, page_bytes))?;
        }
        ClientVerb::Limit { pages, client } => {
            let request = SetLimitsRequest {
                slot: client,
                ceiling_pages: pages.0,
                ..SetLimitsRequest::default()
            };
            let done = admin.set_limits(request).await?.into_inner();
            let json = json!({ "nr_clients": done.nr_clients, "ceiling_pages": pages.0 });
            let limit = match pages.0 {
                Some(pages) => format!("at most {}", counted(pages, "page")),
                None => "no limit".to_owned(),
            };
            let whom = counted(done.nr_clients.into(), "client");
            out.either(|| json, || format!("{limit} for {whom}\n"))?;
        }
        ClientVerb::Release { slot, zone } => {
            let request = ReleaseQuarantinedRequest {
                slot,
                zone: zone.unwrap_or_default(),
            };
            let done = admin.release_quarantined(request).await?.into_inner();
            let json = json!({ "released_pages": done.nr_pages });
            let text = format!("{} of the dead came home\n", counted(done.nr_pages, "page"));
            out.either(|| json, || text)?;
        }
        ClientVerb::Evict {
            slot,
            incarnation,
            kill,
        } => {
            let request = EvictClientRequest {
                slot,
                incarnation,
                kill,
            };
            let done = admin.evict_client(request).await?.into_inner();
            let json = json!({
                "slot": slot,
                "home_pages": done.nr_pages_home,
                "held_pages": done.nr_pages_held,
            });
            let text = format!(
                "client {slot} is evicted: {} came home, {} stay its own until it exits\n",
                counted(done.nr_pages_home, "page"),
                counted(done.nr_pages_held, "page"),
            );
            out.either(|| json, || text)?;
        }
    }
    Ok(Outcome::Done)
}

fn table(clients: &[Client], page_bytes: u64) -> Table {
    let pages = |count| Cell::Pages { count, page_bytes };
    let row = |client: &Client| {
        let per_lane = |of: fn(&hugepool_proto::v1::Lane) -> String| {
            Cell::List(client.lanes.iter().map(of).collect())
        };
        vec![
            Cell::number(client.slot),
            Cell::number(client.pid),
            Cell::number(client.uid),
            Cell::text(&client.name),
            Cell::text(&client.state),
            Cell::number(client.nr_lanes),
            pages(client.lent),
            pages(client.in_lanes),
            pages(client.held),
            Cell::number(client.nr_misuses),
            Cell::Millis(client.attached_ms),
            Cell::number(client.incarnation),
            Cell::number(client.gid),
            Cell::text(&client.barrier),
            pages(client.moved),
            pages(client.evicted),
            per_lane(|lane| lane.granted.to_string()),
            per_lane(|lane| lane.magazine.to_string()),
            per_lane(|lane| lane.returns.to_string()),
            per_lane(|lane| lane.state.clone()),
        ]
    };
    Table {
        key: "clients",
        columns: COLUMNS,
        rows: clients.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_a_line_with_what_it_holds() {
        let client = Client {
            slot: 3,
            pid: 4711,
            uid: 1000,
            name: "nfsd".into(),
            state: "attached".into(),
            nr_lanes: 2,
            lent: 100,
            in_lanes: 60,
            held: 40,
            attached_ms: 1500,
            ..Client::default()
        };
        let table = table(&[client], 4096);
        let text = table.text(&table.pick(None).unwrap(), &Output::plain());
        assert_eq!(
            text,
            "SLOT   PID   UID  NAME  STATE     LANES    LENT  IN-LANES    HELD  MISUSES  SINCE\n\
             \x20  3  4711  1000  nfsd  attached      2  400KiB    240KiB  160KiB        0   1.5s\n"
        );
        assert!(table.rows.iter().all(|row| row.len() == COLUMNS.len()));
    }
}
