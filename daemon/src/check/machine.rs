//! What the machine has to say to a plan, besides its memory: the run-time directory, descriptors,
//! and the file system of the statistics. Looks only; changes and locks nothing.

use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::UnixAddr;
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use crate::config::Config;
use crate::runtime_dir::{self, LOCK};

/// Descriptors of a daemon without clients or zones.
const OWN_DESCRIPTORS: u64 = 16;
/// Descriptors of a client: control segment, outbox, bell, pidfd, connection.
const CLIENT_DESCRIPTORS: u64 = 5;
/// Descriptors of a zone: its file, and one to copy through.
const ZONE_DESCRIPTORS: u64 = 2;
/// Bytes that the statistics take, at most.
const STATS_BYTES: u64 = 64 << 10;

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What, with the numbers and the next step.
    pub text: String,
    /// Whether a start would fail by it.
    pub prevents_start: bool,
}

impl Finding {
    fn prevents(text: String) -> Finding {
        Finding {
            text,
            prevents_start: true,
        }
    }

    fn note(text: String) -> Finding {
        Finding {
            text,
            prevents_start: false,
        }
    }
}

/// Everything that is not as it should be.
pub fn look(config: &Config) -> Vec<Finding> {
    let dir = &config.runtime_dir;
    let mut found = Vec::new();
    found.extend(writable(dir));
    found.extend(served(dir));
    found.extend(
        ["pages.sock", "admin.sock", "attach.sock"]
            .map(|name| socket(dir, name))
            .into_iter()
            .flatten(),
    );
    found.extend(descriptors(
        config,
        getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(_, hard)| hard),
    ));
    found.extend(room_for_stats(Path::new("/dev/shm")));
    let online = fs::read_to_string("/sys/devices/system/node/online");
    found.extend(nodes(config, online.as_deref().unwrap_or("0")));
    found
}

/// Whether the directory, or the nearest folder above it that is there, can be written.
fn writable(dir: &Path) -> Option<Finding> {
    let there = dir.ancestors().find(|folder| folder.exists())?;
    if !there.is_dir() {
        return Some(Finding::prevents(format!(
            "{} is no directory: choose another one with --runtime-dir",
            there.display()
        )));
    }
    // A file system that is mounted read-only answers here too.
    let errno = access(there, AccessFlags::W_OK | AccessFlags::X_OK).err()?;
    Some(Finding::prevents(format!(
        "{} cannot be written ({}): make it writable for this user, or choose another directory with --runtime-dir",
        there.display(),
        errno.desc()
    )))
}

/// Whether another daemon serves the directory, without touching its lock.
fn served(dir: &Path) -> Option<Finding> {
    let path = dir.join(LOCK);
    let inode = fs::metadata(&path).ok()?.st_ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    if !locks.lines().any(|line| is_lock_of(line, inode)) {
        return None;
    }
    let pid = runtime_dir::holder(&path)
        .map(|pid| format!(" (pid {pid})"))
        .unwrap_or_default();
    Some(Finding::prevents(format!(
        "{} is served by another hugepoold{pid}: stop it, or choose another directory with --runtime-dir",
        dir.display()
    )))
}

/// Whether a line of `/proc/locks` is a whole-file lock of the file with this inode. (The device
/// beside it may be another than the one that the file's own metadata name.) Source: `proc(5)`.
fn is_lock_of(line: &str, inode: u64) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let is_flock = words.next() == Some("FLOCK");
    let place = words.nth(3);
    let number = place.and_then(|place| place.rsplit(':').next()?.parse().ok());
    is_flock && number == Some(inode)
}

/// Whether the place of a socket is free, or taken by a socket that nobody serves any more.
fn socket(dir: &Path, name: &str) -> Option<Finding> {
    let path: PathBuf = dir.join(name);
    if UnixAddr::new(&path).is_err() {
        let bytes = path.as_os_str().len();
        return Some(Finding::prevents(format!(
            "{} is {bytes} bytes long where a socket's path may have 107: choose a shorter --runtime-dir",
            path.display()
        )));
    }
    match fs::symlink_metadata(&path) {
        Ok(found) if found.file_type().is_socket() => None,
        Ok(_) => Some(Finding::prevents(format!(
            "{} exists and is no socket: remove it, or choose another directory with --runtime-dir",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Finding::prevents(format!("{}: {error}", path.display()))),
    }
}

/// Whether as many clients can attach as the plan says.
fn descriptors(config: &Config, allowed: u64) -> Option<Finding> {
    let zones = u64::try_from(config.zones.len()).unwrap_or(u64::MAX);
    let own = OWN_DESCRIPTORS + ZONE_DESCRIPTORS.saturating_mul(zones);
    let clients = u64::from(config.limits.clients);
    let needed = own + CLIENT_DESCRIPTORS * clients;
    if needed <= allowed {
        return None;
    }
    let served = allowed.saturating_sub(own) / CLIENT_DESCRIPTORS;
    Some(Finding::note(format!(
        "{clients} clients need {needed} descriptors where the hard limit is {allowed}: {served} clients can attach (raise LimitNOFILE= or ulimit -Hn, or lower limits.clients)"
    )))
}

/// Whether the machine has the nodes that zones are to be of; `online` as the system lists them.
fn nodes(config: &Config, online: &str) -> Vec<Finding> {
    let has = |node: u32| {
        online.trim().split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
            bounds.is_some_and(|(first, last)| (first..=last).contains(&node))
        })
    };
    let of_none = config.zones.iter().filter_map(|zone| {
        let node = zone.node.filter(|&node| !has(node))?;
        let bytes = u64::from(zone.nr_sections).saturating_mul(config.geometry.section_bytes());
        Some(Finding::prevents(format!(
            "zone `{}` wants {} of node {node}, which this machine does not have (it has {}): short by all of it, choose another node= or none",
            zone.name,
            crate::size::Bytes(bytes),
            online.trim(),
        )))
    });
    of_none.collect()
}

