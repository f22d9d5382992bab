//! A real client process of `drive`: attaches, and does what its standard input says, a line at a
//! time. Each line is answered by one.
//!
//! | line | answer |
//! |---|---|
//! | `alloc ZONE ORDER MIGRATETYPE COUNT` (`-` for any zone) | `DONE REASON` |
//! | `free COUNT PATTERN` (`random`, `newest`, `odd` or `even`) | `PAGES` |
//! | `bulk ZONE SLOTS FILLED` | `POPULATED REASON` |

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hugepool::{Client, Migratetype, MovablePage, Options, Order, Page, Request, Shortfall};

use crate::prng::Prng;

/// How long a call waits for pages that are not there, and for a daemon that is busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// `drive-client`.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// The daemon's run-time directory.
    #[arg(long, value_name = "DIR")]
    runtime_dir: PathBuf,
    /// What it calls itself.
    #[arg(long)]
    name: String,
}

/// What it holds, in the order in which it was taken. Dropping one frees it.
enum Block {
    Fixed(Page),
    Movable(MovablePage),
}

impl Block {
    /// Where it is now.
    fn pfn(&self) -> Result<u32, String> {
        match self {
            Block::Fixed(page) => Ok(page.pfn()),
            Block::Movable(page) => {
                let pinned = page.pin().map_err(|error| error.to_string())?;
                Ok(pinned.pfn())
            }
        }
    }

    fn nr_pages(&self) -> u64 {
        match self {
            Block::Fixed(page) => 1 << page.order(),
            Block::Movable(page) => 1 << page.order(),
        }
    }
}

/// Runs until standard input ends, or it is killed.
pub fn run(args: &ClientArgs) -> ExitCode {
    let options = Options::default()
        .runtime_dir(&args.runtime_dir)
        .name(&args.name)
        .deadline(PATIENCE);
    let client = match Client::attach(options) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("hotplug-sim: {error}");
            return ExitCode::from(1);
        }
    };
    let mut held: Vec<Block> = Vec::new();
    let mut prng = Prng::from_seed(1);
    answer("ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        match obey(&client, &words, &mut held, &mut prng) {
            Ok(said) => answer(&said),
            Err(error) => answer(&format!("error {error}")),
        }
    }
    ExitCode::SUCCESS
}

fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever does not listen any more has killed this process, or will.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn obey(
    client: &Client,
    words: &[&str],
    held: &mut Vec<Block>,
    prng: &mut Prng,
) -> Result<String, String> {
    let number = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
    match words {
        ["alloc", zone, order, migratetype, count] => {
            let order: u8 = order.parse().map_err(|_| "no order".to_owned())?;
            alloc(client, zone, order, migratetype, number(count)?, held)
        }
        ["free", count, pattern] => free(held, number(count)?, pattern, prng),
        ["bulk", zone, slots, filled] => {
            let (slots, filled) = (number(slots)?, number(filled)?);
            let request = request(client, zone)?;
            let mut array: Vec<Option<Page>> = (0..slots).map(|_| None).collect();
            let before = request.alloc_pages_bulk_array(&mut array[..filled.min(slots)]);
            if before.populated < filled.min(slots) {
                return Err("the slots that were to be filled could not be".to_owned());
            }
            let bulk = request.alloc_pages_bulk_array(&mut array);
            held.extend(array.drain(filled.min(slots)..).flatten().map(Block::Fixed));
            Ok(format!(
                "{} {}",
                bulk.populated,
                bulk.shortfall.map_or("-", word)
            ))
        }
        _ => Err(format!("{words:?} means nothing")),
    }
}

/// Gives so many blocks back; the pages of them.
fn free(
    held: &mut Vec<Block>,
    count: usize,
    pattern: &str,
    prng: &mut Prng,
) -> Result<String, String> {
    let mut pages = 0;
    match pattern {
        "newest" => {
            let keep = held.len().saturating_sub(count);
            pages = held.drain(keep..).map(|block| block.nr_pages()).sum();
        }
        "random" => {
            for _ in 0..count.min(held.len()) {
                pages += held.swap_remove(prng.index(held.len())).nr_pages();
            }
        }
        "odd" | "even" => {
            let wanted = u32::from(pattern == "odd");
            let mut at = 0;
            let mut left = count;
            while at < held.len() && left > 0 {
                if held[at].pfn()? % 2 == wanted {
                    pages += held.remove(at).nr_pages();
                    left -= 1;
                } else {
                    at += 1;
                }
            }
        }
        other => return Err(format!("no pattern {other:?}")),
    }
    Ok(pages.to_string())
}

fn request<'c>(client: &'c Client, zone: &str) -> Result<Request<'c>, String> {
    match zone {
        "-" => Ok(client.request()),
        zone => client.with_zone(zone).map_err(|error| error.to_string()),
    }
}

fn alloc(
    client: &Client,
    zone: &str,
    order: u8,
    migratetype: &str,
    count: usize,
    held: &mut Vec<Block>,
) -> Result<String, String> {
    let order = Order::new(order).map_err(|error| error.to_string())?;
    let request = request(client, zone)?.with_order(order);
    let take = |request: &Request<'_>| match migratetype {
        "movable" => request
            .with_migratetype(Migratetype::Movable)
            .alloc_movable()
            .map(Block::Movable),
        "reclaimable" => request
            .with_migratetype(Migratetype::Reclaimable)
            .alloc_pages(order)
            .map(Block::Fixed),
        _ => request.alloc_pages(order).map(Block::Fixed),
    };
    let (mut done, mut why) = (0, "-");
    while done < count {
        let taken = match take(&request) {
            // Waiting did not help; who does not wait is told why.
            Err(Shortfall::Deadline { .. }) => take(&request.with_deadline(Duration::ZERO)),
            taken => taken,
        };
        match taken {
            Ok(block) => held.push(block),
            Err(shortfall) => {
                why = word(shortfall);
                break;
            }
        }
        done += 1;
    }
    Ok(format!("{done} {why}"))
}

/// The word of the simulation for a reason.
fn word(shortfall: Shortfall) -> &'static str {
    match shortfall {
        Shortfall::Quota { .. } => "limit",
        Shortfall::ZoneEmpty { .. } => "watermark",
        Shortfall::Fragmented { .. } => "fragmented",
        Shortfall::OrderTooLarge { .. } => "order",
        Shortfall::Deadline { .. } => "deadline",
        _ => "other",
    }
}
