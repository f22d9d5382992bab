//! Movable pages as values: pins, moves under them, and where a freed block goes. The daemon is
//! played by the test.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::handle::{CloseError, PinError};
use hugepool_shm::handles::PageRecord;
use hugepool_shm::mapping::Mapping;
use hugepool_shm::movable::{Movable, NoHandle};
use hugepool_shm::process::{ClientHandle, Registration, ZoneBytes, reserve_client_index};
use hugepool_shm::raw::{PageParts, RawMigratetype, RawPage};

const NR_PAGES: u32 = 64;
const FIRST_PFN: u32 = 128;
const PAGE_BYTES: usize = 4096;

/// The table of clients is the process's, so tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Stage {
    control: ControlSegment,
    client: ClientHandle,
    /// Address of the zone's first byte.
    base: usize,
}

impl Stage {
    fn new() -> Stage {
        let geometry = ControlGeometry {
            nr_lanes: 1,
            nr_sections: 1,
            nr_pages: u64::from(FIRST_PFN + NR_PAGES),
        };
        let control = ControlSegment::heap(geometry).unwrap();
        let memory = Mapping::heap(NR_PAGES as usize * PAGE_BYTES).unwrap();
        let base = memory.base().as_ptr().expose_provenance();
        let registration = Registration {
            control: control.clone(),
            zones: vec![ZoneBytes::of_mapping(memory, 3, FIRST_PFN, 12).unwrap()],
            doorbell: Doorbell::new(|| ()),
            pageblock_order: 9,
            registered: true,
        };
        let client = reserve_client_index()
            .unwrap()
            .register(registration)
            .unwrap();
        Stage {
            control,
            client,
            base,
        }
    }

    fn raw(&self, offset: u32, order: u32, migratetype: RawMigratetype) -> RawPage {
        let parts = PageParts {
            pfn: FIRST_PFN + offset,
            order,
            migratetype,
            zone: 3,
            client: self.client.index(),
            generation: 1,
        };
        parts.pack().unwrap()
    }

    fn movable(&self, offset: u32, order: u32) -> Movable {
        let raw = self.raw(offset, order, RawMigratetype::Movable);
        let page = self.client.adopt(raw).unwrap();
        self.client.make_movable(page).unwrap()
    }

    fn copy(&self, from: u32, to: u32, order: u32) {
        let at = |offset: u32| {
            std::ptr::with_exposed_provenance_mut::<u8>(self.base + offset as usize * PAGE_BYTES)
        };
        // SAFETY: both blocks lie in the zone's memory and do not overlap; the source is not
        // written meanwhile, or the copy is thrown away.
        unsafe { at(from).copy_to_nonoverlapping(at(to), PAGE_BYTES << order) };
    }

    /// Moves a block as the daemon does; `meanwhile` runs with its word closed.
    fn migrate(
        &self,
        from: u32,
        to: u32,
        order: u32,
        meanwhile: impl FnOnce(),
    ) -> Result<bool, CloseError> {
        let handles = self.control.handles();
        let named = handles
            .look(FIRST_PFN + from)
            .ok_or(CloseError::OtherPage)?;
        let begun = handles.begin_move(FIRST_PFN + from, named)?;
        self.copy(from, to, order);
        meanwhile();
        let raw = self.raw(to, order, RawMigratetype::Movable);
        Ok(begun.finish(FIRST_PFN + to, PageRecord::new(raw, named.handle)))
    }

    /// Blocks that the client has not given back.
    fn nr_held(&self) -> u32 {
        self.client.stats().nr_held
    }
}

