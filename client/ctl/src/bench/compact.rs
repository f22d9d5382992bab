//! `bench compact`: what the contiguity caches gain, and a zone packed under two busy clients.
//!
//! `ablation` and `check` are [`allocator`]'s. `live` is one `Compact` through the admin socket, over
//! real memory: two clients hold a third of the zone between them, drawn by lot. They pin, read and
//! write all of it without a rest while it moves, and tell how long their pins took; with `stopped`
//! they are stopped meanwhile, so that what is left is the daemon's own pace. They look at every
//! byte at the end.

use std::path::Path;

use hugepool_proto::v1::{CompactRequest, GetStatusRequest, ListZonesRequest};
use serde_json::json;

use super::{
    allocator, offline,
    pinner::Pinner,
    report::{self, Report},
};
use crate::{connect::Admin, outcome::Failure};

/// The zone that is packed.
const ZONE: &str = "movable";
/// Clients.
const NR_CLIENTS: u64 = 2;
/// A client holds that part of the zone; while it scatters its pages, twice as much.
const SHARE: u64 = 6;

/// What was measured with the clients busy, or stopped.
#[derive(Default)]
struct Arm {
    rates: Vec<f64>,
    blocks: Vec<f64>,
    checks: Vec<f64>,
}

/// Runs all cases.
pub async fn run(
    reps: u32,
    runtime_dir: Option<&Path>,
    admin: &mut Admin,
    report: &Report<'_>,
) -> Result<(), Failure> {
    allocator::run("compact", Some(reps), report)?;
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    let geometry = status.geometry.unwrap_or_default();
    let zones = admin.list_zones(ListZonesRequest {}).await?.into_inner();
    let zone = zones.zones.into_iter().find(|zone| zone.name == ZONE);
    let zone = zone.ok_or_else(|| {
        Failure::refused(
            format_args!("there is no zone {ZONE:?}"),
            "the bench needs one of that name and kind",
        )
    })?;
    let zone_pages = zone.pages.unwrap_or_default().managed;
    let each = zone_pages / SHARE;
    let mut pinners = Vec::new();
    for _ in 0..NR_CLIENTS {
        pinners.push(Pinner::start(each, runtime_dir)?);
    }
    let mut arms = [false, true].map(|stopped| (stopped, Arm::default()));
    let (mut waits, mut longest) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        for (stopped, arm) in &mut arms {
            for pinner in &mut pinners {
                pinner.scatter()?;
            }
            pinners.iter_mut().try_for_each(Pinner::begin)?;
            if *stopped {
                pinners.iter().try_for_each(Pinner::stop)?;
            }
            let request = CompactRequest {
                zone: ZONE.to_owned(),
                ..CompactRequest::default()
            };
            let done = admin.compact(request).await?.into_inner();
            if *stopped {
                pinners.iter().try_for_each(Pinner::go_on)?;
            } else {
                let pins = offline::worst(&mut pinners)?;
                waits.push(pins.p999_us);
                longest.push(pins.max_us);
            }
            let moved = done.nr_migrated * geometry.page_size_bytes;
            arm.rates.push(offline::as_f64(moved) / 1e6 / done.seconds);
            arm.blocks.push(offline::as_f64(done.nr_blocks_made));
            let checks = offline::as_f64(done.nr_contiguity_checks);
            arm.checks.push(checks / done.seconds);
        }
    }
    for pinner in pinners {
        pinner.end()?;
    }
    for (stopped, arm) in arms {
        let fields = json!({
            "clients": NR_CLIENTS,
            "stopped": u8::from(stopped),
            "zone_bytes": zone_pages * geometry.page_size_bytes,
            "backing": zone.backing.iter().map(|used| used.backing.as_str()).collect::<Vec<_>>(),
            "blocks_made": report::median(&arm.blocks),
            "checks_per_second": report::median(&arm.checks),
        });
        report.measured("live", NR_CLIENTS * each, "MB/s", &arm.rates, fields)?;
    }
    let arm = json!({ "clients": NR_CLIENTS });
    let n = NR_CLIENTS * each;
    report.measured("live_pin_wait_p999", n, "us", &waits, arm.clone())?;
    report.measured("live_pin_wait_max", n, "us", &longest, arm)
}
