//! The hot operations, each so many times over in one call: lanes without a daemon's process, and
//! the zone.
//!
//! Run by `.ci/counts/compare`. Setting up is not counted.
#![allow(clippy::unwrap_used, reason = "a benchmark")]
#![allow(missing_docs, reason = "the macros' modules")]

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use hugepool_mm::{
    AllocFlags, Geometry, Migratetype, OnlineOrder, Order, Pfn, Zone, ZoneConfig, ZoneId, ZoneKind,
};
use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon};
use hugepool_shm::mapping::Mapping;
use hugepool_shm::page::Page;
use hugepool_shm::process::{
    ClientHandle, LocalLane, Registration, ZoneBytes, reserve_client_index,
};
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};

/// Times that an operation is done in one call.
const TIMES: usize = 64;
/// Slots of an NFS server's thread.
const SLOTS: usize = 65;
/// Pages of the lane's zone: a pageblock of single ones, and one as a block.
const NR_PAGES: u32 = 1024;
const PAGEBLOCK: u32 = 9;

/// A lane whose magazines hold what there is, with its daemon's side.
struct Lane {
    client: ClientHandle,
    local: LocalLane,
    daemon: LaneDaemon,
    slots: Vec<Option<Page>>,
    list: Vec<Page>,
    block: Class,
}

fn word(pfn: u32, order: u32, client: u32) -> RawPage {
    let (migratetype, zone, generation) = (RawMigratetype::Unmovable, 0, 1);
    let parts = PageParts {
        pfn,
        order,
        migratetype,
        zone,
        client,
        generation,
    };
    parts.pack().unwrap()
}

/// A lane with empty slots.
fn lane(nr_slots: usize) -> Lane {
    let control = ControlSegment::anonymous(ControlGeometry {
        nr_lanes: 2,
        nr_sections: 1,
        nr_pages: u64::from(NR_PAGES),
    });
    let control = control.unwrap();
    let mut daemon = LaneDaemon::new(control.clone(), 0).unwrap();
    let settings = ClassSettings {
        batch: 63,
        high: 512,
        low_mark: 0,
        zones: u32::MAX,
    };
    let block = Class::new(PAGEBLOCK, RawMigratetype::Unmovable, PAGEBLOCK).unwrap();
    daemon.configure(Class::PAGE, settings);
    daemon.configure(block, settings);
    let index = reserve_client_index().unwrap();
    let pages: Vec<RawPage> = (0..512).map(|pfn| word(pfn, 0, index.get())).collect();
    assert_eq!(daemon.grant(Class::PAGE, &pages), Ok(512));
    let blocks = [word(512, PAGEBLOCK, index.get())];
    assert_eq!(daemon.grant(block, &blocks), Ok(1));
    let memory = Mapping::anonymous(NR_PAGES as usize * 4096).unwrap();
    let registration = Registration {
        control,
        zones: vec![ZoneBytes::of_mapping(memory, 0, 0, 12).unwrap()],
        doorbell: Doorbell::new(|| ()),
        pageblock_order: PAGEBLOCK,
        registered: true,
    };
    let client = index.register(registration).unwrap();
    let local = client.local();
    let mut list = Vec::with_capacity(512);
    assert_eq!(local.take_into(Class::PAGE, 512, &mut list).count, 512);
    local.put_list(&mut list);
    drop(local.take_one(block).unwrap());
    // Both ways of freeing are known from here on.
    drop(local.take_one(Class::PAGE).unwrap());
    Lane {
        client,
        local,
        daemon,
        slots: (0..nr_slots).map(|_| None).collect(),
        list,
        block,
    }
}

/// A lane with slots that are full.
fn full_lane(nr_slots: usize) -> Lane {
    let mut lane = lane(nr_slots);
    assert_eq!(
        lane.local.fill(Class::PAGE, &mut lane.slots).count,
        nr_slots
    );
    lane
}

#[library_benchmark(setup = lane)]
#[bench::local(0)]
fn take_one_and_put(lane: Lane) -> Lane {
    for _ in 0..TIMES {
        lane.local
            .put(black_box(lane.local.take_one(Class::PAGE).unwrap()));
    }
    lane
}

#[library_benchmark(setup = lane)]
#[bench::plain(0)]
fn take_one_and_drop(lane: Lane) -> Lane {
    for _ in 0..TIMES {
        drop(black_box(lane.client.take_one(Class::PAGE).unwrap()));
    }
    lane
}

#[library_benchmark(setup = lane)]
#[bench::order_9(0)]
fn take_block_and_drop(lane: Lane) -> Lane {
    for _ in 0..TIMES {
        drop(black_box(lane.client.take_one(lane.block).unwrap()));
    }
    lane
}

#[library_benchmark(setup = lane)]
#[bench::n_1(1)]
#[bench::n_8(8)]
#[bench::n_65(SLOTS)]
#[bench::n_256(256)]
fn fill_and_put_slots(mut lane: Lane) -> Lane {
    for _ in 0..TIMES {
        let _ = lane.local.fill(Class::PAGE, black_box(&mut lane.slots));
        lane.local.put_slots(black_box(&mut lane.slots));
    }
    lane
}

