//! A section that is to leave: what is foreseen is what happens.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use hugepool::{Client, MovablePage, Options};
use hugepool_proto::v1;
use support::Daemon;
use support::grpc::{self, verify};

/// The section that a page lies in.
fn section_of(page: &MovablePage) -> u32 {
    page.pin().unwrap().pfn() / 1024
}

fn attach(daemon: &Daemon) -> Client {
    Client::attach(Options::default().runtime_dir(daemon.path())).unwrap()
}

/// So many movable pages of a client's, with a mark in each.
fn hold(client: &Client, count: usize) -> Vec<MovablePage> {
    let mut pages: Vec<MovablePage> = Vec::new();
    while pages.len() < count {
        let missing = count - pages.len();
        let bulk = client.request().alloc_movable_bulk(missing, &mut pages);
        assert!(bulk.populated > 0, "{bulk:?}");
    }
    for (mark, page) in (1_u64..).zip(&mut pages) {
        page.pin_mut().unwrap()[..8].copy_from_slice(&mark.to_le_bytes());
    }
    pages
}

#[track_caller]
fn check(pages: &[MovablePage]) {
    for (mark, page) in (1_u64..).zip(pages) {
        assert_eq!(page.pin().unwrap()[..8], mark.to_le_bytes());
    }
}

fn offline(section: u32) -> v1::OfflineSectionsRequest {
    v1::OfflineSectionsRequest {
        section_ids: vec![section],
        ..Default::default()
    }
}

/// What a dry run says is what happens, and it changes nothing itself. Seen to fail with what is held
/// left out of the foresight, and with movable pages foreseen as held.
#[tokio::test]
async fn a_dry_run_foresees_who_would_hold_a_section_and_who_would_not() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let mut pages = grpc::pages(&daemon).await;
    let lent = pages.alloc_bulk(v1::AllocBulkRequest {
        request_id: 1,
        nr_pages: 3,
        order: 2,
        zone: "normal".into(),
        ..Default::default()
    });
    let held = lent.await.unwrap().into_inner().runs[0].first_pfn / 1024;
    let client = attach(&daemon);
    let movable = hold(&client, 700);
    let moving = section_of(&movable[0]);
    let before = verify(&mut admin).await;
    for (section, is_held) in [(held, true), (moving, false)] {
        let dry = v1::OfflineSectionsRequest {
            dry_run: true,
            ..offline(section)
        };
        let answer = admin.offline_sections(dry).await.unwrap().into_inner();
        assert!(answer.dry_run && answer.operation_id == 0, "{answer:?}");
        let [foreseen] = answer.results.as_slice() else {
            panic!("{answer:?}")
        };
        assert_eq!((foreseen.ok, foreseen.state.as_str()), (!is_held, "online"));
        assert_eq!(verify(&mut admin).await, before, "nothing has changed");
        if is_held {
            assert!(foreseen.reason.contains("12 pages"), "{foreseen:?}");
            let [holder] = foreseen.holders.as_slice() else {
                panic!("{foreseen:?}")
            };
            assert_eq!((holder.pid, holder.nr_pages), (std::process::id(), 12));
            assert_eq!(holder.blocks_by_order[2], 3);
            assert_eq!(holder.migratetype(), v1::Migratetype::Unmovable);
        }
        let real = v1::OfflineSectionsRequest {
            timeout_ms: if is_held { 50 } else { 20_000 },
            ..offline(section)
        };
        let done = admin.offline_sections(real).await.unwrap().into_inner();
        assert_eq!(done.results[0].ok, !is_held, "as foreseen: {done:?}");
    }
    check(&movable);
    verify(&mut admin).await;
}
