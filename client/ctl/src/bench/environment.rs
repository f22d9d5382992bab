//! Where a bench was run: versions, backing, processors, and what one cache line costs on its way
//! from one of them to another and back.

use std::{
    hint,
    num::NonZeroUsize,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Instant,
};

use hugepool_proto::v1::{GetStatusRequest, ListZonesRequest};
use serde_json::json;

use super::report::Report;
use crate::{connect::Admin, outcome::Failure};

/// Round trips of one measurement.
const ROUNDS: u32 = 20_000;

/// Prints the line that every other line is to be read with.
pub async fn print(admin: &mut Admin, report: &Report<'_>) -> Result<(), Failure> {
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    let zones = admin
        .list_zones(ListZonesRequest {})
        .await?
        .into_inner()
        .zones;
    let mut backing: Vec<String> = zones
        .into_iter()
        .flat_map(|zone| zone.backing)
        .map(|used| used.backing)
        .collect();
    backing.sort();
    backing.dedup();
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    report.line(json!({
        "case": "environment",
        "tool_version": env!("CARGO_PKG_VERSION"),
        "daemon_version": status.version,
        "layout_version": status.layout_version,
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "backing": backing,
        "cores": cores,
        "cache_line_round_trip_ns": if cores > 1 { Some(round_trip_ns()) } else { None },
    }))
}

/// Nanoseconds for a word to be answered by a thread that spins on another processor.
fn round_trip_ns() -> f64 {
    let word = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..ROUNDS {
                wait_for(&word, 2 * turn + 1);
                word.store(2 * turn + 2, Ordering::Release);
            }
        });
        let begun = Instant::now();
        for turn in 0..ROUNDS {
            word.store(2 * turn + 1, Ordering::Release);
            wait_for(&word, 2 * turn + 2);
        }
        (begun.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS) * 10.0).round() / 10.0
    })
}

fn wait_for(word: &AtomicU32, value: u32) {
    let mut nr_spins = 0_u32;
    while word.load(Ordering::Acquire) != value {
        hint::spin_loop();
        nr_spins += 1;
        // The other thread may be waiting for this processor.
        if nr_spins.is_multiple_of(1 << 14) {
            thread::yield_now();
        }
    }
}
