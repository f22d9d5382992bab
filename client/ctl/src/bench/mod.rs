//! `hugepoolctl bench NAME`: what the pool costs, measured through a real daemon.
//!
//! Each bench prints one JSON object a line (with `-J`; else the same as a line of text): first the
//! environment, then one for each case, last the daemon's verdict on its own books. Without
//! `--runtime-dir` it starts a daemon of its own ([`daemon`]) and stops it at the end.

mod allocator;
mod attach;
mod bulk;
mod compact;
pub mod consumer;
pub mod daemon;
mod environment;
pub mod flood;
mod hotadd;
mod memory;
mod offline;
pub mod pinner;
mod pipeline;
pub mod plot;
mod reclaim;
mod report;
mod restart;
mod rpc;
mod svc;
pub mod victim;
mod windows;

use std::{path::Path, time::Duration};

use hugepool::{Client, Options, Shortfall};
use hugepool_proto::v1::{GetStatusRequest, VerifyRequest};
use serde_json::json;

use crate::{
    cli::Bench,
    connect,
    outcome::{Failure, Outcome},
    output::{Output, equation},
};

use self::{daemon::Daemon, plot::Plot, report::Report};

/// How long a call may take before a bench gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one bench.
pub async fn run(
    bench: Bench,
    plot: Option<Plot<'_>>,
    runtime_dir: Option<&Path>,
    out: &Output,
) -> Result<Outcome, Failure> {
    if let Bench::Restart { reps } = bench {
        return restart::run(reps, runtime_dir, out).await;
    }
    let own = match runtime_dir {
        Some(_) => None,
        None => Some(Daemon::start_spinning(
            zones(&bench),
            None,
            spin_us(&bench),
        )?),
    };
    let dir = runtime_dir.or(own.as_ref().map(Daemon::runtime_dir));
    let mut admin = connect::admin(dir).await?;
    let report = Report::new(out, bench.name());
    environment::print(&mut admin, &report).await?;
    match bench {
        Bench::Bulk { reps, spin_us } => {
            let options = match spin_us {
                Some(us) => Options::default().spin(Duration::from_micros(us.into())),
                None => Options::default(),
            };
            bulk::run(reps, &attach(dir, options)?, spin_us, &report)?;
        }
        Bench::Svc { reps } => svc::run(reps, &attach(dir, Options::default())?, &report)?,
        Bench::Attach { reps } => {
            let zone_bytes = present_bytes(&mut admin).await?;
            attach::run(reps, dir, zone_bytes, &report)?;
            if own.is_some() {
                // Larger, to show that the time does not depend on it.
                let larger = Daemon::start(&["normal=1GiB,backing=shm"], Some("128MiB"))?;
                let dir = Some(larger.runtime_dir());
                let zone_bytes = present_bytes(&mut connect::admin(dir).await?).await?;
                attach::run(reps, dir, zone_bytes, &report)?;
                larger.stop()?;
            }
        }
        Bench::Rpc { reps } => rpc::run(reps, dir, &report).await?,
        Bench::Pipeline { reps } => pipeline::run(reps, dir, &report)?,
        Bench::Hotadd { reps } => {
            hotadd::run(reps, dir, own.is_some(), &mut admin, &report).await?;
        }
        Bench::Compact { reps } => compact::run(reps, dir, &mut admin, &report).await?,
        Bench::Memory { reps } => memory::run(reps, dir, &report)?,
        Bench::Reclaim { reps } => reclaim::run(reps, dir, &mut admin, &report).await?,
        Bench::Flood { reps } => {
            flood::run(reps, dir, own.as_ref().map(Daemon::pid), &report).await?;
        }
        Bench::Offline { reps } => offline::run(reps, dir, &mut admin, &report).await?,
        // It kills its daemons itself.
        Bench::Restart { .. } => {}
    }
    let outcome = conclude(&mut admin, own, &report).await?;
    if let Some(plot) = plot {
        plot.draw(&report.into_lines())?;
    }
    Ok(outcome)
}

/// The daemon's verdict on its own books, and the end of a daemon of the bench's own.
async fn conclude(
    admin: &mut connect::Admin,
    own: Option<Daemon>,
    report: &Report<'_>,
) -> Result<Outcome, Failure> {
    let verdict = admin.verify(VerifyRequest {}).await?.into_inner();
    let counts = verdict.pages.unwrap_or_default();
    let ok = verdict.ok && verdict.findings.is_empty() && equation::adds_up(&counts);
    let pages = equation::json(&counts);
    report.line(
        json!({ "case": "verify", "ok": ok, "findings": verdict.findings, "pages": pages }),
    )?;
    if let Some(own) = own {
        own.stop()?;
    }
    Ok(if ok { Outcome::Done } else { Outcome::Broken })
}

/// How long a daemon of the bench's own is to spin, if that was said.
fn spin_us(bench: &Bench) -> Option<u32> {
    match bench {
        Bench::Bulk { spin_us, .. } => *spin_us,
        _ => None,
    }
}

/// The zones of a daemon of the bench's own.
fn zones(bench: &Bench) -> &'static [&'static str] {
    match bench {
        // One section to be taken away, and room for another one.
        Bench::Offline { .. } => &["normal=128MiB", "movable=128MiB,kind=movable"],
        // Packed under its clients: not too small a part of what is moved in a real one.
        Bench::Compact { .. } => &["normal=128MiB", "movable=512MiB,kind=movable"],
        // Enough for the largest case.
        _ => &["normal=512MiB", "movable=128MiB,kind=movable"],
    }
}

/// Becomes a client of the daemon that is measured.
fn attach(runtime_dir: Option<&Path>, options: Options) -> Result<Client, Failure> {
    let options = match runtime_dir {
        Some(dir) => options.runtime_dir(dir),
        None => options,
    };
    // Whatever else the machine does: a slow answer is to be measured, not given up.
    Client::attach(options.name("bench").deadline(PATIENCE))
        .map_err(|error| Failure::refused(error, "see 'hugepoolctl status'"))
}

/// A bench that could not have its pages measures nothing.
fn short(shortfall: Shortfall) -> Failure {
    Failure::refused(shortfall, "see 'hugepoolctl zone list' for what is free")
}

async fn present_bytes(admin: &mut connect::Admin) -> Result<u64, Failure> {
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    let page_bytes = status
        .geometry
        .map_or(0, |geometry| geometry.page_size_bytes);
    Ok(status.pages.map_or(0, |pages| pages.present) * page_bytes)
}
