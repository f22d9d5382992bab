//! The array and the list keep the semantics of the kernel's `alloc_pages_bulk`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use hugepool::{Bulk, Client, Order, Page, Shortfall};
use hugepool_proto::v1::{DrainLanesRequest, SetLimitsRequest};
use support::Daemon;

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

fn slots<const N: usize>() -> [Option<Page>; N] {
    [const { None }; N]
}

fn pfns(slots: &[Option<Page>]) -> Vec<Option<u32>> {
    slots
        .iter()
        .map(|slot| slot.as_ref().map(Page::pfn))
        .collect()
}

/// Takes all that can be had, of order 0.
fn take_all(client: &Client) -> Vec<Page> {
    let mut all = Vec::new();
    while client
        .with_deadline(Duration::ZERO)
        .alloc_pages_bulk_list(4096, &mut all)
        .populated
        > 0
    {}
    all
}

const ALL: fn(usize) -> Bulk = |populated| Bulk {
    populated,
    shortfall: None,
};

/// R10: a bulk call on a full array answered 0, which callers read as failure.
#[test]
fn r10_a_full_array_answers_its_length_and_takes_nothing() {
    let mut daemon = Daemon::start("r10");
    let client = daemon.attach("r10");
    let mut array = slots::<16>();
    assert_eq!(client.alloc_pages_bulk_array(&mut array), ALL(16));
    let before = pfns(&array);
    assert!(before.iter().all(Option::is_some));

    assert_eq!(client.alloc_pages_bulk_array(&mut array), ALL(16));
    assert_eq!(pfns(&array), before, "nothing was taken, nothing touched");

    for hole in [0, 7, 15] {
        let taken_out = array[hole].take().unwrap();
        assert_eq!(client.alloc_pages_bulk_array(&mut array), ALL(16));
        let after = pfns(&array);
        let is_kept = |place: usize| place == hole || after[place] == before[place];
        assert!((0..16).all(is_kept), "only slot {hole} was filled");
        assert_ne!(after[hole], Some(taken_out.pfn()), "it is held still");
        array[hole] = Some(taken_out);
    }
    daemon.verify();
}

#[test]
fn no_slots_answer_0_and_touch_nothing() {
    let daemon = Daemon::start("no-slots");
    let client = daemon.attach("no-slots");
    let lent = daemon.pages().lent;
    assert_eq!(client.alloc_pages_bulk_array(&mut []), ALL(0));
    assert_eq!(client.alloc_pages_bulk_list(0, &mut Vec::new()), ALL(0));
    assert_eq!(
        client
            .with_order(Order::new(9).unwrap())
            .alloc_pages_bulk_array(&mut []),
        ALL(0)
    );
    assert_eq!(daemon.pages().lent, lent);
}

/// R11: a request that is refused answered a count that was not that of the filled slots.
#[test]
fn r11_a_refused_request_answers_the_filled_slots_and_takes_nothing() {
    let mut daemon = Daemon::start("r11");
    let client = daemon.attach("r11");
    let mut array = slots::<16>();
    assert_eq!(client.alloc_pages_bulk_array(&mut array[..5]), ALL(5));
    let before = pfns(&array);

    // The limit check refuses: the client owns what it may. What lies in its lanes it could still
    // have, so that goes home first.
    let limit = SetLimitsRequest {
        slot: None,
        ceiling_pages: Some(5),
        ..SetLimitsRequest::default()
    };
    daemon.ask(|mut admin| async move { admin.set_limits(limit).await });
    daemon.ask(|mut admin| async move { admin.drain_lanes(DrainLanesRequest::default()).await });
    assert_eq!(daemon.pages().lent, 5);
    let request = client.with_deadline(Duration::ZERO);
    let bulk = request.alloc_pages_bulk_array(&mut array);
    assert_eq!(bulk.populated, 5, "not 0 and not 16: {bulk:?}");
    let quota = Shortfall::Quota {
        owned_pages: 5,
        ceiling_pages: 5,
    };
    assert_eq!(bulk.shortfall, Some(quota));
    assert_eq!((pfns(&array), daemon.pages().lent), (before.clone(), 5));

    // A size that no zone has is refused before anything is asked.
    let huge = request.with_order(Order::new(14).unwrap());
    let bulk = huge.alloc_pages_bulk_array(&mut array);
    let why = Some(Shortfall::OrderTooLarge { max_order: 10 });
    assert_eq!((bulk.populated, bulk.shortfall), (5, why));
    assert_eq!(pfns(&array), before);
    daemon.verify();
}

/// The same where nothing is left to be had.
#[test]
fn an_array_that_gets_nothing_answers_the_filled_slots() {
    let mut daemon = Daemon::with_zones("nothing", &["normal=8MiB,backing=shm,reserve=256MiB"]);
    let client = daemon.attach("nothing");
    let mut array = slots::<16>();
    assert_eq!(client.alloc_pages_bulk_array(&mut array[..5]), ALL(5));
    let all = take_all(&client);
    let before = pfns(&array);
    let request = client.with_deadline(Duration::ZERO);
    let bulk = request.alloc_pages_bulk_array(&mut array);
    assert_eq!(bulk.populated, 5, "not 0 and not 16: {bulk:?}");
    assert!(bulk.shortfall.is_some());
    assert_eq!(pfns(&array), before);
    drop(all);
    daemon.verify();
}

