//! `bench attach`: how long it takes to become a client, and to have a first page.

use std::{path::Path, time::Instant};

use hugepool::{Client, Options};
use serde_json::json;

use super::{attach, report::Report, short};
use crate::outcome::Failure;

/// Attaches and detaches `reps` times; the zones have `zone_bytes` in all.
pub fn run(
    reps: u32,
    runtime_dir: Option<&Path>,
    zone_bytes: u64,
    report: &Report<'_>,
) -> Result<(), Failure> {
    let (mut attaches, mut first_pages) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        let begun = Instant::now();
        let client: Client = attach(runtime_dir, Options::default())?;
        attaches.push(begun.elapsed().as_secs_f64() * 1e3);
        let page = client.alloc_page().map_err(short)?;
        first_pages.push(begun.elapsed().as_secs_f64() * 1e3);
        drop(page);
    }
    let arm = json!({ "zone_bytes": zone_bytes });
    report.measured("attach", 1, "ms", &attaches, arm.clone())?;
    report.measured("first_page", 1, "ms", &first_pages, arm)
}
