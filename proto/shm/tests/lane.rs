//! A lane between a client and the daemon, both played by one thread: what goes in comes out,
//! once, and the limits of each part are kept. The races are the business of `loom_*.rs`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::lane_client::{LaneClient, LaneTerms, Miss};
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon, TakeState};
use hugepool_shm::layout::{PAGE_GRANTS, PAGE_MAGAZINE, RETURNS};
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};
use hugepool_shm::scribble::LaneWord;

const TERMS: LaneTerms = LaneTerms {
    client_index: 2,
    pageblock_order: 9,
    registered: true,
};
const SETTINGS: ClassSettings = ClassSettings {
    batch: 16,
    high: 64,
    low_mark: 8,
    zones: u32::MAX,
};

fn segment() -> ControlSegment {
    let geometry = ControlGeometry {
        nr_lanes: 2,
        nr_sections: 4,
        nr_pages: 1 << 17,
    };
    ControlSegment::heap(geometry).unwrap()
}

fn page(pfn: u32) -> RawPage {
    block(pfn, 0, RawMigratetype::Unmovable)
}

fn block(pfn: u32, order: u32, migratetype: RawMigratetype) -> RawPage {
    let (zone, client, generation) = (0, 2, 1);
    PageParts {
        pfn,
        order,
        migratetype,
        zone,
        client,
        generation,
    }
    .pack()
    .unwrap()
}

fn daemon(segment: &ControlSegment) -> LaneDaemon {
    let daemon = LaneDaemon::new(segment.clone(), 0).unwrap();
    Class::all().for_each(|class| daemon.configure(class, SETTINGS));
    daemon
}

fn settled(daemon: &mut LaneDaemon) -> Vec<RawPage> {
    let mut words = Vec::new();
    daemon.settle(&mut |word| words.push(word)).unwrap();
    words
}

fn freed(segment: &ControlSegment) -> Vec<u32> {
    let (settled, ()) = segment
        .free_map()
        .load(&mut 0, usize::MAX)
        .settled_by(|| ());
    let heads = settled.heads().collect();
    settled.commit();
    heads
}

fn take(client: &LaneClient<'_>, class: Class, count: usize) -> Vec<RawPage> {
    let mut out = vec![RawPage::default(); count];
    let taken = client.take_raw(class, &mut out);
    out.truncate(taken.count);
    out
}

#[test]
fn a_lent_batch_is_taken_in_order_and_the_magazine_comes_first() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    let lent: Vec<_> = (0..100).map(page).collect();
    assert_eq!(daemon.grant(Class::PAGE, &lent), Ok(100));

    let first = take(&client, Class::PAGE, 60);
    assert_eq!(first, lent[..60]);
    client.put_raw(&first[..50]);
    let second = take(&client, Class::PAGE, 70);
    assert_eq!(second[..50], first[..50]);
    assert_eq!(second[50..], lent[60..80]);

    let mut out = [RawPage::default(); 40];
    let taken = client.take_raw(Class::PAGE, &mut out);
    assert_eq!((taken.count, taken.miss), (20, Some(Miss::Empty)));
    assert_eq!(client.take_one_raw(Class::PAGE), Err(Miss::Empty));
}

#[test]
fn one_page_at_a_time_is_last_in_first_out() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    daemon
        .grant(Class::PAGE, &[page(1), page(2), page(3)])
        .unwrap();
    let taken: Vec<_> = (0..3)
        .map(|_| client.take_one_raw(Class::PAGE).unwrap())
        .collect();
    assert_eq!(taken, [page(1), page(2), page(3)]);
    taken.into_iter().for_each(|page| client.put_one_raw(page));
    for pfn in [3, 2, 1] {
        assert_eq!(client.take_one_raw(Class::PAGE), Ok(page(pfn)));
    }
}

#[test]
fn the_grants_ring_holds_its_capacity_and_no_more() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let lent: Vec<_> = (0..5000).map(page).collect();
    assert_eq!(
        daemon.room(Class::PAGE),
        Ok(u32::try_from(PAGE_GRANTS).unwrap())
    );
    assert_eq!(daemon.grant(Class::PAGE, &lent), Ok(PAGE_GRANTS));
    assert_eq!(daemon.grant(Class::PAGE, &lent), Ok(0));
    assert_eq!(daemon.room(Class::PAGE), Ok(0));
}

