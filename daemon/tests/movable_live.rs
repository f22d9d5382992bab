//! Clients that use movable and evictable pages at full speed while sections go away and come back
//! under them: every byte is right, and every section goes.
//!
//! Seen to fail: the copy left out (foreign bytes); the record of the new place left out (a page is
//! not found); and, with `HUGEPOOL_TEST_MOVABLE_SECONDS=20`, opening a word without looking whether
//! it is still the closed one, and closing one that is pinned (lost writes).

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::time::{Duration, Instant};

use hugepool::{Client, EvictablePage, MovablePage, Options, Order, PinError};
use hugepool_proto::v1;
use hugepool_proto::v1::admin_client::AdminClient;
use nix::sys::signal::Signal;
use support::grpc::{self, verify};
use support::victim::{Victim, Xorshift, heard, part, say};
use support::{Daemon, send_signal};
use tonic::transport::Channel;

/// Two zones of three and four sections of 4 MiB.
const ZONES: &[&str] = &[
    "--section-size",
    "4MiB",
    "--zone",
    "normal=12MiB,reserve=64MiB,backing=shm",
    "--zone",
    "movable=16MiB,kind=movable,reserve=64MiB,backing=shm",
];

/// Blocks that each thread of a client has under handles, at most: together more than there is.
const NR_MOVABLE: usize = 300;
const NR_EVICTABLE: usize = 800;

/// Not a test: the part of a process that a test here has started.
#[test]
fn victim() {
    match part() {
        None => {}
        Some((options, part)) => {
            let (name, number) = part.split_once(' ').unwrap();
            let number = number.parse().unwrap();
            match name {
                "movable" => use_movable(options, number),
                "hold-movable" => hold_movable(options, number),
                "pin-one" => pin_one(options, number),
                _ => panic!("no part is called {name}"),
            }
        }
    }
}

/// A block and what its holder wrote last.
struct Block<P> {
    page: P,
    mark: u64,
}

fn fill(bytes: &mut [u8], mark: u64) {
    for (at, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
        word.copy_from_slice(&(mark ^ at).to_le_bytes());
    }
}

#[track_caller]
fn check_at(bytes: &[u8], mark: u64, at: usize) {
    let word: [u8; 8] = bytes[at * 8..][..8].try_into().unwrap();
    let expected = mark ^ at as u64;
    assert_eq!(u64::from_le_bytes(word), expected, "word {at} is wrong");
}

#[track_caller]
fn check(bytes: &[u8], mark: u64) {
    (0..bytes.len() / 8).for_each(|at| check_at(bytes, mark, at));
}

/// Holds so many movable pages, and each time it is told to looks at all of them.
fn hold_movable(options: Options, nr: u64) {
    let client = Client::attach(options).unwrap();
    let mut pages: Vec<MovablePage> = Vec::new();
    let count = usize::try_from(nr).unwrap();
    while pages.len() < count {
        let missing = count - pages.len();
        let bulk = client.request().alloc_movable_bulk(missing, &mut pages);
        assert!(bulk.populated > 0, "{bulk:?}");
    }
    for (mark, page) in (1..).zip(&mut pages) {
        fill(&mut page.pin_mut().unwrap(), mark << 16);
    }
    say("ready");
    while heard().is_some() {
        for (mark, page) in (1..).zip(&pages) {
            check(&page.pin().unwrap(), mark << 16);
        }
        say("well");
    }
}

/// Holds so many movable pages and pins one; says in which section, and lets go when told to.
fn pin_one(options: Options, nr: u64) {
    let client = Client::attach(options).unwrap();
    let pages: Vec<MovablePage> = (0..nr).map(|_| client.alloc_movable().unwrap()).collect();
    let pinned = pages[3].pin().unwrap();
    say("ready");
    say(&format!("{}", pinned.pfn() / 1024));
    heard();
    drop(pinned);
    say("well");
    while heard().is_some() {}
}

/// Pins, reads, writes, frees and takes movable and evictable pages in two threads, until it is
/// told to end.
fn use_movable(options: Options, seed: u64) {
    let client = Client::attach(options.lanes(3)).unwrap();
    let ends = std::thread::spawn(|| while heard().is_some() {});
    say("ready");
    let is_over = || ends.is_finished();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let client = &client;
                scope.spawn(move || one_thread(client, seed * 2 + thread, &is_over))
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    say("well");
}

