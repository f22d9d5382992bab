//! The scene in which the daemon itself is killed, while the workers serve on.

use std::time::Instant;

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    admin::Admin,
    process::{Daemon, Worker},
    report::Restart,
};

/// Kills the daemon with -9 and waits for the one that the keeper starts.
pub fn kill_the_daemon(
    daemon: &Daemon,
    admin: &mut Admin,
    workers: &[Worker],
) -> anyhow::Result<Restart> {
    let killed_pid = daemon.pid()?;
    let begun = Instant::now();
    kill(Pid::from_raw(i32::try_from(killed_pid)?), Signal::SIGKILL)
        .context("cannot kill the daemon")?;
    daemon.wait_until_ready()?;
    let back_ms = begun.elapsed().as_secs_f64() * 1e3;
    // The old connection went with the old daemon.
    *admin = Admin::connect(daemon.runtime_dir())?;
    let (mut nr_clients, mut pages_kept) = (0, 0);
    for worker in workers {
        if let Some(pages) = admin.lent_to(worker.pid())? {
            nr_clients += 1;
            pages_kept += pages;
        }
    }
    Ok(Restart {
        killed_pid,
        back_ms,
        nr_clients,
        pages_kept,
        nr_misuses: admin.nr_misuses()?,
    })
}

impl Restart {
    /// What should not be.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        if self.nr_clients == 0 || self.pages_kept == 0 {
            failures.push(String::from(
                "the next daemon found no worker with its pages",
            ));
        }
        if self.nr_misuses > 0 {
            let nr = self.nr_misuses;
            failures.push(format!(
                "the next daemon took workers for liars, {nr} times"
            ));
        }
        failures
    }
}
