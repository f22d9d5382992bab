//! Sections that come and go by call: what is done, what is refused, what is undone.
//!
//! Seen to fail: an operation whose caller went away that is not cancelled.

mod support;

use hugepool_proto::v1;
use support::Daemon;
use support::grpc::{self, code, verify, want};
use tokio_stream::StreamExt as _;
use tonic::Code;

fn add(zone: &str, count: u32) -> v1::AddSectionsRequest {
    v1::AddSectionsRequest {
        zone: zone.into(),
        count,
        ..Default::default()
    }
}

fn offline(zone: &str, count: u32) -> v1::OfflineSectionsRequest {
    v1::OfflineSectionsRequest {
        zone: zone.into(),
        count,
        ..Default::default()
    }
}

fn remove(ids: &[u32]) -> v1::RemoveSectionsRequest {
    v1::RemoveSectionsRequest {
        section_ids: ids.to_vec(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_section_comes_whole_and_goes_without_a_trace() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let before = verify(&mut admin).await;

    let added = admin
        .add_sections(add("movable", 1))
        .await
        .unwrap()
        .into_inner();
    let [result] = added.results.as_slice() else {
        panic!("one section")
    };
    assert!(result.ok && result.state == "online", "{result:?}");
    let onlined = result.onlined.as_ref().unwrap();
    assert_eq!((onlined.nr_pages, onlined.nr_pageblocks), (1024, 2));
    assert!(
        onlined.blocks_by_order[..9].iter().all(|&nr| nr == 0),
        "{onlined:?}"
    );
    let pages: u64 = (0..)
        .zip(&onlined.blocks_by_order)
        .map(|(order, nr)| nr << order)
        .sum();
    assert_eq!(pages, 1024);
    assert_eq!(verify(&mut admin).await.free, before.free + 1024);

    let gone = admin
        .offline_sections(offline("movable", 1))
        .await
        .unwrap()
        .into_inner();
    assert!(gone.results[0].ok);
    assert_eq!(
        gone.results[0].section_id, result.section_id,
        "the highest goes first"
    );
    let removed = admin
        .remove_sections(remove(&[result.section_id]))
        .await
        .unwrap()
        .into_inner();
    assert!(removed.results[0].ok);
    assert_eq!(verify(&mut admin).await, before);

    let sections = admin
        .list_sections(v1::ListSectionsRequest::default())
        .await
        .unwrap();
    assert_eq!(sections.into_inner().sections.len(), 4);
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_and_changes_nothing() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let before = verify(&mut admin).await;
    let dry = v1::AddSectionsRequest {
        dry_run: true,
        ..add("normal", 2)
    };
    let answer = admin.add_sections(dry).await.unwrap().into_inner();
    assert!(answer.dry_run && answer.results.len() == 2);
    let dry = v1::OfflineSectionsRequest {
        dry_run: true,
        ..offline("normal", 1)
    };
    assert!(
        admin
            .offline_sections(dry)
            .await
            .unwrap()
            .into_inner()
            .results[0]
            .ok
    );
    assert_eq!(verify(&mut admin).await, before);
}

#[tokio::test]
async fn a_section_can_be_added_offline_and_brought_online_page_by_page() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let kept = v1::AddSectionsRequest {
        keep_offline: true,
        ..add("normal", 1)
    };
    let added = admin.add_sections(kept).await.unwrap().into_inner();
    let id = added.results[0].section_id;
    assert_eq!(added.results[0].state, "offline");
    let online = v1::OnlineSectionsRequest {
        section_ids: vec![id],
        online_order: Some(0),
        ..Default::default()
    };
    let answer = admin
        .online_sections(online.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(answer.results[0].ok && answer.results[0].state == "online");
    // Again: harmless.
    assert!(
        admin
            .online_sections(online)
            .await
            .unwrap()
            .into_inner()
            .results[0]
            .ok
    );
    verify(&mut admin).await;
}

#[tokio::test]
async fn an_offline_that_meets_held_pages_ends_in_time_and_names_the_holder() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let lent = pages.alloc_bulk(want(1, 5, 0)).await.unwrap().into_inner();
    let section = lent.runs[0].first_pfn / 1024;
    let before = verify(&mut admin).await;
    let request = v1::OfflineSectionsRequest {
        section_ids: vec![section],
        timeout_ms: 50,
        ..Default::default()
    };
    let answer = admin.offline_sections(request).await.unwrap().into_inner();
    let result = &answer.results[0];
    assert!(!result.ok && result.state == "online", "{result:?}");
    let [holder] = result.holders.as_slice() else {
        panic!("one holder: {result:?}")
    };
    assert_eq!((holder.pid, holder.nr_pages), (std::process::id(), 5));
    assert_eq!(
        verify(&mut admin).await,
        before,
        "a failed offline restores online exactly"
    );
}

#[tokio::test]
async fn an_offline_waits_until_its_pages_come_home() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let lent = pages.alloc_bulk(want(1, 5, 0)).await.unwrap().into_inner();
    let request = v1::OfflineSectionsRequest {
        section_ids: vec![lent.runs[0].first_pfn / 1024],
        timeout_ms: 20_000,
        ..Default::default()
    };
    let mut other = admin.clone();
    let waiting = tokio::spawn(async move { other.offline_sections(request).await });
    // While it waits, it can be seen.
    loop {
        let list = admin
            .list_operations(v1::ListOperationsRequest {})
            .await
            .unwrap()
            .into_inner();
        if list
            .operations
            .iter()
            .any(|op| op.kind == "offline" && op.state == "running")
        {
            break;
        }
        tokio::task::yield_now().await;
    }
    let free = v1::FreeBulkRequest {
        request_id: 2,
        acknowledged: 1,
        runs: lent.runs,
    };
    pages.free_bulk(free).await.unwrap();
    assert!(waiting.await.unwrap().unwrap().into_inner().results[0].ok);
    verify(&mut admin).await;
}

