//! The contiguity caches of a running daemon: which of them answers, and what a hot event or an
//! administrator makes them forget.
//!
//! Seen to fail: a hot event after which the zone is not asked again, a mode `both` that does not ask the
//! zone, and pageblocks that are not forgotten.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use hugepool_proto::v1;
use hugepool_proto::v1::admin_client::AdminClient;
use support::Daemon;
use support::grpc::{self, verify, want};
use tempfile::TempDir;
use tonic::transport::Channel;

/// Two zones, of eight sections and of two; a section is two pageblocks.
const ZONES: &[&str] = &[
    "--section-size",
    "4MiB",
    "--zone",
    "movable=32MiB,kind=movable,reserve=64MiB,backing=shm",
    "--zone",
    "normal=8MiB,reserve=64MiB,backing=shm",
];

/// A daemon with these caches in use, and the folder of its configuration.
fn start(mode: &str) -> (Daemon, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hugepoold.toml");
    let text = format!("[compaction]\ncontiguity = '{mode}'\nproactiveness = 0\n");
    std::fs::write(&file, text).unwrap();
    let arguments = [&["--config", file.to_str().unwrap()], ZONES].concat();
    (Daemon::start(&arguments), folder)
}

/// One run over a zone: each of its pageblocks is asked about.
async fn compact(admin: &mut AdminClient<Channel>, zone: &str) -> u64 {
    let request = v1::CompactRequest {
        zone: zone.to_owned(),
        ..v1::CompactRequest::default()
    };
    let done = admin.compact(request).await.unwrap().into_inner();
    done.nr_contiguity_checks
}

/// Something to move in both zones, so that the scanners have a way to go.
async fn lend(daemon: &Daemon) {
    let mut pages = grpc::pages(daemon).await;
    for (request, zone) in [(1, "movable"), (2, "normal")] {
        let mut asked = want(request, 700, 0);
        asked.zone = zone.to_owned();
        asked.migratetype = v1::Migratetype::Movable.into();
        let lent = pages.alloc_bulk(asked).await.unwrap().into_inner();
        assert_eq!(lent.nr_pages, 700);
    }
}

async fn shown(admin: &mut AdminClient<Channel>) -> [v1::ZoneContiguity; 2] {
    let request = v1::GetContiguityRequest::default();
    let zones = admin
        .get_contiguity(request)
        .await
        .unwrap()
        .into_inner()
        .zones;
    zones.try_into().unwrap()
}

async fn invalidate(
    admin: &mut AdminClient<Channel>,
    zone: &str,
) -> v1::InvalidateContiguityResponse {
    let zone = zone.to_owned();
    let request = v1::InvalidateContiguityRequest { zone };
    let answer = admin.invalidate_contiguity(request).await;
    answer.unwrap().into_inner()
}

/// Pageblocks whose bit is set, counted from the first of the span.
fn blocks(bits: &[u8]) -> Vec<usize> {
    let is_set = |at: &usize| bits[at / 8] >> (at % 8) & 1 == 1;
    (0..bits.len() * 8).filter(is_set).collect()
}

#[tokio::test]
async fn each_cache_answers_where_it_is_in_use() {
    for (mode, by_zone, by_pageblock) in [
        ("none", false, false),
        ("zone", true, false),
        ("pageblock", false, true),
        ("both", true, true),
    ] {
        let (daemon, _folder) = start(mode);
        let mut admin = grpc::admin(&daemon).await;
        lend(&daemon).await;
        let asked = compact(&mut admin, "movable").await;
        let [first, other] = shown(&mut admin).await;
        assert_eq!((first.mode.as_str(), other.mode.as_str()), (mode, mode));
        assert!(asked > 0 && first.contiguous, "{mode}: {first:?}");
        // The zone knew from the start; a pageblock that nobody asked about does not.
        let (hits, misses) = if by_zone { (asked, 0) } else { (0, asked) };
        let answered = (first.nr_hits, first.nr_misses, first.nr_walks);
        assert!(
            by_pageblock && !by_zone || answered == (hits, misses, misses),
            "{mode}: {answered:?} of {asked}"
        );
        assert_eq!(first.nr_hits + first.nr_misses, asked, "{mode}: {first:?}");
        assert_eq!(
            (other.nr_hits, other.nr_misses),
            (0, 0),
            "{mode}: {other:?}"
        );

        // Once more: what is in use knows all of it now.
        let again = compact(&mut admin, "movable").await;
        let [now, _] = shown(&mut admin).await;
        let nr_walks = now.nr_walks - first.nr_walks;
        assert_eq!(
            nr_walks,
            if by_zone || by_pageblock { 0 } else { again },
            "{mode}"
        );
        assert_eq!(
            now.nr_pb_cached > 0,
            by_pageblock && !by_zone,
            "{mode}: {now:?}"
        );

        // Without the zone's answer it is the pageblocks' turn, or an honest look's.
        invalidate(&mut admin, "movable").await;
        let asked = compact(&mut admin, "movable").await;
        let [last, _] = shown(&mut admin).await;
        let nr_walks = last.nr_walks - now.nr_walks;
        assert!(
            nr_walks > 0 && nr_walks <= asked,
            "{mode}: {nr_walks} of {asked}"
        );
        assert_eq!(last.nr_pb_cached > 0, by_pageblock, "{mode}: {last:?}");
        verify(&mut admin).await;
    }
}

