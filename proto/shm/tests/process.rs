//! Pages in a process: their bytes, the lanes of threads, and what outlives what. The daemon is
//! played by the test.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::lane_client::{Miss, Taken};
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon, TakeState};
use hugepool_shm::mapping::Mapping;
use hugepool_shm::page::Page;
use hugepool_shm::process::{
    ClientHandle, ClientIndex, LocalLane, Registration, ReserveError, ZoneBytes,
    reserve_client_index,
};
use hugepool_shm::raw::{Class, NR_CLIENTS, PageParts, RawMigratetype, RawPage};

const NR_PAGES: u32 = 512;
const FIRST_PFN: u32 = 4096;
const SETTINGS: ClassSettings = ClassSettings {
    batch: 8,
    high: 256,
    low_mark: 0,
    zones: u32::MAX,
};

/// The table of clients is the process's, so tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Stage {
    control: ControlSegment,
    daemons: Vec<LaneDaemon>,
    client_index: u32,
}

impl Stage {
    /// A client with `nr_lanes` lanes, the last of them shared, and nothing granted.
    fn new(nr_lanes: u32) -> (Stage, ClientHandle) {
        Stage::with_index(nr_lanes, reserve_client_index().unwrap())
    }

    fn with_index(nr_lanes: u32, index: ClientIndex) -> (Stage, ClientHandle) {
        let nr_pages = u64::from(FIRST_PFN + NR_PAGES);
        let geometry = ControlGeometry {
            nr_lanes,
            nr_sections: 1,
            nr_pages,
        };
        let control = ControlSegment::heap(geometry).unwrap();
        let daemons: Vec<_> = (0..nr_lanes)
            .map(|lane| LaneDaemon::new(control.clone(), lane).unwrap())
            .collect();
        for daemon in &daemons {
            Class::all().for_each(|class| daemon.configure(class, SETTINGS));
        }
        let memory = Mapping::heap(NR_PAGES as usize * 4096).unwrap();
        let client_index = index.get();
        let registration = Registration {
            control: control.clone(),
            zones: vec![ZoneBytes::of_mapping(memory, 3, FIRST_PFN, 12).unwrap()],
            doorbell: Doorbell::new(|| ()),
            pageblock_order: 9,
            registered: true,
        };
        let client = index.register(registration).unwrap();
        (
            Stage {
                control,
                daemons,
                client_index,
            },
            client,
        )
    }

    fn raw(&self, offset: u32, order: u32) -> RawPage {
        let (zone, client, generation) = (3, self.client_index, 1);
        let migratetype = RawMigratetype::Unmovable;
        let pfn = FIRST_PFN + offset;
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

    fn grant(&mut self, lane: usize, offsets: std::ops::Range<u32>) {
        let pages: Vec<_> = offsets.map(|offset| self.raw(offset, 0)).collect();
        assert_eq!(
            self.daemons[lane].grant(Class::PAGE, &pages),
            Ok(pages.len())
        );
    }

    /// Page numbers in the free map, as offsets.
    fn freed(&self) -> BTreeSet<u32> {
        let (settled, ()) = self
            .control
            .free_map()
            .load(&mut 0, usize::MAX)
            .settled_by(|| ());
        let heads = settled.heads().map(|pfn| pfn - FIRST_PFN).collect();
        settled.commit();
        heads
    }

    /// Offsets of everything that lies in the lanes and the free map: home, or on its way.
    fn everything(&mut self) -> Vec<u32> {
        let mut words = Vec::new();
        for daemon in &mut self.daemons {
            daemon.settle(&mut |word| words.push(word)).unwrap();
            daemon.close();
            assert_eq!(daemon.try_take(false, &mut words), Ok(TakeState::Emptied));
            assert!(daemon.open());
        }
        let mut all: Vec<u32> = words.iter().map(|word| word.pfn() - FIRST_PFN).collect();
        all.extend(self.freed());
        all.sort_unstable();
        all
    }
}

const fn is_send_and_sync<T: Send + Sync>() {}
const _: () = is_send_and_sync::<ClientHandle>();
const _: () = is_send_and_sync::<Page>();

#[test]
fn a_page_keeps_its_bytes_and_comes_back_when_dropped() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(2);
    stage.grant(0, 0..2);
    let mut one = client.take_one(Class::PAGE).unwrap();
    let mut other = client.take_one(Class::PAGE).unwrap();
    assert_eq!((one.pfn(), one.order(), one.len()), (FIRST_PFN, 0, 4096));
    one.fill(1);
    other.fill(2);
    assert!(one.iter().all(|&byte| byte == 1) && other.iter().all(|&byte| byte == 2));
    assert_eq!(other.as_ptr().addr() - one.as_ptr().addr(), 4096);
    assert_eq!(client.take_one(Class::PAGE).unwrap_err(), Miss::Empty);
    assert_eq!(client.stats().nr_held, 2);
    drop(other);
    assert_eq!(client.take_one(Class::PAGE).unwrap()[4095], 2);
    drop(one);
    assert_eq!(client.stats().nr_held, 0);
    assert_eq!(stage.everything(), [0, 1]);
}

