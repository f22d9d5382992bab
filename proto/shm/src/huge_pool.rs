//! The system's reserved huge pages, and whether shared memory may use transparent ones.
//!
//! Plain facts read from `/sys/kernel/mm`, under a root that tests can move. What follows from
//! them is decided in [`backing`](crate::backing).

use std::path::Path;

use crate::control_group::{self, number};

/// The pool of one size of huge page, in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePool {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages nobody uses.
    pub free: u64,
    /// Free pages that somebody else's map has been promised.
    pub reserved: u64,
    /// Pages beyond the configured pool that exist now.
    pub surplus: u64,
    /// Pages beyond the configured pool that may exist at a time, memory permitting.
    pub overcommit: u64,
    /// Pages that the control groups of this process still allow it; `u64::MAX` without a limit.
    pub allowed: u64,
    /// The same by NUMA node, in order of nodes.
    pub nodes: Vec<NodePool>,
}

/// One node's part of a pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePool {
    /// The node.
    pub node: u32,
    /// Pages on it.
    pub total: u64,
    /// Pages on it that nobody uses.
    pub free: u64,
}

impl HugePool {
    /// The pool of pages of `page_bytes` under `root` (`/` but for tests); `None` where the system
    /// has no such pages.
    pub fn read(root: &Path, page_bytes: u64) -> Option<HugePool> {
        let folder = format!("hugepages-{}kB", page_bytes >> 10);
        let pool = root.join("sys/kernel/mm/hugepages").join(&folder);
        Some(HugePool {
            page_bytes,
            total: number(&pool.join("nr_hugepages"))?,
            free: number(&pool.join("free_hugepages"))?,
            reserved: number(&pool.join("resv_hugepages")).unwrap_or(0),
            surplus: number(&pool.join("surplus_hugepages")).unwrap_or(0),
            overcommit: number(&pool.join("nr_overcommit_hugepages")).unwrap_or(0),
            allowed: allowed_pages(root, page_bytes),
            nodes: nodes(root, &folder),
        })
    }

    /// Pages that can be had now, on `node` if one is given. Pages the system would first have to
    /// make count too, where it is configured to make them; only trying shows whether it can.
    pub fn available(&self, node: Option<u32>) -> u64 {
        let unpromised = self.free.saturating_sub(self.reserved);
        let growth = self.overcommit.saturating_sub(self.surplus);
        let everywhere = unpromised.saturating_add(growth).min(self.allowed);
        let Some(node) = node else {
            return everywhere;
        };
        let here = self.nodes.iter().find(|entry| entry.node == node);
        let here = here.map_or(0, |entry| entry.free.saturating_add(growth));
        here.min(everywhere)
    }
}

/// What the tightest control group still allows, in pages.
fn allowed_pages(root: &Path, page_bytes: u64) -> u64 {
    let size = if page_bytes < 1 << 30 {
        format!("{}MB", page_bytes >> 20)
    } else {
        format!("{}GB", page_bytes >> 30)
    };
    let left = |folder: &std::path::PathBuf| {
        let read = |name: &str| number(&folder.join(format!("hugetlb.{size}.{name}")));
        // Version 2, then version 1; no limit is `max` there and beyond all memory here.
        let limit = read("max").or_else(|| read("limit_in_bytes"))?;
        let used = read("current").or_else(|| read("usage_in_bytes"))?;
        Some(limit.saturating_sub(used) / page_bytes)
    };
    let folders = control_group::folders(root, "hugetlb");
    folders.iter().filter_map(left).min().unwrap_or(u64::MAX)
}

fn nodes(root: &Path, folder: &str) -> Vec<NodePool> {
    let entries = std::fs::read_dir(root.join("sys/devices/system/node"));
    let mut nodes: Vec<NodePool> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let node = name.to_str()?.strip_prefix("node")?.parse().ok()?;
            let pool = entry.path().join("hugepages").join(folder);
            Some(NodePool {
                node,
                total: number(&pool.join("nr_hugepages"))?,
                free: number(&pool.join("free_hugepages"))?,
            })
        })
        .collect();
    nodes.sort_by_key(|entry| entry.node);
    nodes
}

/// The switches that let advised shared memory use transparent huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmemThp {
    /// `shmem_enabled`: the selected word, or empty where the kernel has no such switch.
    pub general: String,
    /// `hugepages-2048kB/shmem_enabled`: the selected word; `inherit` where the kernel has none.
    pub for_2m: String,
}

