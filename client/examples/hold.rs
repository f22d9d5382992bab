//! Takes blocks and holds them until its standard input ends, or until it is killed.
//!
//! ```text
//! hold [--runtime-dir DIR] [--zone NAME] [--order N] [NR_BLOCKS]
//! ```
//!
//! Prints one line, `holding COUNT blocks of order N: PFN PFN …`, once it holds them. A victim for
//! whoever wants to see pages come home.

use std::{env, io, process::ExitCode};

use hugepool::{Client, Options, Order};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hold: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options::default();
    let (mut zone, mut order, mut nr_blocks) = (None, Order::PAGE, 1);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--runtime-dir" => options = options.runtime_dir(value()?),
            "--zone" => zone = Some(value()?),
            "--order" => order = Order::new(value()?.parse()?)?,
            number => nr_blocks = number.parse()?,
        }
    }

    let client = Client::attach(options)?;
    let mut request = client.with_order(order);
    if let Some(zone) = &zone {
        request = request.with_zone(zone)?;
    }
    let mut blocks = Vec::new();
    while blocks.len() < nr_blocks {
        let bulk = request.alloc_pages_bulk_list(nr_blocks - blocks.len(), &mut blocks);
        if let Some(why) = bulk.shortfall.filter(|_| blocks.len() < nr_blocks) {
            println!("short because: {why}");
            break;
        }
    }
    // Touched, so that what a peer sees in them later is not just fresh memory.
    for block in &mut blocks {
        block.fill(0xa5);
    }
    let pfns: Vec<String> = blocks.iter().map(|block| block.pfn().to_string()).collect();
    println!(
        "holding {} blocks of order {order}: {}",
        blocks.len(),
        pfns.join(" ")
    );
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
