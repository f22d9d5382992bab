//! Compaction through the engine: asked for, for a call that waits, and in the background; dropped
//! when nobody wants it any more, with clients that pin, free and die meanwhile.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;
#[path = "support/movable.rs"]
mod tenants;

use std::time::Duration;

use hugepool_engine::{
    AllocBulk, AllocOutcome, AllocReply, ClientId, Command, CommandError, CompactedEnd, Defaults,
    Effect, MoveBatch, OperationReport, OperationState, Patience, Reply, Shortfall,
};
use hugepool_mm::{CompactMode, Migratetype, Order, ZoneKind};

use support::{Rig, Tenant, alloc, copy_bytes, movable, zone};
use tenants::*;

const SECTIONS: u32 = 8;
const NR_PAGES: u32 = SECTIONS * SECTION;

/// A movable zone of which a client holds every other page, each by a handle; and the client.
fn scattered(defaults: Defaults) -> (Rig, Tenant, u32) {
    let settings = vec![zone("movable", ZoneKind::Movable, u64::from(SECTIONS))];
    let mut rig = Rig::with(settings, defaults);
    rig.add("movable", SECTIONS);
    let tenant = rig.tenant(1);
    let min = u32::try_from(rig.engine.list_zones()[0].watermarks.min).unwrap();
    let nr_held = NR_PAGES - min;
    let pages = rig.take(&tenant, 0, movable(), nr_held as usize);
    assert_eq!(pages.len(), nr_held as usize);
    let (stay, go): (Vec<_>, Vec<_>) = pages.into_iter().partition(|raw| raw.pfn() % 2 == 0);
    tenant.put(0, &go);
    rig.service();
    for (handle, raw) in (0..).zip(&stay) {
        rig.bytes[raw.pfn() as usize] = u64::from(handle) + 1;
        tenant.fill(handle, *raw);
    }
    // What the lane has kept of them is in nobody's way, but for the tests it should be free.
    empty_lanes(&mut rig);
    // The reserve at the end is a block of its own: somebody has that too, for good.
    let stranger = rig.tenant(1);
    let reply = ask(&mut rig, stranger.id, &waiting(5, 0), Patience::None);
    assert!(matches!(reply, AllocOutcome::Done(reply) if reply.nr_blocks == 1));
    assert_eq!(largest(&mut rig), 0);
    rig.verify();
    let nr_stay = u32::try_from(stay.len()).unwrap();
    (rig, tenant, nr_stay)
}

/// Pages that the stranger of [`scattered`] has.
const STRANGERS: u64 = 32;

fn empty_lanes(rig: &mut Rig) {
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
}

fn quiet() -> Defaults {
    Defaults {
        proactiveness: 0,
        background_pages_per_second: 0,
        ..Defaults::default()
    }
}

fn compact(order: Option<u32>, mode: CompactMode) -> Command {
    Command::Compact {
        zone: Some("movable".to_owned()),
        order,
        mode,
    }
}

fn manual() -> Command {
    compact(None, CompactMode::Manual)
}

fn begun(rig: &mut Rig, command: Command) -> OperationReport {
    let Reply::Operation(report) = rig.apply(command) else {
        panic!("no operation")
    };
    report
}

/// The oldest batch that the runner has not begun.
fn next_batch(rig: &mut Rig) -> Option<MoveBatch> {
    rig.left.extend(rig.engine.take_effects());
    let is_move = |effect: &Effect| matches!(effect, Effect::Move { .. });
    let at = rig.left.iter().position(is_move)?;
    match rig.left.remove(at) {
        Effect::Move { batch } => Some(batch),
        _ => None,
    }
}

fn largest(rig: &mut Rig) -> usize {
    let Reply::BuddyInfo(zones) = rig.apply(Command::GetBuddyInfo { zone: None }) else {
        panic!()
    };
    let blocks = &zones[0].free_blocks_by_order;
    blocks.iter().rposition(|&nr| nr > 0).unwrap_or(0)
}

