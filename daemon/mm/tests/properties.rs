//! Random operation lists on a zone and its naive twin, everything compared after each.
//!
//! Tiny geometries bring edges early: pageblocks of half a word, of one, of two words,
//! one section as small as the largest block. The real one runs a few cases.

#![allow(
    clippy::unwrap_used,
    reason = "a test says what is wrong by where it stops"
)]

mod model;

use hugepool_mm::{Geometry, ZoneKind};
use model::{Op, Twin};
use proptest::collection::vec;
use proptest::prelude::*;

fn op(nr: u16) -> impl Strategy<Value = Op> {
    let section = 0..4u32;
    let any_page = any::<u32>();
    prop_oneof![
        2 => (section.clone(), vec((any::<u16>(), 1..40u16), 0..4), prop::bool::weighted(0.1))
            .prop_map(|(section, holes, abort)| Op::Add { section, holes, abort }),
        2 => (section.clone(), vec(any::<u16>(), 0..1), prop::bool::weighted(0.1))
            .prop_map(|(section, _, abort)| Op::Add { section, holes: vec![], abort }),
        4 => (section.clone(), any::<bool>())
            .prop_map(|(section, by_page)| Op::Online { section, by_page }),
        2 => section.clone().prop_map(|section| Op::Isolate { section }),
        1 => section.clone().prop_map(|section| Op::UndoIsolate { section }),
        2 => section.clone().prop_map(|section| Op::FinishOffline { section }),
        1 => (section, prop::bool::weighted(0.1))
            .prop_map(|(section, abort)| Op::Remove { section, abort }),
        8 => (any::<u8>(), 0..3usize, any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(order, mt, dip, no_fragment)| Op::Alloc { order, mt, dip, no_fragment }),
        6 => (0..7u8, 0..3usize, 0..nr)
            .prop_map(|(order, mt, nr)| Op::Bulk { order, mt, nr }),
        1 => (any_page, 0..7u8, 0..nr)
            .prop_map(|(pfn, order, nr)| Op::TakeFrom { pfn, order, nr }),
        2 => (any_page, 0..11u8).prop_map(|(pfn, order)| Op::TakeExact { pfn, order }),
        1 => (any_page, 0..3usize).prop_map(|(pfn, mt)| Op::SetType { pfn, mt }),
        6 => any_page.prop_map(|which| Op::Free { which }),
        6 => (any_page, 0..nr, any::<bool>())
            .prop_map(|(from, nr, by_address)| Op::FreeMany { from, nr, by_address }),
        4 => (0..10u8, 0..3usize, 0..nr)
            .prop_map(|(order, mt, nr)| Op::ListTake { order, mt, nr }),
        4 => (any_page, 0..nr).prop_map(|(which, nr)| Op::ListPut { which, nr }),
        1 => Just(Op::ListDrain),
        1 => (0..20u64, 0..60u64).prop_map(|(batch, high)| Op::SetPcp { batch, high }),
        1 => any_page.prop_map(|which| Op::Reserve { which }),
        1 => any_page.prop_map(|which| Op::Unreserve { which }),
        3 => any_page.prop_map(|pfn| Op::Ask { pfn }),
        1 => Just(Op::AskZone),
        1 => Just(Op::Invalidate),
        1 => any::<u8>().prop_map(|mode| Op::Mode { mode }),
        1 => any_page.prop_map(|pfn| Op::Skip { pfn }),
        2 => (any::<u8>(), any::<u8>(), any::<usize>())
            .prop_map(|(mode, order, mt)| Op::CompactBegin { mode, order, mt }),
        6 => (1..9u8, 1..12u32, 0..4usize)
            .prop_map(|(nr, budget, fails)| Op::CompactSteps { nr, budget, fails }),
    ]
}

fn run(geometry: (u8, u8, u8), kind: ZoneKind, ops: &[Op]) {
    let (pageblock, max, section) = geometry;
    let mut twin = Twin::new(Geometry::new(12, pageblock, max, section).unwrap(), 4, kind);
    for op in ops {
        twin.apply(op);
    }
}

fn kind() -> impl Strategy<Value = ZoneKind> {
    prop::sample::select(vec![ZoneKind::Normal, ZoneKind::Normal, ZoneKind::Movable])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn pageblocks_of_half_a_word(ops in vec(op(60), 1..80), kind in kind()) {
        run((5, 6, 7), kind, &ops);
    }

    #[test]
    fn pageblocks_of_one_word(ops in vec(op(100), 1..80), kind in kind()) {
        run((6, 8, 8), kind, &ops);
    }

    #[test]
    fn pageblocks_of_two_words(ops in vec(op(200), 1..60), kind in kind()) {
        run((7, 7, 9), kind, &ops);
    }
}

/// A full zone with some pages freed, then compaction among what can cross its way.
fn compaction() -> impl Strategy<Value = Vec<Op>> {
    let add = |section| Op::Add {
        section,
        holes: vec![],
        abort: false,
    };
    let online = |section| Op::Online {
        section,
        by_page: false,
    };
    let fill =
        (0..3u8, 0..3usize, 100..700u16).prop_map(|(order, mt, nr)| Op::Bulk { order, mt, nr });
    let section = 0..4u32;
    let among = prop_oneof![
        2 => (any::<u8>(), any::<u8>(), any::<usize>())
            .prop_map(|(mode, order, mt)| Op::CompactBegin { mode, order, mt }),
        8 => (1..4u8, 1..5u32, 0..4usize)
            .prop_map(|(nr, budget, fails)| Op::CompactSteps { nr, budget, fails }),
        2 => section.clone().prop_map(|section| Op::Isolate { section }),
        2 => section.clone().prop_map(|section| Op::UndoIsolate { section }),
        1 => section.clone().prop_map(|section| Op::FinishOffline { section }),
        1 => section.prop_map(|section| Op::Online { section, by_page: false }),
        2 => any::<u32>().prop_map(|which| Op::Free { which }),
        1 => (any::<u32>(), 0..3usize).prop_map(|(pfn, mt)| Op::SetType { pfn, mt }),
    ];
    let some_free = vec(any::<u32>().prop_map(|which| Op::Free { which }), 20..120);
    (vec(fill, 2..5), some_free, vec(among, 1..60)).prop_map(move |(fill, some_free, among)| {
        let start = (0..4).flat_map(|section| [add(section), online(section)]);
        start.chain(fill).chain(some_free).chain(among).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn compaction_among_hot_events(ops in compaction()) {
        run((5, 6, 7), ZoneKind::Normal, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn pageblocks_of_eight_words(ops in vec(op(900), 1..60), kind in kind()) {
        run((9, 10, 11), kind, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn the_standard_geometry(ops in vec(op(5000), 1..30)) {
        run((9, 10, 15), ZoneKind::Normal, &ops);
    }
}
