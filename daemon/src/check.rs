//! `--check`: the plan as it would be carried out, without carrying anything out; and the plan and
//! the keys of its file in words.

mod machine;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use hugepool_shm::backing::BackingFacts;
use hugepool_shm::huge_pool::HugePool;
use nix::unistd::Group;

use crate::backing_plan::choose_all;
use crate::config::{self, Config, File, GroupPlan, ZonePlan, pages_as_bytes};
use crate::exit;
use crate::size::Bytes;

/// Prints the plan; status 0 if the daemon could start with it now, 2 if not.
pub fn print(config: &Config) -> ExitCode {
    let (text, could_start) = describe(config, &BackingFacts::probe());
    say(&text);
    if could_start {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    }
}

/// Prints the plan as a file would say it.
pub fn show(config: &Config, as_json: bool) -> ExitCode {
    let file = File::of(config);
    let text = if as_json {
        serde_json::to_string(&file).map_err(|error| error.to_string())
    } else {
        toml::to_string(&file).map_err(|error| error.to_string())
    };
    match text {
        Ok(text) => say(&format!("{}\n", text.trim_end())),
        Err(error) => return exit::failure(&error),
    }
    ExitCode::SUCCESS
}

/// Prints the keys of the file, a JSON object a line.
pub fn explain() -> ExitCode {
    config::explain()
        .iter()
        .for_each(|key| say(&format!("{key}\n")));
    ExitCode::SUCCESS
}

fn say(text: &str) {
    // A reader that has gone has read enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
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
    for pool in [&facts.pool_2m, &facts.pool_1g].into_iter().flatten() {
        line(&mut text, describe_pool(pool));
    }
    for found in machine::look(config) {
        could_start &= !found.prevents_start;
        let sort = if found.prevents_start {
            "WRONG"
        } else {
            "note"
        };
        line(&mut text, format!("{sort}: {}", found.text));
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

/// A pool of huge pages, by node: what a shortage is measured against.
fn describe_pool(pool: &HugePool) -> String {
    let mut text = format!(
        "huge pages of {}: {} of {} free, {} of them promised",
        Bytes(pool.page_bytes),
        pool.free,
        pool.total,
        pool.reserved,
    );
    for node in &pool.nodes {
        // Writing into a string cannot fail.
        let _ = write!(text, ", node {} {} of {}", node.node, node.free, node.total);
    }
    if pool.allowed != u64::MAX {
        let _ = write!(text, ", {} allowed by the control group", pool.allowed);
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
