//! A zone's memory on the real machine: populated, punched, mapped, counted, and short.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

mod support {
    pub mod skip;
    pub mod system;
}

use std::os::fd::AsFd;
use std::path::Path;

use hugepool_shm::Errno;
use hugepool_shm::backing::{Backing, WhyNot};
use hugepool_shm::page_io::{PageIo, PageIoError};
use hugepool_shm::region::{FilePages, Region, RegionError};
use hugepool_shm::storage::{PopulateError, Storage};
use hugepool_shm::zone_map::{ZoneExtent, ZoneMap, ZoneMapError};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use support::skip::skip;
use support::system::{Machine, free_huge_pages_now};

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;
/// A section of 8 MiB: four huge pages.
const SECTION: u64 = 8 * MIB;
const RESERVE: u64 = 1 << 36;
/// The zone starts somewhere in the middle of the pfns.
const START_PFN: u64 = 1 << 20;

fn extent() -> ZoneExtent {
    ZoneExtent {
        start_pfn: START_PFN,
        span_pages: RESERVE >> 12,
        page_shift: 12,
        section_order: 11,
        writable: true,
    }
}

/// The same file in other hands, as after it came over a socket.
fn passed_on(storage: &Storage) -> Region {
    let fd = storage.region().as_fd().try_clone_to_owned().unwrap();
    Region::adopt(fd).unwrap()
}

fn section(index: u64) -> std::ops::Range<u64> {
    index * SECTION..(index + 1) * SECTION
}

fn address(map: &ZoneMap, offset: u64) -> usize {
    let pfn = START_PFN + (offset >> 12);
    map.pfn_zero_address()
        .wrapping_add(usize::try_from(pfn << 12).unwrap())
}

/// Reads through the map by a system call, which answers where a load would fault.
fn peek(map: &ZoneMap, offset: u64) -> Result<u8, Errno> {
    let mut byte = [0];
    let remote = [RemoteIoVec {
        base: address(map, offset),
        len: 1,
    }];
    let local = &mut [std::io::IoSliceMut::new(&mut byte)];
    process_vm_readv(nix::unistd::getpid(), local, &remote)?;
    Ok(byte[0])
}

fn poke(map: &ZoneMap, offset: u64, value: u8) -> Result<(), Errno> {
    let remote = [RemoteIoVec {
        base: address(map, offset),
        len: 1,
    }];
    let local = [std::io::IoSlice::new(std::slice::from_ref(&value))];
    process_vm_writev(nix::unistd::getpid(), &local, &remote).map(drop)
}

fn allocated(storage: &Storage) -> u64 {
    storage.allocated().unwrap()
}

/// What every backing must do, seen by a client that mapped before anything was there.
fn sections_come_and_go(backing: Backing) {
    let storage = Storage::create("test", RESERVE, backing, None).unwrap();
    let map = ZoneMap::reserve(passed_on(&storage), extent()).unwrap();
    assert_eq!(allocated(&storage), 0);
    assert_eq!(peek(&map, 5 * SECTION), Err(Errno::EFAULT));

    let populated = storage.populate(section(5), backing).unwrap();
    assert_eq!((populated.bytes, populated.backing), (SECTION, backing));
    assert_eq!(allocated(&storage), SECTION);
    // Announced by nobody, mapped by nobody: still not there.
    assert_eq!(peek(&map, 5 * SECTION), Err(Errno::EFAULT));

    map.map_section(5).unwrap();
    map.map_section(5).unwrap();
    assert!(map.is_mapped(5) && !map.is_mapped(4));
    assert_eq!(peek(&map, 6 * SECTION - 1), Ok(0));
    poke(&map, 5 * SECTION, 77).unwrap();
    assert_eq!(peek(&map, 5 * SECTION), Ok(77));
    assert_eq!(peek(&map, 5 * SECTION - 1), Err(Errno::EFAULT));
    assert_eq!(peek(&map, 6 * SECTION), Err(Errno::EFAULT));
    assert_eq!(allocated(&storage), SECTION, "using it takes no more");

    // Populating again starts from zeros.
    storage.populate(section(5), backing).unwrap();
    assert_eq!(peek(&map, 5 * SECTION), Ok(0));

    map.unmap_section(5).unwrap();
    map.unmap_section(5).unwrap();
    assert_eq!(peek(&map, 5 * SECTION), Err(Errno::EFAULT));
    assert_eq!(storage.punch(section(5)).unwrap(), SECTION);
    assert_eq!(allocated(&storage), 0);
    assert_eq!(storage.punch(section(5)).unwrap(), 0);
}