#[tokio::test]
async fn a_detached_offline_is_watched_and_cancelled() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let lent = pages.alloc_bulk(want(1, 5, 0)).await.unwrap().into_inner();
    let before = verify(&mut admin).await;
    let request = v1::OfflineSectionsRequest {
        section_ids: vec![lent.runs[0].first_pfn / 1024],
        timeout_ms: 60_000,
        detach: true,
        ..Default::default()
    };
    let id = admin
        .offline_sections(request)
        .await
        .unwrap()
        .into_inner()
        .operation_id;
    assert!(id > 0);
    let one = v1::GetOperationRequest { id };
    let mut watch = admin.watch_operation(one).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().state, "running");
    admin.cancel_operation(one).await.unwrap();
    let mut last = None;
    while let Some(state) = watch.next().await {
        last = Some(state.unwrap());
    }
    assert_eq!(last.unwrap().state, "cancelled");
    assert_eq!(verify(&mut admin).await, before);
    let report = admin.get_operation(one).await.unwrap().into_inner();
    assert_eq!(
        (report.kind.as_str(), report.state.as_str()),
        ("offline", "cancelled")
    );
}

#[tokio::test]
async fn an_offline_whose_caller_goes_away_is_undone() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let lent = pages.alloc_bulk(want(1, 5, 0)).await.unwrap().into_inner();
    let before = verify(&mut admin).await;
    let request = v1::OfflineSectionsRequest {
        section_ids: vec![lent.runs[0].first_pfn / 1024],
        timeout_ms: 60_000,
        ..Default::default()
    };
    let patience = std::time::Duration::from_millis(50);
    let given_up = tokio::time::timeout(patience, admin.offline_sections(request)).await;
    assert!(given_up.is_err());
    let end = tokio::time::Instant::now() + support::DEADLINE;
    while verify(&mut admin).await != before {
        assert!(
            tokio::time::Instant::now() < end,
            "the offline goes on for nobody"
        );
        // tidy: sleep: between two looks at a condition that has a deadline
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn odd_requests_for_sections_are_refused_with_the_right_code() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let both = v1::AddSectionsRequest {
        section_ids: vec![5],
        ..add("normal", 1)
    };
    let no_order = v1::AddSectionsRequest {
        online_order: Some(3),
        ..add("normal", 1)
    };
    for (request, expected) in [
        (add("dma", 1), Code::NotFound),
        (add("", 1), Code::InvalidArgument),
        (add("normal", 0), Code::InvalidArgument),
        (both, Code::InvalidArgument),
        (no_order, Code::InvalidArgument),
        (add("normal", 1000), Code::ResourceExhausted),
        (add("normal", u32::MAX), Code::InvalidArgument),
    ] {
        assert_eq!(
            code(admin.add_sections(request.clone()).await),
            expected,
            "{request:?}"
        );
    }
    let ids = |ids: &[u32]| v1::OfflineSectionsRequest {
        section_ids: ids.to_vec(),
        timeout_ms: 20,
        ..Default::default()
    };
    assert_eq!(
        code(admin.offline_sections(ids(&[4_000_000])).await),
        Code::NotFound
    );
    assert_eq!(
        code(admin.offline_sections(ids(&[0, 0])).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(admin.offline_sections(ids(&[9])).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        code(admin.remove_sections(remove(&[0])).await),
        Code::FailedPrecondition
    );
    let nothing = v1::GetOperationRequest { id: 77 };
    assert_eq!(code(admin.get_operation(nothing).await), Code::NotFound);
    assert_eq!(code(admin.cancel_operation(nothing).await), Code::NotFound);
    assert_eq!(code(admin.watch_operation(nothing).await), Code::NotFound);
    verify(&mut admin).await;
}