impl ShmemThp {
    /// Off: what is known before anybody has asked.
    pub(crate) const OFF: ShmemThp = ShmemThp {
        general: String::new(),
        for_2m: String::new(),
    };

    /// Reads the switches under `root`.
    pub fn read(root: &Path) -> ShmemThp {
        let folder = root.join("sys/kernel/mm/transparent_hugepage");
        ShmemThp {
            general: selected(&folder.join("shmem_enabled")).unwrap_or_default(),
            for_2m: selected(&folder.join("hugepages-2048kB/shmem_enabled"))
                .unwrap_or_else(|| "inherit".to_owned()),
        }
    }

    /// Whether advised shared memory gets pages of 2 MiB. Transparent huge pages otherwise do
    /// nothing, silently.
    pub fn is_on(&self) -> bool {
        // `deny` and `force` overrule the switch of the size; else that one decides, or defers.
        match (self.general.as_str(), self.for_2m.as_str()) {
            ("deny", _) => false,
            ("force", _) => true,
            (general, "inherit") => is_on_word(general),
            (_, for_2m) => is_on_word(for_2m),
        }
    }
}

fn is_on_word(word: &str) -> bool {
    matches!(word, "always" | "within_size" | "advise")
}

/// The word in brackets of a switch such as `always [never]`.
fn selected(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeRoot;

    #[test]
    fn a_pool_is_read_with_its_nodes() {
        let root = FakeRoot::new("pool");
        root.pool(2048, [64, 40, 8, 2, 10]);
        root.node_pool(1, 2048, [32, 15]);
        root.node_pool(0, 2048, [32, 25]);
        let pool = HugePool::read(root.path(), 2 << 20).unwrap();
        assert_eq!((pool.total, pool.free, pool.reserved), (64, 40, 8));
        assert_eq!(pool.nodes.len(), 2);
        assert_eq!(pool.nodes[0].node, 0);
        // 40 free, 8 of them promised, and 8 more could be made.
        assert_eq!(pool.available(None), 40);
        assert_eq!(pool.available(Some(1)), 23);
        assert_eq!(pool.available(Some(7)), 0);
        assert_eq!(HugePool::read(root.path(), 1 << 30), None);
    }

    #[test]
    fn a_control_group_allows_less_than_the_pool_has() {
        let root = FakeRoot::new("allowed");
        root.pool(2048, [64, 40, 0, 0, 0]);
        root.write("proc/self/cgroup", "0::/a/b\n");
        root.write("proc/self/mountinfo", "1 1 0:1 / /cg rw - cgroup2 n rw\n");
        root.write("cg/a/hugetlb.2MB.max", &format!("{}\n", 30 << 20));
        root.write("cg/a/hugetlb.2MB.current", &format!("{}\n", 10 << 20));
        root.write("cg/a/b/hugetlb.2MB.max", "max\n");
        root.write("cg/a/b/hugetlb.2MB.current", "0\n");
        let pool = HugePool::read(root.path(), 2 << 20).unwrap();
        assert_eq!((pool.allowed, pool.available(None)), (10, 10));
    }

    #[test]
    fn more_is_promised_than_is_free() {
        let root = FakeRoot::new("promised");
        root.pool(2048, [4, 1, 3, 0, 0]);
        let pool = HugePool::read(root.path(), 2 << 20).unwrap();
        assert_eq!(pool.available(None), 0);
    }

    #[test]
    fn the_switches_decide_as_the_kernel_does() {
        let root = FakeRoot::new("switches");
        for (general, for_2m, is_on) in [
            ("never", "inherit", false),
            ("advise", "inherit", true),
            ("within_size", "inherit", true),
            ("always", "never", false),
            ("never", "advise", true),
            ("deny", "always", false),
            ("force", "never", true),
        ] {
            root.shmem_enabled(general, Some(for_2m));
            assert_eq!(
                ShmemThp::read(root.path()).is_on(),
                is_on,
                "{general} {for_2m}"
            );
        }
        root.shmem_enabled("advise", None);
        assert!(
            ShmemThp::read(FakeRoot::new("none").path())
                .general
                .is_empty()
        );
        assert!(!ShmemThp::read(FakeRoot::new("none").path()).is_on());
    }

    #[test]
    fn this_machine_can_be_read() {
        let thp = ShmemThp::read(Path::new("/"));
        let words = [
            "",
            "always",
            "within_size",
            "advise",
            "never",
            "deny",
            "force",
        ];
        assert!(words.contains(&thp.general.as_str()), "{thp:?}");
    }
}
