//! Tiny zones for the tests at the bottoms of the files.
//!
//! Pageblocks of 32 pages, largest block 64, sections of 256; the reserve is sections 1
//! to 4, so that relative and absolute page numbers differ.

use crate::{
    Geometry, OnlineOrder, Order, Pfn, PfnRange, SectionId, Zone, ZoneConfig, ZoneId, ZoneKind,
};

/// The order with that number.
pub(crate) fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

/// A normal zone with nothing present.
pub(crate) fn zone() -> Zone {
    zone_of_kind(ZoneKind::Normal)
}

/// A zone with nothing present.
pub(crate) fn zone_of_kind(kind: ZoneKind) -> Zone {
    let geometry = Geometry::new(12, 5, 6, 8).unwrap();
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: "tiny".to_owned(),
        kind,
        node: 0,
        start: Pfn::new(256),
        span_pages: 4 * 256,
    };
    Zone::new(config, geometry).unwrap()
}

/// Adds a section and brings it online in whole pageblocks.
pub(crate) fn bring_online(zone: &mut Zone, section: u32) {
    let section = SectionId::new(section);
    zone.begin_add(section).unwrap();
    zone.finish_add(section).unwrap();
    zone.online(section, OnlineOrder::Pageblock).unwrap();
    zone.verify().unwrap();
}

/// Adds a section of which only some pages exist (page numbers from its start).
pub(crate) fn add_with_holes(zone: &mut Zone, section: u32, extents: &[(u64, u64)]) {
    let start = u64::from(section) * 256;
    let extents: Vec<PfnRange> = extents
        .iter()
        .map(|&(from, to)| PfnRange {
            start: start + from,
            end: start + to,
        })
        .collect();
    let section = SectionId::new(section);
    zone.begin_add(section).unwrap();
    zone.finish_add_with_holes(section, &extents).unwrap();
}
