//! `hugepoolctl section list|add|online|offline|remove`.
//!
//! The four verbs that act end alike: a line for each section, and an exit status that says whether
//! all, some or none went ([`results`]). What stands in the way is told by [`holder`].

pub mod holder;
pub mod results;

use hugepool_proto::v1::{
    AddSectionsRequest, ListSectionsRequest, OfflineSectionsRequest, OnlineSectionsRequest,
    RemoveSectionsRequest, Section, SectionsResponse,
};

use crate::{
    cli::{SectionVerb, Which},
    connect::Admin,
    operation,
    outcome::{Failure, Outcome},
    output::{Cell, Column, Output, Table},
    progress, size, status, zone,
};

const COLUMNS: &[Column] = &[
    Column::shown("ID", "id", "number of the section"),
    Column::shown("ZONE", "zone", "zone that it belongs to"),
    Column::shown(
        "STATE",
        "state",
        "adding, offline, online, going-offline or removing",
    ),
    Column::shown("SIZE", "present_pages", "pages in it"),
    Column::shown("FREE", "free_pages", "on the buddy's lists"),
    Column::shown("LENT", "lent_pages", "in custody of clients"),
    Column::shown(
        "ISOLATED",
        "isolated_pages",
        "free, in isolated pageblocks or quarantined",
    ),
    Column::shown(
        "BACKING",
        "backing",
        "link of the backing chain that serves it",
    ),
    Column::shown("NODE", "node", "NUMA node that it is on"),
    Column::hidden("START", "start_pfn", "pfn of its first page"),
    Column::hidden("INCARNATION", "incarnation", "how many times it was added"),
    Column::hidden(
        "AUDIT",
        "audit_difference_bytes",
        "backing found beyond what it should have",
    ),
];

/// Runs a verb on sections.
pub async fn run(verb: SectionVerb, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    let answer = match verb {
        SectionVerb::List { zone } => return list(zone, admin, out).await,
        SectionVerb::Add {
            which,
            dry_run,
            keep_offline,
            online_order,
        } => {
            let request = AddSectionsRequest {
                count: count(&which),
                section_ids: ids(&which),
                zone: which.zone.unwrap_or_default(),
                dry_run,
                online_order,
                keep_offline,
            };
            let mut caller = admin.clone();
            progress::follow(admin, "add", caller.add_sections(request)).await?
        }
        SectionVerb::Online {
            which,
            dry_run,
            online_order,
        } => {
            let request = OnlineSectionsRequest {
                count: count(&which),
                section_ids: ids(&which),
                zone: which.zone.unwrap_or_default(),
                dry_run,
                online_order,
            };
            let mut caller = admin.clone();
            progress::follow(admin, "online", caller.online_sections(request)).await?
        }
        SectionVerb::Offline {
            which,
            dry_run,
            timeout,
            detach,
        } => {
            let request = OfflineSectionsRequest {
                count: count(&which),
                section_ids: ids(&which),
                zone: which.zone.unwrap_or_default(),
                dry_run,
                timeout_ms: timeout.map_or(0, size::wire_millis),
                // Always by operation, so that its id is known: an interrupt cancels it.
                detach: !dry_run,
            };
            if dry_run {
                admin.offline_sections(request).await?.into_inner()
            } else {
                return offline(request, detach, admin, out).await;
            }
        }
        SectionVerb::Remove { which, dry_run } => {
            let request = RemoveSectionsRequest {
                count: count(&which),
                section_ids: ids(&which),
                zone: which.zone.unwrap_or_default(),
                dry_run,
            };
            let mut caller = admin.clone();
            progress::follow(admin, "remove", caller.remove_sections(request)).await?
        }
    };
    results::print(&answer, out)
}

/// Begins an offline operation and follows it to its end; an interrupt cancels it.
async fn offline(
    request: OfflineSectionsRequest,
    detach: bool,
    admin: &mut Admin,
    out: &Output,
) -> Result<Outcome, Failure> {
    let on_interrupt = operation::OnInterrupt::cancel()?;
    let answer = admin.offline_sections(request).await?.into_inner();
    let id = answer.operation_id;
    if id == 0 {
        // Nothing had to be waited for.
        return results::print(&answer, out);
    }
    if detach {
        let next = format!("follow it with 'hugepoolctl operation watch {id}'");
        let json = || serde_json::json!({ "operation_id": id });
        out.either(json, || format!("operation {id} has begun; {next}\n"))?;
        return Ok(Outcome::Done);
    }
    let ended = operation::follow(id, on_interrupt, admin).await?;
    let answer = SectionsResponse {
        operation_id: id,
        results: ended.results,
        dry_run: false,
    };
    results::print(&answer, out)
}

fn ids(which: &Which) -> Vec<u32> {
    which.ids.iter().flat_map(size::IdRange::ids).collect()
}

/// How many when no ids are given: one, unless said.
fn count(which: &Which) -> u32 {
    if which.ids.is_empty() {
        which.count.unwrap_or(1)
    } else {
        0
    }
}

async fn list(zone: Option<String>, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    let mut request = ListSectionsRequest {
        zone: zone.unwrap_or_default(),
        ..ListSectionsRequest::default()
    };
    let mut sections = Vec::new();
    loop {
        let page = admin.list_sections(request.clone()).await?.into_inner();
        sections.extend(page.sections);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let page_bytes = status::page_bytes(admin).await?;
    out.table(&table(&sections, page_bytes))?;
    Ok(Outcome::Done)
}

fn table(sections: &[Section], page_bytes: u64) -> Table {
    let pages = |count| Cell::Pages { count, page_bytes };
    let row = |section: &Section| {
        vec![
            Cell::number(section.id),
            Cell::text(&section.zone),
            Cell::text(&section.state),
            pages(section.nr_pages),
            pages(section.free),
            pages(section.lent),
            pages(section.isolated),
            Cell::text(&section.backing),
            zone::node(section.node),
            Cell::number(section.start_pfn),
            Cell::number(section.incarnation),
            Cell::number(section.audit_difference_bytes),
        ]
    };
    Table {
        key: "sections",
        columns: COLUMNS,
        rows: sections.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_a_line_of_sizes() {
        let section = Section {
            id: 24,
            zone: "movable".into(),
            nr_pages: 32768,
            state: "online".into(),
            backing: "hugetlb".into(),
            node: 0,
            free: 32000,
            lent: 768,
            ..Section::default()
        };
        let table = table(&[section], 4096);
        let text = table.text(&table.pick(None).unwrap(), &Output::plain());
        assert_eq!(
            text,
            "ID  ZONE     STATE     SIZE   FREE  LENT  ISOLATED  BACKING  NODE\n\
             24  movable  online  128MiB  125MiB  3MiB         0  hugetlb     0\n"
                .replace("SIZE   FREE", "SIZE    FREE")
        );
        assert!(table.rows.iter().all(|row| row.len() == COLUMNS.len()));
    }

    #[test]
    fn one_section_unless_said() {
        let which = Which {
            ids: vec![],
            zone: Some("movable".into()),
            count: None,
        };
        assert_eq!((count(&which), ids(&which)), (1, vec![]));
        let which = Which {
            ids: vec!["3-5".parse().unwrap()],
            zone: None,
            count: None,
        };
        assert_eq!((count(&which), ids(&which)), (0, vec![3, 4, 5]));
    }
}
