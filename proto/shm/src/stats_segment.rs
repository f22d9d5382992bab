//! The named segment that the statistics lie in: its shape, its name, its making.
//!
//! Made by `shared_memory`, which sets a length and no more: the blocks are allocated here, before
//! anybody stores. What the counters mean and how they are read whole is the affair of
//! [`stats`](crate::stats).
//!
//! Shape: a head of 64 bytes, then rows of 64 bytes, a name and a value each.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};
use nix::errno::Errno;
use shared_memory::{Shmem, ShmemConf, ShmemError};

use crate::stats::{MAX_COUNTER_NAME_BYTES, MAX_COUNTERS, STATS_VERSION, StatsError};

/// "hugestat" as bytes; stored last, so that what has it is complete.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"hugestat");

/// The folder in which the C library keeps named segments.
pub(crate) const SEGMENT_FOLDER: &str = "/dev/shm";

/// The head of the segment.
#[repr(C)]
pub(crate) struct Head {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) nr_counters: AtomicU32,
    /// Odd while the rows and the times are being written.
    pub(crate) sequence: AtomicU64,
    pub(crate) pid: AtomicU64,
    pub(crate) started_ms: AtomicU64,
    pub(crate) updated_ms: AtomicU64,
    reserved: [AtomicU64; 2],
}

/// One counter.
#[repr(C)]
pub(crate) struct Row {
    /// The name's bytes, filled up with zeros.
    pub(crate) name: [AtomicU64; 7],
    pub(crate) value: AtomicU64,
}

/// Bytes of a [`Row`].
const ROW_BYTES: usize = size_of::<Row>();
/// Bytes of a [`Head`].
const HEAD_BYTES: usize = size_of::<Head>();
const NAME_WORDS: usize = MAX_COUNTER_NAME_BYTES / 8;

const _: () = {
    use std::mem::offset_of;
    assert!(HEAD_BYTES == 64 && ROW_BYTES == 64);
    assert!(offset_of!(Head, version) == 8);
    assert!(offset_of!(Head, nr_counters) == 12);
    assert!(offset_of!(Head, sequence) == 16);
    assert!(offset_of!(Head, pid) == 24);
    assert!(offset_of!(Head, started_ms) == 32);
    assert!(offset_of!(Head, updated_ms) == 40);
    assert!(offset_of!(Row, value) == 56);
    assert!(align_of::<Head>() == 8 && align_of::<Row>() == 8);
};

/// The name of a run-time directory's segment, the same in every process.
pub fn segment_name(runtime_dir: &Path) -> String {
    // FNV-1a, which needs no key and never changes.
    let hash = settled(runtime_dir)
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("/hugepool-stats-{hash:016x}")
}

/// The path without links, as far as it exists: `/var/run/x` and `/run/x` are one directory, also
/// after it has been removed.
fn settled(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    }
}

/// A mapped segment, its length checked against its head.
///
/// # Invariants
/// `shmem` maps at least `HEAD_BYTES + nr_rows * ROW_BYTES` bytes, readable and writable until
/// drop, all of them backed by blocks; the only references to them are to atomics.
pub(crate) struct Segment {
    shmem: Shmem,
    nr_rows: usize,
}

// SAFETY: what `Shmem` holds (an address, a descriptor, a name) belongs to no thread, and a
// `Segment` reaches the bytes by atomics only.
unsafe impl Send for Segment {}

impl Segment {
    /// Makes a segment of zeros with room for `nr_rows` counters, in place of one that was left
    /// behind.
    pub(crate) fn create(name: &str, nr_rows: usize) -> Result<Segment, StatsError> {
        let len_bytes = HEAD_BYTES + nr_rows.min(MAX_COUNTERS) * ROW_BYTES;
        let shmem = create_anew(name, len_bytes)?;
        allocate_blocks(name, len_bytes)?;
        Ok(Segment { shmem, nr_rows })
    }

    /// Opens the finished segment of a daemon of `runtime_dir`.
    pub(crate) fn open(runtime_dir: &Path) -> Result<Segment, StatsError> {
        let name = segment_name(runtime_dir);
        let not_found = || StatsError::NotFound {
            runtime_dir: runtime_dir.to_owned(),
        };
        let file = std::fs::symlink_metadata(segment_path(&name)).map_err(|_| not_found())?;
        let owner = std::fs::metadata(runtime_dir).map(|dir| dir.uid()).ok();
        let trusted = [Some(nix::unistd::geteuid().as_raw()), Some(0), owner];
        if !trusted.contains(&Some(file.uid())) {
            let uid = file.uid();
            return Err(StatsError::Foreign { name, uid });
        }
        let opened = ShmemConf::new().os_id(&name).open();
        let shmem = opened.map_err(|error| match errno_of(&error) {
            Errno::ENOENT => not_found(),
            errno => StatsError::System {
                step: "open",
                source: errno.into(),
            },
        })?;
        // Blocks that were never allocated could not be read on a full /dev/shm.
        let is_whole = file.blocks().saturating_mul(512) >= file.len();
        if shmem.len() < HEAD_BYTES || !is_whole {
            return Err(StatsError::NotStats { name });
        }
        let segment = Segment { shmem, nr_rows: 0 };
        let nr_rows = segment.checked_rows(name)?;
        Ok(Segment { nr_rows, ..segment })
    }

