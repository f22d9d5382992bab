//! The director: starts the daemon and the workers, and plays the scenes while they serve.
//!
//! Hot-add, invalidation, hot-remove, a section moved out of, a worker's
//! death, the daemon's own death, the last sum. Each scene records what it saw;
//! a scene that fails ends the demo with a non-zero status, never with a silent gap.

use std::{
    ffi::OsStr,
    io::Write as _,
    os::unix::process::ExitStatusExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use hugepool_proto::v1::{SectionResult, SectionsResponse};

use crate::{
    admin::Admin,
    holder,
    process::{Daemon, START_DEADLINE, Worker},
    report::{ArmFigures, Arms, HotAdd, HotRemove, Kill, Moved, Report, Verify},
    restart, source,
    worker::Line,
};

const ZONE: &str = "movable";
const HOME_DEADLINE: Duration = Duration::from_secs(5);
/// Workers serve at least this long before the last scene.
const SERVE_AT_LEAST: Duration = Duration::from_secs(3);

/// Plays all scenes; true when every check passed.
pub fn run(file: Option<&Path>, nr_workers: u32, json: bool) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let say = |text: String| {
        if !json {
            tell(&text);
        }
    };
    let file = source::choose(file)?;
    let folder = tempfile::Builder::new()
        .prefix("hugepool-demo-")
        .tempdir()
        .context("no temporary folder")?;
    let mut failures = Vec::new();

    let daemon = Daemon::start(folder.path())?;
    let mut admin = Admin::connect(folder.path())?;
    let (backing, reasons) = admin.backing()?;
    say(format!(
        "daemon    ready in {:.0} ms, backing {backing}",
        begun.elapsed().as_secs_f64() * 1e3
    ));
    for reason in &reasons {
        say(format!("          {reason}"));
    }
    let file_bytes = std::fs::metadata(&file)?.len();
    let served = source::served_bytes(file_bytes);
    say(format!(
        "serving   {} ({:.1} MB{}) as 256 KiB READs",
        file.display(),
        served as f64 / 1e6,
        if served < file_bytes {
            format!(" of {:.1} MB", file_bytes as f64 / 1e6)
        } else {
            String::new()
        }
    ));

    let mut workers = Vec::new();
    for _ in 0..nr_workers {
        let arguments = [folder.path().as_os_str(), file.as_os_str()];
        workers.push(Worker::start("worker", &arguments)?);
    }
    for worker in &workers {
        match worker.next_line(START_DEADLINE)? {
            Line::Serving { .. } => {}
            Line::Done { .. } => bail!("worker {} ended before it was told to", worker.pid()),
        }
    }
    say(format!(
        "workers   {nr_workers} serving, pids {:?}",
        workers.iter().map(Worker::pid).collect::<Vec<_>>()
    ));
    let serving_since = Instant::now();

    let hot_add = hot_add(&mut admin, &mut failures)?;
    say(format!(
        "hot-add   section {:?} of zone {ZONE} in {:.1} ms: {} pageblocks, blocks gained by order {:?}",
        hot_add.section_ids, hot_add.ms, hot_add.nr_pageblocks, hot_add.free_blocks_gained_by_order
    ));
    let (nr_zones, nr_pageblocks) = admin.invalidate_contiguity()?;
    say(format!(
        "caches    contiguity answers of {nr_zones} zones and {nr_pageblocks} pageblocks invalidated"
    ));
    let hot_remove = hot_remove(&mut admin, &hot_add.section_ids, &mut failures)?;
    say(format!(
        "hot-rem   section {:?} taken away in {:.1} ms",
        hot_remove.section_ids, hot_remove.ms
    ));

    let moved = move_away(&mut admin, folder.path(), &mut failures)?;
    say(format!(
        "moved     section {:?}, {} pages in use, taken away in {:.1} ms ({:.0} MB/s) under a worker that made {} pins; p99.9 {:.1} us, bytes {}",
        moved.section_ids,
        moved.pages,
        moved.ms,
        moved.mb_per_s,
        moved.pins,
        moved.pin_p999_us,
        if moved.bytes_ok { "right" } else { "WRONG" }
    ));

    let victim = workers.pop().context("no worker to kill")?;
    let victim_pid = victim.pid();
    let kill = kill(&mut admin, victim, &mut failures)?;
    say(format!(
        "kill -9   worker {victim_pid} died in custody of {} pages; all home after {:.1} ms",
        kill.pages_held, kill.home_ms
    ));

    let restart = restart::kill_the_daemon(&daemon, &mut admin, &workers)?;
    failures.extend(restart.failures());
    say(format!(
        "kill -9   daemon {} died and the next one served after {:.1} ms: {} pages of {} workers as they were",
        restart.killed_pid, restart.back_ms, restart.pages_kept, restart.nr_clients
    ));

    thread::sleep(SERVE_AT_LEAST.saturating_sub(serving_since.elapsed()));
    let mut served = Served::default();
    for worker in workers {
        served.add(worker.finish()?);
    }
    if !served.checksums_ok {
        failures.push("a worker's checksum differs from the file's".to_owned());
    }

    let verdict = admin.verify()?;
    failures.extend(
        verdict
            .findings
            .iter()
            .map(|finding| format!("verify: {finding}")),
    );
    let pages = verdict.pages.unwrap_or_default();
    let verify = Verify::new(verdict.ok, &pages);
    if !verify.ok {
        failures.push("the equation of pages does not add up".to_owned());
    }
    let [single, list, array] = served.calls.each_mut().map(|calls| ArmFigures::new(calls));
    let report = Report {
        ok: failures.is_empty(),
        backing,
        workers: nr_workers,
        bytes_served: served.bytes,
        checksums_ok: served.checksums_ok,
        arms: Arms {
            single,
            list,
            array,
        },
        hot_add,
        hot_remove,
        moved,
        kill,
        restart,
        verify,
        seconds: begun.elapsed().as_secs_f64(),
        failures,
    };
    print(&report, json)?;
    Ok(report.ok)
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        let line = serde_json::to_string(report)?;
        return writeln!(std::io::stdout(), "{line}").context("cannot print the report");
    }
    tell(&format!(
        "served    {:.1} MB, checksums {}\n",
        report.bytes_served as f64 / 1e6,
        if report.checksums_ok {
            "right"
        } else {
            "WRONG"
        }
    ));
    tell(&report.arms_table());
    tell(&report.equation());
    for failure in &report.failures {
        tell(&format!("FAILED    {failure}"));
    }
    tell(&format!(
        "{} in {:.1} s",
        if report.ok { "ok" } else { "NOT OK" },
        report.seconds
    ));
    Ok(())
}

