//! The declared chain of backings, and which link serves a zone here and now.
//!
//! `hugetlb` (pages from the reserved pool) → `thp` (shared memory with transparent huge pages) →
//! `shm` (4 KiB pages). [`choose`] walks it with the numbers of the moment and says for each link
//! that it passed over why. It decides and allocates nothing; that is the affair of
//! [`storage`](crate::storage), where the same shortage is an error too.

use std::path::Path;
use std::str::FromStr;

pub use crate::backing_report::{NoBacking, PassedOver, WhyNot};
use crate::huge_pool::{HugePool, ShmemThp};
use crate::memory_room::MemoryRoom;
use crate::region::FilePages;

/// What a section's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Pages of 2 MiB from the reserved pool.
    Hugetlb,
    /// Pages of 1 GiB from the reserved pool; only when asked for.
    Hugetlb1G,
    /// Shared memory with transparent huge pages, as far as they can be had.
    Thp,
    /// Shared memory of 4 KiB pages.
    Shm,
}

impl Backing {
    /// What pages the zone's file is made of.
    pub fn file_pages(self) -> FilePages {
        match self {
            Backing::Hugetlb => FilePages::Huge2M,
            Backing::Hugetlb1G => FilePages::Huge1G,
            Backing::Thp | Backing::Shm => FilePages::Shmem,
        }
    }

    /// The name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Backing::Hugetlb => "hugetlb",
            Backing::Hugetlb1G => "hugetlb-1GiB",
            Backing::Thp => "thp",
            Backing::Shm => "shm",
        }
    }
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What the configuration asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackingChoice {
    /// The first link of the chain that can serve.
    #[default]
    Auto,
    /// This one, or an error.
    Only(Backing),
}

impl BackingChoice {
    /// The links to try, in order.
    fn links(self) -> Vec<Backing> {
        match self {
            BackingChoice::Auto => vec![Backing::Hugetlb, Backing::Thp, Backing::Shm],
            BackingChoice::Only(backing) => vec![backing],
        }
    }
}

impl std::fmt::Display for BackingChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BackingChoice::Auto => f.write_str("auto"),
            BackingChoice::Only(backing) => backing.fmt(f),
        }
    }
}

/// A word that names no backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a backing is one of auto, hugetlb, hugetlb-1GiB, thp, shm")]
pub struct UnknownBacking;

impl FromStr for BackingChoice {
    type Err = UnknownBacking;

    fn from_str(text: &str) -> Result<BackingChoice, UnknownBacking> {
        let all = [
            Backing::Hugetlb,
            Backing::Hugetlb1G,
            Backing::Thp,
            Backing::Shm,
        ];
        if text == "auto" {
            return Ok(BackingChoice::Auto);
        }
        let named = all.into_iter().find(|backing| backing.name() == text);
        named.map(BackingChoice::Only).ok_or(UnknownBacking)
    }
}

/// The numbers that a choice rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingFacts {
    /// The pool of 2 MiB pages, if the system has one.
    pub pool_2m: Option<HugePool>,
    /// The pool of 1 GiB pages, if the system has one.
    pub pool_1g: Option<HugePool>,
    /// Whether shared memory may use transparent huge pages.
    pub thp: ShmemThp,
    /// How much ordinary memory can be had.
    pub memory: MemoryRoom,
}

impl BackingFacts {
    /// Asks this system.
    pub fn probe() -> BackingFacts {
        BackingFacts::read(Path::new("/"))
    }

    /// Asks only what concerns files of such pages; the rest says that there is nothing. Asking for
    /// all takes about forty files, and some milliseconds' worth of statistics behind them.
    pub fn probe_for(pages: FilePages) -> BackingFacts {
        let root = Path::new("/");
        let pool = |of: FilePages| {
            let is_asked = of == pages;
            is_asked.then(|| HugePool::read(root, of.page_bytes()))?
        };
        let is_shmem = pages == FilePages::Shmem;
        BackingFacts {
            pool_2m: pool(FilePages::Huge2M),
            pool_1g: pool(FilePages::Huge1G),
            thp: if is_shmem {
                ShmemThp::read(root)
            } else {
                ShmemThp::OFF
            },
            memory: if is_shmem {
                MemoryRoom::read(root)
            } else {
                MemoryRoom::NONE
            },
        }
    }