#[tokio::test]
async fn one_zone_forgets_and_the_other_does_not() {
    let (daemon, _folder) = start("pageblock");
    let mut admin = grpc::admin(&daemon).await;
    lend(&daemon).await;
    for zone in ["movable", "normal"] {
        compact(&mut admin, zone).await;
    }
    let [movable, normal] = shown(&mut admin).await;
    assert!(movable.nr_pb_cached > 0 && normal.nr_pb_cached > 0);
    let cleared = invalidate(&mut admin, "normal").await;
    assert_eq!(cleared.nr_zones, 1);
    assert_eq!(cleared.nr_pageblocks_cleared, normal.nr_pb_cached);
    let [still, gone] = shown(&mut admin).await;
    assert_eq!(still, movable);
    assert!(!gone.contiguous && gone.nr_pb_cached == 0, "{gone:?}");
    assert_eq!(blocks(&gone.pb_cached), []);
}

#[tokio::test]
async fn a_hot_event_takes_the_bits_of_its_own_pageblocks() {
    let (daemon, _folder) = start("pageblock");
    let mut admin = grpc::admin(&daemon).await;
    lend(&daemon).await;
    compact(&mut admin, "movable").await;
    let [before, other] = shown(&mut admin).await;
    assert_eq!((before.nr_pageblocks, before.first_pfn), (16, 0));
    let known = blocks(&before.pb_cached);
    // Both of the first section are known, and one at least of the last and of the middle's.
    assert!(known.starts_with(&[0, 1]), "{known:?}");
    assert!(
        known.contains(&10) && known.iter().any(|at| *at >= 14),
        "{known:?}"
    );
    assert_eq!(blocks(&before.pb_contiguous), known);

    let last = vec![7];
    let offline = v1::OfflineSectionsRequest {
        section_ids: last.clone(),
        ..v1::OfflineSectionsRequest::default()
    };
    let gone = admin.offline_sections(offline).await.unwrap().into_inner();
    assert!(gone.results[0].ok, "{gone:?}");
    let of_others: Vec<usize> = known.iter().copied().filter(|at| *at < 14).collect();
    let [offline, _] = shown(&mut admin).await;
    assert_eq!(blocks(&offline.pb_cached), of_others);
    assert!(
        !offline.contiguous,
        "it is there, and not online: {offline:?}"
    );

    let remove = v1::RemoveSectionsRequest {
        section_ids: last.clone(),
        ..v1::RemoveSectionsRequest::default()
    };
    admin.remove_sections(remove).await.unwrap();
    let [removed, _] = shown(&mut admin).await;
    assert_eq!((removed.nr_pageblocks, removed.contiguous), (14, true));
    let add = v1::AddSectionsRequest {
        section_ids: last,
        zone: "movable".to_owned(),
        ..v1::AddSectionsRequest::default()
    };
    admin.add_sections(add).await.unwrap();
    let [back, same] = shown(&mut admin).await;
    assert_eq!(
        blocks(&back.pb_cached),
        of_others,
        "what comes is not known"
    );
    assert_eq!((back.nr_pageblocks, back.contiguous), (16, true));
    assert_eq!(same, other);

    // A section that goes from the middle leaves a hole, and the zone says so.
    let middle = v1::OfflineSectionsRequest {
        section_ids: vec![5],
        ..v1::OfflineSectionsRequest::default()
    };
    let gone = admin.offline_sections(middle).await.unwrap().into_inner();
    assert!(gone.results[0].ok, "{gone:?}");
    let [holed, _] = shown(&mut admin).await;
    assert!(!holed.contiguous, "{holed:?}");
    let elsewhere: Vec<usize> = of_others.into_iter().filter(|at| at / 2 != 5).collect();
    assert_eq!(blocks(&holed.pb_cached), elsewhere);
    verify(&mut admin).await;
}
