//! When there is nothing left: typed answers, and nobody else is harmed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use hugepool::{Client, Migratetype, Page, Shortfall};
use hugepool_proto::v1::{AddSectionsRequest, OfflineSectionsRequest, RemoveSectionsRequest};
use support::{Daemon, PATIENCE};

const ONE_ZONE: &[&str] = &["normal=8MiB,backing=shm,reserve=256MiB"];

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

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

/// R17: asking for more than is left ended the daemon.
#[test]
fn r17_who_asks_when_all_is_taken_is_told_so_and_nobody_else_notices() {
    let mut daemon = Daemon::with_zones("r17", ONE_ZONE);
    let (first, second) = (daemon.attach("first"), daemon.attach("second"));
    let mut all = take_all(&first);
    all.iter_mut().for_each(|page| page[0] = 0x77);
    // What is left below `low`, and what the first one's lane gives back, is for who owns less.
    let short = second.with_deadline(Duration::ZERO);
    let mut rest = Vec::new();
    let answer = loop {
        match short.alloc_page() {
            Ok(page) => rest.push(page),
            Err(shortfall) => break shortfall,
        }
    };
    let is_typed = matches!(
        answer,
        Shortfall::ZoneEmpty { .. } | Shortfall::Deadline { .. } | Shortfall::Quota { .. }
    );
    assert!(is_typed, "{answer:?}");
    daemon.verify();
    assert!(
        all.iter().all(|page| page[0] == 0x77),
        "the first is unaffected"
    );

    drop(rest);
    first.free_pages_bulk(all);
    assert!(
        second.alloc_page().is_ok(),
        "what is freed can be had by the other"
    );
}

#[test]
fn a_waiting_call_gets_what_another_client_frees() {
    let daemon = Daemon::with_zones("waiting", ONE_ZONE);
    let (holder, waiter) = (daemon.attach("holder"), daemon.attach("waiter"));
    let all = take_all(&holder);
    let begun = Instant::now();
    let waiting = thread::spawn(move || {
        waiter
            .with_deadline(PATIENCE)
            .alloc_page()
            .map(|page| page.pfn())
    });
    // However late the free comes, before or while the other waits: it must get the page.
    holder.free_pages_bulk(all);
    drop(holder);
    assert!(waiting.join().unwrap().is_ok());
    assert!(
        begun.elapsed() < PATIENCE,
        "it came by the free, not by the deadline"
    );
}

#[test]
fn a_try_call_asks_nobody() {
    let mut daemon = Daemon::with_zones("try", ONE_ZONE);
    let client = daemon.attach("try");
    let all = take_all(&client);
    daemon.kill();
    let request = client.with_deadline(PATIENCE);
    let begun = Instant::now();
    let answer = request.try_alloc_page().map(|page| page.pfn());
    assert_eq!(
        answer,
        Err(Shortfall::Deadline {
            waited: Duration::ZERO
        })
    );
    let mut list = Vec::new();
    assert_eq!(
        request.try_alloc_pages_bulk_list(65, &mut list).populated,
        0
    );
    assert!(begun.elapsed() < PATIENCE);
    drop(all);
}

#[test]
fn a_daemon_that_is_gone_leaves_the_lanes_and_calls_say_so() {
    let mut daemon = Daemon::with_zones("gone", ONE_ZONE);
    let client = daemon.attach("gone");
    let mut held = Vec::new();
    assert_eq!(client.alloc_pages_bulk_list(65, &mut held).populated, 65);
    daemon.kill();
    // Frees go on, and what is freed can be had again.
    let (pfn, one) = (held[0].pfn(), held.swap_remove(0));
    drop(one);
    let again = client.alloc_page().unwrap();
    assert_eq!(again.pfn(), pfn, "the warm page comes back first");
    let rest = take_all(&client);
    let answer = client.alloc_page().map(|page| page.pfn());
    assert_eq!(answer, Err(Shortfall::DaemonAway));
    drop((rest, again, held));
}

#[test]
fn a_zone_is_asked_for_by_name() {
    let daemon = Daemon::start("by-name");
    let client = daemon.attach("by-name");
    assert!(client.with_zone("dma").is_err());
    let request = client
        .with_zone("movable")
        .unwrap()
        .with_migratetype(Migratetype::Movable);
    let mut pages = Vec::new();
    assert_eq!(request.alloc_pages_bulk_list(65, &mut pages).populated, 65);
    // The movable zone starts behind the reserve of the normal one.
    let first_of_movable = (256 << 20) / 4096;
    assert!(pages.iter().all(|page| page.pfn() >= first_of_movable));
}

#[test]
fn a_section_that_is_added_is_used_without_attaching_anew() {
    let mut daemon = Daemon::with_zones("grow", ONE_ZONE);
    let client = daemon.attach("grow");
    let before = take_all(&client);
    let add = AddSectionsRequest {
        zone: "normal".into(),
        count: 1,
        ..AddSectionsRequest::default()
    };
    let added = daemon.ask(|mut admin| async move { admin.add_sections(add).await });
    assert!(added.results[0].ok, "{added:?}");
    let mut more = take_all(&client);
    assert!(
        more.len() > 1000,
        "{} of the new section's 2048 pages",
        more.len()
    );
    more.iter_mut().for_each(|page| page.fill(0x42));
    assert!(
        more.iter()
            .all(|page| page.iter().all(|&byte| byte == 0x42))
    );

    // And it can go again, with the client attached and idle.
    client.free_pages_bulk(more);
    let id = added.results[0].section_id;
    let offline = OfflineSectionsRequest {
        section_ids: vec![id],
        timeout_ms: 5000,
        ..OfflineSectionsRequest::default()
    };
    let gone = daemon.ask(|mut admin| async move { admin.offline_sections(offline).await });
    assert!(gone.results[0].ok, "{gone:?}");
    let remove = RemoveSectionsRequest {
        section_ids: vec![id],
        ..RemoveSectionsRequest::default()
    };
    let gone = daemon.ask(|mut admin| async move { admin.remove_sections(remove).await });
    assert!(gone.results[0].ok, "{gone:?}");
    drop(before);
    assert!(client.alloc_page().is_ok());
    daemon.verify();
}