/// A line for people. Who has stopped reading misses it, and the status says the rest.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Adds a section while the workers run; it must enter the buddy by whole pageblocks.
fn hot_add(admin: &mut Admin, failures: &mut Vec<String>) -> anyhow::Result<HotAdd> {
    let begun = Instant::now();
    let reply = admin.add_section(ZONE)?;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    let result = reply
        .results
        .first()
        .context("hot-add answered for no section")?;
    failures.extend(refused("hot-add", &reply));
    let onlined = result.onlined.clone().unwrap_or_default();
    let gained: u64 = (0..)
        .zip(&onlined.blocks_by_order)
        .map(|(order, blocks)| blocks << order)
        .sum();
    if gained != onlined.nr_pages || gained == 0 {
        failures.push(format!(
            "hot-add gained {gained} pages in blocks, the section has {}",
            onlined.nr_pages
        ));
    }
    let pageblock_order = (onlined.nr_pages / onlined.nr_pageblocks.max(1))
        .checked_ilog2()
        .unwrap_or(0);
    let small: u64 = onlined
        .blocks_by_order
        .iter()
        .take(pageblock_order as usize)
        .sum();
    if small != 0 {
        failures.push(format!(
            "hot-add freed {small} blocks below pageblock order {pageblock_order}"
        ));
    }
    Ok(HotAdd {
        section_ids: vec![result.section_id],
        nr_pageblocks: onlined.nr_pageblocks,
        free_blocks_gained_by_order: onlined.blocks_by_order,
        ms,
    })
}

/// Takes the section away again; no worker is asked.
fn hot_remove(
    admin: &mut Admin,
    sections: &[u32],
    failures: &mut Vec<String>,
) -> anyhow::Result<HotRemove> {
    let begun = Instant::now();
    for &section in sections {
        for reply in [admin.offline(section)?, admin.remove(section)?] {
            failures.extend(refused("hot-remove", &reply));
        }
    }
    Ok(HotRemove {
        section_ids: sections.to_vec(),
        ms: begun.elapsed().as_secs_f64() * 1e3,
    })
}

