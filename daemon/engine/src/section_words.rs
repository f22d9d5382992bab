//! Each section in one word, for a daemon that comes after.
//!
//! Written at each step of a section, after the step and before anything else that builds on it.
//! Bits from the lowest: 8 state, 20 floor of the generations, 4 nothing, 32 incarnation.

use std::sync::atomic::Ordering::{Relaxed, Release};

use hugepool_mm::{SectionId, SectionState};

use crate::custody::Custody;
use crate::{StateWords, num};

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectionWord {
    pub state: SectionState,
    pub floor: u32,
    pub incarnation: u32,
}

impl SectionWord {
    fn encode(self) -> u64 {
        let state = match self.state {
            SectionState::Absent => 0,
            SectionState::Adding => 1,
            SectionState::Offline => 2,
            SectionState::Online => 3,
            SectionState::GoingOffline => 4,
            SectionState::Removing => 5,
        };
        state | u64::from(self.floor) << 8 | u64::from(self.incarnation) << 32
    }

    /// `None` if no section was ever like that.
    pub fn decode(word: u64) -> Option<SectionWord> {
        let [state, a, b, c, d, e, f, g] = word.to_le_bytes();
        let state = match state {
            0 => SectionState::Absent,
            1 => SectionState::Adding,
            2 => SectionState::Offline,
            3 => SectionState::Online,
            4 => SectionState::GoingOffline,
            5 => SectionState::Removing,
            _ => return None,
        };
        let floor = u32::from_le_bytes([a, b, c, 0]);
        (floor < 1 << 20).then_some(SectionWord {
            state,
            floor,
            incarnation: u32::from_le_bytes([d, e, f, g]),
        })
    }
}

impl SectionWord {
    /// Whether its memory is there, wholly or in part.
    fn has_memory(self) -> bool {
        !matches!(self.state, SectionState::Absent | SectionState::Adding)
    }
}

impl StateWords {
    /// Sections that have memory, as their words say. What was saved of them may be older: a daemon
    /// can die between the two, and only the words are stored before pages of them are lent.
    pub fn sections_with_memory(&self) -> impl Iterator<Item = SectionId> + '_ {
        let words = (0..).zip(self.sections.cells());
        words.filter_map(|(at, word)| {
            let word = SectionWord::decode(word.load(Relaxed))?;
            word.has_memory().then(|| SectionId::new(at))
        })
    }
}

impl Custody {
    /// Keeps how a section stands now.
    pub fn note_section(&self, section: SectionId) {
        let Some(row) = self.zones.section(section) else {
            return;
        };
        let word = SectionWord {
            state: self.zones.state(section),
            floor: self.owners.floor(section),
            incarnation: row.incarnation,
        };
        self.sections.cells()[num::index(section.get())].store(word.encode(), Release);
        hugepool_shm::step::reached("section.noted");
    }

    /// What was kept of a section; `None` if it makes no sense.
    pub fn kept_section(&self, section: SectionId) -> Option<SectionWord> {
        let word = self.sections.cells()[num::index(section.get())].load(Relaxed);
        SectionWord::decode(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_all_again_and_nonsense_nothing() {
        for state in [
            SectionState::Absent,
            SectionState::Adding,
            SectionState::Offline,
            SectionState::Online,
            SectionState::GoingOffline,
            SectionState::Removing,
        ] {
            let word = SectionWord {
                state,
                floor: (1 << 20) - 1,
                incarnation: u32::MAX,
            };
            assert_eq!(SectionWord::decode(word.encode()), Some(word));
        }
        assert_eq!(SectionWord::decode(6), None);
        assert_eq!(SectionWord::decode(1 << 28), None);
        assert_eq!(SectionWord::decode(0).unwrap().state, SectionState::Absent);
    }
}
