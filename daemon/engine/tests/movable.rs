//! Blocks that move under their clients: pins, lost moves, deaths and early returns at each step,
//! with the daemon, the runner and the clients all played here.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;
#[path = "support/movable.rs"]
mod tenants;

use hugepool_engine::{Command, Defaults, Effect, MoveBatch, OperationState, Reply};
use hugepool_mm::ZoneKind;
use hugepool_shm::raw::{PageParts, RawMigratetype};

use support::{Rig, by_ids, copy_bytes, movable, zone};
use tenants::*;

#[test]
fn a_section_full_of_movable_pages_goes_and_every_page_keeps_its_bytes() {
    let (mut rig, tenant) = rig_with(100);
    for section in [0, 1, 2] {
        let report = rig.offline(&[section], 1000);
        assert!(is_offline(&report), "{report:?}");
        check_bytes(&rig, &tenant, 100);
        rig.verify();
        let handles = 0..100;
        assert!(
            handles
                .into_iter()
                .all(|handle| section_of(&tenant, handle) != section)
        );
        rig.apply(Command::OnlineSections {
            request: by_ids(&[section]),
            online_order: None,
        });
    }
    let report = rig.client(tenant.id);
    assert!(report.nr_moved_pages >= 100, "{report:?}");
    free_all(&mut rig, &tenant, 100);
}

#[test]
fn blocks_of_every_order_move_whole() {
    for order in [0, 1, 2, 3, 5] {
        let mut rig = Rig::with(
            vec![zone("normal", ZoneKind::Normal, 3)],
            Defaults::default(),
        );
        rig.add("normal", 3);
        let tenant = rig.tenant(1);
        let class = class(order, RawMigratetype::Movable);
        hold(&mut rig, &tenant, class, 2);
        let raw = tenant.at(0);
        let pfns = raw.pfn()..raw.pfn() + (1 << order);
        for pfn in pfns {
            rig.bytes[pfn as usize] = u64::from(pfn - raw.pfn()) + 1;
        }
        let section = section_of(&tenant, 0);
        assert!(is_offline(&rig.offline(&[section], 1000)), "order {order}");
        let moved = tenant.at(0);
        assert_eq!(moved.order(), order);
        assert!(moved.pfn().is_multiple_of(1 << order));
        for offset in 0..1 << order {
            let byte = rig.bytes[(moved.pfn() + offset) as usize];
            assert_eq!(byte, u64::from(offset) + 1);
        }
        free_all(&mut rig, &tenant, 2);
    }
}

#[test]
fn a_pinned_page_stays_is_named_and_goes_when_it_is_let_go() {
    let (mut rig, tenant) = rig_with(10);
    let section = section_of(&tenant, 0);
    let pinned = tenant.pin(3).unwrap();
    let report = rig.offline(&[section], 100);
    assert_eq!(report.state, OperationState::Failed);
    let [holder] = &outcome(&report).holders[..] else {
        panic!("{report:?}")
    };
    let counts = (holder.nr_pages, holder.nr_pinned, holder.nr_hot);
    assert_eq!((holder.client, counts), (tenant.id, (1, 1, 0)));
    assert_eq!(tenant.at(3).pfn(), pinned);
    check_bytes(&rig, &tenant, 10);
    rig.verify();

    // Let go of while the operation waits.
    let begun = begin_offline(&mut rig, section, 1000);
    for _ in 0..5 {
        rig.settle_effects();
        rig.advance(10);
    }
    tenant.unpin(3);
    assert!(is_offline(&rig.finish(begun)));
    check_bytes(&rig, &tenant, 10);
    free_all(&mut rig, &tenant, 10);
}

#[test]
fn a_pin_before_during_and_after_the_copy_never_loses_a_byte() {
    let (mut rig, tenant) = rig_with(4);
    let section = section_of(&tenant, 0);
    let (begun, batch) = first_batch(&mut rig, section);
    tenant.pin(0).unwrap();
    let old = [0, 1, 2, 3].map(|handle| tenant.segment.handles().word(handle).unwrap().state());
    let mut turn = 0;
    let answer = batch.carry_out(&mut |copy| {
        copy_bytes(&mut rig.bytes, copy);
        if turn == 0 {
            // The first that is not pinned: its client writes in the middle of the copy.
            let handle = (1..4)
                .find(|&handle| {
                    let word = tenant.segment.handles().word(handle).unwrap();
                    word.state() != old[handle as usize]
                })
                .unwrap();
            let pfn = tenant.pin(handle).unwrap();
            rig.bytes[pfn as usize] += 1000;
            tenant.unpin(handle);
        }
        turn += 1;
        true
    });
    // After the word was opened, before the daemon knows.
    for handle in 1..4 {
        let pfn = tenant.pin(handle).unwrap();
        rig.bytes[pfn as usize] += 10_000;
        tenant.unpin(handle);
    }
    rig.verify();
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    rig.verify();
    assert_eq!(rig.client(tenant.id).nr_moved_pages, 2);
    tenant.unpin(0);
    assert!(is_offline(&rig.finish(begun)));
    let values: Vec<u64> = (0..4)
        .map(|handle| rig.bytes[tenant.at(handle).pfn() as usize])
        .collect();
    assert_eq!(values, [1, 11_002, 10_003, 10_004]);
    free_all(&mut rig, &tenant, 4);
}

