//! A machine, as a TOML file that people edit: what `--save` writes and the simulator builds.
//!
//! It holds what does not change while the machine runs (nodes, zones, blocks, devices) and
//! the last state of the free lists. Every field may be left out, unknown being no value;
//! unknown *names* are refused, so that a misspelt one is not silently nothing. The file
//! begins with [`HEADER`], which explains it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::model::{Device, Import, Range, RangeKind, Section, SectionState, Zone};

/// The version of the format that this program writes and reads.
pub const VERSION: u32 = 1;

/// The comment at the head of a saved file.
pub const HEADER: &str = "\
# A machine for hotplug-sim. Counts are in pages of page_size_bytes; what ends in _bytes is in bytes.
# Leave out what is not known; a name that is not in this list is an error.
#
#   page_size_bytes, pageblock_order, section_bytes
#   boot_bytes        memory without any device          maxmem_bytes  the ceiling
#   [[zone]]          one for each zone of each node: node, name, start_pfn, spanned, present, managed, free,
#                     kind (normal or movable; as the kernel's name says if left out), reserve_first and
#                     reserve_bytes (the blocks that may ever be its own: of a hugepoold),
#                     free_cma, reserved_highatomic, min, low, high, boost, protection (by zone index),
#                     pcp_count, free_blocks_by_order (index = order),
#   [zone.free_blocks_by_type]   for each migratetype, free blocks by order
#   [zone.pageblocks_by_type]    for each migratetype, pageblocks
#   [[blocks]]        memory blocks first..=last (numbered as in /sys) that are alike: state (online, offline,
#                     going-offline, absent), removable, zones (the owner first), node
#   [[ram]]           where memory is: start_byte, end_byte (exclusive), node
#   [[device]]        id, kind (virtio-mem, dimm, dax, cxl), node, address, size_bytes, requested_bytes,
#                     plugged_bytes, block_bytes, subblock_bytes
";

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Machine {
    pub version: u32,
    /// The files it was read from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// What they disagreed on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradictions: Vec<String>,
    pub page_size_bytes: Option<u64>,
    pub pageblock_order: Option<u32>,
    pub section_bytes: Option<u64>,
    pub boot_bytes: Option<u64>,
    pub maxmem_bytes: Option<u64>,
    #[serde(default, rename = "zone", skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<MachineZone>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Blocks>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ram: Vec<Ram>,
    #[serde(default, rename = "device", skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<MachineDevice>,
}

/// A zone of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct MachineZone {
    pub node: u32,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_first: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
    pub start_pfn: Option<u64>,
    pub spanned: Option<i64>,
    pub present: Option<i64>,
    pub managed: Option<i64>,
    pub free: Option<i64>,
    pub free_cma: Option<i64>,
    pub reserved_highatomic: Option<i64>,
    pub min: Option<i64>,
    pub low: Option<i64>,
    pub high: Option<i64>,
    pub boost: Option<i64>,
    pub protection: Option<Vec<i64>>,
    pub pcp_count: Option<i64>,
    pub free_blocks_by_order: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub free_blocks_by_type: toml::Table,
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub pageblocks_by_type: toml::Table,
}

/// Memory blocks that are alike and follow each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Blocks {
    pub first: u64,
    pub last: u64,
    pub state: Option<String>,
    pub removable: Option<bool>,
    pub zones: Option<Vec<String>>,
    pub node: Option<u32>,
}

/// A range of RAM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Ram {
    pub start_byte: u64,
    pub end_byte: u64,
    pub node: Option<u32>,
}

/// A memory device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct MachineDevice {
    pub id: String,
    pub kind: Option<String>,
    pub node: Option<u32>,
    pub address: Option<u64>,
    pub size_bytes: Option<u64>,
    pub requested_bytes: Option<u64>,
    pub plugged_bytes: Option<u64>,
    pub block_bytes: Option<u64>,
    pub subblock_bytes: Option<u64>,
}

