//! Lives: takes, checks and frees pages until its standard input ends, whatever becomes of the daemon.
//!
//! ```text
//! live [--runtime-dir DIR] [NR_PAGES]
//! ```
//!
//! Holds so many pages and some movable ones all the time, each with a mark, and takes and frees others
//! meanwhile, more than lie in its lanes. Prints `live` once it holds them, and at the end what it has
//! done. Exit status 0 when nothing was amiss, 1 when a call failed, 3 when a byte was not what had been
//! written.

use std::{
    env,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use hugepool::{Client, MovablePage, Options, Page};

/// How long a call waits for the next daemon.
const DEADLINE: Duration = Duration::from_secs(60);

/// Movable pages that it holds.
const NR_MOVABLE: usize = 32;

/// Pages of a round: a lane has fewer.
const ROUND: usize = 700;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("live: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    let mut options = Options::default().deadline(DEADLINE);
    let mut nr_pages = 500;
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--runtime-dir" => options = options.runtime_dir(words.next().ok_or("no directory")?),
            number => nr_pages = number.parse()?,
        }
    }
    let client = Client::attach(options)?;
    let mut held = client.alloc_exact(nr_pages)?;
    held.iter_mut().for_each(mark);
    let mut movable: Vec<MovablePage> = Vec::new();
    for number in 0..NR_MOVABLE {
        let mut page = client.alloc_movable()?;
        page.pin_mut()?.fill(byte(number));
        movable.push(page);
    }
    println!("live");

    let (mut nr_rounds, mut slowest) = (0_u64, Duration::ZERO);
    while !INPUT_HAS_ENDED.load(Ordering::Relaxed) {
        if nr_rounds == 0 {
            thread::spawn(wait_for_end);
        }
        let begun = Instant::now();
        let mut pages = client.alloc_exact(ROUND)?;
        slowest = slowest.max(begun.elapsed());
        pages.iter_mut().for_each(mark);
        let of_movable = movable.iter().enumerate();
        let mut is_right = pages.iter().chain(&held).all(is_marked);
        for (number, page) in of_movable {
            let pinned = page.pin()?;
            is_right &= pinned.iter().all(|&there| there == byte(number));
        }
        if !is_right {
            eprintln!("live: a byte is not what was written");
            return Ok(ExitCode::from(3));
        }
        client.free_pages_bulk(pages);
        nr_rounds += 1;
    }
    println!(
        "{nr_rounds} rounds of {ROUND} pages, the slowest call {} ms",
        slowest.as_millis()
    );
    Ok(ExitCode::SUCCESS)
}

static INPUT_HAS_ENDED: AtomicBool = AtomicBool::new(false);

fn wait_for_end() {
    // An input that cannot be read has ended too.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    INPUT_HAS_ENDED.store(true, Ordering::Relaxed);
}

/// What a movable page is full of.
fn byte(number: usize) -> u8 {
    u8::try_from(number % 250).unwrap_or(0) + 1
}

/// Writes its number into a page, at both ends.
fn mark(page: &mut Page) {
    let (mark, last) = (page.pfn().to_le_bytes(), page.len() - 4);
    page[..4].copy_from_slice(&mark);
    page[last..].copy_from_slice(&mark);
}

fn is_marked(page: &Page) -> bool {
    let mark = page.pfn().to_le_bytes();
    page[..4] == mark && page[page.len() - 4..] == mark
}