#[library_benchmark(setup = lane)]
#[bench::n_65(SLOTS)]
fn take_and_put_list(mut lane: Lane) -> Lane {
    for _ in 0..TIMES {
        let _ = lane
            .local
            .take_into(Class::PAGE, SLOTS, black_box(&mut lane.list));
        lane.local.put_list(black_box(&mut lane.list));
    }
    lane
}

#[library_benchmark]
#[bench::n_0(lane(0))]
#[bench::full_65(full_lane(SLOTS))]
fn fill_nothing(mut lane: Lane) -> Lane {
    for _ in 0..TIMES {
        let _ = lane.local.fill(Class::PAGE, black_box(&mut lane.slots));
    }
    lane
}

#[library_benchmark(setup = full_lane)]
#[bench::one_of_65(SLOTS)]
fn fill_the_empty_one(mut lane: Lane) -> Lane {
    for _ in 0..TIMES {
        lane.local.put_slots(black_box(&mut lane.slots[40..41]));
        let _ = lane.local.fill(Class::PAGE, black_box(&mut lane.slots));
    }
    lane
}

// What is cached goes home, is lent again and taken: the lane's part of a cold stream.
#[library_benchmark(setup = lane)]
#[bench::all_512(0)]
fn stream_through_the_rings(mut lane: Lane) -> Lane {
    // Above this nothing is kept.
    let keep_nothing = ClassSettings {
        high: 0,
        ..lane.daemon.settings(Class::PAGE)
    };
    lane.daemon.configure(Class::PAGE, keep_nothing);
    let _ = lane.local.take_into(Class::PAGE, 512, &mut lane.list);
    lane.local.put_list(&mut lane.list);
    let mut home = Vec::with_capacity(512);
    lane.daemon.settle(&mut |word| home.push(word)).unwrap();
    assert_eq!(home.len(), 512);
    assert_eq!(lane.daemon.grant(Class::PAGE, &home), Ok(512));
    for _ in 0..7 {
        let _ = lane.local.take_into(Class::PAGE, SLOTS, &mut lane.list);
    }
    lane
}

library_benchmark_group!(
    name = lanes,
    benchmarks = [
        take_one_and_put,
        take_one_and_drop,
        take_block_and_drop,
        fill_and_put_slots,
        take_and_put_list,
        fill_nothing,
        fill_the_empty_one,
        stream_through_the_rings
    ]
);

/// A zone of two sections of 128 MiB, all free, and room for pages.
fn zone(nr_taken: usize) -> (Zone, Vec<Pfn>) {
    let geometry = Geometry::standard();
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: "counts".to_owned(),
        kind: ZoneKind::Normal,
        node: 0,
        start: Pfn::new(0),
        span_pages: 2 * u64::from(geometry.section_pages()),
    };
    let mut zone = Zone::new(config, geometry).unwrap();
    for section in zone.lowest_absent(2) {
        zone.begin_add(section).unwrap();
        zone.finish_add(section).unwrap();
        zone.online(section, OnlineOrder::Pageblock).unwrap();
    }
    let mut pages = Vec::with_capacity(SLOTS * TIMES);
    take(&mut zone, nr_taken, &mut pages);
    (zone, pages)
}

fn take(zone: &mut Zone, nr: usize, pages: &mut Vec<Pfn>) {
    zone.rmqueue_bulk(
        Order::ZERO,
        Migratetype::Unmovable,
        nr,
        AllocFlags::DIP,
        pages,
    );
}

#[library_benchmark(setup = zone)]
#[bench::n_65(0)]
fn rmqueue_bulk((mut zone, mut pages): (Zone, Vec<Pfn>)) -> (Zone, Vec<Pfn>) {
    for _ in 0..TIMES {
        take(&mut zone, SLOTS, &mut pages);
    }
    (zone, pages)
}

#[library_benchmark(setup = zone)]
#[bench::n_65(SLOTS * TIMES)]
fn free_bulk((mut zone, pages): (Zone, Vec<Pfn>)) -> (Zone, Vec<Pfn>) {
    for batch in pages.chunks(SLOTS) {
        zone.free_bulk(black_box(batch), Order::ZERO);
    }
    (zone, pages)
}

#[library_benchmark(setup = zone)]
#[bench::order_9(0)]
fn alloc_and_free((mut zone, pages): (Zone, Vec<Pfn>)) -> (Zone, Vec<Pfn>) {
    let order = Order::new(9).unwrap();
    for _ in 0..TIMES {
        let block = zone.alloc(order, Migratetype::Unmovable, AllocFlags::DIP);
        zone.free(black_box(block.unwrap()), order);
    }
    (zone, pages)
}

library_benchmark_group!(
    name = zones,
    benchmarks = [rmqueue_bulk, free_bulk, alloc_and_free]
);

main!(library_benchmark_groups = [lanes, zones]);
