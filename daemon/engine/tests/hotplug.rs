//! Sections come and go under live clients; refusals name who stands in the way.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use hugepool_engine::{
    AllocOutcome, Backing, Command, CommandError, Defaults, Effect, OperationState, Patience,
    Reply, SectionRefusal, Sections, Shortfall,
};
use hugepool_mm::{Migratetype, SectionError, SectionId, SectionState, ZoneKind};
use hugepool_shm::scribble::LaneWord;
use support::{PAGE, Rig, alloc, by_ids, request, zone};

/// Section ids of the movable zone start behind those of the normal one.
fn movable_section(rig: &Rig, at: u32) -> u32 {
    let zones = rig.engine.list_zones();
    zones[1].start.get() / 128 + at
}

#[test]
fn adding_onlines_whole_pageblocks_and_taking_away_gives_them_back() {
    let mut rig = Rig::new(2);
    let report = rig.add("movable", 1);
    let onlined = report.sections[0].onlined.clone().unwrap();
    assert_eq!((onlined.nr_pageblocks, onlined.nr_pages), (4, 128));
    assert_eq!(onlined.blocks_by_order, [0, 0, 0, 0, 0, 0, 2]);
    let id = report.sections[0].section.get();
    assert_eq!(rig.offline(&[id], 0).state, OperationState::Done);
    assert_eq!(rig.remove(&[id]).state, OperationState::Done);
    assert_eq!(rig.engine.list_zones()[1].pages, Default::default());
    rig.verify();
    // The next life of the section is another one.
    rig.add("movable", 1);
    let Reply::Sections(sections) = rig.apply(Command::ListSections { zone: None }) else {
        panic!()
    };
    assert_eq!(sections.last().unwrap().incarnation, 2);
}

#[test]
fn a_refused_offline_names_the_holder_and_restores_the_section_exactly() {
    let mut rig = Rig::new(4);
    let holder = rig.tenant(1);
    let pages = rig.take(&holder, 0, PAGE, 3);
    let section = pages[0].pfn() / 128;
    let here = pages
        .iter()
        .filter(|page| page.pfn() / 128 == section)
        .count();
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    let before = rig.at_rest();
    rig.advance(7000);
    let report = rig.offline(&[section], 200);
    assert_eq!(report.state, OperationState::Failed);
    let outcome = &report.sections[0];
    assert_eq!(outcome.state, SectionState::Online);
    let nr_pages = here as u64;
    let section_id = SectionId::new(section);
    let refusal = SectionRefusal::Held {
        section: section_id,
        nr_pages,
    };
    assert_eq!(outcome.done, Some(Err(refusal)));
    let [named] = &outcome.holders[..] else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        (named.client, named.pid, named.nr_pages),
        (holder.id, 4000, nr_pages)
    );
    assert_eq!(named.migratetype, Migratetype::Unmovable);
    assert_eq!(named.blocks_by_order[0], nr_pages);
    assert!(named.age_ms >= 7000, "{named:?}");
    assert_eq!(rig.at_rest(), before);
    rig.verify();
    holder.put(0, &pages);
    assert_eq!(rig.offline(&[section], 200).state, OperationState::Done);
    rig.verify();
}

#[test]
fn a_stopped_client_costs_its_reach_and_is_named() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let pages = rig.take(&tenant, 0, PAGE, 4);
    tenant.put(0, &pages);
    rig.service();
    tenant.segment.scribble(0, LaneWord::Busy, 1);
    let lent: Vec<u32> = (0..2)
        .filter(|&section| {
            let request = hugepool_engine::ListPages {
                section: Some(SectionId::new(section)),
                ..Default::default()
            };
            let Reply::Pages(list) = rig.apply(Command::ListPages(request)) else {
                panic!()
            };
            !list.runs.is_empty()
        })
        .collect();
    let report = rig.offline(&lent, 50);
    let refused = report
        .sections
        .iter()
        .find(|outcome| outcome.done != Some(Ok(())))
        .unwrap();
    assert_eq!(refused.holders[0].client, tenant.id);
    assert!(refused.holders[0].nr_in_flight > 0, "{refused:?}");
    rig.verify();
    tenant.segment.scribble(0, LaneWord::Busy, 0);
    assert_eq!(rig.offline(&lent, 500).state, OperationState::Done);
    rig.verify();
}

