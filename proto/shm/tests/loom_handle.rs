//! Movable pages: a write under a pin is never lost to a move, and no pin waits for ever.
//!
//! Two places for one page, a client that pins and writes, a daemon that closes, copies and
//! opens. Seen to fail: `open` by a plain store instead of the compare-and-swap (a pin that took
//! the word back loses its write); `unpin` stored Relaxed (the copy misses the write);
//! `open` stored Relaxed (the next pin reads the new place before the copy).
#![cfg(loom)]

use hugepool_shm::handle::{HandleState, HandleWord, PinError};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// A handle and the bytes of the two places that its page may be in.
struct World {
    word: AtomicU64,
    places: [AtomicU64; 2],
}

impl World {
    fn new() -> Arc<World> {
        let world = World {
            word: AtomicU64::new(0),
            places: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        HandleWord::new(&world.word).fill(0);
        Arc::new(world)
    }

    fn handle(&self) -> HandleWord<'_> {
        HandleWord::new(&self.word)
    }

    /// Adds one to the page under a pin that spins `spins` times at a closed word.
    ///
    /// Loom runs the daemon to its end at a spin, so it takes a pin without one to see a word
    /// taken back in the middle of a move.
    fn increment(&self, spins: u32) -> Result<(), PinError> {
        let at = self.handle().pin(spins)? as usize;
        let value = self.places[at].load(Relaxed);
        self.places[at].store(value + 1, Relaxed);
        self.handle().unpin();
        Ok(())
    }

    /// Moves the page from place 0 to place 1, if nobody holds it. What the copy reads while a
    /// client writes does not matter: the opening then fails.
    fn migrate(&self) -> bool {
        let Ok(closed) = self.handle().close(0) else {
            return false;
        };
        self.places[1].store(self.places[0].load(Relaxed), Relaxed);
        self.handle().open(closed, 1)
    }

    fn value(&self) -> u64 {
        let at = self.handle().pin(1).expect("the page is there") as usize;
        let value = self.places[at].load(Relaxed);
        self.handle().unpin();
        value
    }
}

#[test]
fn no_write_is_lost_to_a_move() {
    loom::model(|| {
        let world = World::new();
        let daemon = thread::spawn({
            let world = Arc::clone(&world);
            move || world.migrate()
        });
        world.increment(0).expect("the page is there");
        world.increment(1).expect("the page is there");
        let moved = daemon.join().unwrap();
        assert_eq!(world.value(), 2);
        let pfn = u32::from(moved);
        assert_eq!(world.handle().state(), HandleState::Open { pfn, pins: 0 });
    });
}

#[test]
fn a_daemon_that_dies_with_the_word_closed_keeps_nobody_waiting() {
    loom::model(|| {
        let world = World::new();
        let daemon = thread::spawn({
            let world = Arc::clone(&world);
            // Dies after this: nothing opens the word again.
            move || world.handle().close(0).is_ok()
        });
        world.increment(0).expect("the page is there");
        daemon.join().unwrap();
        assert_eq!(world.value(), 1);
    });
}

#[test]
fn an_eviction_and_a_pin_agree_on_who_has_the_page() {
    loom::model(|| {
        let world = World::new();
        let daemon = thread::spawn({
            let world = Arc::clone(&world);
            move || match world.handle().close(0) {
                Ok(closed) => world.handle().evict(closed),
                Err(_) => false,
            }
        });
        let pinned = world.increment(0);
        let evicted = daemon.join().unwrap();
        match (pinned, evicted) {
            (Err(PinError::Evicted), true) => {}
            (Ok(()), true) => assert_eq!(world.handle().state(), HandleState::Evicted),
            (Ok(()), false) => assert_eq!(world.value(), 1),
            other => panic!("{other:?}"),
        }
    });
}
