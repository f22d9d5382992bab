//! What is being lent or taken back at this instant: the intent of the one step that touches the
//! owner table and another process's memory.
//!
//! Opened before the first cell of the step is written, closed when the other side has been told,
//! or cannot be any more. A daemon that finds it open undoes what was not told yet (PROTOCOLS P10);
//! whether it was, the kept cursor or the kept answer says.
//!
//! Shape: word 0: 8 bits kind (0: closed), 8 class, 16 slot, 16 incarnation of the client; word 1:
//! lane and tail of the grants, or the request's id; word 2: number of entries; word 3: claims
//! refused; from word 8: the entries, each a run: 32 bits pfn of its first block, 20 generation,
//! 4 order, 8 number of blocks less 1.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use hugepool_mm::{Order, Pfn};
use hugepool_shm::words::Words;

use crate::call::MAX_BLOCKS_PER_CALL;
use crate::head_run::HeadRun;
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
        self.open_with(client, errand, &[]);
    }

    /// Opens it for a step and these blocks, all of them or none.
    pub fn open_with(&mut self, client: ClientId, errand: Errand, noted: &[(HeadRun, Order, u32)]) {
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
        let mut nr_entries = 0;
        for &(run, order, generation) in noted {
            nr_entries = self.write(nr_entries, run, order, generation);
        }
        self.word(1).store(detail, Relaxed);
        self.word(2).store(num::count(nr_entries), Relaxed);
        self.word(3).store(nr_refused.into(), Relaxed);
        self.word(0).store(kind | class << 8 | client, Release);
        self.nr_entries = Some(nr_entries);
        hugepool_shm::step::reached("journal.open");
    }

    /// Notes blocks whose cells are about to be written, if it is open.
    pub fn note(&mut self, runs: &[HeadRun], order: Order, generation: u32) {
        let Some(mut nr_entries) = self.nr_entries else {
            return;
        };
        for &run in runs {
            nr_entries = self.write(nr_entries, run, order, generation);
        }
        self.word(2).store(num::count(nr_entries), Release);
        self.nr_entries = Some(nr_entries);
        hugepool_shm::step::reached("journal.noted");
    }

    /// Writes entries for a run from position `at` on; returns the position behind them.
    fn write(&self, at: usize, run: HeadRun, order: Order, generation: u32) -> usize {
        let cells = &self.words.cells()[ENTRIES..];
        let (mut at, mut rest) = (at, Some(run));
        while let Some(run) = rest {
            let (here, behind) = if run.nr_blocks > MAX_IN_ENTRY {
                let (here, behind) = run.split_at(MAX_IN_ENTRY, order);
                (here, Some(behind))
            } else {
                (run, None)
            };
            if let Some(cell) = cells.get(at) {
                cell.store(pack(here, order, generation), Relaxed);
                at += 1;
            }
            rest = behind;
        }
        at
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
        let entries = entries.flat_map(|cell| unpack(cell.load(Relaxed)));
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

/// Blocks that one entry speaks of at most.
const MAX_IN_ENTRY: u32 = 256;

fn pack(run: HeadRun, order: Order, generation: u32) -> u64 {
    u64::from(run.first.get())
        | u64::from(generation & 0xf_ffff) << 32
        | u64::from(order.get() & 15) << 52
        | u64::from(run.nr_blocks - 1) << 56
}

/// The blocks of an entry, as far as they have a number.
fn unpack(entry: u64) -> impl Iterator<Item = (Pfn, u32)> {
    let [.., fifth, sixth, seventh, nr_more] = entry.to_le_bytes();
    let generation = u32::from_le_bytes([fifth, sixth, seventh & 15, 0]);
    let order = seventh >> 4;
    (0..=u32::from(nr_more)).filter_map(move |at| {
        let pfn = Pfn::new(low32(entry)).checked_add(at << order)?;
        Some((pfn, generation))
    })
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
            let one = |pfn| HeadRun::of_one(Pfn::new(pfn));
            journal.note(&[one(1)], Order::ZERO, 1);
            journal.open(CLIENT, errand);
            journal.note(&[one(u32::MAX), one(5)], Order::ZERO, 0xf_ffff);
            let run = HeadRun {
                first: Pfn::new(32),
                nr_blocks: 600,
            };
            let order = Order::new(3).unwrap();
            journal.note(&[run], order, 2);
            let found = Journal::new(words.clone()).read().unwrap();
            assert_eq!((found.client, found.errand), (CLIENT, errand));
            let entries = [(Pfn::new(u32::MAX), 0xf_ffff), (Pfn::new(5), 0xf_ffff)];
            assert_eq!(found.entries[..2], entries);
            let blocks: Vec<_> = run.heads(order).map(|head| (head, 2)).collect();
            assert_eq!(found.entries[2..], blocks);
            journal.close();
            assert_eq!(journal.read(), None);
        }
    }
}