/// Takes a section away that is full of a worker's movable pages, while it uses them.
fn move_away(
    admin: &mut Admin,
    runtime_dir: &Path,
    failures: &mut Vec<String>,
) -> anyhow::Result<Moved> {
    let (section, nr_free) = admin.emptiest_section(ZONE)?;
    let nr_pages = (nr_free / 10 * 9).to_string();
    let arguments = [
        runtime_dir.as_os_str(),
        OsStr::new(ZONE),
        OsStr::new(&nr_pages),
    ];
    let holder = Worker::start("holder", &arguments)?;
    let holder::Line::Holding { pages } = holder.next_line(START_DEADLINE)? else {
        bail!("holder {} ended before it was told to", holder.pid());
    };
    let other = admin.add_section(ZONE)?;
    failures.extend(refused("a place to move to", &other));

    let begun = Instant::now();
    let gone = admin.offline(section)?;
    failures.extend(refused("moving out of a section", &gone));
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    let removed = admin.remove(section)?;
    failures.extend(refused("removing what was moved out of", &removed));
    let moved = gone.results.first().map_or(0, |result| result.moved);
    if moved < pages {
        failures.push(format!("{moved} pages were moved, {pages} were in use"));
    }
    let holder::Line::Held {
        bytes_ok,
        pins,
        pin_p999_ns,
        pin_max_ns,
        page_bytes,
    } = holder.finish()?
    else {
        bail!("the holder did not say how it was");
    };
    if !bytes_ok {
        failures.push("bytes of a page that was moved have changed".to_owned());
    }
    Ok(Moved {
        section_ids: vec![section],
        pages: moved,
        ms,
        mb_per_s: (moved * page_bytes) as f64 / 1e3 / ms,
        pins,
        pin_p999_us: pin_p999_ns as f64 / 1e3,
        pin_max_us: pin_max_ns as f64 / 1e3,
        bytes_ok,
    })
}

/// What did not go, a line for each section.
fn refused(what: &str, reply: &SectionsResponse) -> Vec<String> {
    let refused = reply.results.iter().filter(|result| !result.ok);
    let line = |result: &SectionResult| {
        format!("{what}: section {}: {}", result.section_id, result.reason)
    };
    refused.map(line).collect()
}

/// Kills a worker in the middle of its work and waits for its pages to come home.
fn kill(admin: &mut Admin, mut victim: Worker, failures: &mut Vec<String>) -> anyhow::Result<Kill> {
    let pid = victim.pid();
    // Stopped first, so that what it holds at its death is what we have counted.
    nix::sys::signal::kill(victim.nix_pid(), nix::sys::signal::Signal::SIGSTOP)?;
    let pages_held = admin.lent_to(pid)?.unwrap_or(0);
    if pages_held == 0 {
        failures.push(format!(
            "worker {pid} had no page in custody when it was killed"
        ));
    }
    let begun = Instant::now();
    victim.child.kill().context("cannot kill the worker")?;
    loop {
        let lent = admin.lent_to(pid)?;
        if lent.is_none_or(|pages| pages == 0) {
            break;
        }
        if begun.elapsed() > HOME_DEADLINE {
            failures.push(format!(
                "{} pages of worker {pid} are not home after {HOME_DEADLINE:?}",
                lent.unwrap_or(0)
            ));
            break;
        }
    }
    let home_ms = begun.elapsed().as_secs_f64() * 1e3;
    let status = victim.child.wait()?;
    if status.signal() != Some(9) {
        bail!("worker {pid} ended with {status}, not by SIGKILL");
    }
    Ok(Kill {
        pages_held,
        home_ms,
    })
}

#[derive(Default)]
struct Served {
    bytes: u64,
    checksums_ok: bool,
    nr_workers: u32,
    calls: [Vec<u32>; 3],
}

impl Served {
    fn add(&mut self, line: Line) {
        let Line::Done {
            bytes,
            checksums_ok,
            calls,
        } = line
        else {
            return;
        };
        self.checksums_ok = checksums_ok && (self.checksums_ok || self.nr_workers == 0);
        self.nr_workers += 1;
        self.bytes += bytes;
        for (all, one) in self.calls.iter_mut().zip(calls) {
            all.extend(one);
        }
    }
}
