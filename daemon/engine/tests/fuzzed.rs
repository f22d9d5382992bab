//! Hostile bytes in a client's segment, and in what a daemon before has left: the corpus again, and
//! seeded mutations of it.
//!
//! Seen to fail: with a claim whose owner is not asked, with a block inside another that recovery
//! takes for one of its own. What mutations found first was just that: such a block was taken.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/fuzz.rs"]
mod fuzz;
#[path = "support/mutate.rs"]
mod mutate;
mod support;

use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

#[test]
fn segments_of_nonsense_harm_their_author_alone() {
    mutate::replay_and_mutate(&folder("segment"), &fuzz::segment);
}

#[test]
fn a_damaged_state_is_refused_or_adds_up() {
    mutate::replay_and_mutate(&folder("state"), &fuzz::state);
}
