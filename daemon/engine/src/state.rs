//! The words that outlive the engine: which there are, and how many of each.
//!
//! Given to the engine when it is made; whoever gives them may keep them, and give them to the
//! engine that comes after it ([`recover`](crate::recover)). An engine that nobody is to take over
//! has [`StateWords::private`] ones.

use hugepool_mm::Geometry;
use hugepool_shm::lane_cursors::{LANE_WORDS, LaneCursors};
use hugepool_shm::mapping::MapError;
use hugepool_shm::words::Words;

use crate::config::EngineConfig;
use crate::deferred::DEFERRED_WORDS;
use crate::id::ClientId;
use crate::intent::INTENT_WORDS;
use crate::journal::JOURNAL_WORDS;
use crate::late::LATE_WORDS;
use crate::ledger_words::LEDGER_WORDS;
use crate::num;

/// Words that stand alone.
const GLOBAL_WORDS: usize = 16;
/// Of these: the section epoch.
const SECTION_EPOCH: usize = 0;

/// Runs of words that an engine keeps.
pub const NR_STATE_AREAS: usize = 10;

/// What decides how many words there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Pages of all reserves.
    pub nr_pages: u64,
    /// The sizes.
    pub geometry: Geometry,
    /// Clients at a time.
    pub max_clients: u16,
    /// Lanes of a client.
    pub max_lanes: u32,
}

impl StateShape {
    /// That of an engine of these settings.
    pub fn of(config: &EngineConfig) -> StateShape {
        StateShape {
            nr_pages: config.zones.iter().map(|zone| zone.reserve_pages).sum(),
            geometry: config.geometry,
            max_clients: config.defaults.max_clients,
            max_lanes: config.defaults.max_lanes,
        }
    }

    /// The length of each area, in words; `None` if no memory is as large.
    pub fn areas(&self) -> Option<[usize; NR_STATE_AREAS]> {
        let count = |shift: u8| usize::try_from(self.nr_pages >> shift).ok();
        // Slot 0 is the daemon itself.
        let nr_slots = usize::from(self.max_clients) + 1;
        let nr_lanes = nr_slots.checked_mul(num::index(self.max_lanes))?;
        Some([
            GLOBAL_WORDS,
            count(self.geometry.section_order())?,
            count(self.geometry.pageblock_order().get())?,
            INTENT_WORDS,
            JOURNAL_WORDS,
            nr_lanes.checked_mul(LANE_WORDS)?,
            nr_slots.checked_mul(LEDGER_WORDS)?,
            LATE_WORDS,
            DEFERRED_WORDS,
            count(0)?,
        ])
    }
}

/// The words themselves.
#[derive(Clone, Debug)]
pub struct StateWords {
    max_lanes: usize,
    globals: Words,
    pub(crate) sections: Words,
    pub(crate) pageblocks: Words,
    pub(crate) intents: Words,
    pub(crate) journal: Words,
    lanes: Words,
    ledgers: Words,
    pub(crate) lates: Words,
    pub(crate) deferred: Words,
    pub(crate) cells: Words,
}

impl StateWords {
    /// Words of the engine's own, that go with it.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn private(shape: &StateShape) -> Result<StateWords, MapError> {
        let len_bytes = usize::MAX;
        let areas = shape.areas().ok_or(MapError::Length { len_bytes })?;
        let words: Vec<Words> = areas
            .iter()
            .map(|&len| Words::anonymous(len))
            .collect::<Result<_, _>>()?;
        StateWords::over(shape, &words).ok_or(MapError::Length { len_bytes })
    }

    /// These areas; `None` unless they are as many and as long as the shape asks for.
    pub fn over(shape: &StateShape, areas: &[Words]) -> Option<StateWords> {
        let lengths = shape.areas()?;
        let fits = areas.iter().map(Words::len).eq(lengths);
        let [
            globals,
            sections,
            pageblocks,
            intents,
            journal,
            lanes,
            ledgers,
            lates,
            deferred,
            cells,
        ] = areas
        else {
            return None;
        };
        fits.then(|| StateWords {
            max_lanes: num::index(shape.max_lanes),
            globals: globals.clone(),
            sections: sections.clone(),
            pageblocks: pageblocks.clone(),
            intents: intents.clone(),
            journal: journal.clone(),
            lanes: lanes.clone(),
            ledgers: ledgers.clone(),
            lates: lates.clone(),
            deferred: deferred.clone(),
            cells: cells.clone(),
        })
    }

    /// Where the cursors of a client's lane are kept; `None` beyond the most lanes.
    pub(crate) fn lane(&self, client: ClientId, lane: u32) -> Option<LaneCursors> {
        let lane = num::index(lane);
        let at = usize::from(client.slot) * self.max_lanes + lane;
        let words = self.lanes.part(at * LANE_WORDS, LANE_WORDS);
        LaneCursors::new(&words).filter(|_| lane < self.max_lanes)
    }

    /// Where a client's unacknowledged answers are kept.
    pub(crate) fn ledger(&self, client: ClientId) -> Words {
        let at = usize::from(client.slot) * LEDGER_WORDS;
        self.ledgers.part(at, LEDGER_WORDS)
    }

    pub(crate) fn keep_section_epoch(&self, epoch: u32) {
        let word = &self.globals.cells()[SECTION_EPOCH];
        word.store(epoch.into(), core::sync::atomic::Ordering::Release);
    }

    pub(crate) fn section_epoch(&self) -> u32 {
        let word = &self.globals.cells()[SECTION_EPOCH];
        num::saturate(word.load(core::sync::atomic::Ordering::Relaxed))
    }
}
