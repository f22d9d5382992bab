//! What a client can do to the memory of a zone whose file it was passed, and what it cannot.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::os::fd::{AsFd, OwnedFd};

use hugepool_proto::v1;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use support::grpc::{self, verify};
use support::{Daemon, raw};

const SECTION: i64 = 4 << 20;

/// Bytes that are really allocated in a file.
fn allocated(file: &OwnedFd) -> i64 {
    nix::sys::stat::fstat(file).unwrap().st_blocks * 512
}

fn punch(file: &impl AsFd, offset: i64, len: i64) {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, flags, offset, len).unwrap();
}

async fn sections(daemon: &Daemon) -> Vec<v1::Section> {
    let mut admin = grpc::admin(daemon).await;
    let all = v1::ListSectionsRequest::default();
    admin
        .list_sections(all)
        .await
        .unwrap()
        .into_inner()
        .sections
}

/// The sections with a finding, once there is one: a zone that the daemon is looking through of
/// itself at this moment is left out of an answer.
async fn until_found(daemon: &Daemon) -> Vec<v1::Section> {
    let end = tokio::time::Instant::now() + support::DEADLINE;
    loop {
        let mut found = sections(daemon).await;
        found.retain(|section| section.audit_difference_bytes != 0);
        if !found.is_empty() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "nothing is found");
    }
}

#[tokio::test]
async fn memory_taken_behind_the_daemons_back_is_given_back() {
    let daemon = Daemon::tiny();
    let place = raw::attach(&daemon);
    let zone = &place.fds[2];
    assert_eq!(allocated(zone), 2 * SECTION);
    fallocate(zone, FallocateFlags::empty(), 5 * SECTION, SECTION).unwrap();
    // The daemon looks at each question, and now and then of itself: then it is punched already.
    let end = tokio::time::Instant::now() + support::DEADLINE;
    while allocated(zone) != 2 * SECTION {
        sections(&daemon).await;
        assert!(
            tokio::time::Instant::now() < end,
            "what is nobody's is not punched"
        );
    }
    verify(&mut grpc::admin(&daemon).await).await;
}

#[tokio::test]
async fn memory_punched_behind_the_daemons_back_is_named_and_filled_again() {
    let daemon = Daemon::tiny();
    let place = raw::attach(&daemon);
    let zone = &place.fds[3];
    punch(zone, SECTION + (1 << 20), 2 << 20);
    let found = until_found(&daemon).await;
    let [section] = found.as_slice() else {
        panic!("one section: {found:?}")
    };
    assert_eq!((section.zone.as_str(), section.id), ("movable", 17));
    assert_eq!(section.audit_difference_bytes, -(2 << 20));
    assert_eq!(allocated(zone), 2 * SECTION);
    // It stays on record for the section's life, and is not counted twice.
    let again = until_found(&daemon).await;
    assert_eq!(again[0].audit_difference_bytes, -(2 << 20));
}

#[test]
fn a_zones_file_cannot_be_cut_or_grown_by_a_client() {
    let daemon = Daemon::tiny();
    let place = raw::attach(&daemon);
    for file in [&place.fds[0], &place.fds[2], &place.fds[3]] {
        for len in [0, 4096, 1 << 42] {
            assert_eq!(
                nix::unistd::ftruncate(file, len),
                Err(Errno::EPERM),
                "{len}"
            );
        }
    }
}

#[tokio::test]
async fn a_removed_section_takes_no_memory_and_comes_back_empty() {
    let daemon = Daemon::tiny();
    let place = raw::attach(&daemon);
    let zone = &place.fds[2];
    nix::sys::uio::pwrite(zone, b"old bytes", SECTION).unwrap();
    let mut admin = grpc::admin(&daemon).await;
    let ids = vec![1];
    let offline = v1::OfflineSectionsRequest {
        section_ids: ids.clone(),
        ..Default::default()
    };
    admin.offline_sections(offline).await.unwrap();
    assert_eq!(allocated(zone), 2 * SECTION, "offline is not gone");
    let remove = v1::RemoveSectionsRequest {
        section_ids: ids.clone(),
        ..Default::default()
    };
    admin.remove_sections(remove).await.unwrap();
    assert_eq!(allocated(zone), SECTION);
    // Somebody writes into the hole; what comes back must be zero all the same.
    nix::sys::uio::pwrite(zone, b"stray bytes", SECTION + 4096).unwrap();
    let add = v1::AddSectionsRequest {
        section_ids: ids,
        ..Default::default()
    };
    let added = admin.add_sections(add).await.unwrap().into_inner();
    assert!(added.results[0].ok);
    let mut bytes = vec![1; 8192];
    nix::sys::uio::pread(zone, &mut bytes, SECTION).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    let again: Vec<_> = sections(&daemon)
        .await
        .into_iter()
        .filter(|s| s.id == 1)
        .collect();
    assert_eq!(again[0].incarnation, 2, "its second life");
}
