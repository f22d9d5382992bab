//! Pages by call: partial answers and their reasons, idempotency, limits, connections.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use hugepool_engine::{
    AllocBulk, AllocOutcome, AllocReply, CallError, ClaimedRun, ClientId, Command, ConnectSpec,
    Defaults, FreeBulk, FreeReply, LentRun, Limit, MAX_BLOCKS_PER_CALL, Misuse, Patience,
    Shortfall, Whom,
};
use hugepool_mm::{Migratetype, Order, ZoneId, ZoneKind};
use support::{PAGE, Rig, alloc, zone};

fn claim(run: &LentRun) -> ClaimedRun {
    ClaimedRun {
        first_pfn: run.first.get(),
        nr_blocks: run.nr_blocks,
        order: u32::from(run.order.get()),
        generation: run.generation,
    }
}

fn free(rig: &mut Rig, id: ClientId, runs: &[LentRun]) -> FreeReply {
    let runs = runs.iter().map(claim).collect();
    rig.engine
        .free_bulk(
            id,
            &FreeBulk {
                request_id: 0,
                acknowledged: 0,
                runs,
            },
        )
        .unwrap()
}

fn ask(rig: &mut Rig, id: ClientId, request: &AllocBulk) -> Result<AllocReply, CallError> {
    match rig
        .engine
        .alloc_bulk(id, request, Patience::None, rig.now, &mut rig.outside)?
    {
        AllocOutcome::Done(reply) => Ok(reply),
        AllocOutcome::Waiting { .. } => panic!("did not ask to wait"),
    }
}

fn named(request_id: u64, nr_blocks: u32) -> AllocBulk {
    AllocBulk {
        request_id,
        ..alloc(0, nr_blocks)
    }
}

/// Seen to fail: a page that does not exist was named, for want of an order.
#[test]
fn a_block_claimed_at_an_absurd_order_is_named_as_it_was_claimed() {
    let mut rig = Rig::new(8);
    let tenant = rig.tenant(1);
    let reply = rig.alloc(tenant.id, 2, 1);
    for order in [0, 3, 31, 32, 63, 64, u32::MAX] {
        let wrong = ClaimedRun {
            order,
            ..claim(&reply.runs[0])
        };
        let request = FreeBulk {
            request_id: 0,
            acknowledged: 0,
            runs: vec![wrong],
        };
        let reply = rig.engine.free_bulk(tenant.id, &request).unwrap();
        assert_eq!((reply.nr_blocks, reply.nr_refused), (0, 1));
        let refused = reply.refused[0];
        assert_eq!(refused.pfn, wrong.first_pfn, "order {order}");
        assert!(
            matches!(refused.misuse, Misuse::WrongOrder { claimed, .. } if claimed == order),
            "{refused:?}"
        );
    }
    assert_eq!(free(&mut rig, tenant.id, &reply.runs).nr_blocks, 1);
}

#[test]
fn any_order_comes_in_runs_and_goes_back() {
    let mut rig = Rig::new(8);
    let tenant = rig.tenant(1);
    for order in 0..=6 {
        let reply = rig.alloc(tenant.id, order, 5);
        assert_eq!((reply.nr_blocks, reply.shortfall), (5, None));
        let blocks: u32 = reply.runs.iter().map(|run| run.nr_blocks).sum();
        assert_eq!(blocks, 5);
        rig.verify();
        let reply = free(&mut rig, tenant.id, &reply.runs);
        assert_eq!((reply.nr_blocks, reply.nr_refused), (5, 0));
    }
    assert_eq!(rig.pages().lent, 0);
    let reply = rig.alloc(tenant.id, 0, 65);
    assert!(
        reply.runs.len() <= 3,
        "{} runs for 65 fresh pages",
        reply.runs.len()
    );
    rig.verify();
}

#[test]
fn r10_asking_for_nothing_is_answered_with_nothing() {
    let mut rig = Rig::new(1);
    let tenant = rig.tenant(1);
    let before = rig.pages();
    assert_eq!(rig.alloc(tenant.id, 0, 0), AllocReply::default());
    assert_eq!(rig.pages(), before);
}

