//! The state segment: what outlives the daemon, so that the next one can go on.
//!
//! A file that the daemon alone maps, kept open by whoever outlives it. It has a header, a
//! *snapshot* of what changes slowly, and areas of live words whose meaning is the engine's. The
//! snapshot is bytes; it is written twice, the one that counts is flipped to when it is whole, and
//! it is copied out before it is looked at. One writer; a process that is killed has done all its
//! stores up to an instruction and none after it, so the order of stores is the order in which
//! things survive. What was damaged by somebody else is told by the checksum and by whoever judges
//! the values.
//!
//! Shape, in words of 8 bytes: a page of header (magic, version, number of areas, their lengths;
//! word 64: number of the snapshot that counts; words 65..: when the last daemons began), two
//! halves of snapshot (number, length in bytes, checksum, bytes), the areas, each from a page on.

use crate::sync::{Acquire, Relaxed, Release};
use crate::words::Words;

/// "HPSTATE1" as bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"HPSTATE1");

/// Version of the shape above and of what the areas mean: one that reads another must not guess.
pub const STATE_VERSION: u64 = 2;

/// The longest snapshot, in bytes.
pub const MAX_SNAPSHOT_BYTES: usize = 16 << 20;

/// Words of a page of 4 KiB.
const PAGE: usize = 512;
const MAX_AREAS: usize = 32;
const AREA_LENGTHS: usize = 3;
const CURRENT: usize = 64;
const BEGINNINGS: usize = 65;
/// Starts that are remembered.
pub const NR_BEGINNINGS: usize = 4;
const SNAPSHOT_HEADER: usize = 3;
const HALF: usize = MAX_SNAPSHOT_BYTES / 8 + PAGE;
const AREAS_START: usize = PAGE + 2 * HALF;

/// Why a file is no state that this daemon can go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Cut off, or something else.
    #[error("the state is {there} words long, {needed} are needed")]
    TooShort {
        /// Words in the file.
        there: usize,
        /// Words that its header speaks of.
        needed: usize,
    },
    /// Something else.
    #[error("this is no state segment of hugepool: it begins with {magic:#018x}")]
    NotAState {
        /// What stands in place of the magic.
        magic: u64,
    },
    /// Of another age.
    #[error("the state was written in version {theirs}, this daemon reads version {STATE_VERSION}")]
    Version {
        /// The version in the file.
        theirs: u64,
    },
    /// More areas than there can be, or longer ones.
    #[error("the state speaks of {nr_areas} areas")]
    Areas {
        /// As in the file.
        nr_areas: u64,
    },
    /// The daemon before died before it had written one.
    #[error("the state has no snapshot")]
    NoSnapshot,
    /// Somebody wrote over it.
    #[error("the snapshot in the state is damaged: {what}")]
    Damaged {
        /// What does not agree.
        what: &'static str,
    },
    /// Does not fit.
    #[error("a snapshot of {nr_bytes} bytes does not fit, {MAX_SNAPSHOT_BYTES} do")]
    SnapshotTooLong {
        /// Its length.
        nr_bytes: usize,
    },
}

/// A state segment, as the daemon has it.
#[derive(Clone, Debug)]
pub struct StateSegment {
    words: Words,
    areas: Vec<Words>,
}

impl StateSegment {
    /// Words that a segment with areas of these lengths needs; `None`: no file is as long.
    pub fn nr_words(areas: &[usize]) -> Option<usize> {
        areas.iter().try_fold(AREAS_START, |at, &len| {
            at.checked_add(len.checked_next_multiple_of(PAGE)?)
        })
    }

    /// Makes a segment in zeroed words, with areas of these lengths and no snapshot.
    ///
    /// # Errors
    /// [`StateError::TooShort`], [`StateError::Areas`].
    pub fn create(words: Words, areas: &[usize]) -> Result<StateSegment, StateError> {
        let segment = StateSegment::over(words, areas)?;
        let cells = segment.words.cells();
        cells[2].store(areas.len() as u64, Relaxed);
        for (at, &len) in areas.iter().enumerate() {
            cells[AREA_LENGTHS + at].store(len as u64, Relaxed);
        }
        cells[1].store(STATE_VERSION, Relaxed);
        // SYNC(state.magic): the header is whole once it shows.
        cells[0].store(MAGIC, Release);
        Ok(segment)
    }