    /// Reads the facts under `root`.
    pub(crate) fn read(root: &Path) -> BackingFacts {
        BackingFacts {
            pool_2m: HugePool::read(root, FilePages::Huge2M.page_bytes()),
            pool_1g: HugePool::read(root, FilePages::Huge1G.page_bytes()),
            thp: ShmemThp::read(root),
            memory: MemoryRoom::read(root),
        }
    }

    /// Why `backing` cannot give `need_bytes` now, on `node` if one is given; `None` if it can as
    /// far as can be known.
    pub fn why_not(&self, backing: Backing, need_bytes: u64, node: Option<u32>) -> Option<WhyNot> {
        match backing {
            Backing::Hugetlb => pool_shortage(self.pool_2m.as_ref(), need_bytes, node),
            Backing::Hugetlb1G => pool_shortage(self.pool_1g.as_ref(), need_bytes, node),
            Backing::Thp if !self.thp.is_on() => Some(WhyNot::ThpOff(self.thp.clone())),
            Backing::Thp | Backing::Shm => {
                let MemoryRoom { room_bytes, bound } = &self.memory;
                (need_bytes > *room_bytes).then(|| WhyNot::MemoryShort {
                    need_bytes,
                    room_bytes: *room_bytes,
                    bound: bound.clone(),
                })
            }
        }
    }
}

fn pool_shortage(pool: Option<&HugePool>, need_bytes: u64, node: Option<u32>) -> Option<WhyNot> {
    let Some(pool) = pool else {
        return Some(WhyNot::NoPool);
    };
    let need = need_bytes.div_ceil(pool.page_bytes);
    let available = pool.available(node);
    (need > available).then(|| WhyNot::PoolShort {
        need_pages: need,
        short_pages: need - available,
        short_bytes: (need - available).saturating_mul(pool.page_bytes),
        node,
        pool: pool.clone(),
    })
}

/// The link that serves, and those before it that do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenBacking {
    /// The link taken.
    pub backing: Backing,
    /// The links before it in the chain, in order.
    pub passed_over: Vec<PassedOver>,
}

/// What a zone needs of its backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingNeed {
    /// Bytes to be populated at the start.
    pub need_bytes: u64,
    /// Bytes of a section: a multiple of the page, or huge pages cannot serve.
    pub section_bytes: u64,
    /// The node that the memory must come from, if any.
    pub node: Option<u32>,
}

