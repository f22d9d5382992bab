//! One owned run of memory that other processes, or other threads, write at the same time.
//!
//! It knows lengths and alignment and hands out references to atomics, nothing else; what the
//! words mean is [`layout`](crate::layout)'s affair. It is not the region of a zone: pages of
//! zones are reached through the map of zones and never by a reference into a [`Mapping`].
//!
//! A heap arm with the same face keeps everything above the system call in reach of Miri.

use core::mem::{align_of, size_of};
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::BorrowedFd;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Every mapping starts at a multiple of this many bytes and is a multiple of it long.
pub const MAPPING_ALIGN: usize = 4096;

/// Why memory could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The length is zero or so large that it cannot be rounded up to whole pages.
    #[error("a mapping of {len_bytes} bytes cannot be made")]
    Length {
        /// The length asked for.
        len_bytes: usize,
    },
    /// The system refused.
    #[error("the system refused to map {len_bytes} bytes")]
    System {
        /// The length asked for, rounded up to whole pages.
        len_bytes: usize,
        /// What the system said.
        #[source]
        errno: nix::errno::Errno,
    },
}

/// Words asked for that do not lie in the mapping, or not at a multiple of their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len_bytes} bytes at {offset:#x} do not lie aligned in a mapping of {mapped_bytes} bytes")]
pub struct OutOfBounds {
    /// Where they should start, in bytes from the start of the mapping.
    pub offset: usize,
    /// How long they should be.
    pub len_bytes: usize,
    /// How long the mapping is.
    pub mapped_bytes: usize,
}

/// Types that may be laid over shared memory.
///
/// # Safety
/// A type that implements this has a fixed representation, is valid for every bit pattern (so
/// also for fresh zeros), consists of atomics only (so a shared reference to it stays sound
/// while others write), has no padding that matters, and its alignment is at most
/// [`MAPPING_ALIGN`].
pub unsafe trait Overlay {}

// SAFETY: an atomic integer is its integer: any bits are valid, it has no padding, and shared
// references to it allow concurrent writes.
unsafe impl Overlay for AtomicU32 {}
// SAFETY: as for `AtomicU32`, with 8 bytes.
unsafe impl Overlay for AtomicU64 {}

enum Kind {
    /// Mapped here and in children of fork.
    Mapped,
    /// Mapped in this process only; in a child, others may have the addresses.
    MappedIn {
        process: u32,
    },
    Heap(Layout),
}

/// An owned run of memory, readable and (but for what was mapped to be read) writable, zero where
/// nothing was written yet.
///
/// # Invariants
/// `base..base + len` stays readable and, if it was mapped so, writable until drop, `base` and `len` are multiples of
/// [`MAPPING_ALIGN`], and no Rust reference to its bytes exists but references to atomics.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    kind: Kind,
}