#[test]
fn only_empty_slots_are_filled_and_the_others_stay_as_they_are() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(2);
    stage.grant(0, 0..200);
    let mut slots: [Option<Page>; 130] = [const { None }; 130];
    for index in (0..130).step_by(3) {
        slots[index] = client.take_one(Class::PAGE).ok();
    }
    let kept: Vec<_> = slots.iter().step_by(3).flatten().map(Page::pfn).collect();
    let taken = client.fill(Class::PAGE, &mut slots);
    assert_eq!(
        taken,
        Taken {
            count: 130 - 44,
            miss: None
        }
    );
    assert!(slots.iter().all(Option::is_some));
    assert_eq!(
        slots
            .iter()
            .step_by(3)
            .flatten()
            .map(Page::pfn)
            .collect::<Vec<_>>(),
        kept
    );
    let pfns: BTreeSet<_> = slots.iter().flatten().map(Page::pfn).collect();
    assert_eq!(pfns, (FIRST_PFN..FIRST_PFN + 130).collect());

    let full = client.fill(Class::PAGE, &mut slots);
    assert_eq!(
        full,
        Taken {
            count: 0,
            miss: None
        }
    );
    assert_eq!(
        client.fill(Class::PAGE, &mut []),
        Taken {
            count: 0,
            miss: None
        }
    );
    slots[10..100].fill_with(|| None);
    slots[60] = client.take_one(Class::PAGE).ok();
    client.local().put_slots(&mut slots[..100]);
    assert!(slots[..100].iter().all(Option::is_none));
    let partial = client.fill(Class::PAGE, &mut slots);
    assert_eq!(
        partial,
        Taken {
            count: 100,
            miss: None
        }
    );
    drop(slots);
    assert_eq!(stage.everything(), (0..200).collect::<Vec<_>>());
}

#[test]
fn a_short_fill_says_so_and_fills_from_the_front() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(2);
    stage.grant(0, 0..5);
    let mut slots: [Option<Page>; 65] = [const { None }; 65];
    slots[1] = client.take_one(Class::PAGE).ok();
    let taken = client.fill(Class::PAGE, &mut slots);
    assert_eq!(
        taken,
        Taken {
            count: 4,
            miss: Some(Miss::Empty)
        }
    );
    assert!(slots[..5].iter().all(Option::is_some));
    assert!(slots[5..].iter().all(Option::is_none));
    client.put_slots(&mut slots);
    assert_eq!(stage.everything(), (0..5).collect::<Vec<_>>());
}

#[test]
fn a_list_grows_by_what_there_is() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(2);
    stage.grant(0, 0..70);
    let mut list = Vec::new();
    assert_eq!(
        client.take_into(Class::PAGE, 0, &mut list),
        Taken {
            count: 0,
            miss: None
        }
    );
    assert_eq!(
        client.take_into(Class::PAGE, 65, &mut list),
        Taken {
            count: 65,
            miss: None
        }
    );
    let taken = client.local().take_into(Class::PAGE, 65, &mut list);
    assert_eq!(
        taken,
        Taken {
            count: 5,
            miss: Some(Miss::Empty)
        }
    );
    let pfns: Vec<_> = list.iter().map(Page::pfn).collect();
    assert_eq!(pfns, (FIRST_PFN..FIRST_PFN + 70).collect::<Vec<_>>());
    client.put_list(&mut list);
    assert!(list.is_empty());
    assert_eq!(stage.everything(), (0..70).collect::<Vec<_>>());
}