    /// Takes over a segment that a daemon before has made.
    ///
    /// # Errors
    /// [`StateError`]: it is not one, or not one that this daemon understands.
    pub fn adopt(words: Words) -> Result<StateSegment, StateError> {
        let there = words.len();
        if there < AREAS_START {
            let needed = AREAS_START;
            return Err(StateError::TooShort { there, needed });
        }
        let word = |at: usize| words.cells()[at].load(Acquire);
        // SYNC(state.magic): pairs with `create`.
        let magic = word(0);
        if magic != MAGIC {
            return Err(StateError::NotAState { magic });
        }
        let theirs = word(1);
        if theirs != STATE_VERSION {
            return Err(StateError::Version { theirs });
        }
        let nr_areas = word(2);
        let too_many = StateError::Areas { nr_areas };
        let count = usize::try_from(nr_areas).ok();
        let count = count.filter(|&nr| nr <= MAX_AREAS).ok_or(too_many)?;
        let lengths = (0..count).map(|at| usize::try_from(word(AREA_LENGTHS + at)));
        let lengths: Vec<usize> = lengths.collect::<Result<_, _>>().map_err(|_| too_many)?;
        StateSegment::over(words, &lengths)
    }

    fn over(words: Words, areas: &[usize]) -> Result<StateSegment, StateError> {
        let too_many = StateError::Areas {
            nr_areas: areas.len() as u64,
        };
        if areas.len() > MAX_AREAS {
            return Err(too_many);
        }
        let needed = StateSegment::nr_words(areas).ok_or(too_many)?;
        let there = words.len();
        if there < needed {
            return Err(StateError::TooShort { there, needed });
        }
        let mut at = AREAS_START;
        let parts = areas.iter().map(|&len| {
            let part = words.part(at, len);
            at += len.next_multiple_of(PAGE);
            part
        });
        let areas = parts.collect();
        Ok(StateSegment { words, areas })
    }

    /// The areas, in order.
    pub fn areas(&self) -> &[Words] {
        &self.areas
    }

    /// Writes a snapshot beside the one that counts, then makes it the one that counts.
    ///
    /// # Errors
    /// [`StateError::SnapshotTooLong`]: the one before still counts.
    pub fn write_snapshot(&self, bytes: &[u8]) -> Result<(), StateError> {
        let nr_bytes = bytes.len();
        if nr_bytes > MAX_SNAPSHOT_BYTES {
            return Err(StateError::SnapshotTooLong { nr_bytes });
        }
        let current = &self.words.cells()[CURRENT];
        let number = current.load(Relaxed).wrapping_add(1).max(1);
        let half = self.half(number);
        let cells = half.cells();
        for (cell, chunk) in cells[SNAPSHOT_HEADER..].iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            cell.store(u64::from_le_bytes(word), Relaxed);
        }
        cells[0].store(number, Relaxed);
        cells[1].store(nr_bytes as u64, Relaxed);
        cells[2].store(checksum(number, bytes), Relaxed);
        crate::step::reached("snapshot.written");
        // SYNC(state.current): the snapshot is whole once it counts.
        current.store(number, Release);
        Ok(())
    }

    /// A copy of the snapshot that counts.
    ///
    /// # Errors
    /// [`StateError::NoSnapshot`], [`StateError::Damaged`].
    pub fn read_snapshot(&self) -> Result<Vec<u8>, StateError> {
        // SYNC(state.current): pairs with `write_snapshot`.
        let number = self.words.cells()[CURRENT].load(Acquire);
        if number == 0 {
            return Err(StateError::NoSnapshot);
        }
        let half = self.half(number);
        let cells = half.cells();
        if cells[0].load(Relaxed) != number {
            return Err(StateError::Damaged { what: "its number" });
        }
        let nr_bytes = usize::try_from(cells[1].load(Relaxed)).unwrap_or(usize::MAX);
        if nr_bytes > MAX_SNAPSHOT_BYTES {
            return Err(StateError::Damaged { what: "its length" });
        }
        let nr_words = nr_bytes.div_ceil(8);
        let words = cells[SNAPSHOT_HEADER..][..nr_words].iter();
        let mut bytes: Vec<u8> = words
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(nr_bytes);
        if cells[2].load(Relaxed) != checksum(number, &bytes) {
            let what = "its checksum";
            return Err(StateError::Damaged { what });
        }
        Ok(bytes)
    }

    /// Notes that a daemon begins to work from this state, at so many milliseconds since boot (not
    /// 0); returns when the last ones before it did, the latest first.
    pub fn note_beginning(&self, now_ms: u64) -> Vec<u64> {
        let cells = &self.words.cells()[BEGINNINGS..][..NR_BEGINNINGS];
        let mut before: Vec<u64> = cells.iter().map(|cell| cell.load(Relaxed)).collect();
        let mut next = now_ms.max(1);
        for cell in cells {
            next = cell.swap(next, Relaxed);
        }
        before.retain(|&at| at != 0);
        before
    }

    /// The daemon that began last has done well: those that died before are forgotten.
    pub fn forget_beginnings(&self) {
        for cell in &self.words.cells()[BEGINNINGS..][..NR_BEGINNINGS] {
            cell.store(0, Relaxed);
        }
    }

    fn half(&self, number: u64) -> Words {
        let at = PAGE + if number.is_multiple_of(2) { 0 } else { HALF };
        self.words.part(at, HALF)
    }
}