// SAFETY: the memory belongs to this value, not to a thread: unmapping and freeing work from
// any thread, and `Mapping` hands out references to atomics only.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out only references to atomics, which any thread may use at once.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len_bytes` (rounded up to whole pages) of fresh zeros, shared with nobody yet but
    /// with children; memory is taken page by page as it is touched.
    pub fn anonymous(len_bytes: usize) -> Result<Mapping, MapError> {
        Mapping::map_anonymous(len_bytes, MapFlags::MAP_SHARED)
    }

    /// Maps fresh zeros that are this process's own and that a forked child finds zero again.
    pub fn wiped_on_fork(len_bytes: usize) -> Result<Mapping, MapError> {
        let mapping = Mapping::map_anonymous(len_bytes, MapFlags::MAP_PRIVATE)?;
        // SAFETY:
        // 1. The range is exactly this value's own mapping, made a line above.
        // 2. The advice changes what a child of fork sees, and nothing in this process.
        let answer = unsafe {
            libc::madvise(
                mapping.base.as_ptr().cast(),
                mapping.len,
                libc::MADV_WIPEONFORK,
            )
        };
        match nix::errno::Errno::result(answer) {
            Ok(_) => Ok(mapping),
            Err(errno) => Err(MapError::System {
                len_bytes: mapping.len,
                errno,
            }),
        }
    }

    /// Maps the first `len_bytes` of a shared file. The map is left out of forked children and
    /// of core dumps. The file must be sealed against shrinking: a hole left by a truncation
    /// would end the process with SIGBUS.
    pub fn of_fd(file: BorrowedFd<'_>, len_bytes: usize) -> Result<Mapping, MapError> {
        Mapping::map_file(
            file,
            len_bytes,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        )
    }

    /// The same, to be read only: storing to a word of it would end the process.
    pub fn of_fd_read_only(file: BorrowedFd<'_>, len_bytes: usize) -> Result<Mapping, MapError> {
        Mapping::map_file(file, len_bytes, ProtFlags::PROT_READ)
    }

    fn map_file(
        file: BorrowedFd<'_>,
        len_bytes: usize,
        protection: ProtFlags,
    ) -> Result<Mapping, MapError> {
        let len = round_up(len_bytes)?;
        // SAFETY:
        // 1. The address is left to the system, so no mapping of anybody's can be replaced.
        // 2. The descriptor is open for the call, because it is borrowed.
        // 3. A length or file that does not fit makes the call fail; it cannot break memory.
        let answer = unsafe {
            mmap(
                None,
                len,
                protection,
                MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE,
                file,
                0,
            )
        };
        let mut mapping = Mapping::from_answer(answer, len)?;
        for advice in [MmapAdvise::MADV_DONTFORK, MmapAdvise::MADV_DONTDUMP] {
            // SAFETY:
            // 1. The range is exactly this value's own mapping.
            // 2. Both kinds of advice leave its contents and protection in this process alone.
            unsafe { madvise(mapping.base.cast(), mapping.len, advice) }.map_err(|errno| {
                MapError::System {
                    len_bytes: mapping.len,
                    errno,
                }
            })?;
        }
        mapping.kind = Kind::MappedIn {
            process: std::process::id(),
        };
        Ok(mapping)
    }

    /// Takes `len_bytes` of zeros from the heap: the same face without a system call.
    pub fn heap(len_bytes: usize) -> Result<Mapping, MapError> {
        let len = round_up(len_bytes)?.get();
        let layout = Layout::from_size_align(len, MAPPING_ALIGN)
            .map_err(|_| MapError::Length { len_bytes })?;
        // SAFETY: the layout's size is not zero, since `round_up` gives at least one page.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            handle_alloc_error(layout)
        };
        Ok(Mapping {
            base,
            len,
            kind: Kind::Heap(layout),
        })
    }

    /// Length in bytes, a multiple of [`MAPPING_ALIGN`].
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// `count` words of 4 bytes from byte `offset` on.
    pub fn words32(&self, offset: usize, count: usize) -> Result<&[AtomicU32], OutOfBounds> {
        self.overlay_slice(offset, count)
    }

    /// `count` words of 8 bytes from byte `offset` on.
    #[inline]
    pub fn words64(&self, offset: usize, count: usize) -> Result<&[AtomicU64], OutOfBounds> {
        self.overlay_slice(offset, count)
    }

    /// One `T` laid over the bytes from `offset` on.
    pub fn overlay<T: Overlay>(&self, offset: usize) -> Result<&T, OutOfBounds> {
        let place = self.place::<T>(offset, 1)?;
        // SAFETY: `place` has checked that one aligned `T` lies inside the mapping, which lives
        // as long as `self`; `Overlay` promises that any bytes, changing ones too, are a `T`.
        Ok(unsafe { place.as_ref() })
    }

    /// `count` of `T` laid over the bytes from `offset` on.
    #[inline]
    pub fn overlay_slice<T: Overlay>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<&[T], OutOfBounds> {
        let place = self.place::<T>(offset, count)?;
        // SAFETY: `place` has checked that `count` aligned `T` lie inside the mapping, which
        // lives as long as `self`; `Overlay` promises that any bytes are a `T`.
        Ok(unsafe { core::slice::from_raw_parts(place.as_ptr(), count) })
    }

    /// The one bounds check: where `count` of `T` lie, if they lie in here and aligned.
    #[inline]
    fn place<T>(&self, offset: usize, count: usize) -> Result<NonNull<T>, OutOfBounds> {
        let wanted = size_of::<T>().checked_mul(count);
        let len_bytes = wanted.unwrap_or(usize::MAX);
        let refused = OutOfBounds {
            offset,
            len_bytes,
            mapped_bytes: self.len,
        };
        let end = offset.checked_add(len_bytes).ok_or(refused)?;
        let is_aligned = align_of::<T>() <= MAPPING_ALIGN && offset.is_multiple_of(align_of::<T>());
        if wanted.is_none() || end > self.len || !is_aligned {
            return Err(refused);
        }
        // SAFETY: `offset <= end <= len`, so the sum stays inside the one mapped range.
        Ok(unsafe { self.base.add(offset) }.cast())
    }

    fn map_anonymous(len_bytes: usize, flags: MapFlags) -> Result<Mapping, MapError> {
        let len = round_up(len_bytes)?;
        // SAFETY: the address is left to the system, so no existing mapping can be replaced,
        // and a length that cannot be had makes the call fail.
        let answer = unsafe {
            mmap_anonymous(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                flags | MapFlags::MAP_NORESERVE,
            )
        };
        Mapping::from_answer(answer, len)
    }

    fn from_answer(
        answer: nix::Result<NonNull<core::ffi::c_void>>,
        len: NonZeroUsize,
    ) -> Result<Mapping, MapError> {
        match answer {
            Ok(base) => Ok(Mapping {
                base: base.cast(),
                len: len.get(),
                kind: Kind::Mapped,
            }),
            Err(errno) => Err(MapError::System {
                len_bytes: len.get(),
                errno,
            }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.kind {
            Kind::MappedIn { process } if process != std::process::id() => {}
            Kind::Mapped | Kind::MappedIn { .. } => {
                // SAFETY: the range was mapped for this value alone, and every reference into
                // it borrowed `self`, so none is left.
                // A refusal leaves the range mapped: it leaks, and nothing here can act on it.
                let _ = unsafe { munmap(self.base.cast(), self.len) };
            }
            // SAFETY: `base` came from the allocator with this very layout, and every reference
            // into it borrowed `self`, so none is left.
            Kind::Heap(layout) => unsafe { dealloc(self.base.as_ptr(), layout) },
        }
    }
}

impl core::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kind = match self.kind {
            Kind::Mapped | Kind::MappedIn { .. } => "mapped",
            Kind::Heap(_) => "heap",
        };
        write!(f, "Mapping({kind}, {:p}, {} bytes)", self.base, self.len)
    }
}

