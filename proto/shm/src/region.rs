//! The files that processes share: a zone's pages, a client's control segment.
//!
//! Each is a memfd, sparse, and sealed against shrinking, growing and further seals before anybody
//! else sees it, so that no peer can make this process fault by cutting the file. A zone's file is
//! as long as its reserve and holds pages only where a section was populated
//! ([`storage`](crate::storage)); it is not sealed against writing, since that would stop the
//! daemon's own hole-punching.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};

use crate::mapping::{MapError, Mapping};

/// `MFD_NOEXEC_SEAL`, since Linux 6.3: the file can never be made executable.
const NOEXEC_SEAL: u32 = 0x8;

/// The seals without which a file is not shared.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// What pages a file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilePages {
    /// Ordinary shared memory: 4 KiB pages, or transparent huge pages where advised.
    Shmem,
    /// Pages of 2 MiB from the reserved pool.
    Huge2M,
    /// Pages of 1 GiB from the reserved pool.
    Huge1G,
}

impl FilePages {
    /// The grain of allocation, in bytes.
    pub fn page_bytes(self) -> u64 {
        match self {
            FilePages::Shmem => 4 << 10,
            FilePages::Huge2M => 2 << 20,
            FilePages::Huge1G => 1 << 30,
        }
    }

    /// Alignment that a map of it needs in order to use large page-table entries, in bytes.
    pub fn map_align_bytes(self) -> usize {
        match self {
            FilePages::Shmem | FilePages::Huge2M => 2 << 20,
            FilePages::Huge1G => 1 << 30,
        }
    }
}

impl std::fmt::Display for FilePages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FilePages::Shmem => "shared memory",
            FilePages::Huge2M => "2MiB huge pages",
            FilePages::Huge1G => "1GiB huge pages",
        })
    }
}

/// Why there is no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The kernel has no such huge pages.
    #[error("this system has no {pages}")]
    NoSuchPages {
        /// The pages asked for.
        pages: FilePages,
    },
    /// The length is zero, too large, or no multiple of the page.
    #[error("a file of {len_bytes} bytes cannot be made of {pages}")]
    Length {
        /// The length asked for.
        len_bytes: u64,
        /// The pages asked for.
        pages: FilePages,
    },
    /// A file from elsewhere that a peer could still cut or grow.
    #[error("the file is not sealed against shrinking and growing")]
    NotSealed,
    /// A file from elsewhere that is no memory file this process can write.
    #[error("the descriptor is not a shared-memory file open for reading and writing")]
    NotShared,
    /// The system's no.
    #[error("cannot {step} a shared file of {len_bytes} bytes")]
    System {
        /// What was being done.
        step: &'static str,
        /// The length asked for.
        len_bytes: u64,
        /// The answer.
        #[source]
        errno: Errno,
    },
}

/// A sealed, shared file.
///
/// # Invariants
/// The file is `len_bytes` long for ever: it is sealed against shrinking and growing.
#[derive(Debug)]
pub struct Region {
    fd: OwnedFd,
    len_bytes: u64,
    pages: FilePages,
}

