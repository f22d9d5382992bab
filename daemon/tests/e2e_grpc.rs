//! `Pages` over its socket: right inputs, odd inputs, the code of each refusal; sessions that end.
//!
//! Seen to fail: a connection's close that does not end its session; a call given up while it waits
//! that is not abandoned.

mod support;

use hugepool_proto::v1;
use support::Daemon;
use support::grpc::{self, at_home, code, until_lent, verify, want};
use tonic::{Code, Request};
use tonic_types::StatusExt as _;

#[tokio::test]
async fn the_status_adds_up_and_names_the_sizes() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let status = admin
        .get_status(v1::GetStatusRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(status.pid, daemon.pid());
    assert_eq!(status.state, "running");
    assert_eq!((status.nr_zones, status.nr_clients), (2, 0));
    let geometry = status.geometry.unwrap();
    assert_eq!(geometry.page_size_bytes, 4096);
    assert_eq!(geometry.section_size_bytes, 4 << 20);
    let pages = status.pages.unwrap();
    assert_eq!(pages.present, support::TINY_PAGES);
    assert_eq!(pages, verify(&mut admin).await);
}

#[tokio::test]
async fn zones_and_sections_are_listed_with_what_serves_them() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let zones = admin
        .list_zones(v1::ListZonesRequest {})
        .await
        .unwrap()
        .into_inner()
        .zones;
    let names: Vec<_> = zones
        .iter()
        .map(|zone| (zone.name.as_str(), zone.kind.as_str()))
        .collect();
    assert_eq!(names, [("normal", "normal"), ("movable", "movable")]);
    assert_eq!(zones[1].start_pfn, 16384, "behind the reserve of the first");
    for zone in &zones {
        assert_eq!(zone.reserve_bytes, 64 << 20);
        assert_eq!(zone.backing.len(), 1);
        assert_eq!(
            (
                zone.backing[0].backing.as_str(),
                zone.backing[0].nr_sections
            ),
            ("shm", 2)
        );
    }
    let all = v1::ListSectionsRequest::default();
    let sections = admin
        .list_sections(all)
        .await
        .unwrap()
        .into_inner()
        .sections;
    assert_eq!(sections.len(), 4);
    for section in &sections {
        assert_eq!(
            (section.state.as_str(), section.backing.as_str()),
            ("online", "shm")
        );
        assert_eq!((section.nr_pages, section.incarnation), (1024, 1));
        assert_eq!(section.audit_difference_bytes, 0);
    }
    let one = v1::ListSectionsRequest {
        zone: "movable".into(),
        ..Default::default()
    };
    assert_eq!(
        admin
            .list_sections(one)
            .await
            .unwrap()
            .into_inner()
            .sections
            .len(),
        2
    );
    let none = v1::ListSectionsRequest {
        zone: "dma".into(),
        ..Default::default()
    };
    let refused = admin.list_sections(none).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(
        refused.get_details_resource_info().unwrap().resource_name,
        "dma"
    );
}

#[tokio::test]
async fn a_batch_is_lent_in_runs_and_taken_back() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let before = at_home(&mut admin).await;

    let lent = pages.alloc_bulk(want(1, 65, 0)).await.unwrap().into_inner();
    assert_eq!((lent.nr_pages, lent.shortfall), (65, None));
    assert!(
        lent.runs.len() <= 2,
        "65 pages of an empty zone follow each other: {:?}",
        lent.runs
    );
    assert_eq!(verify(&mut admin).await.lent, 65);

    let free = v1::FreeBulkRequest {
        request_id: 2,
        acknowledged: 1,
        runs: lent.runs.clone(),
    };
    let freed = pages.free_bulk(free.clone()).await.unwrap().into_inner();
    assert_eq!((freed.nr_pages, freed.refused), (65, vec![]));
    assert_eq!(at_home(&mut admin).await, before);

    // The same call again is answered the same; a new one frees twice, and is refused.
    assert_eq!(
        pages
            .free_bulk(free.clone())
            .await
            .unwrap()
            .into_inner()
            .nr_pages,
        65
    );
    let twice = v1::FreeBulkRequest {
        request_id: 3,
        acknowledged: 2,
        ..free
    };
    let refused = pages.free_bulk(twice).await.unwrap().into_inner();
    assert_eq!((refused.nr_pages, refused.refused.len()), (0, 65));
    assert_eq!(refused.refused[0].reason(), v1::refused::Reason::NotYours);
    assert_eq!(at_home(&mut admin).await, before);
}