#[test]
fn above_high_the_oldest_blocks_are_spilled() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    (0..64).for_each(|pfn| client.put_one_raw(page(pfn)));
    assert!(settled(&mut daemon).is_empty());
    client.put_one_raw(page(64));
    assert_eq!(settled(&mut daemon), (0..16).map(page).collect::<Vec<_>>());
    assert_eq!(daemon.depth(Class::PAGE).unwrap().magazine, 49);

    // A batch that goes far above comes down to the mark at once.
    client.put_raw(&(100..300).map(page).collect::<Vec<_>>());
    assert_eq!(daemon.depth(Class::PAGE).unwrap().magazine, 64);
    assert_eq!(settled(&mut daemon).len(), 249 - 64);
}

#[test]
fn with_the_magazine_and_the_returns_full_frees_go_to_the_free_map() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    let total = u32::try_from(RETURNS + PAGE_MAGAZINE + 500).unwrap();
    (0..total).for_each(|pfn| client.put_one_raw(page(pfn)));

    let mut home: Vec<u32> = settled(&mut daemon).iter().map(|page| page.pfn()).collect();
    assert_eq!(home.len(), RETURNS);
    let mapped = freed(&segment);
    assert_eq!(mapped.len(), 500);
    home.extend(mapped);
    home.extend(
        take(&client, Class::PAGE, 2000)
            .iter()
            .map(|page| page.pfn()),
    );
    assert_eq!(home.iter().collect::<BTreeSet<_>>().len(), total as usize);
    assert_eq!(home.len(), total as usize);
    assert_eq!(client.stats().nr_mapped_frees, 500);
}

#[test]
fn a_batch_larger_than_all_there_is_room_for_is_freed_whole() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    let pages: Vec<_> = (0..10_000).map(page).collect();
    client.put_raw(&pages);
    let mut home = settled(&mut daemon).len() + freed(&segment).len();
    home += take(&client, Class::PAGE, 2048).len();
    assert_eq!(home, 10_000);
}

#[test]
fn mixed_frees_find_their_class_and_what_has_none_goes_home() {
    use RawMigratetype::{Movable, Reclaimable, Unmovable};
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    let mixed = [
        page(0),
        block(8, 3, Movable),
        RawPage::default(),
        block(512, 9, Movable),
        block(16, 4, Unmovable),
        page(1),
        block(1, 0, Reclaimable),
    ];
    client.put_raw(&mixed);
    assert_eq!(settled(&mut daemon), [block(16, 4, Unmovable)]);
    assert_eq!(take(&client, Class::PAGE, 5), [page(0), page(1)]);
    let class = |order, migratetype| Class::new(order, migratetype, 9).unwrap();
    assert_eq!(take(&client, class(3, Movable), 5), [block(8, 3, Movable)]);
    assert_eq!(
        take(&client, class(9, Movable), 5),
        [block(512, 9, Movable)]
    );
    assert_eq!(
        take(&client, class(0, Reclaimable), 5),
        [block(1, 0, Reclaimable)]
    );
}

#[test]
fn blocks_of_other_zones_are_not_cached() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    daemon.configure(
        Class::PAGE,
        ClassSettings {
            zones: 0b10,
            ..SETTINGS
        },
    );
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    client.put_one_raw(page(7));
    client.put_raw(&[page(8), page(9)]);
    assert_eq!(settled(&mut daemon), [page(7), page(8), page(9)]);
}

#[test]
fn a_recalled_lane_gives_everything_back_and_forgets_nothing() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    daemon
        .grant(Class::PAGE, &(0..40).map(page).collect::<Vec<_>>())
        .unwrap();
    let held = take(&client, Class::PAGE, 30);
    client.put_raw(&held[..20]);

    daemon.close();
    assert_eq!(client.take_one_raw(Class::PAGE), Err(Miss::Closed));
    client.put_one_raw(held[20]);
    let mut taken = Vec::new();
    assert_eq!(daemon.try_take(false, &mut taken), Ok(TakeState::Emptied));
    let pfns: BTreeSet<_> = taken.iter().map(|page| page.pfn()).collect();
    assert_eq!(pfns, (0..20).chain(30..40).collect());
    assert_eq!(settled(&mut daemon), [held[20]]);
    assert_eq!(daemon.grant(Class::PAGE, &[page(1)]), Ok(0));

    assert!(daemon.open() && !daemon.open());
    assert_eq!(client.take_one_raw(Class::PAGE), Err(Miss::Empty));
    daemon.grant(Class::PAGE, &[page(50), page(51)]).unwrap();
    client.put_one_raw(held[21]);
    assert_eq!(
        take(&client, Class::PAGE, 9),
        [held[21], page(50), page(51)]
    );
}

