//! Pages by NUMA node: what each has, and how often a request was served from where it wanted.
//!
//! A zone's memory comes from one node, or, where none was configured, from any (-1), which counts
//! as a node of its own. The counts are the kernel's `numa_hit`, `numa_miss` and `numa_foreign`: a
//! request wants the node of the first zone of its list, and a client's list begins with the zones of
//! the node that it runs on ([`nearest_first`]).

use std::collections::BTreeMap;

use hugepool_mm::{ZoneId, ZoneKind};
use hugepool_shm::raw::NR_ZONES;

use crate::Engine;
use crate::report::PageCounts;
use crate::zones::Zones;

/// How far a node is from itself, in the firmware's measure.
const LOCAL_DISTANCE: u32 = 10;

/// Where lent pages were wanted and where they came from, by zone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picks {
    zones: [Pick; NR_ZONES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Pick {
    hit: u64,
    miss: u64,
    foreign: u64,
}

impl Picks {
    /// Pages were lent out of `zone` to a request that would rather have had `preferred`.
    pub fn note(&mut self, zones: &Zones, zone: usize, preferred: usize, nr_pages: u64) {
        if zones.settings(zone).node == zones.settings(preferred).node {
            self.zones[zone].hit += nr_pages;
        } else {
            self.zones[zone].miss += nr_pages;
            self.zones[preferred].foreign += nr_pages;
        }
    }
}

/// Puts a client's zones in the order in which it should be served from them: those of near nodes
/// first. `node_of` gives a zone's node, `distance` how far that is from the client's in the firmware's
/// measure, 10 for the client's own. Memory of any node counts as near: nobody said where it is to
/// be. Zones that are equally far keep their order.
pub fn nearest_first(
    zones: &mut [ZoneId],
    node_of: impl Fn(ZoneId) -> Option<u32>,
    distance: impl Fn(u32) -> u32,
) {
    zones.sort_by_key(|&zone| node_of(zone).map_or(LOCAL_DISTANCE, &distance));
}

/// The zones that may serve what can be moved, best first, of zones in the order of a zonelist. As
/// in the kernel: node by node, and of each node first the zone that takes nothing else. A zone of
/// any node belongs to the node that it stands beside.
pub(crate) fn movable_first(all: &[usize], zones: &Zones) -> Vec<usize> {
    let mut list = Vec::with_capacity(all.len());
    let mut node = -1;
    let mut run: Vec<usize> = Vec::new();
    let mut end_run = |run: &mut Vec<usize>| {
        run.sort_by_key(|&at| zones.settings(at).kind != ZoneKind::Movable);
        list.append(run);
    };
    for &at in all {
        let here = zones.settings(at).node;
        if here >= 0 && node >= 0 && here != node {
            end_run(&mut run);
        }
        node = if here >= 0 { here } else { node };
        run.push(at);
    }
    end_run(&mut run);
    list
}

/// A node's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// The node; -1: any.
    pub node: i32,
    /// Names of its zones.
    pub zones: Vec<String>,
    /// Its equations.
    pub pages: PageCounts,
    /// Pages lent from it, and wanted from it.
    pub hit_pages: u64,
    /// Pages lent from it, and wanted from another.
    pub miss_pages: u64,
    /// Pages wanted from it, and lent from another.
    pub foreign_pages: u64,
}

impl Engine {
    /// All nodes that zones are of, by number.
    pub fn list_nodes(&self) -> Vec<NodeReport> {
        let mut nodes: BTreeMap<i32, NodeReport> = BTreeMap::new();
        for (at, _, settings) in self.custody.zones.iter() {
            let report = nodes.entry(settings.node).or_default();
            let pick = self.custody.picks.zones[at];
            report.node = settings.node;
            report.zones.push(settings.name.clone());
            report.pages += self.custody.zones.counts(at);
            report.hit_pages += pick.hit;
            report.miss_pages += pick.miss;
            report.foreign_pages += pick.foreign;
        }
        nodes.into_values().collect()
    }
}
