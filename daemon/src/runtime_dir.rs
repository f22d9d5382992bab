//! The run-time directory: made if it is missing, and locked so that one daemon serves it.
//!
//! The lock is the file's, held by an open descriptor: it goes with the process however that ends,
//! and a lock file left behind locks nobody out.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Name of the lock file.
pub const LOCK: &str = "hugepoold.lock";

/// A run-time directory that this process alone serves.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    _lock: Flock<File>,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// Another daemon serves it.
    #[error(
        "{} is served by another hugepoold{}: stop it, or choose another directory with --runtime-dir",
        path.display(),
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Taken {
        /// The directory.
        path: PathBuf,
        /// Who holds the lock, as the lock file says.
        pid: Option<u32>,
    },
    /// It cannot be made, or not written in.
    #[error("cannot {step} {}: make it writable for this user, or choose another directory with --runtime-dir", path.display())]
    System {
        /// What was being done.
        step: &'static str,
        /// To what.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

impl RuntimeDir {
    /// Makes `path` if need be and locks it.
    ///
    /// # Errors
    /// [`RuntimeDirError`]; a directory made on the way stays.
    pub fn open(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        let system = |step, path: &Path| {
            let path = path.to_owned();
            move |source| RuntimeDirError::System { step, path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(system("create the run-time directory", path))?;
        let lock_path = path.join(LOCK);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&lock_path)
            .map_err(system("open the lock file", &lock_path))?;
        let holder = read_pid(&mut file);
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EAGAIN)) => {
                return Err(RuntimeDirError::Taken {
                    path: path.to_owned(),
                    pid: holder,
                });
            }
            Err((_, errno)) => return Err(system("lock", &lock_path)(errno.into())),
        };
        write_pid(&mut lock).map_err(system("write", &lock_path))?;
        Ok(RuntimeDir {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The pid that the lock file at `path` names: whoever locked it last.
pub fn holder(path: &Path) -> Option<u32> {
    read_pid(&mut File::open(path).ok()?)
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    // Whatever lies there is only read out in a message.
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_and_serves_one() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let first = RuntimeDir::open(&path).unwrap();
        assert_eq!(first.path(), path);
        match RuntimeDir::open(&path).unwrap_err() {
            RuntimeDirError::Taken { pid, .. } => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other}"),
        }
        drop(first);
        RuntimeDir::open(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_made_is_named_with_the_way_out() {
        let error = RuntimeDir::open(Path::new("/proc/hugepool")).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("/proc/hugepool") && text.contains("--runtime-dir"),
            "{text}"
        );
    }
}