#[test]
fn a_thread_that_comes_to_a_closed_lane_finds_it_closed() {
    // Seen to fail with a first epoch of 1, which is that of the first recall.
    let segment = segment();
    let mut daemon = daemon(&segment);
    daemon.grant(Class::PAGE, &[page(1)]).unwrap();
    for _ in 0..3 {
        daemon.close();
        let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
        assert_eq!(client.take_one_raw(Class::PAGE), Err(Miss::Closed));
        let retired = LaneClient::new(&segment, 0, TERMS, None).unwrap();
        retired.retire();
        assert_ne!(retired.take_one_raw(Class::PAGE).ok(), Some(page(1)));
        assert_eq!(
            daemon.try_take(false, &mut Vec::new()),
            Ok(TakeState::Emptied)
        );
        assert!(daemon.open());
    }
}

#[test]
fn a_run_is_two_words_and_taken_in_pieces_leaves_a_run() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    let pages: Vec<RawPage> = (100..200).map(page).collect();
    // Whatever lay in the other places before.
    for at in 0..200 {
        segment.scribble(0, LaneWord::Grant(Class::PAGE, at), u64::MAX);
    }
    assert_eq!(daemon.grant(Class::PAGE, &pages), Ok(100));
    let nr_written = (0..200)
        .filter(|&at| segment.peek(0, LaneWord::Grant(Class::PAGE, at)) != Some(u64::MAX))
        .count();
    assert_eq!(nr_written, 2);
    assert_eq!(daemon.grant(Class::PAGE, &[page(300)]), Ok(1));
    let mut taken = Vec::new();
    for count in [1, 1, 2, 3, 5, 70] {
        taken.extend(take(&client, Class::PAGE, count));
        let mut seen = Vec::new();
        daemon.look(&mut |word| seen.push(word));
        assert_eq!(taken, pages[..taken.len()]);
        assert_eq!(seen[..100 - taken.len()], pages[taken.len()..]);
        assert_eq!(seen.last(), Some(&page(300)));
    }
    let mut rest = Vec::new();
    daemon.close();
    assert_eq!(daemon.try_take(false, &mut rest), Ok(TakeState::Emptied));
    taken.append(&mut rest);
    assert_eq!(taken.pop(), Some(page(300)));
    assert_eq!(taken, pages);
}

#[test]
fn blocks_of_several_runs_go_home_as_they_were() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let movable = |pfn| block(pfn, 3, RawMigratetype::Movable);
    let words: Vec<RawPage> = (8..200)
        .map(page)
        .chain([page(5), page(7), page(8)])
        .chain((0..9).map(|at| movable(1024 + 8 * at)))
        .chain([movable(1024 + 9), block(4096, 5, RawMigratetype::Movable)])
        .collect();
    // Of an order or in a zone that the magazine does not keep, all of them go home at once.
    Class::all().for_each(|class| {
        let settings = ClassSettings {
            zones: 0,
            ..SETTINGS
        };
        daemon.configure(class, settings);
    });
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    client.put_raw(&words);
    assert_eq!(settled(&mut daemon), words);
    let mut nr_runs = 0;
    client.put_raw(&words);
    daemon.settle_runs(&mut |_| nr_runs += 1).unwrap();
    assert_eq!(nr_runs, 6);
}

#[test]
fn a_look_shows_what_lies_in_a_lane_and_takes_nothing() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    let pages: Vec<RawPage> = (0..20).map(page).collect();
    daemon.grant(Class::PAGE, &pages).unwrap();
    let taken = take(&client, Class::PAGE, 5);
    client.put_raw(&taken[..3]);
    let look = |daemon: &LaneDaemon| {
        let mut seen = BTreeSet::new();
        daemon.look(&mut |page| assert!(seen.insert(page.pfn())));
        seen
    };
    let expected: BTreeSet<u32> = (0..3).chain(5..20).collect();
    assert_eq!(look(&daemon), expected);
    assert_eq!(look(&daemon), expected);
    daemon.close();
    let mut out = Vec::new();
    assert_eq!(daemon.try_take(false, &mut out), Ok(TakeState::Emptied));
    assert!(look(&daemon).is_empty());
}

