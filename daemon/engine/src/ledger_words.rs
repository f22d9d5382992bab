//! A session's unacknowledged answers, as words that outlive the engine.
//!
//! Two halves; an answer counts when the first word says in which half it lies, so a daemon that
//! dies while it writes leaves the answers before. What is refused by name is not kept, only how
//! much was: the caller has the rest of the answer in its own request.
//!
//! Shape: word 0: 1 bit half, 31 bits words used, 16 incarnation of the client (0: nothing). A
//! half: acknowledged id, number of abandoned ids, number of answers, the ids, the answers. An
//! answer: id; 8 bits kind, 8 final, 8 order of the shortfall, 8 shortfall, 32 blocks; two numbers of
//! the shortfall (or, of a free, the blocks refused); number of runs; the runs, two words each.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use hugepool_mm::{Order, Pfn};
use hugepool_shm::words::Words;

use crate::call::{AllocReply, FreeReply, LentRun, MAX_BLOCKS_PER_CALL, Shortfall};
use crate::ledger::{Answer, Ledger, MAX_ABANDONED, MAX_RUNS};
use crate::num;

/// Words of one half: all runs that may be remembered and one answer more, and all ids.
const HALF: usize = 2 * (MAX_RUNS + MAX_BLOCKS_PER_CALL as usize) + MAX_ABANDONED + 65_536;
/// Words for one session.
pub(crate) const LEDGER_WORDS: usize = 8 + 2 * HALF;

/// Keeps what the session's ledger says; `incarnation` is its client's.
pub(crate) fn keep(words: &Words, ledger: &Ledger, incarnation: u16) {
    let cells = words.cells();
    let half = usize::from(cells[0].load(Relaxed) & 1 == 0);
    let place = &cells[8 + half * HALF..][..HALF];
    let mut used = 0;
    let mut put = |word: u64| {
        if let Some(cell) = place.get(used) {
            cell.store(word, Relaxed);
        }
        used += 1;
    };
    put(ledger.acknowledged);
    put(num::count(ledger.abandoned.len()));
    put(num::count(ledger.answers.len()));
    ledger.abandoned.iter().for_each(|&id| put(id));
    for (&id, answer) in &ledger.answers {
        put(id);
        put_answer(&mut put, answer);
    }
    debug_assert!(used <= HALF, "what may be remembered fits");
    let used = num::count(used.min(HALF)) << 1;
    let first = num::count(half) | used | u64::from(incarnation) << 48;
    // The answers are whole once they count.
    cells[0].store(first, Release);
}

/// Nothing is kept any more.
pub(crate) fn forget(words: &Words) {
    words.cells()[0].store(0, Release);
}

/// What was kept for the client of this incarnation; nothing, if it makes no sense.
pub(crate) fn find(words: &Words, incarnation: u16) -> Ledger {
    let cells = words.cells();
    let first = cells[0].load(Relaxed);
    if first >> 48 != u64::from(incarnation) || incarnation == 0 {
        return Ledger::default();
    }
    let half = usize::from(first & 1 == 1);
    let used = usize::try_from(first >> 1 & 0x7fff_ffff).unwrap_or(0);
    let place = cells[8 + half * HALF..][..HALF].iter();
    let mut rest = place.take(used).map(|cell| cell.load(Relaxed));
    read(&mut rest).unwrap_or_default()
}

fn read(rest: &mut dyn Iterator<Item = u64>) -> Option<Ledger> {
    let mut ledger = Ledger::default();
    ledger.acknowledged = rest.next()?;
    let nr_abandoned = rest.next()?;
    let nr_answers = rest.next()?;
    for _ in 0..nr_abandoned {
        ledger.abandoned.insert(rest.next()?);
    }
    for _ in 0..nr_answers {
        let id = rest.next()?;
        ledger.remember(id, read_answer(rest)?);
    }
    Some(ledger)
}

fn put_answer(put: &mut dyn FnMut(u64), answer: &Answer) {
    let first = |kind: u64, is_final: bool, order: u64, tag: u64, nr_blocks: u32| {
        kind | u64::from(is_final) << 8 | order << 16 | tag << 24 | u64::from(nr_blocks) << 32
    };
    match answer {
        Answer::Free(reply) => {
            put(first(2, true, 0, 0, reply.nr_blocks));
            put(reply.nr_refused.into());
            put(0);
            put(0);
        }
        Answer::Alloc { reply, is_final } => {
            let (tag, order, a, b) = shortfall_words(reply.shortfall);
            put(first(1, *is_final, order, tag, reply.nr_blocks));
            put(a);
            put(b);
            put(num::count(reply.runs.len()));
            for run in &reply.runs {
                put(u64::from(run.first.get()) | u64::from(run.nr_blocks) << 32);
                put(u64::from(run.order.get()) | u64::from(run.generation) << 32);
            }
        }
    }
}