#[test]
fn a_block_moves_between_pins_and_keeps_its_bytes() {
    let _turn = turn();
    let stage = Stage::new();
    let mut block = stage.movable(8, 2);
    block.pin_mut().unwrap().fill(7);
    assert_eq!(stage.migrate(8, 16, 2, || ()), Ok(true));
    stage.copy(0, 8, 2);
    let pinned = block.pin().unwrap();
    assert_eq!(
        (pinned.pfn(), pinned.len()),
        (FIRST_PFN + 16, 4 * PAGE_BYTES)
    );
    assert!(pinned.iter().all(|&byte| byte == 7));
    let again = block.pin().unwrap();
    assert_eq!(stage.migrate(16, 8, 2, || ()), Err(CloseError::Pinned));
    drop((pinned, again));
    assert_eq!(stage.migrate(16, 8, 2, || ()), Ok(true));
    assert_eq!((block.pin().unwrap().zone(), block.order()), (3, 2));
    drop(block);
    assert_eq!(stage.nr_held(), 0);
}

#[test]
fn a_pin_takes_a_block_back_from_a_daemon_that_does_not_go_on() {
    let _turn = turn();
    let stage = Stage::new();
    let mut block = stage.movable(1, 0);
    block.pin_mut().unwrap().fill(1);
    let moved = stage.migrate(1, 2, 0, || {
        let mut pinned = block.pin_mut().unwrap();
        assert_eq!(pinned.pfn(), FIRST_PFN + 1);
        pinned.fill(2);
    });
    assert_eq!(moved, Ok(false));
    assert!(block.pin().unwrap().iter().all(|&byte| byte == 2));
}

#[test]
fn a_block_freed_in_the_middle_of_a_move_goes_home_once() {
    let _turn = turn();
    let stage = Stage::new();
    let block = stage.movable(1, 0);
    assert_eq!(stage.migrate(1, 2, 0, || drop(block)), Ok(false));
    assert_eq!(stage.nr_held(), 0);
    // Its handle is the next one's.
    let next = stage.movable(3, 0);
    assert_eq!(format!("{next:?}"), "Movable(handle 0, order 0)");
    assert_eq!(next.into_page().unwrap().pfn(), FIRST_PFN + 3);
}

#[test]
fn a_page_taken_out_of_its_handle_moves_no_more() {
    let _turn = turn();
    let stage = Stage::new();
    let block = stage.movable(4, 1);
    assert_eq!(stage.migrate(4, 6, 1, || ()), Ok(true));
    let page = block.into_page().unwrap();
    assert_eq!((page.pfn(), page.order()), (FIRST_PFN + 6, 1));
    assert_eq!(stage.migrate(6, 8, 1, || ()), Err(CloseError::OtherPage));
    assert_eq!(stage.nr_held(), 1);
    drop(page);
    assert_eq!(stage.nr_held(), 0);
}

#[test]
fn an_evicted_block_says_so_and_leaves_nothing_to_free() {
    let _turn = turn();
    let stage = Stage::new();
    let evictable = |offset| {
        let raw = stage.raw(offset, 0, RawMigratetype::Reclaimable);
        let page = stage.client.adopt(raw).unwrap();
        stage.client.make_movable(page).unwrap()
    };
    let blocks = [evictable(1), evictable(2)];
    assert!(blocks[0].is_evictable());
    let handles = stage.control.handles();
    for offset in [1, 2] {
        let named = handles.look(FIRST_PFN + offset).unwrap();
        assert_eq!(handles.evict(FIRST_PFN + offset, named), Ok(true));
    }
    let [first, second] = blocks;
    assert_eq!(first.pin().unwrap_err(), PinError::Evicted);
    assert_eq!(second.into_page().unwrap_err(), PinError::Evicted);
    drop(first);
    assert_eq!(stage.nr_held(), 0);
}

#[test]
fn a_page_that_is_not_movable_or_another_clients_gets_no_handle() {
    let _turn = turn();
    let stage = Stage::new();
    let raw = stage.raw(1, 0, RawMigratetype::Unmovable);
    let page = stage.client.adopt(raw).unwrap();
    let (page, why) = stage.client.make_movable(page).unwrap_err();
    assert_eq!((page.pfn(), why), (FIRST_PFN + 1, NoHandle::NotItsPage));
    let other = Stage::new();
    let raw = stage.raw(2, 0, RawMigratetype::Movable);
    let strange = stage.client.adopt(raw).unwrap();
    let (strange, why) = other.client.make_movable(strange).unwrap_err();
    assert_eq!(why, NoHandle::NotItsPage);
    drop((page, strange));
    assert_eq!(stage.nr_held(), 0);
}

