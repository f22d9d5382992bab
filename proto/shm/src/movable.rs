//! A block that the daemon may move while nobody uses it, as a value.
//!
//! A [`Movable`] is a handle ([`handles`](crate::handles)): it says where the block is *now*, and
//! holds it there as long as somebody has it pinned. A pin costs one swap on the handle's word; it
//! waits for at most the copy of one block, and never for a daemon that is slow, stopped or dead.
//! Whoever has a [`Pinned`] has the bytes, as whoever has a [`Page`].

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

use crate::attached::Attached;
use crate::client_handle::ClientHandle;
use crate::handle::{HandleWord, PinError};
use crate::page::Page;
use crate::process;
use crate::raw::{RawMigratetype, RawPage};

/// How often a pin looks at a closed word: for a block of one page, and for each further page.
/// About the time of the copy.
const SPINS: u32 = 64;
const SPINS_A_PAGE: u32 = 32;

/// Why a page was not put under a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHandle {
    /// All handles are in use.
    #[error("all {nr_handles} handles of movable pages are in use")]
    UsedUp {
        /// How many a client has.
        nr_handles: u32,
    },
    /// The page belongs to another client, or to a former one, or was asked for as unmovable, or
    /// this is a forked child.
    #[error("the page is not a movable or evictable one of this client")]
    NotItsPage,
}

/// A block of `2^order` pages that the daemon may move while it is not pinned, and, if it was
/// asked for as reclaimable, take away.
///
/// Dropping it frees it. In a forked child dropping does nothing, and pins are refused.
///
/// # Invariants
/// `handle` was taken from the client's pool for this value alone, and filled with a block in
/// whose custody the client is.
pub struct Movable {
    attached: Arc<Attached>,
    handle: u32,
    order: u32,
    is_evictable: bool,
}

impl ClientHandle {
    /// Puts a page of this client under a handle: from now on the daemon may move it, and take it
    /// away if it was asked for as reclaimable.
    ///
    /// # Errors
    /// [`NoHandle`], and the page as it was.
    pub fn make_movable(&self, page: Page) -> Result<Movable, (Page, NoHandle)> {
        let attached = self.attached();
        let raw = page.raw();
        let is_evictable = match raw.migratetype() {
            Some(RawMigratetype::Movable) => false,
            Some(RawMigratetype::Reclaimable) => true,
            Some(RawMigratetype::Unmovable) | None => return Err((page, NoHandle::NotItsPage)),
        };
        if raw.client() != attached.index() || process::is_child() || attached.is_gone() {
            return Err((page, NoHandle::NotItsPage));
        }
        attached.follow_sections();
        let handles = attached.handles();
        let Some(handle) = attached.pool().take(handles) else {
            let nr_handles = handles.len();
            return Err((page, NoHandle::UsedUp { nr_handles }));
        };
        // From here on the handle has the page; it is freed through it.
        core::mem::forget(page);
        let is_filled = handles.fill(handle, raw);
        debug_assert!(is_filled, "the pool gives handles that there are");
        Ok(Movable {
            attached: attached.clone(),
            handle,
            order: raw.order(),
            is_evictable,
        })
    }
}

