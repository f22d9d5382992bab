//! Nanoseconds per page to take a batch out of a lane and give it back, in one process, with a
//! warm magazine: the library's fastest path without the library.
//!
//! `cargo bench -p hugepool-shm --bench lane` prints, for each batch and each handle, the median,
//! least and greatest of several windows. Nothing is asserted: a busy machine is no defect.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon};
use hugepool_shm::mapping::Mapping;
use hugepool_shm::page::Page;
use hugepool_shm::process::{
    ClientHandle, LocalLane, Registration, ZoneBytes, reserve_client_index,
};
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};

const NR_PAGES: u32 = 1024;
const WINDOWS: usize = 11;
const PAGES_PER_WINDOW: usize = 1_000_000;

/// Takes and gives back `n` pages, `reps` times.
type Arm<'a> = &'a dyn Fn(usize, usize);

fn main() {
    // `cargo test --benches` runs this too: then once, briefly.
    let is_test = std::env::args().any(|argument| argument == "--test");
    let pages_per_window = if is_test { 4_000 } else { PAGES_PER_WINDOW };
    let (client, _daemon) = one_process();
    let local = client.local();
    println!(
        "{:<34} {:>6} {:>8} {:>8} {:>8}",
        "get+put, ns per page", "n", "median", "min", "max"
    );
    let arms: [(&str, Arm<'_>); 5] = [
        ("local, single calls", &|n, reps| single(&local, n, reps)),
        ("handle, single calls, drop", &|n, reps| {
            single_drop(&client, n, reps)
        }),
        ("local, array (put_slots)", &|n, reps| {
            array(&local, n, reps)
        }),
        ("local, list (put_list)", &|n, reps| list(&local, n, reps)),
        ("handle, array (put_slots)", &|n, reps| {
            handle_array(&client, n, reps)
        }),
    ];
    for (name, arm) in arms {
        for n in [1, 8, 32, 65, 256] {
            report(name, n, pages_per_window / n, arm);
        }
    }
    full(&local, pages_per_window / 65);
}

fn report(name: &str, n: usize, reps: usize, arm: Arm<'_>) {
    arm(n, reps / 4);
    let mut windows: Vec<f64> = (0..WINDOWS)
        .map(|_| {
            let start = Instant::now();
            arm(n, reps);
            start.elapsed().as_secs_f64() * 1e9 / (reps * n) as f64
        })
        .collect();
    windows.sort_by(f64::total_cmp);
    let (median, min, max) = (windows[WINDOWS / 2], windows[0], windows[WINDOWS - 1]);
    println!("{name:<34} {n:>6} {median:>8.2} {min:>8.2} {max:>8.2}");
}

fn single(local: &LocalLane, n: usize, reps: usize) {
    let mut slots: Vec<Option<Page>> = (0..n).map(|_| None).collect();
    for _ in 0..reps {
        for slot in &mut slots {
            *slot = black_box(local.take_one(Class::PAGE).ok());
        }
        for slot in &mut slots {
            if let Some(page) = slot.take() {
                local.put(black_box(page));
            }
        }
    }
}

fn single_drop(client: &ClientHandle, n: usize, reps: usize) {
    let mut slots: Vec<Option<Page>> = (0..n).map(|_| None).collect();
    for _ in 0..reps {
        for slot in &mut slots {
            *slot = black_box(client.take_one(Class::PAGE).ok());
        }
        for slot in &mut slots {
            drop(black_box(slot.take()));
        }
    }
}

fn array(local: &LocalLane, n: usize, reps: usize) {
    let mut slots: Vec<Option<Page>> = (0..n).map(|_| None).collect();
    for _ in 0..reps {
        let taken = local.fill(Class::PAGE, black_box(&mut slots));
        debug_assert_eq!(taken.count, n);
        local.put_slots(black_box(&mut slots));
    }
}

fn handle_array(client: &ClientHandle, n: usize, reps: usize) {
    let mut slots: Vec<Option<Page>> = (0..n).map(|_| None).collect();
    for _ in 0..reps {
        let _ = client.fill(Class::PAGE, black_box(&mut slots));
        client.put_slots(black_box(&mut slots));
    }
}

fn list(local: &LocalLane, n: usize, reps: usize) {
    let mut pages: Vec<Page> = Vec::with_capacity(n);
    for _ in 0..reps {
        let _ = local.take_into(Class::PAGE, n, black_box(&mut pages));
        local.put_list(black_box(&mut pages));
    }
}

fn full(local: &LocalLane, reps: usize) {
    let mut slots: [Option<Page>; 65] = [const { None }; 65];
    let _ = local.fill(Class::PAGE, &mut slots);
    let per_call = |act: &mut dyn FnMut()| {
        let mut windows: Vec<f64> = (0..WINDOWS)
            .map(|_| {
                let start = Instant::now();
                (0..reps).for_each(|_| act());
                start.elapsed().as_secs_f64() * 1e9 / reps as f64
            })
            .collect();
        windows.sort_by(f64::total_cmp);
        windows[WINDOWS / 2]
    };
    let nothing = per_call(&mut || {
        let _ = black_box(local.fill(Class::PAGE, black_box(&mut [])));
    });
    let full = per_call(&mut || {
        let _ = black_box(local.fill(Class::PAGE, black_box(&mut slots)));
    });
    println!("no slots: {nothing:.2} ns a call; all 65 slots full: {full:.2} ns a call");
    let mut one_empty = per_call(&mut || {
        local.put_slots(black_box(&mut slots[40..41]));
        let _ = black_box(local.fill(Class::PAGE, black_box(&mut slots)));
    });
    one_empty *= 1.0;
    println!("1 of 65 slots empty, freed and filled: {one_empty:.2} ns a call");
    local.put_slots(&mut slots);
}

/// A client and its daemon in this process, with all pages in the lane's magazine.
fn one_process() -> (ClientHandle, LaneDaemon) {
    let geometry = ControlGeometry {
        nr_lanes: 2,
        nr_sections: 1,
        nr_pages: u64::from(NR_PAGES),
    };
    let control = ControlSegment::anonymous(geometry).unwrap();
    let mut daemon = LaneDaemon::new(control.clone(), 0).unwrap();
    let settings = ClassSettings {
        batch: 63,
        high: 1024,
        low_mark: 0,
        zones: u32::MAX,
    };
    daemon.configure(Class::PAGE, settings);
    let index = reserve_client_index().unwrap();
    let lent: Vec<RawPage> = (0..NR_PAGES)
        .map(|pfn| {
            let (order, zone, generation) = (0, 0, 1);
            let migratetype = RawMigratetype::Unmovable;
            let client = index.get();
            PageParts {
                pfn,
                order,
                migratetype,
                zone,
                client,
                generation,
            }
            .pack()
            .unwrap()
        })
        .collect();
    assert_eq!(daemon.grant(Class::PAGE, &lent), Ok(lent.len()));
    let memory = Mapping::anonymous(NR_PAGES as usize * 4096).unwrap();
    let zones = vec![ZoneBytes::of_mapping(memory, 0, 0, 12).unwrap()];
    let doorbell = Doorbell::new(|| ());
    let registration = Registration {
        control,
        zones,
        doorbell,
        pageblock_order: 9,
        registered: true,
    };
    let client = index.register(registration).unwrap();
    let local = client.local();
    let mut warm: Vec<Page> = Vec::new();
    assert_eq!(
        local
            .take_into(Class::PAGE, NR_PAGES as usize, &mut warm)
            .count,
        lent.len()
    );
    local.put_list(&mut warm);
    (client, daemon)
}
