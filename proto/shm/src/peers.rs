//! Outboxes of other clients, as this process has mapped them: found without a lock.
//!
//! A peer's outbox is mapped at the first claim from it, and anew when the slot has passed to
//! another client. What is replaced is unmapped when nobody reads it: readers count themselves.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::outbox::Outbox;
use crate::sync::{Acquire, Relaxed, Release};

/// The mapped outboxes, by client slot.
pub(crate) struct Peers {
    by_slot: Box<[AtomicPtr<Outbox>]>,
    nr_readers: AtomicU32,
    /// Replaced, and perhaps still read. Held for as long as a peer is entered, too.
    retired: Mutex<Vec<Outbox>>,
}

impl Peers {
    /// None yet, of slots below `nr_clients`.
    pub fn new(nr_clients: usize) -> Peers {
        Peers {
            by_slot: (0..nr_clients).map(|_| AtomicPtr::default()).collect(),
            nr_readers: AtomicU32::new(0),
            retired: Mutex::default(),
        }
    }

    /// Reads the outbox of a client slot, if one is mapped.
    pub fn read<T>(&self, client: u16, read: impl FnOnce(&Outbox) -> T) -> Option<T> {
        let place = self.by_slot.get(usize::from(client))?;
        self.nr_readers.fetch_add(1, Relaxed);
        // SYNC(peers.read): pairs with the fence in `enter`: either it sees this reader, or the
        // reader sees what was put in the place of what it takes away.
        core::sync::atomic::fence(SeqCst);
        // SYNC(peers.entry): pairs with `enter`.
        let entry = place.load(Acquire);
        // SAFETY: null, or a box that `enter` has put there and that is dropped only when it was
        // taken out before, and no reader was counted after that; this one is counted.
        let outbox = unsafe { entry.as_ref() };
        let answer = outbox.map(read);
        // SYNC(peers.left): the reading is over.
        self.nr_readers.fetch_sub(1, Release);
        answer
    }

    /// Enters the outbox of a client slot, in the place of a former one.
    pub fn enter(&self, client: u16, outbox: Outbox) {
        let Some(place) = self.by_slot.get(usize::from(client)) else {
            return;
        };
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        // SYNC(peers.entry): the outbox is whole before it is found.
        let old = place.swap(Box::into_raw(Box::new(outbox)), Release);
        if !old.is_null() {
            // SAFETY: it came from `Box::into_raw` here, and was taken out just now, once.
            retired.push(*unsafe { Box::from_raw(old) });
        }
        // SYNC(peers.read): pairs with the fence in `read`.
        core::sync::atomic::fence(SeqCst);
        // SYNC(peers.left): pairs with the end of readers.
        if self.nr_readers.load(Acquire) == 0 {
            retired.clear();
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for place in &self.by_slot {
            let entry = place.swap(ptr::null_mut(), Relaxed);
            if !entry.is_null() {
                // SAFETY: it came from `Box::into_raw` in `enter`, and nobody else has the value any
                // more.
                drop(unsafe { Box::from_raw(entry) });
            }
        }
    }
}

impl core::fmt::Debug for Peers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Peers({} slots)", self.by_slot.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::RawPage;

    #[test]
    fn a_replaced_outbox_is_read_no_more() {
        let peers = Peers::new(4);
        assert_eq!(peers.read(1, |_| ()), None);
        for sequence in 1..4 {
            let outbox = Outbox::heap().unwrap();
            outbox.slots()[0].sign(sequence, &[RawPage::from_bits(1)]);
            peers.enter(1, outbox);
            let head = peers.read(1, |outbox| outbox.slots()[0].head());
            assert_eq!(head.flatten().unwrap().sequence, sequence);
        }
        peers.enter(9, Outbox::heap().unwrap());
        assert_eq!(peers.read(9, |_| ()), None);
        assert!(peers.retired.lock().unwrap().is_empty());
    }
}