impl Movable {
    /// Holds the block in place and gives its bytes, to be read.
    ///
    /// # Errors
    /// [`PinError`].
    #[inline]
    pub fn pin(&self) -> Result<Pinned<'_>, PinError> {
        if process::is_child() {
            return Err(PinError::Forked);
        }
        let handles = self.attached.handles();
        let word = handles.word(self.handle).ok_or(PinError::NoPage)?;
        let pfn = word.pin(self.spins())?;
        let bytes = handles.page(self.handle, pfn).and_then(|raw| {
            let (base, len) = process::find_bytes(raw)?;
            Some((raw, NonNull::new(base)?, len))
        });
        let Some((raw, base, len)) = bytes else {
            word.unpin();
            return Err(PinError::NoPage);
        };
        Ok(Pinned {
            attached: &self.attached,
            word,
            base,
            len,
            raw,
        })
    }

    /// Holds the block in place and gives its bytes, to be read and written.
    ///
    /// # Errors
    /// [`PinError`].
    #[inline]
    pub fn pin_mut(&mut self) -> Result<PinnedMut<'_>, PinError> {
        self.pin().map(PinnedMut)
    }

    /// Takes the block out of its handle: it stays where it is from now on. A pin that was
    /// forgotten (by `mem::forget`) keeps it there until then.
    ///
    /// # Errors
    /// [`PinError::Evicted`]: there is nothing left of it. [`PinError::Forked`].
    pub fn into_page(self) -> Result<Page, PinError> {
        if process::is_child() {
            return Err(PinError::Forked);
        }
        let page = self.take_out();
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so this is the one time that the client
        // is let go of.
        drop(unsafe { core::ptr::read(&raw const this.attached) });
        page
    }

    /// The block has `2^order` pages.
    pub fn order(&self) -> u32 {
        self.order
    }

    /// Whether the daemon may take it away.
    pub fn is_evictable(&self) -> bool {
        self.is_evictable
    }

    fn spins(&self) -> u32 {
        SPINS + (SPINS_A_PAGE << self.order)
    }

    /// Empties the handle and gives it back. What it named is no longer the daemon's to move.
    fn take_out(&self) -> Result<Page, PinError> {
        let handles = self.attached.handles();
        let word = handles.word(self.handle).ok_or(PinError::NoPage)?;
        let emptied = word.empty();
        // A word that was scribbled over may be in the pool already: it is not given back.
        let page = match emptied {
            Ok(pfn) => handles.page(self.handle, pfn).ok_or(PinError::NoPage)?,
            Err(PinError::Evicted) => {
                self.attached.pool().put(handles, self.handle);
                self.attached.count_taken_away();
                return Err(PinError::Evicted);
            }
            Err(error) => return Err(error),
        };
        self.attached.pool().put(handles, self.handle);
        page.non_zero().map(Page::of_word).ok_or(PinError::NoPage)
    }
}

impl Drop for Movable {
    fn drop(&mut self) {
        if process::is_child() {
            // The parent's: nothing of it may be touched, unmapped or counted down here.
            core::mem::forget(self.attached.clone());
            return;
        }
        // Frees it, if it is still there.
        drop(self.take_out());
    }
}

impl core::fmt::Debug for Movable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Movable(handle {}, order {})", self.handle, self.order)
    }
}

/// The bytes of a movable block, which stays where it is until this is dropped.
///
/// # Invariants
/// The block is pinned once for this value, and `base..base + len` are its bytes.
pub struct Pinned<'a> {
    attached: &'a Attached,
    word: HandleWord<'a>,
    base: NonNull<u8>,
    len: usize,
    raw: RawPage,
}

// SAFETY: the bytes belong to the block and not to a thread, and unpinning is a swap on a word that
// any thread may make.
unsafe impl Send for Pinned<'_> {}
// SAFETY: a shared `Pinned` gives out shared references to bytes that nobody writes meanwhile.
unsafe impl Sync for Pinned<'_> {}

impl Pinned<'_> {
    /// Page frame number of the first page, unique over all zones, for as long as it is pinned.
    pub fn pfn(&self) -> u32 {
        self.raw.pfn()
    }

    /// Index of the zone that it is in, for as long as it is pinned.
    pub fn zone(&self) -> u32 {
        self.raw.zone()
    }

    /// Address of the first byte, for as long as it is pinned.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr().cast_const()
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY:
        // 1. The range was found inside a zone of the client, which the `Movable` that this
        //    borrows keeps mapped; where nothing is mapped in it, a touch faults.
        // 2. Every bit pattern is a `u8`, and the memory of a zone is always initialised.
        // 3. The block is in the `Movable`'s custody and pinned, so the daemon does not move it
        //    and nobody else writes it; in this process it is written through a `PinnedMut` only,
        //    which borrows the `Movable` exclusively, so there is none beside this.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        // A child never gets one; one that it has inherited is the parent's, whose words are not
        // mapped here.
        if !process::is_child() {
            self.word.unpin();
            // Not at the pin: that one waits for nothing but a copy.
            self.attached.follow_sections();
        }
    }
}

impl core::fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Pinned(pfn {}, {} bytes)", self.pfn(), self.len)
    }
}

/// The bytes of a movable block, to be written too.
#[derive(Debug)]
pub struct PinnedMut<'a>(Pinned<'a>);

impl PinnedMut<'_> {
    /// Page frame number of the first page, unique over all zones, for as long as it is pinned.
    pub fn pfn(&self) -> u32 {
        self.0.pfn()
    }

    /// Address of the first byte, for as long as it is pinned.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.base.as_ptr()
    }
}

impl Deref for PinnedMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for PinnedMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `Pinned::deref`; and `self` is borrowed exclusively, and borrows the
        // `Movable` exclusively, so no other reference to these bytes exists.
        unsafe { core::slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.len) }
    }
}