#[test]
fn the_whole_zone_is_packed_and_every_page_keeps_its_bytes() {
    let (mut rig, tenant, nr_held) = scattered(quiet());
    let before = rig.pages();
    let report = rig.operate(manual());
    assert_eq!(report.state, OperationState::Done, "{report:?}");
    let done = report.compacted.unwrap();
    assert_eq!(done.end, Some(CompactedEnd::Reached));
    // Half of the pages had to move, and half of the pageblocks are free now.
    let counts = done.counts;
    let quarter = u64::from(NR_PAGES / 4);
    assert!(
        (quarter - 16..=quarter).contains(&counts.nr_moved),
        "{counts:?}"
    );
    assert!(counts.nr_blocks_made >= 15, "{counts:?}");
    assert_eq!(counts.nr_failed, 0);
    assert!(counts.nr_checks >= 32 && counts.nr_free_scanned > 0);
    assert_eq!(report.done_pages, report.total_pages);
    assert_eq!(largest(&mut rig), 6);
    let after = rig.pages();
    assert_eq!(
        (after.lent, after.free + after.pcp),
        (before.lent, before.free + before.pcp)
    );
    check_bytes(&rig, &tenant, nr_held);
    rig.verify();
    let text = &rig.engine.events_since(0).events;
    assert!(text.iter().any(|event| event.kind == "compact"), "{text:?}");
    free_all(&mut rig, &tenant, nr_held);
}

#[test]
fn enough_is_done_when_the_order_is_there() {
    for mode in [CompactMode::Async, CompactMode::Sync, CompactMode::Manual] {
        let (mut rig, tenant, nr_held) = scattered(quiet());
        let report = rig.operate(compact(Some(5), mode));
        let done = report.compacted.unwrap();
        assert_eq!(done.end, Some(CompactedEnd::Reached), "{mode:?}");
        assert!(done.counts.nr_moved <= 32, "{mode:?} {done:?}");
        assert_eq!(largest(&mut rig), 5);
        check_bytes(&rig, &tenant, nr_held);
        // Asked again, there is nothing to be done.
        let again = rig.operate(compact(Some(5), mode));
        assert_eq!(again.state, OperationState::Done);
        assert_eq!(again.compacted.unwrap().counts.nr_moved, 0);
    }
    let (mut rig, ..) = scattered(quiet());
    let refused = rig.engine.apply(
        compact(Some(7), CompactMode::Sync),
        rig.now,
        &mut rig.outside,
    );
    let order = CommandError::Order {
        order: 7,
        max_order: 6,
    };
    assert_eq!(refused.unwrap_err(), order);
}

#[test]
fn what_is_pinned_stays_and_is_worked_around() {
    let (mut rig, tenant, nr_held) = scattered(quiet());
    // Every eighth page, so that no pageblock can become free.
    let pinned: Vec<u32> = (0..nr_held).step_by(8).collect();
    let places: Vec<u32> = pinned.iter().map(|&at| tenant.pin(at).unwrap()).collect();
    let report = rig.operate(compact(Some(5), CompactMode::Sync));
    assert_eq!(report.state, OperationState::Failed);
    assert_eq!(
        report.compacted.unwrap().end,
        Some(CompactedEnd::NotReached)
    );
    for (&handle, place) in pinned.iter().zip(places) {
        tenant.unpin(handle);
        assert_eq!(tenant.at(handle).pfn(), place);
    }
    check_bytes(&rig, &tenant, nr_held);
    rig.verify();
}

/// Symptom (R08): compaction goes on though whoever wanted it is gone.
#[test]
fn r08_a_cancelled_run_ends_with_its_batch_and_gives_all_places_back() {
    for nr_batches in 0..4 {
        let (mut rig, tenant, nr_held) = scattered(quiet());
        let before = rig.pages();
        let report = begun(&mut rig, manual());
        for _ in 0..nr_batches {
            let batch = next_batch(&mut rig).unwrap();
            let answer = batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy));
            rig.engine.moved(answer, rig.now, &mut rig.outside);
        }
        let batch = next_batch(&mut rig).unwrap();
        assert!(batch.blocks().count() <= 32, "a pageblock's worth");
        let report = begun(&mut rig, Command::GetOperation { id: report.id });
        let has_pace = report.done_pages > 0;
        assert_eq!(report.estimate_ms.is_some(), has_pace, "{report:?}");
        let report = begun(&mut rig, Command::CancelOperation { id: report.id });
        assert_eq!(report.state, OperationState::Running, "the runner is at it");
        // Whatever the runner makes of the two batches that it has, there is no other.
        let second = next_batch(&mut rig).unwrap();
        for batch in [batch, second] {
            assert!(next_batch(&mut rig).is_none());
            let answer = match nr_batches % 2 {
                0 => batch.leave_undone(),
                _ => batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy)),
            };
            rig.engine.moved(answer, rig.now, &mut rig.outside);
            rig.poll();
        }
        assert!(next_batch(&mut rig).is_none());
        let report = begun(&mut rig, Command::GetOperation { id: report.id });
        assert_eq!(report.state, OperationState::Cancelled);
        let done = report.compacted.unwrap();
        assert_eq!(done.end, Some(CompactedEnd::Cancelled));
        let after = rig.pages();
        assert_eq!(
            (after.lent, after.free + after.pcp),
            (before.lent, before.free + before.pcp)
        );
        check_bytes(&rig, &tenant, nr_held);
        rig.verify();
        assert_eq!(rig.poll(), None, "nothing is waited for");
    }
}