#[test]
fn pages_are_lent_only_from_sections_that_the_client_has_mapped() {
    let mut rig = Rig::new(2);
    let spec = rig.spec(7);
    let tenant = rig.attach(spec, 1);
    tenant.lane(0).want(PAGE, 1);
    rig.service();
    assert_eq!(rig.client(tenant.id).lent, 0);
    let reply = rig.alloc(tenant.id, 0, 5);
    assert!(
        matches!(reply.shortfall, Some(Shortfall::NotMapped { .. })),
        "{reply:?}"
    );
    // One of two is mapped: all comes from there.
    tenant.segment.mark_mapped(1, tenant.segment.announced(1));
    let reply = rig.alloc(tenant.id, 0, 60);
    assert_eq!(reply.nr_blocks, 60);
    assert!(
        reply.runs.iter().all(|run| run.first.get() >= 128),
        "{reply:?}"
    );
    rig.verify();
    // An old incarnation is not the new one.
    let id = movable_section(&rig, 0);
    rig.add("movable", 1);
    tenant.map_all();
    rig.offline(&[id], 0);
    rig.remove(&[id]);
    rig.add("movable", 1);
    let request = hugepool_engine::AllocBulk {
        zone: Some("movable".to_owned()),
        migratetype: Migratetype::Movable,
        ..alloc(0, 1)
    };
    let AllocOutcome::Done(reply) = rig.alloc_bulk(tenant.id, &request) else {
        panic!()
    };
    assert_eq!(reply.nr_blocks, 0);
    tenant.map_all();
    let AllocOutcome::Done(reply) = rig.alloc_bulk(tenant.id, &request) else {
        panic!()
    };
    assert_eq!(reply.nr_blocks, 1);
    rig.verify();
}

#[test]
fn a_failed_populate_leaves_the_section_absent() {
    let mut rig = Rig::new(1);
    let request = request("movable", Sections::Count(1));
    let command = Command::AddSections {
        request,
        online_order: None,
        keep_offline: false,
    };
    let Reply::Operation(begun) = rig.apply(command.clone()) else {
        panic!()
    };
    let [Effect::Populate { section, .. }] = rig.engine.take_effects()[..] else {
        panic!()
    };
    // While it is under way nobody else gets it.
    let Err(CommandError::TooFewSections { .. }) =
        rig.engine.apply(command.clone(), rig.now, &mut rig.outside)
    else {
        panic!()
    };
    rig.engine.populated(
        section,
        Err("no huge pages: 1 needed, 0 free".to_owned()),
        rig.now,
    );
    let report = rig.finish(begun);
    assert_eq!(report.state, OperationState::Failed);
    assert_eq!(report.sections[0].state, SectionState::Absent);
    assert!(
        report.sections[0]
            .done
            .clone()
            .unwrap()
            .unwrap_err()
            .to_string()
            .contains("1 needed")
    );
    rig.verify();
    rig.add("movable", 1);
}

#[test]
fn a_cancelled_add_gives_its_backing_back() {
    let mut rig = Rig::new(1);
    let request = request("movable", Sections::Count(1));
    let command = Command::AddSections {
        request,
        online_order: None,
        keep_offline: false,
    };
    let Reply::Operation(begun) = rig.apply(command) else {
        panic!()
    };
    let [Effect::Populate { section, .. }] = rig.engine.take_effects()[..] else {
        panic!()
    };
    rig.apply(Command::CancelOperation { id: begun.id });
    rig.engine
        .populated(section, Ok(Backing::default()), rig.now);
    let report = rig.finish(begun);
    assert_eq!(report.state, OperationState::Cancelled);
    assert!(matches!(rig.effects.last(), Some(Effect::Punch { .. })));
    assert_eq!(rig.engine.list_zones()[1].pages, Default::default());
    rig.add("movable", 1);
    rig.verify();
}

