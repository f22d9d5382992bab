//! `bench memory`: what the books take, in bytes.
//!
//! `metadata` is [`allocator`]'s: bytes a page of the daemon's own memory, with everything free and
//! with everything lent page by page. `client_segment` is what is resident of the control segment of
//! a client whose four lanes have all been in use.

use std::{fs, path::Path, sync::Barrier, thread};

use hugepool::{Client, Options, Page};
use serde_json::json;

use super::{allocator, attach, report::Report, short};
use crate::outcome::Failure;

const LANES: u32 = 4;
/// Pages that each thread takes and gives back: more than its lane keeps.
const PAGES: usize = 1024;

/// Runs both cases.
pub fn run(reps: u32, runtime_dir: Option<&Path>, report: &Report<'_>) -> Result<(), Failure> {
    allocator::run("memory", None, report)?;
    let mut samples = Vec::new();
    for _ in 0..reps {
        let client = attach(runtime_dir, Options::default().lanes(LANES))?;
        use_lanes(&client)?;
        samples.push(resident_bytes()? as f64);
    }
    let arm = json!({ "lanes": LANES });
    report.measured("client_segment", 1, "bytes", &samples, arm)
}

/// Each thread has a lane of its own while all of them are there.
fn use_lanes(client: &Client) -> Result<(), Failure> {
    let all = Barrier::new(LANES as usize);
    let one = || {
        let mut pages: Vec<Page> = Vec::with_capacity(PAGES);
        let mut answer = Ok(());
        all.wait();
        while pages.len() < PAGES && answer.is_ok() {
            let bulk = client.alloc_pages_bulk_list(PAGES - pages.len(), &mut pages);
            if let Some(why) = bulk.shortfall.filter(|_| bulk.populated == 0) {
                answer = Err(why);
            }
        }
        client.free_pages_bulk_list(&mut pages);
        all.wait();
        answer
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..LANES).map(|_| scope.spawn(one)).collect();
        let mut answers = threads.into_iter().map(thread::ScopedJoinHandle::join);
        answers.try_for_each(|answer| match answer {
            Ok(answer) => answer.map_err(short),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// What is resident of this process's control segments: it has one at a time.
fn resident_bytes() -> Result<u64, Failure> {
    let text = fs::read_to_string("/proc/self/smaps")?;
    let name = format!("hugepool-client-{}", std::process::id());
    let mut is_ours = false;
    let mut sum = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            is_ours = line.contains(&name);
        } else if is_ours && first == "Rss:" {
            sum += words.next().and_then(|kib| kib.parse().ok()).unwrap_or(0) * 1024;
        }
    }
    Ok(sum)
}
