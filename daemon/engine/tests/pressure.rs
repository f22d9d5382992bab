//! Zones between their marks: what is brought home in the background, in which order and how much,
//! and who is told; movable requests fall back to a zone that keeps some back.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;
#[path = "support/movable.rs"]
mod tenants;

use hugepool_engine::{
    AllocBulk, AllocOutcome, ClaimedRun, ClientId, Command, Defaults, FreeBulk, Shortfall,
};
use hugepool_mm::{Migratetype, Pressure, ZoneKind};
use hugepool_shm::raw::RawMigratetype;

use support::{Rig, Tenant, alloc, movable, zone};
use tenants::*;

const ZONE_PAGES: u64 = 64 * 128;

/// One zone large enough that its marks lie apart.
fn rig() -> Rig {
    let defaults = Defaults {
        proactiveness: 0,
        ..Defaults::default()
    };
    let mut rig = Rig::with(vec![zone("normal", ZoneKind::Normal, 64)], defaults);
    rig.add("normal", 64);
    let marks = rig.engine.list_zones()[0].watermarks;
    assert!(
        marks.min + 8 < marks.low && marks.low + 8 < marks.high,
        "{marks:?}"
    );
    rig
}

/// Free pages, those in the zone's own lists included.
fn free(rig: &Rig) -> u64 {
    let pages = rig.pages();
    pages.free + pages.pcp
}

/// Somebody takes pages for good until so many are left.
fn take_down_to(rig: &mut Rig, stranger: ClientId, left: u64) {
    let nr = u32::try_from(free(rig) - left).unwrap();
    assert_eq!(rig.alloc(stranger, 0, nr).nr_blocks, nr);
}

/// What was told of pressure, in order.
fn told(rig: &Rig) -> Vec<String> {
    let events = rig.engine.events_since(0).events;
    let pressure = events.iter().filter(|event| event.kind == "pressure");
    let word = |text: &str| text.split(": ").nth(1).unwrap().to_owned();
    pressure.map(|event| word(&event.text)).collect()
}

fn seconds(rig: &mut Rig, nr: u64) {
    for _ in 0..nr * 10 {
        rig.advance(100);
        rig.service();
    }
}

/// A client with evictable pages, as many as asked for.
fn with_evictables(rig: &mut Rig, count: u32) -> Tenant {
    let tenant = rig.tenant(1);
    hold(rig, &tenant, class(0, RawMigratetype::Reclaimable), count);
    tenant
}

#[test]
fn a_lane_that_nobody_uses_is_emptied_when_its_zone_is_short_and_not_before() {
    let mut rig = rig();
    let idle = rig.tenant(1);
    let pages = rig.take(&idle, 0, movable(), 200);
    idle.put(0, &pages);
    rig.service();
    assert!(rig.client(idle.id).lent > 0);
    seconds(&mut rig, 3);
    let in_lane = rig.client(idle.id).lent;
    assert!(in_lane > 0, "nobody is short of them");
    let stranger = rig.tenant(1);
    let low = rig.engine.list_zones()[0].watermarks.low;
    take_down_to(&mut rig, stranger.id, low - 2);
    rig.poll();
    assert_eq!(rig.client(idle.id).lent, 0);
    assert!(free(&rig) >= low - 2 + in_lane);
    rig.verify();
}

#[test]
fn evictable_pages_are_taken_up_to_high_and_no_further() {
    let mut rig = rig();
    let cache = with_evictables(&mut rig, 600);
    empty(&mut rig);
    // It takes the rest too: a stranger would leave what is below `low` to it.
    let marks = rig.engine.list_zones()[0].watermarks;
    take_down_to(&mut rig, cache.id, marks.high + 8);
    assert_eq!((rig.poll(), told(&rig)), (None, vec![]), "above low");
    assert_eq!(rig.client(cache.id).nr_evicted_pages, 0);
    let left = marks.low - 8;
    take_down_to(&mut rig, cache.id, left);
    assert_eq!(
        (rig.client(cache.id).nr_evicted_pages, free(&rig)),
        (0, left)
    );
    while rig.poll().is_some_and(|next| next <= rig.now) {}
    let evicted = rig.client(cache.id).nr_evicted_pages;
    assert_eq!(evicted, marks.high - left);
    assert_eq!(rig.pages().free, marks.high);
    assert_eq!(
        told(&rig),
        ["pressure low"],
        "not better before it has lasted"
    );
    rig.advance(100);
    assert_eq!(told(&rig), ["pressure low", "pressure none"]);
    seconds(&mut rig, 3);
    assert_eq!(rig.client(cache.id).nr_evicted_pages, evicted);
    rig.verify();
}

fn empty(rig: &mut Rig) {
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
}

#[test]
fn where_nothing_can_be_had_it_is_looked_again_a_second_later() {
    let mut rig = rig();
    let cache = with_evictables(&mut rig, 100);
    empty(&mut rig);
    (0..100).for_each(|handle| assert!(cache.pin(handle).is_ok()));
    let stranger = rig.tenant(1);
    let marks = rig.engine.list_zones()[0].watermarks;
    take_down_to(&mut rig, stranger.id, marks.min + 4);
    rig.poll();
    assert_eq!(rig.poll(), None, "all is pinned");
    (0..100).for_each(|handle| cache.unpin(handle));
    rig.advance(500);
    assert_eq!(rig.client(cache.id).nr_evicted_pages, 0);
    rig.advance(500);
    assert!(rig.client(cache.id).nr_evicted_pages > 0);
    rig.verify();
}

