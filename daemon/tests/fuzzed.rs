//! Hostile bytes as attach messages, as requests and as configuration: the corpus again, and seeded
//! mutations of it.
//!
//! Seen to fail: with a key that is written as another than it was read.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

#[path = "support/fuzz.rs"]
mod fuzz;
#[path = "../engine/tests/support/mutate.rs"]
mod mutate;
mod support;

use std::path::{Path, PathBuf};

use support::Daemon;
use support::grpc::{self, verify};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

#[test]
fn attach_messages_are_refused_or_understood() {
    mutate::replay_and_mutate(&folder("attach"), &fuzz::attach);
}

#[test]
fn configurations_are_refused_or_can_be_written_again() {
    mutate::replay_and_mutate(&folder("config"), &fuzz::config);
}

#[test]
fn requests_of_any_bytes_are_answered_and_the_daemon_serves_on() {
    let mut daemon = Daemon::tiny();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let caller = runtime.block_on(fuzz::Caller::new(daemon.path()));
    mutate::replay_and_mutate(&folder("grpc"), &|bytes| {
        runtime.block_on(caller.call(bytes))
    });
    assert!(daemon.is_running());
    runtime.block_on(async {
        let mut admin = grpc::admin(&daemon).await;
        verify(&mut admin).await;
    });
}
