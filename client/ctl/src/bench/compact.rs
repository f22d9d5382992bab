//! `bench compact`: what the contiguity caches gain, and a zone packed under two busy clients.
//!
//! `ablation` and `check` are [`allocator`]'s. `live` is one `Compact` through the admin socket, over
//! real memory: two clients hold a third of the zone between them, drawn by lot, and pin, read and
//! write all of it without a rest while it moves. They tell how long their pins took, and look at
//! every byte at the end.

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

/// Runs all cases.
pub async fn run(
    reps: u32,
    runtime_dir: Option<&Path>,
    admin: &mut Admin,
    report: &Report<'_>,
) -> Result<(), Failure> {
    allocator::run("compact", reps, report)?;
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
    let (mut rates, mut blocks, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut waits, mut longest) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        for pinner in &mut pinners {
            pinner.scatter()?;
        }
        pinners.iter_mut().try_for_each(Pinner::begin)?;
        let request = CompactRequest {
            zone: ZONE.to_owned(),
            ..CompactRequest::default()
        };
        let done = admin.compact(request).await?.into_inner();
        let pins = offline::worst(&mut pinners)?;
        let moved = done.nr_migrated * geometry.page_size_bytes;
        rates.push(offline::as_f64(moved) / 1e6 / done.seconds);
        blocks.push(offline::as_f64(done.nr_blocks_made));
        checks.push(offline::as_f64(done.nr_contiguity_checks) / done.seconds);
        waits.push(pins.p999_us);
        longest.push(pins.max_us);
    }
    for pinner in pinners {
        pinner.end()?;
    }
    let arm = json!({
        "clients": NR_CLIENTS,
        "zone_bytes": zone_pages * geometry.page_size_bytes,
        "backing": zone.backing.iter().map(|used| used.backing.as_str()).collect::<Vec<_>>(),
        "blocks_made": report::median(&blocks),
        "checks_per_second": report::median(&checks),
    });
    report.measured("live", NR_CLIENTS * each, "MB/s", &rates, arm)?;
    let arm = json!({ "clients": NR_CLIENTS });
    let n = NR_CLIENTS * each;
    report.measured("live_pin_wait_p999", n, "us", &waits, arm.clone())?;
    report.measured("live_pin_wait_max", n, "us", &longest, arm)
}
