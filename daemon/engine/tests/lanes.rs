//! Pages by lane: lent, taken, given back, recalled; clients that hang up and die.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use hugepool_engine::{ClientState, Command, LaneState, NoOutside, OperationState};
use hugepool_shm::lane_client::Miss;
use hugepool_shm::raw::RawPage;
use hugepool_shm::scribble::LaneWord;
use support::{PAGE, Rig, Tenant, movable};

#[test]
fn a_page_goes_the_whole_way_and_comes_home() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(2);
    let managed = rig.pages().managed;
    let pages = rig.take(&tenant, 0, PAGE, 40);
    assert_eq!(pages.len(), 40);
    assert_eq!(rig.pages().managed, managed);
    assert!(rig.pages().lent >= 40);
    rig.verify();
    // What one lane took, another may free.
    tenant.put(1, &pages);
    rig.service();
    rig.verify();
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    assert_eq!(rig.pages().lent, 0);
    rig.verify();
}

#[test]
fn a_lane_gets_only_what_it_asked_for() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    rig.service();
    assert_eq!(rig.client(tenant.id).lent, 0);
    let pages = rig.take(&tenant, 0, PAGE, 1);
    assert_eq!(pages.len(), 1);
    let lent = rig.client(tenant.id).lent;
    assert!(lent < 20, "{lent} pages for one");
}

#[test]
fn demand_raises_what_a_lane_is_given() {
    let mut rig = Rig::new(8);
    let tenant = rig.tenant(1);
    let mut most = 0;
    for _ in 0..20 {
        let (pages, _) = tenant.take_there(0, PAGE, 64);
        rig.take(&tenant, 0, PAGE, 1);
        most = most.max(pages.len());
    }
    assert!(most >= 16, "a refill brought {most} pages at most");
    rig.verify();
}

#[test]
fn a_dead_client_loses_nothing_held_cached_or_on_its_way() {
    let mut rig = Rig::new(4);
    let other = rig.tenant(1);
    let others = rig.take(&other, 0, PAGE, 10);
    let before = rig.client(other.id).lent;
    let tenant = rig.tenant(2);
    let held = rig.take(&tenant, 0, PAGE, 50);
    let blocks = rig.take(&tenant, 1, movable(), 30);
    tenant.put(1, &held[..20]);
    tenant.put(0, &blocks[..5]);
    for page in &held[30..35] {
        tenant.segment.free_map().set(page.pfn());
    }
    rig.alloc(tenant.id, 4, 3);
    let lent = rig.client(tenant.id).lent;
    assert_eq!(rig.engine.bury(tenant.id, rig.now), lent);
    assert_eq!(rig.pages().lent, before);
    assert_eq!(rig.engine.status().nr_reclaimed_pages, lent);
    rig.verify();
    assert_eq!(rig.engine.bury(tenant.id, rig.now), 0);
    other.put(0, &others);
    rig.service();
    assert_eq!(rig.client(other.id).nr_misuses, 0);
}

#[test]
fn a_slot_is_used_again_in_its_next_life_and_the_dead_claim_nothing() {
    let mut rig = Rig::new(2);
    let dead = rig.tenant(1);
    let pages = rig.take(&dead, 0, PAGE, 3);
    rig.engine.bury(dead.id, rig.now);
    let heir = rig.tenant(1);
    assert_eq!(
        (heir.id.slot, heir.id.incarnation),
        (dead.id.slot, dead.id.incarnation + 1)
    );
    // The old life's page words are nobody's in the new one.
    rig.take(&heir, 0, PAGE, 3);
    heir.put(0, &pages);
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    assert!(rig.client(heir.id).nr_misuses >= 3);
    rig.verify();
}

