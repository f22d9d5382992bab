//! Movable pages with their records: whoever holds a page finds its page word, and a page that
//! is freed in the middle of a move ends with exactly one custodian.
//!
//! Two places for one page. Seen to fail: the record of the new place written after the word is
//! opened (a pin finds no page word); `empty` by a plain store (a page that was moved at that
//! instant is freed where it no longer is); the pool's number of changes not raised (two threads get
//! one handle).
#![cfg(loom)]

use hugepool_shm::handle_pool::HandlePool;
use hugepool_shm::handles::{Handles, PageRecord};
use hugepool_shm::raw::{PageParts, RawMigratetype, RawPage};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

struct World {
    words: [AtomicU64; 1],
    records: [AtomicU64; 2],
    places: [AtomicU64; 2],
}

fn page(pfn: u32) -> RawPage {
    let parts = PageParts {
        pfn,
        order: 0,
        migratetype: RawMigratetype::Movable,
        zone: 0,
        client: 0,
        generation: 5 + pfn,
    };
    parts.pack().expect("small numbers fit")
}

impl World {
    fn new() -> Arc<World> {
        let word = || AtomicU64::new(0);
        let world = World {
            words: [word()],
            records: [word(), word()],
            places: [word(), word()],
        };
        world.handles().fill(0, page(0));
        Arc::new(world)
    }

    fn handles(&self) -> Handles<'_> {
        Handles::new(&self.words, &self.records)
    }

    /// Moves the page from place 0 to place 1, as the daemon does.
    fn migrate(&self) -> bool {
        let handles = self.handles();
        let Some(named) = handles.look(0) else {
            return false;
        };
        let Ok(begun) = handles.begin_move(0, named) else {
            return false;
        };
        self.places[1].store(self.places[0].load(Relaxed), Relaxed);
        begun.finish(1, PageRecord::new(page(1), 0))
    }

    /// Takes the page out of its handle, as a client that frees it does.
    fn empty(&self) -> RawPage {
        let handles = self.handles();
        let word = handles.word(0).expect("there is one");
        let pfn = word.empty().expect("the page is there");
        handles.page(0, pfn).expect("the page word is found")
    }
}

#[test]
fn a_pin_finds_the_page_word_wherever_the_page_is() {
    loom::model(|| {
        let world = World::new();
        let daemon = thread::spawn({
            let world = Arc::clone(&world);
            move || world.migrate()
        });
        for spins in 0..2 {
            let handles = world.handles();
            let word = handles.word(0).expect("there is one");
            let pfn = word.pin(spins).expect("the page is there");
            assert_eq!(handles.page(0, pfn), Some(page(pfn)));
            word.unpin();
        }
        daemon.join().unwrap();
    });
}

#[test]
fn a_page_freed_in_the_middle_of_a_move_is_freed_where_it_is() {
    loom::model(|| {
        let world = World::new();
        let daemon = thread::spawn({
            let world = Arc::clone(&world);
            move || world.migrate()
        });
        let freed = world.empty();
        let moved = daemon.join().unwrap();
        assert_eq!(freed, page(u32::from(moved)));
    });
}

/// A pool of three handles, and who has which.
struct Pool {
    words: [AtomicU64; 3],
    pool: HandlePool,
    taken: [AtomicU64; 3],
}

impl Pool {
    fn handles(&self) -> Handles<'_> {
        Handles::new(&self.words, &[])
    }

    fn take(&self) -> u32 {
        let handle = self.pool.take(self.handles()).expect("there are enough");
        let nr_others = self.taken[handle as usize].fetch_add(1, Relaxed);
        assert_eq!(nr_others, 0, "two have handle {handle}");
        handle
    }

    fn put(&self, handle: u32) {
        self.taken[handle as usize].fetch_sub(1, Relaxed);
        self.pool.put(self.handles(), handle);
    }
}

#[test]
fn a_handle_is_given_to_one_thread_at_a_time() {
    loom::model(|| {
        let words = || [(); 3].map(|()| AtomicU64::new(0));
        let pool = Arc::new(Pool {
            words: words(),
            pool: HandlePool::new(),
            taken: words(),
        });
        // All have been used once: what follows is the stack alone.
        let all = [(); 3].map(|()| pool.take());
        all.into_iter().for_each(|handle| pool.put(handle));
        let other = thread::spawn({
            let pool = pool.clone();
            move || {
                // Away and back, with another one kept: what a sleeping thread would trip over.
                let first = pool.take();
                pool.take();
                pool.put(first);
            }
        });
        pool.take();
        other.join().unwrap();
        pool.take();
    });
}