fn one_thread(client: &Client, seed: u64, is_over: &(dyn Fn() -> bool + Sync)) {
    let mut random = Xorshift(seed + 1);
    let mut mark = seed << 48;
    let mut next = || {
        mark += 1 << 16;
        mark
    };
    let mut movable: Vec<Block<MovablePage>> = Vec::new();
    let mut evictable: Vec<Block<EvictablePage>> = Vec::new();
    let mut nr_rounds = 0_u32;
    while !is_over() {
        // At first mostly taking, so that memory is soon short.
        nr_rounds += 1;
        match random.below(if nr_rounds < 2000 { 3 } else { 64 }) {
            0 => {
                let order = match random.below(100) {
                    0 if movable.iter().all(|block| block.page.order() < 9) => 9,
                    chance => [0, 0, 0, 0, 0, 0, 1, 2, 3][usize::try_from(chance).unwrap() % 9],
                };
                let order = Order::new(order).unwrap();
                if movable.len() < NR_MOVABLE
                    && let Ok(mut page) = client.with_order(order).alloc_movable()
                {
                    let mark = next();
                    fill(&mut page.pin_mut().unwrap(), mark);
                    movable.push(Block { page, mark });
                }
            }
            1 if evictable.len() < NR_EVICTABLE => {
                if let Ok(mut page) = client.alloc_evictable() {
                    let mark = next();
                    // It may have been taken before it was written to.
                    let filled = page.pin_mut().map(|mut bytes| fill(&mut bytes, mark));
                    if filled.is_ok() {
                        evictable.push(Block { page, mark });
                    }
                }
            }
            2 if movable.len() > NR_MOVABLE / 2 => {
                let at = random.index(movable.len());
                let Block { page, mark } = movable.swap_remove(at);
                check(&page.pin().unwrap(), mark);
            }
            3 if !movable.is_empty() => {
                let at = random.index(movable.len());
                let Block { page, mark } = movable.swap_remove(at);
                if page.order() < 9
                    && let Ok(page) = page.into_page(client)
                {
                    check(&page, mark);
                }
            }
            4..10 if !evictable.is_empty() => {
                let at = random.index(evictable.len());
                let is_gone = match evictable[at].page.pin() {
                    Ok(bytes) => {
                        check(&bytes, evictable[at].mark);
                        false
                    }
                    Err(error) => {
                        assert_eq!(error, PinError::Evicted);
                        true
                    }
                };
                if is_gone {
                    evictable.swap_remove(at);
                }
            }
            10..16 if !movable.is_empty() => {
                let at = random.index(movable.len());
                let Block { page, mark } = &mut movable[at];
                let mut bytes = page.pin_mut().unwrap();
                check(&bytes, *mark);
                *mark = next();
                fill(&mut bytes, *mark);
            }
            _ if !movable.is_empty() => {
                let at = random.index(movable.len());
                let Block { page, mark } = &movable[at];
                let bytes = page.pin().unwrap();
                let at = random.index(bytes.len() / 8);
                check_at(&bytes, *mark, at);
            }
            _ => {}
        }
    }
    for Block { page, mark } in &movable {
        check(&page.pin().unwrap(), *mark);
    }
    for Block { page, mark } in &evictable {
        if let Ok(bytes) = page.pin() {
            check(&bytes, *mark);
        }
    }
}

/// The sections of a zone that are online, by id.
async fn online(admin: &mut AdminClient<Channel>, zone: &str) -> Vec<u32> {
    let request = v1::ListSectionsRequest {
        zone: zone.to_owned(),
        ..Default::default()
    };
    let sections = admin.list_sections(request).await.unwrap().into_inner();
    let online = sections.sections.iter().filter(|one| one.state == "online");
    online.map(|section| section.id).collect()
}

/// Takes a section offline and out, whoever uses it.
async fn take(admin: &mut AdminClient<Channel>, section: u32) -> v1::SectionResult {
    let request = v1::OfflineSectionsRequest {
        section_ids: vec![section],
        timeout_ms: 20_000,
        ..Default::default()
    };
    let answer = admin.offline_sections(request).await.unwrap().into_inner();
    let result = answer.results[0].clone();
    assert!(result.ok, "{result:?}");
    let request = v1::RemoveSectionsRequest {
        section_ids: vec![section],
        ..Default::default()
    };
    let answer = admin.remove_sections(request).await.unwrap().into_inner();
    assert!(answer.results[0].ok, "{answer:?}");
    result
}

/// Has all zones compacted; returns the pages that moved for it.
async fn pack(admin: &mut AdminClient<Channel>) -> u64 {
    let answer = admin.compact(v1::CompactRequest::default()).await;
    answer.unwrap().into_inner().nr_migrated
}

async fn add(admin: &mut AdminClient<Channel>, zone: &str) {
    let request = v1::AddSectionsRequest {
        zone: zone.to_owned(),
        count: 1,
        ..Default::default()
    };
    let answer = admin.add_sections(request).await.unwrap().into_inner();
    assert!(answer.results[0].ok, "{answer:?}");
}

/// How long to go on: so many rounds, or, where the environment says so, so many seconds.
fn goes_on(round: u32, begun: Instant) -> bool {
    let seconds = std::env::var("HUGEPOOL_TEST_MOVABLE_SECONDS").ok();
    match seconds.and_then(|text| text.parse().ok()) {
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
        None => round < 12,
    }
}

