//! A client's map of one zone: the whole span reserved, sections mapped as they come and go.
//!
//! Touching a hole of the file, even reading it, takes a page from the pool, so nothing is mapped
//! but what the daemon has announced: elsewhere a stray access faults. The map is left out of core
//! dumps (a dump of a sparse map allocates all of it) and of forked children, and starts at a
//! multiple of the huge page.

use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;

use crate::region::{FilePages, Region};
use crate::span::{Access, Advice, Span};

/// Where a zone lies among the pfns, and how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneExtent {
    /// The zone's first page.
    pub start_pfn: u64,
    /// Pages of the zone.
    pub span_pages: u64,
    /// A page is `2^page_shift` bytes.
    pub page_shift: u8,
    /// A section is `2^section_order` pages.
    pub section_order: u8,
    /// Whether this client may write.
    pub writable: bool,
}

/// Why a zone or a section could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneMapError {
    /// The extent does not fit the file it came with.
    #[error("a zone of {span_pages} pages does not fit its file of {file_bytes} bytes")]
    Extent {
        /// Pages of the zone.
        span_pages: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// No such section in this zone.
    #[error("the zone has {nr_sections} sections, and none with index {index}")]
    NoSuchSection {
        /// The index asked for, counted from the zone's first section.
        index: usize,
        /// Sections of the zone.
        nr_sections: usize,
    },
    /// The system refused, mostly for want of addresses (`RLIMIT_AS`) or mappings.
    #[error("cannot map {len_bytes} bytes of the zone")]
    System {
        /// Bytes that were to be mapped.
        len_bytes: usize,
        /// The answer.
        #[source]
        errno: Errno,
    },
}

/// One zone in a client's address space.
#[derive(Debug)]
pub struct ZoneMap {
    span: Span,
    region: Region,
    extent: ZoneExtent,
    section_bytes: usize,
    /// Which sections are mapped, by index in the zone.
    mapped: Mutex<Vec<bool>>,
    /// The zone once more, for pages that are shared: who holds one of those can only read it.
    to_read: OnceLock<Box<ZoneMap>>,
}

impl ZoneMap {
    /// Reserves addresses for the whole zone; maps nothing.
    ///
    /// # Errors
    /// [`ZoneMapError`].
    pub fn reserve(region: Region, extent: ZoneExtent) -> Result<ZoneMap, ZoneMapError> {
        let unfit = ZoneMapError::Extent {
            span_pages: extent.span_pages,
            file_bytes: region.len_bytes(),
        };
        let (span_bytes, section_bytes) = sizes(extent, &region).ok_or(unfit)?;
        let align = region.pages().map_align_bytes();
        let span = Span::reserve(span_bytes, align).map_err(|errno| ZoneMapError::System {
            len_bytes: span_bytes,
            errno,
        })?;
        Ok(ZoneMap {
            span,
            region,
            extent,
            section_bytes,
            mapped: Mutex::new(vec![false; span_bytes / section_bytes]),
            to_read: OnceLock::new(),
        })
    }

    /// Maps the section with `index` once more, elsewhere, to be read only; returns where pfn 0
    /// would lie in that map. It goes when the section is unmapped.
    ///
    /// # Errors
    /// [`ZoneMapError`].
    pub fn map_to_read(&self, index: usize) -> Result<usize, ZoneMapError> {
        if self.to_read.get().is_none() {
            let duplicate = self.region.duplicate();
            let region = duplicate.map_err(|errno| ZoneMapError::System {
                len_bytes: self.span.len_bytes(),
                errno,
            })?;
            let extent = ZoneExtent {
                writable: false,
                ..self.extent
            };
            // Another thread's is as good.
            let _ = self
                .to_read
                .set(Box::new(ZoneMap::reserve(region, extent)?));
        }
        let to_read = self.to_read.get().expect("it has just been set");
        to_read.map_section(index)?;
        Ok(to_read.pfn_zero_address())
    }

