//! The statistics segment between a daemon and a tool, and what either may leave behind.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

mod support {
    pub mod skip;
}

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use hugepool_shm::stats::{
    MAX_COUNTER_NAME_BYTES, MAX_COUNTERS, StatsError, StatsReader, StatsSnapshot, StatsWriter,
    remove_left_over, segment_name,
};
use support::skip::skip;

/// A run-time directory of its own for one test; it and its segment are gone afterwards.
struct Runtime(PathBuf);

impl Runtime {
    fn new(test: &str) -> Runtime {
        let path =
            std::env::temp_dir().join(format!("hugepool-stats-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Runtime(path)
    }

    fn segment(&self) -> PathBuf {
        Path::new("/dev/shm").join(segment_name(&self.0).trim_start_matches('/'))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.segment());
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(runtime: &Runtime) -> StatsSnapshot {
    StatsReader::open(&runtime.0).unwrap().snapshot()
}

#[test]
fn what_is_published_is_read_by_name() {
    let runtime = Runtime::new("published");
    let mut writer = StatsWriter::create(&runtime.0, &["pages.lent", "settles"]).unwrap();
    let before = read(&runtime);
    assert_eq!(before.updated_ms, 0);
    writer.publish(&[65, u64::MAX]);
    let after = read(&runtime);
    assert_eq!(after.pid, u64::from(std::process::id()));
    assert!(!after.is_torn && after.updated_ms >= after.started_ms);
    let expected = [
        ("pages.lent".to_owned(), 65),
        ("settles".to_owned(), u64::MAX),
    ];
    assert_eq!(after.counters, expected);
}

#[test]
fn a_clean_end_removes_the_segment_and_readers_keep_theirs() {
    let runtime = Runtime::new("clean");
    let mut writer = StatsWriter::create(&runtime.0, &["one"]).unwrap();
    writer.publish(&[1]);
    let reader = StatsReader::open(&runtime.0).unwrap();
    assert_eq!(
        std::fs::metadata(runtime.segment()).unwrap().mode() & 0o777,
        0o600
    );
    drop(writer);
    assert!(!runtime.segment().exists());
    assert_eq!(reader.snapshot().counters, [("one".to_owned(), 1)]);
    let again = StatsReader::open(&runtime.0).err().unwrap();
    assert!(matches!(again, StatsError::NotFound { .. }), "{again}");
}

#[test]
fn what_a_crash_left_is_readable_and_the_next_daemon_replaces_it() {
    let runtime = Runtime::new("crash");
    let mut first = StatsWriter::create(&runtime.0, &["old"]).unwrap();
    first.publish(&[7]);
    // As after a kill: nobody removes it.
    std::mem::forget(first);
    assert_eq!(read(&runtime).counters, [("old".to_owned(), 7)]);
    let second = StatsWriter::create(&runtime.0, &["new"]).unwrap();
    assert_eq!(read(&runtime).counters, [("new".to_owned(), 0)]);
    std::mem::forget(second);
    // Or nobody ever will, and it is taken away by hand.
    assert!(remove_left_over(&runtime.0).unwrap());
    assert!(!runtime.segment().exists());
    assert!(!remove_left_over(&runtime.0).unwrap());
}

#[test]
fn names_and_numbers_of_counters_are_bounded() {
    let runtime = Runtime::new("bounds");
    let long = "n".repeat(MAX_COUNTER_NAME_BYTES + 1);
    for name in ["", "two words", "ümlaut", long.as_str()] {
        let error = StatsWriter::create(&runtime.0, &[name]).err().unwrap();
        assert!(matches!(error, StatsError::Name { .. }), "{error}");
    }
    let many = vec!["n"; MAX_COUNTERS + 1];
    let error = StatsWriter::create(&runtime.0, &many).err().unwrap();
    assert!(matches!(error, StatsError::TooMany { .. }), "{error}");
    assert!(!runtime.segment().exists());

    let longest = &long[..MAX_COUNTER_NAME_BYTES];
    let names = vec![longest; MAX_COUNTERS];
    let mut writer = StatsWriter::create(&runtime.0, &names).unwrap();
    writer.publish(&vec![3; MAX_COUNTERS + 5]);
    let found = read(&runtime);
    assert_eq!(found.counters.len(), MAX_COUNTERS);
    assert!(
        found
            .counters
            .iter()
            .all(|(name, value)| name == longest && *value == 3)
    );
}

#[test]
fn one_directory_has_one_name_by_whichever_path() {
    let runtime = Runtime::new("links");
    let link = runtime.0.join("link");
    std::os::unix::fs::symlink(&runtime.0, &link).unwrap();
    assert_eq!(segment_name(&link), segment_name(&runtime.0));
    let inside = runtime.0.join("sub");
    let before = segment_name(&inside);
    std::fs::create_dir(&inside).unwrap();
    assert_eq!(segment_name(&link.join("sub")), before);
    assert_ne!(before, segment_name(&runtime.0));
    assert_eq!(
        segment_name(Path::new("/run/hugepool")).len(),
        "/hugepool-stats-".len() + 16
    );
}

#[test]
fn a_segment_of_anything_else_is_refused() {
    let runtime = Runtime::new("garbage");
    let valid = {
        let _writer = StatsWriter::create(&runtime.0, &["a", "b"]).unwrap();
        std::fs::read(runtime.segment()).unwrap()
    };
    for length in 0..valid.len() {
        std::fs::write(runtime.segment(), &valid[..length]).unwrap();
        assert!(StatsReader::open(&runtime.0).is_err(), "{length} bytes");
    }
    // Each byte of the head changed, in every way that matters, never panics and never reads
    // beyond the file.
    for index in 0..64 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = valid.clone();
            changed[index] = value;
            std::fs::write(runtime.segment(), &changed).unwrap();
            if let Ok(reader) = StatsReader::open(&runtime.0) {
                assert!(reader.snapshot().counters.len() <= 2);
            }
        }
    }
    let mut other = valid.clone();
    other[8] = 2;
    std::fs::write(runtime.segment(), &other).unwrap();
    let error = StatsReader::open(&runtime.0).err().unwrap();
    assert!(
        matches!(error, StatsError::Version { theirs: 2 }),
        "{error}"
    );
    // A sparse one could not be read on a full /dev/shm.
    let sparse = std::fs::File::create(runtime.segment()).unwrap();
    sparse.set_len(1 << 20).unwrap();
    let error = StatsReader::open(&runtime.0).err().unwrap();
    assert!(matches!(error, StatsError::NotStats { .. }), "{error}");
}

#[test]
fn a_daemon_that_died_while_writing_leaves_torn_counters_and_says_so() {
    let runtime = Runtime::new("torn");
    let mut writer = StatsWriter::create(&runtime.0, &["a"]).unwrap();
    writer.publish(&[5]);
    let mut bytes = std::fs::read(runtime.segment()).unwrap();
    std::mem::forget(writer);
    bytes[16] |= 1;
    std::fs::write(runtime.segment(), &bytes).unwrap();
    let found = read(&runtime);
    assert!(found.is_torn);
    assert_eq!(found.counters, [("a".to_owned(), 5)]);
}

#[test]
fn readers_beside_a_busy_writer_see_whole_changes() {
    let runtime = Runtime::new("busy");
    let names: Vec<String> = (0..64).map(|index| format!("c{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut writer = StatsWriter::create(&runtime.0, &names).unwrap();
    let reader = StatsReader::open(&runtime.0).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=20_000_u64 {
                writer.publish(&[round; 64]);
            }
            is_done.store(true, Ordering::Release);
        });
        let mut nr_whole = 0;
        while !is_done.load(Ordering::Acquire) {
            let found = reader.snapshot();
            if !found.is_torn {
                nr_whole += 1;
                let (_, first) = found.counters[0];
                assert!(found.counters.iter().all(|(_, value)| *value == first));
            }
        }
        assert!(nr_whole > 0);
    });
    assert_eq!(reader.snapshot().counters[63].1, 20_000);
}

