//! Public fault reports as scenarios, where the allocator alone can show the right end.
//!
//! Each test is named by its report and says the symptom; the story is the kind of
//! fault, so what is checked is more than the one line that went wrong there.

#![allow(
    clippy::unwrap_used,
    reason = "a test says what is wrong by where it stops"
)]

use hugepool_mm::{
    AllocFlags, Geometry, Migratetype, OnlineOrder, Order, Pfn, SectionError, SectionId, Shortfall,
    Zone, ZoneConfig, ZoneCounts, ZoneId, ZoneKind, setup_zones,
};

const DIP: AllocFlags = AllocFlags::DIP;
const MOVABLE: Migratetype = Migratetype::Movable;

fn zone(name: &str, kind: ZoneKind, geometry: Geometry, start: u32, nr_sections: u32) -> Zone {
    let start = SectionId::new(start);
    let config = ZoneConfig {
        id: ZoneId::new(0),
        name: name.to_owned(),
        kind,
        node: 0,
        start: geometry.section_start(start).unwrap(),
        span_pages: u64::from(nr_sections) << geometry.section_order(),
    };
    Zone::new(config, geometry).unwrap()
}

fn add(zone: &mut Zone, section: u32) {
    zone.begin_add(SectionId::new(section)).unwrap();
    zone.finish_add(SectionId::new(section)).unwrap();
}

fn online(zone: &mut Zone, section: u32) {
    add(zone, section);
    zone.online(SectionId::new(section), OnlineOrder::Pageblock)
        .unwrap();
}

fn offline(zone: &mut Zone, section: u32) -> Result<(), SectionError> {
    zone.isolate(SectionId::new(section)).unwrap();
    let done = zone.finish_offline(SectionId::new(section));
    if done.is_err() {
        zone.undo_isolate(SectionId::new(section)).unwrap();
    }
    zone.verify().unwrap();
    done
}

fn remove(zone: &mut Zone, section: u32) {
    zone.begin_remove(SectionId::new(section)).unwrap();
    zone.finish_remove(SectionId::new(section)).unwrap();
    zone.verify().unwrap();
}

fn tiny() -> Geometry {
    Geometry::new(12, 5, 6, 7).unwrap()
}

/// Symptom: a zone's managed count wraps below zero after a page counted out of one
/// zone moves to another and its block is removed.
#[test]
fn r01_managed_counts_follow_reserved_pages_and_never_wrap() {
    let (mut a, mut b) = (
        zone("a", ZoneKind::Normal, tiny(), 0, 64),
        zone("b", ZoneKind::Movable, tiny(), 64, 8),
    );
    (0..64).for_each(|section| online(&mut a, section));
    (64..72).for_each(|section| online(&mut b, section));
    let total = a.counts().managed + b.counts().managed;
    let never_above = |zone: &Zone| {
        let ZoneCounts {
            present,
            managed,
            free,
            pcp,
            lent,
            isolated,
            ..
        } = zone.counts();
        assert!(managed <= present);
        assert_eq!(managed, free + pcp + lent + isolated);
        zone.verify().unwrap();
    };

    let mut balloon = Vec::new();
    b.rmqueue_bulk(Order::ZERO, MOVABLE, 100, DIP, &mut balloon);
    for &page in &balloon {
        b.reserve(page, Order::ZERO);
        never_above(&b);
    }
    assert_eq!(a.counts().managed + b.counts().managed, total - 100);
    assert!(matches!(
        offline(&mut b, 64),
        Err(SectionError::Busy { nr_held: 100, .. })
    ));

    // Each page moves: the new one is counted out of its own zone, the old one in again.
    for page in &mut balloon {
        let moved = a.alloc(Order::ZERO, MOVABLE, DIP).unwrap();
        a.reserve(moved, Order::ZERO);
        b.unreserve(*page, Order::ZERO);
        b.free(*page, Order::ZERO);
        *page = moved;
        assert_eq!(a.counts().managed + b.counts().managed, total - 100);
    }
    never_above(&a);
    never_above(&b);

    for section in 64..72 {
        offline(&mut b, section).unwrap();
        remove(&mut b, section);
    }
    let b_end = b.counts();
    assert_eq!((b_end.spanned, b_end.present, b_end.managed), (0, 0, 0));
    assert_eq!(a.counts().managed, 64 * 128 - 100);
    for page in balloon {
        a.unreserve(page, Order::ZERO);
        a.free(page, Order::ZERO);
        never_above(&a);
    }
    assert_eq!((a.counts().managed, a.counts().free), (64 * 128, 64 * 128));
}

