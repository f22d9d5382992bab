//! `hugepoolctl stats`: the daemon's counters, from the daemon, or from what it left in memory.
//!
//! Offline they come from the named segment that outlives a crash. It is for the daemon's own user
//! and root; whether that daemon still runs is said beside the numbers.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH}, // tidy: clock: stamps for people
};

use hugepool::stats::{StatsReader, StatsSnapshot};
use hugepool_proto::v1::{GetStatusRequest, ListZonesRequest, PageCounts};
use serde_json::{Map, json};

use crate::{
    connect,
    outcome::{Failure, Outcome},
    output::Output,
    size,
};

/// Counters by name, in the order in which they are to be printed.
type Counters = Vec<(String, u64)>;

/// Shows the counters.
pub async fn show(
    offline: bool,
    runtime_dir: Option<&Path>,
    out: &Output,
) -> Result<Outcome, Failure> {
    if offline {
        let snapshot = find(runtime_dir)?;
        print(&snapshot.counters.clone(), Some(&snapshot), out)?;
        return Ok(if snapshot.is_torn {
            Outcome::Partly
        } else {
            Outcome::Done
        });
    }
    print(&ask(runtime_dir).await?, None, out)?;
    Ok(Outcome::Done)
}

/// The counters of the first place where a daemon left some.
fn find(runtime_dir: Option<&Path>) -> Result<StatsSnapshot, Failure> {
    let mut refusals = Vec::new();
    for dir in hugepool::runtime_dir::places(runtime_dir) {
        match StatsReader::open(&dir) {
            Ok(reader) => return Ok(reader.snapshot()),
            Err(error) => refusals.push(format!("{}: {error}", dir.display())),
        }
    }
    let what = format!("no counters found; tried {}", refusals.join(", "));
    Err(Failure::refused(
        what,
        "run it as the daemon's user or root, or name its --runtime-dir",
    ))
}

async fn ask(runtime_dir: Option<&Path>) -> Result<Counters, Failure> {
    let mut admin = connect::admin(runtime_dir).await?;
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    let zones = admin
        .list_zones(ListZonesRequest {})
        .await?
        .into_inner()
        .zones;
    let mut counters: Counters = vec![
        ("uptime_ms".into(), status.uptime_ms),
        ("nr_zones".into(), status.nr_zones.into()),
        ("nr_clients".into(), status.nr_clients.into()),
        ("nr_misuses".into(), status.nr_misuses),
        ("nr_reclaimed_pages".into(), status.nr_reclaimed_pages),
    ];
    counters.extend(of_pages("", &status.pages.unwrap_or_default()));
    for zone in &zones {
        let prefix = format!("zone.{}.", zone.name);
        counters.extend(of_pages(&prefix, &zone.pages.unwrap_or_default()));
    }
    Ok(counters)
}

fn of_pages(prefix: &str, counts: &PageCounts) -> Counters {
    let names = [
        ("present", counts.present),
        ("reserved", counts.reserved),
        ("managed", counts.managed),
        ("free", counts.free),
        ("pcp", counts.pcp),
        ("lent", counts.lent),
        ("isolated", counts.isolated),
    ];
    names
        .map(|(name, count)| (format!("{prefix}{name}_pages"), count))
        .into()
}

fn print(
    counters: &Counters,
    snapshot: Option<&StatsSnapshot>,
    out: &Output,
) -> Result<(), Failure> {
    let age_ms = |snapshot: &StatsSnapshot| now_ms().saturating_sub(snapshot.updated_ms);
    let json = || {
        let pairs = counters
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)));
        let counters = pairs.collect::<Map<_, _>>();
        json!({
            "source": if snapshot.is_some() { "segment" } else { "daemon" },
            "pid": snapshot.map(|snapshot| snapshot.pid),
            "started_ms": snapshot.map(|snapshot| snapshot.started_ms),
            "age_ms": snapshot.map(age_ms),
            "is_torn": snapshot.map(|snapshot| snapshot.is_torn),
            "counters": counters,
        })
    };
    let text = || {
        let head = snapshot.map(|snapshot| {
            let torn = if snapshot.is_torn {
                ", torn: it died while writing"
            } else {
                ""
            };
            format!(
                "left by pid {} ({}), written {} ago{torn}\n",
                snapshot.pid,
                if is_running(snapshot.pid) {
                    "running"
                } else {
                    "gone"
                },
                size::human_millis(age_ms(snapshot)),
            )
        });
        let width = counters
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        let lines = counters
            .iter()
            .map(|(name, value)| format!("{name:<width$}  {value}\n"));
        head.into_iter().chain(lines).collect()
    };
    out.either(json, text)
}

/// Whether some process has the pid and has not ended: after a crash it may be another's, or the
/// daemon's remains that nobody has collected yet.
fn is_running(pid: u64) -> bool {
    // The state comes behind the name, which is in brackets and may hold anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Milliseconds since 1970, as the daemon counts them.
fn now_ms() -> u64 {
    // tidy: clock: a stamp for people, compared with nothing that is waited for
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{
        process::{self, Command},
        thread,
        time::{Duration, Instant},
    };

    use super::is_running;

    /// Seen to fail: the remains of a killed daemon were said to run.
    #[test]
    fn a_process_that_has_ended_does_not_run_even_if_nobody_has_collected_it() {
        assert!(is_running(process::id().into()));
        assert!(!is_running(u64::MAX));
        let mut child = Command::new("true").spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while is_running(child.id().into()) {
            assert!(Instant::now() < end, "it runs on and on");
            // tidy: sleep: between two looks at a condition that has a deadline
            thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
    }
}
