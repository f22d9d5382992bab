//! `hugepoolctl bench NAME`: what the pool costs, measured through a real daemon.
//!
//! Each bench prints one JSON object a line (with `-J`; else the same as a line of text): first the
//! environment, then one for each case, last the daemon's verdict on its own books. Without
//! `--runtime-dir` it starts a daemon of its own ([`daemon`]) and stops it at the end.

mod daemon;
mod environment;
mod reclaim;
mod report;
pub mod victim;

use std::path::Path;

use hugepool_proto::v1::VerifyRequest;
use serde_json::json;

use crate::{
    cli::Bench,
    connect,
    outcome::{Failure, Outcome},
    output::{Output, equation},
};

use self::{daemon::Daemon, report::Report};

/// Runs one bench.
pub async fn run(
    bench: Bench,
    runtime_dir: Option<&Path>,
    out: &Output,
) -> Result<Outcome, Failure> {
    let own = match runtime_dir {
        Some(_) => None,
        None => Some(Daemon::start()?),
    };
    let dir = runtime_dir.or(own.as_ref().map(Daemon::runtime_dir));
    let mut admin = connect::admin(dir).await?;
    let report = Report::new(out, bench.name());
    environment::print(&mut admin, &report).await?;
    match bench {
        Bench::Reclaim { reps } => reclaim::run(reps, dir, &mut admin, &report).await?,
    }

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
