//! `bench hotadd`: sections come online, in the allocator alone and from end to end.
//!
//! `metadata` is [`allocator`]'s. `end_to_end` is one `AddSections` through the admin socket, with
//! memory taken for the section, held against populating the same kind of memory without a daemon
//! ([`Bare`]) in turns: bare, by one call of the system in one thread (`over_bare` says how many times
//! that it took, the middle of the windows), and as the daemon does it, in two threads
//! (`over_two_threads`: what is left is the call, the books and the waking). With `stopped_client` a
//! client is attached that cannot answer.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use hugepool_proto::v1::{
    AddSectionsRequest, GetStatusRequest, ListSectionsRequest, OfflineSectionsRequest,
    RemoveSectionsRequest, SectionsResponse,
};
use serde_json::json;

use super::{
    allocator,
    daemon::Daemon,
    report::{self, Report},
    victim::Victim,
};
use crate::{
    connect::{self, Admin},
    outcome::Failure,
    program,
};

/// The section of the second daemon, where the bench has its own.
const LARGE_SECTION: &str = "256MiB";
/// Where sections are added: what is online there can always go again.
const ZONE: &str = "movable";
/// Pages that the stopped client holds.
const HELD_PAGES: u64 = 65;

/// Runs all cases.
pub async fn run(
    reps: u32,
    runtime_dir: Option<&Path>,
    is_own: bool,
    admin: &mut Admin,
    report: &Report<'_>,
) -> Result<(), Failure> {
    allocator::run("hotadd", Some(reps), report)?;
    end_to_end(reps, runtime_dir, admin, report).await?;
    if is_own {
        let zones = ["normal=256MiB", "movable=256MiB,kind=movable"];
        let daemon = Daemon::start(&zones, Some(LARGE_SECTION))?;
        let dir = Some(daemon.runtime_dir());
        let mut admin = connect::admin(dir).await?;
        end_to_end(reps, dir, &mut admin, report).await?;
        daemon.stop()?;
    }
    Ok(())
}

/// One way to add a section.
struct Arm {
    online_order: u32,
    stopped: bool,
    samples: Vec<f64>,
    over_bare: Vec<f64>,
    over_two_threads: Vec<f64>,
}

async fn end_to_end(
    reps: u32,
    runtime_dir: Option<&Path>,
    admin: &mut Admin,
    report: &Report<'_>,
) -> Result<(), Failure> {
    let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
    let geometry = status.geometry.unwrap_or_default();
    let section_bytes = geometry.section_size_bytes;
    let n = section_bytes / geometry.page_size_bytes.max(1);
    // The first window is thrown away: memory that the machine itself has never touched is dear.
    let backing = add_and_remove(admin, geometry.pageblock_order)
        .await?
        .backing;
    let mut bare = Bare::start(section_bytes, &backing, false)?;
    let mut two_threads = Bare::start(section_bytes, &backing, true)?;
    bare.populate()?;
    two_threads.populate()?;

    let mut arms: Vec<Arm> = Vec::new();
    for stopped in [false, true] {
        arms.extend([0, geometry.pageblock_order].map(|online_order| Arm {
            online_order,
            stopped,
            samples: Vec::new(),
            over_bare: Vec::new(),
            over_two_threads: Vec::new(),
        }));
    }
    let (mut bare_samples, mut two_threads_samples) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        for arm in &mut arms {
            let victim = match arm.stopped {
                true => Some(Victim::start(HELD_PAGES, runtime_dir)?),
                false => None,
            };
            if let Some(victim) = &victim {
                victim.stop()?;
            }
            let bare_ms = bare.populate()?;
            let two_threads_ms = two_threads.populate()?;
            let took_ms = add_and_remove(admin, arm.online_order).await?.took_ms;
            arm.samples.push(took_ms);
            arm.over_bare.push(took_ms / bare_ms);
            arm.over_two_threads.push(took_ms / two_threads_ms);
            bare_samples.push(bare_ms);
            two_threads_samples.push(two_threads_ms);
        }
    }
    for (threads, samples) in [(1, bare_samples), (2, two_threads_samples)] {
        let fields =
            json!({"section_bytes": section_bytes, "backing": backing, "threads": threads});
        report.measured("bare_populate", n, "ms", &samples, fields)?;
    }
    for arm in arms {
        let fields = json!({
            "online_order": arm.online_order,
            "section_bytes": section_bytes,
            "stopped_client": u8::from(arm.stopped),
            "backing": backing,
            "over_bare": report::median(&arm.over_bare),
            "over_two_threads": report::median(&arm.over_two_threads),
        });
        report.measured("end_to_end", n, "ms", &arm.samples, fields)?;
    }
    Ok(())
}

/// What one hot-add was.
struct Added {
    took_ms: f64,
    backing: String,
}

/// Adds a section, timed, and takes it away again.
async fn add_and_remove(admin: &mut Admin, online_order: u32) -> Result<Added, Failure> {
    let request = AddSectionsRequest {
        zone: ZONE.to_owned(),
        count: 1,
        online_order: Some(online_order),
        ..AddSectionsRequest::default()
    };
    let begun = Instant::now();
    let added = admin.add_sections(request).await?.into_inner();
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    let section = went(&added)?;
    let listed = admin.list_sections(ListSectionsRequest {
        zone: ZONE.to_owned(),
        ..ListSectionsRequest::default()
    });
    let listed = listed.await?.into_inner().sections;
    let backing = listed.into_iter().find(|row| row.id == section);
    let backing = backing.map(|row| row.backing).unwrap_or_default();
    let request = OfflineSectionsRequest {
        section_ids: vec![section],
        ..OfflineSectionsRequest::default()
    };
    went(&admin.offline_sections(request).await?.into_inner())?;
    let request = RemoveSectionsRequest {
        section_ids: vec![section],
        ..RemoveSectionsRequest::default()
    };
    went(&admin.remove_sections(request).await?.into_inner())?;
    Ok(Added { took_ms, backing })
}

/// The one section of a verb that went.
fn went(answer: &SectionsResponse) -> Result<u32, Failure> {
    match answer.results.first() {
        Some(result) if result.ok => Ok(result.section_id),
        refused => {
            let reason = refused.map_or("no section", |result| result.reason.as_str());
            Err(Failure::refused(
                format_args!("a section did not go its way: {reason}"),
                "see 'hugepoolctl section list'",
            ))
        }
    }
}

/// A process that populates memory without a daemon, each time it is asked.
struct Bare {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Bare {
    fn start(section_bytes: u64, backing: &str, as_daemon: bool) -> Result<Bare, Failure> {
        let mut child = Command::new(program::of_daemon())
            .args(["bench", "populate", &section_bytes.to_string(), backing])
            .args(as_daemon.then_some("--as-daemon"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| cannot(&error))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(ask), Some(answers)) => Ok(Bare {
                child,
                ask,
                answers: BufReader::new(answers),
            }),
            _ => Err(cannot(&"it has no pipes")),
        }
    }

    /// Populates once, in milliseconds.
    fn populate(&mut self) -> Result<f64, Failure> {
        writeln!(self.ask)?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim()
            .parse()
            .map_err(|_| cannot(&"it did not get its memory"))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // Reaped whatever happened; one that has ended cannot be killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cannot(why: &dyn std::fmt::Display) -> Failure {
    Failure::refused(
        format_args!("hugepoold cannot populate on its own: {why}"),
        "see whether memory is free",
    )
}
