//! `bench bulk`: taking and giving back through the lane: pairs of n, a full array, high orders,
//! the whole zone.

use std::{hint, time::Instant};

use hugepool::{Client, Order, Page};
use serde_json::json;

use super::{report::Report, short, windows};
use crate::outcome::Failure;

/// Slots of an NFS server's thread: 256 KiB of data and a page for the head.
const SLOTS: usize = 65;
const BATCHES: [usize; 6] = [0, 1, 8, 32, 65, 256];

/// Runs all cases with `reps` windows each.
pub fn run(
    reps: u32,
    client: &Client,
    spin_us: Option<u32>,
    report: &Report<'_>,
) -> Result<(), Failure> {
    for n in BATCHES {
        for touch in [false, true] {
            if n > 0 || !touch {
                pair(reps, client, n, touch, report)?;
            }
        }
    }
    for n in [8, 32, 65, 256] {
        pair_list(reps, client, n, report)?;
    }
    single(reps, client, report)?;
    full(reps, client, report)?;
    for order in [3, 9] {
        high_order(reps, client, order, report)?;
    }
    drain(reps, client, spin_us, report)
}

/// Takes n into empty slots and gives n back.
fn pair(
    reps: u32,
    client: &Client,
    n: usize,
    touch: bool,
    report: &Report<'_>,
) -> Result<(), Failure> {
    let local = client.local();
    let mut slots: Vec<Option<Page>> = (0..n).map(|_| None).collect();
    let samples = windows::time(reps, n as u64, || {
        let bulk = local.alloc_pages_bulk_array(&mut slots);
        if let Some(shortfall) = bulk.shortfall {
            return Err(short(shortfall));
        }
        if touch {
            touch_all(&mut slots);
        }
        local.free_pages_bulk_array(&mut slots);
        Ok(())
    })?;
    let unit = if n == 0 { "ns/call" } else { "ns/page" };
    let arm = json!({"touch": u8::from(touch), "handle": "local"});
    report.measured("pair", n as u64, unit, &samples, arm)
}

/// Takes n into a list and gives them back: no slot is looked at and none is emptied, as in a
/// table of pointers.
fn pair_list(reps: u32, client: &Client, n: usize, report: &Report<'_>) -> Result<(), Failure> {
    let local = client.local();
    let mut pages: Vec<Page> = Vec::with_capacity(n);
    let samples = windows::time(reps, n as u64, || {
        if let Some(shortfall) = local.alloc_pages_bulk_list(n, &mut pages).shortfall {
            return Err(short(shortfall));
        }
        local.free_pages_bulk_list(hint::black_box(&mut pages));
        Ok(())
    })?;
    let arm = json!({"touch": 0, "handle": "local"});
    report.measured("pair_list", n as u64, "ns/page", &samples, arm)
}

/// Writes the first 8 bytes of each page, as a consumer of the pages would.
fn touch_all(slots: &mut [Option<Page>]) {
    for page in slots.iter_mut().flatten() {
        page[..8].copy_from_slice(&0x5bd1_e995_u64.to_le_bytes());
    }
}

/// One page by the plain call, and by the thread's own handle.
fn single(reps: u32, client: &Client, report: &Report<'_>) -> Result<(), Failure> {
    let samples = windows::time(reps, 1, || {
        drop(client.alloc_page().map_err(short)?);
        Ok(())
    })?;
    let arm = json!({"touch": 0, "handle": "client", "call": "alloc_page"});
    report.measured("pair", 1, "ns/page", &samples, arm)?;
    let local = client.local();
    let samples = windows::time(reps, 1, || {
        let page = local.alloc_page().map_err(short)?;
        local.free_page(page);
        Ok(())
    })?;
    let arm = json!({"touch": 0, "handle": "local", "call": "alloc_page"});
    report.measured("pair", 1, "ns/page", &samples, arm)
}

/// Asks with no empty slot: nothing to take.
fn full(reps: u32, client: &Client, report: &Report<'_>) -> Result<(), Failure> {
    let mut slots: [Option<Page>; SLOTS] = [const { None }; SLOTS];
    if let Some(shortfall) = client.alloc_pages_bulk_array(&mut slots).shortfall {
        return Err(short(shortfall));
    }
    let samples = windows::time(reps, 1, || {
        hint::black_box(client.alloc_pages_bulk_array(&mut slots).populated);
        Ok(())
    })?;
    client.free_pages_bulk_array(&mut slots);
    report.measured("full", SLOTS as u64, "ns/call", &samples, json!({}))
}

/// One block of an order that lanes keep.
fn high_order(reps: u32, client: &Client, order: u8, report: &Report<'_>) -> Result<(), Failure> {
    let wanted = Order::new(order)
        .map_err(|error| Failure::usage(error, "this is the bench's own fault"))?;
    let samples = windows::time(reps, 1, || {
        drop(client.alloc_pages(wanted).map_err(short)?);
        Ok(())
    })?;
    report.measured("order", 1, "ns/call", &samples, json!({ "order": order }))
}

/// Takes all there is, 65 at a time, then gives all back: each page through the daemon's custody.
fn drain(
    reps: u32,
    client: &Client,
    spin_us: Option<u32>,
    report: &Report<'_>,
) -> Result<(), Failure> {
    let (mut gets, mut puts, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    let mut nr_pages = 0;
    for _ in 0..reps {
        let mut pages: Vec<Page> = Vec::with_capacity(1 << 20);
        let begun = Instant::now();
        while client.alloc_pages_bulk_list(SLOTS, &mut pages).populated == SLOTS {}
        let taken = begun.elapsed();
        nr_pages = pages.len() as u64;
        while !pages.is_empty() {
            let keep = pages.len().saturating_sub(SLOTS);
            client.free_pages_bulk(pages.drain(keep..));
        }
        let both = begun.elapsed();
        let per_page = 1e9 / nr_pages.max(1) as f64;
        gets.push(taken.as_secs_f64() * per_page);
        puts.push((both - taken).as_secs_f64() * per_page);
        pairs.push(both.as_secs_f64() * per_page);
    }
    for (step, samples) in [("get", gets), ("put", puts), ("pair", pairs)] {
        report.measured(
            "drain",
            nr_pages,
            "ns/page",
            &samples,
            json!({ "step": step, "spin_us": spin_us }),
        )?;
    }
    Ok(())
}
