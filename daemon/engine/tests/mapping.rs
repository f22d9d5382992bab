//! A client that maps and unmaps while it is lent to: what it says may change between two looks.
//!
//! Seen to fail: a page asked about twice, once to put it aside and once to keep it.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugepool_engine::{ClaimedRun, FreeBulk};
use support::Rig;

/// Ends the other thread, also when this one fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_client_that_maps_and_unmaps_meanwhile_gets_each_page_once() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    // Behind the announcements, so that each page is looked at.
    tenant.segment.mark_mapped_epoch(0);
    let (segment, ends) = (tenant.segment.clone(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for section in 0..4 {
                    segment.mark_mapped(section, segment.announced(section));
                    segment.mark_mapped(section, 0);
                }
            }
        });
        let _ends = Ends(&ends);
        for _ in 0..3000 {
            let lent = rig.alloc(tenant.id, 0, 64);
            let claim = |run: &hugepool_engine::LentRun| ClaimedRun {
                first_pfn: run.first.get(),
                nr_blocks: run.nr_blocks,
                order: 0,
                generation: run.generation,
            };
            let free = FreeBulk {
                request_id: 0,
                acknowledged: 0,
                runs: lent.runs.iter().map(claim).collect(),
            };
            let freed = rig.engine.free_bulk(tenant.id, &free).unwrap();
            assert_eq!((freed.nr_blocks, freed.nr_refused), (lent.nr_blocks, 0));
        }
    });
    rig.verify();
}
