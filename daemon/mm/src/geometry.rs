//! The sizes a zone is built from, checked once.
//!
//! Everything else takes a [`Geometry`] and trusts it. Zones of one daemon share
//! it; tests use tiny ones so that edges come early.

use core::fmt;

use crate::{Order, Pfn, PfnRange, SectionId};

/// Page size, pageblock, largest order and section, each a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    page_shift: u8,
    pageblock_order: Order,
    max_order: Order,
    section_order: u8,
}

/// Why a [`Geometry`] was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// Pages are 4, 16 or 64 KiB: shift 12, 14 or 16.
    PageShift {
        /// The shift asked for.
        page_shift: u8,
    },
    /// Pageblocks are of order 5 to 13.
    PageblockOrder {
        /// The order asked for.
        pageblock_order: u8,
    },
    /// The largest order is at least the pageblock's and at most [`Order::MAX`].
    MaxOrder {
        /// The largest order asked for.
        max_order: u8,
        /// The pageblock order asked for.
        pageblock_order: u8,
    },
    /// A section is a multiple of the largest block, and at most 2 GiB.
    SectionOrder {
        /// log2 of the pages of a section, as asked for.
        section_order: u8,
        /// The largest order asked for.
        max_order: u8,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            GeometryError::PageShift { page_shift } => {
                write!(f, "page shift {page_shift} is not 12, 14 or 16")
            }
            GeometryError::PageblockOrder { pageblock_order } => {
                write!(f, "pageblock order {pageblock_order} is not in 5..=13")
            }
            GeometryError::MaxOrder {
                max_order,
                pageblock_order,
            } => write!(
                f,
                "largest order {max_order} is not between the pageblock order {pageblock_order} and {}",
                Order::MAX
            ),
            GeometryError::SectionOrder {
                section_order,
                max_order,
            } => write!(
                f,
                "a section of 2^{section_order} pages is smaller than a block of order {max_order} or larger than 2 GiB"
            ),
        }
    }
}

impl core::error::Error for GeometryError {}

/// log2 of the largest section in bytes (2 GiB).
const MAX_SECTION_SHIFT: u8 = 31;

impl Geometry {
    /// A checked geometry. `section_order` is log2 of the pages of a section.
    ///
    /// # Errors
    /// [`GeometryError`] names the first value that does not fit.
    pub const fn new(
        page_shift: u8,
        pageblock_order: u8,
        max_order: u8,
        section_order: u8,
    ) -> Result<Geometry, GeometryError> {
        if !matches!(page_shift, 12 | 14 | 16) {
            return Err(GeometryError::PageShift { page_shift });
        }
        if pageblock_order < 5 || pageblock_order > 13 {
            return Err(GeometryError::PageblockOrder { pageblock_order });
        }
        let (Some(pageblock), Some(max)) = (Order::new(pageblock_order), Order::new(max_order))
        else {
            return Err(GeometryError::MaxOrder {
                max_order,
                pageblock_order,
            });
        };
        if max_order < pageblock_order {
            return Err(GeometryError::MaxOrder {
                max_order,
                pageblock_order,
            });
        }
        if section_order < max_order || section_order > MAX_SECTION_SHIFT - page_shift {
            return Err(GeometryError::SectionOrder {
                section_order,
                max_order,
            });
        }
        Ok(Geometry {
            page_shift,
            pageblock_order: pageblock,
            max_order: max,
            section_order,
        })
    }

    /// The default: 4 KiB pages, 2 MiB pageblocks, largest block 4 MiB, sections of 128 MiB.
    #[must_use]
    pub const fn standard() -> Geometry {
        match Geometry::new(12, 9, 10, 15) {
            Ok(geometry) => geometry,
            Err(_) => unreachable!(),
        }
    }

    /// log2 of the page size in bytes.
    #[must_use]
    pub const fn page_shift(self) -> u8 {
        self.page_shift
    }

    /// Page size in bytes.
    #[must_use]
    pub const fn page_bytes(self) -> u64 {
        1 << self.page_shift
    }

