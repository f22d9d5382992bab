//! What older versions have left: messages and segments as they were recorded, served or refused by
//! name. The files in `recorded/` are of version 1 of each and never change.
//!
//! Seen to fail: with a version that is not looked at.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hugepool_shm::attach::{AttachMessage, LAYOUT_VERSION, OLDEST_LAYOUT_VERSION, RefusalCode};
use hugepool_shm::state::{STATE_VERSION, StateError, StateSegment};
use hugepool_shm::words::Words;
use nix::sys::signal::Signal;
use support::kept::Kept;
use support::{Daemon, raw, send_signal, until};

fn recorded(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    std::fs::read(folder.join(name)).unwrap()
}

#[test]
fn a_client_of_layout_1_is_served_or_told_which_are() {
    let daemon = Daemon::tiny();
    let connection = raw::connect(&daemon);
    connection
        .send(&recorded("attach-request-1.bin"), &[])
        .unwrap();
    match raw::hear(&connection) {
        Some((AttachMessage::Reply(reply), _)) if OLDEST_LAYOUT_VERSION == 1 => {
            assert_eq!(reply.layout_version, 1, "what it speaks");
        }
        Some((AttachMessage::Refused(refused), _)) if OLDEST_LAYOUT_VERSION > 1 => {
            assert_eq!(refused.code, RefusalCode::LayoutVersion);
            let both = format!(
                "layout version 1, the daemon versions {OLDEST_LAYOUT_VERSION} to {LAYOUT_VERSION}"
            );
            assert!(refused.message.contains(&both), "{}", refused.message);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_state_of_version_1_is_known_as_one() {
    let bytes = recorded("state-1.bin");
    // Its header was recorded; what follows was empty.
    let words = Words::anonymous(StateSegment::nr_words(&[]).unwrap()).unwrap();
    for (cell, word) in words.cells().iter().zip(bytes.chunks_exact(8)) {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        cell.store(word, std::sync::atomic::Ordering::Relaxed);
    }
    assert_ne!(STATE_VERSION, 1, "what is saved is another since");
    let adopted = StateSegment::adopt(words).map(drop);
    assert_eq!(adopted, Err(StateError::Version { theirs: 1 }));
}

#[test]
fn a_daemon_after_one_of_state_version_1_holds_everything_and_says_why() {
    let mut kept = Kept::tiny();
    let fds = format!("/proc/{}/fd", kept.keeper.pid());
    let state = std::fs::read_dir(fds).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        let target = std::fs::read_link(&path).ok()?;
        target.to_str()?.contains("hugepool-state").then_some(path)
    });
    let file = std::fs::OpenOptions::new().write(true).open(state.unwrap());
    // Magic and version.
    file.unwrap()
        .write_at(&recorded("state-1.bin")[..16], 0)
        .unwrap();
    let before = kept.daemon_pid();
    send_signal(before, Signal::SIGKILL);
    until("another one has started", || kept.daemon_pid() != before);
    let both = format!("written in version 1, this daemon reads version {STATE_VERSION}");
    kept.keeper.wait_for_words(&both);
    kept.end();
}
