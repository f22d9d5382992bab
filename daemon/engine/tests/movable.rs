//! Blocks that move under their clients: pins, lost moves, deaths and early returns at each step,
//! with the daemon, the runner and the clients all played here.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use hugepool_engine::{
    ClientId, Command, Defaults, Effect, MoveBatch, OperationReport, OperationState, Patience,
    Reply, SectionOutcome,
};
use hugepool_mm::{Migratetype, ZoneKind};
use hugepool_shm::handle::PinError;
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};

use support::{Rig, Tenant, by_ids, copy_bytes, movable, zone};

/// Sections have 128 pages, pageblocks 32.
const SECTION: u32 = 128;

fn class(order: u32, migratetype: RawMigratetype) -> Class {
    Class::new(order, migratetype, 5).unwrap()
}

/// The client's side of movable blocks.
impl Tenant {
    fn fill(&self, handle: u32, raw: RawPage) {
        assert!(self.segment.handles().fill(handle, raw));
    }

    fn pin(&self, handle: u32) -> Result<u32, PinError> {
        self.segment.handles().word(handle).unwrap().pin(0)
    }

    fn unpin(&self, handle: u32) {
        self.segment.handles().word(handle).unwrap().unpin();
    }

    /// Where a block is, read under a pin.
    fn at(&self, handle: u32) -> RawPage {
        let pfn = self.pin(handle).unwrap();
        let raw = self.segment.handles().page(handle, pfn).unwrap();
        self.unpin(handle);
        raw
    }

    /// Takes the block out of its handle.
    fn empty(&self, handle: u32) -> Result<RawPage, PinError> {
        let handles = self.segment.handles();
        let pfn = handles.word(handle).unwrap().empty()?;
        Ok(handles.page(handle, pfn).unwrap())
    }
}

/// Takes blocks, marks each with its handle's number plus one, and fills handles from 0 on.
fn hold(rig: &mut Rig, tenant: &Tenant, class: Class, count: u32) {
    let pages = rig.take(tenant, 0, class, count as usize);
    assert_eq!(pages.len(), count as usize);
    for (handle, raw) in (0..).zip(pages) {
        rig.bytes[raw.pfn() as usize] = u64::from(handle) + 1;
        tenant.fill(handle, raw);
    }
}

#[track_caller]
fn check_bytes(rig: &Rig, tenant: &Tenant, count: u32) {
    for handle in 0..count {
        let raw = tenant.at(handle);
        assert_eq!(
            rig.bytes[raw.pfn() as usize],
            u64::from(handle) + 1,
            "handle {handle} at {raw:?}"
        );
    }
}

/// Frees what the handles have; the daemon finds nothing wrong with it.
#[track_caller]
fn free_all(rig: &mut Rig, tenant: &Tenant, count: u32) {
    let pages: Vec<RawPage> = (0..count)
        .filter_map(|handle| tenant.empty(handle).ok())
        .collect();
    tenant.put(0, &pages);
    rig.service();
    let report = rig.client(tenant.id);
    assert_eq!((report.nr_misuses, report.held), (0, 0), "{report:?}");
    rig.verify();
}

fn begin_offline(rig: &mut Rig, section: u32, timeout_ms: u64) -> OperationReport {
    let timeout = Some(std::time::Duration::from_millis(timeout_ms));
    let request = by_ids(&[section]);
    let Reply::Operation(report) = rig.apply(Command::OfflineSections { request, timeout }) else {
        panic!()
    };
    report
}

/// Begins to take a section and returns the first batch, which the runner has not touched.
fn first_batch(rig: &mut Rig, section: u32) -> (OperationReport, MoveBatch) {
    let report = begin_offline(rig, section, 1000);
    let mut effects = rig.engine.take_effects();
    let Some(Effect::Move { batch }) = effects.pop() else {
        panic!("no batch of moves among {effects:?}")
    };
    (report, batch)
}

fn outcome(report: &OperationReport) -> &SectionOutcome {
    &report.sections[0]
}

fn is_offline(report: &OperationReport) -> bool {
    report.state == OperationState::Done
}

/// A zone of three sections, a client with `count` movable pages in the first one or two.
fn rig_with(count: u32) -> (Rig, Tenant) {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 3)],
        Defaults::default(),
    );
    rig.add("normal", 3);
    let tenant = rig.tenant(1);
    hold(&mut rig, &tenant, movable(), count);
    (rig, tenant)
}

/// A section in which the client has at least one of its handles, and that handle.
fn section_of(tenant: &Tenant, handle: u32) -> u32 {
    tenant.at(handle).pfn() / SECTION
}

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
