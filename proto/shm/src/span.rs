//! A run of addresses of our own, into which pieces of a zone's file are mapped and unmapped.
//!
//! It hands out no reference and no pointer that may be read through, only addresses: who reads
//! there, and why that is sound, is the affair of [`zone_map`](crate::zone_map) (pages in custody)
//! and [`page_io`](crate::page_io) (system calls that can fail).

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// What may be done with mapped bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// Addresses reserved for this value alone; inaccessible where nothing is mapped.
///
/// # Invariants
/// `base..base + len` belongs to this value until drop: no other mapping is ever placed in it, and
/// no Rust reference to its bytes is made by this module.
#[derive(Debug)]
pub(crate) struct Span {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the addresses belong to the value and not to a thread, and mapping, unmapping and advising
// are system calls that any thread of the process may make.
unsafe impl Send for Span {}
// SAFETY: `&Span` gives away addresses and system calls on whole pages, which the kernel serialises;
// no byte is read or written through it.
unsafe impl Sync for Span {}

impl Span {
    /// Reserves `len_bytes`, a multiple of 4 KiB, at a multiple of `align_bytes`, a power of two.
    /// It costs addresses, not memory, is left out of core dumps and does not outlive a fork.
    pub(crate) fn reserve(len_bytes: usize, align_bytes: usize) -> Result<Span, Errno> {
        let align = align_bytes.max(4096);
        if len_bytes == 0 || !len_bytes.is_multiple_of(4096) || !align.is_power_of_two() {
            return Err(Errno::EINVAL);
        }
        let padded = len_bytes.checked_add(align).and_then(NonZeroUsize::new);
        let padded = padded.ok_or(Errno::ENOMEM)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: the address is left to the system, so no existing mapping can be replaced, and a
        // length that cannot be had makes the call fail.
        let start = unsafe { mmap_anonymous(None, padded, ProtFlags::PROT_NONE, flags) }?;
        let whole = Span {
            base: start.cast(),
            len: padded.get(),
        };
        let span = whole.trim(len_bytes, align);
        span.keep_private(0, len_bytes)?;
        Ok(span)
    }

    /// Gives back what lies before and behind the aligned `len` bytes of an accessless reservation.
    fn trim(self, len: usize, align: usize) -> Span {
        let whole = std::mem::ManuallyDrop::new(self);
        let front = whole.base.addr().get().wrapping_neg() & (align - 1);
        // SAFETY: `front < align` and the reservation is `len + align` long, so this stays in it.
        let base = unsafe { whole.base.add(front) };
        // SAFETY: as above, `front + len <= len + align`.
        let end = unsafe { base.add(len) };
        let back = whole.len - front - len;
        for (start, bytes) in [(whole.base, front), (end, back)] {
            if bytes > 0 {
                // SAFETY: the piece lies in the reservation that this call has taken over, outside
                // the part that lives on, and nothing was ever mapped in it. A refusal leaks
                // addresses, no more.
                let _ = unsafe { munmap(start.cast(), bytes) };
            }
        }
        Span { base, len }
    }

    /// Length in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len
    }

    /// Address of the first byte, as a number.
    pub(crate) fn base_address(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    /// Maps `len` bytes of `file` from `file_offset` on over the reservation at `offset`.
    pub(crate) fn map(
        &self,
        offset: usize,
        len: usize,
        file: BorrowedFd<'_>,
        file_offset: u64,
        access: Access,
    ) -> Result<(), Errno> {
        let (address, length) = self.place(offset, len)?;
        let file_offset = libc::off_t::try_from(file_offset).map_err(|_| Errno::EOVERFLOW)?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // NORESERVE: a section's pages are taken when it is populated, not when it is mapped.
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED;
        // SAFETY:
        // 1. The range lies in this value's own addresses (`place`), so what is replaced is our
        //    reservation or an older mapping of ours, and no reference of this module points there.
        // 2. The descriptor is open for the call, because it is borrowed.
        // 3. A length or offset that the file does not allow makes the call fail.
        unsafe { mmap(Some(address), length, protection, flags, file, file_offset) }?;
        if let Err(errno) = self.keep_private(offset, len) {
            // Better unmapped than in a core dump or a child.
            let _ = self.clear(offset, len);
            return Err(errno);
        }
        Ok(())
    }

    /// Makes `len` bytes at `offset` an accessless reservation again.
    pub(crate) fn clear(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let (address, length) = self.place(offset, len)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED;
        // SAFETY: the range lies in this value's own addresses (`place`), and no reference of this
        // module points there; whoever made one elsewhere argues for it there.
        unsafe { mmap_anonymous(Some(address), length, ProtFlags::PROT_NONE, flags) }?;
        self.keep_private(offset, len)
    }

    /// Advises the kernel on `len` bytes at `offset`, by a kind of advice that changes no content.
    pub(crate) fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        let (address, length) = self.place(offset, len)?;
        // SAFETY:
        // 1. The range lies in this value's own addresses (`place`).
        // 2. No `Advice` drops or replaces content: they populate, or set how the range is treated.
        unsafe { madvise(address_pointer(address), length.get(), advice.flag()) }
    }