/// FNV-1a, 64 bits, over the number and the bytes: tells accidents, keeps nobody out.
fn checksum(number: u64, bytes: &[u8]) -> u64 {
    let number = number.to_le_bytes();
    let all = number.iter().chain(bytes);
    all.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    fn zeros(nr_words: usize) -> Words {
        let mapping = Mapping::anonymous(nr_words * 8).unwrap();
        Words::of_mapping(mapping, nr_words)
    }

    fn segment() -> (StateSegment, Words) {
        let words = zeros(StateSegment::nr_words(&[10, 600, 0]).unwrap());
        let segment = StateSegment::create(words.clone(), &[10, 600, 0]).unwrap();
        (segment, words)
    }

    #[test]
    fn areas_and_snapshot_are_there_again_after_an_adoption() {
        let (segment, words) = segment();
        segment.areas()[1].cells()[599].store(7, Relaxed);
        assert_eq!(segment.read_snapshot(), Err(StateError::NoSnapshot));
        segment.write_snapshot(b"first").unwrap();
        segment.write_snapshot(b"the second one").unwrap();
        let again = StateSegment::adopt(words).unwrap();
        assert_eq!(again.read_snapshot().unwrap(), b"the second one");
        let lengths: Vec<usize> = again.areas().iter().map(Words::len).collect();
        assert_eq!(lengths, [10, 600, 0]);
        assert_eq!(again.areas()[1].cells()[599].load(Relaxed), 7);
    }

    #[test]
    fn a_daemon_killed_while_it_writes_leaves_the_snapshot_before() {
        let (segment, words) = segment();
        segment.write_snapshot(b"whole").unwrap();
        let dies = Box::new(|step| assert_ne!(step, "snapshot.written"));
        let write = || segment.write_snapshot(b"never counted");
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            crate::step::with_hook(dies, write)
        }));
        assert!(died.is_err());
        let again = StateSegment::adopt(words).unwrap();
        assert_eq!(again.read_snapshot().unwrap(), b"whole");
    }

    #[test]
    fn what_is_no_state_or_of_another_age_is_told_by_name() {
        let adopt = |words: &Words| StateSegment::adopt(words.clone()).map(|_| ());
        let short = adopt(&zeros(100)).unwrap_err();
        assert!(matches!(
            short,
            StateError::TooShort { there: 512, .. } | StateError::TooShort { there: 100, .. }
        ));
        let (_, words) = segment();
        let set = |at: usize, value: u64| words.cells()[at].swap(value, Relaxed);
        let before = set(1, 3);
        assert_eq!(adopt(&words), Err(StateError::Version { theirs: 3 }));
        set(1, before);
        set(2, 33);
        assert_eq!(adopt(&words), Err(StateError::Areas { nr_areas: 33 }));
        set(2, 3);
        set(AREA_LENGTHS, u64::MAX);
        assert!(matches!(adopt(&words), Err(StateError::Areas { .. })));
        set(AREA_LENGTHS, 1 << 40);
        assert!(matches!(adopt(&words), Err(StateError::TooShort { .. })));
        set(0, 5);
        assert_eq!(adopt(&words), Err(StateError::NotAState { magic: 5 }));
    }

    #[test]
    fn a_snapshot_written_over_is_damaged_wherever_it_was_hit() {
        let (segment, words) = segment();
        segment.write_snapshot(b"some twenty bytes long").unwrap();
        let start = PAGE + HALF;
        for (at, value) in [(0, 9), (1, u64::MAX), (1, 3), (2, 0), (3, 1), (5, 0)] {
            let cell = &words.cells()[start + at];
            let before = cell.swap(value, Relaxed);
            let read = segment.read_snapshot();
            assert!(
                matches!(read, Err(StateError::Damaged { .. })),
                "{at}: {read:?}"
            );
            cell.store(before, Relaxed);
        }
        assert!(segment.read_snapshot().is_ok());
        let long = vec![0; MAX_SNAPSHOT_BYTES + 1];
        assert!(segment.write_snapshot(&long).is_err());
    }

    #[test]
    fn beginnings_are_remembered_latest_first() {
        let (segment, _) = segment();
        assert!(segment.note_beginning(10).is_empty());
        for at in [20, 30, 40, 50] {
            segment.note_beginning(at);
        }
        assert_eq!(segment.note_beginning(60), [50, 40, 30, 20]);
        segment.forget_beginnings();
        assert!(segment.note_beginning(70).is_empty());
    }
}
