//! A machine made of our allocator's zones, with nothing behind them: real sizes, real
//! fragmentation, and a table of who holds what.
//!
//! It is built from a description ([`mod@plan`], [`build`]); clients take and give pages
//! ([`alloc`]); sections and devices come and go ([`hotplug`], [`virtio`]); compaction and
//! offline move pages ([`moves`], [`compact`]); what each of them touched is checked
//! ([`check`]). The allocator is the daemon's. The custody above it is not: the daemon's owner
//! table has eight bytes for each page, a real machine of 12 TiB would need 24 GiB of them.
//!
//! Pages and sections are named as the kernel names them, whatever zone they are in.

use std::collections::BTreeMap;
use std::sync::Arc;

use hugepool_mm::{Geometry, ZoneKind, setup_zones};

use crate::import::machine::Machine;
use crate::prng::Prng;

pub mod alloc;
pub mod build;
pub mod check;
pub mod compact;
pub mod cost;
pub mod free_lists;
pub mod held;
pub mod hotplug;
pub mod moves;
pub mod past;
pub mod plan;
pub mod virtio;

use alloc::{Client, Loc};
use build::HostZone;
use held::Owner;
use plan::{PlanError, plan};
use virtio::HostDevice;

/// A section of the machine.
#[derive(Clone, Debug)]
pub struct HostSection {
    /// Its node.
    pub node: u32,
    /// The zones it is online in: none while it is offline, two where a boot put a border in it.
    pub zones: Vec<usize>,
    /// Its pages that exist.
    pub extents: Vec<(u64, u64)>,
    /// The block of old memory that holds its page records.
    pub records: Option<Loc>,
    /// Pages of it that hold its own page records.
    pub records_inside: u64,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// Sizes.
    pub geometry: Geometry,
    /// Zones, by node and address.
    pub zones: Vec<HostZone>,
    /// Memory blocks that are there.
    pub sections: BTreeMap<u64, HostSection>,
    /// Holders by number, see [`Owner`].
    pub clients: Vec<Client>,
    /// Devices.
    pub devices: Vec<HostDevice>,
    /// What a person set `min_free_kbytes` to.
    pub min_free_kib: Option<u64>,
    /// Told time.
    pub clock_ns: u64,
    /// What was assumed when it was built.
    pub notes: Vec<String>,
    /// Pageblocks touched since the last check: zone and index.
    touched: Vec<(usize, usize)>,
    /// Sections that came or went since the last check: zone and number.
    hot: Vec<(usize, u64)>,
    /// Backing that is left for new sections; `None` without a limit.
    pub backing_bytes: Option<u64>,
    /// Pages moved since the machine was built.
    pub nr_moved: u64,
    /// Blocks that the description calls removable, or not.
    removable: BTreeMap<u64, bool>,
    /// By node, made when they are first needed.
    zonelists: BTreeMap<u32, Arc<[usize]>>,
}