fn round_up(len_bytes: usize) -> Result<NonZeroUsize, MapError> {
    len_bytes
        .checked_next_multiple_of(MAPPING_ALIGN)
        .filter(|&len| isize::try_from(len).is_ok())
        .and_then(NonZeroUsize::new)
        .ok_or(MapError::Length { len_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn heap_words_start_zero_and_keep_what_is_stored() {
        let mapping = Mapping::heap(100).unwrap();
        assert_eq!(mapping.len_bytes(), MAPPING_ALIGN);
        let words = mapping.words64(8, 4).unwrap();
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        words[3].store(7, Relaxed);
        assert_eq!(mapping.words64(32, 1).unwrap()[0].load(Relaxed), 7);
    }

    #[test]
    fn words_outside_or_askew_are_refused() {
        let mapping = Mapping::heap(MAPPING_ALIGN).unwrap();
        assert!(mapping.words32(MAPPING_ALIGN - 4, 1).is_ok());
        assert!(mapping.words32(MAPPING_ALIGN - 4, 2).is_err());
        assert!(mapping.words32(MAPPING_ALIGN, 0).is_ok());
        assert!(mapping.words32(MAPPING_ALIGN + 4, 0).is_err());
        assert!(mapping.words64(4, 1).is_err());
        assert!(mapping.words64(8, usize::MAX / 4).is_err());
        assert!(mapping.words32(usize::MAX - 3, 1).is_err());
    }

    #[test]
    fn lengths_that_cannot_be_rounded_are_refused() {
        assert_eq!(
            Mapping::heap(0).err(),
            Some(MapError::Length { len_bytes: 0 })
        );
        assert!(matches!(
            Mapping::heap(usize::MAX),
            Err(MapError::Length { .. })
        ));
    }

    #[cfg(not(miri))]
    #[test]
    fn an_anonymous_map_is_sparse_and_zero() {
        let mapping = Mapping::anonymous(1 << 36).unwrap();
        let last = mapping.words64((1 << 36) - 8, 1).unwrap();
        assert_eq!(last[0].fetch_add(3, Relaxed), 0);
        assert_eq!(last[0].load(Relaxed), 3);
    }

    #[cfg(not(miri))]
    #[test]
    fn two_maps_of_one_file_show_the_same_words() {
        use std::os::fd::AsFd;
        let name = c"hugepool-mapping-test";
        let file =
            nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&file, 8192).unwrap();
        let one = Mapping::of_fd(file.as_fd(), 8192).unwrap();
        let other = Mapping::of_fd(file.as_fd(), 8192).unwrap();
        one.words32(4096, 1).unwrap()[0].store(9, Relaxed);
        assert_eq!(other.words32(4096, 1).unwrap()[0].load(Relaxed), 9);
    }
}