#[test]
fn each_thread_has_a_lane_and_leaves_it_to_the_next() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(3);
    stage.grant(0, 0..10);
    stage.grant(1, 100..110);
    let local = client.local();
    assert!(!local.is_shared());
    let here = local.take_one(Class::PAGE).unwrap();
    assert_eq!(here.pfn(), FIRST_PFN);
    let there = thread::scope(|scope| {
        scope
            .spawn(|| client.take_one(Class::PAGE).unwrap())
            .join()
            .unwrap()
    });
    assert_eq!(there.pfn(), FIRST_PFN + 100);
    assert_ne!(stage.daemons[0].thread(), 0);
    assert_eq!(
        stage.daemons[1].thread(),
        0,
        "the lane of a thread that ended is parked"
    );
    let next = thread::scope(|scope| {
        scope
            .spawn(|| client.take_one(Class::PAGE).unwrap().into_raw())
            .join()
            .unwrap()
    });
    assert_eq!(next.pfn(), FIRST_PFN + 101);
    assert_eq!(client.stats().nr_held, 2);
    drop((here, there));
    let expected: Vec<_> = (0..10).chain(100..101).chain(102..110).collect();
    assert_eq!(stage.everything(), expected);
}

#[test]
fn a_local_handle_keeps_its_lane_when_the_threads_table_is_gone() {
    thread_local! {
        static LAST: RefCell<Option<LocalLane>> = const { RefCell::new(None) };
    }
    let _turn = turn();
    let (stage, client) = Stage::new(3);
    thread::scope(|scope| {
        let (client, stage) = (&client, &stage);
        scope
            .spawn(move || {
                // Registered before our own destructor, and so run after it.
                LAST.with(|last| *last.borrow_mut() = None);
                let local = client.local();
                assert_ne!(stage.daemons[0].thread(), 0);
                LAST.with(|last| *last.borrow_mut() = Some(local));
            })
            .join()
            .unwrap();
    });
    assert_eq!(stage.daemons[0].thread(), 0);
}

#[test]
fn threads_beyond_the_lanes_share_one_and_lose_nothing() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(3);
    let nr_lanes = stage.daemons.len();
    for lane in 0..nr_lanes {
        let from = u32::try_from(lane * 100).unwrap();
        stage.grant(lane, from..from + 100);
    }
    let barrier = Barrier::new(6);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let local = client.local();
                barrier.wait();
                let mut list = Vec::new();
                for round in 0..if cfg!(miri) { 4 } else { 200 } {
                    let _ = local.take_into(Class::PAGE, 1 + round % 9, &mut list);
                    list.iter_mut()
                        .for_each(|page| page[0] = page[0].wrapping_add(1));
                    if round % 2 == 0 {
                        local.put_list(&mut list);
                    } else {
                        list.clear();
                    }
                }
                barrier.wait();
            });
        }
    });
    assert_eq!(client.stats().nr_held, 0);
    assert_eq!(stage.everything(), (0..300).collect::<Vec<_>>());
}

#[test]
fn pages_may_be_dropped_in_any_thread_and_after_a_threads_lane_is_gone() {
    struct DropsLate(RefCell<Vec<Page>>);
    thread_local! {
        static LATE: DropsLate = const { DropsLate(RefCell::new(Vec::new())) };
    }
    let _turn = turn();
    let (mut stage, client) = Stage::new(2);
    stage.grant(0, 0..40);
    let mut list = Vec::new();
    let _ = client.take_into(Class::PAGE, 40, &mut list);
    let late = list.split_off(30);
    // A scope waits for what a thread does, a join for its destructors too.
    thread::spawn(move || {
        LATE.with(|slot| *slot.0.borrow_mut() = late);
        drop(list);
    })
    .join()
    .unwrap();
    assert_eq!(client.stats().nr_held, 0);
    assert_eq!(stage.everything(), (0..40).collect::<Vec<_>>());
}

#[test]
fn pages_outlive_their_client_and_block_its_index() {
    let _turn = turn();
    let mut others: Vec<_> = std::iter::from_fn(|| reserve_client_index().ok()).collect();
    assert_eq!(others.len(), NR_CLIENTS);
    assert_eq!(
        reserve_client_index().unwrap_err(),
        ReserveError::TooManyClients
    );
    let index = others.pop().unwrap();
    let number = index.get();

    let (mut stage, client) = Stage::with_index(2, index);
    stage.grant(0, 0..5);
    let local = client.local();
    let mut pages: Vec<_> = (0..4)
        .map(|_| local.take_one(Class::PAGE).unwrap())
        .collect();
    drop(client);
    assert_eq!(
        local.take_one(Class::PAGE).map(|page| pages.push(page)),
        Ok(())
    );
    drop(local);
    assert_eq!(
        reserve_client_index().unwrap_err(),
        ReserveError::TooManyClients
    );
    pages[0][0] = 77;
    assert_eq!(pages[0][0], 77);
    drop(pages);
    assert_eq!(stage.freed(), (0..5).collect());

    // Now the index is to be had, and this thread's old lane is not mistaken for the new client's.
    let index = reserve_client_index().unwrap();
    assert_eq!(index.get(), number);
    let (mut stage, client) = Stage::with_index(2, index);
    stage.grant(0, 7..8);
    drop(client.take_one(Class::PAGE).unwrap());
    assert_eq!(stage.daemons[0].depth(Class::PAGE).unwrap().magazine, 1);
    drop(client);
    drop(others);
    assert_eq!(stage.everything(), [7]);
}