#[test]
fn a_cancelled_offline_restores_the_section() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let run = rig.alloc(tenant.id, 0, 1).runs[0];
    let section = run.first.get() / 128;
    let before = rig.pages();
    let command = Command::OfflineSections {
        request: by_ids(&[section]),
        timeout: Some(Duration::from_secs(60)),
    };
    let Reply::Operation(begun) = rig.apply(command) else {
        panic!()
    };
    assert_eq!(begun.state, OperationState::Running);
    assert!(rig.poll().is_some());
    let Reply::Operation(report) = rig.apply(Command::CancelOperation { id: begun.id }) else {
        panic!()
    };
    assert_eq!(report.state, OperationState::Cancelled);
    assert_eq!(rig.pages(), before);
    rig.verify();
    // A finished operation cannot be cancelled, and asking is harmless.
    rig.apply(Command::CancelOperation { id: begun.id });
}

#[test]
fn memory_that_cannot_be_given_back_stays_removing_and_is_asked_for_again() {
    let mut rig = Rig::new(2);
    rig.offline(&[1], 0);
    let Reply::Operation(begun) = rig.apply(Command::RemoveSections {
        request: by_ids(&[1]),
    }) else {
        panic!()
    };
    let [Effect::Punch { section, .. }] = rig.engine.take_effects()[..] else {
        panic!()
    };
    rig.engine.punched(section, Err("EIO".to_owned()), rig.now);
    let report = rig.finish(begun);
    assert_eq!(report.sections[0].state, SectionState::Removing);
    assert_eq!(report.state, OperationState::Failed);
    assert_eq!(rig.remove(&[1]).state, OperationState::Done);
    rig.verify();
}

#[test]
fn a_dry_run_says_what_would_be_and_does_nothing() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let pages = rig.take(&tenant, 0, PAGE, 2);
    tenant.put(0, &pages[..1]);
    let section = pages[0].pfn() / 128;
    let dry = |rig: &mut Rig, command: Command| {
        let Reply::Operation(report) = rig.apply(command) else {
            panic!()
        };
        assert!(report.dry_run && report.id.0 == 0);
        report
    };
    let offline = |ids: &[u32]| {
        let mut request = by_ids(ids);
        request.dry_run = true;
        Command::OfflineSections {
            request,
            timeout: None,
        }
    };
    let report = dry(&mut rig, offline(&[section]));
    assert_eq!(report.state, OperationState::Failed);
    assert_eq!(report.sections[0].holders[0].client, tenant.id);
    tenant.put(0, &pages[1..]);
    rig.service();
    let report = dry(&mut rig, offline(&[section]));
    assert_eq!(report.state, OperationState::Done, "{report:?}");
    assert_eq!(rig.engine.status().nr_operations, 0);
    let mut request = request("movable", Sections::Count(2));
    request.dry_run = true;
    let add = Command::AddSections {
        request,
        online_order: None,
        keep_offline: false,
    };
    assert_eq!(dry(&mut rig, add).sections.len(), 2);
    assert!(rig.engine.take_effects().is_empty());
    rig.verify();
}

#[test]
fn requests_that_make_no_sense_are_refused_whole() {
    let mut rig = Rig::new(2);
    let mut refused = |command: Command| {
        rig.engine
            .apply(command, rig.now, &mut rig.outside)
            .map(|_| ())
            .unwrap_err()
    };
    let offline = |request| Command::OfflineSections {
        request,
        timeout: None,
    };
    assert_eq!(refused(offline(by_ids(&[]))), CommandError::NoSections);
    assert_eq!(
        refused(offline(by_ids(&[1, 1]))),
        CommandError::Twice {
            section: SectionId::new(1)
        }
    );
    let section = SectionId::new(99);
    assert_eq!(
        refused(offline(by_ids(&[99]))),
        CommandError::NoSuchSection { section }
    );
    assert_eq!(
        refused(offline(request("normal", Sections::Count(3)))),
        CommandError::TooFewSections { asked: 3, there: 2 }
    );
    assert_eq!(
        refused(offline(request("dma", Sections::Count(1)))),
        CommandError::NoSuchZone {
            name: "dma".to_owned()
        }
    );
    let mut other = by_ids(&[1]);
    other.zone = Some("movable".to_owned());
    let section = SectionId::new(1);
    let zone = "movable".to_owned();
    assert_eq!(
        refused(offline(other)),
        CommandError::OtherZone { section, zone }
    );
    let online = Command::OnlineSections {
        request: by_ids(&[1]),
        online_order: Some(3),
    };
    assert_eq!(
        refused(online),
        CommandError::OnlineOrder {
            order: 3,
            pageblock_order: 5
        }
    );
    assert_eq!(
        refused(Command::EvictClient {
            slot: 0,
            incarnation: None,
            kill: false
        }),
        CommandError::NoSuchClient { slot: 0 }
    );
    // A section in the wrong state is a matter of that section.
    let report = rig.remove(&[0]);
    let state = SectionState::Online;
    let error = SectionError::WrongState {
        section: SectionId::new(0),
        state,
    };
    assert_eq!(
        report.sections[0].done,
        Some(Err(SectionRefusal::Section(error)))
    );
}