    /// How many rows the head claims, if it is a head and they lie in the map.
    fn checked_rows(&self, name: String) -> Result<usize, StatsError> {
        let head = self.head();
        // SYNC(stats.magic): pairs with the Release in `StatsWriter::create`.
        if head.magic.load(Acquire) != MAGIC {
            return Err(StatsError::NotStats { name });
        }
        let theirs = head.version.load(Relaxed);
        if theirs != STATS_VERSION {
            return Err(StatsError::Version { theirs });
        }
        let nr_rows = usize::try_from(head.nr_counters.load(Relaxed)).unwrap_or(usize::MAX);
        let room = (self.shmem.len() - HEAD_BYTES) / ROW_BYTES;
        if nr_rows > room.min(MAX_COUNTERS) {
            return Err(StatsError::NotStats { name });
        }
        Ok(nr_rows)
    }

    pub(crate) fn head(&self) -> &Head {
        // SAFETY:
        // 1. By the invariant `HEAD_BYTES` are mapped, at the start of a page, so aligned for it.
        // 2. `Head` is atomics all through, so any bytes are one, also while others write.
        // 3. The map lives as long as `self`, which the reference borrows.
        unsafe { &*self.shmem.as_ptr().cast::<Head>() }
    }

    pub(crate) fn rows(&self) -> &[Row] {
        // SAFETY: by the invariant the map is longer than a head.
        let first = unsafe { self.shmem.as_ptr().add(HEAD_BYTES) };
        // SAFETY: by the invariant `nr_rows` rows follow the head; 64 bytes in, they are aligned
        // to 8; `Row` is atomics all through; and the map lives as long as `self`.
        unsafe { std::slice::from_raw_parts(first.cast::<Row>(), self.nr_rows) }
    }
}

/// Makes the segment, in place of one that was left behind.
fn create_anew(name: &str, len_bytes: usize) -> Result<Shmem, StatsError> {
    let create = || ShmemConf::new().os_id(name).size(len_bytes).create();
    let made = match create() {
        Err(ShmemError::MappingIdExists) => {
            remove_segment(name)?;
            create()
        }
        other => other,
    };
    made.map_err(|error| StatsError::System {
        step: "make the segment of",
        source: errno_of(&error).into(),
    })
}

/// Takes a segment's name away; `false` if there is none. Maps of it stay.
pub(crate) fn remove_segment(name: &str) -> Result<bool, StatsError> {
    match nix::sys::mman::shm_unlink(name) {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(not_ours(name, errno)),
    }
}

fn not_ours(name: &str, errno: Errno) -> StatsError {
    match std::fs::symlink_metadata(segment_path(name)) {
        Ok(file) => StatsError::Foreign {
            name: name.to_owned(),
            uid: file.uid(),
        },
        Err(_) => StatsError::System {
            step: "remove the left-over segment of",
            source: errno.into(),
        },
    }
}

/// Takes real blocks for the whole segment. `shared_memory` only sets the length.
fn allocate_blocks(name: &str, len_bytes: usize) -> Result<(), StatsError> {
    let file = std::fs::File::options()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(segment_path(name))
        .map_err(|source| StatsError::System {
            step: "open the segment of",
            source,
        })?;
    let length = libc::off_t::try_from(len_bytes).unwrap_or(libc::off_t::MAX);
    loop {
        match nix::fcntl::posix_fallocate(&file, 0, length) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(StatsError::NoRoom { len_bytes, errno }),
        }
    }
}

fn segment_path(name: &str) -> PathBuf {
    Path::new(SEGMENT_FOLDER).join(name.trim_start_matches('/'))
}

/// The system's answer in an error of `shared_memory`, which keeps it as a plain number.
fn errno_of(error: &ShmemError) -> Errno {
    match error {
        ShmemError::MapCreateFailed(code)
        | ShmemError::MapOpenFailed(code)
        | ShmemError::UnknownOsError(code) => {
            Errno::from_raw(i32::try_from(*code).unwrap_or(libc::EIO))
        }
        ShmemError::MappingIdExists => Errno::EEXIST,
        _ => Errno::EIO,
    }
}

pub(crate) fn pack(name: &str) -> Result<[u64; NAME_WORDS], StatsError> {
    let is_printable = name.bytes().all(|byte| byte.is_ascii_graphic());
    if name.is_empty() || name.len() > MAX_COUNTER_NAME_BYTES || !is_printable {
        return Err(StatsError::Name {
            name: name.to_owned(),
        });
    }
    let mut bytes = [0; MAX_COUNTER_NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let (words, _) = bytes.as_chunks::<8>();
    let mut packed = [0; NAME_WORDS];
    for (word, bytes) in packed.iter_mut().zip(words) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(packed)
}

/// The name in words that anybody of the daemon's user may have written: what cannot be shown is
/// shown as a question mark.
pub(crate) fn unpack(words: [u64; NAME_WORDS]) -> String {
    words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .take_while(|byte| *byte != 0)
        .map(|byte| {
            if byte.is_ascii_graphic() {
                char::from(byte)
            } else {
                '?'
            }
        })
        .collect()
}
