//! Which outbox slots of this client are free: kept in its own memory, without a lock.
//!
//! A slot is free, or *out* under a sequence: signed for, and to be used again when its parcel
//! came back or when the daemon's word says that this sequence is settled. The lowest free slots
//! are taken first, and settled ones are looked for before a further group is begun, so that a
//! client that has few parcels on their way uses little memory.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::control::ControlSegment;
use crate::sync::{Acquire, Release};
use crate::ticket::OUTBOX_SLOTS;

/// Slots under one word of the bitmap.
const GROUP: usize = 64;
const OUT: u64 = 1 << 32;

/// The slots.
#[derive(Debug)]
pub(crate) struct SlotPool {
    /// A bit for each free slot.
    free: [AtomicU64; OUTBOX_SLOTS / GROUP],
    /// Of each slot: its last sequence, and [`OUT`] while it is out.
    states: Box<[AtomicU64]>,
}

/// A slot that is the caller's to sign for, under this sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeSlot {
    pub slot: u32,
    pub sequence: u32,
}

impl SlotPool {
    /// All slots free; their sequences begin at `first`.
    pub fn new(first: u32) -> SlotPool {
        let last = u64::from(first.wrapping_sub(1));
        SlotPool {
            free: [const { AtomicU64::new(u64::MAX) }; OUTBOX_SLOTS / GROUP],
            states: (0..OUTBOX_SLOTS).map(|_| AtomicU64::new(last)).collect(),
        }
    }

    /// Takes a free slot.
    pub fn take(&self, control: &ControlSegment) -> Option<FreeSlot> {
        for group in 0..self.free.len() {
            let slot = self.take_of(group).or_else(|| {
                self.reclaim(group, control);
                self.take_of(group)
            });
            if let Some(slot) = slot {
                return Some(slot);
            }
        }
        None
    }

    /// A slot taken goes out under its sequence.
    pub fn goes_out(&self, slot: FreeSlot) {
        let state = OUT | u64::from(slot.sequence);
        self.states[slot.slot as usize].store(state, Relaxed);
    }

    /// The parcel of a slot has come back, and the slot is not signed for any more: it is free. Once
    /// only: false if it was not out under this sequence.
    pub fn comes_back(&self, slot: u32, sequence: u32) -> bool {
        let Some(state) = self.states.get(slot as usize) else {
            return false;
        };
        let sequence = u64::from(sequence);
        let is_ours = state
            .compare_exchange(OUT | sequence, sequence, Relaxed, Relaxed)
            .is_ok();
        if is_ours {
            self.put(slot);
        }
        is_ours
    }

    /// Whether the slot is out under this sequence.
    pub fn is_out(&self, slot: u32, sequence: u32) -> bool {
        let state = self.states.get(slot as usize);
        state.is_some_and(|state| state.load(Relaxed) == OUT | u64::from(sequence))
    }

    fn take_of(&self, group: usize) -> Option<FreeSlot> {
        let word = &self.free[group];
        let mut bits = word.load(Relaxed);
        while bits != 0 {
            let bit = bits & bits.wrapping_neg();
            // SYNC(slots.free): whoever had the slot before is done with it.
            match word.compare_exchange_weak(bits, bits & !bit, Acquire, Relaxed) {
                Ok(_) => {
                    let index = group * GROUP + bit.trailing_zeros() as usize;
                    let last = low32(self.states[index].load(Relaxed));
                    // 0 is what the daemon's word says before it has settled anything.
                    let sequence = last.checked_add(1).unwrap_or(1);
                    let slot = u32::try_from(index).ok()?;
                    return Some(FreeSlot { slot, sequence });
                }
                Err(now) => bits = now,
            }
        }
        None
    }

    fn put(&self, slot: u32) {
        let (group, bit) = (slot as usize / GROUP, slot as usize % GROUP);
        // SYNC(slots.free): the slot is done with before it is found.
        self.free[group].fetch_or(1 << bit, Release);
    }

    /// Frees the slots of a group whose parcels the daemon has settled.
    #[cold]
    fn reclaim(&self, group: usize, control: &ControlSegment) {
        let first = group * GROUP;
        for (slot, state) in (0..).zip(&self.states).skip(first).take(GROUP) {
            let sequence = low32(state.load(Relaxed));
            if control.settled(slot) == Some(sequence) {
                self.comes_back(slot, sequence);
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "cutting off is what it is for"
)]
const fn low32(bits: u64) -> u32 {
    bits as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ControlGeometry;

    fn control() -> ControlSegment {
        ControlSegment::heap(ControlGeometry {
            nr_lanes: 1,
            nr_sections: 1,
            nr_pages: 64,
        })
        .unwrap()
    }

    #[test]
    fn a_slot_comes_back_once_and_goes_out_under_the_next_sequence() {
        let (pool, control) = (SlotPool::new(7), control());
        let first = pool.take(&control).unwrap();
        assert_eq!(
            first,
            FreeSlot {
                slot: 0,
                sequence: 7
            }
        );
        pool.goes_out(first);
        assert_eq!(pool.take(&control).unwrap().slot, 1);
        assert!(!pool.comes_back(0, 6) && pool.comes_back(0, 7) && !pool.comes_back(0, 7));
        assert_eq!(
            pool.take(&control),
            Some(FreeSlot {
                slot: 0,
                sequence: 8
            })
        );
    }

    #[test]
    fn settled_slots_are_used_again_before_a_further_group_is() {
        let (pool, control) = (SlotPool::new(u32::MAX), control());
        for _ in 0..64 {
            pool.goes_out(pool.take(&control).unwrap());
        }
        control.publish_settled(5, u32::MAX);
        control.publish_settled(6, u32::MAX - 1);
        let again = pool.take(&control).unwrap();
        assert_eq!(
            again,
            FreeSlot {
                slot: 5,
                sequence: 1
            },
            "0 is left out"
        );
        pool.goes_out(again);
        assert_eq!(pool.take(&control).unwrap().slot, 64);
    }

    #[test]
    fn all_slots_can_be_out() {
        let (pool, control) = (SlotPool::new(1), control());
        let all = std::iter::from_fn(|| {
            let slot = pool.take(&control)?;
            pool.goes_out(slot);
            Some(slot.slot)
        });
        assert!(all.eq(0..512));
    }
}
