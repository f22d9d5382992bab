//! One zone's memory, in the daemon: sections populated, punched, and counted.
//!
//! Populating takes real memory for a range of the zone's file, or answers with numbers and gives
//! back what it took; punching makes it the system's again. Neither needs a client to answer or
//! even to run, and no byte is touched by a load or store of this process. What may not be known
//! beforehand (pool, memory, control groups) is asked of [`backing`](crate::backing) first, because
//! a shortage found too late is a signal in some process instead of an error here.

use std::ops::Range;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::backing::{Backing, BackingFacts, WhyNot};
use crate::by_faults;
use crate::node_bound::NodeBound;
use crate::numa::Nodes;
use crate::region::{FilePages, Region, RegionError};
use crate::thp;

/// Memory that a range has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Populated {
    /// Bytes of the range, all of them allocated.
    pub bytes: u64,
    /// Which link serves it.
    pub backing: Backing,
    /// Bytes of it in huge pages; under `thp` it may be less than all.
    pub huge_bytes: u64,
}

/// Why a range has no memory. What had been got is given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PopulateError {
    /// The range does not lie in the zone, or not at whole pages.
    #[error("bytes {start:#x} to {end:#x} are no whole {pages} of a zone of {zone_bytes} bytes")]
    Range {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the zone's file.
        zone_bytes: u64,
        /// What it is made of.
        pages: FilePages,
    },
    /// The zone's file is not made for this backing.
    #[error("a zone of {pages} cannot have a section of {backing}")]
    WrongBacking {
        /// What was asked for.
        backing: Backing,
        /// What the file is made of.
        pages: FilePages,
    },
    /// It is known beforehand that there is too little; nothing was tried.
    #[error("too little memory for a section of {backing}")]
    Short {
        /// What was asked for.
        backing: Backing,
        /// What lacks, with numbers.
        #[source]
        why: WhyNot,
    },
    /// The system gave a part and then no more.
    #[error(
        "{asked_bytes} bytes of {backing} were asked for and {got_bytes} got{}",
        Now(still_short)
    )]
    Partial {
        /// What was asked for.
        backing: Backing,
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes got, and given back.
        got_bytes: u64,
        /// What lacks for another try, as the system looked afterwards.
        still_short: Option<Box<WhyNot>>,
        /// The system's answer.
        #[source]
        errno: Errno,
    },
    /// The system's no to something that takes no memory.
    #[error("cannot {step} the range")]
    System {
        /// What was being done.
        step: &'static str,
        /// The answer.
        #[source]
        errno: Errno,
    },
}

struct Now<'a>(&'a Option<Box<WhyNot>>);

impl std::fmt::Display for Now<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(why) => write!(f, "; {why}"),
            None => Ok(()),
        }
    }
}

/// What an audit found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Bytes in ranges that should have had none; punched.
    pub strays: Vec<(Range<u64>, u64)>,
    /// Bytes lacking in ranges that should have been full; allocated again, as zeros.
    pub holes: Vec<(Range<u64>, u64)>,
    /// Ranges that lack bytes still, because the system has none: touching them may kill.
    pub unmended: Vec<(Range<u64>, PopulateError)>,
}

impl Audit {
    /// Whether the file held what it should and nothing else.
    pub fn is_clean(&self) -> bool {
        self.strays.is_empty() && self.holes.is_empty() && self.unmended.is_empty()
    }
}

/// The file of one zone, and how its sections get memory.
#[derive(Debug)]
pub struct Storage {
    region: Region,
    /// Whose pages it is made of, if that was asked for.
    node: Option<u32>,
    /// The system lets nobody choose, or not us: then they are whose the kernel takes.
    is_unbound: bool,
}

impl Storage {
    /// Makes a zone's file for `backing`, `reserve_bytes` long and empty. With a `node`, all memory
    /// that it is given comes from there, unless [the system lets nobody choose](Storage::is_unbound).
    ///
    /// # Errors
    /// [`RegionError`]; also when the system has no such node.
    pub fn create(
        zone: &str,
        reserve_bytes: u64,
        backing: Backing,
        node: Option<u32>,
    ) -> Result<Storage, RegionError> {
        let region = Region::for_zone(zone, reserve_bytes, backing.file_pages())?;
        Storage::bind(region, node)
    }

    /// Takes over a zone's file from another daemon, with the memory in it.
    ///
    /// # Errors
    /// [`RegionError`], as [`Storage::create`].
    pub fn bind(region: Region, node: Option<u32>) -> Result<Storage, RegionError> {
        // Whether it can be done is known now, not when the first section comes.
        let is_unbound = match NodeBound::to(node) {
            Ok(_) => false,
            Err(Errno::ENOSYS | Errno::EPERM) if node.is_some_and(|it| Nodes::read().has(it)) => {
                true
            }
            Err(errno) => {
                return Err(RegionError::System {
                    step: "bind to its node",
                    len_bytes: region.len_bytes(),
                    errno,
                });
            }
        };
        Ok(Storage {
            region,
            node,
            is_unbound,
        })
    }

