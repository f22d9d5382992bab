//! The manual page, from the definition that the help comes from.

use std::path::Path;
use std::{fs, io};

use clap::CommandFactory as _;

use crate::flags::Flags;

/// What the help has no place for.
const SIGNALS: &str = "\
SIGTERM, SIGINT: stop; calls in flight may still end. SIGHUP: read the configuration again; limits, \
quarantine, access lists and the log's filter change live, all of it or nothing, and what cannot is \
named in the log.";

/// Writes `hugepoold.1` into a folder.
///
/// # Errors
/// What the system said.
pub fn write(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let command = Flags::command().after_long_help(SIGNALS);
    clap_mangen::Man::new(command).generate_to(dir).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_in_it_and_what_is_hidden_is_not() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        let page = fs::read_to_string(dir.path().join("hugepoold.1")).unwrap();
        for word in ["runtime\\-dir", "check", "keeper", "SIGHUP"] {
            assert!(page.contains(word), "{word}:\n{page}");
        }
        assert!(!page.contains("BENCH") && !page.contains("hugepoold\\-man"));
    }
}