#[test]
fn r11_a_call_refused_by_the_limit_takes_nothing_and_says_quota() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    rig.apply(Command::SetLimits {
        whom: Whom::Client(tenant.id.slot),
        zone: None,
        limit: Limit {
            floor_pages: 0,
            ceiling_pages: Some(5),
        },
    });
    assert_eq!(tenant.segment.claim_allowance(), (5, 0));
    let reply = rig.alloc(tenant.id, 0, 16);
    assert_eq!(tenant.segment.claim_allowance(), (0, 0));
    let quota = Shortfall::Quota {
        owned_pages: 5,
        ceiling_pages: 5,
    };
    assert_eq!((reply.nr_blocks, reply.shortfall), (5, Some(quota)));
    let reply = rig.alloc(tenant.id, 0, 11);
    assert_eq!((reply.nr_blocks, reply.shortfall), (0, Some(quota)));
    assert_eq!(rig.alloc(tenant.id, 1, 1).nr_blocks, 0);
    rig.verify();
    rig.apply(Command::SetLimits {
        whom: Whom::EachClient,
        zone: None,
        limit: Limit::default(),
    });
    assert_eq!(rig.alloc(tenant.id, 0, 11).nr_blocks, 11);
}

#[test]
fn r17_asking_for_more_than_is_left_fails_the_request_only() {
    let mut rig = Rig::new(1);
    let first = rig.tenant(1);
    let all = rig.alloc(first.id, 0, 1000);
    assert!(
        matches!(all.shortfall, Some(Shortfall::ZoneEmpty { .. })),
        "{all:?}"
    );
    let second = rig.tenant(1);
    let reply = rig.alloc(second.id, 0, 1);
    assert_eq!(reply.nr_blocks, 0);
    let Some(Shortfall::ZoneEmpty {
        free_pages,
        min_pages,
    }) = reply.shortfall
    else {
        panic!("{reply:?}")
    };
    assert!(free_pages <= min_pages);
    rig.verify();
    assert_eq!(free(&mut rig, first.id, &all.runs).nr_refused, 0);
    assert_eq!(rig.alloc(second.id, 0, 1).nr_blocks, 1);
}

#[test]
fn r19_what_is_out_never_exceeds_the_limit() {
    let ceiling = 100;
    let mut normal = zone("normal", ZoneKind::Normal, 8);
    normal.ceiling_pages = Some(ceiling);
    let mut rig = Rig::with(vec![normal], Defaults::default());
    rig.add("normal", 8);
    let tenants: Vec<_> = (0..8).map(|_| rig.tenant(1)).collect();
    let mut held: Vec<Vec<LentRun>> = vec![Vec::new(); 8];
    let mut nr_refused = 0;
    for round in 0..40 {
        for (at, tenant) in tenants.iter().enumerate() {
            let reply = rig.alloc(tenant.id, round % 3, 9);
            nr_refused += u32::from(reply.shortfall.is_some());
            if let Some(shortfall) = reply.shortfall {
                assert!(
                    matches!(shortfall, Shortfall::Quota { .. }),
                    "{shortfall:?}"
                );
            }
            held[at].extend(reply.runs);
            rig.take(tenant, 0, PAGE, 3);
            assert!(rig.pages().lent <= ceiling);
        }
        for (at, tenant) in tenants.iter().enumerate() {
            let back: Vec<LentRun> = held[at].iter().copied().skip(at % 2).step_by(2).collect();
            held[at].retain(|run| !back.contains(run));
            assert_eq!(free(&mut rig, tenant.id, &back).nr_refused, 0);
        }
        rig.verify();
    }
    assert!(nr_refused > 0);
}

#[test]
fn r20_a_zone_full_of_holes_says_fragmented_with_the_largest_order() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let reply = rig.alloc(tenant.id, 0, 1000);
    let pfns: Vec<(u32, u32)> = reply
        .runs
        .iter()
        .flat_map(|run| (0..run.nr_blocks).map(|at| (run.first.get() + at, run.generation)))
        .collect();
    let odd: Vec<ClaimedRun> = pfns
        .iter()
        .filter(|(pfn, _)| pfn % 2 == 1)
        .map(|&(first_pfn, generation)| ClaimedRun {
            first_pfn,
            nr_blocks: 1,
            order: 0,
            generation,
        })
        .collect();
    let request = FreeBulk {
        request_id: 0,
        acknowledged: 0,
        runs: odd,
    };
    rig.engine.free_bulk(tenant.id, &request).unwrap();
    let reply = rig.alloc(tenant.id, 6, 1);
    let Some(Shortfall::Fragmented {
        free_pages,
        largest_order,
    }) = reply.shortfall
    else {
        panic!("{reply:?}")
    };
    assert!(
        free_pages > 100 && largest_order < Order::new(6),
        "{reply:?}"
    );
    rig.verify();
}