#[test]
fn an_index_used_again_finds_other_threads_old_lanes_out() {
    let _turn = turn();
    let (mut old_stage, client) = Stage::new(3);
    old_stage.grant(0, 0..3);
    old_stage.grant(1, 10..13);
    let (to_thread, from_main) = mpsc::channel::<Page>();
    let (to_main, from_thread) = mpsc::channel::<u32>();
    thread::scope(|scope| {
        let first = client.clone();
        scope.spawn(move || {
            // Takes a lane of the first client and keeps it, as a thread does.
            drop(first.take_one(Class::PAGE).unwrap());
            drop(first);
            to_main.send(0).unwrap();
            for page in from_main {
                let pfn = page.pfn();
                drop(page);
                to_main.send(pfn).unwrap();
            }
        });
        from_thread.recv().unwrap();
        drop(client);
        let (mut stage, client) = Stage::new(3);
        stage.grant(0, 20..25);
        for _ in 0..5 {
            let page = client.take_one(Class::PAGE).unwrap();
            to_thread.send(page).unwrap();
            from_thread.recv().unwrap();
        }
        drop(to_thread);
        assert_eq!(client.stats().nr_held, 0);
        assert_eq!(stage.everything(), (20..25).collect::<Vec<_>>());
    });
    let in_old_lanes = old_stage.everything();
    assert_eq!(in_old_lanes, [0, 1, 2, 10, 11, 12]);
}

#[test]
fn two_clients_of_one_process_do_not_mix_their_pages() {
    let _turn = turn();
    let (mut one_stage, one) = Stage::new(2);
    let (mut other_stage, other) = Stage::new(2);
    one_stage.grant(0, 0..50);
    other_stage.grant(0, 0..50);
    let mut mixed = Vec::new();
    for _ in 0..50 {
        mixed.push(one.take_one(Class::PAGE).unwrap());
        mixed.push(other.take_one(Class::PAGE).unwrap());
    }
    mixed[0][0] = 1;
    mixed[1][0] = 2;
    assert_eq!((mixed[0].pfn(), mixed[0][0]), (mixed[1].pfn(), 1));
    one.put(mixed.pop().unwrap());
    other.put_list(&mut mixed);
    assert_eq!((one.stats().nr_held, other.stats().nr_held), (0, 0));
    assert_eq!(one_stage.everything(), (0..50).collect::<Vec<_>>());
    assert_eq!(other_stage.everything(), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_replied_page_is_adopted_only_inside_a_zone_of_the_client() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(2);
    let order_6 = client.adopt(stage.raw(64, 6)).unwrap();
    assert_eq!((order_6.len(), order_6.order()), (64 * 4096, 6));
    assert!(client.adopt(stage.raw(NR_PAGES, 0)).is_none());
    assert!(client.adopt(stage.raw(NR_PAGES - 32, 6)).is_none());
    assert!(client.adopt(RawPage::default()).is_none());
    let elsewhere = PageParts {
        zone: 2,
        ..stage.raw(1, 0).parts().unwrap()
    };
    assert!(client.adopt(elsewhere.pack().unwrap()).is_none());
    assert_eq!(client.stats().nr_held, 1);
    drop(order_6);
    assert_eq!(client.stats().nr_held, 0);
    assert_eq!(stage.everything(), [64]);
}

#[test]
fn handles_say_what_is_missing_when_all_lanes_are_taken() {
    let _turn = turn();
    let (mut stage, client) = Stage::new(1);
    stage.grant(0, 0..2);
    let local = client.local();
    assert!(local.is_shared());
    let page = local.take_one(Class::PAGE).unwrap();
    let client = Arc::new(client);
    let from_other_thread = thread::spawn({
        let client = client.clone();
        move || client.take_one(Class::PAGE).unwrap()
    });
    drop((page, from_other_thread.join().unwrap()));
    assert_eq!(stage.everything(), [0, 1]);
}
