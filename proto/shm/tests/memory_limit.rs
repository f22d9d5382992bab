//! Populating inside a control group that allows less: an error with numbers, and nobody killed.
//!
//! A test binary of its own, since it runs itself again inside the group.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

mod support {
    pub mod skip;
    pub mod system;
}

use std::path::{Path, PathBuf};
use std::process::Command;

use hugepool_shm::backing::{Backing, WhyNot};
use hugepool_shm::memory_room::MemoryBound;
use hugepool_shm::storage::{PopulateError, Storage};
use support::skip::skip;
use support::system::Machine;

const CHILD: &str = "HUGEPOOL_TEST_GROUP";
const LIMIT: u64 = 64 << 20;

/// A memory group with [`LIMIT`], of version 1 or 2; gone afterwards.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("hugepool-test-{}", std::process::id());
        let tops = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        for (top, limit) in tops {
            let folder = Path::new(top).join(&name);
            if std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Group(folder);
            if std::fs::write(group.0.join(limit), LIMIT.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Seen to fail: without the look at the groups the child is killed (status 137).
#[test]
fn a_control_group_that_allows_less_is_an_error_and_not_the_killer() {
    let name = "a_control_group_that_allows_less_is_an_error_and_not_the_killer";
    if let Some(group) = std::env::var_os(CHILD) {
        return inside(Path::new(&group));
    }
    let Some(group) = Group::new() else {
        return skip(name, "no memory control group of our own");
    };
    let mut machine = Machine::lock();
    machine.switch_thp_on();
    let script =
        "echo $$ >\"$HUGEPOOL_TEST_GROUP/cgroup.procs\" || exit 77; exec \"$0\" --exact \"$1\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(CHILD, &group.0)
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        return skip(name, "cannot enter a control group");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("1 passed"), "{text}");
}

fn inside(group: &Path) {
    let storage = Storage::create("limited", 1 << 40, Backing::Shm, None).unwrap();
    for backing in [Backing::Shm, Backing::Thp] {
        let error = storage.populate(0..128 << 20, backing).unwrap_err();
        let PopulateError::Short { why, .. } = &error else {
            panic!("{backing}: {error}");
        };
        let WhyNot::MemoryShort {
            bound, room_bytes, ..
        } = why
        else {
            // The switch could not be set.
            assert_eq!(backing, Backing::Thp, "{why}");
            continue;
        };
        let MemoryBound::Group {
            path, limit_bytes, ..
        } = bound
        else {
            panic!("{why}");
        };
        assert_eq!((path.as_path(), *limit_bytes), (group, LIMIT));
        assert!(*room_bytes <= LIMIT);
    }
    assert_eq!(storage.allocated().unwrap(), 0);
    // What the group allows can be had.
    storage.populate(0..16 << 20, Backing::Shm).unwrap();
}
