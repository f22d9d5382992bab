//! A page in this process's custody, as a value of 8 bytes.
//!
//! A [`Page`] *is* its page word, so that a batch is copied between a lane and the caller's array
//! as plain words. It finds its bytes and, when dropped, its way home through the process's table
//! of clients ([`process`](crate::process)); it borrows nothing, and may outlive the client.

use core::num::NonZeroU64;
use core::ops::{Deref, DerefMut};
use std::io::IoSliceMut;

use crate::post::HandOverError;
use crate::process;
use crate::raw::RawPage;
use crate::thread_lane;
use crate::ticket::Ticket;

/// A block of `2^order` pages that this process may use, and nobody else, until it is dropped.
///
/// It derefs to its bytes, which are valid whatever they are. That nobody else touches them is
/// what the zone's clients promise one another: a zone is the border of trust. Dropping it frees
/// it, which never waits and never fails. In a forked child dropping does nothing, and touching
/// the bytes panics.
///
/// # Invariants
/// The word came from a lane's grants, from a reply of the daemon's or from another `Page`, and
/// no other `Page` of this process has it.
#[repr(transparent)]
pub struct Page(NonZeroU64);

const _: () = assert!(size_of::<Page>() == 8 && size_of::<Option<Page>>() == 8);
const _: () = assert!(align_of::<Option<Page>>() == align_of::<u64>());

impl Page {
    /// The page of a word just taken out of a lane, or brought by a reply.
    #[inline(always)]
    pub(crate) fn of_word(word: NonZeroU64) -> Page {
        Page(word)
    }

    /// The page word.
    #[inline(always)]
    pub fn raw(&self) -> RawPage {
        RawPage::from_bits(self.0.get())
    }

    /// The page word; the page is no longer this process's to use, and is not freed here.
    pub fn into_raw(self) -> RawPage {
        let raw = self.raw();
        core::mem::forget(self);
        process::count_taken_away(raw);
        raw
    }

    /// Hands the page over to whoever claims the ticket first; until then its sender can take it
    /// back. Many at a time go by `Client::hand_over_bulk`.
    ///
    /// # Errors
    /// [`HandOverError`], with the page.
    pub fn hand_over(self) -> Result<Ticket, (HandOverError, Page)> {
        let offered = match process::Visit::to(self.raw().client()) {
            Some(visit) => visit.attached().hand_over(core::slice::from_ref(&self)),
            None if process::is_child() => Err(HandOverError::Forked),
            None => Err(HandOverError::Detached),
        };
        match offered {
            Ok(ticket) => {
                core::mem::forget(self);
                Ok(ticket)
            }
            Err(why) => Err((why, self)),
        }
    }

    /// Page frame number of the first page, unique over all zones.
    pub fn pfn(&self) -> u32 {
        self.raw().pfn()
    }

    /// The block has `2^order` pages.
    pub fn order(&self) -> u32 {
        self.raw().order()
    }

    /// Address of the first byte.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        process::bytes_of(self.raw()).0.cast_const()
    }

    /// Address of the first byte.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        process::bytes_of(self.raw()).0
    }

    /// The bytes as a buffer for `readv` and friends.
    pub fn as_io_slice_mut(&mut self) -> IoSliceMut<'_> {
        IoSliceMut::new(self)
    }
}

impl Deref for Page {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (base, len) = process::bytes_of(self.raw());
        // SAFETY:
        // 1. `bytes_of` answers only with a range inside a zone that this process has reserved
        //    and keeps as long as pages of it live; where nothing is mapped in it, a touch
        //    faults, which is no unsoundness.
        // 2. Every bit pattern is a `u8`, and the memory of a zone is always initialised.
        // 3. The block is in this `Page`'s custody, so nobody writes it while `self` is borrowed
        //    shared: other pages are disjoint, and other clients of the zone keep off.
        unsafe { core::slice::from_raw_parts(base, len) }
    }
}

impl DerefMut for Page {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (base, len) = process::bytes_of(self.raw());
        // SAFETY: as in `deref`; and `self` is borrowed exclusively, so no other reference to
        // these bytes exists.
        unsafe { core::slice::from_raw_parts_mut(base, len) }
    }
}

impl Drop for Page {
    #[inline]
    fn drop(&mut self) {
        thread_lane::free(self.raw());
    }
}

impl core::fmt::Debug for Page {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Page(pfn {}, order {})", self.pfn(), self.order())
    }
}

/// Slots for pages as words: an empty slot is 0.
#[inline(always)]
pub(crate) fn words_of_slots(slots: &mut [Option<Page>]) -> &mut [u64] {
    // SAFETY:
    // 1. `Page` is transparent over `NonZeroU64`, so `Option<Page>` has the size and alignment of
    //    a `u64` (asserted above), `None` is 0, and every `u64` is a valid `Option<Page>`.
    // 2. The result borrows the only reference.
    // Whether a word written makes a page that exists once is the affair of the callers, which
    // are all in this crate and move words, never copy them.
    unsafe { core::slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
}

/// Pages as words, to be read; whoever moves them elsewhere must forget the pages.
#[inline(always)]
pub(crate) fn words_of_pages(pages: &[Page]) -> &[u64] {
    // SAFETY: `Page` is transparent over `NonZeroU64`, each of which is a `u64`.
    unsafe { core::slice::from_raw_parts(pages.as_ptr().cast(), pages.len()) }
}