/// The runner has two batches at a time and may answer them in any order. Seen to fail with a run
/// that ends, or is counted, while a batch is out.
#[test]
fn two_batches_are_out_at_a_time_and_answered_in_any_order() {
    for is_last_first in [false, true] {
        let (mut rig, tenant, nr_held) = scattered(quiet());
        let report = begun(&mut rig, manual());
        let mut out: Vec<MoveBatch> = Vec::new();
        let (mut most, mut nr_moved) = (0, 0);
        loop {
            while let Some(batch) = next_batch(&mut rig) {
                out.push(batch);
            }
            most = most.max(out.len());
            let Some(last) = out.len().checked_sub(1) else {
                break;
            };
            let batch = out.remove(if is_last_first { last } else { 0 });
            nr_moved += u64::try_from(batch.blocks().count()).unwrap();
            let answer = batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy));
            rig.engine.moved(answer, rig.now, &mut rig.outside);
            rig.verify();
        }
        assert_eq!(most, 2);
        let report = begun(&mut rig, Command::GetOperation { id: report.id });
        assert_eq!(report.state, OperationState::Done);
        let counts = report.compacted.unwrap().counts;
        assert_eq!((counts.nr_moved, counts.nr_failed), (nr_moved, 0));
        assert!(counts.nr_blocks_made >= 15, "{counts:?}");
        check_bytes(&rig, &tenant, nr_held);
        free_all(&mut rig, &tenant, nr_held);
    }
}

/// A call for one block of an order that waits.
fn waiting(order: u32, request_id: u64) -> AllocBulk {
    AllocBulk {
        request_id,
        migratetype: Migratetype::Movable,
        ..alloc(order, 1)
    }
}

fn ask(rig: &mut Rig, id: ClientId, request: &AllocBulk, patience: Patience) -> AllocOutcome {
    rig.engine
        .alloc_bulk(id, request, patience, rig.now, &mut rig.outside)
        .unwrap()
}

/// Asks and waits as the daemon does, until the call is answered.
fn wait_for(rig: &mut Rig, id: ClientId, request: &AllocBulk) -> Option<AllocReply> {
    for _ in 0..200 {
        if let AllocOutcome::Done(reply) = ask(rig, id, request, Patience::Waits) {
            return Some(reply);
        }
        rig.settle_effects();
        rig.advance(10);
    }
    None
}

#[test]
fn a_call_that_waits_has_memory_moved_for_it() {
    for order in [3, 5, 6] {
        let (mut rig, tenant, nr_held) = scattered(quiet());
        let other = rig.tenant(1);
        let at_once = ask(&mut rig, other.id, &waiting(order, 0), Patience::None);
        let AllocOutcome::Done(short) = at_once else {
            panic!()
        };
        assert!(
            matches!(short.shortfall, Some(Shortfall::Fragmented { .. })),
            "who does not wait is told at once: {short:?}"
        );
        for request_id in [0, 9] {
            let reply = wait_for(&mut rig, other.id, &waiting(order, request_id)).unwrap();
            assert_eq!((reply.nr_blocks, reply.shortfall), (1, None));
        }
        check_bytes(&rig, &tenant, nr_held);
        rig.verify();
        let moved = rig.client(tenant.id).nr_moved_pages;
        assert!(
            0 < moved && moved <= 4 << order,
            "{moved} for order {order}"
        );
    }
}