    /// Whether its node was asked for in vain: a kernel without NUMA, or a container that may not use
    /// it, takes memory as it does for everybody.
    pub fn is_unbound(&self) -> bool {
        self.is_unbound
    }

    /// The file.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Takes memory for `range`, in bytes of the file; what was in it before is gone.
    ///
    /// # Errors
    /// [`PopulateError`]; the range holds nothing then.
    pub fn populate(
        &self,
        range: Range<u64>,
        backing: Backing,
    ) -> Result<Populated, PopulateError> {
        self.populate_by(
            range,
            backing,
            &BackingFacts::probe_for(self.region.pages()),
        )
    }

    /// As [`Storage::populate`], by facts that the caller has just asked for.
    ///
    /// # Errors
    /// As [`Storage::populate`].
    pub fn populate_by(
        &self,
        range: Range<u64>,
        backing: Backing,
        facts: &BackingFacts,
    ) -> Result<Populated, PopulateError> {
        self.check(&range, backing)?;
        // A peer may have faulted pages into the hole: what comes must be zero, and all of it ours.
        self.punch(range.clone())?;
        let need_bytes = range.end - range.start;
        if let Some(why) = facts.why_not(backing, need_bytes, self.node) {
            return Err(PopulateError::Short { backing, why });
        }
        match self.fill(range.clone(), backing) {
            Ok(huge_bytes) => Ok(Populated {
                bytes: need_bytes,
                backing,
                huge_bytes,
            }),
            Err(errno) => Err(self.give_up(range, backing, errno)),
        }
    }

    /// Gives the memory of `range` back to the system, and says how many bytes that were, as far as
    /// nobody else changes the file meanwhile.
    ///
    /// # Errors
    /// [`PopulateError::Range`] or [`PopulateError::System`].
    pub fn punch(&self, range: Range<u64>) -> Result<u64, PopulateError> {
        let (offset, len) = self.place(&range)?;
        let before = self.allocated()?;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        allocate(&self.region, flags, offset, len).map_err(|errno| PopulateError::System {
            step: "punch",
            errno,
        })?;
        Ok(before.saturating_sub(self.allocated()?))
    }

    /// Compares the file's memory with what it should be: `present` ranges full, `absent` ranges
    /// empty. Punches strays and fills holes. Not to be run while a range of this zone is being
    /// populated or punched: the file can only be counted as a whole.
    ///
    /// Neither a search for data nor residency tells holes of such files apart (huge pages have no
    /// search, and untouched shared memory counts as a hole), so each range is found out by what
    /// the file gains or loses.
    ///
    /// # Errors
    /// [`PopulateError`] when the file could not be counted or punched.
    pub fn audit(
        &self,
        present: &[(Range<u64>, Backing)],
        absent: &[Range<u64>],
    ) -> Result<Audit, PopulateError> {
        let mut audit = Audit::default();
        for range in absent {
            let bytes = self.punch(range.clone())?;
            if bytes > 0 {
                audit.strays.push((range.clone(), bytes));
            }
        }
        let expected: u64 = present
            .iter()
            .map(|(range, _)| range.end - range.start)
            .sum();
        if self.allocated()? >= expected {
            return Ok(audit);
        }
        for (range, backing) in present {
            self.check(range, *backing)?;
            let before = self.allocated()?;
            let mended = self.fill(range.clone(), *backing);
            let bytes = self.allocated()?.saturating_sub(before);
            if bytes > 0 {
                audit.holes.push((range.clone(), bytes));
            }
            if let Err(errno) = mended {
                let error = self.partial(range.clone(), *backing, bytes, errno);
                audit.unmended.push((range.clone(), error));
            }
        }
        Ok(audit)
    }

    /// Bytes that are really allocated in the whole file.
    ///
    /// # Errors
    /// [`PopulateError::System`].
    pub fn allocated(&self) -> Result<u64, PopulateError> {
        self.region
            .allocated_bytes()
            .map_err(|errno| PopulateError::System {
                step: "count",
                errno,
            })
    }

    /// Allocates what lacks in `range`; bytes that are huge pages for sure.
    fn fill(&self, range: Range<u64>, backing: Backing) -> Result<u64, Errno> {
        let (offset, len) = self.place(&range).map_err(|_| Errno::EINVAL)?;
        let bound = NodeBound::to(self.node.filter(|_| !self.is_unbound))?;
        match backing {
            Backing::Thp => thp::fill(&self.region, range, &bound),
            Backing::Hugetlb | Backing::Hugetlb1G => {
                // By faults it goes side by side. Whether they got all of it, and what the system
                // says if not, is found out by the one call that is bound to say it: where nothing
                // lacks any more it takes microseconds.
                let _ = by_faults::fill(&self.region, range.clone(), None, &bound);
                allocate(&self.region, FallocateFlags::empty(), offset, len)?;
                Ok(range.end - range.start)
            }
            Backing::Shm => {
                allocate(&self.region, FallocateFlags::empty(), offset, len)?;
                Ok(0)
            }
        }
    }

