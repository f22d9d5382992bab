//! A worker with movable pages that it never lets rest: it pins, looks, writes, and lets go.
//!
//! Each page is full of a mark of its own; each look compares both ends of it, the last look every
//! byte. Talks to the director by lines of JSON on standard output.

use std::{path::Path, sync::atomic::Ordering::Relaxed, time::Instant};

use anyhow::{Context, bail};
use hugepool::{Client, MovablePage, Options};
use serde::{Deserialize, Serialize};

use crate::worker::{say, stop_at_end_of_input};

/// Pins whose time is kept: the newest of so many.
const KEPT_PINS: usize = 1 << 20;

/// What it tells the director.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Has its pages.
    Holding { pages: u64 },
    /// The last word.
    Held {
        bytes_ok: bool,
        pins: u64,
        pin_p999_ns: u32,
        pin_max_ns: u32,
        page_bytes: u64,
    },
}

/// Takes its pages, and uses them until standard input ends.
pub fn run(runtime_dir: &Path, zone: &str, nr_pages: usize) -> anyhow::Result<()> {
    if nr_pages == 0 {
        bail!("no page of {zone} is free");
    }
    let options = Options::default()
        .runtime_dir(runtime_dir)
        .name("demo-holder");
    let client = Client::attach(options).context("cannot attach to the daemon")?;
    let stop = stop_at_end_of_input();
    let mut pages = Vec::with_capacity(nr_pages);
    let request = client.with_zone(zone)?;
    while pages.len() < nr_pages {
        let bulk = request.alloc_movable_bulk(nr_pages - pages.len(), &mut pages);
        if let (0, Some(shortfall)) = (bulk.populated, bulk.shortfall) {
            bail!(
                "{} of {nr_pages} movable pages were had: {shortfall}",
                pages.len()
            );
        }
    }
    let mut marks: Vec<u64> = (1..=pages.len() as u64).collect();
    for (page, &mark) in pages.iter_mut().zip(&marks) {
        fill(page, mark)?;
    }
    say(&Line::Holding {
        pages: pages.len() as u64,
    })?;
    let (mut times, mut pins, mut bytes_ok) = (Vec::new(), 0_u64, true);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    while !stop.load(Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = usize::try_from(random >> 16)? % pages.len();
        let begun = Instant::now();
        let bytes = pages[at].pin()?;
        let took = u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX);
        let mark = marks[at].to_le_bytes();
        bytes_ok &= bytes.starts_with(&mark) && bytes.ends_with(&mark);
        drop(bytes);
        if times.len() < KEPT_PINS {
            times.push(took);
        } else {
            times[usize::try_from(pins)? % KEPT_PINS] = took;
        }
        pins += 1;
        if random.is_multiple_of(32) {
            marks[at] += 1 << 32;
            fill(&mut pages[at], marks[at])?;
        }
    }
    for (page, mark) in pages.iter().zip(&marks) {
        let bytes = page.pin()?;
        bytes_ok &= bytes.chunks_exact(8).all(|word| word == mark.to_le_bytes());
    }
    times.sort_unstable();
    let page_bytes = pages[0].pin()?.len() as u64;
    say(&Line::Held {
        bytes_ok,
        pins,
        pin_p999_ns: times.get(times.len() * 999 / 1000).copied().unwrap_or(0),
        pin_max_ns: times.last().copied().unwrap_or(0),
        page_bytes,
    })
}

fn fill(page: &mut MovablePage, mark: u64) -> anyhow::Result<()> {
    for word in page.pin_mut()?.chunks_exact_mut(8) {
        word.copy_from_slice(&mark.to_le_bytes());
    }
    Ok(())
}
