//! `hotplug-sim snapshot`: a machine description of a running daemon, or of this host.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use hugepool_proto::v1::{
    GetPageTypeInfoRequest, GetStatusRequest, ListSectionsRequest, ListZonesRequest, Section, Zone,
    ZonePageTypeInfo,
};

use super::{Admin, connect, runtime};
use crate::import::machine::{Blocks, Machine, MachineZone, VERSION};

/// `snapshot`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: 0 written, 1 there is nothing to read, 2 usage.")]
pub struct SnapshotArgs {
    /// Of the daemon in this run-time directory.
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Of this host's /proc and /sys instead.
    #[arg(long, conflicts_with = "runtime_dir")]
    host: bool,
    /// Where it is written; standard output if left out.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Takes a snapshot.
pub fn run(args: &SnapshotArgs) -> ExitCode {
    let machine = if args.host {
        of_host(Path::new("/"))
    } else {
        runtime().and_then(|runtime| {
            runtime.block_on(async {
                let mut admin = connect(args.runtime_dir.as_deref()).await?;
                of_daemon(&mut admin).await
            })
        })
    };
    let text = machine.and_then(|machine| machine.to_toml().map_err(|error| error.to_string()));
    let written = text.and_then(|text| match &args.output {
        Some(path) => {
            std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
        }
        None => {
            print!("{text}");
            Ok(())
        }
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hotplug-sim: {error}");
            ExitCode::from(1)
        }
    }
}

/// The description of a host, from the files of its kernel below `root`.
///
/// # Errors
/// None of them can be read, or none is understood.
pub fn of_host(root: &Path) -> Result<Machine, String> {
    let mut sources = Vec::new();
    for name in ["zoneinfo", "buddyinfo", "pagetypeinfo"] {
        // pagetypeinfo is root's alone; what cannot be read is left out.
        if let Ok(bytes) = std::fs::read(root.join("proc").join(name)) {
            sources.push((name.to_owned(), bytes));
        }
    }
    let mut machine = match crate::import::import(&sources, None).import {
        Some(import) => Machine::of(&import, sources.into_iter().map(|(name, _)| name).collect()),
        None => return Err("neither zoneinfo, buddyinfo nor pagetypeinfo can be read".to_owned()),
    };
    let memory = root.join("sys/devices/system/memory");
    let block = std::fs::read_to_string(memory.join("block_size_bytes")).ok();
    machine.section_bytes = block.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    machine.blocks = blocks_of(&memory);
    Ok(machine)
}

/// The memory blocks of `/sys/devices/system/memory`.
fn blocks_of(memory: &Path) -> Vec<Blocks> {
    let entries = std::fs::read_dir(memory).into_iter().flatten().flatten();
    let mut found: Vec<Blocks> = entries
        .filter_map(|entry| {
            let id = entry
                .file_name()
                .to_str()?
                .strip_prefix("memory")?
                .parse()
                .ok()?;
            let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
            let zones = read("valid_zones")?;
            let node = std::fs::read_dir(entry.path())
                .ok()?
                .flatten()
                .find_map(|link| {
                    link.file_name()
                        .to_str()?
                        .strip_prefix("node")?
                        .parse()
                        .ok()
                });
            Some(Blocks {
                first: id,
                last: id,
                state: read("state").map(|state| state.trim().to_owned()),
                removable: read("removable").map(|text| text.trim() == "1"),
                zones: Some(
                    zones
                        .split_whitespace()
                        .filter(|zone| *zone != "none")
                        .map(str::to_owned)
                        .collect(),
                ),
                node,
            })
        })
        .collect();
    found.sort_by_key(|blocks| blocks.first);
    let mut runs: Vec<Blocks> = Vec::new();
    for next in found {
        match runs.last_mut() {
            Some(run)
                if run.last + 1 == next.first
                    && (&run.state, run.removable, &run.zones, run.node)
                        == (&next.state, next.removable, &next.zones, next.node) =>
            {
                run.last = next.last;
            }
            _ => runs.push(next),
        }
    }
    runs
}

/// The description of a running daemon.
///
/// # Errors
/// A call fails.
pub async fn of_daemon(admin: &mut Admin) -> Result<Machine, String> {
    let said = |error: tonic::Status| error.message().to_owned();
    let status = admin
        .get_status(GetStatusRequest {})
        .await
        .map_err(said)?
        .into_inner();
    let geometry = status.geometry.ok_or("the daemon told no geometry")?;
    let zones = admin
        .list_zones(ListZonesRequest {})
        .await
        .map_err(said)?
        .into_inner()
        .zones;
    let types = admin
        .get_page_type_info(GetPageTypeInfoRequest::default())
        .await
        .map_err(said)?
        .into_inner()
        .zones;
    let sections = sections(admin).await?;
    let pages = geometry.section_size_bytes / geometry.page_size_bytes.max(1);
    let mut machine = Machine {
        version: VERSION,
        sources: vec![format!("hugepoold {}", status.version)],
        page_size_bytes: Some(geometry.page_size_bytes),
        pageblock_order: Some(geometry.pageblock_order),
        section_bytes: Some(geometry.section_size_bytes),
        ..Machine::default()
    };
    for zone in &zones {
        let types = types.iter().find(|types| types.zone == zone.name);
        machine.zones.push(of_zone(zone, types, pages, &sections));
    }
    for section in sections.iter().filter(|section| section.state == "offline") {
        machine.blocks.push(Blocks {
            first: section.id.into(),
            last: section.id.into(),
            state: Some("offline".to_owned()),
            node: Some(0),
            ..Blocks::default()
        });
    }
    Ok(machine)
}

/// All sections of a daemon.
///
/// # Errors
/// A call fails.
pub async fn sections(admin: &mut Admin) -> Result<Vec<Section>, String> {
    let mut all = Vec::new();
    let mut token = String::new();
    loop {
        let request = ListSectionsRequest {
            page_token: token,
            ..ListSectionsRequest::default()
        };
        let page = admin
            .list_sections(request)
            .await
            .map_err(|error| error.message().to_owned())?;
        let page = page.into_inner();
        all.extend(page.sections);
        token = page.next_page_token;
        if token.is_empty() {
            return Ok(all);
        }
    }
}

fn of_zone(
    zone: &Zone,
    types: Option<&ZonePageTypeInfo>,
    section_pages: u64,
    sections: &[Section],
) -> MachineZone {
    let number = |number: u64| i64::try_from(number).ok();
    let pages = zone.pages.unwrap_or_default();
    // Offline sections are in no zone of a machine.
    let online: Vec<u64> = sections
        .iter()
        .filter(|section| section.zone == zone.name && section.state == "online")
        .map(|section| u64::from(section.id))
        .collect();
    let (first, last) = (online.first().copied(), online.last().copied());
    let present = online.len() as u64 * section_pages;
    let marks = zone.watermarks.unwrap_or_default();
    let mut described = MachineZone {
        node: 0,
        name: zone.name.clone(),
        kind: Some(zone.kind.clone()),
        reserve_first: Some(u64::from(zone.start_pfn) / section_pages),
        reserve_bytes: Some(zone.reserve_bytes),
        start_pfn: first.map(|id| id * section_pages),
        spanned: first.zip(last).map_or(Some(0), |(first, last)| {
            number((last + 1 - first) * section_pages)
        }),
        present: number(present),
        managed: number(present.min(pages.managed)),
        free: number(pages.free),
        min: number(marks.min),
        low: number(marks.low),
        high: number(marks.high),
        ..MachineZone::default()
    };
    let Some(types) = types else { return described };
    let mut sum: Vec<i64> = Vec::new();
    for row in types
        .types
        .iter()
        .filter(|row| row.migratetype != "Isolate")
    {
        let blocks: Vec<i64> = row
            .free_blocks_by_order
            .iter()
            .map(|nr| number(*nr).unwrap_or(0))
            .collect();
        sum.resize(sum.len().max(blocks.len()), 0);
        sum.iter_mut().zip(&blocks).for_each(|(sum, nr)| *sum += nr);
        described
            .free_blocks_by_type
            .insert(row.migratetype.clone(), toml::Value::from(blocks));
        let pageblocks = number(row.nr_pageblocks).unwrap_or(0);
        described
            .pageblocks_by_type
            .insert(row.migratetype.clone(), pageblocks.into());
    }
    described.free_blocks_by_order = Some(sum);
    described
}