#[test]
fn sections_of_small_pages_come_and_go() {
    sections_come_and_go(Backing::Shm);
}

#[test]
fn sections_of_huge_pages_come_and_go() {
    let mut machine = Machine::lock();
    if !machine.free_huge_pages(8) {
        return skip("sections_of_huge_pages_come_and_go", "no hugepages");
    }
    sections_come_and_go(Backing::Hugetlb);
    assert_eq!(free_huge_pages_now(), 8, "the pool has all its pages again");
}

#[test]
fn sections_of_transparent_huge_pages_come_and_go() {
    let mut machine = Machine::lock();
    if !machine.switch_thp_on() {
        return skip(
            "sections_of_transparent_huge_pages_come_and_go",
            "shmem_enabled cannot be set",
        );
    }
    sections_come_and_go(Backing::Thp);
    let storage = Storage::create("test", RESERVE, Backing::Thp, None).unwrap();
    let range = 0..128 * MIB;
    let populated = storage.populate(range, Backing::Thp).unwrap();
    // How many are huge is the kernel's to say: memory in pieces has no room for all. Those that
    // are not are told, so that the operator sees them.
    let huge_bytes = populated.huge_bytes;
    assert!(
        huge_bytes > 0 && huge_bytes <= 128 * MIB && huge_bytes.is_multiple_of(2 * MIB),
        "{populated:?}"
    );
    // The same file may have sections of small pages too.
    let small = storage
        .populate(256 * MIB..264 * MIB, Backing::Shm)
        .unwrap();
    assert_eq!(small.huge_bytes, 0);
}

#[test]
fn transparent_huge_pages_that_are_off_are_an_error_and_not_small_pages() {
    let mut machine = Machine::lock();
    if !machine.switch_thp_off() {
        return skip(
            "transparent_huge_pages_that_are_off_are_an_error_and_not_small_pages",
            "shmem_enabled cannot be set",
        );
    }
    let storage = Storage::create("test", RESERVE, Backing::Thp, None).unwrap();
    let error = storage.populate(section(0), Backing::Thp).unwrap_err();
    let PopulateError::Short { why, .. } = &error else {
        panic!("{error}");
    };
    assert!(matches!(why, WhyNot::ThpOff(_)), "{why}");
    assert_eq!(allocated(&storage), 0);
}

