//! Deaths of the daemon at instants that only a certain run of events comes to.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/mortal.rs"]
mod mortal;
mod support;

use hugepool_engine::{Command, Defaults, Effect, OperationState, Reply, Sections};
use hugepool_mm::ZoneKind;
use hugepool_shm::lane_client::LaneClient;
use hugepool_shm::layout::RETURNS;
use hugepool_shm::raw::{PageParts, RawMigratetype, RawPage};

use mortal::Mortal;
use support::{Rig, Tenant, by_ids, request, zone};

/// Takes so many pages by a call, so that nothing lies in a lane.
fn call_for(mortal: &mut Mortal, tenant: &Tenant, nr: usize) -> Vec<RawPage> {
    let nr_blocks = u32::try_from(nr).unwrap();
    let reply = mortal
        .call(|rig| rig.alloc(tenant.id, 0, nr_blocks))
        .unwrap();
    let mut pages = Vec::new();
    for run in &reply.runs {
        for block in 0..run.nr_blocks {
            let parts = PageParts {
                pfn: run.first.get() + block,
                order: 0,
                migratetype: RawMigratetype::Unmovable,
                zone: 0,
                client: tenant.terms.client_index,
                generation: run.generation,
            };
            pages.push(parts.pack().unwrap());
        }
    }
    assert_eq!(pages.len(), nr);
    pages
}

/// A client may write over what was read only when the next daemon would not read it again.
///
/// Seen to fail with the head of `returns` published before it is kept: the ring then has more in it than it
/// holds, and an honest client is poisoned.
#[test]
fn returns_that_are_filled_again_before_their_cursor_is_kept_lose_nothing() {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 40)],
        Defaults::default(),
    );
    rig.add("normal", 40);
    let mut mortal = Mortal::new(rig);
    let tenant = mortal.tenant(1);
    // What the lane keeps, what fills its returns, and some more.
    let mut pages = call_for(&mut mortal, &tenant, RETURNS + 1024);
    let nr_returned = |mortal: &Mortal| mortal.rig.client(tenant.id).lanes[0].returns;
    while nr_returned(&mortal) < RETURNS as u64 {
        tenant.put(0, &[pages.pop().unwrap()]);
    }
    let more = pages;
    let (segment, terms) = (tenant.segment.clone(), tenant.terms);
    let push = move || {
        let lane = LaneClient::new(&segment, 0, terms, None).unwrap();
        lane.put_raw(&more);
    };
    mortal.die_after("settle.cells", Box::new(push), |rig| rig.service());
    mortal.service();
    mortal.pass(2);
    let client = mortal.rig.client(tenant.id);
    assert_eq!((client.nr_misuses, client.held), (0, 0), "{client:?}");
    mortal.rig.verify();
}

/// Seen to fail: it was punched for both, and the second time it may have come again meanwhile.
#[test]
fn a_section_that_two_operations_name_is_punched_once() {
    let zones = vec![zone("normal", ZoneKind::Normal, 4)];
    let mut mortal = Mortal::new(Rig::with(zones, Defaults::default()));
    let add = |mortal: &mut Mortal, ids: &[u32]| {
        let command = Command::AddSections {
            request: by_ids(ids),
            online_order: None,
            keep_offline: false,
        };
        mortal.call(|rig| rig.apply(command)).unwrap();
    };
    add(&mut mortal, &[2, 3]);
    mortal.call(|rig| {
        rig.engine.take_effects();
        // Of the first operation the one cannot be had, and the other is waited for.
        let section = hugepool_mm::SectionId::new(2);
        rig.engine.populated(section, Err("none".into()), rig.now);
    });
    add(&mut mortal, &[2]);
    mortal.die();
    let mut punched: Vec<u32> = Vec::new();
    for effect in mortal.rig.engine.take_effects() {
        let Effect::Punch { section, .. } = effect else {
            panic!("{effect:?}")
        };
        punched.push(section.get());
        mortal.call(|rig| rig.engine.punched(section, Ok(()), rig.now));
    }
    punched.sort_unstable();
    assert_eq!(punched, [2, 3]);
    let Reply::Operations(operations) = mortal.rig.apply(Command::ListOperations) else {
        panic!()
    };
    let is_running = |one: &hugepool_engine::OperationReport| one.state == OperationState::Running;
    assert!(!operations.iter().any(is_running), "{operations:?}");
    // Both can be had again.
    let report = mortal.rig.operate(Command::AddSections {
        request: request("normal", Sections::Count(2)),
        online_order: None,
        keep_offline: false,
    });
    assert_eq!(report.state, OperationState::Done, "{report:?}");
    mortal.rig.verify();
}
