//! Zones of two NUMA nodes: each client is served from its own node while that has pages, falls back
//! to the other when it has none, and both are counted.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use hugepool_engine::{
    AllocBulk, AllocOutcome, Command, Defaults, NodeReport, Reply, ZoneSettings, nearest_first,
};
use hugepool_mm::{Migratetype, ZoneId, ZoneKind};
use support::{PAGE, Rig, Tenant, alloc, movable, zone};

/// Pages of a section; each zone has one.
const SECTION: u64 = 128;

/// A normal and a movable zone on each of two nodes; the zonelist names them by kind.
fn two_nodes() -> Rig {
    let of = |name: &str, kind, node| ZoneSettings {
        node,
        ..zone(name, kind, 1)
    };
    let zones = vec![
        of("normal-0", ZoneKind::Normal, 0),
        of("normal-1", ZoneKind::Normal, 1),
        of("movable-0", ZoneKind::Movable, 0),
        of("movable-1", ZoneKind::Movable, 1),
    ];
    let defaults = Defaults {
        proactiveness: 0,
        ..Defaults::default()
    };
    let mut rig = Rig::with(zones, defaults);
    for name in ["normal-0", "normal-1", "movable-0", "movable-1"] {
        rig.add(name, 1);
    }
    rig
}

/// A client whose threads run on a node.
fn tenant_on(rig: &mut Rig, node: u32) -> Tenant {
    let mut spec = rig.spec(4000 + node);
    let nodes = [0, 1, 0, 1];
    let node_of = |zone: ZoneId| nodes.get(usize::from(zone.get())).copied();
    nearest_first(&mut spec.zones, node_of, |other| 10 + node.abs_diff(other));
    let tenant = rig.attach(spec, 1);
    tenant.map_all();
    tenant
}

fn node(rig: &Rig, number: i32) -> NodeReport {
    let nodes = rig.engine.list_nodes();
    nodes.into_iter().find(|node| node.node == number).unwrap()
}

/// Pages lent out of each zone, by the client's calls for pages of a type.
fn lent(rig: &mut Rig) -> [u64; 4] {
    let Reply::Zones(zones) = rig.apply(Command::ListZones) else {
        panic!("no zones")
    };
    [0, 1, 2, 3].map(|at: usize| zones[at].pages.lent)
}

fn call(rig: &mut Rig, tenant: &Tenant, migratetype: Migratetype, nr_pages: u32) -> u64 {
    let request = AllocBulk {
        migratetype,
        ..alloc(0, nr_pages)
    };
    match rig.alloc_bulk(tenant.id, &request) {
        AllocOutcome::Done(reply) => reply.nr_blocks.into(),
        AllocOutcome::Waiting { .. } => panic!("it did not ask to wait"),
    }
}

/// Seen to fail with the zones left in the order of the zonelist, and with movable zones of all nodes
/// before all others.
#[test]
fn a_client_is_served_from_its_own_node_first() {
    for here in [0, 1] {
        let (mut rig, there) = (two_nodes(), 1 - here);
        let tenant = tenant_on(&mut rig, u32::try_from(here).unwrap());
        assert_eq!(call(&mut rig, &tenant, Migratetype::Unmovable, 20), 20);
        // More than the movable zone has here: the rest comes from the other zone here.
        assert_eq!(call(&mut rig, &tenant, Migratetype::Movable, 150), 150);
        let lent = lent(&mut rig);
        let at = usize::try_from(here).unwrap();
        assert_eq!(lent[at] + lent[2 + at], 170, "{lent:?}");
        assert!(lent[2 + at] > lent[at], "{lent:?}");
        assert_eq!((lent[1 - at], lent[3 - at]), (0, 0), "{lent:?}");
        assert_eq!(
            (node(&rig, here).hit_pages, node(&rig, here).miss_pages),
            (170, 0)
        );
        assert_eq!(node(&rig, there).hit_pages, 0);
        // Its lane too.
        assert!(rig.take(&tenant, 0, movable(), 8).len() == 8);
        assert!(rig.take(&tenant, 0, PAGE, 8).len() == 8);
        assert_eq!(node(&rig, there).pages.lent, 0);
        rig.verify();
    }
}

/// Movable pages use up both zones of their own node before they go to the other; what cannot move
/// has one zone on each. The fallback is counted at both ends, and what goes home is had again here.
#[test]
fn what_its_node_has_not_comes_from_the_other_and_is_counted() {
    for migratetype in [Migratetype::Movable, Migratetype::Unmovable] {
        let mut rig = two_nodes();
        let (near, far) = (tenant_on(&mut rig, 1), tenant_on(&mut rig, 0));
        let all = call(&mut rig, &near, migratetype, 1000);
        let here = lent(&mut rig);
        let (own, other) = (here[1] + here[3], here[0] + here[2]);
        assert_eq!(own + other, all);
        let nr_zones = if migratetype == Migratetype::Movable {
            2
        } else {
            1
        };
        // All but what the zones keep back.
        let most = nr_zones * SECTION;
        assert!((most * 3 / 4..=most).contains(&own), "{here:?}");
        assert!(other > 0 && other <= most, "{here:?}");
        let (one, zero) = (node(&rig, 1), node(&rig, 0));
        assert_eq!(
            (one.hit_pages, one.miss_pages, one.foreign_pages),
            (own, 0, other)
        );
        assert_eq!(
            (zero.hit_pages, zero.miss_pages, zero.foreign_pages),
            (0, other, 0)
        );

        // Somebody else on the other node finds little, and some of it elsewhere: counted as his.
        let more = call(&mut rig, &far, migratetype, 1000);
        let (one, zero) = (node(&rig, 1), node(&rig, 0));
        assert_eq!(zero.hit_pages + one.miss_pages, more);
        assert_eq!(zero.foreign_pages, one.miss_pages);
        rig.verify();

        for tenant in [&near, &far] {
            rig.engine.bury(tenant.id, rig.now);
        }
        let back = tenant_on(&mut rig, 1);
        assert_eq!(call(&mut rig, &back, migratetype, 10), 10);
        assert_eq!(node(&rig, 1).pages.lent, 10);
        rig.verify();
    }
}

/// Zones of no node are near to everybody, and on one node nothing changes.
#[test]
fn zones_of_any_node_are_as_near_as_can_be() {
    let order = |nodes: [Option<u32>; 4], here: u32| {
        let mut zones: Vec<ZoneId> = (0..4).map(ZoneId::new).collect();
        let node_of = |zone: ZoneId| nodes[usize::from(zone.get())];
        nearest_first(&mut zones, node_of, |other| 10 + here.abs_diff(other));
        zones.iter().map(|zone| zone.get()).collect::<Vec<_>>()
    };
    assert_eq!(order([Some(1), None, Some(0), None], 0), [1, 2, 3, 0]);
    assert_eq!(order([Some(0), None, Some(0), None], 0), [0, 1, 2, 3]);
    assert_eq!(order([Some(0), Some(0), Some(0), Some(0)], 0), [0, 1, 2, 3]);
    assert_eq!(order([None, None, None, None], 7), [0, 1, 2, 3]);
    assert_eq!(order([Some(2), Some(1), Some(0), Some(1)], 1), [1, 3, 0, 2]);
}