#[test]
fn a_hang_up_takes_home_what_lies_in_lanes_and_leaves_what_is_held() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    let pages = rig.take(&tenant, 0, PAGE, 25);
    tenant.put(0, &pages[..5]);
    rig.engine.detach(tenant.id, rig.now, &mut NoOutside);
    let client = rig.client(tenant.id);
    assert_eq!((client.state, client.lent), (ClientState::Detached, 20));
    assert_eq!(tenant.take_there(0, PAGE, 1).1, Some(Miss::Closed));
    // It goes on freeing, into returns; that is settled still.
    tenant.put(0, &pages[5..]);
    rig.service();
    assert_eq!(rig.client(tenant.id).lent, 0);
    rig.verify();
}

#[test]
fn a_recall_takes_unused_pages_from_a_client_that_does_nothing() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(2);
    let held = rig.take(&tenant, 0, PAGE, 30);
    tenant.put(0, &held[..10]);
    let report = rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    let recalled = report.recalled.unwrap();
    assert_eq!((recalled.nr_held, recalled.nr_in_flight), (20, 0));
    assert_eq!(rig.client(tenant.id).lent, 20);
    assert_eq!(rig.outside.nr_barriers, 1);
    // The lane is open again and starts anew.
    assert_eq!(tenant.take_there(0, PAGE, 1).1, Some(Miss::Empty));
    assert_eq!(rig.take(&tenant, 0, PAGE, 5).len(), 5);
    rig.verify();
}

/// Seen to fail: the next visit gave the lane as much again.
#[test]
fn what_was_drained_stays_away_until_it_is_missed() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    let held = rig.take(&tenant, 0, PAGE, 30);
    rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    stays_without(&mut rig, &tenant, held);
}

/// Seen to fail: a client that was stopped, or slept, was given as much again.
#[test]
fn what_was_recalled_from_who_does_nothing_stays_away_until_it_is_missed() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    let held = rig.take(&tenant, 0, PAGE, 30);
    for _ in 0..3 {
        rig.advance(1000);
        rig.service();
    }
    assert!(rig.client(tenant.id).lent > 30, "its lane holds some");
    // Somebody takes all there is, lanes of others included, and leaves.
    let greedy = rig.tenant(1);
    rig.alloc(greedy.id, 0, 10_000);
    assert_eq!(rig.client(tenant.id).lent, 30);
    rig.engine.bury(greedy.id, rig.now);
    stays_without(&mut rig, &tenant, held);
}

/// Nothing but what it holds is lent to a client until it takes again.
fn stays_without(rig: &mut Rig, tenant: &Tenant, held: Vec<RawPage>) {
    for _ in 0..5 {
        rig.service();
        rig.advance(1000);
    }
    assert_eq!(rig.client(tenant.id).lent, 30);
    // The first miss brings what is used again, and more with it.
    assert_eq!(rig.take(tenant, 0, PAGE, 5).len(), 5);
    assert!(rig.client(tenant.id).lent > 35);
    tenant.put(0, &held);
    rig.service();
    rig.verify();
}

#[test]
fn a_round_over_empty_lanes_costs_no_barrier() {
    let mut rig = Rig::new(2);
    rig.tenant(4);
    let report = rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    assert_eq!(report.state, OperationState::Done);
    assert_eq!(rig.outside.nr_barriers, 0);
}

#[test]
fn a_thread_stopped_in_its_window_keeps_its_reach_and_no_more() {
    let mut rig = Rig::new(8);
    let tenant = rig.tenant(1);
    let held = rig.take(&tenant, 0, PAGE, 65);
    tenant.put(0, &held);
    rig.take(&tenant, 0, PAGE, 1);
    // Stopped in the midst of taking 8.
    tenant.segment.scribble(0, LaneWord::Busy, 8);
    let begun = rig.now;
    let report = rig.operate(Command::DrainLanes {
        slot: None,
        timeout: None,
    });
    let recalled = report.recalled.unwrap();
    assert!(
        recalled.nr_in_flight > 0 && recalled.nr_in_flight <= 3 * 8,
        "{recalled:?}"
    );
    assert_eq!(recalled.holders[0].client, tenant.id);
    assert!(rig.now - begun <= std::time::Duration::from_millis(30));
    let client = rig.client(tenant.id);
    assert_eq!(client.lanes[0].state, LaneState::Stuck);
    assert_eq!(client.lent, recalled.nr_in_flight + 1);
    rig.verify();
    // It goes on, leaves the window, and the lane is emptied and opened.
    tenant.segment.scribble(0, LaneWord::Busy, 0);
    rig.advance(100);
    let client = rig.client(tenant.id);
    assert_eq!((client.lanes[0].state, client.lent), (LaneState::Open, 1));
    assert_eq!(client.nr_misuses, 0);
    rig.verify();
}