#[tokio::test]
async fn nothing_is_a_fine_thing_to_ask_for() {
    let daemon = Daemon::tiny();
    let mut pages = grpc::pages(&daemon).await;
    let lent = pages.alloc_bulk(want(1, 0, 0)).await.unwrap().into_inner();
    assert_eq!(
        (lent.nr_pages, lent.runs.len(), lent.shortfall),
        (0, 0, None)
    );
    let none = v1::FreeBulkRequest {
        request_id: 2,
        ..v1::FreeBulkRequest::default()
    };
    assert_eq!(
        pages.free_bulk(none).await.unwrap().into_inner().nr_pages,
        0
    );
}

#[tokio::test]
async fn more_than_is_left_is_answered_with_what_there_is() {
    let daemon = Daemon::tiny();
    let (mut admin, mut first) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let all = first
        .alloc_bulk(want(1, 100_000, 0))
        .await
        .unwrap()
        .into_inner();
    assert!(all.nr_pages > 3000 && all.nr_pages < 100_000);
    let reason = all.shortfall.unwrap().reason.unwrap();
    assert!(
        matches!(reason, v1::shortfall::Reason::ZoneEmpty(_)),
        "{reason:?}"
    );

    let mut second = grpc::pages(&daemon).await;
    let none = second.alloc_bulk(want(1, 1, 0)).await.unwrap().into_inner();
    assert_eq!(none.nr_pages, 0);
    assert!(none.shortfall.is_some());

    // It waits as long as it is told, and no longer.
    let waits = v1::AllocBulkRequest {
        timeout_ms: 50,
        ..want(2, 1, 0)
    };
    let late = second.alloc_bulk(waits).await.unwrap().into_inner();
    let reason = late.shortfall.unwrap().reason.unwrap();
    assert_eq!(
        reason,
        v1::shortfall::Reason::Deadline(v1::shortfall::Deadline { timeout_ms: 50 })
    );
    verify(&mut admin).await;
}

#[tokio::test]
async fn a_call_that_waits_gets_what_another_frees() {
    let daemon = Daemon::tiny();
    let (mut first, mut second) = (grpc::pages(&daemon).await, grpc::pages(&daemon).await);
    let all = first
        .alloc_bulk(want(1, 100_000, 0))
        .await
        .unwrap()
        .into_inner();
    let waits = v1::AllocBulkRequest {
        timeout_ms: 20_000,
        ..want(1, 10, 0)
    };
    let waiting = tokio::spawn(async move { second.alloc_bulk(waits).await });
    let free = v1::FreeBulkRequest {
        request_id: 2,
        acknowledged: 1,
        runs: all.runs,
    };
    first.free_bulk(free).await.unwrap();
    let lent = waiting.await.unwrap().unwrap().into_inner();
    assert_eq!((lent.nr_pages, lent.shortfall), (10, None));
}

#[tokio::test]
async fn a_call_that_is_given_up_keeps_nothing() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let before = at_home(&mut admin).await;
    // All there is is kept for it while it waits for more.
    let waits = v1::AllocBulkRequest {
        timeout_ms: 60_000,
        ..want(1, 100_000, 0)
    };
    let waiting = tokio::time::timeout(
        std::time::Duration::from_millis(50),
        pages.alloc_bulk(waits),
    );
    assert!(
        waiting.await.is_err(),
        "the daemon cannot have had so many pages"
    );
    until_lent(&mut admin, 0).await;
    assert_eq!(at_home(&mut admin).await, before);
}

#[tokio::test]
async fn what_a_connection_was_lent_goes_home_when_it_closes() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let before = at_home(&mut admin).await;
    let mut pages = grpc::pages(&daemon).await;
    pages.alloc_bulk(want(1, 300, 0)).await.unwrap();
    pages.alloc_bulk(want(2, 2, 9)).await.unwrap();
    assert_eq!(verify(&mut admin).await.lent, 300 + 1024);
    drop(pages);
    until_lent(&mut admin, 0).await;
    assert_eq!(at_home(&mut admin).await, before);
}

