//! Where movable blocks go: other zones, the room of evictable ones, nowhere; and what may not move.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;
#[path = "support/movable.rs"]
mod tenants;

use hugepool_engine::{ClientId, Command, Defaults, OperationState, Patience, Reply};
use hugepool_mm::{Migratetype, ZoneKind};
use hugepool_shm::handle::PinError;
use hugepool_shm::raw::{PageParts, RawMigratetype};

use support::{Rig, by_ids, copy_bytes, movable, zone};
use tenants::*;

#[test]
fn a_movable_zone_is_emptied_into_the_normal_one_and_the_page_word_says_so() {
    let mut rig = Rig::new(2);
    rig.add("movable", 1);
    let tenant = rig.tenant(1);
    hold(&mut rig, &tenant, movable(), 40);
    assert!((0..40).all(|handle| tenant.at(handle).zone() == 1));
    let report = rig.offline(&[2], 1000);
    assert!(is_offline(&report), "{report:?}");
    assert_eq!(outcome(&report).nr_moved_pages, 40);
    assert!((0..40).all(|handle| tenant.at(handle).zone() == 0));
    check_bytes(&rig, &tenant, 40);
    free_all(&mut rig, &tenant, 40);
}

#[test]
fn a_page_moves_only_to_where_its_client_has_mapped() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 3)],
        Defaults::default(),
    );
    rig.add("normal", 1);
    let tenant = rig.tenant(1);
    hold(&mut rig, &tenant, movable(), 8);
    rig.add("normal", 1);
    let report = rig.offline(&[0], 50);
    assert_eq!(report.state, OperationState::Failed, "{report:?}");
    let holder = &outcome(&report).holders[0];
    assert_eq!((holder.nr_pages, holder.nr_pinned), (8, 0));
    assert_eq!((holder.nr_hot, holder.nr_homeless), (0, 8));
    rig.verify();
    tenant.map_all();
    assert!(is_offline(&rig.offline(&[0], 50)));
    check_bytes(&rig, &tenant, 8);
    free_all(&mut rig, &tenant, 8);
}

#[test]
fn an_operation_that_is_cancelled_in_the_middle_of_a_batch_leaves_the_section_as_it_was() {
    let (mut rig, tenant) = rig_with(20);
    let section = section_of(&tenant, 0);
    let (begun, batch) = first_batch(&mut rig, section);
    let Reply::Operation(report) = rig.apply(Command::CancelOperation { id: begun.id }) else {
        panic!()
    };
    assert_eq!(report.state, OperationState::Cancelled);
    let answer = batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy));
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    assert_eq!(rig.pages().isolated, 0);
    check_bytes(&rig, &tenant, 20);
    rig.verify();
    free_all(&mut rig, &tenant, 20);
}

#[test]
fn evictable_pages_make_room_for_a_section_that_has_nowhere_else_to_go() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 2)],
        Defaults::default(),
    );
    rig.add("normal", 2);
    let tenant = rig.tenant(1);
    let evictable = class(0, RawMigratetype::Reclaimable);
    // More than one section can hold.
    hold(&mut rig, &tenant, evictable, 160);
    let report = rig.offline(&[1], 1000);
    assert!(is_offline(&report), "{report:?}");
    let evicted = outcome(&report).nr_evicted_pages;
    assert!(evicted >= 32, "{report:?}");
    let gone = (0..160).filter(|&handle| tenant.pin(handle) == Err(PinError::Evicted));
    assert_eq!(gone.count() as u64, rig.client(tenant.id).nr_evicted_pages);
    let kinds = rig.engine.events_since(0).events;
    assert!(kinds.iter().any(|event| event.kind == "reclaim"));
    free_all(&mut rig, &tenant, 160);
}

#[test]
fn movable_pages_get_the_room_of_others_evictable_ones() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 2)],
        Defaults::default(),
    );
    rig.add("normal", 2);
    let (owner, other) = (rig.tenant(1), rig.tenant(1));
    hold(&mut rig, &owner, movable(), 80);
    hold(&mut rig, &other, class(0, RawMigratetype::Reclaimable), 100);
    let section = section_of(&owner, 0);
    let report = rig.offline(&[section], 1000);
    assert!(is_offline(&report), "{report:?}");
    check_bytes(&rig, &owner, 80);
    assert!(rig.client(other.id).nr_evicted_pages > 0);
    assert_eq!(rig.client(owner.id).nr_evicted_pages, 0);
    free_all(&mut rig, &owner, 80);
    free_all(&mut rig, &other, 100);
}

#[test]
fn a_caller_that_would_fall_short_gets_what_others_can_do_without() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 2)],
        Defaults::default(),
    );
    rig.add("normal", 2);
    let (owner, other) = (rig.tenant(1), rig.tenant(1));
    let evictable = class(0, RawMigratetype::Reclaimable);
    let pages = rig.take(&owner, 0, evictable, 1000);
    for (handle, &raw) in (0..).zip(&pages) {
        owner.fill(handle, raw);
    }
    let nr = u32::try_from(pages.len()).unwrap();
    owner.pin(5).unwrap();
    let reply = rig.alloc(other.id, 0, 30);
    assert_eq!((reply.nr_blocks, reply.shortfall), (30, None));
    // A whole pageblock, too.
    let reply = rig.alloc(other.id, 5, 1);
    assert_eq!((reply.nr_blocks, reply.shortfall), (1, None));
    let gone = (0..nr).filter(|&handle| owner.pin(handle) == Err(PinError::Evicted));
    assert!(gone.count() >= 30);
    assert!(owner.pin(5).is_ok(), "what is pinned stays");
    rig.verify();
}

