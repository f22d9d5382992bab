//! Where the daemon's sockets are: the rule of all programs, looked at from a client or a tool.
//!
//! The rule itself is [`hugepool_shm::runtime_dir`]; here it meets the environment and the disk.

use std::{
    env,
    path::{Path, PathBuf},
};

pub use hugepool_shm::runtime_dir::NoRuntimeDir;
use hugepool_shm::runtime_dir::{Place, Surroundings, of_client};

/// The full path of `socket` in the first run-time directory that has it.
///
/// A directory that was named, by argument or by `$HUGEPOOL_RUNTIME_DIR`, is the only one looked
/// into.
///
/// # Errors
/// [`NoRuntimeDir::NobodyThere`] when none has it; it lists those tried.
pub fn find(named: Option<&Path>, socket: &str) -> Result<PathBuf, NoRuntimeDir> {
    find_all(named, socket).map(|mut found| found.swap_remove(0))
}

/// The full paths of `socket` in all run-time directories that have it, best first; at least one.
///
/// # Errors
/// [`NoRuntimeDir::NobodyThere`] when none has it; it lists those tried.
pub fn find_all(named: Option<&Path>, socket: &str) -> Result<Vec<PathBuf>, NoRuntimeDir> {
    let places = rule(named);
    let paths = places.iter().map(|place| place.path.join(socket));
    // What may not be looked into might have it: the attempt to connect will say so.
    let found: Vec<PathBuf> = paths
        .filter(|path| path.try_exists().unwrap_or(true))
        .collect();
    if found.is_empty() {
        Err(NoRuntimeDir::NobodyThere { places })
    } else {
        Ok(found)
    }
}

/// The run-time directories that are looked into, best first, whatever is in them.
pub fn places(named: Option<&Path>) -> Vec<PathBuf> {
    rule(named).into_iter().map(|place| place.path).collect()
}

fn rule(named: Option<&Path>) -> Vec<Place> {
    of_client(&Surroundings {
        flag: named,
        configured: None,
        variable: &|name| env::var_os(name),
        is_root: nix::unistd::geteuid().is_root(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_lists_the_places_tried() {
        let error = find(Some(Path::new("/no/such/folder")), "attach.sock").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no hugepoold found; tried /no/such/folder (--runtime-dir)"
        );
    }
}