#[test]
fn the_client_rings_below_the_low_mark_and_only_a_sleeping_daemon() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let rings = Arc::new(AtomicU32::new(0));
    let bell = Doorbell::new({
        let rings = rings.clone();
        move || {
            rings.fetch_add(1, Ordering::Relaxed);
        }
    });
    let nr_rings = || rings.load(Ordering::Relaxed);
    let client = LaneClient::new(&segment, 0, TERMS, Some(&bell)).unwrap();
    daemon
        .grant(Class::PAGE, &(0..20).map(page).collect::<Vec<_>>())
        .unwrap();
    take(&client, Class::PAGE, 13);
    assert_eq!(nr_rings(), 0);
    segment.announce_sleep();
    take(&client, Class::PAGE, 1);
    assert_eq!(nr_rings(), 1);
    take(&client, Class::PAGE, 1);
    assert_eq!(nr_rings(), 1, "rang twice for one sleep");

    segment.announce_sleep();
    client.want(Class::PAGE, 5);
    assert_eq!(nr_rings(), 2);
    assert_eq!(daemon.take_wanted(Class::PAGE), 5);
    assert_eq!(daemon.take_wanted(Class::PAGE), 0);
    segment.announce_sleep();
    segment.announce_wake();
    client.want(Class::PAGE, 1);
    assert_eq!(nr_rings(), 2);
}

#[test]
fn a_retired_lane_frees_into_the_map() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    daemon.grant(Class::PAGE, &[page(1), page(2)]).unwrap();
    let one = client.take_one_raw(Class::PAGE).unwrap();
    client.retire();
    assert_eq!(client.take_one_raw(Class::PAGE), Err(Miss::Detached));
    client.put_one_raw(one);
    assert!(settled(&mut daemon).is_empty());
    assert_eq!(freed(&segment), [1]);
}

#[test]
fn a_signal_handler_in_the_middle_of_an_operation_is_refused_and_loses_nothing() {
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, TERMS, None).unwrap();
    daemon
        .grant(Class::PAGE, &(0..9).map(page).collect::<Vec<_>>())
        .unwrap();
    let held = take(&client, Class::PAGE, 5);
    // As the handler finds it: the thread stands in the window.
    assert!(segment.scribble(0, LaneWord::Busy, 7));
    assert_eq!(client.take_one_raw(Class::PAGE), Err(Miss::Reentered));
    let mut out = [RawPage::default(); 3];
    let taken = client.take_raw(Class::PAGE, &mut out);
    assert_eq!((taken.count, taken.miss), (0, Some(Miss::Reentered)));
    client.put_one_raw(held[0]);
    client.put_raw(&held[1..4]);
    assert_eq!(segment.peek(0, LaneWord::Busy), Some(7));
    assert!(settled(&mut daemon).is_empty());
    assert_eq!(freed(&segment), [0, 1, 2, 3]);

    assert!(segment.scribble(0, LaneWord::Busy, 0));
    client.put_one_raw(held[4]);
    assert_eq!(take(&client, Class::PAGE, 9).len(), 5);
}

#[test]
fn without_the_barrier_a_lane_does_the_same() {
    let terms = LaneTerms {
        registered: false,
        ..TERMS
    };
    let segment = segment();
    let mut daemon = daemon(&segment);
    let client = LaneClient::new(&segment, 0, terms, None).unwrap();
    daemon
        .grant(Class::PAGE, &(0..200).map(page).collect::<Vec<_>>())
        .unwrap();
    let first = take(&client, Class::PAGE, 100);
    client.put_raw(&first[..30]);
    first[30..]
        .iter()
        .for_each(|&page| client.put_one_raw(page));
    assert_eq!(client.take_one_raw(Class::PAGE), Ok(first[99]));
    let mut home = settled(&mut daemon);
    daemon.close();
    daemon.try_take(false, &mut home).unwrap();
    assert_eq!(home.len(), 199);
    assert_eq!(client.take_one_raw(Class::PAGE), Err(Miss::Closed));
}
