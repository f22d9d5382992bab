//! What is being lent or taken back at this instant: the intent of the one step that touches the
//! owner table and another process's memory.
//!
//! Opened before the first cell of the step is written, closed when the other side has been told,
//! or cannot be any more. A daemon that finds it open undoes what was not told yet (PROTOCOLS P10);
//! whether it was, the kept cursor or the kept answer says.
//!
//! Shape: word 0: 8 bits kind (0: closed), 8 class, 16 slot, 16 incarnation of the client; word 1:
//! lane and tail of the grants, or the request's id; word 2: number of entries; word 3: claims
//! refused; from word 8: the entries, 32 bits pfn and 32 generation.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use hugepool_mm::Pfn;
use hugepool_shm::words::Words;

use crate::call::MAX_BLOCKS_PER_CALL;
use crate::id::ClientId;
use crate::num;

const ENTRIES: usize = 8;
/// Words of the journal.
pub(crate) const JOURNAL_WORDS: usize = ENTRIES + MAX_BLOCKS_PER_CALL as usize;

/// Whom the step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Blocks are lent into a lane's grants, whose tail was this.
    Grant { lane: u32, class: usize, tail: u32 },
    /// Blocks are lent for a call.
    Call { request_id: u64 },
    /// Blocks are taken back by a call, which named so many others that are not its own.
    Free { request_id: u64, nr_refused: u32 },
}

/// What a journal says that was found open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub client: ClientId,
    pub errand: Errand,
    /// Heads, and the generation of each.
    pub entries: Vec<(Pfn, u32)>,
}

/// The journal.
#[derive(Debug)]
pub(crate) struct Journal {
    words: Words,
    nr_entries: Option<usize>,
}

impl Journal {
    pub fn new(words: Words) -> Journal {
        Journal {
            words,
            nr_entries: None,
        }
    }

    /// Opens it for a step; nothing has been done of that.
    pub fn open(&mut self, client: ClientId, errand: Errand) {
        debug_assert!(self.nr_entries.is_none(), "one step at a time");
        let (kind, class, detail, nr_refused) = match errand {
            Errand::Grant { lane, class, tail } => (
                1,
                num::count(class),
                u64::from(lane) | u64::from(tail) << 32,
                0,
            ),
            Errand::Call { request_id } => (2, 0, request_id, 0),
            Errand::Free {
                request_id,
                nr_refused,
            } => (3, 0, request_id, nr_refused),
        };
        let client = u64::from(client.slot) << 16 | u64::from(client.incarnation) << 32;
        self.word(1).store(detail, Relaxed);
        self.word(2).store(0, Relaxed);
        self.word(3).store(nr_refused.into(), Relaxed);
        self.word(0).store(kind | class << 8 | client, Release);
        self.nr_entries = Some(0);
    }

    /// Notes blocks whose cells are about to be written, if it is open.
    pub fn note(&mut self, heads: &[Pfn], generation: u32) {
        let Some(at) = self.nr_entries else {
            return;
        };
        let cells = &self.words.cells()[ENTRIES..];
        let after = (at + heads.len()).min(cells.len());
        for (cell, head) in cells[at..after].iter().zip(heads) {
            cell.store(u64::from(head.get()) | u64::from(generation) << 32, Relaxed);
        }
        self.word(2).store(num::count(after), Release);
        self.nr_entries = Some(after);
        hugepool_shm::step::reached("journal.noted");
    }

    /// The step is done.
    pub fn close(&mut self) {
        hugepool_shm::step::reached("journal.close");
        self.word(0).store(0, Release);
        self.nr_entries = None;
    }

    /// What it says, if it is open.
    pub fn read(&self) -> Option<Open> {
        let first = self.word(0).load(Relaxed);
        let [kind, class, slot_low, slot_high, low, high, ..] = first.to_le_bytes();
        let detail = self.word(1).load(Relaxed);
        let errand = match kind {
            1 => Errand::Grant {
                lane: low32(detail),
                class: class.into(),
                tail: low32(detail >> 32),
            },
            2 => Errand::Call { request_id: detail },
            3 => Errand::Free {
                request_id: detail,
                nr_refused: low32(self.word(3).load(Relaxed)),
            },
            _ => return None,
        };
        let nr_entries = usize::try_from(self.word(2).load(Relaxed)).unwrap_or(usize::MAX);
        let entries = self.words.cells()[ENTRIES..].iter().take(nr_entries);
        let entries = entries.map(|cell| {
            let entry = cell.load(Relaxed);
            (Pfn::new(low32(entry)), low32(entry >> 32))
        });
        Some(Open {
            client: ClientId {
                slot: u16::from_le_bytes([slot_low, slot_high]),
                incarnation: u16::from_le_bytes([low, high]),
            },
            errand,
            entries: entries.collect(),
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.cells()[at]
    }
}

fn low32(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId {
        slot: 0x1234,
        incarnation: 0xfedc,
    };

    #[test]
    fn an_open_journal_says_all_again_and_a_closed_one_nothing() {
        let words = Words::heap(JOURNAL_WORDS).unwrap();
        let mut journal = Journal::new(words.clone());
        let errands = [
            Errand::Grant {
                lane: 7,
                class: 14,
                tail: u32::MAX,
            },
            Errand::Call {
                request_id: u64::MAX,
            },
            Errand::Free {
                request_id: 3,
                nr_refused: 9,
            },
        ];
        for errand in errands {
            journal.note(&[Pfn::new(1)], 1);
            journal.open(CLIENT, errand);
            journal.note(&[Pfn::new(u32::MAX), Pfn::new(5)], 0xf_ffff);
            journal.note(&[Pfn::new(6)], 2);
            let found = Journal::new(words.clone()).read().unwrap();
            assert_eq!((found.client, found.errand), (CLIENT, errand));
            let entries = [(Pfn::new(u32::MAX), 0xf_ffff), (Pfn::new(5), 0xf_ffff)];
            assert_eq!(found.entries[..2], entries);
            assert_eq!(found.entries[2..], [(Pfn::new(6), 2)]);
            journal.close();
            assert_eq!(journal.read(), None);
        }
    }
}
