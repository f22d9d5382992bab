//! Stand-ins for tests of this crate: a root folder with the kernel's files as a test wants them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder with the files of `/sys` and `/proc` that a test has put there; gone afterwards.
pub(crate) struct FakeRoot(PathBuf);

impl FakeRoot {
    pub(crate) fn new(test: &str) -> FakeRoot {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hugepool-root-{test}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        FakeRoot(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The numbers are total, free, reserved, surplus, overcommit, in pages.
    pub(crate) fn pool(&self, page_kib: u64, numbers: [u64; 5]) {
        let names = [
            "nr_hugepages",
            "free_hugepages",
            "resv_hugepages",
            "surplus_hugepages",
            "nr_overcommit_hugepages",
        ];
        for (name, value) in names.iter().zip(numbers) {
            let folder = format!("sys/kernel/mm/hugepages/hugepages-{page_kib}kB");
            self.write(&format!("{folder}/{name}"), &format!("{value}\n"));
        }
    }

    /// The numbers are total and free, in pages.
    pub(crate) fn node_pool(&self, node: u32, page_kib: u64, numbers: [u64; 2]) {
        let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-{page_kib}kB");
        for (name, value) in ["nr_hugepages", "free_hugepages"].iter().zip(numbers) {
            self.write(&format!("{folder}/{name}"), &format!("{value}\n"));
        }
    }

    pub(crate) fn shmem_enabled(&self, general: &str, for_2m: Option<&str>) {
        let folder = "sys/kernel/mm/transparent_hugepage";
        let path = format!("{folder}/hugepages-2048kB/shmem_enabled");
        self.write(
            &format!("{folder}/shmem_enabled"),
            &format!("always [{general}] x\n"),
        );
        match for_2m {
            Some(word) => self.write(&path, &format!("[{word}]\n")),
            None => std::fs::remove_file(self.0.join(path)).unwrap(),
        }
    }
}

impl Drop for FakeRoot {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
