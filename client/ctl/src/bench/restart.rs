//! `bench restart`: a daemon is killed under clients that hold pages, and the next one serves.
//!
//! The time runs from the keeper's word that it starts the next daemon (its process is not there
//! yet) to that daemon's word that clients can attach.

use std::path::Path;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use super::{conclude, daemon::Daemon, environment, report::Report, victim::Victim};
use crate::{
    connect,
    outcome::{Failure, Outcome},
    output::Output,
};

/// Clients, and the pages that each of them holds: 4 GiB in all.
const CLIENTS: u32 = 8;
const PAGES: u64 = 131_072;
/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// What the lanes hold comes on top.
const ZONE: &str = "normal=4864MiB";

/// Kills daemons under clients that hold pages.
pub async fn run(reps: u32, runtime_dir: Option<&Path>, out: &Output) -> Result<Outcome, Failure> {
    if runtime_dir.is_some() {
        return Err(Failure::refused(
            "it kills daemons: only those of its own",
            "leave --runtime-dir out",
        ));
    }
    let own = Daemon::start_with(&[ZONE], None, &["--keeper"])?;
    let dir = own.runtime_dir().to_owned();
    let mut admin = connect::admin(Some(&dir)).await?;
    let report = Report::new(out, "restart");
    environment::print(&mut admin, &report).await?;

    let mut victims = Vec::new();
    for _ in 0..CLIENTS {
        victims.push(Victim::start(PAGES, Some(&dir))?);
    }
    let mut samples = Vec::new();
    for _ in 0..reps {
        let lock = std::fs::read_to_string(dir.join("hugepoold.lock"))?;
        let pid = lock.trim().parse().map(Pid::from_raw);
        let pid = pid.map_err(std::io::Error::other)?;
        kill(pid, Signal::SIGKILL).map_err(std::io::Error::from)?;
        let begun = own.wait_for("started again")?;
        let ready = own.wait_for("ready")?;
        samples.push(ready.duration_since(begun).as_secs_f64() * 1e3);
        // Three that die within ten seconds of each other would be taken for a row of crashes.
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    }
    let nr_pages = PAGES * u64::from(CLIENTS);
    let arm = json!({ "bytes_in_use": nr_pages * PAGE_BYTES, "clients": CLIENTS });
    report.measured("back_in_service", nr_pages, "ms", &samples, arm)?;
    drop(victims);
    admin = connect::admin(Some(&dir)).await?;
    conclude(&mut admin, Some(own), &report).await
}
