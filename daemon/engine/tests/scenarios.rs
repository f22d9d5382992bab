//! Scenarios after public fault reports about sections that come and go under clients, by their
//! numbers.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use hugepool_engine::{
    AllocBulk, AllocOutcome, Command, Defaults, Effect, OperationState, Reply, Sections,
};
use hugepool_mm::{Migratetype, ZoneKind};
use support::{Rig, alloc, by_ids, movable, request, zone};

/// Section ids of the movable zone start behind those of the normal one.
fn movable_section(rig: &Rig, at: u32) -> u32 {
    let zones = rig.engine.list_zones();
    zones[1].start.get() / 128 + at
}

#[test]
fn r02_offline_recalls_what_sits_in_lanes_and_is_not_decided_by_retries() {
    let mut rig = Rig::new(2);
    rig.apply(Command::SetPcp {
        slot: None,
        batch: Some(32),
        high: None,
    });
    rig.add("movable", 2);
    let section = movable_section(&rig, 0);
    let idle = rig.tenant(1);
    let busy = rig.tenant(1);
    // 64 pages in a lane that nobody uses, the rest churned by the other.
    let pages = rig.take(&idle, 0, movable(), 1);
    idle.put(0, &pages);
    assert!(rig.client(idle.id).lent > 32);
    let request = by_ids(&[section]);
    let timeout = Some(Duration::from_secs(10));
    let mut held = rig.take(&busy, 0, movable(), 20);
    let Reply::Operation(mut report) = rig.apply(Command::OfflineSections { request, timeout })
    else {
        panic!()
    };
    for _ in 0..50 {
        busy.put(0, &held);
        held = rig.take(&busy, 0, movable(), 20);
        rig.advance(10);
        rig.verify();
        let id = report.id;
        let Reply::Operation(now) = rig.apply(Command::GetOperation { id }) else {
            panic!()
        };
        report = now;
        if report.state != OperationState::Running {
            break;
        }
    }
    assert_eq!(report.state, OperationState::Done, "{report:?}");
    rig.verify();
}

#[test]
fn r05_a_device_with_one_busy_block_is_answered_for_block_by_block() {
    let zones = vec![zone("device", ZoneKind::Normal, 64)];
    let mut rig = Rig::with(zones, Defaults::default());
    rig.add("device", 64);
    assert_eq!(
        rig.offline(&[0, 1, 2, 3, 4, 5, 6, 7], 0).state,
        OperationState::Done
    );
    let tenant = rig.tenant(1);
    let run = rig.alloc(tenant.id, 0, 1).runs[0];
    let busy = run.first.get() / 128;
    let all: Vec<u32> = (0..64).collect();
    let report = rig.offline(&all, 30);
    assert_eq!(report.state, OperationState::Failed);
    let already = report
        .sections
        .iter()
        .filter(|outcome| outcome.already)
        .count();
    let done = report
        .sections
        .iter()
        .filter(|o| o.done == Some(Ok(())) && !o.already)
        .count();
    let refused: Vec<_> = report
        .sections
        .iter()
        .filter(|o| o.done != Some(Ok(())))
        .collect();
    assert_eq!((already, done, refused.len()), (8, 55, 1));
    assert_eq!(refused[0].section.get(), busy);
    assert_eq!(refused[0].holders[0].client, tenant.id);
    assert_eq!(rig.pages().managed, 128);
    rig.verify();
}

/// Symptom (R07): memory cannot be added to a machine that has none left, because what describes it
/// needs a large block of the old memory.
#[test]
fn r07_a_zone_without_a_free_page_grows_and_a_refused_backing_leaves_it_as_it_was() {
    let zones = vec![zone("normal", ZoneKind::Normal, 4)];
    let mut rig = Rig::with(zones, Defaults::default());
    rig.add("normal", 1);
    let tenant = rig.tenant(1);
    let every_page = AllocBulk {
        is_urgent: true,
        ..alloc(0, 128)
    };
    let AllocOutcome::Done(all) = rig.alloc_bulk(tenant.id, &every_page) else {
        panic!("nobody waits")
    };
    let left = rig.pages();
    assert!(all.nr_blocks > 100 && left.free + left.pcp < 32, "{left:?}");
    let add = || Command::AddSections {
        request: request("normal", Sections::Count(2)),
        online_order: None,
        keep_offline: false,
    };
    // The system has no memory: told in its words, and nothing is plugged.
    rig.apply(add());
    for effect in rig.engine.take_effects() {
        let Effect::Populate { section, .. } = effect else {
            panic!("{effect:?}")
        };
        let lacks = Err("62 huge pages of 2 MiB are short".to_owned());
        rig.engine.populated(section, lacks, rig.now);
    }
    assert_eq!(rig.pages(), left);
    let Reply::Operations(operations) = rig.apply(Command::ListOperations) else {
        panic!()
    };
    let report = operations.iter().max_by_key(|report| report.id).unwrap();
    assert_eq!(report.state, OperationState::Failed);
    for outcome in &report.sections {
        let refusal = outcome.done.clone().unwrap().unwrap_err();
        assert!(refusal.to_string().contains("62 huge pages"), "{refusal}");
    }
    rig.verify();
    // It has some again: the zone's own pages, all lent, are not asked.
    assert_eq!(rig.operate(add()).state, OperationState::Done);
    assert_eq!(rig.pages().managed, left.managed + 256);
    let after = rig.alloc(tenant.id, 6, 1);
    assert_eq!(after.nr_blocks, 0, "not mapped yet");
    tenant.map_all();
    assert_eq!(rig.alloc(tenant.id, 6, 1).nr_blocks, 1);
    rig.verify();
}

#[test]
fn r06_an_unmovable_page_keeps_its_own_section_and_no_other() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    rig.alloc(tenant.id, 0, 1);
    let report = rig.offline(&[0, 1], 30);
    let refused: Vec<_> = report
        .sections
        .iter()
        .filter(|o| o.done != Some(Ok(())))
        .collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].holders[0].migratetype, Migratetype::Unmovable);
    assert_eq!(rig.pages().managed, 128);
    rig.verify();
    // The movable zone is never entered by it: both go.
    rig.add("movable", 2);
    let (a, b) = (movable_section(&rig, 0), movable_section(&rig, 1));
    assert_eq!(rig.offline(&[a, b], 30).state, OperationState::Done);
    assert_eq!(rig.remove(&[a, b]).state, OperationState::Done);
    rig.verify();
}
