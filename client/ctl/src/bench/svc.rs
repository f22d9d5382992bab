//! `bench svc`: the consumer of bulk allocation in the kernel, an NFS server's thread that refills
//! its 65 page slots before each request.
//!
//! `single` calls once for each empty slot, `list` takes a list and deals it out, `array` fills
//! the slots: nanoseconds of the refill alone. `mixed` is the array on a stream of requests that
//! used 65 pages, 1 or none, giving back included.

use std::time::{Duration, Instant};

use hugepool::{Client, Page};
use serde_json::json;

use super::{report::Report, short, windows};
use crate::outcome::Failure;

const SLOTS: usize = 65;
/// Slots used by successive requests: a READ, some small ones, some that need no page.
const MIX: [usize; 8] = [65, 1, 0, 1, 65, 1, 0, 1];
/// Refills of one window.
const CALLS: u32 = 20_000;

type Slots = [Option<Page>; SLOTS];

/// Runs all cases with `reps` windows each.
pub fn run(reps: u32, client: &Client, report: &Report<'_>) -> Result<(), Failure> {
    let mut slots: Slots = [const { None }; SLOTS];
    let clock_ns = clock_ns();
    type Refill = fn(&Client, &mut Slots, &mut Vec<Page>) -> Result<(), Failure>;
    let arms: [(&str, Refill); 3] = [("single", single), ("list", list), ("array", array)];
    let mut pages = Vec::with_capacity(SLOTS);
    for (name, refill) in arms {
        let mut samples = Vec::new();
        for _ in 0..reps {
            let mut spent = Duration::ZERO;
            for _ in 0..CALLS {
                client.free_pages_bulk_array(&mut slots);
                let begun = Instant::now();
                refill(client, &mut slots, &mut pages)?;
                spent += begun.elapsed();
            }
            samples.push((spent.as_secs_f64() * 1e9 / f64::from(CALLS) - clock_ns).max(0.0));
        }
        let arm = json!({"clock_ns_taken_off": (clock_ns * 10.0).round() / 10.0});
        report.measured(name, SLOTS as u64, "ns/call", &samples, arm)?;
    }
    let samples = windows::time(reps, MIX.len() as u64, || {
        for used in MIX {
            array(client, &mut slots, &mut pages)?;
            client.free_pages_bulk_array(&mut slots[..used]);
        }
        Ok(())
    })?;
    client.free_pages_bulk_array(&mut slots);
    report.measured(
        "mixed",
        SLOTS as u64,
        "ns/call",
        &samples,
        json!({"used": MIX}),
    )
}

fn single(client: &Client, slots: &mut Slots, _: &mut Vec<Page>) -> Result<(), Failure> {
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        *slot = Some(client.alloc_page().map_err(short)?);
    }
    Ok(())
}

fn list(client: &Client, slots: &mut Slots, pages: &mut Vec<Page>) -> Result<(), Failure> {
    let bulk = client.alloc_pages_bulk_list(SLOTS, pages);
    if let Some(shortfall) = bulk.shortfall {
        return Err(short(shortfall));
    }
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        *slot = pages.pop();
    }
    Ok(())
}

fn array(client: &Client, slots: &mut Slots, _: &mut Vec<Page>) -> Result<(), Failure> {
    match client.alloc_pages_bulk_array(slots).shortfall {
        Some(shortfall) => Err(short(shortfall)),
        None => Ok(()),
    }
}

/// Nanoseconds that a pair of clock readings adds to what it measures.
fn clock_ns() -> f64 {
    let mut spent = Duration::ZERO;
    for _ in 0..CALLS {
        spent += Instant::now().elapsed();
    }
    spent.as_secs_f64() * 1e9 / f64::from(CALLS)
}