#[test]
fn an_evicted_client_is_shut_out_and_named_to_be_closed() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    let held = rig.take(&tenant, 0, PAGE, 7);
    let evict = Command::EvictClient {
        slot: tenant.id.slot,
        incarnation: None,
        kill: true,
    };
    let report = rig.operate(evict);
    assert_eq!(report.recalled.unwrap().nr_held, held.len() as u64);
    assert_eq!(rig.effects.len(), 4 + 2, "{:?}", rig.effects);
    assert_ne!(tenant.segment.closed(), 0);
    let refused = rig.engine.alloc_bulk(
        tenant.id,
        &support::alloc(0, 1),
        hugepool_engine::Patience::None,
        rig.now,
        &mut NoOutside,
    );
    assert_eq!(refused, Err(hugepool_engine::CallError::Detached));
    rig.verify();
}

#[test]
fn batch_and_high_can_be_set_live_and_let_go_again() {
    let mut rig = Rig::new(8);
    let tenant = rig.tenant(1);
    rig.apply(Command::SetPcp {
        slot: None,
        batch: Some(20),
        high: Some(4),
    });
    assert_eq!(rig.take(&tenant, 0, PAGE, 1).len(), 1);
    assert_eq!(tenant.take_there(0, PAGE, 100).0.len(), 39);
    let later = rig.tenant(1);
    assert_eq!(rig.take(&later, 0, PAGE, 1).len(), 1);
    assert_eq!(later.take_there(0, PAGE, 100).0.len(), 39);
    let hugepool_engine::Reply::Pcp {
        nr_clients,
        batch,
        high,
    } = rig.apply(Command::SetPcp {
        slot: None,
        batch: Some(0),
        high: None,
    })
    else {
        panic!()
    };
    assert_eq!((nr_clients, batch, high), (2, 0, 4));
    rig.verify();
}

#[test]
fn the_daemon_sleeps_only_when_nothing_is_left_to_do() {
    let mut rig = Rig::new(4);
    let tenant = rig.tenant(1);
    let pages = rig.take(&tenant, 0, PAGE, 64);
    rig.service();
    assert!(rig.engine.before_sleep());
    rig.service();
    // Two hundred frees through a magazine of few: some lie in returns.
    rig.apply(Command::SetPcp {
        slot: None,
        batch: None,
        high: Some(1),
    });
    tenant.put(0, &pages);
    assert!(!rig.engine.before_sleep());
    rig.service();
    assert!(rig.engine.before_sleep());
}

#[test]
fn a_want_that_nothing_can_fill_does_not_keep_the_daemon_awake() {
    let mut rig = Rig::new(1);
    let tenant = rig.tenant(1);
    let all = rig.take(&tenant, 0, PAGE, 1000);
    assert!(all.len() < 128);
    for _ in 0..3 {
        tenant.lane(0).want(PAGE, 1);
        rig.service();
    }
    tenant.lane(0).want(PAGE, 1);
    rig.service();
    assert!(rig.engine.before_sleep());
    // A free wakes it all the same.
    rig.service();
    rig.apply(Command::SetPcp {
        slot: None,
        batch: None,
        high: Some(1),
    });
    tenant.put(0, &all[..20]);
    assert!(!rig.engine.before_sleep());
}
