//! From what a call brought to pages: each run is looked at before any page is made of it.
//!
//! A page is a promise that its bytes may be touched. So a run counts only if it lies whole in one
//! zone of this client, in sections that are mapped here; the rest is given back by call, unused.

use hugepool_proto::v1::Run;
use hugepool_shm::raw::{PageParts, RawMigratetype, RawPage};

use crate::attach::ZonePlace;

/// Sizes that page words are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Order of a pageblock.
    pub(crate) pageblock_order: u32,
    /// A section is `2^section_order` pages.
    pub(crate) section_order: u8,
}

/// The page words of a run, if this client can touch all of it.
pub(crate) fn words(
    run: &Run,
    migratetype: RawMigratetype,
    shape: Shape,
    zones: &[ZonePlace],
) -> Option<impl Iterator<Item = RawPage> + use<>> {
    let first = PageParts {
        pfn: run.first_pfn,
        order: run.order,
        migratetype,
        zone: 0,
        client: 0,
        generation: run.generation,
    };
    first.pack()?;
    let pages = u64::from(run.nr_pages).checked_shl(run.order)?;
    let start = u64::from(run.first_pfn);
    let end = start.checked_add(pages)?;
    let is_aligned = start.is_multiple_of(1 << run.order);
    let zone = zones.iter().find(|zone| {
        let extent = zone.map.extent();
        extent.start_pfn <= start && end <= extent.start_pfn + extent.span_pages
    })?;
    let section = |pfn: u64| {
        let offset = (pfn - zone.map.extent().start_pfn) >> shape.section_order;
        usize::try_from(offset).unwrap_or(usize::MAX)
    };
    let is_mapped =
        pages > 0 && (section(start)..=section(end - 1)).all(|section| zone.map.is_mapped(section));
    if !is_aligned || !is_mapped {
        return None;
    }
    let parts = PageParts {
        zone: zone.index.into(),
        ..first
    };
    let pfns = (start..end).step_by(1 << run.order);
    // Below the end of the zone, so every pfn has 32 bits, and the zone's index fits as sent.
    Some(pfns.filter_map(move |pfn| {
        PageParts {
            pfn: u32::try_from(pfn).ok()?,
            ..parts
        }
        .pack()
    }))
}
