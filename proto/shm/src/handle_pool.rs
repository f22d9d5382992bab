//! The handles of one client that name no page: taken and given back from any thread, without a
//! lock.
//!
//! A stack threaded through the free words themselves, under one word with its top; handles that
//! were never used come after it is empty. The top carries a number that rises at each change, so
//! a thread that slept between looking and swapping does not take a handle that was away and came
//! back meanwhile.

use crate::handles::Handles;
use crate::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};

const LINK_MASK: u64 = u32::MAX as u64;
const ONE_CHANGE: u64 = 1 << 32;

/// Handles that are free.
#[derive(Debug)]
pub struct HandlePool {
    /// The top handle plus one, 0 for none, and above it the number of changes.
    top: AtomicU64,
    /// Handles from here on were never used.
    fresh: AtomicU32,
}

impl HandlePool {
    /// All handles are free.
    pub fn new() -> HandlePool {
        HandlePool {
            top: AtomicU64::new(0),
            fresh: AtomicU32::new(0),
        }
    }

    /// Takes a free handle; `None`: all are used.
    pub fn take(&self, handles: Handles<'_>) -> Option<u32> {
        // SYNC(handles.top): pairs with `put`, so the link in the word is seen.
        let mut top = self.top.load(Acquire);
        while let Some(handle) = handle_of(top) {
            // If somebody else has it already, this is nonsense, and the swap fails.
            let link = handles.word(handle)?.link();
            let rest = changed(top) | u64::from(link);
            match self.top.compare_exchange_weak(top, rest, Acquire, Acquire) {
                Ok(_) => return Some(handle),
                Err(now) => top = now,
            }
        }
        let mut fresh = self.fresh.load(Relaxed);
        while fresh < handles.len() {
            match self
                .fresh
                .compare_exchange_weak(fresh, fresh + 1, Relaxed, Relaxed)
            {
                Ok(_) => return Some(fresh),
                Err(now) => fresh = now,
            }
        }
        None
    }

    /// Gives a handle back whose word is free.
    pub fn put(&self, handles: Handles<'_>, handle: u32) {
        let Some(word) = handles.word(handle) else {
            return;
        };
        let mut top = self.top.load(Relaxed);
        loop {
            word.set_link(handle_of(top).map_or(0, |next| next + 1));
            let new = changed(top) | (u64::from(handle) + 1);
            // SYNC(handles.top): the link is there before the handle is.
            match self.top.compare_exchange_weak(top, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

impl Default for HandlePool {
    fn default() -> HandlePool {
        HandlePool::new()
    }
}

/// The number of changes after this one.
const fn changed(top: u64) -> u64 {
    (top & !LINK_MASK).wrapping_add(ONE_CHANGE)
}

fn handle_of(top: u64) -> Option<u32> {
    u32::try_from(top & LINK_MASK).ok()?.checked_sub(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn handles_are_given_once_and_come_back() {
        let words: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let handles = Handles::new(&words, &[]);
        let pool = HandlePool::new();
        let take = || pool.take(handles);
        assert_eq!(
            [take(), take(), take(), take()],
            [Some(0), Some(1), Some(2), None]
        );
        pool.put(handles, 1);
        pool.put(handles, 0);
        assert_eq!([take(), take(), take()], [Some(0), Some(1), None]);
    }
}
