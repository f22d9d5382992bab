//! `bench rpc`: calls over gRPC on the pages socket: an empty one for the stack alone, then batches.
//!
//! All without a session's token: what the connection is lent goes home when it closes.

use std::{path::Path, time::Instant};

use hugepool::runtime_dir;
use hugepool_proto::v1::{AllocBulkRequest, FreeBulkRequest, Run, pages_client::PagesClient};
use serde_json::json;
use tonic::transport::{Channel, Endpoint};

use super::report::Report;
use crate::outcome::Failure;

/// Calls of one window.
const CALLS: u32 = 300;

/// Times the calls, `reps` windows each.
pub async fn run(reps: u32, dir: Option<&Path>, report: &Report<'_>) -> Result<(), Failure> {
    let next = "see whether the daemon runs: 'hugepoolctl status'";
    let socket =
        runtime_dir::find(dir, "pages.sock").map_err(|error| Failure::refused(error, next))?;
    let unreachable = |error| Failure::refused(error, next);
    let address = format!("unix:{}", socket.display());
    let endpoint = Endpoint::from_shared(address).map_err(unreachable)?;
    let mut calls = Calls {
        pages: PagesClient::new(endpoint.connect().await.map_err(unreachable)?),
        next_id: 1,
    };
    for n in [0, 1, 65, 4096] {
        let mut medians = Vec::new();
        for _ in 0..reps {
            let mut window = Vec::new();
            for _ in 0..CALLS {
                window.push(calls.alloc(n).await?);
            }
            window.sort_by(f64::total_cmp);
            medians.push(window[window.len() / 2]);
        }
        let case = if n == 0 { "empty_unary" } else { "alloc_bulk" };
        let arm = json!({"calls_per_window": CALLS, "window": "p50"});
        report.measured(case, u64::from(n), "us", &medians, arm)?;
    }
    Ok(())
}

struct Calls {
    pages: PagesClient<Channel>,
    next_id: u64,
}

impl Calls {
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Microseconds of an AllocBulk of `n` pages; giving them back is not timed.
    async fn alloc(&mut self, n: u32) -> Result<f64, Failure> {
        let request_id = self.id();
        let request = AllocBulkRequest {
            request_id,
            acknowledged: request_id - 1,
            nr_pages: n,
            ..Default::default()
        };
        let begun = Instant::now();
        let reply = self.pages.alloc_bulk(request).await?.into_inner();
        let us = begun.elapsed().as_secs_f64() * 1e6;
        if reply.nr_pages < n {
            let what = format!("AllocBulk lent {} of {n} pages", reply.nr_pages);
            return Err(Failure::refused(
                what,
                "see 'hugepoolctl zone list' for what is free",
            ));
        }
        if n > 0 {
            self.free(reply.runs).await?;
        }
        Ok(us)
    }

    async fn free(&mut self, runs: Vec<Run>) -> Result<(), Failure> {
        let request_id = self.id();
        let request = FreeBulkRequest {
            request_id,
            acknowledged: request_id - 1,
            runs,
        };
        let reply = self.pages.free_bulk(request).await?.into_inner();
        match reply.refused.first() {
            None => Ok(()),
            Some(refused) => {
                let what = format!("FreeBulk refused page {} of what it had lent", refused.pfn);
                Err(Failure::refused(
                    what,
                    "keep the daemon's log and run 'hugepoolctl verify'",
                ))
            }
        }
    }
}