/// Symptom: offline gives up though the page was only in a list of one processor.
#[test]
fn r02_listed_pages_are_called_home_by_offline() {
    let mut zone = zone("movable", ZoneKind::Movable, tiny(), 0, 4);
    online(&mut zone, 0);
    online(&mut zone, 1);
    zone.set_pcp(Some((64, 200)));
    let mut pages = Vec::new();
    zone.rmqueue_bulk(Order::ZERO, MOVABLE, 64, DIP, &mut pages);
    pages
        .iter()
        .for_each(|&page| zone.pcp_put(page, Order::ZERO));
    assert_eq!(zone.counts().pcp, 64);
    assert_eq!(offline(&mut zone, 0), Ok(()));
    // And lists do not fill from it again while it is on its way.
    let mut other = Vec::new();
    assert_eq!(zone.pcp_take(Order::ZERO, MOVABLE, 10, DIP, &mut other), 10);
    assert!(other.iter().all(|page| page.get() >= 128));
}

/// Symptom: removing a device whose blocks were never onlined, or went to several
/// zones, reads page records that nobody wrote.
#[test]
fn r03_sections_of_one_device_leave_both_zones_empty() {
    let mut movable = zone("movable", ZoneKind::Movable, tiny(), 0, 4);
    let mut normal = zone("normal", ZoneKind::Normal, tiny(), 0, 4);
    // Blocks 0..4: never onlined, movable, kernel, movable.
    add(&mut movable, 0);
    online(&mut movable, 1);
    online(&mut normal, 2);
    online(&mut movable, 3);
    assert_eq!(movable.counts().spanned, 4 * 128);
    assert_eq!(movable.counts().present, 3 * 128);
    assert_eq!(movable.counts().managed, 2 * 128);
    // The hole in the middle is the other zone's: nothing of it is answered for.
    assert!(!movable.is_whole_pageblock(Pfn::new(2 * 128)));
    assert_eq!(
        movable.pageblock(Pfn::new(0)),
        None,
        "no record was made for it"
    );

    remove(&mut movable, 0);
    assert_eq!(movable.span().start, 128);
    for section in [1, 3] {
        offline(&mut movable, section).unwrap();
        remove(&mut movable, section);
    }
    offline(&mut normal, 2).unwrap();
    remove(&mut normal, 2);
    for zone in [&movable, &normal] {
        assert_eq!(zone.counts(), ZoneCounts::default());
        assert_eq!(zone.sections().count(), 0);
    }
}

/// Symptom: after memory has gone to a new node the old one keeps the span, and two
/// nodes end at the same page.
#[test]
fn r04_a_span_shrinks_from_both_ends_and_zones_do_not_overlap() {
    let mut node0 = zone("node 0", ZoneKind::Normal, tiny(), 0, 16);
    let mut node2 = zone("node 2", ZoneKind::Movable, tiny(), 8, 8);
    (0..4).for_each(|section| online(&mut node0, section));
    (8..16).for_each(|section| add(&mut node0, section));
    let present = node0.counts().present;
    assert_eq!(node0.span().end, 16 * 128);
    for section in 8..16 {
        remove(&mut node0, section);
    }
    for section in 8..15 {
        online(&mut node2, section);
    }
    add(&mut node2, 15);
    assert_eq!((node0.span().start, node0.span().end), (0, 4 * 128));
    assert!(node0.span().intersect(node2.span()).is_empty());
    assert_eq!(node0.counts().present + node2.counts().present, present);
    // From below too, and over a gap.
    offline(&mut node0, 1).unwrap();
    remove(&mut node0, 1);
    assert_eq!(node0.span().start, 0);
    offline(&mut node0, 0).unwrap();
    remove(&mut node0, 0);
    assert_eq!((node0.span().start, node0.span().end), (2 * 128, 4 * 128));
}

