//! Clients that write what they should not: refused, counted, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use hugepool_engine::{ClaimedRun, ClientState, Command, Effect, FreeBulk, Misuse};
use hugepool_mm::Pfn;
use hugepool_shm::raw::{PageParts, RawPage};
use hugepool_shm::scribble::LaneWord;
use support::{PAGE, Rig, Tenant};

fn forged(page: RawPage, change: impl Fn(&mut PageParts)) -> RawPage {
    let mut parts = page.parts().unwrap();
    change(&mut parts);
    parts.pack().unwrap()
}

/// Puts words into `returns` as a hostile client would.
fn push_returns(tenant: &Tenant, words: &[u64]) {
    let mut tail = tenant.segment.peek(0, LaneWord::ReturnsTail).unwrap();
    for &word in words {
        tenant
            .segment
            .scribble(0, LaneWord::Return(u32::try_from(tail).unwrap()), word);
        tail = (tail + 1) & u64::from(u32::MAX);
    }
    tenant.segment.scribble(0, LaneWord::ReturnsTail, tail);
}

#[test]
fn forged_words_are_counted_and_change_nothing() {
    let mut rig = Rig::new(4);
    let victim = rig.tenant(1);
    let victims = rig.take(&victim, 0, PAGE, 5);
    let tenant = rig.tenant(1);
    let pages = rig.take(&tenant, 0, PAGE, 3);
    let block = rig.alloc(tenant.id, 3, 1).runs[0];
    let before = (rig.pages(), rig.client(tenant.id).lent);
    let page = pages[0];
    let generation = block.generation;
    let words = [
        victims[0].bits(),
        forged(page, |parts| parts.pfn = 100_000).bits(),
        // Of the zone whose sections are all absent.
        forged(page, |parts| parts.pfn = 5 * 128).bits(),
        forged(page, |parts| parts.generation += 1).bits(),
        forged(page, |parts| parts.order = 1).bits(),
        // The tail of a block of its own.
        forged(page, |parts| {
            parts.pfn = block.first.get() + 4;
            parts.generation = generation;
        })
        .bits(),
        0,
        u64::MAX,
    ];
    push_returns(&tenant, &words);
    rig.service();
    assert_eq!((rig.pages(), rig.client(tenant.id).lent), before);
    assert_eq!(rig.client(tenant.id).nr_misuses, words.len() as u64);
    assert_eq!(rig.client(victim.id).nr_misuses, 0);
    assert_eq!(rig.client(tenant.id).state, ClientState::Attached);
    rig.verify();
    // It can still give back what is its own.
    tenant.put(0, &pages);
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    rig.verify();
}

#[test]
fn r25_a_page_freed_twice_goes_home_once() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let [p] = rig.take(&tenant, 0, PAGE, 1)[..] else {
        panic!()
    };
    push_returns(&tenant, &[p.bits(), p.bits()]);
    rig.service();
    assert_eq!(rig.client(tenant.id).nr_misuses, 1);
    let pages = rig.take(&tenant, 0, PAGE, 20);
    let mut pfns: Vec<u32> = pages.iter().map(|page| page.pfn()).collect();
    pfns.sort_unstable();
    pfns.dedup();
    assert_eq!(pfns.len(), 20, "a page was lent twice");
    rig.verify();
}

#[test]
fn a_page_in_two_lanes_and_in_the_map_comes_home_once() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(2);
    let pages = rig.take(&tenant, 0, PAGE, 10);
    let lent = rig.client(tenant.id).lent;
    tenant.put(0, &pages);
    tenant.put(1, &pages);
    for page in &pages {
        tenant.segment.free_map().set(page.pfn());
    }
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    assert_eq!(rig.client(tenant.id).lent, 0);
    assert!(lent >= 10);
    rig.verify();
}

#[test]
fn absurd_cursors_poison_the_lane_and_the_others_are_taken_home() {
    for word in [LaneWord::GrantsHead(PAGE), LaneWord::ReturnsTail] {
        let mut rig = Rig::new(4);
        let bystander = rig.tenant(1);
        let theirs = rig.take(&bystander, 0, PAGE, 4);
        let tenant = rig.tenant(2);
        let held = rig.take(&tenant, 0, PAGE, 4);
        rig.take(&tenant, 1, PAGE, 4);
        let there = tenant.segment.peek(0, word).unwrap();
        tenant.segment.scribble(0, word, there + 100_000);
        rig.service();
        let client = rig.client(tenant.id);
        assert_eq!(client.state, ClientState::Poisoned, "{word:?}");
        assert!(
            rig.engine
                .take_effects()
                .contains(&Effect::Close { client: tenant.id })
        );
        assert_ne!(tenant.segment.closed(), 0);
        rig.verify();
        // Its own lane is left alone; frees still come home through the map and the other lane.
        tenant.segment.free_map().set(held[0].pfn());
        rig.service();
        assert_eq!(rig.client(tenant.id).lent, client.lent - 1);
        // Death brings the rest.
        rig.engine.bury(tenant.id, rig.now);
        rig.service();
        bystander.put(0, &theirs);
        rig.operate(Command::DrainLanes {
            slot: None,
            timeout: None,
        });
        assert_eq!(rig.pages().lent, 0);
        rig.verify();
    }
}