    /// Order of a pageblock: the grain of grouping and isolation.
    #[must_use]
    pub const fn pageblock_order(self) -> Order {
        self.pageblock_order
    }

    /// `MAX_PAGE_ORDER`, inclusive.
    #[must_use]
    pub const fn max_order(self) -> Order {
        self.max_order
    }

    /// log2 of the pages of a section.
    #[must_use]
    pub const fn section_order(self) -> u8 {
        self.section_order
    }

    /// Pages of a pageblock.
    #[must_use]
    pub const fn pageblock_pages(self) -> u32 {
        self.pageblock_order.nr_pages()
    }

    /// Pages of a section.
    #[must_use]
    pub const fn section_pages(self) -> u32 {
        1 << self.section_order
    }

    /// Bytes of a section.
    #[must_use]
    pub const fn section_bytes(self) -> u64 {
        1 << (self.section_order + self.page_shift)
    }

    /// Pageblocks of a section.
    #[must_use]
    pub const fn section_pageblocks(self) -> u32 {
        1 << (self.section_order - self.pageblock_order.get())
    }

    /// The section a page lies in.
    #[must_use]
    pub const fn section_of(self, pfn: Pfn) -> SectionId {
        SectionId::new(pfn.get() >> self.section_order)
    }

    /// The pages of a section, holes included.
    #[must_use]
    pub const fn section_range(self, section: SectionId) -> PfnRange {
        let start = (section.get() as u64) << self.section_order;
        PfnRange {
            start,
            end: start + self.section_pages() as u64,
        }
    }

    /// The first page of a section; `None` if the section lies past 2^32 pages.
    #[must_use]
    pub const fn section_start(self, section: SectionId) -> Option<Pfn> {
        if section.get() > u32::MAX >> self.section_order {
            return None;
        }
        Some(Pfn::new(section.get() << self.section_order))
    }

    /// Orders `0..=max_order`, ascending.
    pub fn orders(self) -> impl DoubleEndedIterator<Item = Order> {
        (0..=self.max_order.get()).filter_map(Order::new)
    }

    /// Number of orders, `max_order + 1`.
    #[must_use]
    pub const fn nr_orders(self) -> usize {
        self.max_order.index() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_geometry_is_the_documented_one() {
        let g = Geometry::standard();
        assert_eq!(g.page_bytes(), 4096);
        assert_eq!(g.pageblock_pages(), 512);
        assert_eq!(g.section_bytes(), 128 << 20);
        assert_eq!(g.section_pageblocks(), 64);
        assert_eq!(g.orders().last(), Order::new(10));
    }

    #[test]
    fn each_bad_value_is_named() {
        assert!(matches!(
            Geometry::new(13, 9, 10, 15),
            Err(GeometryError::PageShift { .. })
        ));
        assert!(matches!(
            Geometry::new(12, 4, 10, 15),
            Err(GeometryError::PageblockOrder { .. })
        ));
        assert!(matches!(
            Geometry::new(12, 9, 8, 15),
            Err(GeometryError::MaxOrder { .. })
        ));
        assert!(matches!(
            Geometry::new(12, 9, 16, 19),
            Err(GeometryError::MaxOrder { .. })
        ));
        assert!(matches!(
            Geometry::new(12, 9, 10, 9),
            Err(GeometryError::SectionOrder { .. })
        ));
        assert!(matches!(
            Geometry::new(12, 9, 10, 20),
            Err(GeometryError::SectionOrder { .. })
        ));
    }

    #[test]
    fn sections_tile_the_pfns() {
        let g = Geometry::new(12, 5, 6, 8).unwrap();
        assert_eq!(g.section_of(Pfn::new(256)), SectionId::new(1));
        assert_eq!(
            g.section_range(SectionId::new(1)),
            PfnRange {
                start: 256,
                end: 512
            }
        );
        assert_eq!(g.section_start(SectionId::new(1 << 24)), None);
    }
}
