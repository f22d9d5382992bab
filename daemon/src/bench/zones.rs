//! Zones to measure on: simulated, so that they may be as large as one likes.

use std::time::Instant;

use hugepool_mm::{
    Geometry, OnlineOrder, Pfn, PfnRange, SectionId, Zone, ZoneConfig, ZoneId, ZoneKind,
};

/// A zone of `nr_sections` sections of `2^section_order` pages, all absent.
pub fn absent(nr_sections: u32, section_order: u8) -> Zone {
    let geometry = Geometry::new(12, 9, 10, section_order).expect("a legal geometry");
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: "bench".to_owned(),
        kind: ZoneKind::Normal,
        node: 0,
        start: Pfn::new(0),
        span_pages: u64::from(nr_sections) << section_order,
    };
    Zone::new(config, geometry).expect("whole sections")
}

/// Adds a section, all of it or with one page less.
pub fn add(zone: &mut Zone, section: SectionId, hole: Option<u64>) {
    zone.begin_add(section).expect("absent");
    let range = zone.geometry().section_range(section);
    let added = match hole {
        None => zone.finish_add(section),
        Some(pfn) => {
            let below = PfnRange { end: pfn, ..range };
            let above = PfnRange {
                start: pfn + 1,
                ..range
            };
            let extents = [below, above];
            let extents = extents.into_iter().filter(|extent| !extent.is_empty());
            zone.finish_add_with_holes(section, &extents.collect::<Vec<_>>())
        }
    };
    added.expect("it is being added");
}

/// A zone with all sections online; with a hole, the first page of its middle pageblock lacks.
pub fn online(nr_sections: u32, hole: bool) -> Zone {
    let section_order = Geometry::standard().section_order();
    let mut zone = absent(nr_sections, section_order);
    let middle = u64::from(nr_sections) << section_order >> 1;
    for section in zone.lowest_absent(usize::MAX) {
        let range = zone.geometry().section_range(section);
        let lacks = hole && (range.start..range.end).contains(&middle);
        add(&mut zone, section, lacks.then_some(middle));
        zone.online(section, OnlineOrder::Pageblock)
            .expect("offline");
    }
    zone
}

/// How long something takes, in seconds.
pub fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let begun = Instant::now();
    let result = work();
    let elapsed = begun.elapsed();
    std::hint::black_box(result);
    elapsed.as_secs_f64()
}

/// A number drawn from a seed: the same run measures the same zone.
#[derive(Clone, Debug)]
pub struct Prng(pub u64);

impl Prng {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
