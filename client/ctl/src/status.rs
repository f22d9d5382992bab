//! `hugepoolctl status`: is it up, what is its shape, do the pages add up.

use hugepool_proto::v1::{GetStatusRequest, GetStatusResponse, Node};
use serde_json::{Value, json};

use crate::{
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Output, equation},
    size,
};

/// What a state begins with that knows nothing of pages; the reason follows.
const SEALED: &str = "sealed: ";

/// Shows the daemon's state. Pages that do not add up are a broken invariant; a daemon that is sealed
/// has refused to go on, and knows of none.
pub async fn show(admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    if let Some(why) = status.state.strip_prefix(SEALED) {
        out.either(|| sealed_json(&status), || sealed_text(&status, why))?;
        return Ok(Outcome::Refused);
    }
    let adds_up = equation::adds_up(&status.pages.unwrap_or_default());
    out.either(|| json(&status, adds_up), || text(&status, adds_up, out))?;
    Ok(if adds_up {
        Outcome::Done
    } else {
        Outcome::Broken
    })
}

/// Bytes of a page; for every verb that prints pages as sizes.
pub async fn page_bytes(admin: &mut Admin) -> Result<u64, Failure> {
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    Ok(status.geometry.unwrap_or_default().page_size_bytes)
}

fn json(status: &GetStatusResponse, adds_up: bool) -> Value {
    let geometry = status.geometry.unwrap_or_default();
    json!({
        "version": status.version,
        "layout_version": status.layout_version,
        "state": status.state,
        "pid": status.pid,
        "uptime_ms": status.uptime_ms,
        "page_size_bytes": geometry.page_size_bytes,
        "pageblock_order": geometry.pageblock_order,
        "max_page_order": geometry.max_page_order,
        "section_size_bytes": geometry.section_size_bytes,
        "pages": equation::json(&status.pages.unwrap_or_default()),
        "adds_up": adds_up,
        "nr_zones": status.nr_zones,
        "nr_clients": status.nr_clients,
        "nr_misuses": status.nr_misuses,
        "nr_reclaimed_pages": status.nr_reclaimed_pages,
        "nr_machine_nodes": status.nr_machine_nodes,
        "nodes": status.nodes.iter().map(node_json).collect::<Vec<_>>(),
    })
}

/// The same names with what is known.
fn sealed_json(status: &GetStatusResponse) -> Value {
    let mut all = json(status, false);
    let known = ["version", "layout_version", "state", "pid", "uptime_ms"];
    let unknown = all.as_object_mut().into_iter().flatten();
    unknown
        .filter(|(name, _)| !known.contains(&name.as_str()))
        .for_each(|(_, value)| *value = Value::Null);
    all
}

fn sealed_text(status: &GetStatusResponse, why: &str) -> String {
    format!(
        "hugepoold {version} (layout {layout}), pid {pid}, sealed for {uptime}: {why}\n\
         It holds all memory and clients as a daemon before it left them, and lends nothing. Clients go on \
         with what they have.\n\
         Keep its log. 'systemctl stop hugepoold' (or SIGTERM, to a keeper) lets go of the memory, and what is in it is lost.\n",
        version = status.version,
        layout = status.layout_version,
        pid = status.pid,
        uptime = size::human_millis(status.uptime_ms),
    )
}

fn node_json(node: &Node) -> Value {
    json!({
        "node": node.node,
        "zones": node.zones,
        "pages": equation::json(&node.pages.unwrap_or_default()),
        "hit_pages": node.hit_pages,
        "miss_pages": node.miss_pages,
        "foreign_pages": node.foreign_pages,
    })
}

/// The nodes, a line each; one line where there is nothing to tell apart.
fn nodes(status: &GetStatusResponse) -> String {
    let machine = counted(status.nr_machine_nodes.into(), "node");
    if status.nodes.iter().all(|node| node.node < 0) {
        return format!("NUMA: the machine has {machine}, the zones are of any\n");
    }
    let mut text = format!("NUMA: the machine has {machine}\n");
    for node in &status.nodes {
        let pages = node.pages.unwrap_or_default();
        let name = match node.node {
            any if any < 0 => "of any node".to_owned(),
            number => format!("of node {number}"),
        };
        text += &format!(
            "  {name} ({zones}): managed {managed}, free {free}, lent {lent}; lent where wanted {hit}, \
             to who wanted another {miss}, wanted here and lent elsewhere {foreign}\n",
            zones = node.zones.join(", "),
            managed = pages.managed,
            free = pages.free,
            lent = pages.lent,
            hit = node.hit_pages,
            miss = node.miss_pages,
            foreign = node.foreign_pages,
        );
    }
    text
}

