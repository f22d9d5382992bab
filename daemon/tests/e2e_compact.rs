//! Compaction over gRPC: asked for by an administrator, and had done for a call that waits, while
//! clients hold the pages that move.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::time::Duration;

use hugepool::{Client, MovablePage, Options, Order, Shortfall};
use hugepool_proto::v1;
use hugepool_proto::v1::admin_client::AdminClient;
use support::Daemon;
use support::grpc::{self, verify};
use tonic::Code;
use tonic::transport::Channel;

/// One movable zone of eight sections of 4 MiB, two pageblocks each.
const ZONES: &[&str] = &[
    "--section-size",
    "4MiB",
    "--zone",
    "movable=32MiB,kind=movable,reserve=64MiB,backing=shm",
];
const PAGEBLOCK_ORDER: u8 = 9;

/// A client that holds every other page of the zone, each with a mark in it, in an order that
/// leaves no large block free.
fn scatter(daemon: &Daemon) -> (Client, Vec<MovablePage>) {
    let client = Client::attach(Options::default().runtime_dir(daemon.path())).unwrap();
    let mut pages: Vec<MovablePage> = Vec::new();
    loop {
        let bulk = client.request().alloc_movable_bulk(64, &mut pages);
        if bulk.populated == 0 {
            break;
        }
    }
    let mut at = 0;
    pages.retain(|page| {
        at += 1;
        page.pin().unwrap().pfn() % 2 == 0
    });
    assert!(at > 7000, "{at} pages were had");
    for (mark, page) in (1_u64..).zip(&mut pages) {
        page.pin_mut().unwrap()[..8].copy_from_slice(&mark.to_le_bytes());
    }
    (client, pages)
}

#[track_caller]
fn check(pages: &[MovablePage]) {
    for (mark, page) in (1_u64..).zip(pages) {
        assert_eq!(page.pin().unwrap()[..8], mark.to_le_bytes());
    }
}

async fn compact(
    admin: &mut AdminClient<Channel>,
    request: v1::CompactRequest,
) -> Result<v1::CompactResponse, tonic::Status> {
    let answer = admin.compact(request).await?;
    Ok(answer.into_inner())
}

async fn free_blocks(admin: &mut AdminClient<Channel>) -> Vec<u64> {
    let info = admin.get_buddy_info(v1::GetBuddyInfoRequest::default());
    info.await.unwrap().into_inner().zones[0]
        .free_blocks_by_order
        .clone()
}

#[tokio::test]
async fn a_zone_is_packed_on_demand_and_says_what_it_took() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    let (_client, pages) = scatter(&daemon);
    let request = || v1::CompactRequest {
        zone: "movable".to_owned(),
        ..v1::CompactRequest::default()
    };
    let done = compact(&mut admin, request()).await.unwrap();
    assert_eq!(done.ended, "reached");
    assert!(done.nr_migrated > 1000, "{done:?}");
    assert!(done.nr_blocks_made >= 6, "{done:?}");
    assert!(
        done.nr_contiguity_checks >= 16 && done.seconds > 0.0,
        "{done:?}"
    );
    let blocks = free_blocks(&mut admin).await;
    assert!(blocks[9] + 2 * blocks[10] >= 6, "{blocks:?}");
    check(&pages);
    verify(&mut admin).await;

    // By operation: begun, seen, and what it came to.
    let mut detached = request();
    detached.detach = true;
    let begun = compact(&mut admin, detached).await.unwrap();
    let id = begun.operation_id;
    let mut watch = admin.watch_operation(v1::GetOperationRequest { id });
    let mut last = watch.await.unwrap().into_inner();
    let mut state = v1::Operation::default();
    while let Some(next) = last.message().await.unwrap() {
        state = next;
    }
    assert_eq!(
        (state.kind.as_str(), state.state.as_str()),
        ("compact", "done")
    );
    assert_eq!(state.compacted.unwrap().nr_migrated, 0, "it was packed");
    watch = admin.watch_operation(v1::GetOperationRequest { id: 99_999 });
    assert_eq!(watch.await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn contiguity_caches_are_used_as_configured() {
    for (mode, is_cached) in [("none", false), ("pageblock", true)] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hugepoold.toml");
        let text = format!("[compaction]\ncontiguity = '{mode}'\nproactiveness = 0\n");
        std::fs::write(&file, text).unwrap();
        let mut arguments = vec!["--config", file.to_str().unwrap()];
        arguments.extend(ZONES);
        let daemon = Daemon::start(&arguments);
        let mut admin = grpc::admin(&daemon).await;
        let (_client, pages) = scatter(&daemon);
        for _ in 0..2 {
            let done = compact(&mut admin, v1::CompactRequest::default()).await;
            assert_eq!(done.unwrap().ended, "reached");
        }
        let asked = admin.get_contiguity(v1::GetContiguityRequest::default());
        let zone = asked.await.unwrap().into_inner().zones.remove(0);
        assert_eq!(zone.mode, mode);
        assert!(zone.nr_walks > 0, "{zone:?}");
        assert_eq!(zone.nr_hits > 0, is_cached, "{zone:?}");
        check(&pages);
        verify(&mut admin).await;
    }
}

#[tokio::test]
async fn nonsense_is_refused_by_name() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    type Change = fn(&mut v1::CompactRequest);
    let cases: [(Change, Code, &str); 3] = [
        (
            |r| r.mode = "hard".into(),
            Code::InvalidArgument,
            "manual, sync, async",
        ),
        (
            |r| r.order = Some(11),
            Code::InvalidArgument,
            "order is at most 10, not 11",
        ),
        (|r| r.zone = "dma".into(), Code::NotFound, "dma"),
    ];
    for (change, code, part) in cases {
        let mut request = v1::CompactRequest::default();
        change(&mut request);
        let status = compact(&mut admin, request).await.unwrap_err();
        assert_eq!(status.code(), code);
        assert!(status.message().contains(part), "{status}");
    }
    // Nothing to be done is done.
    let done = compact(&mut admin, v1::CompactRequest::default())
        .await
        .unwrap();
    assert_eq!((done.ended.as_str(), done.nr_migrated), ("reached", 0));
}

#[tokio::test]
async fn a_call_that_waits_gets_a_large_block_out_of_scattered_memory() {
    let daemon = Daemon::start(ZONES);
    let mut admin = grpc::admin(&daemon).await;
    let (_client, pages) = scatter(&daemon);
    let blocks = free_blocks(&mut admin).await;
    assert_eq!(blocks[9] + blocks[10], 0, "{blocks:?}");
    let other = Client::attach(Options::default().runtime_dir(daemon.path())).unwrap();
    let order = Order::new(PAGEBLOCK_ORDER).unwrap();
    let large = tokio::task::spawn_blocking(move || {
        let request = other
            .with_order(order)
            .with_deadline(Duration::from_secs(20));
        let block = request
            .alloc_movable()
            .map_err(|why: Shortfall| why.to_string());
        block.map(|block| block.order())
    });
    assert_eq!(large.await.unwrap(), Ok(9));
    check(&pages);
    verify(&mut admin).await;
    let done = admin
        .list_operations(v1::ListOperationsRequest {})
        .await
        .unwrap();
    let done = done.into_inner().operations;
    assert!(
        done.iter().any(|operation| operation.kind == "compact"),
        "{done:?}"
    );
}
