//! A kernel-like way of asking whether a pageblock is whole, as a peer to measure against.
//!
//! What `__pageblock_pfn_to_page` does: the first and the last page are valid (section through
//! two tables, its subsection bit, and on processors with holes in banks a search of the memory
//! regions), the section is online, and the records of both pages name the zone. The caches are
//! those of the allocator: one for the zone, one for each pageblock among its flags.
//!
//! Written from the meaning of that code, none of it copied.

use std::hint::black_box;

use hugepool_mm::{ContiguityMode, Geometry, Pfn, PfnRange};

/// Section headers in one page of the first table.
const SECTIONS_PER_ROOT: usize = 256;
/// Memory regions of a machine whose firmware cuts its banks up.
const NR_REGIONS: u64 = 64;

const PRESENT: u64 = 1;
const ONLINE: u64 = 2;

/// Flags of a pageblock: four bits, of which two are the cache's.
const PB_CACHED: u64 = 1;
const PB_CONTIGUOUS: u64 = 2;

/// A section's header.
#[derive(Clone, Copy, Debug, Default)]
struct MemSection {
    flags: u64,
    /// A bit for each 2 MiB that is there.
    subsections: u64,
    /// Flags of its pageblocks, four bits each.
    pageblocks: [u64; 4],
}

/// A page's record: 64 bytes, of which the check reads the flags.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct PageRecord {
    flags: u64,
}

/// The map of a zone.
#[derive(Clone, Debug)]
pub struct KernelMap {
    geometry: Geometry,
    roots: Vec<Option<Box<[MemSection; SECTIONS_PER_ROOT]>>>,
    records: Vec<PageRecord>,
    regions: Vec<PfnRange>,
    zone: u64,
    mode: ContiguityMode,
    contiguous: bool,
}

impl KernelMap {
    /// A map of `nr_sections` sections that are all online; one page may lack.
    pub fn new(geometry: Geometry, nr_sections: usize, hole: Option<u64>) -> KernelMap {
        let section = MemSection {
            flags: PRESENT | ONLINE,
            subsections: u64::MAX,
            pageblocks: [0; 4],
        };
        let nr_pages = (nr_sections as u64) << geometry.section_order();
        let nr_records = usize::try_from(nr_pages).expect("a map of a few gigabytes");
        let zone = 1;
        let bank = nr_pages / NR_REGIONS;
        let mut regions: Vec<PfnRange> = (0..NR_REGIONS)
            .map(|at| PfnRange {
                start: at * bank,
                end: (at + 1) * bank,
            })
            .collect();
        if let Some(hole) = hole {
            let at = regions.partition_point(|region| region.end <= hole);
            let below = PfnRange {
                end: hole,
                ..regions[at]
            };
            regions[at].start = hole + 1;
            regions.insert(at, below);
        }
        let nr_roots = nr_sections.div_ceil(SECTIONS_PER_ROOT);
        let mut map = KernelMap {
            geometry,
            roots: vec![Some(Box::new([section; SECTIONS_PER_ROOT])); nr_roots],
            records: vec![PageRecord { flags: zone << 56 }; nr_records],
            regions,
            zone,
            mode: ContiguityMode::None,
            contiguous: false,
        };
        map.contiguous = (0..nr_pages)
            .step_by(geometry.pageblock_pages() as usize)
            .all(|pfn| map.walk(pfn));
        map
    }

    /// Chooses the caches; the pageblocks' is emptied.
    pub fn set_mode(&mut self, mode: ContiguityMode) {
        self.mode = mode;
        for section in self
            .roots
            .iter_mut()
            .flatten()
            .flat_map(|root| root.iter_mut())
        {
            section.pageblocks = [0; 4];
        }
    }