#[tokio::test]
async fn one_connection_cannot_free_what_another_was_lent() {
    let daemon = Daemon::tiny();
    let (mut admin, mut owner) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let lent = owner.alloc_bulk(want(1, 8, 0)).await.unwrap().into_inner();
    let mut thief = grpc::pages(&daemon).await;
    let free = v1::FreeBulkRequest {
        request_id: 1,
        runs: lent.runs.clone(),
        ..Default::default()
    };
    let answer = thief.free_bulk(free).await.unwrap().into_inner();
    assert_eq!((answer.nr_pages, answer.refused.len()), (0, 8));
    assert_eq!(verify(&mut admin).await.lent, 8);
    let status = admin
        .get_status(v1::GetStatusRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(status.nr_misuses > 0, "a wrong claim is counted");
}

#[tokio::test]
async fn claims_that_are_nonsense_are_refused_block_by_block() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let lent = pages
        .alloc_bulk(want(1, 1, 3))
        .await
        .unwrap()
        .into_inner()
        .runs[0];
    let wrong = [
        v1::Run {
            first_pfn: u32::MAX,
            nr_pages: 3,
            ..lent
        },
        v1::Run {
            first_pfn: lent.first_pfn + 1,
            order: 0,
            ..lent
        },
        v1::Run { order: 2, ..lent },
        v1::Run {
            order: u32::MAX,
            ..lent
        },
        v1::Run {
            generation: lent.generation.wrapping_add(1),
            ..lent
        },
        v1::Run {
            nr_pages: 0,
            ..lent
        },
    ];
    for (index, run) in wrong.into_iter().enumerate() {
        let request_id = 2 + index as u64;
        let free = v1::FreeBulkRequest {
            request_id,
            acknowledged: 1,
            runs: vec![run],
        };
        match pages.free_bulk(free).await {
            Ok(answer) => assert_eq!(answer.into_inner().nr_pages, 0, "{run:?}"),
            Err(status) => assert_eq!(status.code(), Code::InvalidArgument, "{run:?}"),
        }
    }
    assert_eq!(verify(&mut admin).await.lent, 8);
    let right = v1::FreeBulkRequest {
        request_id: 100,
        acknowledged: 50,
        runs: vec![lent],
    };
    assert_eq!(
        pages.free_bulk(right).await.unwrap().into_inner().nr_pages,
        1
    );
}

#[tokio::test]
async fn odd_requests_for_pages_are_refused_with_the_right_code() {
    let daemon = Daemon::tiny();
    let mut pages = grpc::pages(&daemon).await;
    for (request, expected) in [
        (want(1, 1, 11), Code::InvalidArgument),
        (want(1, 1, u32::MAX), Code::InvalidArgument),
        (want(1, u32::MAX, 0), Code::InvalidArgument),
        (
            v1::AllocBulkRequest {
                zone: "dma".into(),
                ..want(1, 1, 0)
            },
            Code::NotFound,
        ),
        (
            v1::AllocBulkRequest {
                migratetype: 9,
                ..want(1, 1, 0)
            },
            Code::InvalidArgument,
        ),
        (
            v1::AllocBulkRequest {
                timeout_ms: u32::MAX,
                ..want(1, 1, 0)
            },
            Code::InvalidArgument,
        ),
        (
            v1::AllocBulkRequest {
                zone: "movable".into(),
                migratetype: 1,
                ..want(1, 1, 0)
            },
            Code::InvalidArgument,
        ),
    ] {
        assert_eq!(
            code(pages.alloc_bulk(request.clone()).await),
            expected,
            "{request:?}"
        );
    }
}

#[tokio::test]
async fn a_token_that_is_not_the_callers_is_unauthenticated() {
    let daemon = Daemon::tiny();
    let mut pages = grpc::pages(&daemon).await;
    for token in [
        "",
        "00",
        "zz",
        &"0".repeat(32),
        &"0".repeat(33),
        &"f".repeat(4000),
    ] {
        let mut request = Request::new(want(1, 1, 0));
        request
            .metadata_mut()
            .insert(hugepool_proto::SESSION_KEY, token.parse().unwrap());
        assert_eq!(
            code(pages.alloc_bulk(request).await),
            Code::Unauthenticated,
            "{token}"
        );
    }
}

#[tokio::test]
async fn a_request_id_is_answered_once() {
    let daemon = Daemon::tiny();
    let (mut admin, mut pages) = (grpc::admin(&daemon).await, grpc::pages(&daemon).await);
    let first = pages.alloc_bulk(want(1, 10, 0)).await.unwrap().into_inner();
    let again = pages.alloc_bulk(want(1, 10, 0)).await.unwrap().into_inner();
    assert_eq!(first, again);
    assert_eq!(verify(&mut admin).await.lent, 10);
    // Given up: what was lent for it goes home with the next call.
    let next = v1::AllocBulkRequest {
        abandoned: vec![1],
        ..want(2, 1, 0)
    };
    pages.alloc_bulk(next).await.unwrap();
    assert_eq!(verify(&mut admin).await.lent, 1);
}

#[tokio::test]
async fn a_message_beyond_four_mebibytes_is_refused_and_the_daemon_goes_on() {
    let daemon = Daemon::tiny();
    let mut pages = grpc::pages(&daemon).await;
    let abandoned: Vec<u64> = (0..1 << 20).map(|id| u64::MAX - id).collect();
    let large = v1::AllocBulkRequest {
        abandoned,
        ..want(1, 1, 0)
    };
    let refused = code(pages.alloc_bulk(large).await);
    assert!(
        matches!(refused, Code::OutOfRange | Code::ResourceExhausted),
        "{refused:?}"
    );
    let mut pages = grpc::pages(&daemon).await;
    assert_eq!(
        pages
            .alloc_bulk(want(1, 1, 0))
            .await
            .unwrap()
            .into_inner()
            .nr_pages,
        1
    );
}
