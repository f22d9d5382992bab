//! Nanoseconds to pin a movable page and let it go, and to move one under its handle, in one
//! process: what a client pays for pages that may be moved.
//!
//! `cargo bench -p hugepool-shm --bench pin` prints the median, least and greatest of several
//! windows. Nothing is asserted: a busy machine is no defect.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Duration;

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::handles::PageRecord;
use hugepool_shm::mapping::Mapping;
use hugepool_shm::movable::Movable;
use hugepool_shm::process::{ClientHandle, Registration, ZoneBytes, reserve_client_index};
use hugepool_shm::raw::{PageParts, RawMigratetype, RawPage};

const NR_PAGES: u32 = 1 << 15;
const WINDOWS: usize = 15;

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let reps = if is_test { 1_000 } else { 2_000_000 };
    let (client, control) = one_process();
    println!(
        "{:<34} {:>8} {:>8} {:>8} {:>8}",
        "ns", "pages", "median", "min", "max"
    );
    for nr in [1, 64, 4096, NR_PAGES / 2] {
        let pages: Vec<Movable> = (0..nr).map(|pfn| movable(&client, pfn)).collect();
        let at = |turn: usize| &pages[turn.wrapping_mul(0x9e37_79b1) % pages.len()];
        report("pin, unpin", nr, reps, &mut |turn| {
            drop(black_box(at(turn).pin().unwrap()));
        });
        report("pin, load a byte, unpin", nr, reps, &mut |turn| {
            black_box(at(turn).pin().unwrap()[0]);
        });
    }
    report("put under a handle, take out", 1, reps, &mut |_| {
        let page = black_box(movable(&client, 0)).into_page().unwrap();
        let _ = page.into_raw();
    });
    let page = movable(&client, 0);
    let handles = control.handles();
    let mut from = 0;
    report("close and open elsewhere, no copy", 1, reps, &mut |_| {
        let to = 1 - from;
        let named = handles.look(from).unwrap();
        let begun = handles.begin_move(from, named).unwrap();
        assert!(begun.finish(to, PageRecord::new(raw(&client, to), named.handle)));
        from = to;
    });
    drop(page);
}

fn report(name: &str, nr: u32, reps: usize, act: &mut dyn FnMut(usize)) {
    (0..reps / 4).for_each(&mut *act);
    let mut windows: Vec<f64> = (0..WINDOWS)
        .map(|_| {
            let start = cpu_time();
            (0..reps).for_each(&mut *act);
            (cpu_time() - start).as_secs_f64() * 1e9 / reps as f64
        })
        .collect();
    windows.sort_by(f64::total_cmp);
    let (median, min, max) = (windows[WINDOWS / 2], windows[0], windows[WINDOWS - 1]);
    println!("{name:<34} {nr:>8} {median:>8.2} {min:>8.2} {max:>8.2}");
}

/// This thread's time on a processor: others may be busy too.
fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

fn raw(client: &ClientHandle, pfn: u32) -> RawPage {
    let parts = PageParts {
        pfn,
        order: 0,
        migratetype: RawMigratetype::Movable,
        zone: 0,
        client: client.index(),
        generation: 1,
    };
    parts.pack().unwrap()
}

fn movable(client: &ClientHandle, pfn: u32) -> Movable {
    let page = client.adopt(raw(client, pfn)).unwrap();
    client.make_movable(page).unwrap()
}

fn one_process() -> (ClientHandle, ControlSegment) {
    let geometry = ControlGeometry {
        nr_lanes: 2,
        nr_sections: 1,
        nr_pages: u64::from(NR_PAGES),
    };
    let control = ControlSegment::anonymous(geometry).unwrap();
    let memory = Mapping::anonymous(NR_PAGES as usize * 4096).unwrap();
    let registration = Registration {
        control: control.clone(),
        zones: vec![ZoneBytes::of_mapping(memory, 0, 0, 12).unwrap()],
        doorbell: Doorbell::new(|| ()),
        pageblock_order: 9,
        registered: true,
    };
    let index = reserve_client_index().unwrap();
    (index.register(registration).unwrap(), control)
}