    /// The question, asked of the caches in use first.
    #[inline]
    pub fn pageblock_pfn_to_page(&mut self, pfn: Pfn) -> Option<Pfn> {
        let at = u64::from(pfn.get());
        let by_zone = matches!(self.mode, ContiguityMode::Zone | ContiguityMode::Both);
        if by_zone && self.contiguous {
            return Some(pfn);
        }
        if !matches!(self.mode, ContiguityMode::Pageblock | ContiguityMode::Both) {
            return self.walk(at).then_some(pfn);
        }
        let (word, shift) = self.flags_at(at)?;
        let flags = *word >> shift;
        if flags & PB_CACHED != 0 {
            return (flags & PB_CONTIGUOUS != 0).then_some(pfn);
        }
        let answer = self.walk(at);
        let flags = PB_CACHED | if answer { PB_CONTIGUOUS } else { 0 };
        let (word, shift) = self.flags_at(at)?;
        *word |= flags << shift;
        answer.then_some(pfn)
    }

    /// The word of a pageblock's flags, and their place in it.
    fn flags_at(&mut self, pfn: u64) -> Option<(&mut u64, u64)> {
        let pageblock_order = self.geometry.pageblock_order().get();
        let section_order = self.geometry.section_order();
        let number = usize::try_from(pfn >> section_order).ok()?;
        let root = self.roots.get_mut(number / SECTIONS_PER_ROOT)?.as_mut()?;
        let section = &mut root[number % SECTIONS_PER_ROOT];
        let within = pfn & ((1 << section_order) - 1);
        let block = within >> pageblock_order;
        let word = usize::try_from(block / 16).ok()?;
        Some((section.pageblocks.get_mut(word)?, block % 16 * 4))
    }

    /// The honest answer.
    #[inline(never)]
    fn walk(&self, start: u64) -> bool {
        let end = start + u64::from(self.geometry.pageblock_pages()) - 1;
        if !self.is_valid(start) || !self.is_valid(end) || !self.is_online(start) {
            return false;
        }
        let zone_of = |pfn: u64| {
            usize::try_from(pfn)
                .ok()
                .map(|at| self.records[at].flags >> 56)
        };
        zone_of(start) == Some(self.zone) && zone_of(end) == Some(self.zone)
    }

    #[inline(never)]
    fn is_valid(&self, pfn: u64) -> bool {
        let Some(section) = self.section(pfn) else {
            return false;
        };
        let subsection = (pfn >> 9) & 63;
        if section.flags & PRESENT == 0 || section.subsections >> subsection & 1 == 0 {
            return false;
        }
        let regions = black_box(&self.regions);
        let at = regions.partition_point(|region| region.end <= pfn);
        regions.get(at).is_some_and(|region| region.start <= pfn)
    }

    #[inline(never)]
    fn is_online(&self, pfn: u64) -> bool {
        self.section(pfn)
            .is_some_and(|section| section.flags & ONLINE != 0)
    }

    fn section(&self, pfn: u64) -> Option<&MemSection> {
        let number = usize::try_from(pfn >> self.geometry.section_order()).ok()?;
        let root = self.roots.get(number / SECTIONS_PER_ROOT)?.as_ref()?;
        Some(&root[number % SECTIONS_PER_ROOT])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_and_walk_agree_with_and_without_a_hole() {
        let geometry = Geometry::standard();
        for hole in [None, Some(5 << 9)] {
            let mut map = KernelMap::new(geometry, 2, hole);
            for mode in [
                ContiguityMode::None,
                ContiguityMode::Zone,
                ContiguityMode::Pageblock,
                ContiguityMode::Both,
            ] {
                map.set_mode(mode);
                for round in 0..2 {
                    for block in 0..128 {
                        let pfn = Pfn::new(block << 9);
                        let answer = map.pageblock_pfn_to_page(pfn);
                        let lacks = hole == Some(u64::from(block) << 9);
                        assert_eq!(answer, (!lacks).then_some(pfn), "{mode:?} round {round}");
                    }
                }
            }
        }
    }
}