/// Whether the statistics find room.
fn room_for_stats(folder: &Path) -> Option<Finding> {
    let room = match statvfs(folder) {
        Ok(found) => found
            .blocks_available()
            .saturating_mul(found.fragment_size()),
        Err(errno) => {
            return Some(Finding::note(format!(
                "{}: {}: the daemon will keep no statistics for `hugepoolctl stats`",
                folder.display(),
                errno.desc()
            )));
        }
    };
    (room < STATS_BYTES).then(|| {
        Finding::note(format!(
            "{} has {room} bytes of room where the statistics need up to {STATS_BYTES}: the daemon will keep none for `hugepoolctl stats`",
            folder.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        Config::embedded(dir, vec!["a=128MiB".parse().unwrap()]).unwrap()
    }

    #[test]
    fn a_lock_is_known_by_its_kind_and_inode() {
        let line = "2: FLOCK  ADVISORY  WRITE 1201 08:01:131090 0 EOF";
        assert!(is_lock_of(line, 131_090));
        assert!(!is_lock_of(line, 31_090));
        assert!(!is_lock_of(
            "1: POSIX  ADVISORY  WRITE 1201 08:01:131090 0 EOF",
            131_090
        ));
        // One that waits for it is shown with an arrow, and holds nothing.
        assert!(!is_lock_of(
            "2: -> FLOCK  ADVISORY  WRITE 1300 08:01:131090 0 EOF",
            131_090
        ));
        assert!(!is_lock_of("", 0));
    }

    #[test]
    fn too_few_descriptors_are_a_note_with_how_many_clients_they_are_for() {
        let config = config(Path::new("/run/test"));
        let clients = u64::from(config.limits.clients);
        assert_eq!(descriptors(&config, 18 + 5 * clients), None);
        let found = descriptors(&config, 18 + 5 * 100 + 3).unwrap();
        assert!(
            found.text.contains("521") && found.text.contains(": 100 clients"),
            "{found:?}"
        );
        assert!(!found.prevents_start);
        assert!(
            descriptors(&config, 0)
                .unwrap()
                .text
                .contains(": 0 clients")
        );
    }

    #[test]
    fn a_node_that_the_machine_lacks_is_named_with_what_lacks() {
        let zones = ["a=128MiB,node=0", "b=256MiB,node=99", "c=128MiB"];
        let zones = zones.map(|zone| zone.parse().unwrap()).to_vec();
        let config = Config::embedded(Path::new("/run/test"), zones).unwrap();
        let found = nodes(&config, "0-1,4\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].prevents_start);
        assert!(
            found[0].text.contains("zone `b` wants 256MiB of node 99"),
            "{found:?}"
        );
        assert_eq!(nodes(&config, "0,99"), []);
        assert_eq!(nodes(&config, "1-98").len(), 2);
    }

    #[test]
    fn a_directory_is_looked_at_where_it_would_be_made() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(look(&config(&dir.path().join("not/yet"))), []);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let found = look(&config(&file.join("in")));
        assert!(
            found
                .iter()
                .any(|found| found.prevents_start && found.text.contains("no directory")),
            "{found:?}"
        );
    }

    #[test]
    fn what_lies_in_the_place_of_a_socket_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("admin.sock"), "mine").unwrap();
        let found = look(&config(dir.path()));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].prevents_start && found[0].text.contains("admin.sock exists and is no socket")
        );
    }

    #[test]
    fn no_room_for_statistics_is_a_note() {
        let found = room_for_stats(Path::new("/nowhere/at/all")).unwrap();
        assert!(
            !found.prevents_start && found.text.contains("no statistics"),
            "{found:?}"
        );
        // A file system without blocks has none to give.
        let found = room_for_stats(Path::new("/proc")).unwrap();
        assert!(found.text.contains("/proc has 0 bytes"), "{found:?}");
    }
}