#[test]
fn a_movable_page_outlives_its_client() {
    let _turn = turn();
    let Stage {
        control, client, ..
    } = Stage::new();
    let raw = PageParts {
        pfn: FIRST_PFN,
        order: 0,
        migratetype: RawMigratetype::Movable,
        zone: 3,
        client: client.index(),
        generation: 1,
    };
    let page = client.adopt(raw.pack().unwrap()).unwrap();
    let mut block = client.make_movable(page).unwrap();
    drop(client);
    block.pin_mut().unwrap().fill(3);
    assert_eq!(block.pin().unwrap()[0], 3);
    drop(block);
    assert!(control.free_map().may_have_any());
}

/// Two threads add to a counter in each of a few blocks, while the daemon moves the blocks about
/// as fast as it can. Seen to fail: `finish` opening by a plain store (a count is lost).
#[test]
fn no_write_of_busy_threads_is_lost_to_moves() {
    let _turn = turn();
    let rounds: u32 = if cfg!(miri) { 100 } else { 100_000 };
    let stage = Stage::new();
    let blocks: Vec<Mutex<Movable>> = (0..4).map(|at| Mutex::new(stage.movable(at, 0))).collect();
    let nr_added: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
    let is_over = AtomicBool::new(false);
    // However the threads come to run, there are moves among their writes.
    let (moves, most_wait) = (AtomicU64::new(0), Duration::from_secs(60));
    let ends = Instant::now() + most_wait;
    let needs_more = || moves.load(Relaxed) < 20 && Instant::now() < ends;
    thread::scope(|scope| {
        let daemon = scope.spawn(|| {
            let mut at: Vec<u32> = (0..4).collect();
            let mut free: Vec<u32> = (4..8).collect();
            let mut turn = 0;
            while !is_over.load(Relaxed) {
                turn = (turn + 1) % at.len();
                let to = free.remove(0);
                // Now and then it dawdles, until a pin has lost patience.
                let from = at[turn];
                let dawdle = || {
                    let is_closed = || stage.control.handles().look(FIRST_PFN + from).is_none();
                    let nr_looks = if moves.load(Relaxed).is_multiple_of(8) {
                        20_000
                    } else {
                        0
                    };
                    for _ in 0..nr_looks {
                        if !is_closed() {
                            return;
                        }
                        std::hint::spin_loop();
                    }
                };
                let moved = stage.migrate(from, to, 0, dawdle);
                let left = if moved == Ok(true) {
                    moves.fetch_add(1, Relaxed);
                    at[turn] = to;
                    from
                } else {
                    to
                };
                free.push(left);
                // On one processor the others must come to run too.
                thread::yield_now();
            }
        });
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for round in (0..).take_while(|&round| round < rounds || needs_more()) {
                        let at = round as usize % blocks.len();
                        let mut block = blocks[at].lock().unwrap();
                        nr_added[at].fetch_add(1, Relaxed);
                        let mut bytes = block.pin_mut().unwrap();
                        let mut count = [0; 4];
                        count.copy_from_slice(&bytes[64..68]);
                        let count = u32::from_le_bytes(count) + 1;
                        bytes[64..68].copy_from_slice(&count.to_le_bytes());
                    }
                })
            })
            .collect();
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        is_over.store(true, Relaxed);
        daemon.join().unwrap();
    });
    assert!(moves.into_inner() >= 20, "no moves in {most_wait:?}");
    for (block, nr_added) in blocks.iter().zip(&nr_added) {
        let block = block.lock().unwrap();
        let expected = nr_added.load(Relaxed).to_le_bytes();
        assert_eq!(block.pin().unwrap()[64..68], expected);
    }
}
