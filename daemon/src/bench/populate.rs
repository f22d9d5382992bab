//! Bare populating of a section's memory, to hold hot-add against.
//!
//! For each line read it populates one section, says how long that took in milliseconds, and gives
//! the memory back; so whoever compares can take turns. Bare means: one call of the system, in one
//! thread, no daemon, no look at what is free. (Transparent huge pages have no such call: there it
//! is the daemon's own way.) `--as-daemon` is what the daemon does for a section, in two threads
//! and with that look, but without the daemon.

use std::io::{self, BufRead as _, Write};
use std::os::fd::AsFd as _;

use hugepool_shm::backing::Backing;
use hugepool_shm::storage::Storage;
use nix::fcntl::{FallocateFlags, fallocate};

use super::zones::seconds;

/// Populates once a line until standard input ends.
pub fn run(
    section_bytes: u64,
    backing: &str,
    as_daemon: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let known = [
        Backing::Hugetlb,
        Backing::Hugetlb1G,
        Backing::Thp,
        Backing::Shm,
    ];
    let backing = known.into_iter().find(|known| known.name() == backing);
    let backing = backing.ok_or_else(|| io::Error::other("no such backing"))?;
    let storage =
        Storage::create("bench", section_bytes, backing, None).map_err(io::Error::other)?;
    for line in io::stdin().lock().lines() {
        line?;
        let mut populated = Ok(());
        let took = seconds(|| populated = populate(&storage, section_bytes, backing, as_daemon));
        populated?;
        storage.punch(0..section_bytes).map_err(io::Error::other)?;
        writeln!(out, "{}", took * 1e3)?;
        out.flush()?;
    }
    Ok(())
}

fn populate(storage: &Storage, bytes: u64, backing: Backing, as_daemon: bool) -> io::Result<()> {
    if as_daemon || backing == Backing::Thp {
        let populated = storage.populate(0..bytes, backing);
        return populated.map(drop).map_err(io::Error::other);
    }
    let length = i64::try_from(bytes).map_err(io::Error::other)?;
    Ok(fallocate(
        storage.region().as_fd(),
        FallocateFlags::empty(),
        0,
        length,
    )?)
}
