//! What a client can do to its own lanes and handles without keeping any protocol: read and write
//! each word.
//!
//! For tests and simulators that play stopped, hostile and half-finished clients. Nothing of the
//! product calls it, and nothing here can do harm beyond the lane: any word may be written by
//! its client anyway, which is why the daemon takes all of them as claims.

use core::cell::Cell;

use crate::control::ControlSegment;
use crate::lane_daemon::{grants_ring, magazine, returns_ring};
use crate::layout::LANE_CLASSES;
use crate::raw::{Class, RawPage};
use crate::slots::as_uninit;
use crate::sync::{AtomicU32, AtomicU64, Relaxed};

/// A word of a lane, which its client may write though the daemon says what is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneWord {
    /// Reach of the operation in flight, 0 between operations.
    Busy,
    /// Odd while the daemon has the lane closed.
    Epoch,
    /// Words put into `returns` so far.
    ReturnsTail,
    /// Words that the daemon has taken from `returns` so far.
    ReturnsHead,
    /// A slot of `returns`, by position.
    Return(u32),
    /// Blocks taken from the grants so far.
    GrantsHead(Class),
    /// Position behind the last of the grants.
    GrantsTail(Class),
    /// A slot of the grants, by position.
    Grant(Class, u32),
    /// Position of the oldest block in the magazine.
    MagazineBottom(Class),
    /// Position behind the newest block in the magazine.
    MagazineTop(Class),
    /// A slot of the magazine, by position.
    Cached(Class, u32),
    /// Blocks asked for and not there, so far.
    Wanted(Class),
}

/// A word where it lies.
enum Place<'a> {
    Cursor(&'a AtomicU32),
    Slot(&'a AtomicU64),
}

impl ControlSegment {
    /// Writes a word of a lane, cursors cut to their 32 bits; false if there is none.
    pub fn scribble(&self, lane: u32, word: LaneWord, value: u64) -> bool {
        match self.place(lane, word) {
            Some(Place::Cursor(cursor)) => {
                let [a, b, c, d, ..] = value.to_le_bytes();
                cursor.store(u32::from_le_bytes([a, b, c, d]), Relaxed);
                true
            }
            Some(Place::Slot(slot)) => {
                slot.store(value, Relaxed);
                true
            }
            None => false,
        }
    }

    /// Writes a handle's word, whatever it held; false if there is no such handle.
    #[cfg(not(loom))]
    pub fn scribble_handle(&self, handle: u32, value: u64) -> bool {
        self.handles().scribble(handle, value)
    }

    /// Reads a word of a lane, if there is one.
    pub fn peek(&self, lane: u32, word: LaneWord) -> Option<u64> {
        match self.place(lane, word)? {
            Place::Cursor(cursor) => Some(u64::from(cursor.load(Relaxed))),
            Place::Slot(slot) => Some(slot.load(Relaxed)),
        }
    }

    /// Takes up to `count` grants of a class, as an operation does that has entered its window.
    pub fn take_granted(&self, lane: u32, class: Class, count: u32) -> Vec<RawPage> {
        let Some(lane) = self.lane(lane).filter(|_| class.index() < LANE_CLASSES) else {
            return Vec::new();
        };
        let ring = grants_ring(lane, class);
        let mut words = vec![0; count.min(ring.capacity()) as usize];
        let seen = Cell::new(ring.head.load(Relaxed));
        let nr_taken = ring.pop(&seen, as_uninit(&mut words)).count;
        RawPage::of_bits(&words[..nr_taken]).to_vec()
    }

    fn place(&self, lane: u32, word: LaneWord) -> Option<Place<'_>> {
        let lane = self.lane(lane)?;
        let class = match word {
            LaneWord::GrantsHead(class)
            | LaneWord::GrantsTail(class)
            | LaneWord::Grant(class, _)
            | LaneWord::MagazineBottom(class)
            | LaneWord::MagazineTop(class)
            | LaneWord::Cached(class, _)
            | LaneWord::Wanted(class) => class,
            LaneWord::Busy
            | LaneWord::Epoch
            | LaneWord::ReturnsTail
            | LaneWord::ReturnsHead
            | LaneWord::Return(_) => Class::PAGE,
        };
        if class.index() >= LANE_CLASSES {
            return None;
        }
        Some(match word {
            LaneWord::Busy => Place::Cursor(&lane.client.busy),
            LaneWord::Epoch => Place::Cursor(&lane.gate.epoch),
            LaneWord::ReturnsHead => Place::Cursor(&lane.settled.returns_head),
            LaneWord::ReturnsTail => Place::Cursor(&lane.client.returns_tail),
            LaneWord::Return(at) => Place::Slot(slot(returns_ring(lane).slots, at)),
            LaneWord::GrantsHead(_) => Place::Cursor(grants_ring(lane, class).head),
            LaneWord::GrantsTail(_) => Place::Cursor(grants_ring(lane, class).tail),
            LaneWord::Grant(_, at) => Place::Slot(slot(grants_ring(lane, class).slots, at)),
            LaneWord::MagazineBottom(_) => Place::Cursor(magazine(lane, class).bottom),
            LaneWord::MagazineTop(_) => Place::Cursor(magazine(lane, class).top),
            LaneWord::Cached(_, at) => Place::Slot(slot(magazine(lane, class).slots, at)),
            LaneWord::Wanted(_) => Place::Cursor(&lane.class(class.index()).client.wanted),
        })
    }
}

/// The slot at a position; the number of slots is a power of two.
fn slot(slots: &[AtomicU64], at: u32) -> &AtomicU64 {
    &slots[at as usize & (slots.len() - 1)]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::control::ControlGeometry;

    #[test]
    fn each_word_is_read_as_it_was_written() {
        let geometry = ControlGeometry {
            nr_lanes: 1,
            nr_sections: 1,
            nr_pages: 64,
        };
        let segment = ControlSegment::heap(geometry).unwrap();
        let class = Class::PAGE;
        for (value, word) in (7..).zip([
            LaneWord::Busy,
            LaneWord::Epoch,
            LaneWord::ReturnsTail,
            LaneWord::ReturnsHead,
            LaneWord::Return(5000),
            LaneWord::GrantsHead(class),
            LaneWord::GrantsTail(class),
            LaneWord::Grant(class, 3),
            LaneWord::MagazineBottom(class),
            LaneWord::MagazineTop(class),
            LaneWord::Cached(class, u32::MAX),
            LaneWord::Wanted(class),
        ]) {
            assert!(segment.scribble(0, word, value));
            assert_eq!(segment.peek(0, word), Some(value));
            assert!(!segment.scribble(1, word, value));
        }
        assert_eq!(segment.peek(0, LaneWord::Busy), Some(7));
    }
}