#[test]
fn a_short_pool_is_an_error_with_numbers_and_takes_nothing() {
    let mut machine = Machine::lock();
    if !machine.free_huge_pages(6) {
        return skip(
            "a_short_pool_is_an_error_with_numbers_and_takes_nothing",
            "no hugepages",
        );
    }
    let storage = Storage::create("test", RESERVE, Backing::Hugetlb, None).unwrap();
    storage.populate(section(0), Backing::Hugetlb).unwrap();
    let error = storage.populate(section(1), Backing::Hugetlb).unwrap_err();
    let PopulateError::Short { why, .. } = &error else {
        panic!("{error}");
    };
    let text = why.to_string();
    for part in [
        "4 huge pages",
        "2 (4194304 bytes) more",
        "free 2 of",
        "node 0",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(allocated(&storage), SECTION);
    assert_eq!(free_huge_pages_now(), 2);
}

/// Pages of 1 GiB exist only where somebody has reserved them, and then not many.
#[test]
fn a_zone_of_gigabyte_pages_is_an_error_where_there_are_none() {
    let created = Storage::create("giant", 1 << 40, Backing::Hugetlb1G, None);
    let storage = match created {
        Ok(storage) => storage,
        Err(error) => {
            let pages = FilePages::Huge1G;
            assert_eq!(error, RegionError::NoSuchPages { pages });
            return;
        }
    };
    let error = storage
        .populate(0..1 << 40, Backing::Hugetlb1G)
        .unwrap_err();
    let PopulateError::Short { why, .. } = &error else {
        panic!("{error}");
    };
    assert!(why.to_string().contains("1024 huge pages"), "{why}");
    assert_eq!(allocated(&storage), 0);
}

#[test]
fn memory_comes_from_the_node_asked_for_or_not_at_all() {
    for backing in [Backing::Shm, Backing::Hugetlb] {
        // Also where nobody may choose: then it is of any node, which is said.
        let storage = Storage::create("node", RESERVE, backing, Some(0)).unwrap();
        assert_eq!(
            storage.is_unbound(),
            !Path::new("/proc/self/numa_maps").exists()
        );
        let nowhere = Storage::create("node", RESERVE, backing, Some(1000)).unwrap_err();
        let text = nowhere.to_string();
        assert!(text.contains("bind to its node"), "{text}");
    }
    let storage = Storage::create("node", RESERVE, Backing::Shm, Some(0)).unwrap();
    storage.populate(section(0), Backing::Shm).unwrap();
    assert_eq!(allocated(&storage), SECTION);
}

#[test]
fn more_memory_than_the_machine_has_is_an_error_with_numbers() {
    let storage = Storage::create("test", 1 << 44, Backing::Shm, None).unwrap();
    let error = storage.populate(0..1 << 44, Backing::Shm).unwrap_err();
    let PopulateError::Short { why, .. } = &error else {
        panic!("{error}");
    };
    assert!(matches!(why, WhyNot::MemoryShort { .. }), "{why}");
    assert_eq!(allocated(&storage), 0);
}

#[test]
fn ranges_that_are_no_whole_pages_of_the_zone_are_refused() {
    let storage = Storage::create("test", RESERVE, Backing::Shm, None).unwrap();
    let backwards = std::ops::Range {
        start: 8192,
        end: 4096,
    };
    for range in [0..0, 0..100, 100..4096, RESERVE..RESERVE + 4096, backwards] {
        let shown = format!("{range:?}");
        let error = storage.populate(range.clone(), Backing::Shm).unwrap_err();
        assert!(matches!(error, PopulateError::Range { .. }), "{shown}");
        assert!(storage.punch(range).is_err(), "{shown}");
    }
    let error = storage.populate(section(0), Backing::Hugetlb).unwrap_err();
    assert!(
        matches!(error, PopulateError::WrongBacking { .. }),
        "{error}"
    );
}

#[test]
fn an_audit_finds_strays_and_holes_and_mends_them() {
    let storage = Storage::create("test", RESERVE, Backing::Shm, None).unwrap();
    audit_mends(&storage, Backing::Shm, 4096);
}

#[test]
fn an_audit_of_huge_pages_finds_strays_and_holes_and_mends_them() {
    let mut machine = Machine::lock();
    if !machine.free_huge_pages(16) {
        return skip(
            "an_audit_of_huge_pages_finds_strays_and_holes_and_mends_them",
            "no hugepages",
        );
    }
    let storage = Storage::create("test", RESERVE, Backing::Hugetlb, None).unwrap();
    audit_mends(&storage, Backing::Hugetlb, HUGE);
}

fn audit_mends(storage: &Storage, backing: Backing, page: u64) {
    let present = [(section(0), backing), (section(2), backing)];
    let absent = [section(1), section(3)];
    for (range, backing) in &present {
        storage.populate(range.clone(), *backing).unwrap();
    }
    assert!(storage.audit(&present, &absent).unwrap().is_clean());

    // A hostile client punches one page of a section and faults one in where none is.
    let peer = PageIo::new(storage.region()).unwrap();
    storage
        .punch(section(2).start..section(2).start + page)
        .unwrap();
    peer.zero(section(1).start, 1).unwrap();
    assert_eq!(
        allocated(storage),
        2 * SECTION,
        "the sum alone shows nothing"
    );

    let audit = storage.audit(&present, &absent).unwrap();
    assert_eq!(audit.strays, [(section(1), page)]);
    assert_eq!(audit.holes, [(section(2), page)]);
    assert!(audit.unmended.is_empty());
    assert!(storage.audit(&present, &absent).unwrap().is_clean());
    assert_eq!(allocated(storage), 2 * SECTION);
}

#[test]
fn an_audit_that_cannot_mend_says_so() {
    let mut machine = Machine::lock();
    if !machine.free_huge_pages(4) {
        return skip("an_audit_that_cannot_mend_says_so", "no hugepages");
    }
    let storage = Storage::create("test", RESERVE, Backing::Hugetlb, None).unwrap();
    storage.populate(section(0), Backing::Hugetlb).unwrap();
    storage.punch(0..HUGE).unwrap();
    let other = Storage::create("other", RESERVE, Backing::Hugetlb, None).unwrap();
    other.populate(0..HUGE, Backing::Hugetlb).unwrap();
    let audit = storage
        .audit(&[(section(0), Backing::Hugetlb)], &[])
        .unwrap();
    let [(range, error)] = &audit.unmended[..] else {
        panic!("{audit:?}");
    };
    assert_eq!(*range, section(0));
    assert!(matches!(error, PopulateError::Partial { .. }), "{error}");
}

#[test]
fn pages_are_zeroed_and_copied() {
    let storage = Storage::create("test", RESERVE, Backing::Shm, None).unwrap();
    storage.populate(section(0), Backing::Shm).unwrap();
    pages_move(&storage);
}

#[test]
fn huge_pages_are_zeroed_and_copied() {
    let mut machine = Machine::lock();
    if !machine.free_huge_pages(4) {
        return skip("huge_pages_are_zeroed_and_copied", "no hugepages");
    }
    let storage = Storage::create("test", RESERVE, Backing::Hugetlb, None).unwrap();
    storage.populate(section(0), Backing::Hugetlb).unwrap();
    pages_move(&storage);
}

fn pages_move(storage: &Storage) {
    let io = PageIo::new(storage.region()).unwrap();
    let map = ZoneMap::reserve(passed_on(storage), extent()).unwrap();
    map.map_section(0).unwrap();
    let last = SECTION - 1;
    for offset in [0, 4095, 4096, 3 * MIB, last] {
        poke(&map, offset, 9).unwrap();
    }
    io.copy(0, 4 * MIB, 4096).unwrap();
    assert_eq!(peek(&map, 4 * MIB), Ok(9));
    assert_eq!(peek(&map, 4 * MIB + 4095), Ok(9));
    assert_eq!(peek(&map, 4 * MIB + 4096), Ok(0));
    io.zero(0, 4096).unwrap();
    assert_eq!(peek(&map, 0), Ok(0));
    assert_eq!(peek(&map, 4096), Ok(9), "the next page is untouched");
    io.zero(0, SECTION).unwrap();
    for offset in [4096, 3 * MIB, 4 * MIB, last] {
        assert_eq!(peek(&map, offset), Ok(0));
    }
    let refused = io.zero(RESERVE - 1, 2).unwrap_err();
    assert!(matches!(refused, PageIoError::OutOfBounds { .. }));
    assert!(io.zero(u64::MAX, 2).is_err());
    assert!(io.copy(0, RESERVE, 1).is_err());
    assert_eq!(io.zero(RESERVE, 0), Ok(()));
}

/// The whole point of going through system calls: a store would end the process with SIGBUS here.
#[test]
fn a_hole_with_the_pool_empty_is_an_error_and_not_the_end() {
    let mut machine = Machine::lock();
    if !machine.free_huge_pages(4) {
        return skip(
            "a_hole_with_the_pool_empty_is_an_error_and_not_the_end",
            "no hugepages",
        );
    }
    let storage = Storage::create("test", RESERVE, Backing::Hugetlb, None).unwrap();
    storage.populate(section(0), Backing::Hugetlb).unwrap();
    let io = PageIo::new(storage.region()).unwrap();
    // A peer punches the third page and faults it in elsewhere: the pool is empty again.
    storage.punch(2 * HUGE..3 * HUGE).unwrap();
    let thief = Storage::create("thief", RESERVE, Backing::Hugetlb, None).unwrap();
    thief.populate(0..HUGE, Backing::Hugetlb).unwrap();
    assert_eq!(free_huge_pages_now(), 0);

    let fault = PageIoError::Fault { offset: 2 * HUGE };
    assert_eq!(io.zero(2 * HUGE, 4096), Err(fault));
    assert_eq!(io.copy(0, 2 * HUGE, HUGE), Err(fault));
    // A range that runs into the hole is done up to it.
    assert_eq!(io.zero(HUGE, 2 * HUGE), Err(fault));
    // Reading the hole gives zeros and takes nothing; the pages around it work as before.
    assert_eq!(io.copy(2 * HUGE, 0, 4096), Ok(()));
    assert_eq!(io.zero(3 * HUGE, HUGE), Ok(()));
}

#[test]
fn a_map_is_left_out_of_dumps_and_of_children() {
    let storage = Storage::create("test", RESERVE, Backing::Shm, None).unwrap();
    storage.populate(section(0), Backing::Shm).unwrap();
    let map = ZoneMap::reserve(passed_on(&storage), extent()).unwrap();
    map.map_section(0).unwrap();
    map.map_section(2).unwrap();
    map.unmap_section(2).unwrap();
    for index in [0, 1, 2, 3] {
        let flags = map_flags(address(&map, index * SECTION));
        for flag in ["dd", "dc"] {
            assert!(
                flags.iter().any(|found| found == flag),
                "{index}: {flags:?}"
            );
        }
    }
    let base = address(&map, 0);
    assert!(base.is_multiple_of(2 << 20), "{base:#x}");
}

/// The kernel's two-letter flags of the mapping that `address` lies in.
fn map_flags(address: usize) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    for line in text.lines() {
        let range = line
            .split_once(' ')
            .and_then(|(range, _)| range.split_once('-'));
        let parse = |text| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(a, b)| parse(a).zip(parse(b))) {
            is_here = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing is mapped at {address:#x}");
}

#[test]
fn a_zone_that_may_be_read_only_cannot_be_written() {
    let storage = Storage::create("test", RESERVE, Backing::Shm, None).unwrap();
    storage.populate(section(0), Backing::Shm).unwrap();
    let read_only = ZoneExtent {
        writable: false,
        ..extent()
    };
    let map = ZoneMap::reserve(passed_on(&storage), read_only).unwrap();
    map.map_section(0).unwrap();
    assert_eq!(peek(&map, 0), Ok(0));
    assert_eq!(poke(&map, 0, 1), Err(Errno::EFAULT));
}

#[test]
fn an_extent_that_does_not_fit_its_file_is_refused() {
    let good = extent();
    let region = || Region::for_zone("test", RESERVE, FilePages::Shmem).unwrap();
    for bad in [
        ZoneExtent {
            span_pages: 0,
            ..good
        },
        ZoneExtent {
            span_pages: good.span_pages + 1,
            ..good
        },
        ZoneExtent {
            span_pages: u64::MAX,
            ..good
        },
        ZoneExtent {
            start_pfn: 1 << 32,
            ..good
        },
        ZoneExtent {
            start_pfn: u64::MAX,
            ..good
        },
        ZoneExtent {
            page_shift: 0,
            ..good
        },
        ZoneExtent {
            page_shift: 64,
            ..good
        },
        ZoneExtent {
            section_order: 64,
            ..good
        },
        ZoneExtent {
            section_order: 255,
            ..good
        },
    ] {
        let error = ZoneMap::reserve(region(), bad).unwrap_err();
        assert!(matches!(error, ZoneMapError::Extent { .. }), "{bad:?}");
    }
    let map = ZoneMap::reserve(region(), good).unwrap();
    assert_eq!(map.nr_sections(), 8192);
    assert!(map.map_section(8191).is_ok());
    for index in [8192, usize::MAX] {
        let error = map.map_section(index).unwrap_err();
        assert!(matches!(error, ZoneMapError::NoSuchSection { .. }));
    }
}
