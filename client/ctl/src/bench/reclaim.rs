//! `bench reclaim`: from the kill of a client to the moment its last page is home.

use std::{path::Path, time::Duration, time::Instant};

use hugepool_proto::v1::ListClientsRequest;
use serde_json::json;

use super::{report::Report, victim::Victim};
use crate::{connect::Admin, outcome::Failure};

/// Pages that the client holds when it is killed.
const CASES: [u64; 3] = [65, 4096, 65_536];

/// A client that is not buried by then never will be.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills clients that hold pages, and times how long the daemon takes to have them all back.
pub async fn run(
    reps: u32,
    runtime_dir: Option<&Path>,
    admin: &mut Admin,
    report: &Report<'_>,
) -> Result<(), Failure> {
    for n in CASES {
        let (mut from_death, mut from_kill) = (Vec::new(), Vec::new());
        for _ in 0..reps {
            let mut victim = Victim::start(n, runtime_dir)?;
            let killed = Instant::now();
            // The system takes its time to take a process down; the daemon can know of the death
            // only when that is done.
            victim.kill_and_wait()?;
            let begun = Instant::now();
            // A client is in the list until everything that it had is home.
            while is_listed(victim.pid(), admin).await? {
                if begun.elapsed() > PATIENCE {
                    let what = format!("the pages of process {} did not come home", victim.pid());
                    return Err(Failure::refused(what, "see 'hugepoolctl client list'"));
                }
            }
            from_death.push(begun.elapsed().as_secs_f64() * 1e3);
            from_kill.push(killed.elapsed().as_secs_f64() * 1e3);
        }
        let arm = |from: &str| json!({ "from": from });
        report.measured("dead_client_home", n, "ms", &from_death, arm("death"))?;
        report.measured("dead_client_home", n, "ms", &from_kill, arm("kill"))?;
    }
    Ok(())
}

async fn is_listed(pid: u32, admin: &mut Admin) -> Result<bool, Failure> {
    let clients = admin
        .list_clients(ListClientsRequest {})
        .await?
        .into_inner()
        .clients;
    Ok(clients.iter().any(|client| client.pid == pid))
}