impl Region {
    /// Makes the file of a zone: `len_bytes` of reserve, and no page in it yet. `zone` is for
    /// people who read `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn for_zone(zone: &str, len_bytes: u64, pages: FilePages) -> Result<Region, RegionError> {
        Region::create(&format!("hugepool-zone-{zone}"), len_bytes, pages)
    }

    /// Makes a client's control segment: `len_bytes` rounded up to whole pages, all zero. `pid` is
    /// the client's, for people who read `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn for_client(pid: u32, len_bytes: u64) -> Result<Region, RegionError> {
        Region::small(&format!("hugepool-client-{pid}"), len_bytes)
    }

    /// Makes a client's outbox: `len_bytes` rounded up to whole pages, all zero. Whoever is passed
    /// [`Region::read_only`] of it cannot open it anew for writing, unless it runs as the daemon's
    /// own user or as root.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn for_outbox(pid: u32, len_bytes: u64) -> Result<Region, RegionError> {
        let region = Region::small(&format!("hugepool-outbox-{pid}"), len_bytes)?;
        fchmod(&region.fd, Mode::S_IRUSR).map_err(|errno| RegionError::System {
            step: "set the mode of",
            len_bytes,
            errno,
        })?;
        Ok(region)
    }

    /// Makes the memory of transit words of a zone, or of a channel: `len_bytes` rounded up to
    /// whole pages, all zero, written by all who are passed it.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn for_peers(what: &str, len_bytes: u64) -> Result<Region, RegionError> {
        Region::small(&format!("hugepool-{what}"), len_bytes)
    }

    fn small(name: &str, len_bytes: u64) -> Result<Region, RegionError> {
        let pages = FilePages::Shmem;
        let rounded = len_bytes.checked_next_multiple_of(pages.page_bytes());
        let rounded = rounded.ok_or(RegionError::Length { len_bytes, pages })?;
        Region::create(name, rounded, pages)
    }

    /// A descriptor of the same file that can be read only.
    ///
    /// # Errors
    /// What opening it anew answers.
    pub fn read_only(&self) -> Result<OwnedFd, RegionError> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        nix::fcntl::open(path.as_str(), flags, Mode::empty()).map_err(|errno| RegionError::System {
            step: "open anew",
            len_bytes: self.len_bytes,
            errno,
        })
    }

    /// Checks a file that is to be read only: at least `len_bytes` for ever.
    ///
    /// # Errors
    /// [`RegionError`] unless it is a memory file, sealed and long enough.
    pub fn check_read_only(fd: &OwnedFd, len_bytes: u64) -> Result<(), RegionError> {
        let (pages, found) = sealed(fd)?;
        if found < len_bytes {
            return Err(RegionError::Length {
                len_bytes: found,
                pages,
            });
        }
        Ok(())
    }

    /// Makes the file of the daemon's own state: `len_bytes` rounded up to whole pages, all zero.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn for_state(len_bytes: u64) -> Result<Region, RegionError> {
        let pages = FilePages::Shmem;
        let rounded = len_bytes.checked_next_multiple_of(pages.page_bytes());
        let rounded = rounded.ok_or(RegionError::Length { len_bytes, pages })?;
        Region::create("hugepool-state", rounded, pages)
    }

    fn create(name: &str, len_bytes: u64, pages: FilePages) -> Result<Region, RegionError> {
        let length = libc::off_t::try_from(len_bytes);
        let is_whole = len_bytes > 0 && len_bytes.is_multiple_of(pages.page_bytes());
        let Some(length) = length.ok().filter(|_| is_whole) else {
            return Err(RegionError::Length { len_bytes, pages });
        };
        let system = |step| {
            move |errno| RegionError::System {
                step,
                len_bytes,
                errno,
            }
        };
        let fd = create_file(name, pages).map_err(|errno| match (errno, pages) {
            (_, FilePages::Shmem) => system("create")(errno),
            (Errno::EINVAL | Errno::ENODEV | Errno::ENOENT | Errno::ENOSYS, pages) => {
                RegionError::NoSuchPages { pages }
            }
            _ => system("create")(errno),
        })?;
        // A memfd is born 0777: anybody who is passed a read-only descriptor could open it anew
        // for writing.
        fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR).map_err(system("set the mode of"))?;
        nix::unistd::ftruncate(&fd, length).map_err(system("size"))?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)).map_err(system("seal"))?;
        Ok(Region {
            fd,
            len_bytes,
            pages,
        })
    }

    /// Takes over a file that came over a socket or out of a descriptor store.
    ///
    /// # Errors
    /// [`RegionError`] unless it is a memory file, open for reading and writing, and sealed.
    pub fn adopt(fd: OwnedFd) -> Result<Region, RegionError> {
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(|_| RegionError::NotShared)?;
        if OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE != OFlag::O_RDWR {
            return Err(RegionError::NotShared);
        }
        let (pages, len_bytes) = sealed(&fd)?;
        fcntl(&fd, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).map_err(|errno| {
            RegionError::System {
                step: "take over",
                len_bytes,
                errno,
            }
        })?;
        Ok(Region {
            fd,
            len_bytes,
            pages,
        })
    }

    /// Length of the file, in bytes; never changes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// What pages it is made of.
    pub fn pages(&self) -> FilePages {
        self.pages
    }

    /// Bytes that really are allocated in it.
    ///
    /// # Errors
    /// What `fstat` answers.
    pub fn allocated_bytes(&self) -> Result<u64, Errno> {
        let stat = fstat(&self.fd)?;
        // The unit of st_blocks is 512 bytes, whatever the page.
        Ok(u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512))
    }

    /// Maps the whole file. For control segments only: pages of zones are never reached by
    /// references into a [`Mapping`].
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(&self) -> Result<Mapping, MapError> {
        let len_bytes = usize::try_from(self.len_bytes).map_err(|_| MapError::Length {
            len_bytes: usize::MAX,
        })?;
        Mapping::of_fd(self.fd.as_fd(), len_bytes)
    }

    /// The same file once more.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn duplicate(&self) -> Result<Region, Errno> {
        let fd = self.fd.try_clone();
        let fd = fd.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
        Ok(Region { fd, ..*self })
    }

    /// The descriptor itself, to be put into a store.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What pages a memory file is made of and how long it is, if it cannot be cut or grown.
