//! Where one zone lies in this process: what the table of clients knows of it, and keeps alive.

use std::sync::Arc;

use crate::mapping::Mapping;
use crate::zone_map::ZoneMap;

/// The bytes of one zone of one client.
///
/// # Invariants
/// The addresses from that of `start_pfn` on, for `nr_pages` pages, belong to `keep` as long as it
/// lives; no reference to bytes there is made but by [`Page`](crate::page::Page), and their
/// provenance is exposed.
#[derive(Clone)]
pub struct ZoneBytes {
    index: u32,
    start_pfn: u64,
    nr_pages: u64,
    page_shift: u32,
    pfn_zero_address: usize,
    _keep: Arc<dyn Send + Sync>,
}

impl ZoneBytes {
    /// A zone whose pages lie one after the other in a plain mapping, for a process that plays
    /// all sides: tests and benchmarks. `index` is the zone's, below 8; pages have
    /// `2^page_shift` bytes, 12 to 16.
    pub fn of_mapping(
        mapping: Mapping,
        index: u32,
        start_pfn: u32,
        page_shift: u32,
    ) -> Option<ZoneBytes> {
        if !(12..=16).contains(&page_shift) {
            return None;
        }
        let start = usize::try_from(u64::from(start_pfn) << page_shift).ok()?;
        let address = mapping.base().as_ptr().expose_provenance();
        Some(ZoneBytes {
            index,
            start_pfn: u64::from(start_pfn),
            nr_pages: mapping.len_bytes() as u64 >> page_shift,
            page_shift,
            pfn_zero_address: address.wrapping_sub(start),
            _keep: Arc::new(mapping),
        })
    }

    /// A zone that is mapped section by section; pages elsewhere in its reserve fault. `index` is
    /// the zone's, below 8.
    pub fn of_zone_map(map: Arc<ZoneMap>, index: u32) -> ZoneBytes {
        let extent = map.extent();
        ZoneBytes {
            index,
            start_pfn: extent.start_pfn,
            nr_pages: extent.span_pages,
            page_shift: u32::from(extent.page_shift),
            pfn_zero_address: map.pfn_zero_address(),
            _keep: map,
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn start_pfn(&self) -> u64 {
        self.start_pfn
    }

    pub(crate) fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    pub(crate) fn page_shift(&self) -> u32 {
        self.page_shift
    }

    pub(crate) fn pfn_zero_address(&self) -> usize {
        self.pfn_zero_address
    }
}

impl core::fmt::Debug for ZoneBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ZoneBytes")
            .field("index", &self.index)
            .field("start_pfn", &self.start_pfn)
            .field("nr_pages", &self.nr_pages)
            .finish_non_exhaustive()
    }
}