/// Symptom (R08): a client asks for a large block in a scattered zone and is killed during the
/// scan; compaction goes on for it for ever.
#[test]
fn r08_whoever_waited_is_gone_and_the_scan_with_it() {
    type Leave = fn(&mut Rig, ClientId);
    let ways: [(&str, Leave); 5] = [
        ("killed", |rig, id| {
            rig.engine.bury(id, rig.now);
        }),
        ("hung up", |rig, id| {
            rig.engine.detach(id, rig.now, &mut rig.outside)
        }),
        ("gave the call up", |rig, id| rig.engine.abandon(id, 9)),
        ("patience over", |rig, id| {
            let over = Patience::Over(Duration::from_millis(5));
            ask(rig, id, &waiting(6, 9), over);
        }),
        ("evicted", |rig, id| {
            rig.apply(Command::EvictClient {
                slot: id.slot,
                incarnation: None,
                kill: false,
            });
        }),
    ];
    for (way, leave) in ways {
        let (mut rig, tenant, nr_held) = scattered(quiet());
        let before = rig.pages();
        let other = rig.tenant(1);
        let outcome = ask(&mut rig, other.id, &waiting(6, 9), Patience::Waits);
        assert!(
            matches!(outcome, AllocOutcome::Waiting { .. }),
            "{outcome:?}"
        );
        let batch = next_batch(&mut rig).expect("it is for the call");
        leave(&mut rig, other.id);
        let answer = batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy));
        rig.engine.moved(answer, rig.now, &mut rig.outside);
        rig.settle_effects();
        assert!(next_batch(&mut rig).is_none(), "{way}");
        assert_eq!(rig.engine.status().nr_operations, 0, "{way}");
        rig.advance(1000);
        assert_eq!(rig.poll(), None, "{way}: idle");
        assert!(next_batch(&mut rig).is_none(), "{way}");
        let after = rig.pages();
        assert_eq!(
            (after.lent, after.free + after.pcp),
            (before.lent, before.free + before.pcp)
        );
        check_bytes(&rig, &tenant, nr_held);
        rig.verify();
    }
}

#[test]
fn calls_for_the_same_share_one_run_and_the_last_to_go_ends_it() {
    let (mut rig, ..) = scattered(quiet());
    let (first, second) = (rig.tenant(1), rig.tenant(1));
    ask(&mut rig, first.id, &waiting(6, 1), Patience::Waits);
    ask(&mut rig, second.id, &waiting(5, 1), Patience::Waits);
    ask(&mut rig, second.id, &waiting(6, 2), Patience::Waits);
    assert_eq!(rig.engine.status().nr_operations, 1);
    let batch = next_batch(&mut rig).unwrap();
    rig.engine.abandon(first.id, 1);
    rig.engine.abandon(second.id, 2);
    let answer = batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy));
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    assert_eq!(rig.engine.status().nr_operations, 1, "one still waits");
    rig.engine.abandon(second.id, 1);
    rig.settle_effects();
    assert_eq!(rig.engine.status().nr_operations, 0);
    rig.verify();
}

/// Symptom (R20): "full", though half of the memory is free, at odd pages.
#[test]
fn r20_a_large_block_is_made_or_the_call_says_how_scattered_memory_is() {
    let (mut rig, tenant, nr_held) = scattered(quiet());
    let other = rig.tenant(1);
    let reply = wait_for(&mut rig, other.id, &waiting(6, 1)).unwrap();
    assert_eq!(
        (reply.nr_blocks, reply.runs[0].order),
        (1, Order::new(6).unwrap())
    );
    check_bytes(&rig, &tenant, nr_held);

    let (mut rig, tenant, nr_held) = scattered(quiet());
    (0..nr_held).for_each(|handle| assert!(tenant.pin(handle).is_ok()));
    let other = rig.tenant(1);
    assert!(wait_for(&mut rig, other.id, &waiting(6, 1)).is_none());
    let reply = ask(&mut rig, other.id, &waiting(6, 2), Patience::None);
    let AllocOutcome::Done(AllocReply {
        shortfall:
            Some(Shortfall::Fragmented {
                free_pages,
                largest_order,
            }),
        ..
    }) = reply
    else {
        panic!("{reply:?}")
    };
    assert!(free_pages >= u64::from(NR_PAGES / 2 - 40));
    assert!(largest_order.is_some_and(|order| order.get() < 3));
    rig.verify();
}

#[test]
fn failures_are_not_repeated_without_end() {
    let (mut rig, tenant, nr_held) = scattered(quiet());
    (0..nr_held).for_each(|handle| assert!(tenant.pin(handle).is_ok()));
    let other = rig.tenant(1);
    let before = rig.engine.changes().operations;
    for _ in 0..400 {
        ask(&mut rig, other.id, &waiting(6, 1), Patience::Waits);
        rig.settle_effects();
        rig.advance(10);
    }
    let nr_runs = rig.engine.changes().operations - before;
    // Four seconds of asking every 10 ms.
    assert!((1..20).contains(&nr_runs), "{nr_runs}");
}

