//! `bench offline`: a section half full of movable pages is taken away under two clients that use
//! them without a rest.
//!
//! The section's pages go to one that has just been added; then that one is taken away, and so on.
//! The clients tell how long their pins took meanwhile, and before, with nothing going on; at the
//! end they look at every byte.

use std::{path::Path, time::Instant};

use hugepool_proto::v1::{
    AddSectionsRequest, GetStatusRequest, ListSectionsRequest, OfflineSectionsRequest,
    RemoveSectionsRequest, SectionsResponse,
};
use serde_json::json;

use super::{
    pinner::{Measured, Pinner},
    report::Report,
};
use crate::{connect::Admin, outcome::Failure};

/// The zone whose section goes.
const ZONE: &str = "movable";
/// Clients.
const NR_CLIENTS: u64 = 2;

/// Takes the section that the clients' pages are in away, again and again.
pub async fn run(
    reps: u32,
    runtime_dir: Option<&Path>,
    admin: &mut Admin,
    report: &Report<'_>,
) -> Result<(), Failure> {
    let (section_pages, page_bytes) = sizes(admin).await?;
    let each = section_pages / 2 / NR_CLIENTS;
    let mut pinners = Vec::new();
    for _ in 0..NR_CLIENTS {
        pinners.push(Pinner::start(each, runtime_dir)?);
    }
    let (mut times, mut rates) = (Vec::new(), Vec::new());
    let (mut waits, mut longest, mut waits_alone) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..reps {
        let section = fullest_section(admin).await?;
        let request = AddSectionsRequest {
            zone: ZONE.to_owned(),
            count: 1,
            ..Default::default()
        };
        done(admin.add_sections(request).await?.into_inner())?;
        waits_alone.push(pause(&mut pinners).await?.p999_us);
        let begun = Instant::now();
        let request = OfflineSectionsRequest {
            section_ids: vec![section],
            timeout_ms: 30_000,
            ..Default::default()
        };
        let result = done(admin.offline_sections(request).await?.into_inner())?;
        let seconds = begun.elapsed().as_secs_f64();
        let pins = worst(&mut pinners)?;
        times.push(seconds * 1e3);
        rates.push(as_f64(result.moved * page_bytes) / 1e6 / seconds);
        waits.push(pins.p999_us);
        longest.push(pins.max_us);
        let request = RemoveSectionsRequest {
            section_ids: vec![section],
            ..Default::default()
        };
        done(admin.remove_sections(request).await?.into_inner())?;
    }
    for pinner in pinners {
        pinner.end()?;
    }
    let n = each * NR_CLIENTS;
    let arm = json!({ "clients": NR_CLIENTS, "section_bytes": section_pages * page_bytes });
    report.measured("half_full_live", n, "ms", &times, arm.clone())?;
    report.measured("half_full_live", n, "MB/s", &rates, arm)?;
    let arm = |moving: bool| json!({ "clients": NR_CLIENTS, "moving": moving });
    report.measured("pin_wait_p999", n, "us", &waits, arm(true))?;
    report.measured("pin_wait_p999", n, "us", &waits_alone, arm(false))?;
    report.measured("pin_wait_max", n, "us", &longest, arm(true))
}

/// Pages of a section, and bytes of a page.
async fn sizes(admin: &mut Admin) -> Result<(u64, u64), Failure> {
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    let geometry = status.geometry.unwrap_or_default();
    let page_bytes = geometry.page_size_bytes.max(1);
    Ok((geometry.section_size_bytes / page_bytes, page_bytes))
}

/// The section of the zone with most pages lent.
async fn fullest_section(admin: &mut Admin) -> Result<u32, Failure> {
    let request = ListSectionsRequest {
        zone: ZONE.to_owned(),
        ..Default::default()
    };
    let sections = admin.list_sections(request).await?.into_inner().sections;
    let fullest = sections.iter().max_by_key(|section| section.lent);
    let fullest = fullest.filter(|section| section.lent > 0);
    fullest.map(|section| section.id).ok_or_else(|| {
        Failure::refused(
            format_args!("nothing is lent out of a zone {ZONE:?}"),
            "the bench needs one of that name and kind",
        )
    })
}

/// Lets the pinners work a while with nothing going on, and forget it.
async fn pause(pinners: &mut [Pinner]) -> Result<Measured, Failure> {
    pinners.iter_mut().try_for_each(Pinner::begin)?;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let measured = worst(pinners)?;
    pinners.iter_mut().try_for_each(Pinner::begin)?;
    Ok(measured)
}

/// Of all pinners together: the worst of each figure.
pub fn worst(pinners: &mut [Pinner]) -> Result<Measured, Failure> {
    let mut worst: Option<Measured> = None;
    for pinner in pinners {
        let measured = pinner.measured()?;
        worst = Some(match worst {
            None => measured,
            Some(other) => Measured {
                nr_pins: other.nr_pins + measured.nr_pins,
                p999_us: other.p999_us.max(measured.p999_us),
                max_us: other.max_us.max(measured.max_us),
            },
        });
    }
    worst.ok_or_else(|| Failure::refused("there is no pinner", "this is a defect"))
}

fn done(answer: SectionsResponse) -> Result<hugepool_proto::v1::SectionResult, Failure> {
    match answer.results.into_iter().next() {
        Some(result) if result.ok => Ok(result),
        other => Err(Failure::refused(
            format_args!("a section did not come or go: {other:?}"),
            "see 'hugepoolctl section list'",
        )),
    }
}

/// Far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
pub fn as_f64(count: u64) -> f64 {
    count as f64
}
