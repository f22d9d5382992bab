//! Where one zone lies in this process: what the table of clients knows of it, and keeps alive.

use std::sync::Arc;

use crate::mapping::Mapping;
use crate::raw::RawPage;
use crate::zone_map::{ZoneMap, ZoneMapError};

/// The bytes of one zone of one client.
///
/// # Invariants
/// The addresses from that of `start_pfn` on, for `nr_pages` pages, belong to `keep` as long as it
/// lives; no reference to bytes there is made but by [`Page`](crate::page::Page), and their
/// provenance is exposed. The same holds of the second map that is only read, and of
/// [`SharedPage`](crate::shared_page::SharedPage).
#[derive(Clone)]
pub struct ZoneBytes {
    index: u32,
    start_pfn: u64,
    nr_pages: u64,
    page_shift: u32,
    pfn_zero_address: usize,
    keep: Keep,
}

/// What the addresses belong to.
#[derive(Clone)]
enum Keep {
    Plain { _mapping: Arc<Mapping> },
    Sections(Arc<ZoneMap>),
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
            keep: Keep::Plain {
                _mapping: Arc::new(mapping),
            },
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
            keep: Keep::Sections(map),
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

    /// Address and length of a block where it can be read only; none outside the zone.
    pub(crate) fn to_read(&self, raw: RawPage) -> Result<Option<(usize, usize)>, ZoneMapError> {
        let (pfn, nr_pages) = (u64::from(raw.pfn()), 1_u64 << raw.order());
        let end = self.start_pfn + self.nr_pages;
        if pfn < self.start_pfn || pfn + nr_pages > end {
            return Ok(None);
        }
        let zero = match &self.keep {
            Keep::Plain { .. } => self.pfn_zero_address,
            Keep::Sections(map) => {
                let offset = pfn - self.start_pfn;
                let index = |page: u64| {
                    usize::try_from(page >> map.extent().section_order).unwrap_or(usize::MAX)
                };
                let mut zero = map.map_to_read(index(offset))?;
                for section in index(offset) + 1..=index(offset + nr_pages - 1) {
                    zero = map.map_to_read(section)?;
                }
                zero
            }
        };
        let bytes = |pages: u64| usize::try_from(pages << self.page_shift).ok();
        let (Some(offset), Some(len)) = (bytes(pfn), bytes(nr_pages)) else {
            return Ok(None);
        };
        Ok(Some((zero.wrapping_add(offset), len)))
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