fn text(status: &GetStatusResponse, adds_up: bool, out: &Output) -> String {
    let geometry = status.geometry.unwrap_or_default();
    let page = geometry.page_size_bytes;
    let of_order = |order: u32| out.size(page.checked_shl(order).unwrap_or_default());
    let mut text = format!(
        "hugepoold {version} (layout {layout}), pid {pid}, {state} for {uptime}\n\
         page {page}, pageblock {pageblock}, largest block {largest}, section {section}\n\
         {zones}, {clients}, {misuses} refused, {reclaimed} taken home from the dead\n\n",
        version = status.version,
        layout = status.layout_version,
        pid = status.pid,
        state = status.state,
        uptime = size::human_millis(status.uptime_ms),
        page = out.size(page),
        pageblock = of_order(geometry.pageblock_order),
        largest = of_order(geometry.max_page_order),
        section = out.size(geometry.section_size_bytes),
        zones = counted(status.nr_zones.into(), "zone"),
        clients = counted(status.nr_clients.into(), "client"),
        misuses = counted(status.nr_misuses, "misuse"),
        reclaimed = counted(status.nr_reclaimed_pages, "page"),
    );
    text += &equation::text(&status.pages.unwrap_or_default(), page, out);
    text += &nodes(status);
    if !adds_up {
        text += "the pages do not add up: run 'hugepoolctl verify'\n";
    }
    text
}

/// `1 zone`, `2 zones`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use hugepool_proto::v1::{Geometry, PageCounts};

    use super::*;

    fn status() -> GetStatusResponse {
        GetStatusResponse {
            version: "0.1.0".into(),
            layout_version: 1,
            pid: 4711,
            uptime_ms: 61_000,
            geometry: Some(Geometry {
                page_size_bytes: 4096,
                pageblock_order: 9,
                max_page_order: 10,
                section_size_bytes: 128 << 20,
            }),
            pages: Some(PageCounts {
                present: 4,
                managed: 4,
                free: 3,
                lent: 1,
                ..PageCounts::default()
            }),
            nr_zones: 2,
            nr_clients: 1,
            nr_misuses: 0,
            nr_reclaimed_pages: 7,
            state: "running".into(),
            nodes: vec![Node {
                node: -1,
                ..Node::default()
            }],
            nr_machine_nodes: 1,
        }
    }

    #[test]
    fn nodes_are_told_apart_where_there_are_some() {
        let mut status = status();
        let one = "NUMA: the machine has 1 node, the zones are of any\n";
        assert!(text(&status, true, &Output::plain()).ends_with(one));
        status.nr_machine_nodes = 2;
        status.nodes[0].node = 1;
        status.nodes[0].zones = vec!["fast".into(), "slow".into()];
        status.nodes[0].miss_pages = 7;
        let text = text(&status, true, &Output::plain());
        let line = "  of node 1 (fast, slow): managed 0, free 0, lent 0; lent where wanted 0, \
                    to who wanted another 7, wanted here and lent elsewhere 0\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn the_head_says_version_shape_and_who_is_there() {
        let text = text(&status(), true, &Output::plain());
        assert!(
            text.starts_with(
                "hugepoold 0.1.0 (layout 1), pid 4711, running for 1m01s\n\
                 page 4KiB, pageblock 2MiB, largest block 4MiB, section 128MiB\n\
                 2 zones, 1 client, 0 misuses refused, 7 pages taken home from the dead\n\n"
            ),
            "{text}"
        );
        assert!(!text.contains("do not add up"));
    }

    #[test]
    fn json_has_units_in_its_names() {
        let json = json(&status(), true);
        assert_eq!(json["section_size_bytes"], 128 << 20);
        assert_eq!(json["pages"]["lent"], 1);
        assert_eq!(json["adds_up"], true);
    }

    /// Seen to fail when a sealed daemon's zeros are shown as numbers.
    #[test]
    fn a_sealed_daemon_says_why_and_shows_no_number_that_it_does_not_know() {
        let sealed = GetStatusResponse {
            state: "sealed: this is no state segment".into(),
            geometry: None,
            pages: None,
            ..status()
        };
        let json = sealed_json(&sealed);
        assert_eq!(
            (&json["pid"], &json["state"]),
            (&4711.into(), &sealed.state.clone().into())
        );
        for name in ["pages", "adds_up", "nr_zones", "page_size_bytes", "nodes"] {
            assert_eq!(json.get(name), Some(&Value::Null), "{name}");
        }
        let text = sealed_text(&sealed, "this is no state segment");
        assert!(
            text.starts_with("hugepoold 0.1.0 (layout 1), pid 4711, sealed for "),
            "{text}"
        );
        assert!(text.contains(": this is no state segment\n"), "{text}");
        assert!(text.contains("systemctl stop hugepoold"), "{text}");
    }
}
