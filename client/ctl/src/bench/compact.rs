//! `bench compact`: what the contiguity caches gain, and a zone packed under two live clients.
//!
//! `ablation` and `check` are [`allocator`]'s. `live` is one `Compact` through the admin socket, over
//! real memory: two clients hold a third of the zone between them, drawn by lot. Meanwhile, by `load`,
//! they pin, read and write all of it without a rest (`busy`: on two processors they have half of
//! both), or a few pages every millisecond (`idle`), and tell how long their pins took; or they are
//! stopped (`stopped`), so that what is left is the daemon's own pace. They look at every byte at the
//! end.

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

/// What the clients do meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Busy,
    Idle,
    Stopped,
}

impl Load {
    const ALL: [Load; 3] = [Load::Busy, Load::Idle, Load::Stopped];

    fn name(self) -> &'static str {
        match self {
            Load::Busy => "busy",
            Load::Idle => "idle",
            Load::Stopped => "stopped",
        }
    }
}

/// What was measured with the clients under one load.
#[derive(Default)]
struct Arm {
    rates: Vec<f64>,
    blocks: Vec<f64>,
    checks: Vec<f64>,
    /// Of their pins; nothing of clients that are stopped.
    waits: Vec<f64>,
    longest: Vec<f64>,
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
    let mut arms = Load::ALL.map(|load| (load, Arm::default()));
    for _ in 0..reps {
        for (load, arm) in &mut arms {
            let is_stopped = *load == Load::Stopped;
            for pinner in &mut pinners {
                pinner.scatter()?;
                pinner.rest(*load == Load::Idle)?;
                pinner.begin()?;
            }
            if is_stopped {
                pinners.iter().try_for_each(Pinner::stop)?;
            }
            let request = CompactRequest {
                zone: ZONE.to_owned(),
                ..CompactRequest::default()
            };
            let done = admin.compact(request).await?.into_inner();
            if is_stopped {
                pinners.iter().try_for_each(Pinner::go_on)?;
            } else {
                let pins = offline::worst(&mut pinners)?;
                arm.waits.push(pins.p999_us);
                arm.longest.push(pins.max_us);
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
    let n = NR_CLIENTS * each;
    for (load, arm) in &arms {
        let fields = json!({
            "clients": NR_CLIENTS,
            "load": load.name(),
            "stopped": u8::from(*load == Load::Stopped),
            "zone_bytes": zone_pages * geometry.page_size_bytes,
            "backing": zone.backing.iter().map(|used| used.backing.as_str()).collect::<Vec<_>>(),
            "blocks_made": report::median(&arm.blocks),
            "checks_per_second": report::median(&arm.checks),
        });
        report.measured("live", n, "MB/s", &arm.rates, fields)?;
    }
    for (load, arm) in arms.iter().filter(|(_, arm)| !arm.waits.is_empty()) {
        let fields = json!({ "clients": NR_CLIENTS, "load": load.name() });
        report.measured("live_pin_wait_p999", n, "us", &arm.waits, fields.clone())?;
        report.measured("live_pin_wait_max", n, "us", &arm.longest, fields)?;
    }
    Ok(())
}
