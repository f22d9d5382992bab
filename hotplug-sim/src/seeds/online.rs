//! A section of 256 MiB comes online: page by page, and in whole pageblocks. Metadata only.

use hugepool_mm::{
    Geometry, OnlineOrder, Pfn, SectionId, Zone, ZoneConfig, ZoneId, ZoneKind, setup_zones,
};

use super::{median, seconds};

/// log2 of the pages of 256 MiB.
const SECTION_ORDER: u8 = 16;
/// Sections of a window: at pageblock order one takes a few ticks of the clock.
const MANY: usize = 32;
const FEW: usize = 1;

/// Microseconds for a section.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Page by page.
    pub order_0: f64,
    /// Whole pageblocks.
    pub pageblock: f64,
}

/// Measures both arms in turns.
///
/// # Errors
/// There is no zone to measure on.
pub fn measure(reps: u32) -> Result<Measured, String> {
    let geometry = Geometry::new(12, 9, 10, SECTION_ORDER).map_err(|error| error.to_string())?;
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: "seeds".to_owned(),
        kind: ZoneKind::Normal,
        node: 0,
        start: Pfn::new(0),
        span_pages: (MANY as u64 + 1) << SECTION_ORDER,
    };
    let mut zone = Zone::new(config, geometry).map_err(|error| error.to_string())?;
    let sections = zone.lowest_absent(usize::MAX);
    for &section in &sections {
        let added = zone
            .begin_add(section)
            .and_then(|()| zone.finish_add(section));
        added.map_err(|error| error.to_string())?;
    }
    let (old, new) = sections.split_first().ok_or("no section")?;
    // As in a zone that grows, others are online already.
    zone.online(*old, OnlineOrder::Pageblock)
        .map_err(|error| error.to_string())?;
    let (mut order_0, mut pageblock) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        pageblock.push(window(&mut zone, new, OnlineOrder::Pageblock)?);
        order_0.push(window(&mut zone, &new[..FEW], OnlineOrder::Page)?);
    }
    Ok(Measured {
        order_0: median(order_0),
        pageblock: median(pageblock),
    })
}

/// Microseconds a section.
fn window(zone: &mut Zone, sections: &[SectionId], order: OnlineOrder) -> Result<f64, String> {
    let mut result = Ok(());
    let took = seconds(|| {
        for &section in sections {
            result = result.and(zone.online(section, order).map(|_| ()));
            setup_zones([&mut *zone], None);
        }
    });
    result.map_err(|error| error.to_string())?;
    for &section in sections {
        let offline = zone
            .isolate(section)
            .and_then(|_| zone.finish_offline(section));
        offline.map_err(|error| error.to_string())?;
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 32")]
    let nr = sections.len() as f64;
    Ok(took * 1e6 / nr)
}