#[test]
fn before_a_caller_falls_short_unused_pages_are_taken_back_from_others() {
    let mut rig = Rig::new(2);
    rig.apply(Command::SetPcp {
        slot: None,
        batch: Some(64),
        high: None,
    });
    let hoarder = rig.tenant(1);
    rig.take(&hoarder, 0, PAGE, 1);
    let cached = rig.client(hoarder.id).in_lanes;
    assert!(cached > 60);
    let tenant = rig.tenant(1);
    let managed = u32::try_from(rig.pages().managed).unwrap();
    let reply = rig.alloc(tenant.id, 0, managed);
    assert_eq!(rig.client(hoarder.id).in_lanes, 0, "{reply:?}");
    assert_eq!(rig.client(hoarder.id).lent, 1);
    rig.verify();
}

#[test]
fn a_repeated_id_gets_the_first_answer_again() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let first = ask(&mut rig, tenant.id, &named(1, 10)).unwrap();
    assert_eq!(ask(&mut rig, tenant.id, &named(1, 10)).unwrap(), first);
    assert_eq!(rig.client(tenant.id).lent, 10);
    let runs: Vec<ClaimedRun> = first.runs.iter().map(claim).collect();
    let request = FreeBulk {
        request_id: 2,
        acknowledged: 1,
        runs,
    };
    let freed = rig.engine.free_bulk(tenant.id, &request).unwrap();
    assert_eq!(freed.nr_blocks, 10);
    assert_eq!(rig.engine.free_bulk(tenant.id, &request).unwrap(), freed);
    assert_eq!(rig.client(tenant.id).nr_misuses, 0);
    // Acknowledged, it is served no more; and an id is one kind of call.
    let settled = ask(&mut rig, tenant.id, &named(1, 10));
    assert_eq!(settled, Err(CallError::Settled { request_id: 1 }));
    let other = ask(&mut rig, tenant.id, &named(2, 10));
    assert_eq!(other, Err(CallError::OtherCall { request_id: 2 }));
    rig.verify();
}

#[test]
fn an_abandoned_call_goes_home_but_for_what_was_freed_meanwhile() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let reply = ask(&mut rig, tenant.id, &named(1, 10)).unwrap();
    let one = LentRun {
        nr_blocks: 1,
        ..reply.runs[0]
    };
    assert_eq!(free(&mut rig, tenant.id, &[one]).nr_blocks, 1);
    let request = AllocBulk {
        abandoned: vec![1, 7],
        ..named(2, 1)
    };
    ask(&mut rig, tenant.id, &request).unwrap();
    assert_eq!(rig.client(tenant.id).lent, 1);
    assert_eq!(rig.client(tenant.id).nr_misuses, 0);
    // The abandoned call that still comes is not served.
    for request_id in [1, 7] {
        let late = ask(&mut rig, tenant.id, &named(request_id, 10));
        assert_eq!(late, Err(CallError::Settled { request_id }));
    }
    rig.verify();
    rig.engine.abandon(tenant.id, 2);
    assert_eq!(rig.client(tenant.id).lent, 0);
    rig.verify();
}

#[test]
fn an_id_abandoned_and_acknowledged_in_one_call_goes_home() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    ask(&mut rig, tenant.id, &named(1, 10)).unwrap();
    let request = AllocBulk {
        acknowledged: 1,
        abandoned: vec![1],
        ..named(2, 1)
    };
    ask(&mut rig, tenant.id, &request).unwrap();
    assert_eq!(rig.client(tenant.id).lent, 1);
    rig.verify();
}

#[test]
fn answers_remembered_are_bounded() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    for id in 1..=64 {
        ask(&mut rig, tenant.id, &named(id, 1)).unwrap();
    }
    let refused = ask(&mut rig, tenant.id, &named(65, 1));
    assert_eq!(
        refused,
        Err(CallError::TooManyUnacknowledged { remembered: 64 })
    );
    let request = AllocBulk {
        acknowledged: 64,
        ..named(65, 1)
    };
    assert_eq!(ask(&mut rig, tenant.id, &request).unwrap().nr_blocks, 1);
    rig.verify();
}