/// What a client may do with a block at each step of its move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    BeforeClose,
    BeforeOpen,
    AfterOpen,
}

const STEPS: [Step; 3] = [Step::BeforeClose, Step::BeforeOpen, Step::AfterOpen];

/// Carries a batch of one move out; `act` runs at one step of it.
fn carry_out_at(
    rig: &mut Rig,
    batch: &MoveBatch,
    step: Step,
    act: &mut dyn FnMut(&mut Rig),
) -> hugepool_engine::MovedBatch {
    if step == Step::BeforeClose {
        act(rig);
    }
    let answer = batch.carry_out(&mut |copy| {
        copy_bytes(&mut rig.bytes, copy);
        if step == Step::BeforeOpen {
            act(rig);
        }
        true
    });
    if step == Step::AfterOpen {
        act(rig);
    }
    answer
}

#[test]
fn a_block_freed_at_any_step_goes_home_once() {
    for step in STEPS {
        // Whether the daemon sees the free before or after the runner's answer.
        for is_early in [true, false] {
            let (mut rig, tenant) = rig_with(1);
            let section = section_of(&tenant, 0);
            let (begun, batch) = first_batch(&mut rig, section);
            let answer = carry_out_at(&mut rig, &batch, step, &mut |rig| {
                let raw = tenant.empty(0).unwrap();
                tenant.put(0, &[raw]);
                if is_early {
                    rig.service();
                    rig.verify();
                }
            });
            rig.engine.moved(answer, rig.now, &mut rig.outside);
            assert!(is_offline(&rig.finish(begun)), "{step:?}, {is_early}");
            rig.service();
            let report = rig.client(tenant.id);
            assert_eq!(
                (report.nr_misuses, report.held),
                (0, 0),
                "{step:?}, {is_early}"
            );
            rig.verify();
        }
    }
}

#[test]
fn a_block_freed_into_the_free_map_in_the_middle_of_its_move_goes_home_once() {
    let (mut rig, tenant) = rig_with(1);
    let section = section_of(&tenant, 0);
    let (begun, batch) = first_batch(&mut rig, section);
    let answer = carry_out_at(&mut rig, &batch, Step::AfterOpen, &mut |rig| {
        let raw = tenant.empty(0).unwrap();
        assert!(tenant.segment.free_map().set(raw.pfn()));
        rig.service();
        rig.verify();
    });
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    assert!(is_offline(&rig.finish(begun)));
    let report = rig.client(tenant.id);
    assert_eq!((report.nr_misuses, report.held), (0, 0));
    rig.verify();
}

#[test]
fn a_handle_that_was_refilled_with_the_same_head_in_another_order_is_left_alone() {
    let (mut rig, tenant) = rig_with(1);
    let section = section_of(&tenant, 0);
    let raw = tenant.at(0);
    let (begun, batch) = first_batch(&mut rig, section);
    // The page is freed, comes back as the head of a larger block of a later lend, under the same
    // handle: what the daemon has looked at is not what it closes.
    tenant.empty(0).unwrap();
    let parts = raw.parts().unwrap();
    let larger = PageParts {
        order: 2,
        generation: parts.generation + 2,
        ..parts
    };
    tenant.fill(0, larger.pack().unwrap());
    let mut nr_copies = 0;
    let answer = batch.carry_out(&mut |_| {
        nr_copies += 1;
        true
    });
    assert_eq!(nr_copies, 0);
    tenant.empty(0).unwrap();
    tenant.put(0, &[raw]);
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    assert!(is_offline(&rig.finish(begun)));
    rig.verify();
}

#[test]
fn a_client_that_dies_at_any_step_leaves_every_page_home_once() {
    for step in STEPS {
        for is_late in [false, true] {
            let (mut rig, tenant) = rig_with(5);
            let free = rig.pages().managed;
            let section = section_of(&tenant, 0);
            let (begun, batch) = first_batch(&mut rig, section);
            let mut is_dead = false;
            let answer = carry_out_at(&mut rig, &batch, step, &mut |rig| {
                if !is_dead && !is_late {
                    rig.engine.bury(tenant.id, rig.now);
                    rig.verify();
                }
                is_dead = true;
            });
            if is_late {
                rig.engine.bury(tenant.id, rig.now);
            }
            rig.verify();
            rig.engine.moved(answer, rig.now, &mut rig.outside);
            assert!(is_offline(&rig.finish(begun)), "{step:?}");
            rig.verify();
            let counts = rig.pages();
            assert_eq!(counts.lent, 0, "{step:?}");
            assert_eq!(counts.free + counts.pcp, free - u64::from(SECTION));
        }
    }
}