const CHILD: &str = "HUGEPOOL_TEST_FULL_SHM";

/// The segment's blocks are taken before the first store: without that, this child dies of SIGBUS.
#[test]
fn a_full_dev_shm_is_an_error_and_not_the_end() {
    let name = "a_full_dev_shm_is_an_error_and_not_the_end";
    if std::env::var_os(CHILD).is_some() {
        let runtime = Runtime::new("full");
        let names = vec!["n"; MAX_COUNTERS];
        let error = StatsWriter::create(&runtime.0, &names).err().unwrap();
        assert!(matches!(error, StatsError::NoRoom { .. }), "{error}");
        assert!(!runtime.segment().exists());
        return;
    }
    // A /dev/shm of two pages, in a mount namespace of the child's own.
    let script = "mount -t tmpfs -o size=8k tmpfs /dev/shm || exit 77; exec \"$0\" --exact \"$1\"";
    let test = std::env::current_exe().unwrap();
    let child = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .args([test.as_os_str(), name.as_ref()])
        .env(CHILD, "1")
        .output();
    match child {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("1 passed"), "{text}");
        }
        Ok(output) if !matches!(output.status.code(), Some(1 | 77)) => {
            panic!("the child ended by {}", output.status);
        }
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("running 1 test") => {
            panic!("{}", String::from_utf8_lossy(&output.stdout));
        }
        _ => skip(name, "no mount namespace of our own"),
    }
}

#[test]
fn another_users_segment_is_neither_read_nor_trusted() {
    let name = "another_users_segment_is_neither_read_nor_trusted";
    let runtime = Runtime::new("foreign");
    std::mem::forget(StatsWriter::create(&runtime.0, &["a"]).unwrap());
    if std::os::unix::fs::chown(runtime.segment(), Some(65_533), None).is_err() {
        return skip(name, "needs root");
    }
    let error = StatsReader::open(&runtime.0).err().unwrap();
    assert!(
        matches!(error, StatsError::Foreign { uid: 65_533, .. }),
        "{error}"
    );
    // The daemon's user owns its run-time directory: then it is the daemon's.
    std::os::unix::fs::chown(&runtime.0, Some(65_533), None).unwrap();
    assert!(StatsReader::open(&runtime.0).is_ok());
    // Root may replace it.
    assert!(StatsWriter::create(&runtime.0, &["b"]).is_ok());
}
