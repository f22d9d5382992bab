//! The director: starts the daemon and the workers, and plays the scenes while they serve.
//!
//! Hot-add, invalidation, hot-remove, a kill, the last sum. Each scene records what it saw;
//! a scene that fails ends the demo with a non-zero status, never with a silent gap.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Parser as _;
use hugepool_daemon::{
    config::{Config, Surroundings},
    exit,
    flags::Flags,
};

use crate::{
    admin::Admin,
    report::{ArmFigures, Arms, HotAdd, HotRemove, Kill, Report, Verify},
    source,
    worker::Line,
};

const ZONE: &str = "movable";
const START_DEADLINE: Duration = Duration::from_secs(20);
const HOME_DEADLINE: Duration = Duration::from_secs(5);
const WORK_DEADLINE: Duration = Duration::from_secs(60);
/// Workers serve at least this long before the last scene.
const SERVE_AT_LEAST: Duration = Duration::from_secs(3);

/// Plays all scenes; true when every check passed.
pub fn run(file: Option<&Path>, nr_workers: u32, json: bool) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let say = |text: String| {
        if !json {
            println!("{text}");
        }
    };
    let file = source::choose(file)?;
    let folder = tempfile::Builder::new()
        .prefix("hugepool-demo-")
        .tempdir()
        .context("no temporary folder")?;
    let mut failures = Vec::new();

    let _daemon = Daemon::start(folder.path())?;
    let mut admin = Admin::connect(folder.path())?;
    let (backing, reasons) = admin.backing()?;
    say(format!(
        "daemon    ready in {:.0} ms, backing {backing}",
        begun.elapsed().as_secs_f64() * 1e3
    ));
    for reason in &reasons {
        say(format!("          {reason}"));
    }
    say(format!(
        "serving   {} ({:.1} MB) as 256 KiB READs",
        file.display(),
        std::fs::metadata(&file)?.len() as f64 / 1e6
    ));

    let mut workers = Vec::new();
    for _ in 0..nr_workers {
        workers.push(Worker::start(folder.path(), &file)?);
    }
    for worker in &mut workers {
        worker.wait_until_serving()?;
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

    let victim = workers.pop().context("no worker to kill")?;
    let victim_pid = victim.pid();
    let kill = kill(&mut admin, victim, &mut failures)?;
    say(format!(
        "kill -9   worker {victim_pid} died in custody of {} pages; all home after {:.1} ms",
        kill.pages_held, kill.home_ms
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
        kill,
        verify,
        seconds: begun.elapsed().as_secs_f64(),
        failures,
    };
    print(&report, json)?;
    Ok(report.ok)
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    println!(
        "served    {:.1} MB, checksums {}\n",
        report.bytes_served as f64 / 1e6,
        if report.checksums_ok {
            "right"
        } else {
            "WRONG"
        }
    );
    println!("{}", report.arms_table());
    println!("{}", report.equation());
    for failure in &report.failures {
        println!("FAILED    {failure}");
    }
    println!(
        "{} in {:.1} s",
        if report.ok { "ok" } else { "NOT OK" },
        report.seconds
    );
    Ok(())
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
    if !result.ok {
        failures.push(format!(
            "hot-add of section {}: {}",
            result.section_id, result.reason
        ));
    }
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
            for result in reply.results.iter().filter(|result| !result.ok) {
                failures.push(format!(
                    "hot-remove of section {}: {}",
                    result.section_id, result.reason
                ));
            }
        }
    }
    Ok(HotRemove {
        section_ids: sections.to_vec(),
        ms: begun.elapsed().as_secs_f64() * 1e3,
    })
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

/// The daemon's process; ended politely on drop.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(runtime_dir: &Path) -> anyhow::Result<Daemon> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("daemon")
            .arg(runtime_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the daemon")?;
        let stderr = child
            .stderr
            .take()
            .context("the daemon has no standard error")?;
        let mut daemon = Daemon { child };
        let lines = lines_of(stderr);
        let deadline = Instant::now() + START_DEADLINE;
        let mut said = Vec::new();
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == "ready" => return Ok(daemon),
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the daemon is not ready after {START_DEADLINE:?}: {}",
                    said.join(" / ")
                ),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = daemon.child.wait()?;
                    bail!("the daemon ended with {status}: {}", said.join(" / "));
                }
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()) else {
            return;
        };
        let asked = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGTERM,
        );
        if asked.is_err() {
            return;
        }
        if let Err(error) = self.child.wait() {
            eprintln!("hugepool-demo: the daemon's end was not seen: {error}");
        }
    }
}

/// A worker's process; killed on drop if it still runs.
struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn start(runtime_dir: &Path, file: &Path) -> anyhow::Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .args([runtime_dir, file])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let stdout = child
            .stdout
            .take()
            .context("a worker has no standard output")?;
        Ok(Worker {
            child,
            lines: lines_of(stdout),
        })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn nix_pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    fn next_line(&self, within: Duration) -> anyhow::Result<Line> {
        let line = self.lines.recv_timeout(within).with_context(|| {
            format!(
                "worker {} said nothing for {within:?} or has ended",
                self.pid()
            )
        })?;
        serde_json::from_str(&line).with_context(|| format!("worker {} said {line:?}", self.pid()))
    }

    fn wait_until_serving(&mut self) -> anyhow::Result<()> {
        match self.next_line(START_DEADLINE)? {
            Line::Serving { .. } => Ok(()),
            Line::Done { .. } => bail!("worker {} ended before it was told to", self.pid()),
        }
    }

    /// Tells it to stop and takes its last word.
    fn finish(mut self) -> anyhow::Result<Line> {
        drop(self.child.stdin.take());
        let line = self.next_line(WORK_DEADLINE)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("worker {} ended with {status}", self.pid());
        }
        Ok(line)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && self.child.kill().is_ok()
            && self.child.wait().is_err()
        {
            eprintln!(
                "hugepool-demo: the end of worker {} was not seen",
                self.pid()
            );
        }
    }
}

/// The lines of a stream, read by a thread so that waiting for one has a deadline.
fn lines_of(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The daemon's role of a re-executed process.
pub fn daemon(runtime_dir: &Path) -> ExitCode {
    let words = [
        OsStr::new("hugepoold"),
        OsStr::new("--runtime-dir"),
        runtime_dir.as_os_str(),
    ];
    let flags = Flags::parse_from(words);
    match Config::load(&flags, &Surroundings::of_this_process()) {
        Ok(config) => exit::status(hugepool_daemon::run(config)),
        Err(error) => exit::usage(&error),
    }
}
