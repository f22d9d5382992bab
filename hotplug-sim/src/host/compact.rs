//! Compaction of a zone: the allocator's two scanners yield moves, here they are made.

use hugepool_mm::{CompactCounts, CompactEnd, CompactRefusal, CompactRequest, Round};

use super::alloc::Loc;
use super::{Host, cost};

/// Pageblocks looked at between two rounds.
const BUDGET: u32 = 1 << 20;

/// How a run went.
#[derive(Clone, Copy, Debug)]
pub struct Compacted {
    /// How it ended; `None` if it was dropped.
    pub end: Option<CompactEnd>,
    /// What it did.
    pub counts: CompactCounts,
}

impl Host {
    /// Compacts a zone; after `most_rounds` rounds of moves the run is dropped.
    ///
    /// # Errors
    /// Why it would not be worth it.
    pub fn compact(
        &mut self,
        at: usize,
        request: CompactRequest,
        most_rounds: Option<u64>,
    ) -> Result<Compacted, CompactRefusal> {
        let zone = u16::try_from(at).expect("few zones");
        let mut run = self.zones[at].zone.begin_compaction(request)?;
        let mut moves = Vec::new();
        let mut nr_rounds = 0;
        let end = loop {
            if most_rounds.is_some_and(|most| nr_rounds >= most) {
                break None;
            }
            nr_rounds += 1;
            let host = &mut self.zones[at];
            match run.next_round(&mut host.zone, &mut &host.held, BUDGET, &mut moves) {
                Round::Ended(end) => break Some(end),
                Round::Pause | Round::Unanswered => continue,
                Round::Moves => {}
            }
            for made in &moves {
                let loc = |pfn| Loc { zone, pfn };
                self.move_to(loc(made.from), loc(made.to), made.order);
                run.moved(&self.zones[at].zone, made);
            }
        };
        let counts = run.counts();
        self.clock_ns += cost::move_pages(counts.nr_moved, self.geometry.page_bytes());
        Ok(Compacted { end, counts })
    }
}