/// Symptom: the type of a pageblock and the list its free pages are on disagree, so
/// unmovable blocks grow without end.
#[test]
fn r09_list_type_is_block_type_after_a_million_operations() {
    let mut zone = zone(
        "normal",
        ZoneKind::Normal,
        Geometry::new(12, 6, 8, 9).unwrap(),
        3,
        8,
    );
    (3..11).for_each(|section| online(&mut zone, section));
    let mut held: [Vec<(Pfn, Order)>; 3] = Default::default();
    let mut state = 0x853c_49e6_748f_ea9b_u64;
    let mut draw = move |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % bound as u64).unwrap()
    };
    let mut most_unmovable = [0; 2];
    for step in 0..1_000_000_u32 {
        // Unmovable pages are few; movable ones fill most of the zone.
        let mt = [0, 1, 1, 1, 1, 1, 1, 2][draw(8)];
        let limit = [300, 1_200, 150][mt];
        if draw(limit) >= held[mt].len() {
            let order = Order::new([0, 0, 0, 0, 1, 2, 3, 5][draw(8)]).unwrap();
            if let Ok(pfn) = zone.alloc(order, Migratetype::ALL[mt], DIP) {
                held[mt].push((pfn, order));
            }
        } else {
            let at = draw(held[mt].len());
            let (pfn, order) = held[mt].swap_remove(at);
            zone.free(pfn, order);
        }
        if step % 1_000 == 0 {
            zone.verify().unwrap();
            let half = usize::from(step >= 500_000);
            let unmovable = zone.pagetypeinfo().rows[0].nr_pageblocks;
            most_unmovable[half] = most_unmovable[half].max(unmovable);
        }
    }
    let counts = zone.fallback_counts();
    assert!(
        counts.nr_whole_claimed > 0,
        "the run never left its own pageblocks"
    );
    // Bounded over time: the second half needs no more ground than the first did.
    assert!(
        most_unmovable[1] <= most_unmovable[0] + 2,
        "{most_unmovable:?}"
    );
    assert!(
        most_unmovable[1] < 48,
        "{most_unmovable:?} of 64 pageblocks"
    );
    for (pfn, order) in held.into_iter().flatten() {
        zone.free(pfn, order);
    }
    zone.verify().unwrap();
    assert_eq!(zone.counts().free, 8 * 512);
    assert_eq!(zone.buddyinfo()[8], 16, "everything merges again");
}

/// Symptom: a minimum that a person has set is recomputed by offline and online.
#[test]
fn r12_a_minimum_set_by_hand_stands() {
    let geometry = Geometry::standard();
    let mut zones = [
        zone("node 0", ZoneKind::Normal, geometry, 0, 32),
        zone("node 1", ZoneKind::Normal, geometry, 32, 32),
    ];
    (0..32).for_each(|section| online(&mut zones[0], section));
    (32..64).for_each(|section| online(&mut zones[1], section));
    let sum = |zones: &[Zone; 2]| zones[0].watermarks().min + zones[1].watermarks().min;
    setup_zones(&mut zones, Some(90_000));
    assert_eq!(sum(&zones), 90_000 / 4);
    offline(&mut zones[1], 63).unwrap();
    setup_zones(&mut zones, Some(90_000));
    // Two shares, each rounded down.
    assert!(
        (90_000 / 4 - 1..=90_000 / 4).contains(&sum(&zones)),
        "{}",
        sum(&zones)
    );
    zones[1]
        .online(SectionId::new(63), OnlineOrder::Pageblock)
        .unwrap();
    setup_zones(&mut zones, Some(90_000));
    assert_eq!(sum(&zones), 90_000 / 4);
    // Taken back, the formula holds: 4 times the root of 8 GiB in KiB.
    setup_zones(&mut zones, None);
    assert_eq!(sum(&zones), 11_585 / 4);
}

/// Symptom: "full", though half of the memory is free, at odd pages.
#[test]
fn r20_fragmented_says_how_much_is_free_and_how_large() {
    let mut zone = zone("movable", ZoneKind::Movable, tiny(), 0, 2);
    online(&mut zone, 0);
    let mut pages = Vec::new();
    zone.rmqueue_bulk(Order::ZERO, MOVABLE, 128, DIP, &mut pages);
    for &page in pages.iter().filter(|page| page.get() % 2 == 1) {
        zone.free(page, Order::ZERO);
    }
    let order = Order::new(6).unwrap();
    assert_eq!(
        zone.alloc(order, MOVABLE, DIP),
        Err(Shortfall::Fragmented {
            free_pages: 64,
            largest_order: Order::ZERO
        })
    );
    assert_eq!(zone.counts().free, 64, "a refusal takes nothing");
}