/// Why a file is no machine.
#[derive(Debug, Error)]
pub enum MachineError {
    /// It is no TOML, or has a name that is not known.
    #[error("not a machine description: {0}")]
    Toml(#[from] toml::de::Error),
    /// It cannot be written: a number is too large for TOML.
    #[error("cannot be written as TOML: {0}")]
    Write(#[from] toml::ser::Error),
    /// It was written by another version.
    #[error("machine description of version {found}, this program knows {VERSION}")]
    Version {
        /// The version of the file.
        found: u32,
    },
    /// Two zones of a node have one name.
    #[error("zone {name} of node {node} is there twice")]
    Twice {
        /// The node.
        node: u32,
        /// The zone.
        name: String,
    },
    /// A range ends before it starts.
    #[error("blocks {first} to {last} end before they start")]
    Backwards {
        /// First block or byte.
        first: u64,
        /// Last block or byte.
        last: u64,
    },
}

impl Machine {
    /// What an import says of the machine. Lists with damaged entries are left out.
    pub fn of(import: &Import, sources: Vec<String>) -> Machine {
        let zones = import.nodes.iter().flat_map(|node| {
            node.zones
                .iter()
                .map(|zone| MachineZone::of(node.node, zone))
        });
        let ram = import
            .ranges
            .iter()
            .filter(|range| range.kind == RangeKind::Node)
            .map(Ram::of)
            .collect();
        Machine {
            version: VERSION,
            sources,
            contradictions: import
                .diagnostics
                .iter()
                .filter(|one| one.line == 0)
                .map(|one| one.what.clone())
                .collect(),
            page_size_bytes: import.page_size_bytes,
            pageblock_order: import.pageblock_order,
            section_bytes: import.section_bytes,
            boot_bytes: import.totals.boot_bytes,
            maxmem_bytes: import.totals.maxmem_bytes,
            zones: zones.collect(),
            blocks: Blocks::of(&import.sections),
            ram,
            devices: import.devices.iter().map(MachineDevice::of).collect(),
        }
    }

    /// The text of the file.
    ///
    /// # Errors
    /// [`MachineError::Write`] for a number above 2^63.
    pub fn to_toml(&self) -> Result<String, MachineError> {
        Ok(format!("{HEADER}\n{}", toml::to_string(self)?))
    }

    /// Reads the text of a file and checks that it makes sense.
    ///
    /// # Errors
    /// See [`MachineError`].
    pub fn from_toml(text: &str) -> Result<Machine, MachineError> {
        let machine: Machine = toml::from_str(text)?;
        if machine.version != VERSION {
            return Err(MachineError::Version {
                found: machine.version,
            });
        }
        for (at, zone) in machine.zones.iter().enumerate() {
            if machine.zones[..at]
                .iter()
                .any(|other| other.node == zone.node && other.name == zone.name)
            {
                return Err(MachineError::Twice {
                    node: zone.node,
                    name: zone.name.clone(),
                });
            }
        }
        if let Some(blocks) = machine
            .blocks
            .iter()
            .find(|blocks| blocks.last < blocks.first)
        {
            return Err(MachineError::Backwards {
                first: blocks.first,
                last: blocks.last,
            });
        }
        if let Some(ram) = machine
            .ram
            .iter()
            .find(|ram| ram.end_byte <= ram.start_byte)
        {
            return Err(MachineError::Backwards {
                first: ram.start_byte,
                last: ram.end_byte,
            });
        }
        Ok(machine)
    }
}

impl MachineZone {
    fn of(node: u32, zone: &Zone) -> MachineZone {
        let complete =
            |blocks: &Vec<Option<i64>>| blocks.iter().copied().collect::<Option<Vec<i64>>>();
        let mut by_type = toml::Table::new();
        for (name, blocks) in &zone.free_pages_by_order_and_type.0 {
            if let Some(blocks) = complete(blocks) {
                by_type.insert(name.clone(), toml::Value::from(blocks));
            }
        }
        let pageblocks = zone
            .pageblocks_by_type
            .0
            .iter()
            .map(|(name, count)| (name.clone(), toml::Value::from(*count)));
        MachineZone {
            node,
            name: zone.name.clone(),
            kind: None,
            reserve_first: None,
            reserve_bytes: None,
            start_pfn: zone.start_pfn,
            spanned: zone.spanned,
            present: zone.present,
            managed: zone.managed,
            free: zone.free,
            free_cma: zone.free_cma,
            reserved_highatomic: zone.reserved_highatomic,
            min: zone.watermarks.min,
            low: zone.watermarks.low,
            high: zone.watermarks.high,
            boost: zone.watermarks.boost,
            protection: zone.protection.clone(),
            pcp_count: zone.pcp_count,
            free_blocks_by_order: zone.free_blocks_by_order.as_ref().and_then(complete),
            free_blocks_by_type: by_type,
            pageblocks_by_type: pageblocks.collect(),
        }
    }
}

impl Blocks {
    /// Joins blocks that follow each other and are alike.
    fn of(sections: &[Section]) -> Vec<Blocks> {
        let mut sorted: Vec<&Section> = sections.iter().collect();
        sorted.sort_unstable_by_key(|section| section.id);
        let mut runs: Vec<Blocks> = Vec::new();
        for section in sorted {
            let alone = Blocks {
                first: section.id,
                last: section.id,
                state: section.state.map(|state| state_name(state).to_string()),
                removable: section.removable,
                zones: section.zones.clone(),
                node: section.node,
            };
            match runs.last_mut() {
                Some(run)
                    if run.last + 1 == section.id
                        && *run
                            == (Blocks {
                                first: run.first,
                                last: run.last,
                                ..alone.clone()
                            }) =>
                {
                    run.last = section.id
                }
                _ => runs.push(alone),
            }
        }
        runs
    }
}

fn state_name(state: SectionState) -> &'static str {
    match state {
        SectionState::Online => "online",
        SectionState::Offline => "offline",
        SectionState::GoingOffline => "going-offline",
        SectionState::Absent => "absent",
    }
}

impl Ram {
    fn of(range: &Range) -> Ram {
        Ram {
            start_byte: range.start_byte,
            end_byte: range.end_byte,
            node: range.node,
        }
    }
}

impl MachineDevice {
    fn of(device: &Device) -> MachineDevice {
        MachineDevice {
            id: device.id.clone(),
            kind: device.kind.map(|kind| kind.name().to_string()),
            node: device.node,
            address: device.address,
            size_bytes: device.size_bytes,
            requested_bytes: device.requested_bytes,
            plugged_bytes: device.plugged_bytes,
            block_bytes: device.block_bytes,
            subblock_bytes: device.subblock_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_again() {
        let section = |id, state| Section {
            id,
            state: Some(state),
            node: Some(0),
            ..Section::default()
        };
        let mut import = Import {
            page_size_bytes: Some(4096),
            ..Import::default()
        };
        import.sections = vec![
            section(0, SectionState::Online),
            section(1, SectionState::Online),
            section(2, SectionState::Offline),
            section(9, SectionState::Offline),
        ];
        import.devices.push(Device::new("dax0.0"));
        let machine = Machine::of(&import, vec!["lsmem.txt".to_string()]);
        let runs: Vec<_> = machine
            .blocks
            .iter()
            .map(|blocks| (blocks.first, blocks.last))
            .collect();
        assert_eq!(runs, [(0, 1), (2, 2), (9, 9)]);
        assert_eq!(
            Machine::from_toml(&machine.to_toml().unwrap()).unwrap(),
            machine
        );
    }

    #[test]
    fn a_misspelt_name_is_refused() {
        let error = Machine::from_toml("version = 1\npage_size = 4096\n").unwrap_err();
        assert!(error.to_string().contains("page_size"), "{error}");
    }
}
