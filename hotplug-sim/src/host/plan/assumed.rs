//! What a description leaves out: zones of which only the memory is known, and the room that each
//! zone is given to grow.

use std::collections::BTreeMap;

use hugepool_mm::{Geometry, ZoneKind};

use super::{MOST_PAGES, PlanError, Run, ZonePlan, cut};
use crate::host::free_lists::Free;
use crate::import::machine::Machine;

/// Zones of a machine of which only memory blocks, or only ranges, are known.
pub(super) fn zones_of_blocks(
    online: &[Run],
    ram: &[(u64, u64, Option<u32>)],
    notes: &mut Vec<String>,
) -> Vec<ZonePlan> {
    let mut found: BTreeMap<(u32, String), Vec<(u64, u64)>> = BTreeMap::new();
    for (start, end, node, zones) in online {
        let name = zones
            .first()
            .cloned()
            .unwrap_or_else(|| "Normal".to_owned());
        found
            .entry((node.unwrap_or(0), name))
            .or_default()
            .push((*start, *end));
    }
    if found.is_empty() {
        for (start, end, node) in ram {
            let name = "Normal".to_owned();
            found
                .entry((node.unwrap_or(0), name))
                .or_default()
                .push((*start, *end));
        }
    }
    if !found.is_empty() {
        notes.push("no zones are known: they are made of the ranges, all of it free".to_owned());
    }
    found
        .into_iter()
        .map(|((node, name), ranges)| ZonePlan {
            kind: if name == "Movable" {
                ZoneKind::Movable
            } else {
                ZoneKind::Normal
            },
            extents: cut(ranges.into_iter(), (0, u64::MAX)),
            reserve: (0, 0),
            is_fixed: false,
            reserved: 0,
            free: Free::All,
            name,
            node,
        })
        .collect()
}

/// Gives each zone room for all memory of its node, what its devices may bring, and some more.
pub(super) fn set_reserves(
    machine: &Machine,
    geometry: Geometry,
    offline: &[(u64, u32)],
    zones: &mut Vec<ZonePlan>,
) -> Result<(), PlanError> {
    let section = u64::from(geometry.section_pages());
    let page_bytes = geometry.page_bytes();
    let device_end = machine.devices.iter().filter_map(|device| {
        Some(
            device
                .address?
                .checked_add(device.size_bytes?)?
                .div_ceil(page_bytes),
        )
    });
    let ends = zones
        .iter()
        .filter_map(|zone| zone.extents.last())
        .map(|at| at.1);
    let offline_end = offline.iter().map(|(id, _)| (id + 1) * section);
    let end = ends
        .chain(device_end)
        .chain(offline_end)
        .max()
        .unwrap_or(section);
    let unplaced: u64 = machine
        .devices
        .iter()
        .filter(|device| device.address.is_none())
        .filter_map(|device| device.size_bytes)
        .map(|bytes| bytes.div_ceil(page_bytes))
        .sum();
    let room = (end / 8).max(64 * section).max(unplaced);
    let end = end.saturating_add(room).next_multiple_of(section);
    let mut nodes: Vec<u32> = zones.iter().map(|zone| zone.node).collect();
    nodes.extend(offline.iter().map(|(_, node)| *node));
    nodes.extend(
        machine
            .devices
            .iter()
            .map(|device| device.node.unwrap_or(0)),
    );
    nodes.sort_unstable();
    nodes.dedup();
    let is_daemon = zones.iter().any(|zone| zone.is_fixed);
    for &node in nodes.iter().filter(|_| !is_daemon) {
        // Memory comes as movable or not: each node has a zone for both.
        for (name, kind) in [("Normal", ZoneKind::Normal), ("Movable", ZoneKind::Movable)] {
            if !zones
                .iter()
                .any(|zone| zone.node == node && zone.name == name)
            {
                zones.push(ZonePlan {
                    name: name.to_owned(),
                    node,
                    kind,
                    extents: Vec::new(),
                    reserve: (0, 0),
                    is_fixed: false,
                    reserved: 0,
                    free: Free::All,
                });
            }
        }
        let starts = zones.iter().filter(|zone| zone.node == node);
        let starts = starts
            .filter_map(|zone| zone.extents.first())
            .map(|at| at.0);
        let offline = offline
            .iter()
            .filter(|(_, of)| *of == node)
            .map(|(id, _)| id * section);
        let start = starts.chain(offline).min().unwrap_or(0) / section * section;
        // The room above is given up before anything that is there.
        let top = zones
            .iter()
            .filter(|zone| zone.node == node)
            .filter_map(|zone| zone.extents.last())
            .map(|at| at.1)
            .max()
            .unwrap_or(start)
            .next_multiple_of(section);
        if top - start > MOST_PAGES {
            return Err(PlanError::TooFar {
                node,
                nr_pages: top - start,
            });
        }
        let end = end.min(start + MOST_PAGES);
        for zone in zones.iter_mut().filter(|zone| zone.node == node) {
            let is_low = zone.name.starts_with("DMA") && !zone.extents.is_empty();
            let own_end = zone
                .extents
                .last()
                .map_or(start, |at| at.1)
                .next_multiple_of(section);
            zone.reserve = (start, if is_low { own_end } else { end.max(own_end) });
        }
    }
    Ok(())
}
