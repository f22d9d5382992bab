//! `--check`: the plan as it would be carried out, without carrying anything out.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use hugepool_shm::backing::BackingFacts;
use nix::unistd::Group;

use crate::backing_plan::choose_all;
use crate::config::{Config, GroupPlan, ZonePlan, pages_as_bytes};
use crate::size::Bytes;

/// Prints the plan; status 0 if the daemon could start with it now, 2 if not.
pub fn print(config: &Config) -> ExitCode {
    let (text, could_start) = describe(config, &BackingFacts::probe());
    // A reader that has gone has read enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    if could_start {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    }
}

/// The plan as text, and whether it could be carried out.
fn describe(config: &Config, facts: &BackingFacts) -> (String, bool) {
    let mut text = String::new();
    let mut could_start = true;
    let g = config.geometry;
    line(
        &mut text,
        format!("run-time directory  {}", config.runtime_dir.display()),
    );
    line(
        &mut text,
        format!(
            "geometry            page {}, pageblock {}, largest block {}, section {}",
            Bytes(g.page_bytes()),
            pages_as_bytes(g.pageblock_pages().into(), g),
            pages_as_bytes(g.max_order().nr_pages().into(), g),
            Bytes(g.section_bytes()),
        ),
    );
    for (sockets, group) in [
        ("pages, attach", &config.sockets.pages_group),
        ("admin", &config.sockets.admin_group),
    ] {
        let (who, is_well) = describe_group(group);
        could_start &= is_well;
        line(&mut text, format!("{sockets:<13} socket  {who}"));
    }
    for (zone, chosen) in config.zones.iter().zip(choose_all(config, facts)) {
        line(&mut text, describe_zone(zone, config));
        match chosen {
            Ok(chosen) => {
                line(&mut text, format!("    backing {}", chosen.backing));
                for passed in &chosen.passed_over {
                    line(&mut text, format!("    not taken: {passed}"));
                }
            }
            Err(error) => {
                could_start = false;
                line(&mut text, format!("    SHORT: {error}"));
            }
        }
    }
    let verdict = if could_start {
        "the daemon can start"
    } else {
        "the daemon cannot start: see above"
    };
    line(&mut text, verdict.to_owned());
    (text, could_start)
}

fn describe_zone(zone: &ZonePlan, config: &Config) -> String {
    let g = config.geometry;
    let size = u64::from(zone.nr_sections).saturating_mul(g.section_bytes());
    let node = zone
        .node
        .map_or_else(|| "any node".to_owned(), |node| format!("node {node}"));
    let end = u64::from(zone.start_pfn) + zone.span_pages;
    let mut text = format!(
        "zone {:<14} {}, {} of {}, {node}, pfns {} to {}",
        zone.name,
        zone.kind,
        Bytes(size),
        pages_as_bytes(zone.span_pages, g),
        zone.start_pfn,
        end - 1,
    );
    if !(zone.allow_uids.is_empty() && zone.allow_gids.is_empty()) {
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            ", for uids {:?} gids {:?}",
            zone.allow_uids, zone.allow_gids
        );
    }
    text
}

fn describe_group(plan: &GroupPlan) -> (String, bool) {
    match Group::from_name(&plan.name) {
        Ok(Some(group)) => (format!("0660, group {} ({})", plan.name, group.gid), true),
        _ if plan.is_required => (format!("there is no group {}", plan.name), false),
        _ => (format!("0600: there is no group {}", plan.name), true),
    }
}

fn line(text: &mut String, line: String) {
    text.push_str(&line);
    text.push('\n');
}
