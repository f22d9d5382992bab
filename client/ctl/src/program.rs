//! The daemon's program, for verbs that need no running daemon but what it knows.

use std::{env, path::PathBuf};

/// The daemon built beside this tool, else the one that the system finds.
pub fn of_daemon() -> PathBuf {
    let beside = env::current_exe()
        .ok()
        .map(|exe| exe.with_file_name("hugepoold"));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| "hugepoold".into())
}
