//! Floors, ceilings and quarantine as an operator sets them: in the file, and live.
//!
//! Seen to fail: without the limits of the file set at the start, with a quarantine that the
//! configuration does not reach.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use hugepool_proto::v1;
use support::Daemon;
use support::grpc::{self, code, until_lent, verify, want};
use support::victim::{Victim, play};
use tonic::Code;

/// Not a test: the part of a process that a test here has started.
#[test]
fn victim() {
    play();
}

/// A daemon of this configuration, of two zones of 16 MiB.
fn configured(normal: &str, movable: &str, more: &str) -> (Daemon, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hugepoold.toml");
    let text = format!(
        "[geometry]\nsection_size = \"4MiB\"\n\
         [[zone]]\nname = \"normal\"\nsize = \"16MiB\"\nreserve = \"64MiB\"\nbacking = \"shm\"\n{normal}\n\
         [[zone]]\nname = \"movable\"\nkind = \"movable\"\nsize = \"16MiB\"\nreserve = \"64MiB\"\nbacking = \"shm\"\n{movable}\n\
         {more}\n"
    );
    std::fs::write(&path, text).unwrap();
    let daemon = Daemon::start(&["--config", path.to_str().unwrap()]);
    (daemon, dir)
}

fn floor(uid: u32, floor_pages: u64) -> v1::SetLimitsRequest {
    v1::SetLimitsRequest {
        uid: Some(uid),
        zone: "normal".into(),
        floor_pages,
        ..v1::SetLimitsRequest::default()
    }
}

#[tokio::test]
async fn a_floor_is_kept_for_its_user_and_never_promised_twice() {
    let (daemon, _dir) = configured(
        "floor = \"8MiB\"\nceiling = \"14MiB\"",
        "",
        "[[limit]]\nuid = 4242\nzone = \"normal\"\nfloor = \"4MiB\"",
    );
    let mut admin = grpc::admin(&daemon).await;
    let limits = admin.list_limits(v1::ListLimitsRequest {}).await.unwrap();
    let limits = limits.into_inner().limits;
    let rows: Vec<_> = limits
        .iter()
        .map(|l| {
            (
                l.whom.as_str(),
                l.uid,
                l.zone.as_str(),
                l.floor_pages,
                l.ceiling_pages,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("zone", None, "normal", 2048, Some(3584)),
            ("user", Some(4242), "normal", 1024, None)
        ]
    );
    // What is kept for another user is not ours, however we ask.
    let mut pages = grpc::pages(&daemon).await;
    let all = v1::AllocBulkRequest {
        zone: "normal".into(),
        ..want(1, 4096, 0)
    };
    let lent = pages.alloc_bulk(all).await.unwrap().into_inner();
    let zones = admin.list_zones(v1::ListZonesRequest {}).await.unwrap();
    let min = zones.into_inner().zones[0].watermarks.unwrap().min;
    assert_eq!(u64::from(lent.nr_pages), 4096 - 1024 - min);
    // More than there is is refused, with the sum; what is there already stays.
    let refusal = admin.set_limits(floor(4243, 3072)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    let sum = format!("would be {} pages, it can keep {}", 1024 + 3072, 4096 - min);
    assert!(refusal.message().contains(&sum), "{}", refusal.message());
    admin.set_limits(floor(4242, 0)).await.unwrap();
    let more = v1::AllocBulkRequest {
        zone: "normal".into(),
        ..want(2, 4096, 0)
    };
    let more = pages.alloc_bulk(more).await.unwrap().into_inner();
    let quota = v1::shortfall::Quota {
        owned_pages: 3584,
        ceiling_pages: 3584,
    };
    assert_eq!(more.nr_pages, 3584 - lent.nr_pages);
    let reason = more.shortfall.unwrap().reason.unwrap();
    assert_eq!(reason, v1::shortfall::Reason::Quota(quota));
    verify(&mut admin).await;
}

#[tokio::test]
async fn limits_that_make_no_sense_are_named() {
    let daemon = Daemon::tiny();
    let mut admin = grpc::admin(&daemon).await;
    let bad = [
        v1::SetLimitsRequest {
            zone: String::new(),
            ..floor(1, 5)
        },
        v1::SetLimitsRequest {
            ceiling_pages: Some(4),
            ..floor(1, 5)
        },
        v1::SetLimitsRequest {
            slot: Some(1),
            ..floor(1, 5)
        },
        v1::SetLimitsRequest {
            whole_zone: true,
            ..v1::SetLimitsRequest::default()
        },
    ];
    for request in bad {
        let what = format!("{request:?}");
        let code = code(admin.set_limits(request).await);
        assert_eq!(code, Code::InvalidArgument, "{what}");
    }
    let unknown = v1::SetLimitsRequest {
        zone: "dma".into(),
        ..floor(1, 5)
    };
    assert_eq!(code(admin.set_limits(unknown).await), Code::NotFound);
}

#[tokio::test]
async fn offline_leaves_what_floors_need() {
    let (daemon, _dir) = configured("floor = \"12MiB\"", "", "");
    let mut admin = grpc::admin(&daemon).await;
    let offline = |count| v1::OfflineSectionsRequest {
        zone: "normal".into(),
        count,
        ..v1::OfflineSectionsRequest::default()
    };
    admin.offline_sections(offline(1)).await.unwrap();
    let refused = admin
        .offline_sections(offline(1))
        .await
        .unwrap()
        .into_inner();
    let result = &refused.results[0];
    assert!(!result.ok && result.state == "online" && result.reason.contains("must stay"));
    let pages = verify(&mut admin).await;
    assert_eq!(pages.managed, 3 * 1024 + 4096);
}

#[tokio::test]
async fn pages_of_the_killed_wait_until_they_are_released() {
    let (daemon, _dir) = configured("", "quarantine = \"until-released\"", "");
    let mut admin = grpc::admin(&daemon).await;
    let mut victim = Victim::start(&daemon, "half 300");
    victim.line();
    let lent = verify(&mut admin).await.lent;
    assert!(lent >= 300);
    victim.kill();
    until_lent(&mut admin, 0).await;
    let zones = admin.list_zones(v1::ListZonesRequest {}).await.unwrap();
    let zone = zones.into_inner().zones.remove(1);
    let waiting = zone.quarantined_pages;
    assert!(waiting > 0 && waiting <= lent);
    assert_eq!(zone.pages.unwrap().isolated, waiting);
    let clients = admin.list_clients(v1::ListClientsRequest {}).await.unwrap();
    let dead = clients.into_inner().clients.remove(0);
    assert_eq!(dead.state, "quarantined");
    let release = v1::ReleaseQuarantinedRequest {
        slot: Some(dead.slot),
        zone: "movable".into(),
    };
    let released = admin.release_quarantined(release).await.unwrap();
    assert_eq!(released.into_inner().nr_pages, waiting);
    let clients = admin.list_clients(v1::ListClientsRequest {}).await.unwrap();
    assert_eq!(clients.into_inner().clients, []);
    assert_eq!(verify(&mut admin).await.isolated, 0);
}