/// Takes the first link of what `choice` allows that can serve `need`.
///
/// # Errors
/// [`NoBacking`], with the numbers of every link.
pub fn choose(
    choice: BackingChoice,
    need: BackingNeed,
    facts: &BackingFacts,
) -> Result<ChosenBacking, NoBacking> {
    let mut passed_over = Vec::new();
    for backing in choice.links() {
        let page_bytes = backing.file_pages().page_bytes();
        let why = if need.section_bytes.is_multiple_of(page_bytes) {
            facts.why_not(backing, need.need_bytes, need.node)
        } else {
            Some(WhyNot::SectionUnaligned {
                section_bytes: need.section_bytes,
                page_bytes,
            })
        };
        match why {
            None => {
                return Ok(ChosenBacking {
                    backing,
                    passed_over,
                });
            }
            Some(why) => passed_over.push(PassedOver { backing, why }),
        }
    }
    Err(NoBacking {
        choice,
        need_bytes: need.need_bytes,
        passed_over,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeRoot;

    const MIB: u64 = 1 << 20;

    fn machine(name: &str, free_pages: u64, shmem_enabled: &str, available_mib: u64) -> FakeRoot {
        let root = FakeRoot::new(name);
        root.pool(2048, [64, free_pages, 0, 0, 0]);
        root.node_pool(0, 2048, [64, free_pages]);
        root.shmem_enabled(shmem_enabled, Some("inherit"));
        let kib = available_mib * 1024;
        root.write("proc/meminfo", &format!("MemAvailable: {kib} kB\n"));
        root
    }

    fn need(mib: u64) -> BackingNeed {
        BackingNeed {
            need_bytes: mib * MIB,
            section_bytes: 128 * MIB,
            node: None,
        }
    }

    fn auto(root: &FakeRoot, need: BackingNeed) -> Result<ChosenBacking, NoBacking> {
        choose(BackingChoice::Auto, need, &BackingFacts::read(root.path()))
    }

    #[test]
    fn the_pool_serves_when_it_can() {
        let root = machine("pool-serves", 64, "never", 9000);
        let chosen = auto(&root, need(128)).unwrap();
        assert_eq!(chosen.backing, Backing::Hugetlb);
        assert!(chosen.passed_over.is_empty());
    }

    #[test]
    fn a_short_pool_is_passed_over_with_its_numbers() {
        let root = machine("short-pool", 60, "advise", 9000);
        let chosen = auto(&root, need(128)).unwrap();
        assert_eq!(chosen.backing, Backing::Thp);
        let text = chosen.passed_over[0].to_string();
        for part in [
            "hugetlb: 64 huge pages",
            "4 (8388608 bytes) more",
            "free 60 of 64",
            "node 0",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_last_link_says_why_both_before_it_were_not_taken() {
        let root = machine("last-link", 0, "never", 9000);
        let chosen = auto(&root, need(128)).unwrap();
        assert_eq!(chosen.backing, Backing::Shm);
        assert_eq!(chosen.passed_over.len(), 2);
        let text = chosen.passed_over[1].to_string();
        assert!(text.contains("thp:") && text.contains("'never'"), "{text}");
    }

    #[test]
    fn with_no_memory_at_all_every_link_says_why() {
        let root = machine("none", 0, "advise", 100);
        let error = auto(&root, need(128)).unwrap_err();
        assert_eq!(error.passed_over.len(), 3);
        let text = error.to_string();
        for part in [
            "134217728 bytes as auto",
            "hugetlb:",
            "thp:",
            "shm:",
            "104857600 bytes available",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_one_that_is_asked_for_is_the_only_one_tried() {
        let root = machine("only", 0, "never", 9000);
        let facts = BackingFacts::read(root.path());
        for (backing, is_served) in [
            (Backing::Hugetlb, false),
            (Backing::Hugetlb1G, false),
            (Backing::Thp, false),
            (Backing::Shm, true),
        ] {
            let found = choose(BackingChoice::Only(backing), need(128), &facts);
            assert_eq!(found.is_ok(), is_served, "{backing}");
            if let Err(error) = found {
                assert_eq!(error.passed_over.len(), 1);
            }
        }
    }

    #[test]
    fn a_section_smaller_than_a_huge_page_is_passed_over() {
        let root = machine("small-section", 64, "never", 9000);
        let small = BackingNeed {
            section_bytes: MIB,
            ..need(1)
        };
        let chosen = auto(&root, small).unwrap();
        assert_eq!(chosen.backing, Backing::Shm);
        let why = &chosen.passed_over[0].why;
        assert!(matches!(why, WhyNot::SectionUnaligned { .. }), "{why}");
    }

    #[test]
    fn a_node_without_pages_is_named() {
        let root = machine("node", 64, "never", 9000);
        let elsewhere = BackingNeed {
            node: Some(3),
            ..need(2)
        };
        let chosen = auto(&root, elsewhere).unwrap();
        let text = chosen.passed_over[0].to_string();
        assert!(text.contains("on node 3"), "{text}");
    }

    #[test]
    fn names_and_choices_are_the_same_words() {
        for word in ["auto", "hugetlb", "hugetlb-1GiB", "thp", "shm"] {
            let choice: BackingChoice = word.parse().unwrap();
            assert_eq!(choice.to_string(), word);
        }
        assert_eq!("huge".parse::<BackingChoice>(), Err(UnknownBacking));
    }
}
