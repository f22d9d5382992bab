//! Onlining sections: whole pageblocks against page by page, metadata only.
//!
//! The zone has other sections online already, as one that grows has. A window onlines some
//! sections one after the other, and takes them offline again untimed.

use std::io::{self, Write};

use hugepool_mm::{OnlineOrder, SectionId, Zone, setup_zones};

use super::lines::Line;
use super::zones::{absent, add, seconds};

/// log2 of the pages of the sections measured: 128 and 256 MiB.
const SECTION_ORDERS: [u8; 2] = [15, 16];
/// Sections onlined in a window: at pageblock order one is a few clock ticks.
const NR_AT_PAGEBLOCK_ORDER: u32 = 32;
const NR_PAGE_BY_PAGE: u32 = 2;

/// Measures all arms in turns.
pub fn run(reps: u32, out: &mut dyn Write) -> io::Result<()> {
    for section_order in SECTION_ORDERS {
        let mut zone = absent(NR_AT_PAGEBLOCK_ORDER + 1, section_order);
        let sections = zone.lowest_absent(usize::MAX);
        for &section in &sections {
            add(&mut zone, section, None);
        }
        let (old, new) = sections.split_first().expect("there are sections");
        zone.online(*old, OnlineOrder::Pageblock).expect("offline");
        let few = &new[..NR_PAGE_BY_PAGE as usize];
        let (mut whole, mut by_page) = (Vec::new(), Vec::new());
        for _ in 0..reps {
            whole.push(one_window(&mut zone, new, OnlineOrder::Pageblock));
            by_page.push(one_window(&mut zone, few, OnlineOrder::Page));
        }
        let pageblock_order = zone.geometry().pageblock_order().get();
        for (order, samples) in [(0, by_page), (pageblock_order, whole)] {
            Line::case("metadata", zone.geometry().section_pages().into(), "us")
                .number("online_order", order)
                .number("section_bytes", zone.geometry().section_bytes())
                .number("stopped_client", 0)
                .print(&samples, out)?;
        }
    }
    Ok(())
}

/// Microseconds a section.
fn one_window(zone: &mut Zone, sections: &[SectionId], order: OnlineOrder) -> f64 {
    let took = seconds(|| {
        for &section in sections {
            zone.online(section, order).expect("offline");
            setup_zones([&mut *zone], None);
        }
    });
    for &section in sections {
        zone.isolate(section).expect("online");
        zone.finish_offline(section).expect("all free");
    }
    took * 1e6 / sections.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_arm_prints_a_line() {
        let mut out = Vec::new();
        run(1, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 4);
        for part in [
            r#""online_order":0,"section_bytes":268435456"#,
            r#""online_order":9,"section_bytes":134217728"#,
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
