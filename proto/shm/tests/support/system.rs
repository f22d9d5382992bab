//! Parts of the machine that tests borrow: huge pages, the switch of transparent ones.
//!
//! Whoever borrows holds one lock across all test processes, and puts things back when done. What
//! cannot be had is a visible skip ([`skip`](super::skip)), never a quiet pass.

#![allow(dead_code, reason = "not every test binary needs all of it")]

use std::fs::File;
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg};

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const COMPACT: &str = "/proc/sys/vm/compact_memory";
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// The one lock, held while a test depends on the machine's memory switches.
pub struct Machine {
    _lock: Flock<File>,
    restore: Vec<(PathBuf, String)>,
}

impl Machine {
    /// Waits for the other tests that borrow.
    pub fn lock() -> Machine {
        let path = std::env::temp_dir().join("hugepool-tests.lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .expect("the lock file of the tests can be opened");
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| errno)
            .expect("the lock of the tests can be taken");
        Machine {
            _lock: lock,
            restore: Vec::new(),
        }
    }

    /// Makes exactly `nr_pages` huge pages of 2 MiB free; `false` where that cannot be had.
    pub fn free_huge_pages(&mut self, nr_pages: u64) -> bool {
        let total = read_number(POOL);
        let free = read_number(FREE);
        let (Some(total), Some(free)) = (total, free) else {
            return false;
        };
        let wanted = (total + nr_pages).saturating_sub(free);
        self.set(POOL, &wanted.to_string()) && read_number(FREE) == Some(nr_pages)
    }

    /// Switches transparent huge pages for advised shared memory on; `false` where not allowed.
    pub fn switch_thp_on(&mut self) -> bool {
        // So that there are huge pages to be had; a machine without it may have some all the same.
        let _ = std::fs::write(COMPACT, "1");
        self.set(SHMEM_ENABLED, "advise")
    }

    /// Switches transparent huge pages for shared memory off; `false` where not allowed.
    pub fn switch_thp_off(&mut self) -> bool {
        self.set(SHMEM_ENABLED, "never")
    }

    fn set(&mut self, path: &str, value: &str) -> bool {
        let Ok(before) = std::fs::read_to_string(path) else {
            return false;
        };
        // A switch shows all its words and brackets the one that holds.
        let before = match before
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
        {
            Some((word, _)) => word.to_owned(),
            None => before.trim().to_owned(),
        };
        if std::fs::write(path, value).is_err() {
            return false;
        }
        self.restore.push((path.into(), before));
        true
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for (path, before) in self.restore.iter().rev() {
            let _ = std::fs::write(path, before);
        }
    }
}

/// Huge pages of 2 MiB that are free now.
pub fn free_huge_pages_now() -> u64 {
    read_number(FREE).unwrap_or(0)
}

fn read_number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
