//! How much ordinary memory can still be had, before the system would start to kill for it.
//!
//! Populating shared memory past what there is does not fail: the kernel's killer picks a process.
//! So the question is asked before: what the system has available, and what each control group
//! above this process (version 1 or 2, as far as it can be seen from here) still allows.

use std::path::{Path, PathBuf};

use crate::control_group;

/// Memory that is left alone, so that the rest of the system does not starve: 64 MiB.
pub const MARGIN_BYTES: u64 = 64 << 20;

/// The tightest bound on ordinary memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRoom {
    /// Bytes that can be had; nothing of the margin is in it.
    pub room_bytes: u64,
    /// What bounds it.
    pub bound: MemoryBound,
}

impl MemoryRoom {
    /// None at all: what is known before anybody has asked.
    pub(crate) const NONE: MemoryRoom = MemoryRoom {
        room_bytes: 0,
        bound: MemoryBound::System { available_bytes: 0 },
    };
}

/// What bounds the memory that can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    /// The machine: what `/proc/meminfo` calls available.
    System {
        /// Bytes available.
        available_bytes: u64,
    },
    /// A control group this process is in, itself or one above it.
    Group {
        /// Its folder.
        path: PathBuf,
        /// Bytes allowed in it.
        limit_bytes: u64,
        /// Bytes used in it, without page cache that could be dropped.
        used_bytes: u64,
    },
    /// Nothing could be read: trying is the only way to know.
    Unknown,
}

impl std::fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemoryBound::System { available_bytes } => {
                write!(f, "the system has {available_bytes} bytes available")
            }
            MemoryBound::Group {
                path,
                limit_bytes,
                used_bytes,
            } => write!(
                f,
                "control group {} allows {limit_bytes} bytes and uses {used_bytes}",
                path.display()
            ),
            MemoryBound::Unknown => f.write_str("the system does not say what it has"),
        }
    }
}

impl MemoryRoom {
    /// Asks the system and the control groups, under `root` (`/` but for tests).
    pub fn read(root: &Path) -> MemoryRoom {
        let system = available_bytes(root).map(|available_bytes| MemoryRoom {
            room_bytes: available_bytes.saturating_sub(MARGIN_BYTES),
            bound: MemoryBound::System { available_bytes },
        });
        let groups = control_group::folders(root, "memory");
        let groups = groups.iter().filter_map(|path| group_room(path));
        let unknown = MemoryRoom {
            room_bytes: u64::MAX,
            bound: MemoryBound::Unknown,
        };
        system
            .into_iter()
            .chain(groups)
            .min_by_key(|room| room.room_bytes)
            .unwrap_or(unknown)
    }
}