#[test]
fn frees_into_a_leaving_zone_go_home_instead_of_into_magazines() {
    let mut rig = Rig::new(2);
    let tenant = rig.tenant(1);
    let pages = rig.take(&tenant, 0, PAGE, 10);
    let section = pages[0].pfn() / 128;
    let timeout = Some(Duration::from_secs(60));
    let Reply::Operation(begun) = rig.apply(Command::OfflineSections {
        request: by_ids(&[section]),
        timeout,
    }) else {
        panic!()
    };
    let lane = tenant.lane(0);
    let before = lane.stats();
    lane.put_raw(&pages);
    let after = lane.stats();
    assert_eq!(after.nr_cached, before.nr_cached);
    assert_eq!(after.nr_returned - before.nr_returned, 10);
    assert_eq!(rig.finish(begun).state, OperationState::Done);
    // Afterwards they are cached again.
    let pages = rig.take(&tenant, 0, PAGE, 1);
    tenant.put(0, &pages);
    assert_eq!(tenant.lane(0).stats().nr_cached, 1);
    rig.verify();
}

#[test]
fn a_waiting_call_is_answered_when_a_section_comes() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 2)],
        Defaults::default(),
    );
    rig.add("normal", 1);
    let tenant = rig.tenant(1);
    let there = rig.alloc(tenant.id, 0, 1000).nr_blocks;
    let request = hugepool_engine::AllocBulk {
        request_id: 1,
        ..alloc(0, 100)
    };
    let ask = |rig: &mut Rig, patience| {
        rig.engine
            .alloc_bulk(tenant.id, &request, patience, rig.now, &mut rig.outside)
            .unwrap()
    };
    let waiting = ask(&mut rig, Patience::Waits);
    assert!(
        matches!(waiting, AllocOutcome::Waiting { nr_blocks: 0, .. }),
        "{waiting:?}"
    );
    let before = rig.engine.changes().home;
    rig.add("normal", 1);
    assert!(rig.engine.changes().home > before);
    // There is more now, but not all of it for who has not mapped it.
    let AllocOutcome::Waiting { shortfall, .. } = ask(&mut rig, Patience::Waits) else {
        panic!()
    };
    assert!(matches!(shortfall, Shortfall::NotMapped { .. }));
    tenant.map_all();
    let AllocOutcome::Done(reply) = ask(&mut rig, Patience::Waits) else {
        panic!()
    };
    assert_eq!((reply.nr_blocks, reply.shortfall), (100, None));
    assert_eq!(rig.client(tenant.id).lent, u64::from(there) + 100);
    rig.verify();
}

impl Rig {
    /// What must be as before after an undo: counts, and pageblocks by type. The zone's own
    /// lists are drained meanwhile, which is no change to anybody.
    fn at_rest(&mut self) -> (u64, u64, u64, Vec<u64>) {
        let Reply::PageTypeInfo(zones) = self.apply(Command::GetPageTypeInfo { zone: None }) else {
            panic!()
        };
        let rows = zones.iter().flat_map(|zone| &zone.rows);
        let pageblocks = rows.map(|row| row.nr_pageblocks).collect();
        let pages = self.pages();
        (
            pages.managed,
            pages.free + pages.pcp,
            pages.lent,
            pageblocks,
        )
    }
}
