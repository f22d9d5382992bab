//! The daemon's hand in a zone: zeroing and copying by system calls that can fail.
//!
//! A client may punch a page out from under the daemon at any time, and with the pool empty the
//! next load or store there ends the process with SIGBUS. So no byte of a zone is ever loaded or
//! stored by the daemon's own instructions: the kernel reads from `/dev/zero`, or from the zone's
//! file, into the daemon's map, and where it cannot it answers EFAULT. (Writing to the file would
//! not do: files of huge pages cannot be written.)

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;

use crate::region::Region;
use crate::span::{Access, Span};

/// The most that one system call is asked to move, so that none takes long: 4 MiB.
const CALL_BYTES: u64 = 4 << 20;

/// Why bytes of a zone were not written. Those before `offset` were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageIoError {
    /// The range does not lie in the zone.
    #[error("{len_bytes} bytes at {offset:#x} do not lie in a zone of {zone_bytes} bytes")]
    OutOfBounds {
        /// First byte, in the zone's file.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// Bytes of the zone.
        zone_bytes: u64,
    },
    /// There is no memory under the page any more, and none to be had.
    #[error("no memory under byte {offset:#x} of the zone")]
    Fault {
        /// The first byte that could not be written, in the zone's file.
        offset: u64,
    },
    /// The system's no.
    #[error("cannot write byte {offset:#x} of the zone")]
    System {
        /// The first byte that could not be written, in the zone's file.
        offset: u64,
        /// The answer.
        #[source]
        errno: Errno,
    },
}

/// A zone's bytes, to be written by the kernel on the daemon's behalf.
#[derive(Debug)]
pub struct PageIo {
    span: Span,
    file: File,
    zeros: File,
}

impl PageIo {
    /// Maps the whole zone; takes no memory.
    ///
    /// # Errors
    /// What the system answers: no addresses, no descriptor, no `/dev/zero`.
    pub fn new(region: &Region) -> Result<PageIo, Errno> {
        let len = usize::try_from(region.len_bytes()).map_err(|_| Errno::EFBIG)?;
        let span = Span::reserve(len, region.pages().map_align_bytes())?;
        span.map(0, len, region.as_fd(), 0, Access::ReadWrite)?;
        let io = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
        let file = region.as_fd().try_clone_to_owned().map_err(io)?;
        let zeros = File::open("/dev/zero").map_err(io)?;
        Ok(PageIo {
            span,
            file: file.into(),
            zeros,
        })
    }

    /// Makes `len_bytes` of the zone from `offset` on zero.
    ///
    /// # Errors
    /// [`PageIoError`]; only a part is zero then.
    pub fn zero(&self, offset: u64, len_bytes: u64) -> Result<(), PageIoError> {
        self.check(offset, len_bytes)?;
        // Every offset of /dev/zero reads as zero.
        self.fill(offset, len_bytes, self.zeros.as_fd(), 0)
    }

    /// Copies `len_bytes` of the zone from `from` to `to`. The two do not overlap.
    ///
    /// # Errors
    /// [`PageIoError`]; only a part is copied then.
    pub fn copy(&self, from: u64, to: u64, len_bytes: u64) -> Result<(), PageIoError> {
        self.check(from, len_bytes)?;
        self.check(to, len_bytes)?;
        self.fill(to, len_bytes, self.file.as_fd(), from)
    }

    /// Copies `len_bytes` from `from` in another zone to `to` in this one.
    ///
    /// # Errors
    /// [`PageIoError`]; only a part is copied then.
    pub fn copy_from(
        &self,
        source: &PageIo,
        from: u64,
        to: u64,
        len_bytes: u64,
    ) -> Result<(), PageIoError> {
        source.check(from, len_bytes)?;
        self.check(to, len_bytes)?;
        self.fill(to, len_bytes, source.file.as_fd(), from)
    }

    /// Lets the kernel read `source` from `source_offset` on into the map of the zone.
    fn fill(
        &self,
        offset: u64,
        len_bytes: u64,
        source: BorrowedFd<'_>,
        source_offset: u64,
    ) -> Result<(), PageIoError> {
        let mut done = 0;
        while done < len_bytes {
            let want = CALL_BYTES.min(len_bytes - done);
            let here = offset + done;
            match self.read_into(here, want, source, source_offset + done) {
                Ok(0) => return Err(PageIoError::Fault { offset: here }),
                Ok(got) => done += got.min(want),
                Err(Errno::EINTR) => {}
                Err(Errno::EFAULT) => return Err(PageIoError::Fault { offset: here }),
                Err(errno) => {
                    return Err(PageIoError::System {
                        offset: here,
                        errno,
                    });
                }
            }
        }
        Ok(())
    }

    /// One `pread` of at most `len` bytes to byte `offset` of the zone, which `check` has passed.
    fn read_into(
        &self,
        offset: u64,
        len: u64,
        source: BorrowedFd<'_>,
        source_offset: u64,
    ) -> Result<u64, Errno> {
        let place = usize::try_from(offset).map_err(|_| Errno::EFAULT)?;
        let len = usize::try_from(len).map_err(|_| Errno::EFAULT)?;
        let source_offset = libc::off_t::try_from(source_offset).map_err(|_| Errno::EINVAL)?;
        if place
            .checked_add(len)
            .is_none_or(|end| end > self.span.len_bytes())
        {
            return Err(Errno::EFAULT);
        }
        let address = self.span.base_address().wrapping_add(place);
        let target = std::ptr::without_provenance_mut::<libc::c_void>(address);
        // SAFETY:
        // 1. The bytes written lie in the span's own map, checked just above: memory of the zone,
        //    to which this process holds no reference, so no Rust object changes.
        // 2. Where there is no memory under the map the kernel answers EFAULT or a short count.
        // 3. Both descriptors are open for the call, because they are borrowed.
        let answer = unsafe { libc::pread(source.as_raw_fd(), target, len, source_offset) };
        Errno::result(answer).map(|got| u64::try_from(got).unwrap_or(0))
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<(), PageIoError> {
        let zone_bytes = u64::try_from(self.span.len_bytes()).unwrap_or(u64::MAX);
        let end = offset.checked_add(len_bytes);
        if end.is_none_or(|end| end > zone_bytes) {
            return Err(PageIoError::OutOfBounds {
                offset,
                len_bytes,
                zone_bytes,
            });
        }
        Ok(())
    }
}