#[test]
fn the_worst_is_told_at_once_and_all_clear_when_it_lasts() {
    let mut rig = rig();
    let stranger = rig.tenant(1);
    let marks = rig.engine.list_zones()[0].watermarks;
    take_down_to(&mut rig, stranger.id, marks.min + 1);
    let ask = |rig: &mut Rig, is_urgent: bool| {
        let request = AllocBulk {
            is_urgent,
            ..alloc(0, 1000)
        };
        let AllocOutcome::Done(reply) = rig.alloc_bulk(stranger.id, &request) else {
            panic!("nobody waits")
        };
        u64::from(reply.nr_blocks)
    };
    // An ordinary request ends at min; an urgent one takes five eighths of what is below.
    assert_eq!(ask(&mut rig, false), 1);
    rig.poll();
    assert_eq!(told(&rig), ["pressure low"]);
    assert_eq!(rig.engine.list_zones()[0].pressure, Pressure::Low);
    let urgent = ask(&mut rig, true);
    let kept = marks.min - urgent;
    assert!(
        kept.abs_diff(marks.min * 3 / 8) <= 2,
        "{kept} of {}",
        marks.min
    );
    assert_eq!((ask(&mut rig, true), ask(&mut rig, false)), (0, 0));
    rig.poll();
    assert_eq!(told(&rig), ["pressure low", "pressure min"]);
    let stands = rig.engine.pressure_of(stranger.id).unwrap();
    assert_eq!(
        (stands[0].level, stands[0].free_pages),
        (Pressure::Min, kept)
    );
    rig.engine.bury(stranger.id, rig.now);
    assert!(rig.poll().is_some(), "it is told later that all is well");
    assert_eq!(told(&rig).len(), 2);
    rig.advance(100);
    assert_eq!(
        told(&rig),
        ["pressure low", "pressure min", "pressure none"]
    );
    assert_eq!(rig.engine.pressure_of(stranger.id), None);
    assert_eq!(free(&rig), ZONE_PAGES);
    rig.verify();
}

#[test]
fn movable_requests_fall_back_to_a_normal_zone_that_keeps_some_back() {
    let settings = vec![
        zone("normal", ZoneKind::Normal, 32),
        zone("movable", ZoneKind::Movable, 64),
    ];
    let mut rig = Rig::with(settings, Defaults::default());
    rig.add("normal", 32);
    rig.add("movable", 64);
    let mut spec = rig.spec(4000);
    spec.zones.reverse();
    let tenant = rig.attach(spec, 1);
    tenant.map_all();
    let ask = |rig: &mut Rig, migratetype| {
        let request = AllocBulk {
            migratetype,
            ..alloc(0, 64 * SECTION)
        };
        let AllocOutcome::Done(reply) = rig.alloc_bulk(tenant.id, &request) else {
            panic!("nobody waits")
        };
        reply
    };
    let zones = |rig: &Rig| rig.engine.list_zones();
    let before = zones(&rig);
    let first = ask(&mut rig, Migratetype::Movable);
    let after = zones(&rig);
    let kept = before[1].watermarks.min;
    assert_eq!(after[1].pages.free + after[1].pages.pcp, kept);
    // The rest came from the normal zone.
    assert_eq!(u64::from(first.nr_blocks), before[1].pages.managed);
    let mut last = ask(&mut rig, Migratetype::Movable);
    while last.nr_blocks > 0 {
        last = ask(&mut rig, Migratetype::Movable);
    }
    assert!(
        matches!(last.shortfall, Some(Shortfall::ZoneEmpty { .. })),
        "{last:?}"
    );
    // What it keeps back from them is there for those who have no other zone.
    let reserve = before[1].pages.managed / 32;
    let normal = &zones(&rig)[0];
    assert_eq!(normal.pages.free, normal.watermarks.min + reserve);
    let unmovable = ask(&mut rig, Migratetype::Unmovable);
    assert_eq!(u64::from(unmovable.nr_blocks), reserve);
    rig.verify();
}

#[test]
fn pages_claimed_from_foreign_pageblocks_raise_no_alarm() {
    let mut rig = rig();
    let stranger = rig.tenant(1);
    let marks = rig.engine.list_zones()[0].watermarks;
    let movable = AllocBulk {
        migratetype: Migratetype::Movable,
        is_urgent: true,
        ..alloc(0, u32::try_from(ZONE_PAGES).unwrap())
    };
    let AllocOutcome::Done(all) = rig.alloc_bulk(stranger.id, &movable) else {
        panic!("nobody waits")
    };
    rig.poll();
    // Half of each of some pageblocks is free again: enough to be above high. For another type there
    // are two whole pageblocks, and then parts of these.
    let mut runs = Vec::new();
    for run in &all.runs {
        for at in 0..run.nr_blocks {
            let pfn = run.first.get() + at;
            if pfn % 32 < 16 && pfn < 32 * 20 {
                runs.push(ClaimedRun {
                    first_pfn: pfn,
                    nr_blocks: 1,
                    order: 0,
                    generation: run.generation,
                });
            }
        }
    }
    let freed = FreeBulk {
        request_id: 0,
        acknowledged: 0,
        runs,
    };
    let reply = rig.engine.free_bulk(stranger.id, &freed).unwrap();
    assert_eq!(reply.nr_blocks, 20 * 16);
    rig.advance(1000);
    rig.advance(1000);
    let before = told(&rig).len();
    assert_eq!(told(&rig).last().map(String::as_str), Some("pressure none"));
    for _ in 0..13 {
        assert_eq!(rig.alloc(stranger.id, 3, 1).nr_blocks, 1);
        rig.poll();
    }
    assert!(free(&rig) > marks.high);
    assert_eq!(told(&rig).len(), before, "{:?}", told(&rig));
    rig.verify();
}