    /// Maps the section with `index`, counted from the zone's first. Mapping it again does nothing.
    ///
    /// # Errors
    /// [`ZoneMapError`]; the section is not mapped then.
    pub fn map_section(&self, index: usize) -> Result<(), ZoneMapError> {
        self.change(index, true, || {
            let offset = index * self.section_bytes;
            // A section is part of a file, so its offset fits.
            let file_offset = u64::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
            let access = if self.extent.writable {
                Access::ReadWrite
            } else {
                Access::Read
            };
            let file = self.region.as_fd();
            self.span
                .map(offset, self.section_bytes, file, file_offset, access)?;
            if self.region.pages() == FilePages::Shmem {
                // Without huge pages switched on the advice is refused or does nothing, and the
                // section is used by small pages.
                let _ = self
                    .span
                    .advise(offset, self.section_bytes, Advice::HugePage);
            }
            Ok(())
        })
    }

    /// Takes the section with `index` out of the map: touching it faults from now on. Unmapping it
    /// again does nothing.
    ///
    /// References to bytes of a section exist only through pages in this client's custody. The
    /// daemon announces a section as absent only when no page of it is lent, so none is left then.
    ///
    /// # Errors
    /// [`ZoneMapError`]; the section is still mapped then.
    pub fn unmap_section(&self, index: usize) -> Result<(), ZoneMapError> {
        if let Some(to_read) = self.to_read.get() {
            to_read.unmap_section(index)?;
        }
        self.change(index, false, || {
            self.span
                .clear(index * self.section_bytes, self.section_bytes)
        })
    }

    /// Whether the section with `index` is mapped.
    pub fn is_mapped(&self, index: usize) -> bool {
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.get(index).copied().unwrap_or(false)
    }

    /// The address at which pfn 0 would lie: a page's address is this plus its pfn times the page
    /// size, modulo 2^64. Only pages of mapped sections may be touched.
    pub fn pfn_zero_address(&self) -> usize {
        // A pfn has 32 bits and a page shift is at most 16, so the product fits 64 bits.
        let start = self.extent.start_pfn << self.extent.page_shift;
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        self.span.base_address().wrapping_sub(start)
    }

    /// Where the zone lies.
    pub fn extent(&self) -> ZoneExtent {
        self.extent
    }

    /// Sections of the zone, present or not.
    pub fn nr_sections(&self) -> usize {
        self.span.len_bytes() / self.section_bytes
    }

    fn change(
        &self,
        index: usize,
        wanted: bool,
        act: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), ZoneMapError> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let nr_sections = mapped.len();
        let Some(state) = mapped.get_mut(index) else {
            return Err(ZoneMapError::NoSuchSection { index, nr_sections });
        };
        if *state != wanted {
            act().map_err(|errno| ZoneMapError::System {
                len_bytes: self.section_bytes,
                errno,
            })?;
            *state = wanted;
        }
        Ok(())
    }
}

/// Bytes of the zone and of a section, if they make sense together and with the file.
fn sizes(extent: ZoneExtent, region: &Region) -> Option<(usize, usize)> {
    let shift = u32::from(extent.page_shift);
    let section_shift = shift + u32::from(extent.section_order);
    if !(12..=16).contains(&shift) || section_shift > 31 {
        return None;
    }
    let section_bytes = 1_u64 << section_shift;
    let end_pfn = extent.start_pfn.checked_add(extent.span_pages)?;
    let span_bytes = extent.span_pages.checked_mul(1 << shift)?;
    let fits = span_bytes > 0
        && end_pfn <= 1 << 32
        && span_bytes == region.len_bytes()
        && span_bytes.is_multiple_of(section_bytes)
        && section_bytes.is_multiple_of(region.pages().page_bytes());
    if !fits {
        return None;
    }
    let span_bytes = usize::try_from(span_bytes).ok()?;
    let section_bytes = usize::try_from(section_bytes).ok()?;
    Some((span_bytes, section_bytes))
}