#[test]
fn an_absurd_magazine_poisons_at_recall() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    rig.take(&tenant, 0, PAGE, 4);
    let top = tenant.segment.peek(0, LaneWord::MagazineTop(PAGE)).unwrap();
    tenant
        .segment
        .scribble(0, LaneWord::MagazineTop(PAGE), top + 5000);
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    assert_eq!(rig.client(tenant.id).state, ClientState::Poisoned);
    rig.verify();
    rig.engine.bury(tenant.id, rig.now);
    assert_eq!(rig.pages().lent, 0);
    rig.verify();
}

#[test]
fn scribbled_grants_are_claims_too() {
    let mut rig = Rig::new(4);
    let victim = rig.tenant(1);
    let victims = rig.take(&victim, 0, PAGE, 8);
    rig.apply(Command::SetPcp {
        slot: None,
        batch: Some(10),
        high: None,
    });
    let tenant = rig.tenant(1);
    rig.take(&tenant, 0, PAGE, 1);
    let head = tenant.segment.peek(0, LaneWord::GrantsHead(PAGE)).unwrap();
    let head = u32::try_from(head).unwrap();
    for (offset, page) in (0..).zip(&victims[..2]) {
        tenant
            .segment
            .scribble(0, LaneWord::Grant(PAGE, head + offset), page.bits());
    }
    let lent = rig.client(victim.id).lent;
    let nr_grants = rig.client(tenant.id).lent - 1;
    assert!(nr_grants > 2);
    rig.operate(Command::DrainLanes {
        slot: Some(tenant.id.slot),
        timeout: None,
    });
    assert_eq!(rig.client(victim.id).lent, lent);
    // What was written over has named the whole run: nobody can name its blocks any more but by
    // their client's death, and so they are its own still.
    assert_eq!(rig.client(tenant.id).nr_misuses, nr_grants);
    assert_eq!(rig.client(tenant.id).lent, 1 + nr_grants);
    rig.verify();
}

#[test]
fn r16_free_of_a_middle_page_a_page_outside_or_a_wrong_order_by_call() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let run = rig.alloc(tenant.id, 2, 1).runs[0];
    let before = rig.pages();
    let first = run.first.get();
    let claims = [
        (first + 1, 0, run.generation),
        (1_000_000, 0, 1),
        (u32::MAX, 31, 1),
        (first, 1, run.generation),
        (first, 63, run.generation),
        (first, 2, run.generation + 1),
    ];
    for (first_pfn, order, generation) in claims {
        let runs = vec![ClaimedRun {
            first_pfn,
            nr_blocks: 1,
            order,
            generation,
        }];
        let request = FreeBulk {
            request_id: 0,
            acknowledged: 0,
            runs,
        };
        let reply = rig.engine.free_bulk(tenant.id, &request).unwrap();
        assert_eq!((reply.nr_blocks, reply.nr_refused), (0, 1));
        assert_eq!(rig.pages(), before);
    }
    let runs = vec![ClaimedRun {
        first_pfn: first,
        nr_blocks: 3,
        order: 2,
        generation: run.generation,
    }];
    let request = FreeBulk {
        request_id: 0,
        acknowledged: 0,
        runs,
    };
    let reply = rig.engine.free_bulk(tenant.id, &request).unwrap();
    assert_eq!((reply.nr_blocks, reply.nr_refused), (1, 2));
    let next = Pfn::new(first + 4);
    assert_eq!(reply.refused[0].misuse, Misuse::NotLent { pfn: next });
    rig.verify();
}

#[test]
fn a_free_map_full_of_nonsense_costs_its_budget_and_no_page() {
    let mut rig = Rig::new(4);
    let victim = rig.tenant(1);
    rig.take(&victim, 0, PAGE, 20);
    let before = rig.client(victim.id).lent;
    let tenant = rig.tenant(1);
    for pfn in 0..1024 {
        tenant.segment.free_map().set(pfn);
    }
    rig.service();
    assert_eq!(rig.client(victim.id).lent, before);
    assert!(rig.client(tenant.id).nr_misuses >= 20);
    rig.verify();
}

/// Seen to fail: one look at the mark for what to lend, and another for what to put aside.
#[test]
fn a_mark_that_changes_while_it_is_looked_at_doubles_no_page() {
    let mut rig = Rig::new(2);
    let spec = rig.spec(4000);
    // It never says that it has caught up, so the marks are looked at for each block.
    let tenant = rig.attach(spec, 1);
    let segment = tenant.segment.clone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for mark in [segment.announced(0), 0] {
                    segment.mark_mapped(0, mark);
                }
            }
        });
        // However this ends, the other thread does.
        let _over = Over(&is_over);
        for _ in 0..3000 {
            let reply = rig.alloc(tenant.id, 0, 100);
            let pfns: Vec<u32> = reply
                .runs
                .iter()
                .flat_map(|run| (run.first.get()..).take(run.nr_blocks as usize))
                .collect();
            let distinct: BTreeSet<&u32> = pfns.iter().collect();
            assert_eq!(distinct.len(), pfns.len());
            let runs = reply.runs.iter().map(|run| ClaimedRun {
                first_pfn: run.first.get(),
                nr_blocks: run.nr_blocks,
                order: 0,
                generation: run.generation,
            });
            let free = FreeBulk {
                request_id: 0,
                acknowledged: 0,
                runs: runs.collect(),
            };
            let freed = rig.engine.free_bulk(tenant.id, &free).unwrap();
            assert_eq!(freed.nr_blocks, reply.nr_blocks);
        }
    });
    rig.verify();
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