#[test]
fn a_caller_gets_nothing_from_evictable_pages_that_are_all_pinned() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 1)],
        Defaults::default(),
    );
    rig.add("normal", 1);
    let (owner, other) = (rig.tenant(1), rig.tenant(1));
    let pages = rig.take(&owner, 0, class(0, RawMigratetype::Reclaimable), 1000);
    for (handle, &raw) in (0..).zip(&pages) {
        owner.fill(handle, raw);
        owner.pin(handle).unwrap();
    }
    let request = support::alloc(0, 100);
    let patience = Patience::None;
    let outcome = rig
        .engine
        .alloc_bulk(other.id, &request, patience, rig.now, &mut rig.outside)
        .unwrap();
    let hugepool_engine::AllocOutcome::Done(reply) = outcome else {
        panic!()
    };
    assert!(reply.nr_blocks < 100 && reply.shortfall.is_some());
    assert_eq!(rig.client(owner.id).nr_evicted_pages, 0);
    rig.verify();
}

#[test]
fn handles_that_name_what_is_not_their_clients_move_nothing() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 3)],
        Defaults::default(),
    );
    rig.add("normal", 3);
    let (honest, liar) = (rig.tenant(1), rig.tenant(1));
    hold(&mut rig, &honest, movable(), 4);
    let own = rig.take(&liar, 0, movable(), 2);
    // Another's page, a free one, one beyond all zones, and its own under two handles.
    let parts = honest.at(0).parts().unwrap();
    for (handle, pfn) in [
        (0, parts.pfn),
        (1, 300),
        (2, own[0].pfn()),
        (3, own[0].pfn()),
    ] {
        liar.fill(handle, PageParts { pfn, ..parts }.pack().unwrap());
    }
    let section = section_of(&honest, 0);
    let report = rig.offline(&[section], 100);
    // Its own two pages, of which one is named and moved, the other not.
    assert_eq!(report.state, OperationState::Failed, "{report:?}");
    let [holder] = &outcome(&report).holders[..] else {
        panic!("{report:?}")
    };
    assert_eq!((holder.client, holder.nr_pages), (liar.id, 1));
    check_bytes(&rig, &honest, 4);
    rig.verify();
    free_all(&mut rig, &honest, 4);
}

#[test]
fn a_place_that_is_claimed_before_the_block_is_there_is_not_lent_again() {
    let (mut rig, liar) = rig_with(1);
    let section = section_of(&liar, 0);
    let (_, batch) = first_batch(&mut rig, section);
    let to = batch.blocks().next().unwrap().to.get();
    // It guesses the page word of the new place, and gives it back before it has it.
    let parts = liar.at(0).parts().unwrap();
    let mut taken = Vec::new();
    let answer = batch.carry_out(&mut |_| {
        for generation in 0..8 {
            let claim = PageParts {
                pfn: to,
                generation,
                ..parts
            };
            liar.put(0, &[claim.pack().unwrap()]);
        }
        rig.service();
        rig.engine.detach(liar.id, rig.now, &mut rig.outside);
        let other = rig.tenant(1);
        taken = rig.take(&other, 0, movable(), 1000);
        true
    });
    assert!(taken.iter().all(|raw| raw.pfn() != to));
    rig.engine.moved(answer, rig.now, &mut rig.outside);
    rig.verify();
}

#[test]
fn a_client_that_has_hung_up_still_lets_its_pages_be_moved() {
    let (mut rig, tenant) = rig_with(6);
    let section = section_of(&tenant, 0);
    rig.engine.detach(tenant.id, rig.now, &mut rig.outside);
    assert!(is_offline(&rig.offline(&[section], 100)));
    check_bytes(&rig, &tenant, 6);
    rig.verify();
}

#[test]
fn a_dry_run_counts_what_could_be_moved() {
    let (mut rig, tenant) = rig_with(6);
    let section = section_of(&tenant, 0);
    let dry_run = |rig: &mut Rig| {
        let request = hugepool_engine::SectionsRequest {
            dry_run: true,
            ..by_ids(&[section])
        };
        let command = Command::OfflineSections {
            request,
            timeout: None,
        };
        let Reply::Operation(report) = rig.apply(command) else {
            panic!()
        };
        outcome(&report).clone()
    };
    assert_eq!(dry_run(&mut rig).done, Some(Ok(())));
    tenant.pin(2).unwrap();
    let refused = dry_run(&mut rig);
    assert!(matches!(refused.done, Some(Err(_))));
    assert_eq!(refused.holders[0].nr_pinned, 1);
    assert_eq!(rig.engine.take_effects(), []);
}

#[test]
fn the_daemon_owns_nothing_when_nothing_is_under_way() {
    let (mut rig, tenant) = rig_with(3);
    let section = section_of(&tenant, 0);
    let (begun, batch) = first_batch(&mut rig, section);
    let Reply::Pages(list) = rig.apply(Command::ListPages(Default::default())) else {
        panic!()
    };
    assert!(list.runs.iter().all(|run| run.client != ClientId::DAEMON));
    rig.engine
        .moved(batch.leave_undone(), rig.now, &mut rig.outside);
    assert!(is_offline(&rig.finish(begun)));
    assert_eq!(rig.pages().lent, rig.client(tenant.id).lent);
    assert_eq!(rig.client(tenant.id).held, 3);
    let _ = Migratetype::ALL;
}
