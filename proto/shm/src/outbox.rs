//! A client's outbox: what it offers to others, under its own signature.
//!
//! The client alone can write it: its peers of the zone and the daemon map it read-only. So nobody
//! takes what was not offered, whatever is scribbled elsewhere; who has a parcel is decided by its
//! [`transit`](crate::transit) word, beside it in memory that all of them write.
//!
//! Shape: [`OUTBOX_SLOTS`] slots of 33 cache lines, each a head and places for up to
//! [`PARCEL_MAX`] page words, which are laid out as runs ([`word_run`](crate::word_run)): a parcel
//! that is one piece of memory is one cache line. A head of 0 offers nothing. From its lowest bit:
//! 32 bits sequence, 16 bits number of blocks, 1 bit that says that it is a holding of a shared page
//! (one block) and no parcel.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::mapping::{MapError, Mapping, Overlay};
use crate::raw::RawPage;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};
pub use crate::ticket::OUTBOX_SLOTS;
use crate::word_run::{self, WordRun, runs_of};

/// Blocks that one parcel carries at most.
pub const PARCEL_MAX: usize = 256;

const COUNT_SHIFT: u32 = 32;
const SHARED: u64 = 1 << 48;

/// One slot of an outbox.
#[repr(C, align(64))]
pub struct OutboxSlot {
    head: AtomicU64,
    words: [AtomicU64; PARCEL_MAX],
    reserved: [AtomicU64; 7],
}

// SAFETY: `repr(C)`, atomics only, the gap is a named field (asserted below), aligned to 64.
unsafe impl Overlay for OutboxSlot {}

const _: () = assert!(size_of::<OutboxSlot>() == 33 * 64);
const _: () = assert!(core::mem::offset_of!(OutboxSlot, words) == 8);
const _: () = assert!(OUTBOX_BYTES.is_multiple_of(4096));

/// Length of an outbox; memory is taken as slots are used.
pub const OUTBOX_BYTES: usize = OUTBOX_SLOTS * size_of::<OutboxSlot>();

/// What the head of a slot says: a claim to everybody but its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParcelHead {
    /// The slot's sequence.
    pub sequence: u32,
    /// Blocks in it, 1 to [`PARCEL_MAX`].
    pub nr_blocks: usize,
    /// A holding of a shared page: one block, which stays where it is.
    pub is_shared: bool,
}

impl OutboxSlot {
    /// Sender: signs for a parcel; at most [`PARCEL_MAX`] words.
    ///
    /// The slot must be the sender's to write. The parcel is not offered yet: that is the transit
    /// word's affair, whose release publishes what is written here.
    #[inline]
    pub fn sign(&self, sequence: u32, pages: &[RawPage]) {
        self.sign_as(sequence, pages, 0);
    }

    /// Sender: signs for a holding of a shared page; as [`sign`](Self::sign) otherwise.
    #[inline]
    pub fn sign_shared(&self, sequence: u32, page: RawPage) {
        self.sign_as(sequence, &[page], SHARED);
    }

    #[inline]
    fn sign_as(&self, sequence: u32, pages: &[RawPage], kind: u64) {
        let mut at = 0;
        for run in runs_of(pages) {
            word_run::store(&self.words, at, run);
            at += run.nr_blocks;
        }
        let head = kind | (pages.len() as u64) << COUNT_SHIFT | u64::from(sequence);
        // SYNC(outbox.head): who sees the head sees the words before it.
        self.head.store(head, Release);
    }

    /// Sender: takes its signature back. The slot is its own again.
    #[inline]
    pub fn clear(&self) {
        self.head.store(0, Relaxed);
    }