    /// New mappings start without the marks of the old: set them on each.
    fn keep_private(&self, offset: usize, len: usize) -> Result<(), Errno> {
        self.advise(offset, len, Advice::DontDump)?;
        self.advise(offset, len, Advice::DontFork)
    }

    /// The one bounds check: whole pages inside the span.
    fn place(&self, offset: usize, len: usize) -> Result<(NonZeroUsize, NonZeroUsize), Errno> {
        let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
        let is_whole = offset.is_multiple_of(4096) && len.is_multiple_of(4096);
        if end > self.len || !is_whole {
            return Err(Errno::EINVAL);
        }
        let address = self.base.addr().checked_add(offset);
        address.zip(NonZeroUsize::new(len)).ok_or(Errno::EINVAL)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: the range was reserved for this value alone, and this module has made no
        // reference into it. A refusal leaks addresses; nothing here could act on it.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// Advice that leaves content alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Leave it out of core dumps: a dump of a sparse map allocates all of it.
    DontDump,
    /// Leave it out of forked children.
    DontFork,
    /// Use huge pages when a page is made here.
    HugePage,
    /// Make every page now, as if written, and answer an error where that cannot be done.
    PopulateWrite,
}

impl Advice {
    fn flag(self) -> MmapAdvise {
        match self {
            Advice::DontDump => MmapAdvise::MADV_DONTDUMP,
            Advice::DontFork => MmapAdvise::MADV_DONTFORK,
            Advice::HugePage => MmapAdvise::MADV_HUGEPAGE,
            Advice::PopulateWrite => MmapAdvise::MADV_POPULATE_WRITE,
        }
    }
}

fn address_pointer(address: NonZeroUsize) -> NonNull<std::ffi::c_void> {
    // A number for the kernel; nothing is read through it.
    NonNull::without_provenance(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_aligned_and_sparse() {
        let align = 1 << 30;
        let span = Span::reserve(1 << 40, align).unwrap();
        assert!(span.base_address().is_multiple_of(align));
        assert_eq!(span.len_bytes(), 1 << 40);
    }

    #[test]
    fn nothing_outside_or_askew_is_mapped_cleared_or_advised() {
        let span = Span::reserve(1 << 16, 4096).unwrap();
        for (offset, len) in [
            (0, (1 << 16) + 4096),
            (1 << 16, 4096),
            (4095, 4096),
            (0, 100),
            (0, 0),
            (usize::MAX - 4095, 8192),
        ] {
            assert_eq!(span.clear(offset, len), Err(Errno::EINVAL));
            assert_eq!(
                span.advise(offset, len, Advice::DontDump),
                Err(Errno::EINVAL)
            );
        }
        span.clear(0, 1 << 16).unwrap();
    }

    #[test]
    fn reservations_that_cannot_be_are_refused() {
        assert_eq!(Span::reserve(0, 4096).unwrap_err(), Errno::EINVAL);
        assert_eq!(Span::reserve(4095, 4096).unwrap_err(), Errno::EINVAL);
        assert_eq!(Span::reserve(4096, 3 << 20).unwrap_err(), Errno::EINVAL);
        assert!(Span::reserve(usize::MAX & !4095, 1 << 21).is_err());
    }
}
