//! Takes blocks, writes them full, reads them back, frees them.
//!
//! ```text
//! take [--runtime-dir DIR] [--zone NAME] [--order N] [--bulk] [NR_BLOCKS]
//! ```
//!
//! Exit status 0 when every block was had and read back right, 1 when some could not be had or the
//! daemon could not be reached, 2 for a typing error, 3 when a byte was not what had been written.

use std::{env, process::ExitCode, time::Instant};

use hugepool::{Client, Options, Order, Page};

/// What was typed.
struct Args {
    options: Options,
    zone: Option<String>,
    order: Order,
    bulk: bool,
    nr_blocks: usize,
}

fn main() -> ExitCode {
    let args = match parse(env::args().skip(1)) {
        Ok(args) => args,
        Err(what) => {
            eprintln!("take: {what}");
            eprintln!(
                "usage: take [--runtime-dir DIR] [--zone NAME] [--order N] [--bulk] [NR_BLOCKS]"
            );
            return ExitCode::from(2);
        }
    };
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("take: {error}");
            ExitCode::from(1)
        }
    }
}

fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let client = Client::attach(args.options)?;
    let mut request = client.with_order(args.order);
    if let Some(zone) = &args.zone {
        request = request.with_zone(zone)?;
    }

    let mut blocks: Vec<Page> = Vec::new();
    let mut shortfall = None;
    let begun = Instant::now();
    if args.bulk {
        while blocks.len() < args.nr_blocks && shortfall.is_none() {
            let missing = args.nr_blocks - blocks.len();
            shortfall = request
                .alloc_pages_bulk_list(missing, &mut blocks)
                .shortfall;
        }
    } else {
        for _ in 0..args.nr_blocks {
            match request.alloc_pages(args.order) {
                Ok(block) => blocks.push(block),
                Err(why) => {
                    shortfall = Some(why);
                    break;
                }
            }
        }
    }
    let taken = begun.elapsed();

    for block in &mut blocks {
        let mark = mark_of(block);
        block.fill(mark);
    }
    let nr_wrong = blocks
        .iter()
        .filter(|block| !is_full_of(block, mark_of(block)))
        .count();
    println!(
        "took {} of {} blocks of order {} in {} us, {} bytes each, {nr_wrong} read back wrong",
        blocks.len(),
        args.nr_blocks,
        args.order,
        taken.as_micros(),
        blocks.first().map_or(0, |block| block.len()),
    );
    if let Some(first) = blocks.first() {
        println!("the first is pfn {}", first.pfn());
    }
    let is_short = blocks.len() < args.nr_blocks;
    client.free_pages_bulk(blocks);
    if let Some(why) = shortfall {
        println!("short because: {why}");
    }
    Ok(match (nr_wrong, is_short) {
        (0, false) => ExitCode::SUCCESS,
        (0, true) => ExitCode::from(1),
        _ => ExitCode::from(3),
    })
}

/// A byte that differs between neighbours.
fn mark_of(block: &Page) -> u8 {
    (block.pfn() >> block.order()).to_le_bytes()[0] ^ 0x5a
}

fn is_full_of(bytes: &[u8], mark: u8) -> bool {
    bytes.iter().all(|&byte| byte == mark)
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        options: Options::default(),
        zone: None,
        order: Order::PAGE,
        bulk: false,
        nr_blocks: 1,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--runtime-dir" => args.options = args.options.runtime_dir(value()?),
            "--zone" => args.zone = Some(value()?),
            "--order" => {
                let number: u8 = value()?.parse().map_err(|_| "--order needs a number")?;
                args.order = Order::new(number).map_err(|error| error.to_string())?;
            }
            "--bulk" => args.bulk = true,
            number => {
                args.nr_blocks = number
                    .parse()
                    .map_err(|_| format!("{number:?} is no number"))?
            }
        }
    }
    Ok(args)
}