#[test]
fn a_short_array_is_filled_from_its_start() {
    let daemon = Daemon::with_zones("short", &["normal=8MiB,backing=shm,reserve=256MiB"]);
    let client = daemon.attach("short");
    let mut all = take_all(&client);
    // Three go back; five slots are empty, with a filled one between them.
    let keeper = all.pop().unwrap();
    let pfn = keeper.pfn();
    let mut array = slots::<6>();
    array[4] = Some(keeper);
    client.free_pages_bulk(all.drain(..3));
    let bulk = client
        .with_deadline(Duration::ZERO)
        .alloc_pages_bulk_array(&mut array);
    assert_eq!(bulk.populated, 3, "the first empty slot: {bulk:?}");
    assert!(bulk.shortfall.is_some());
    let filled: Vec<bool> = array.iter().map(Option::is_some).collect();
    assert_eq!(filled, [true, true, true, false, true, false]);
    assert_eq!(array[4].as_ref().unwrap().pfn(), pfn);
}

#[test]
fn a_list_is_appended_to() {
    let mut daemon = Daemon::start("list");
    let client = daemon.attach("list");
    let mut list = vec![client.alloc_page().unwrap()];
    let first = list[0].pfn();
    assert_eq!(client.alloc_pages_bulk_list(65, &mut list), ALL(65));
    assert_eq!((list.len(), list[0].pfn()), (66, first));
    let mut pfns: Vec<u32> = list.iter().map(Page::pfn).collect();
    pfns.sort_unstable();
    pfns.dedup();
    assert_eq!(pfns.len(), 66, "no page twice");
    // Far more than a lane holds, in one call.
    assert_eq!(client.alloc_pages_bulk_list(2500, &mut list), ALL(2500));
    client.free_pages_bulk(list);
    daemon.verify();
}

#[test]
fn every_order_can_be_had_and_written_and_comes_home() {
    let mut daemon = Daemon::start("orders");
    let client = daemon.attach("orders");
    let mut held = Vec::new();
    for order in 0..=10 {
        let mut block = client.alloc_pages(Order::new(order).unwrap()).unwrap();
        assert_eq!(
            (block.len(), block.pfn() % (1 << order)),
            (4096 << order, 0)
        );
        block.fill(order + 1);
        held.push(block);
    }
    for (mark, block) in (1..).zip(&held) {
        assert!(
            block.iter().all(|&byte| byte == mark),
            "a neighbour wrote over {block:?}"
        );
    }
    let order = Order::new(11).unwrap();
    let answer = client.alloc_pages(order).map(|block| block.pfn());
    assert_eq!(answer, Err(Shortfall::OrderTooLarge { max_order: 10 }));
    drop(held);
    drop(client);
    daemon.wait_for_pages("all are home", |pages| pages.lent == 0);
    daemon.verify();
}

#[test]
fn all_or_nothing_is_all_or_nothing() {
    let mut daemon = Daemon::with_zones("exact", &["normal=8MiB,backing=shm,reserve=256MiB"]);
    let client = daemon.attach("exact");
    assert_eq!(client.alloc_exact(300).unwrap().len(), 300);
    let request = client.with_deadline(Duration::ZERO);
    let answer = request.alloc_exact(100_000).map(|pages| pages.len());
    assert!(answer.is_err(), "{answer:?}");
    // What had been gathered is free again: the same client can have it.
    assert_eq!(client.alloc_exact(1500).unwrap().len(), 1500);
    daemon.verify();
}

/// Longer than any machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A READ of 256 KiB into memory that is not fragmented needs one or two pieces.
#[test]
fn a_batch_comes_in_few_runs_and_each_is_one_piece_of_memory() {
    let mut daemon = Daemon::start("runs");
    let client = daemon.attach("runs");
    for _ in 0..3 {
        let mut pages = client.with_deadline(PATIENCE).alloc_exact(64).unwrap();
        let nr_runs = hugepool::runs(&pages).count();
        assert!(nr_runs <= 2, "{nr_runs} runs: {pages:?}");
        let mut nr_bytes = 0;
        for (at, bytes) in (1..).zip(hugepool::runs_mut(&mut pages)) {
            bytes.fill(at);
            nr_bytes += bytes.len();
        }
        assert_eq!(nr_bytes, 256 << 10);
        for (at, run) in (1..).zip(hugepool::runs(&pages)) {
            assert!(run.iter().all(|page| page.iter().all(|&byte| byte == at)));
        }
        // The last first: as many runs as there are pages.
        pages.reverse();
        assert_eq!(hugepool::runs(&pages).count(), 64);
        assert_eq!(hugepool::runs_mut(&mut pages).count(), 64);
        // As a run it comes back as it was given.
        pages.reverse();
        client.free_pages_bulk(pages);
    }
    drop(client);
    assert!(daemon.verify().ok);
}

#[test]
fn a_client_that_looks_again_before_it_asks_gets_the_same() {
    let mut daemon = Daemon::start("looks");
    let options = daemon.options("looks").spin(Duration::from_millis(5));
    let client = Client::attach(options).unwrap();
    let all = take_all(&client);
    assert!(all.len() > 3_000, "{}", all.len());
    let apart: std::collections::BTreeSet<u32> = all.iter().map(Page::pfn).collect();
    assert_eq!(apart.len(), all.len());
    client.free_pages_bulk(all);
    let again = client.with_deadline(PATIENCE).alloc_exact(2_000);
    assert_eq!(again.unwrap().len(), 2_000);
    drop(client);
    assert!(daemon.verify().ok);
}