impl Host {
    /// Builds the machine that a description tells of; places are drawn from the seed.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn build(machine: &Machine, seed: u64) -> Result<Host, PlanError> {
        let plan = plan(machine)?;
        let mut prng = Prng::from_seed(seed ^ 0x6275_696c_6400);
        let mut notes = plan.notes.clone();
        let zones: Vec<HostZone> = (0..plan.zones.len())
            .map(|id| build::build(&plan, id, &mut prng, &mut notes))
            .collect();
        let section_pages = u64::from(plan.geometry.section_pages());
        let mut sections: BTreeMap<u64, HostSection> = BTreeMap::new();
        for (at, zone) in plan.zones.iter().enumerate() {
            for (id, extents) in build::by_section(&zone.extents, section_pages) {
                let section = sections
                    .entry(id)
                    .or_insert_with(|| HostSection::new(zone.node));
                section.zones.push(at);
                section.extents.extend(extents);
            }
        }
        for &(id, node) in &plan.offline {
            let section = sections.entry(id).or_insert_with(|| HostSection::new(node));
            if section.extents.is_empty() {
                section
                    .extents
                    .push((id * section_pages, (id + 1) * section_pages));
            }
        }
        let mut host = Host {
            geometry: plan.geometry,
            zones,
            sections,
            clients: Client::builtin(),
            devices: Vec::new(),
            min_free_kib: plan.min_free_kib,
            clock_ns: 0,
            notes,
            touched: Vec::new(),
            hot: Vec::new(),
            backing_bytes: None,
            nr_moved: 0,
            removable: plan.removable.clone(),
            zonelists: BTreeMap::new(),
        };
        host.setup_zones();
        for &(id, _) in &plan.offline {
            if host.sections[&id].zones.is_empty() {
                host.poison(id);
            }
        }
        host.set_devices(&plan.devices);
        Ok(host)
    }

    /// Shares the watermarks out again, as after every online and offline.
    pub fn setup_zones(&mut self) {
        let zones = self.zones.iter_mut().map(|zone| &mut zone.zone);
        setup_zones(zones, self.min_free_kib);
    }

    /// The zone of that name: `Normal`, or `Normal@1` for the one of node 1.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn zone_named(&self, name: &str) -> Result<usize, String> {
        let (name, node) = match name.split_once('@') {
            Some((name, node)) => (name, Some(node)),
            None => (name, None),
        };
        let fits = |zone: &&HostZone| {
            zone.name == name && node.is_none_or(|node| zone.node.to_string() == node)
        };
        let mut found = self.zones.iter().enumerate().filter(|(_, zone)| fits(zone));
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(at),
            (None, _) => Err(format!(
                "no zone {name}; there are {}",
                self.zone_names().join(", ")
            )),
            _ => Err(format!(
                "zone {name} is on several nodes: write {name}@NODE"
            )),
        }
    }

    /// How the zones are called.
    pub fn zone_names(&self) -> Vec<String> {
        (0..self.zones.len()).map(|at| self.zone_name(at)).collect()
    }

    /// How a zone is called: with its node where that is needed.
    pub fn zone_name(&self, at: usize) -> String {
        let zone = &self.zones[at];
        let is_alone = self
            .zones
            .iter()
            .filter(|other| other.name == zone.name)
            .count()
            == 1;
        if is_alone {
            zone.name.clone()
        } else {
            format!("{}@{}", zone.name, zone.node)
        }
    }

    /// The zone of a node in which memory comes online.
    ///
    /// # Errors
    /// The node has no such zone.
    pub fn zone_for(&self, node: u32, kind: ZoneKind) -> Result<usize, String> {
        let wanted = if kind == ZoneKind::Movable {
            "Movable"
        } else {
            "Normal"
        };
        let zones = self.zones.iter();
        let here = zones.enumerate().filter(|(_, zone)| zone.node == node);
        let of_kind = here.clone().find(|(_, zone)| zone.zone.kind() == kind);
        here.clone()
            .find(|(_, zone)| zone.name == wanted)
            .or(of_kind)
            .map(|(at, _)| at)
            .ok_or_else(|| format!("node {node} has no zone {wanted}"))
    }

    /// Zones that a request goes through, best first: its node's from the top down, then the
    /// nearer nodes'.
    pub fn zonelist(&mut self, node: u32) -> Arc<[usize]> {
        if let Some(list) = self.zonelists.get(&node) {
            return list.clone();
        }
        let list: Arc<[usize]> = self.make_zonelist(node).into();
        self.zonelists.insert(node, list.clone());
        list
    }

    fn make_zonelist(&self, node: u32) -> Vec<usize> {
        let mut list: Vec<usize> = (0..self.zones.len()).collect();
        list.sort_by_key(|&at| {
            let zone = &self.zones[at];
            let rank = match (zone.zone.kind(), zone.name.as_str()) {
                (ZoneKind::Movable, _) => 0,
                (_, "HighMem") => 1,
                (_, "DMA32") => 3,
                (_, "DMA") => 4,
                _ => 2,
            };
            (zone.node.abs_diff(node), zone.node, rank)
        });
        list
    }

    /// Which blocks the description itself calls removable, or not.
    pub fn removable_as_told(&self) -> &BTreeMap<u64, bool> {
        &self.removable
    }

    /// The number of a client, made if it is new.
    pub fn client(&mut self, name: &str) -> Owner {
        let at = self
            .clients
            .iter()
            .position(|client| client.name == name)
            .unwrap_or_else(|| {
                self.clients.push(Client::new(name));
                self.clients.len() - 1
            });
        Owner(u16::try_from(at).expect("far fewer clients than 2^16"))
    }
}

impl HostSection {
    fn new(node: u32) -> HostSection {
        HostSection {
            node,
            zones: Vec::new(),
            extents: Vec::new(),
            records: None,
            records_inside: 0,
        }
    }
}