fn available_bytes(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// What one group leaves; `None` where it sets no limit or cannot be read.
fn group_room(path: &Path) -> Option<MemoryRoom> {
    let read = |name: &str| control_group::number(&path.join(name));
    // Version 2 says `max` for no limit, which is no number; version 1 says a number beyond all
    // memory, which never is the tightest.
    let limit = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"))?;
    let used_bytes = used.saturating_sub(droppable_bytes(path));
    Some(MemoryRoom {
        room_bytes: limit.saturating_sub(used_bytes),
        bound: MemoryBound::Group {
            path: path.to_owned(),
            limit_bytes: limit,
            used_bytes,
        },
    })
}

/// Page cache that the group gives up under pressure: what is inactive, and half of what is active.
fn droppable_bytes(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path.join("memory.stat")).unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(' ')?;
            (key == name).then(|| value.trim().parse().ok()).flatten()
        })
    };
    // Version 1 counts the group alone, and with those below it under `total_`.
    let both = |name: &str| field(&format!("total_{name}")).or_else(|| field(name));
    let inactive = both("inactive_file").unwrap_or(0);
    let active = both("active_file").unwrap_or(0);
    inactive.saturating_add(active / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeRoot;

    const GIB: u64 = 1 << 30;

    fn machine(name: &str) -> FakeRoot {
        let root = FakeRoot::new(name);
        root.write(
            "proc/meminfo",
            "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n",
        );
        root
    }

    #[test]
    fn the_system_bounds_what_no_group_does() {
        let room = MemoryRoom::read(machine("system").path());
        assert_eq!(room.room_bytes, 8 * GIB - MARGIN_BYTES);
        let available_bytes = 8 * GIB;
        assert_eq!(room.bound, MemoryBound::System { available_bytes });
    }

    #[test]
    fn a_group_above_of_version_2_bounds_and_its_cache_does_not_count() {
        let root = machine("v2");
        root.write("proc/self/cgroup", "0::/system.slice/hugepoold.service\n");
        root.write(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        let slice = "sys/fs/cgroup/system.slice";
        root.write(&format!("{slice}/hugepoold.service/memory.max"), "max\n");
        root.write(&format!("{slice}/hugepoold.service/memory.current"), "5\n");
        root.write(&format!("{slice}/memory.max"), &format!("{}\n", 2 * GIB));
        root.write(&format!("{slice}/memory.current"), &format!("{GIB}\n"));
        root.write(
            &format!("{slice}/memory.stat"),
            "anon 7\ninactive_file 100000\nactive_file 50000\n",
        );
        let room = MemoryRoom::read(root.path());
        assert_eq!(room.room_bytes, GIB + 125_000);
        let text = room.bound.to_string();
        assert!(
            text.contains("system.slice") && text.contains("2147483648"),
            "{text}"
        );
    }

    #[test]
    fn a_group_of_version_1_bounds_even_where_only_a_part_is_mounted() {
        let root = machine("v1");
        root.write(
            "proc/self/cgroup",
            "9:name=systemd:/\n4:cpu,memory:/docker/abc/inner\n0::/\n",
        );
        root.write(
            "proc/self/mountinfo",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        );
        root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
        root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
        root.write(
            "sys/fs/cgroup/memory/memory.stat",
            "inactive_file 1\ntotal_inactive_file 4000\ntotal_active_file 0\n",
        );
        let inner = "sys/fs/cgroup/memory/inner";
        root.write(
            &format!("{inner}/memory.limit_in_bytes"),
            "9223372036854771712\n",
        );
        root.write(&format!("{inner}/memory.usage_in_bytes"), "1000000\n");
        assert_eq!(MemoryRoom::read(root.path()).room_bytes, 2_004_000);
    }

    #[test]
    fn a_group_over_its_limit_leaves_nothing() {
        let root = machine("over");
        root.write("proc/self/cgroup", "0::/\n");
        root.write(
            "proc/self/mountinfo",
            "1 1 0:1 / /cg rw - cgroup2 none rw\n",
        );
        root.write("cg/memory.max", "1000\n");
        root.write("cg/memory.current", "2000\n");
        assert_eq!(MemoryRoom::read(root.path()).room_bytes, 0);
    }

    #[test]
    fn a_system_that_says_nothing_bounds_nothing() {
        let room = MemoryRoom::read(FakeRoot::new("silent").path());
        assert_eq!(
            (room.room_bytes, room.bound),
            (u64::MAX, MemoryBound::Unknown)
        );
    }

    #[test]
    fn garbage_in_the_files_is_no_panic() {
        let root = FakeRoot::new("garbage");
        root.write("proc/meminfo", "MemAvailable: -3 kB\n");
        root.write("proc/self/cgroup", ":::\n\n0::\n4:memory\n0::/../../etc\n");
        root.write(
            "proc/self/mountinfo",
            "- cgroup2\n1 1 0:1 / /cg rw - cgroup2 n rw\nx - y z\n",
        );
        root.write("cg/memory.max", "many\n");
        assert_eq!(MemoryRoom::read(root.path()).bound, MemoryBound::Unknown);
    }
}