fn sealed(fd: &OwnedFd) -> Result<(FilePages, u64), RegionError> {
    let stat = fstat(fd).map_err(|_| RegionError::NotShared)?;
    let system = fstatfs(fd).map_err(|_| RegionError::NotShared)?;
    let page_bytes = u64::try_from(system.block_size()).unwrap_or(0);
    let pages = pages_of(system.filesystem_type(), page_bytes).ok_or(RegionError::NotShared)?;
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|_| RegionError::NotSealed)?;
    let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    if !SealFlag::from_bits_retain(seals).contains(needed) {
        return Err(RegionError::NotSealed);
    }
    let len_bytes = length_of(&stat);
    if len_bytes == 0 || !len_bytes.is_multiple_of(pages.page_bytes()) {
        return Err(RegionError::Length { len_bytes, pages });
    }
    Ok((pages, len_bytes))
}

fn create_file(name: &str, pages: FilePages) -> Result<OwnedFd, Errno> {
    let kind = match pages {
        FilePages::Shmem => MFdFlags::empty(),
        FilePages::Huge2M => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
        FilePages::Huge1G => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB,
    };
    let flags = kind | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // A name has at most 249 bytes; it is for people, so the rest is cut.
    let name: Vec<u8> = name.bytes().filter(|byte| *byte != 0).take(200).collect();
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    let no_exec = MFdFlags::from_bits_retain(NOEXEC_SEAL);
    match memfd_create(name.as_c_str(), flags | no_exec) {
        // A kernel before 6.3.
        Err(Errno::EINVAL) => memfd_create(name.as_c_str(), flags),
        other => other,
    }
}

fn pages_of(system: FsType, page_bytes: u64) -> Option<FilePages> {
    match system {
        TMPFS_MAGIC => Some(FilePages::Shmem),
        HUGETLBFS_MAGIC => [FilePages::Huge2M, FilePages::Huge1G]
            .into_iter()
            .find(|pages| pages.page_bytes() == page_bytes),
        _ => None,
    }
}

fn length_of(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_zone_of_a_tebibyte_costs_nothing_and_cannot_be_resized() {
        let region = Region::for_zone("normal", 1 << 40, FilePages::Shmem).unwrap();
        assert_eq!(region.allocated_bytes(), Ok(0));
        assert_eq!(nix::unistd::ftruncate(&region, 4096), Err(Errno::EPERM));
        assert_eq!(nix::unistd::ftruncate(&region, 1 << 41), Err(Errno::EPERM));
        let more = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
        assert_eq!(fcntl(&region, more), Err(Errno::EPERM));
        let stat = fstat(&region).unwrap();
        assert_eq!(stat.st_mode & 0o777, 0o600);
        let flags = fcntl(&region, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags, nix::fcntl::FdFlag::FD_CLOEXEC.bits());
    }

    #[test]
    fn a_control_segment_is_shared_by_those_who_map_it() {
        let region = Region::for_client(39, 5000).unwrap();
        assert_eq!(region.len_bytes(), 8192);
        let ours = region.map().unwrap();
        let copy = region.as_fd().try_clone_to_owned().unwrap();
        let theirs = Region::adopt(copy).unwrap().map().unwrap();
        ours.words64(8184, 1).unwrap()[0].store(42, Relaxed);
        assert_eq!(theirs.words64(8184, 1).unwrap()[0].load(Relaxed), 42);
    }

    #[test]
    fn lengths_that_make_no_whole_pages_are_refused() {
        for (len_bytes, pages) in [
            (0, FilePages::Shmem),
            (4097, FilePages::Shmem),
            (1 << 20, FilePages::Huge2M),
            (512 << 20, FilePages::Huge1G),
            (1 << 63, FilePages::Shmem),
        ] {
            let found = Region::for_zone("z", len_bytes, pages).unwrap_err();
            assert_eq!(found, RegionError::Length { len_bytes, pages });
        }
        assert!(Region::for_client(0, u64::MAX).is_err());
    }

    #[test]
    fn what_could_be_cut_or_not_written_is_not_adopted() {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let open = memfd_create(c"open", flags).unwrap();
        nix::unistd::ftruncate(&open, 4096).unwrap();
        assert_eq!(Region::adopt(open).unwrap_err(), RegionError::NotSealed);

        let file = std::fs::File::open("/dev/null").unwrap();
        let found = Region::adopt(file.into()).unwrap_err();
        assert_eq!(found, RegionError::NotShared);

        let region = Region::for_client(0, 4096).unwrap();
        let path = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&region.fd)
        );
        let read_only = std::fs::File::open(path).unwrap();
        let found = Region::adopt(read_only.into()).unwrap_err();
        assert_eq!(found, RegionError::NotShared);
    }

    #[test]
    fn a_name_with_anything_in_it_is_no_obstacle() {
        let name = "é\0".repeat(300);
        assert!(Region::for_zone(&name, 4096, FilePages::Shmem).is_ok());
    }
}
