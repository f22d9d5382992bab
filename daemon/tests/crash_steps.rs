//! A client that dies after each of its steps: of taking, bulk, freeing, spilling, calls, pins, mapping,
//! attaching and detaching. (Those of a hand-over are in `parcels_torture`.)
//!
//! Each step is a named place between two stores that somebody else may see, or between a word to the
//! daemon and its answer; the victim goes through all that a client does, again and again, until it has
//! done the step so often. Two others go on holding pages, and look at them at the end.
//!
//! Seen to fail: with the sweep at burial left out.
#![cfg(debug_assertions)]
#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use hugepool::{Client, MovablePage, Options, Order, Page};
use hugepool_proto::v1;
use support::grpc::{self, verify};
use support::victim::{self, Victim};
use support::{Daemon, TINY};

/// Each place, and how often it is passed before the death.
const STEPS: [(&str, &[u32]); 20] = [
    ("attach.connected", &[1, 2]),
    ("attach.asked", &[1, 2]),
    ("attach.answered", &[1, 2]),
    ("section.mapped", &[1, 3]),
    ("section.marked", &[1, 3]),
    ("attach.mapped", &[1, 2]),
    ("attach.confirmed", &[1, 2]),
    ("window.entered", &[1, 2, 30, 500]),
    ("window.worked", &[1, 2, 30, 500]),
    ("window.left", &[1, 2, 30, 500]),
    ("spill.pushed", &[1, 2, 20]),
    ("map.bit", &[1, 2, 50]),
    ("call.begun", &[1, 2]),
    ("call.answered", &[1, 2]),
    ("handle.record", &[1, 20]),
    ("handle.filled", &[1, 20]),
    ("handle.pinned", &[1, 30]),
    ("handle.unpinned", &[1, 30]),
    ("handle.emptied", &[1, 15]),
    ("detach.retired", &[1, 2]),
];

/// Not a test: a process that the test here has started.
#[test]
fn victim() {
    let Some((options, part)) = victim::part() else {
        return;
    };
    match part.strip_prefix("dies ") {
        Some(step) => {
            hugepool_shm::step::die_at(step);
            // Again and again: what a lane spills, and when, depends on how soon it is served.
            let end = Instant::now() + support::DEADLINE / 2;
            while Instant::now() < end {
                live(options.clone().deadline(support::DEADLINE));
            }
        }
        None => victim::play(),
    }
}

/// Everything that a client does by itself, once.
fn live(options: Options) {
    let client = Client::attach(options).unwrap();
    // What others hold cannot be had, and is not waited for.
    let now = client.with_deadline(Duration::ZERO);
    let mut pages: Vec<Page> = Vec::new();
    let _ = now.alloc_pages_bulk_list(65, &mut pages);
    let mut slots: [Option<Page>; 65] = [const { None }; 65];
    let _ = now.alloc_pages_bulk_array(&mut slots);
    client.free_pages_bulk_array(&mut slots);
    for order in [0, 1, 3, 9] {
        let order = Order::new(order).unwrap();
        pages.extend((0..5).filter_map(|_| now.alloc_pages(order).ok()));
    }
    // Singly, until the lane spills: so many are free, and are waited for.
    let mut more: Vec<Page> = Vec::new();
    let _ = client.alloc_pages_bulk_list(700, &mut more);
    more.into_iter().for_each(drop);
    client.free_pages_bulk(pages.drain(..));
    pin_and_let_go(&client);
    // Pages that outlive their client have no lane to go to: they go by the map.
    let mut last: Vec<Page> = Vec::new();
    let _ = now.alloc_pages_bulk_list(60, &mut last);
    drop(client);
    drop(last);
}

fn pin_and_let_go(client: &Client) {
    let mut movable: Vec<MovablePage> = Vec::new();
    let now = client.with_deadline(Duration::ZERO);
    let _ = now.alloc_movable_bulk(10, &mut movable);
    for page in &mut movable {
        page.pin_mut().unwrap()[0] = 1;
        page.pin().unwrap();
    }
    if let Some(page) = movable.pop() {
        drop(page.into_page(client));
    }
}

#[tokio::test]
async fn a_death_after_any_step_of_a_client_brings_all_its_pages_home() {
    let daemon = Daemon::start(TINY);
    let mut admin = grpc::admin(&daemon).await;
    let steady = [
        Victim::start(&daemon, "steady 50"),
        Victim::start(&daemon, "steady 60"),
    ];
    let pids = steady.each_ref().map(Victim::pid);
    for (step, times) in STEPS {
        for nr in times {
            let mut dies = Victim::spawn(&daemon, &format!("dies {step}:{nr}"));
            let ended = support::wait_for(dies.child());
            assert_eq!(
                ended.signal(),
                Some(9),
                "{step}:{nr} was not reached: {ended}"
            );
            until_alone(&mut admin, &pids).await;
            let drained = v1::DrainLanesRequest::default();
            admin.drain_lanes(drained).await.unwrap();
            assert_eq!(verify(&mut admin).await.lent, 110, "{step}:{nr}");
        }
    }
    let status = admin.get_status(v1::GetStatusRequest::default()).await;
    assert_eq!(status.unwrap().into_inner().nr_misuses, 0);
    for client in steady {
        assert!(client.end().success());
    }
}

/// Waits until nobody is attached but these.
async fn until_alone(
    admin: &mut v1::admin_client::AdminClient<tonic::transport::Channel>,
    pids: &[u32],
) {
    let end = tokio::time::Instant::now() + support::DEADLINE;
    loop {
        let list = admin.list_clients(v1::ListClientsRequest::default()).await;
        let clients = list.unwrap().into_inner().clients;
        if clients.iter().all(|client| pids.contains(&client.pid)) {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "{clients:?}");
        tokio::task::yield_now().await;
    }
}
