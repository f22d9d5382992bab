//! The state segment of the daemon that runs: made, or taken over, and saved to.

use std::os::fd::{AsFd as _, OwnedFd};

use hugepool_engine::{Engine, EngineConfig, NotSaved, Saved, StateShape, StateWords};
use hugepool_shm::mapping::MapError;
use hugepool_shm::region::{Region, RegionError};
use hugepool_shm::state::{StateError, StateSegment};
use hugepool_shm::words::Words;

use crate::kept::STATE;
use crate::store::Store;

/// Starts so close together that something must be wrong with what they start from.
const MANY_STARTS: usize = 3;
const CLOSE_MS: u64 = 10_000;

/// Why there is no state to keep, or none to go on from.
#[derive(Debug, thiserror::Error)]
pub enum KeepingError {
    /// The file.
    #[error("the state segment")]
    Region(#[from] RegionError),
    /// Its map.
    #[error("the state segment cannot be mapped")]
    Map(#[from] MapError),
    /// What stands in it.
    #[error(transparent)]
    State(#[from] StateError),
    /// The snapshot in it.
    #[error(transparent)]
    Saved(#[from] NotSaved),
    /// The areas in it.
    #[error("the state's areas are not those of its own settings")]
    Areas,
    /// It cannot be as large.
    #[error("no memory is as large as this many zones and clients need")]
    TooLarge,
    /// Daemons that start from it die.
    #[error(
        "{nr} daemons have started from this state within {} s and died: held as it is, nothing is lent",
        CLOSE_MS / 1000
    )]
    Crashing {
        /// How many.
        nr: usize,
    },
}

/// The segment, and what of the engine was saved there last.
#[derive(Debug)]
pub struct Keeping {
    segment: StateSegment,
    version: u64,
}

impl Keeping {
    /// Makes a fresh segment, and puts it into the store.
    ///
    /// # Errors
    /// [`KeepingError`].
    pub fn fresh(
        config: &EngineConfig,
        store: &Store,
    ) -> Result<(Keeping, StateWords), KeepingError> {
        let shape = StateShape::of(config);
        let areas = shape.areas().ok_or(KeepingError::TooLarge)?;
        let nr_words = StateSegment::nr_words(&areas).ok_or(KeepingError::TooLarge)?;
        let nr_bytes = nr_words
            .checked_mul(8)
            .and_then(|nr| u64::try_from(nr).ok());
        let region = Region::for_state(nr_bytes.ok_or(KeepingError::TooLarge)?)?;
        let words = Words::of_mapping(region.map()?, nr_words);
        let segment = StateSegment::create(words, &areas)?;
        let words = StateWords::over(&shape, segment.areas()).ok_or(KeepingError::Areas)?;
        store.keep(STATE, region.as_fd());
        let version = 0;
        Ok((Keeping { segment, version }, words))
    }

    /// Takes over the segment of a daemon before.
    ///
    /// # Errors
    /// [`KeepingError`]: what is in it cannot be gone on from.
    pub fn adopt(fd: OwnedFd) -> Result<(Keeping, StateWords, Saved), KeepingError> {
        let region = Region::adopt(fd)?;
        let mapping = region.map()?;
        let nr_words = mapping.len_bytes() / 8;
        let segment = StateSegment::adopt(Words::of_mapping(mapping, nr_words))?;
        let saved = Saved::decode(&segment.read_snapshot()?)?;
        let words = StateWords::over(&saved.shape(), segment.areas()).ok_or(KeepingError::Areas)?;
        let version = 0;
        Ok((Keeping { segment, version }, words, saved))
    }

    /// Notes that a daemon starts from it now, at so many milliseconds since boot.
    ///
    /// # Errors
    /// [`KeepingError::Crashing`] if others have within a short time.
    pub fn note_start(&self, now_ms: u64) -> Result<(), KeepingError> {
        let before = self.segment.note_beginning(now_ms);
        let is_close = |at: &&u64| now_ms.saturating_sub(**at) < CLOSE_MS;
        let nr = before.iter().filter(is_close).count();
        if nr >= MANY_STARTS {
            return Err(KeepingError::Crashing { nr });
        }
        Ok(())
    }

    /// This daemon ends as it was asked to: it and those before it are no row of crashes.
    pub fn has_ended_well(&self) {
        self.segment.forget_beginnings();
    }

    /// Saves what changes slowly, if it has; under the engine's lock, before anybody hears of what
    /// has changed.
    pub fn save(&mut self, engine: &Engine) {
        let version = engine.slow_version();
        if version == self.version {
            return;
        }
        let bytes = match engine.save().encode() {
            Ok(bytes) => bytes,
            Err(error) => return tracing::error!(%error, "a restart would not find this"),
        };
        match self.segment.write_snapshot(&bytes) {
            Ok(()) => self.version = version,
            Err(error) => tracing::error!(%error, "a restart would not find this"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugepool_shm::mapping::Mapping;

    fn keeping() -> Keeping {
        let nr_words = StateSegment::nr_words(&[]).unwrap();
        let words = Words::of_mapping(Mapping::anonymous(nr_words * 8).unwrap(), nr_words);
        Keeping {
            segment: StateSegment::create(words, &[]).unwrap(),
            version: 0,
        }
    }

    /// Seen to fail: a second of life was enough to be forgotten, so that a daemon that died of its state a
    /// little later was started again for ever.
    #[test]
    fn three_starts_within_ten_seconds_are_a_row_unless_they_were_asked_to_end() {
        let keeping = keeping();
        for at in [1_000, 4_500, 8_000] {
            keeping.note_start(at).unwrap();
        }
        let refused = keeping.note_start(10_900).unwrap_err();
        assert!(matches!(refused, KeepingError::Crashing { nr: 3 }));
        keeping.has_ended_well();
        keeping.note_start(11_000).unwrap();
        // Further apart they are none.
        for at in [14_400, 17_800, 21_200, 24_600] {
            keeping.note_start(at).unwrap();
        }
    }
}
