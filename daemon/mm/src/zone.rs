//! One zone: free pages, sections, page lists, watermarks and their counts.
//!
//! The face that the engine calls. Here is what it is made of; taking and freeing is
//! [`alloc`](crate::alloc), page lists [`lists`](crate::lists), sections that come and
//! go [`hotplug`](crate::hotplug), numbers [`report`](crate::report), and the
//! contiguity caches [`contiguity`](crate::contiguity).
//!
//! A page that is not free is held by somebody the zone does not know.

use core::fmt;

use crate::block_set::BlockSet;
use crate::buddy::Buddy;
use crate::contiguity::Contiguity;
use crate::num::{index, low_u32};
use crate::pageblock::ISOLATE_POOL;
use crate::pcp::Pcp;
use crate::restart::Restart;
use crate::section::Section;
use crate::setup::Marks;
use crate::{Geometry, Migratetype, Pfn, PfnRange, ZoneId, ZoneKind};

/// What a zone is made of; fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneConfig {
    /// Its number in this daemon.
    pub id: ZoneId,
    /// Its name, as shown and asked for.
    pub name: String,
    /// What it serves.
    pub kind: ZoneKind,
    /// NUMA node of its memory.
    pub node: u32,
    /// First page of the reserve; a multiple of the section.
    pub start: Pfn,
    /// Length of the reserve in pages; a multiple of the section.
    pub span_pages: u64,
}

/// Why a zone could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneError {
    /// Start or length is not a multiple of the section, or the length is 0.
    NotSections {
        /// First page asked for.
        start: Pfn,
        /// Pages asked for.
        span_pages: u64,
        /// Pages of a section.
        section_pages: u32,
    },
    /// The reserve ends past 2^32 pages.
    TooLong {
        /// One past the last page asked for.
        end_pfn: u64,
    },
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ZoneError::NotSections {
                start,
                span_pages,
                section_pages,
            } => write!(
                f,
                "{span_pages} pages at pfn {start} are not whole sections of {section_pages} pages"
            ),
            ZoneError::TooLong { end_pfn } => {
                write!(f, "the reserve ends at pfn {end_pfn}, past 2^32")
            }
        }
    }
}

impl core::error::Error for ZoneError {}

/// A zone of pages.
#[derive(Clone, Debug)]
pub struct Zone {
    pub(crate) config: ZoneConfig,
    pub(crate) geometry: Geometry,
    pub(crate) buddy: Buddy,
    pub(crate) sections: Vec<Section>,
    /// Indexes of sections that are present, and of those that are absent.
    pub(crate) present_sections: BlockSet,
    pub(crate) absent_sections: BlockSet,
    /// First to last present section, as pages.
    pub(crate) span: PfnRange,
    pub(crate) present: u64,
    pub(crate) managed: u64,
    /// Pages counted out of `managed` by [`reserve`](Zone::reserve).
    pub(crate) set_aside: u64,
    pub(crate) pcp: Pcp,
    pub(crate) marks: Marks,
    pub(crate) contiguity: Contiguity,
    pub(crate) restart: Restart,
    /// Whether a pageblock may have its skip bit set.
    pub(crate) has_skips: bool,
    /// Kept to save an allocation per refill.
    pub(crate) scratch: Vec<Pfn>,
}

impl Zone {
    /// A zone with its whole reserve absent.
    ///
    /// # Errors
    /// If the reserve is not a run of whole sections below 2^32 pages.
    pub fn new(config: ZoneConfig, geometry: Geometry) -> Result<Zone, ZoneError> {
        let section_pages = u64::from(geometry.section_pages());
        let start = u64::from(config.start.get());
        let whole = config.span_pages != 0
            && config.span_pages.is_multiple_of(section_pages)
            && start.is_multiple_of(section_pages);
        if !whole {
            return Err(ZoneError::NotSections {
                start: config.start,
                span_pages: config.span_pages,
                section_pages: geometry.section_pages(),
            });
        }
        let end_pfn = start.saturating_add(config.span_pages);
        if end_pfn > 1 << 32 {
            return Err(ZoneError::TooLong { end_pfn });
        }
        let nr_sections = low_u32(config.span_pages / section_pages);
        let mut absent_sections = BlockSet::new(nr_sections);
        absent_sections.insert_range(0, nr_sections);
        Ok(Zone {
            geometry,
            buddy: Buddy::new(geometry, nr_sections),
            sections: vec![Section::default(); index(nr_sections)],
            present_sections: BlockSet::new(nr_sections),
            absent_sections,
            span: PfnRange::default(),
            present: 0,
            managed: 0,
            set_aside: 0,
            pcp: Pcp::new(geometry.pageblock_order()),
            marks: Marks::default(),
            contiguity: Contiguity::default(),
            restart: Restart::default(),
            has_skips: false,
            scratch: Vec::new(),
            config,
        })
    }

    /// What the zone was made of.
    #[must_use]
    pub fn config(&self) -> &ZoneConfig {
        &self.config
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ZoneId {
        self.config.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What it serves.
    #[must_use]
    pub fn kind(&self) -> ZoneKind {
        self.config.kind
    }

    /// The sizes it is built from.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Its reserve: the pfns that can ever be its pages.
    #[must_use]
    pub fn reserve_range(&self) -> PfnRange {
        PfnRange::new(self.config.start, self.config.span_pages)
    }

    /// Whether requests of that type may enter.
    #[must_use]
    pub fn admits(&self, mt: Migratetype) -> bool {
        match self.config.kind {
            ZoneKind::Normal => true,
            ZoneKind::Movable => mt == Migratetype::Movable,
        }
    }

    /// Free pages that a request may be given, page lists left out.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.buddy.pools[..ISOLATE_POOL]
            .iter()
            .map(|pool| pool.nr_free)
            .sum()
    }

    /// Whether the page is free (in a list of the buddy, isolated or not).
    #[must_use]
    pub fn is_free(&self, pfn: Pfn) -> bool {
        let Some(pfn) = self.offset_of(pfn) else {
            return false;
        };
        let (block, off) = self.buddy.shape.split(pfn);
        match self.buddy.block_bits(block) {
            Some(words) => crate::bits::is_free(words, off),
            None => self.buddy.row(block).nr_free() != 0,
        }
    }

    /// A page's place in the reserve; `None` outside.
    pub(crate) fn offset_of(&self, pfn: Pfn) -> Option<u32> {
        self.reserve_range()
            .contains(pfn)
            .then(|| pfn.get() - self.config.start.get())
    }

    pub(crate) fn absolute(&self, pfn: u32) -> Pfn {
        Pfn::new(self.config.start.get() + pfn)
    }
}