fn read_answer(rest: &mut dyn Iterator<Item = u64>) -> Option<Answer> {
    let first = rest.next()?;
    let (a, b) = (rest.next()?, rest.next()?);
    let nr_runs = rest.next()?;
    let [kind, is_final, order, tag, ..] = first.to_le_bytes();
    let (_, nr_blocks) = halves(first);
    if kind == 2 {
        return Some(Answer::Free(FreeReply {
            nr_blocks,
            nr_refused: num::saturate(a),
            refused: Vec::new(),
        }));
    }
    let mut runs = Vec::new();
    for _ in 0..nr_runs {
        let (first, nr_blocks) = halves(rest.next()?);
        let (order, generation) = halves(rest.next()?);
        runs.push(LentRun {
            first: Pfn::new(first),
            nr_blocks,
            order: Order::new(u8::try_from(order).ok()?)?,
            generation,
        });
    }
    let reply = AllocReply {
        runs,
        nr_blocks,
        shortfall: shortfall_of(tag, order, a, b),
    };
    (kind == 1).then_some(Answer::Alloc {
        reply,
        is_final: is_final != 0,
    })
}

/// Tag, order (one more than it, 0 for none) and two numbers.
fn shortfall_words(shortfall: Option<Shortfall>) -> (u64, u64, u64, u64) {
    match shortfall {
        None => (0, 0, 0, 0),
        Some(Shortfall::Quota {
            owned_pages,
            ceiling_pages,
        }) => (1, 0, owned_pages, ceiling_pages),
        Some(Shortfall::ZoneEmpty {
            free_pages,
            min_pages,
        }) => (2, 0, free_pages, min_pages),
        Some(Shortfall::Fragmented {
            free_pages,
            largest_order,
        }) => {
            let order = largest_order.map_or(0, |order| u64::from(order.get()) + 1);
            (3, order, free_pages, 0)
        }
        Some(Shortfall::Offlining) => (4, 0, 0, 0),
        Some(Shortfall::NotMapped { section_epoch }) => (5, 0, section_epoch.into(), 0),
        Some(Shortfall::Deadline { timeout }) => {
            let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            (6, 0, millis, 0)
        }
    }
}

fn shortfall_of(tag: u8, order: u8, a: u64, b: u64) -> Option<Shortfall> {
    Some(match tag {
        1 => Shortfall::Quota {
            owned_pages: a,
            ceiling_pages: b,
        },
        2 => Shortfall::ZoneEmpty {
            free_pages: a,
            min_pages: b,
        },
        3 => Shortfall::Fragmented {
            free_pages: a,
            largest_order: order.checked_sub(1).and_then(Order::new),
        },
        4 => Shortfall::Offlining,
        5 => Shortfall::NotMapped {
            section_epoch: num::saturate(a),
        },
        6 => Shortfall::Deadline {
            timeout: Duration::from_millis(a),
        },
        _ => return None,
    })
}

fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(first: u32, shortfall: Option<Shortfall>, is_final: bool) -> Answer {
        let run = |first| LentRun {
            first: Pfn::new(first),
            nr_blocks: 3,
            order: Order::new(9).unwrap(),
            generation: 0xf_ffff,
        };
        let reply = AllocReply {
            runs: vec![run(first), run(u32::MAX)],
            nr_blocks: 6,
            shortfall,
        };
        Answer::Alloc { reply, is_final }
    }

    #[test]
    fn a_kept_ledger_says_all_again_to_its_own_client() {
        let words = Words::anonymous(LEDGER_WORDS).unwrap();
        let shortfalls = [
            None,
            Some(Shortfall::Quota {
                owned_pages: 1,
                ceiling_pages: u64::MAX,
            }),
            Some(Shortfall::ZoneEmpty {
                free_pages: 3,
                min_pages: 4,
            }),
            Some(Shortfall::Fragmented {
                free_pages: 5,
                largest_order: None,
            }),
            Some(Shortfall::Fragmented {
                free_pages: 5,
                largest_order: Order::new(0),
            }),
            Some(Shortfall::Offlining),
            Some(Shortfall::NotMapped { section_epoch: 6 }),
            Some(Shortfall::Deadline {
                timeout: Duration::from_millis(7),
            }),
        ];
        let mut ledger = Ledger::default();
        ledger.acknowledge(5);
        ledger.abandon(6).unwrap();
        for (id, shortfall) in (10..).zip(shortfalls) {
            ledger.remember(id, alloc(7, shortfall, id % 2 == 0));
            keep(&words, &ledger, 9);
            assert_eq!(format!("{:?}", find(&words, 9)), format!("{ledger:?}"));
        }
        let free = FreeReply {
            nr_blocks: 8,
            nr_refused: 2,
            refused: Vec::new(),
        };
        ledger.remember(90, Answer::Free(free));
        keep(&words, &ledger, 9);
        assert_eq!(format!("{:?}", find(&words, 9)), format!("{ledger:?}"));
        let nothing = format!("{:?}", Ledger::default());
        assert_eq!(format!("{:?}", find(&words, 8)), nothing);
        forget(&words);
        assert_eq!(format!("{:?}", find(&words, 9)), nothing);
    }

    #[test]
    fn nonsense_is_no_ledger() {
        let words = Words::anonymous(LEDGER_WORDS).unwrap();
        let mut ledger = Ledger::default();
        ledger.remember(3, alloc(7, None, true));
        keep(&words, &ledger, 1);
        let half = usize::from(words.cells()[0].load(Relaxed) & 1 == 1);
        for at in 1..8 {
            let cell = &words.cells()[8 + half * HALF + at];
            let before = cell.swap(u64::MAX, Relaxed);
            let _ = find(&words, 1);
            cell.store(before, Relaxed);
        }
    }
}