/// Every section of both zones goes and comes back, again and again.
#[tokio::test]
async fn sections_go_and_come_back_under_clients_that_never_stop() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    let mut clients: Vec<Victim> = (0..2)
        .map(|seed| Victim::start(&daemon, &format!("movable {seed}")))
        .collect();
    let (mut nr_moved, mut nr_packed) = (0, 0);
    let begun = Instant::now();
    let mut round = 0;
    while goes_on(round, begun) {
        let zone = ["movable", "normal"][round as usize % 2];
        let sections = online(&mut admin, zone).await;
        let section = sections[(round / 2) as usize % sections.len()];
        let mut other = admin.clone();
        // Compaction has its hands in the same memory, of both zones.
        let (result, packed) = tokio::join!(take(&mut admin, section), pack(&mut other));
        nr_moved += result.moved;
        nr_packed += packed;
        add(&mut admin, zone).await;
        verify(&mut admin).await;
        round += 1;
    }
    let list = admin.list_clients(v1::ListClientsRequest {}).await.unwrap();
    let nr_evicted: u64 = list
        .into_inner()
        .clients
        .iter()
        .map(|one| one.evicted)
        .sum();
    assert!(
        nr_moved > 0 && nr_evicted > 0 && nr_packed > 0,
        "{nr_moved} moved, {nr_evicted} taken, {nr_packed} packed"
    );
    eprintln!("{round} sections went, {nr_moved} pages were moved, {nr_evicted} taken");
    for mut client in clients.drain(..) {
        client.hang_up();
        assert_eq!(client.line(), "well");
        assert!(client.end().success());
    }
    grpc::until_lent(&mut admin, 0).await;
}

/// Clients die while their pages are moved: every page comes home once.
#[tokio::test]
async fn clients_that_are_killed_while_their_pages_move_lose_none() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    let survivor = Victim::start(&daemon, "movable 77");
    for round in 0..6 {
        let victims =
            [1, 2].map(|nr| Victim::start(&daemon, &format!("movable {}", round * 3 + nr)));
        let sections = online(&mut admin, "movable").await;
        let section = sections[round % sections.len()];
        let mut of_taker = grpc::admin(&daemon).await;
        let taker = tokio::spawn(async move { take(&mut of_taker, section).await });
        for victim in victims {
            victim.kill();
        }
        taker.await.unwrap();
        add(&mut admin, "movable").await;
        verify(&mut admin).await;
    }
    let mut survivor = survivor;
    survivor.hang_up();
    assert_eq!(survivor.line(), "well");
    drop(survivor);
    grpc::until_lent(&mut admin, 0).await;
}

/// A client that is stopped needs not be asked.
#[tokio::test]
async fn a_stopped_clients_pages_are_moved_and_it_finds_them() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    let mut client = Victim::start(&daemon, "hold-movable 1500");
    send_signal(client.pid(), Signal::SIGSTOP);
    let mut nr_moved = 0;
    for section in online(&mut admin, "movable").await.into_iter().take(2) {
        nr_moved += take(&mut admin, section).await.moved;
    }
    assert!(nr_moved >= 1024, "only {nr_moved} were moved");
    verify(&mut admin).await;
    send_signal(client.pid(), Signal::SIGCONT);
    client.tell("look");
    assert_eq!(client.line(), "well");
    // It has mapped what came meanwhile when it let go of its pins.
    add(&mut admin, "movable").await;
    client.tell("look");
    assert_eq!(client.line(), "well");
    for section in online(&mut admin, "movable").await.into_iter().take(2) {
        take(&mut admin, section).await;
    }
    client.tell("look");
    assert_eq!(client.line(), "well");
    assert!(client.end().success());
    grpc::until_lent(&mut admin, 0).await;
}

/// A page that is pinned is named, with who pins it.
#[tokio::test]
async fn a_section_with_a_pinned_page_stays_and_says_who_pins_it() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    let mut client = Victim::start(&daemon, "pin-one 10");
    let section = client.line().parse().unwrap();
    let request = v1::OfflineSectionsRequest {
        section_ids: vec![section],
        timeout_ms: 100,
        ..Default::default()
    };
    let answer = admin.offline_sections(request).await.unwrap().into_inner();
    let result = &answer.results[0];
    let [holder] = &result.holders[..] else {
        panic!("{result:?}")
    };
    assert_eq!(
        (holder.pid, holder.nr_pages, holder.pinned),
        (client.pid(), 1, 1)
    );
    client.tell("let go");
    assert_eq!(client.line(), "well");
    take(&mut admin, section).await;
    let list = admin.list_clients(v1::ListClientsRequest {}).await.unwrap();
    assert!(list.into_inner().clients[0].moved >= 10);
    verify(&mut admin).await;
}

/// Nobody waits for a daemon that dies in the middle of moves: what it had closed is taken back.
#[tokio::test]
async fn a_daemon_that_is_killed_in_the_middle_of_moves_keeps_no_client_waiting() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    let mut holder = Victim::start(&daemon, "hold-movable 1500");
    let mut busy = Victim::start(&daemon, "movable 9");
    for section in online(&mut admin, "movable").await {
        let request = v1::OfflineSectionsRequest {
            section_ids: vec![section],
            timeout_ms: 10_000,
            detach: true,
            ..Default::default()
        };
        admin.offline_sections(request).await.unwrap();
    }
    daemon.signal(Signal::SIGKILL);
    holder.tell("look");
    assert_eq!(holder.line(), "well");
    busy.hang_up();
    assert_eq!(busy.line(), "well");
    assert!(holder.end().success() && busy.end().success());
}
