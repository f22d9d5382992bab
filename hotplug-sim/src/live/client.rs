//! A real client process of `drive`: attaches, and does what its standard input says, a line at a
//! time. Each line is answered by one.
//!
//! | line | answer |
//! |---|---|
//! | `alloc ZONE ORDER MIGRATETYPE COUNT` (`-` for any zone) | `DONE REASON` |
//! | `free COUNT` | `PAGES` |
//! | `bulk ZONE SLOTS FILLED` | `POPULATED REASON` |

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hugepool::{Client, Migratetype, MovablePage, Options, Order, Page, Shortfall};

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
        .deadline(Duration::from_millis(500));
    let client = match Client::attach(options) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("hotplug-sim: {error}");
            return ExitCode::from(1);
        }
    };
    let mut held: Vec<Block> = Vec::new();
    answer("ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        match obey(&client, &words, &mut held) {
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

fn obey(client: &Client, words: &[&str], held: &mut Vec<Block>) -> Result<String, String> {
    let number = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
    match words {
        ["alloc", zone, order, migratetype, count] => {
            let order: u8 = order.parse().map_err(|_| "no order".to_owned())?;
            alloc(client, zone, order, migratetype, number(count)?, held)
        }
        ["free", count] => {
            let keep = held.len().saturating_sub(number(count)?);
            let pages: u64 = held.drain(keep..).map(|block| block.nr_pages()).sum();
            Ok(pages.to_string())
        }
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

fn request<'c>(client: &'c Client, zone: &str) -> Result<hugepool::Request<'c>, String> {
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
    let (mut done, mut why) = (0, "-");
    while done < count {
        let taken = match migratetype {
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