    /// What is signed for, if anything that can be.
    #[inline]
    pub fn head(&self) -> Option<ParcelHead> {
        // SYNC(outbox.head): pairs with `sign`.
        let head = self.head.load(Acquire);
        let is_shared = head & SHARED != 0;
        let nr_blocks = usize::try_from((head & !SHARED) >> COUNT_SHIFT).ok()?;
        let [a, b, c, d, ..] = head.to_le_bytes();
        let most = if is_shared { 1 } else { PARCEL_MAX };
        (1..=most).contains(&nr_blocks).then_some(ParcelHead {
            sequence: u32::from_le_bytes([a, b, c, d]),
            nr_blocks,
            is_shared,
        })
    }

    /// The word of the first block, as it is just now.
    #[inline]
    pub fn first_word(&self) -> RawPage {
        RawPage::from_bits(self.words[0].load(Relaxed))
    }

    /// The blocks of a parcel by runs, as they are just now.
    #[inline]
    pub fn runs(&self, nr_blocks: usize) -> impl Iterator<Item = WordRun> + '_ {
        let end = u32::try_from(nr_blocks.min(PARCEL_MAX)).unwrap_or(0);
        word_run::load_all(&self.words, 0, end)
    }

    /// The page words of a parcel, as they are just now.
    #[inline]
    pub fn words(&self, nr_blocks: usize) -> impl Iterator<Item = RawPage> + '_ {
        self.runs(nr_blocks).flat_map(WordRun::words)
    }
}

/// An outbox, as its client, the daemon or a peer has it; clones are the same one.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Mapping>);

impl Outbox {
    /// Enters the outbox in a mapping, fresh or made elsewhere.
    ///
    /// # Errors
    /// [`MapError::Length`] if the mapping is too short.
    pub fn over(mapping: Mapping) -> Result<Outbox, MapError> {
        let len_bytes = mapping.len_bytes();
        if len_bytes < OUTBOX_BYTES {
            return Err(MapError::Length { len_bytes });
        }
        Ok(Outbox(Arc::new(mapping)))
    }

    /// Maps a peer's outbox, to be read.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn of_peer(file: BorrowedFd<'_>) -> Result<Outbox, MapError> {
        Outbox::over(Mapping::of_fd_read_only(file, OUTBOX_BYTES)?)
    }

    /// An outbox on the heap, for tests and simulators.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn heap() -> Result<Outbox, MapError> {
        Outbox::over(Mapping::heap(OUTBOX_BYTES)?)
    }

    /// The slot of that index, if there is one. Only its client may sign or clear it: for others
    /// that would be a fault, since they have mapped it to be read.
    #[inline]
    pub fn slot(&self, index: u32) -> Option<&OutboxSlot> {
        self.slots().get(index as usize)
    }

    /// All slots.
    #[inline]
    pub fn slots(&self) -> &[OutboxSlot] {
        self.0
            .overlay_slice(0, OUTBOX_SLOTS)
            .expect("`over` has checked the length")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_read_until_it_is_cleared() {
        let outbox = Outbox::heap().unwrap();
        let slot = outbox.slot(511).unwrap();
        assert_eq!(slot.head(), None);
        let pages: Vec<RawPage> = (1..=256).map(RawPage::from_bits).collect();
        slot.sign(u32::MAX, &pages);
        let head = slot.head().unwrap();
        assert_eq!((head.sequence, head.nr_blocks), (u32::MAX, 256));
        assert!(slot.words(256).eq(pages.iter().copied()));
        slot.clear();
        assert_eq!(slot.head(), None);
        slot.sign_shared(7, pages[0]);
        let head = slot.head().unwrap();
        assert!(head.is_shared && (head.sequence, head.nr_blocks) == (7, 1));
        assert!(outbox.slot(512).is_none());
    }

    #[test]
    fn absurd_heads_offer_nothing() {
        let outbox = Outbox::heap().unwrap();
        let slot = outbox.slot(0).unwrap();
        for count in [0, 257, 1 << 16, 2 | 1 << 16, 1 << 17, u64::from(u32::MAX)] {
            slot.head.store(count << 32 | 7, Relaxed);
            assert_eq!(slot.head(), None);
        }
    }
}
