//! The daemon's counters in a named segment, to be read also when the daemon does not answer.
//!
//! One segment a run-time directory, made by `shared_memory`, named by a hash of the directory's
//! path. It is for the daemon's own user and root, holds no page data, stays behind after a crash
//! (so that it can be looked at) and is removed by a clean end or by the next daemon. Its blocks
//! are really allocated before the first store: on a full `/dev/shm` a store would end the process.
//! The segment itself is the affair of `stats_segment`.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH}; // tidy: clock: stamps for people

use core::sync::atomic::Ordering::{Relaxed, Release};
use nix::errno::Errno;

use crate::seqlock;
pub use crate::stats_segment::segment_name;
use crate::stats_segment::{MAGIC, SEGMENT_FOLDER, Segment, pack, remove_segment, unpack};

/// Version of the segment's layout.
pub const STATS_VERSION: u32 = 1;

/// Counters that a segment may have.
pub const MAX_COUNTERS: usize = 1024;

/// Bytes of the longest name of a counter.
pub const MAX_COUNTER_NAME_BYTES: usize = 56;

/// How often a reader looks again while the daemon writes; a write takes microseconds.
const READ_TRIES: u32 = 1000;

/// Why there is no segment to write or to read.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// A name that is empty, too long, or not printable ASCII.
    #[error("counter name {name:?} is not 1 to {MAX_COUNTER_NAME_BYTES} printable bytes")]
    Name {
        /// The name.
        name: String,
    },
    /// More counters than a segment has room for.
    #[error("{nr_counters} counters, where {MAX_COUNTERS} are allowed")]
    TooMany {
        /// Counters asked for.
        nr_counters: usize,
    },
    /// `/dev/shm` is full.
    #[error("{SEGMENT_FOLDER} has no room for {len_bytes} bytes of statistics")]
    NoRoom {
        /// Bytes that were to be allocated.
        len_bytes: usize,
        /// The answer.
        #[source]
        errno: Errno,
    },
    /// Somebody else's segment has the name, and this user may not remove it.
    #[error("segment {name} belongs to uid {uid}")]
    Foreign {
        /// The segment's name.
        name: String,
        /// Who owns it.
        uid: u32,
    },
    /// No daemon of this run-time directory has left a segment.
    #[error("no statistics of a daemon in {}", runtime_dir.display())]
    NotFound {
        /// The run-time directory.
        runtime_dir: PathBuf,
    },
    /// The segment was written by another version.
    #[error("the statistics have layout version {theirs}, this program reads {STATS_VERSION}")]
    Version {
        /// The segment's version.
        theirs: u32,
    },
    /// The segment was never finished, or is something else.
    #[error("segment {name} holds no statistics")]
    NotStats {
        /// The segment's name.
        name: String,
    },
    /// The system's no.
    #[error("cannot {step} the statistics")]
    System {
        /// What was being done.
        step: &'static str,
        /// The answer.
        #[source]
        source: std::io::Error,
    },
}

/// The daemon's end: makes the segment and writes the counters. Dropping it removes the segment.
pub struct StatsWriter {
    segment: Segment,
    sequence: u64,
}

impl StatsWriter {
    /// Makes the segment of `runtime_dir` with a counter for each of `names`, all zero. The caller
    /// holds the directory's lock: whatever a segment of that name was, its daemon is gone.
    ///
    /// # Errors
    /// [`StatsError`]; the daemon can do without.
    pub fn create(runtime_dir: &Path, names: &[&str]) -> Result<StatsWriter, StatsError> {
        let nr_counters = u32::try_from(names.len()).ok();
        let Some(nr_counters) = nr_counters.filter(|_| names.len() <= MAX_COUNTERS) else {
            return Err(StatsError::TooMany {
                nr_counters: names.len(),
            });
        };
        let packed: Vec<_> = names
            .iter()
            .map(|name| pack(name))
            .collect::<Result<_, _>>()?;
        let segment = Segment::create(&segment_name(runtime_dir), names.len())?;
        for (row, name) in segment.rows().iter().zip(packed) {
            for (word, bytes) in row.name.iter().zip(name) {
                word.store(bytes, Relaxed);
            }
        }
        let head = segment.head();
        head.version.store(STATS_VERSION, Relaxed);
        head.nr_counters.store(nr_counters, Relaxed);
        head.pid.store(u64::from(std::process::id()), Relaxed);
        head.started_ms.store(now_ms(), Relaxed);
        // SYNC(stats.magic): pairs with the Acquire in `StatsReader::open`; who sees the magic sees
        // names and numbers.
        head.magic.store(MAGIC, Release);
        Ok(StatsWriter {
            segment,
            sequence: 0,
        })
    }

    /// Writes all counters as one change, in the order of the names; ones without a value stay.
    pub fn publish(&mut self, values: &[u64]) {
        let head = self.segment.head();
        let rows = self.segment.rows().iter().map(|row| &row.value);
        let stores = rows.zip(values.iter().copied());
        let time = (&head.updated_ms, now_ms());
        seqlock::publish(&head.sequence, &mut self.sequence, stores.chain([time]));
    }
}

/// Removes what a daemon of `runtime_dir` has left behind; `false` if there is nothing. For whoever
/// ends a daemon the hard way, or takes its directory away for good: nobody else would come by.
///
/// # Errors
/// [`StatsError::Foreign`] or [`StatsError::System`].
pub fn remove_left_over(runtime_dir: &Path) -> Result<bool, StatsError> {
    remove_segment(&segment_name(runtime_dir))
}

/// A tool's end: reads the counters of a daemon that may be gone.
pub struct StatsReader {
    segment: Segment,
}

/// The counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Pid of the daemon that wrote them; whether it still runs is another question.
    pub pid: u64,
    /// When it started, in milliseconds since 1970.
    pub started_ms: u64,
    /// When it last wrote, in milliseconds since 1970; 0 if never.
    pub updated_ms: u64,
    /// The daemon died while it wrote: the counters are of more than one moment.
    pub is_torn: bool,
    /// Names and values, in the daemon's order.
    pub counters: Vec<(String, u64)>,
}

impl StatsReader {
    /// Opens the segment that a daemon of `runtime_dir` has made.
    ///
    /// # Errors
    /// [`StatsError`]; a segment that belongs to neither this user, root, nor the owner of the
    /// directory is refused.
    pub fn open(runtime_dir: &Path) -> Result<StatsReader, StatsError> {
        let segment = Segment::open(runtime_dir)?;
        Ok(StatsReader { segment })
    }

    /// Reads all counters.
    pub fn snapshot(&self) -> StatsSnapshot {
        let head = self.segment.head();
        let rows = self.segment.rows();
        let mut values = Vec::with_capacity(rows.len() + 1);
        let is_whole = (0..READ_TRIES).any(|attempt| {
            if attempt > 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
            let words = rows.iter().map(|row| &row.value).chain([&head.updated_ms]);
            seqlock::snapshot(&head.sequence, words, &mut values)
        });
        let updated_ms = values.pop().unwrap_or(0);
        let names = rows.iter().map(|row| {
            let words = row.name.each_ref().map(|word| word.load(Relaxed));
            unpack(words)
        });
        StatsSnapshot {
            pid: head.pid.load(Relaxed),
            started_ms: head.started_ms.load(Relaxed),
            updated_ms,
            is_torn: !is_whole,
            counters: names.zip(values).collect(),
        }
    }
}

fn now_ms() -> u64 {
    // tidy: clock: a stamp for people, compared with nothing that is waited for
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