#[test]
fn nothing_is_moved_where_its_client_has_not_mapped() {
    let settings = vec![zone("movable", ZoneKind::Movable, 4)];
    let mut rig = Rig::with(settings, quiet());
    rig.add("movable", 2);
    let tenant = rig.tenant(1);
    hold(&mut rig, &tenant, movable(), 60);
    for handle in (0..60).step_by(2) {
        let raw = tenant.empty(handle).unwrap();
        tenant.put(0, &[raw]);
    }
    rig.service();
    // Sections that the client has not been told to map yet.
    rig.add("movable", 2);
    empty_lanes(&mut rig);
    // All places are there: half of each pageblock of the new sections.
    let stranger = rig.tenant(1);
    let pages = rig.take(&stranger, 0, movable(), 330);
    assert!(pages.iter().any(|raw| raw.pfn() >= 2 * SECTION));
    let (_, go): (Vec<_>, Vec<_>) = pages.into_iter().partition(|raw| raw.pfn() % 2 == 0);
    stranger.put(0, &go);
    rig.service();
    rig.operate(manual());
    for handle in (1..60).step_by(2) {
        assert!(
            tenant.at(handle).pfn() < 2 * SECTION,
            "moved out of its sight"
        );
    }
    rig.verify();
    tenant.map_all();
    let report = rig.operate(manual());
    assert!(report.compacted.unwrap().counts.nr_moved > 0, "{report:?}");
    assert!(
        (1..60)
            .step_by(2)
            .any(|handle| tenant.at(handle).pfn() >= 2 * SECTION)
    );
    rig.verify();
}

#[test]
fn a_client_may_free_or_die_while_its_pages_move() {
    for dies in [false, true] {
        let (mut rig, tenant, nr_held) = scattered(quiet());
        let report = begun(&mut rig, manual());
        let batch = next_batch(&mut rig).unwrap();
        let mut turn = 0;
        let answer = batch.carry_out(&mut |copy| {
            copy_bytes(&mut rig.bytes, copy);
            turn += 1;
            if turn == 3 && dies {
                rig.engine.bury(tenant.id, rig.now);
            }
            true
        });
        if !dies {
            let pages: Vec<_> = (0..nr_held)
                .filter_map(|handle| tenant.empty(handle).ok())
                .collect();
            tenant.put(0, &pages);
            rig.service();
        }
        rig.engine.moved(answer, rig.now, &mut rig.outside);
        let report = rig.finish(report);
        assert_ne!(report.state, OperationState::Running);
        empty_lanes(&mut rig);
        assert_eq!(rig.pages().lent, STRANGERS, "all is home");
        rig.verify();
    }
}

#[test]
fn lanes_are_emptied_before_the_zone_is_packed() {
    let settings = vec![zone("movable", ZoneKind::Movable, 4)];
    let mut rig = Rig::with(settings, quiet());
    rig.add("movable", 4);
    let tenant = rig.tenant(1);
    let pages = rig.take(&tenant, 0, movable(), 40);
    tenant.put(0, &pages);
    assert!(rig.pages().lent > 0, "the lane has kept some");
    let report = rig.operate(manual());
    assert_eq!(report.state, OperationState::Done);
    assert_eq!((rig.pages().lent, largest(&mut rig)), (0, 6));
    rig.verify();
}

#[test]
fn the_background_packs_a_scattered_zone_within_its_budget() {
    let defaults = Defaults {
        proactiveness: 60,
        background_pages_per_second: 40,
        ..Defaults::default()
    };
    let (mut rig, tenant, nr_held) = scattered(defaults);
    let mut moved = vec![0];
    for _ in 0..12 {
        for _ in 0..100 {
            rig.settle_effects();
            rig.advance(10);
            rig.service();
        }
        moved.push(rig.client(tenant.id).nr_moved_pages);
    }
    let steps: Vec<u64> = moved.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A second's budget, and at most what is left of a pageblock.
    assert!(steps.iter().all(|&step| step <= 40 + 32), "{steps:?}");
    assert!(
        steps.iter().filter(|&&step| step > 0).count() >= 4,
        "{steps:?}"
    );
    assert_eq!(
        steps.last(),
        Some(&0),
        "it ends when it is good enough: {steps:?}"
    );
    assert!(largest(&mut rig) >= 5);
    check_bytes(&rig, &tenant, nr_held);
    rig.verify();
}

#[test]
fn a_call_that_does_not_wait_leaves_a_note_for_the_background() {
    let defaults = Defaults {
        proactiveness: 0,
        ..Defaults::default()
    };
    let (mut rig, ..) = scattered(defaults);
    rig.advance(1000);
    rig.service();
    let other = rig.tenant(1);
    let short = ask(&mut rig, other.id, &waiting(5, 0), Patience::None);
    assert!(matches!(short, AllocOutcome::Done(reply) if reply.nr_blocks == 0));
    for _ in 0..20 {
        rig.poll();
        rig.settle_effects();
        rig.advance(10);
    }
    let AllocOutcome::Done(reply) = ask(&mut rig, other.id, &waiting(5, 0), Patience::None) else {
        panic!()
    };
    assert_eq!(reply.nr_blocks, 1, "it was made meanwhile");
}
