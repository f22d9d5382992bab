//! Whole parcels in the owner table: their blocks handed on, or taken home, pageblock by pageblock.
//!
//! The words are their sender's claims: each counts only if the block is the sender's at exactly
//! its generation.

use hugepool_mm::{Migratetype, Order, Pfn};
use hugepool_shm::raw::{RawPage, next_generation};

use super::{Headed, Owners, Relaxed, Taken, place_of};
use crate::cell::{Cell, Lent};
use crate::head_run::HeadRun;
use crate::id::ClientId;
use crate::misuse::Misuse;
use crate::tally::Place;

impl Owners {
    /// Hands on those of a parcel's blocks that are the sender's at exactly the generation of their
    /// words: they are `to`'s from now on, one generation later. Returns their pages, and leaves in
    /// `wrong` what is the matter with another one.
    pub fn hand_over_all(
        &mut self,
        words: &[RawPage],
        from: ClientId,
        to: ClientId,
        now_ms: u64,
        wrong: &mut Option<Misuse>,
    ) -> u64 {
        self.move_all(words, from, wrong, &mut |owners, run, place, pages| {
            for &(pfn, lent) in run {
                let handed = Lent {
                    client: to,
                    generation: next_generation(lent.generation),
                    ..lent
                };
                owners.store(pfn, handed.encode());
            }
            owners.tally.sub(from, place, pages);
            owners.tally.add(to, place, pages, now_ms);
        })
    }

    /// Hands neighbouring pages on, if all of them are the sender's and alike, at this generation.
    /// Else nothing has changed.
    pub fn hand_over_run(
        &mut self,
        run: HeadRun,
        generation: u32,
        from: ClientId,
        to: ClientId,
        now_ms: u64,
    ) -> bool {
        let Some(lent) = self.alike(from, run, Some(generation)) else {
            return false;
        };
        let handed = Lent {
            client: to,
            generation: next_generation(generation),
            ..lent
        };
        let word = handed.encode();
        for (place, piece) in run.pieces(Order::ZERO, self.geometry) {
            self.for_cells(piece, Order::ZERO, |cell| cell.store(word, Relaxed));
            self.tally.sub(from, place, piece.nr_blocks);
            self.tally.add(to, place, piece.nr_blocks, now_ms);
        }
        true
    }

    /// Takes home those of a parcel's blocks that are the sender's at exactly the generation of
    /// their words, two generations later: handed on and given back in one. Their heads are added
    /// to `heads`.
    pub fn take_all(
        &mut self,
        words: &[RawPage],
        from: ClientId,
        heads: &mut Vec<Pfn>,
        wrong: &mut Option<Misuse>,
    ) {
        self.move_all(words, from, wrong, &mut |owners, run, place, pages| {
            for &(pfn, lent) in run {
                let generation = next_generation(next_generation(lent.generation));
                owners.store(pfn, Cell::home(generation));
                heads.push(pfn);
                if lent.migratetype == Migratetype::Reclaimable {
                    let section = place.section;
                    owners.tally.sub_reclaimable(section, lent.order.nr_pages());
                }
            }
            owners.tally.sub(from, place, pages);
        });
    }

    /// Marks a block as held by several, of whom its owner is one.
    pub fn seal(&self, pfn: Pfn) {
        if let Cell::Lent(lent) = self.cell(pfn) {
            let is_shared = true;
            self.store(pfn, Lent { is_shared, ..lent }.encode());
        }
    }

    /// Makes another holder the owner of a shared block; its generation stays.
    pub fn pass_shared(&mut self, pfn: Pfn, to: ClientId, now_ms: u64) {
        if let Cell::Lent(lent) = self.cell(pfn)
            && lent.is_shared
        {
            self.store(pfn, Lent { client: to, ..lent }.encode());
            let (place, pages) = (self.place(pfn), lent.order.nr_pages());
            self.tally.sub(lent.client, place, pages);
            self.tally.add(to, place, pages, now_ms);
        }
    }

    /// Takes home a shared block that nobody holds any more.
    pub fn take_shared(&mut self, pfn: Pfn) -> Option<Taken> {
        match self.cell(pfn) {
            Cell::Lent(lent) if lent.is_shared => Some(self.bring_home(pfn, lent)),
            _ => None,
        }
    }

    /// Shows `act` the blocks of the words that are right, pageblock by pageblock.
    fn move_all(
        &mut self,
        words: &[RawPage],
        from: ClientId,
        wrong: &mut Option<Misuse>,
        act: &mut impl FnMut(&mut Owners, &[Headed], Place, u32),
    ) -> u64 {
        let mut run = core::mem::take(&mut self.run);
        let mut nr_pages = 0;
        let geometry = self.geometry;
        let place_of_word = |word: &RawPage| place_of(geometry, Pfn::new(word.pfn()));
        for words in words.chunk_by(|a, b| place_of_word(a) == place_of_word(b)) {
            run.clear();
            for word in words {
                match self.check(from, word.pfn(), word.order(), word.generation()) {
                    Ok(lent) => run.push((Pfn::new(word.pfn()), lent)),
                    Err(misuse) => *wrong = Some(misuse),
                }
            }
            // The same block twice is right once.
            if !run.is_sorted_by(|(a, _), (b, _)| a < b) {
                run.sort_unstable_by_key(|&(pfn, _)| pfn);
                run.dedup_by_key(|&mut (pfn, _)| pfn);
            }
            let pages = run.iter().map(|(_, lent)| lent.order.nr_pages()).sum();
            if pages > 0 {
                act(self, &run, place_of_word(&words[0]), pages);
                nr_pages += u64::from(pages);
            }
        }
        self.run = run;
        nr_pages
    }
}