    /// Gives back what a failed populate got, and says what it was.
    fn give_up(&self, range: Range<u64>, backing: Backing, errno: Errno) -> PopulateError {
        let got_bytes = match self.punch(range.clone()) {
            Ok(bytes) => bytes,
            Err(error) => return error,
        };
        self.partial(range, backing, got_bytes, errno)
    }

    fn partial(
        &self,
        range: Range<u64>,
        backing: Backing,
        got_bytes: u64,
        errno: Errno,
    ) -> PopulateError {
        let asked_bytes = range.end - range.start;
        let facts = BackingFacts::probe_for(self.region.pages());
        PopulateError::Partial {
            backing,
            asked_bytes,
            got_bytes,
            still_short: facts.why_not(backing, asked_bytes, self.node).map(Box::new),
            errno,
        }
    }

    fn check(&self, range: &Range<u64>, backing: Backing) -> Result<(), PopulateError> {
        let pages = self.region.pages();
        if backing.file_pages() != pages {
            return Err(PopulateError::WrongBacking { backing, pages });
        }
        self.place(range).map(drop)
    }

    /// The one bounds check: whole pages inside the file, as the system calls want them.
    fn place(&self, range: &Range<u64>) -> Result<(libc::off_t, libc::off_t), PopulateError> {
        let pages = self.region.pages();
        let Range { start, end } = *range;
        let is_whole = start < end
            && end <= self.region.len_bytes()
            && start.is_multiple_of(pages.page_bytes())
            && end.is_multiple_of(pages.page_bytes());
        let offset = libc::off_t::try_from(start);
        let len = libc::off_t::try_from(end.wrapping_sub(start));
        match (offset, len) {
            (Ok(offset), Ok(len)) if is_whole => Ok((offset, len)),
            _ => Err(PopulateError::Range {
                start,
                end,
                zone_bytes: self.region.len_bytes(),
                pages,
            }),
        }
    }
}

/// `fallocate`, once more after a signal: it is safe to repeat, since it only adds what lacks.
fn allocate(
    region: &Region,
    flags: FallocateFlags,
    offset: libc::off_t,
    len: libc::off_t,
) -> Result<(), Errno> {
    loop {
        match fallocate(region, flags, offset, len) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_bound::testing;
    use crate::test_support::{skip::skip, system};

    const HUGE: u64 = 2 << 20;

    /// What the look beforehand cannot rule out: the pool runs dry while it is being taken.
    #[test]
    fn a_populate_that_fails_half_way_gives_back_what_it_got() {
        let mut machine = system::Machine::lock();
        if !machine.free_huge_pages(5) {
            return skip(
                "a_populate_that_fails_half_way_gives_back_what_it_got",
                "no hugepages",
            );
        }
        let storage = Storage::create("partial", 1 << 30, Backing::Hugetlb, None).unwrap();
        let range = 4 * HUGE..12 * HUGE;
        let errno = storage.fill(range.clone(), Backing::Hugetlb).unwrap_err();
        assert_eq!(
            storage.allocated(),
            Ok(5 * HUGE),
            "the kernel keeps what it got"
        );
        let error = storage.give_up(range, Backing::Hugetlb, errno);
        assert_eq!(storage.allocated(), Ok(0));
        assert_eq!(system::free_huge_pages_now(), 5);
        let text = error.to_string();
        for part in [
            "16777216 bytes of hugetlb",
            "10485760 got",
            "3 (6291456 bytes) more",
            "free 5 of",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    /// Huge pages that a node has free.
    fn free_on(node: u32) -> Option<u64> {
        let folder = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        let text = std::fs::read_to_string(format!("{folder}/free_hugepages")).ok()?;
        text.trim().parse().ok()
    }

    /// Seen to fail when the thread that populates is not bound. Where pages come from can be told
    /// apart on two nodes only; on one it is that this happens at all.
    #[test]
    fn a_zone_of_a_node_has_its_pages_from_there() {
        let name = "a_zone_of_a_node_has_its_pages_from_there";
        let mut machine = system::Machine::lock();
        if !machine.free_huge_pages(8) {
            return skip(name, "no hugepages");
        }
        let mut nr_tried = 0;
        for node in (0..8).filter(|node| free_on(*node) >= Some(4)) {
            let Ok(storage) = Storage::create("node", 1 << 30, Backing::Hugetlb, Some(node)) else {
                return skip(name, "memory policies are forbidden here");
            };
            let free = free_on(node).unwrap();
            testing::LAST.set(None);
            storage.populate(0..4 * HUGE, Backing::Hugetlb).unwrap();
            assert_eq!(testing::LAST.get(), Some(node));
            assert_eq!(free_on(node), Some(free - 4));
            nr_tried += 1;
        }
        assert!(nr_tried > 0);
        assert_ne!(testing::is_bound_to(0), Some(true));
    }
}