#[test]
fn a_waiting_call_keeps_what_it_found_and_gives_it_back_when_given_up() {
    let mut rig = Rig::new(1);
    let holder = rig.tenant(1);
    let all = rig.alloc(holder.id, 0, 1000);
    let back = LentRun {
        nr_blocks: 4,
        ..all.runs[0]
    };
    assert_eq!(free(&mut rig, holder.id, &[back]).nr_blocks, 4);
    let tenant = rig.tenant(1);
    let waits = |rig: &mut Rig, request: &AllocBulk, patience| {
        rig.engine
            .alloc_bulk(tenant.id, request, patience, rig.now, &mut rig.outside)
            .unwrap()
    };
    let request = named(1, 10);
    let outcome = waits(&mut rig, &request, Patience::Waits);
    assert!(
        matches!(outcome, AllocOutcome::Waiting { nr_blocks: 4, .. }),
        "{outcome:?}"
    );
    assert_eq!(rig.client(tenant.id).lent, 4);
    let timeout = Duration::from_millis(20);
    let outcome = waits(&mut rig, &request, Patience::Over(timeout));
    let AllocOutcome::Done(reply) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        (reply.nr_blocks, reply.shortfall),
        (4, Some(Shortfall::Deadline { timeout }))
    );
    let request = named(2, 10);
    let outcome = waits(&mut rig, &request, Patience::Waits);
    assert!(
        matches!(outcome, AllocOutcome::Waiting { nr_blocks: 0, .. }),
        "{outcome:?}"
    );
    rig.engine.abandon(tenant.id, 2);
    rig.engine.abandon(tenant.id, 1);
    assert_eq!(rig.client(tenant.id).lent, 0);
    rig.verify();
}

#[test]
fn a_connection_without_a_token_gives_all_back_at_its_close() {
    let mut rig = Rig::new(2);
    let spec = ConnectSpec {
        uid: 1,
        gid: 1,
        pid: 9,
        zones: vec![ZoneId::new(0)],
    };
    let id = rig.engine.connect(spec, rig.now).unwrap();
    assert_eq!(rig.alloc(id, 0, 10).nr_blocks, 10);
    assert!(rig.client(id).is_connection);
    let request = AllocBulk {
        zone: Some("movable".to_owned()),
        ..alloc(0, 1)
    };
    let refused = ask(&mut rig, id, &request);
    assert_eq!(
        refused,
        Err(CallError::ZoneForbidden {
            name: "movable".to_owned()
        })
    );
    rig.engine.disconnect(id);
    rig.engine.disconnect(id);
    assert_eq!(rig.pages().lent, 0);
    assert_eq!(ask(&mut rig, id, &alloc(0, 1)), Err(CallError::NoSession));
    rig.verify();
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let id = tenant.id;
    assert_eq!(
        ask(&mut rig, id, &alloc(7, 1)),
        Err(CallError::Order {
            order: 7,
            max_order: 6
        })
    );
    assert_eq!(
        ask(&mut rig, id, &alloc(u32::MAX, 1)),
        Err(CallError::Order {
            order: u32::MAX,
            max_order: 6
        })
    );
    let most = MAX_BLOCKS_PER_CALL;
    let asked = u64::from(u32::MAX);
    assert_eq!(
        ask(&mut rig, id, &alloc(0, u32::MAX)),
        Err(CallError::TooManyBlocks { asked, most })
    );
    let request = AllocBulk {
        zone: Some("dma".to_owned()),
        ..alloc(0, 1)
    };
    assert_eq!(
        ask(&mut rig, id, &request),
        Err(CallError::NoSuchZone {
            name: "dma".to_owned()
        })
    );
    let request = AllocBulk {
        zone: Some("movable".to_owned()),
        migratetype: Migratetype::Reclaimable,
        ..alloc(0, 1)
    };
    assert_eq!(
        ask(&mut rig, id, &request),
        Err(CallError::MovableOnly {
            name: "movable".to_owned()
        })
    );
    let run = ClaimedRun {
        first_pfn: 0,
        nr_blocks: u32::MAX,
        order: 0,
        generation: 0,
    };
    let request = FreeBulk {
        request_id: 0,
        acknowledged: 0,
        runs: vec![run, run],
    };
    assert_eq!(
        rig.engine.free_bulk(id, &request),
        Err(CallError::TooManyBlocks {
            asked: 2 * asked,
            most
        })
    );
    rig.verify();
}