#[test]
fn a_place_being_moved_to_is_not_lent_again_when_its_client_dies() {
    let (mut rig, tenant) = rig_with(1);
    let section = section_of(&tenant, 0);
    let (_, batch) = first_batch(&mut rig, section);
    let to = batch.blocks().next().unwrap().to.get();
    let mut others = Vec::new();
    let answer = batch.carry_out(&mut |_| {
        rig.engine.bury(tenant.id, rig.now);
        let other = rig.tenant(1);
        // All there is.
        others = rig.take(&other, 0, movable(), 1000);
        true
    });
    assert!(!others.is_empty());
    assert!(others.iter().all(|raw| raw.pfn() != to));
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    rig.verify();
}

#[test]
fn a_page_that_is_wanted_at_each_move_is_hot_and_left_for_the_last_round() {
    let (mut rig, tenant) = rig_with(3);
    let section = section_of(&tenant, 0);
    let begun = begin_offline(&mut rig, section, 500);
    let mut nr_lost = 0;
    let mut report = begun.clone();
    let mut lost_at = Vec::new();
    while report.state == OperationState::Running {
        for effect in rig.engine.take_effects() {
            let Effect::Move { batch } = effect else {
                continue;
            };
            let answer = batch.carry_out(&mut |copy| {
                copy_bytes(&mut rig.bytes, copy);
                // Handle 1 is wanted each time.
                let word = tenant.segment.handles().word(1).unwrap();
                let is_it = !matches!(word.state(), hugepool_shm::handle::HandleState::Open { .. });
                if is_it {
                    word.pin(0).unwrap();
                    word.unpin();
                    nr_lost += 1;
                    lost_at.push(rig.now);
                }
                true
            });
            rig.engine.moved(answer, rig.now, &mut rig.outside);
        }
        rig.advance(5);
        let Reply::Operation(now) = rig.apply(Command::GetOperation { id: begun.id }) else {
            panic!()
        };
        report = now;
    }
    // Three, and one at the deadline.
    assert_eq!(nr_lost, 4);
    assert!(lost_at[3] - lost_at[2] > std::time::Duration::from_millis(200));
    assert_eq!(report.state, OperationState::Failed);
    let [holder] = &outcome(&report).holders[..] else {
        panic!("{report:?}")
    };
    assert_eq!(
        (holder.nr_pages, holder.nr_pinned, holder.nr_hot),
        (1, 0, 1)
    );
    assert_eq!(outcome(&report).nr_moved_pages, 2);
    check_bytes(&rig, &tenant, 3);
    free_all(&mut rig, &tenant, 3);
}

#[test]
fn a_copy_that_fails_costs_that_move_and_is_counted() {
    let (mut rig, tenant) = rig_with(2);
    let section = section_of(&tenant, 0);
    let (begun, batch) = first_batch(&mut rig, section);
    let answer = batch.carry_out(&mut |_| false);
    let again = answer.clone();
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    rig.engine.moved(again, rig.now, &mut rig.outside);
    assert_eq!(rig.engine.status().nr_move_faults, 2);
    check_bytes(&rig, &tenant, 2);
    rig.verify();
    assert!(is_offline(&rig.finish(begun)), "the next try succeeds");
    check_bytes(&rig, &tenant, 2);
    free_all(&mut rig, &tenant, 2);
}

#[test]
fn an_operation_that_waits_wakes_nobody_by_being_looked_at() {
    let (mut rig, tenant) = rig_with(10);
    let section = section_of(&tenant, 0);
    tenant.pin(3).unwrap();
    let begun = begin_offline(&mut rig, section, 10_000);
    rig.settle_effects();
    let before = rig.engine.changes().operations;
    for _ in 0..20 {
        rig.apply(Command::GetOperation { id: begun.id });
        rig.advance(10);
        rig.settle_effects();
    }
    assert_eq!(rig.engine.changes().operations, before);
    tenant.unpin(3);
    assert!(is_offline(&rig.finish(begun)));
    assert!(rig.engine.changes().operations > before);
}

#[test]
fn what_has_moved_tells_how_long_the_rest_takes() {
    let (mut rig, tenant) = rig_with(110);
    let section = section_of(&tenant, 0);
    let in_it = (0..110).filter(|&at| section_of(&tenant, at) == section);
    let in_it = u64::try_from(in_it.count()).unwrap();
    assert!(in_it > 64, "more than a batch");
    let (begun, batch) = first_batch(&mut rig, section);
    assert_eq!(begun.estimate_ms, None, "nothing has moved");
    let nr_moved = u64::try_from(batch.blocks().count()).unwrap();
    rig.now += std::time::Duration::from_millis(640);
    let answer = batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy));
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    let Reply::Operation(report) = rig.apply(Command::GetOperation { id: begun.id }) else {
        panic!()
    };
    let left = report.total_pages - report.done_pages;
    assert!((in_it - nr_moved..=128).contains(&left), "{report:?}");
    assert_eq!(report.estimate_ms, Some(640 * left / nr_moved));
    let ended = rig.finish(report);
    assert!(is_offline(&ended) && ended.estimate_ms.is_none());
    free_all(&mut rig, &tenant, 110);
}
