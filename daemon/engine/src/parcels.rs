//! Parcels become custody: what a notice says, what transit words say of the dead (PROTOCOLS P5).
//!
//! Two signatures make a parcel: its sender's outbox, which it alone can write, and the taker's
//! own notice or the transit word. It applies to a block only at exactly its generation: one that
//! is ahead waits until the taken parcels before it have been applied. Nothing is lost by a wrong
//! claim: what cannot be applied stays with whom it was.

use hugepool_mm::{Order, Pfn};
use hugepool_shm::raw::{RawPage, is_before};
use hugepool_shm::ticket::{Done, Notice, ShareWord, Ticket};
use hugepool_shm::transit::Transit;
use hugepool_shm::word_run::WordRun;

use crate::cell::Cell;
use crate::custody::Custody;
use crate::head_run::HeadRun;
use crate::id::ClientId;
use crate::misuse::Misuse;
use crate::num;
use crate::posts::as_taker;

/// Parcels that are applied in a row to reach the one that is asked for.
const MAX_CHAIN: u32 = 64;

/// Why a claim was not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsettled {
    /// It is wrong.
    Misuse(Misuse),
    /// Something must be settled before it that is not here yet.
    Ahead,
}

impl From<Misuse> for Unsettled {
    fn from(misuse: Misuse) -> Unsettled {
        Unsettled::Misuse(misuse)
    }
}

impl Custody {
    /// Settles a word of a client's returns: a block given back, or a notice. With `is_last`,
    /// nothing that could still come before it is waited for.
    pub fn settle_word(
        &mut self,
        who: ClientId,
        word: RawPage,
        is_last: bool,
        now_ms: u64,
    ) -> Result<(), Unsettled> {
        if let Some(notice) = Notice::of_word(word) {
            return self.settle_notice(who, notice, is_last, now_ms);
        }
        if let Some(said) = ShareWord::of_word(word) {
            return self.settle_share_word(who, said, is_last, now_ms);
        }
        let misuse = match self.take_home(who, word) {
            Ok(_) => return Ok(()),
            Err(misuse) => misuse,
        };
        // A block that came by a parcel whose notice was not seen yet.
        self.catch_up(word.pfn(), word.generation(), 0, now_ms);
        match self.take_home(who, word) {
            Ok(_) => Ok(()),
            Err(_) if !is_last && self.is_ahead(word) => Err(Unsettled::Ahead),
            Err(_) => Err(Unsettled::Misuse(misuse)),
        }
    }

    /// Takes home a block that a client names by its head alone.
    pub fn settle_head(&mut self, who: ClientId, pfn: u32, now_ms: u64) -> Result<(), Misuse> {
        let misuse = match self.take_head_home(who, pfn) {
            Ok(_) => return Ok(()),
            Err(misuse) => misuse,
        };
        // As above. Without a generation, one parcel after the other until it is the client's.
        for _ in 0..MAX_CHAIN {
            let Cell::Lent(lent) = self.cell_of(pfn).ok_or(misuse)? else {
                return Err(misuse);
            };
            let Some((ticket, taker)) = self.posts.find_taken(lent.client, pfn, lent.generation)
            else {
                return Err(misuse);
            };
            if !self.apply_taken(ticket, taker, 0, now_ms) {
                return Err(misuse);
            }
            if taker == who && self.take_head_home(who, pfn).is_ok() {
                return Ok(());
            }
        }
        Err(misuse)
    }

    /// Settles what a client says it has done with a parcel.
    fn settle_notice(
        &mut self,
        who: ClientId,
        notice: Notice,
        is_last: bool,
        now_ms: u64,
    ) -> Result<(), Unsettled> {
        let ticket = notice.ticket;
        let no_such = Misuse::NoSuchParcel { ticket };
        if let Some(late) = self.posts.lates.get(ticket) {
            if late.taker != who {
                return Err(no_such.into());
            }
            // It was the client's already.
            let (is_shared, is_freed) = (late.is_shared, notice.done == Done::Freed);
            if is_shared && !is_freed {
                return Ok(());
            }
            for word in late.words.clone() {
                if is_shared {
                    self.end_holding(who, None, word, now_ms);
                } else if is_freed {
                    // What it did not own in the first place was counted then.
                    let _ = self.take_home(who, word.handed_on(0));
                }
            }
            // Last: a daemon that comes after does it again.
            self.posts.lates.take(ticket);
            return Ok(());
        }
        let parts = ticket.parts();
        let of = self.posts.get(who).ok_or(no_such)?;
        if of.zones >> parts.zone & 1 == 0 {
            return Err(no_such.into());
        }
        let (sender, head) = self.posts.signed(parts).ok_or(no_such)?;
        let transit = self.posts.transit(parts).ok_or(no_such)?;
        if let Err(found) = transit.settle_signed(parts.sequence, as_taker(who)) {
            let by = match found {
                Transit::Taken(by) | Transit::Settled(by) | Transit::GivenBack(by) => by.slot,
                _ => parts.client,
            };
            return Err(Misuse::ParcelElsewhere { ticket, by }.into());
        }
        let mut runs = core::mem::take(&mut self.claims);
        self.posts.runs(parts, head, &mut runs);
        let is_early = runs.iter().any(|run| {
            let has_come = self.has_reached(sender, run);
            !has_come
                && run.words().any(|word| {
                    self.is_ahead(word) && {
                        self.catch_up(word.pfn(), word.generation(), 0, now_ms);
                        self.is_ahead(word)
                    }
                })
        });
        let answer = if is_early && !is_last {
            Err(Unsettled::Ahead)
        } else if head.is_shared {
            self.settle_share(sender, who, ticket, runs[0].first, notice.done, now_ms);
            Ok(())
        } else {
            let wrong = self.move_parcel(sender, who, &runs, notice.done, now_ms);
            self.posts.mark_settled(parts);
            wrong.map_or(Ok(()), |misuse| Err(misuse.into()))
        };
        self.claims = runs;
        answer
    }

    /// The same of a holding of a shared page.
    fn settle_share(
        &mut self,
        sender: ClientId,
        taker: ClientId,
        ticket: Ticket,
        word: RawPage,
        done: Done,
        now_ms: u64,
    ) {
        match done {
            Done::Kept => {
                self.add_holding(sender, taker, ticket, word, now_ms);
                self.posts.mark_settled(ticket.parts());
                self.reconsider(sender, word.pfn(), now_ms);
            }
            Done::Freed => {
                // First: the sender offers it no longer.
                self.posts.mark_settled(ticket.parts());
                self.end_holding(taker, Some(sender), word, now_ms);
            }
        }
    }

    /// Makes the blocks of a parcel the taker's, or takes them home from it. Returns what was wrong
    /// with one that it was not done for.
    fn move_parcel(
        &mut self,
        sender: ClientId,
        taker: ClientId,
        runs: &[WordRun],
        done: Done,
        now_ms: u64,
    ) -> Option<Misuse> {
        let mut wrong = None;
        let mut moved = 0;
        for run in runs {
            if self.move_run(sender, taker, run, done, now_ms) {
                moved += u64::from(run.nr_blocks);
                continue;
            }
            let words: Vec<RawPage> = run.words().collect();
            moved += match done {
                Done::Kept => self
                    .owners
                    .hand_over_all(&words, sender, taker, now_ms, &mut wrong),
                Done::Freed => self.take_all_home(&words, sender, &mut wrong),
            };
        }
        if let Some(of) = self.posts.get_mut(taker) {
            of.nr_claimed_pages = of.nr_claimed_pages.wrapping_add(moved);
        }
        wrong
    }

    /// The same for neighbouring pages that all are the sender's at exactly their generation; false,
    /// and nothing has changed, if they are not.
    fn move_run(
        &mut self,
        sender: ClientId,
        taker: ClientId,
        run: &WordRun,
        done: Done,
        now_ms: u64,
    ) -> bool {
        let (first, heads) = (run.first, HeadRun::from(*run));
        if first.order() != 0 {
            return false;
        }
        let generation = first.generation();
        match done {
            Done::Kept => self
                .owners
                .hand_over_run(heads, generation, sender, taker, now_ms),
            // Handed on and given back in one: two generations later.
            Done::Freed => {
                let is_taken = self.owners.take_run(sender, heads, Some(generation), 2);
                if is_taken {
                    self.put_run(heads);
                }
                is_taken
            }
        }
    }

    /// Applies a parcel that its transit word says is taken, unless it is given back at this very
    /// moment; its taker may still say what has become of it. Not before what must come before it:
    /// of that perhaps only a notice tells, that is not read yet.
    fn apply_taken(&mut self, ticket: Ticket, taker: ClientId, depth: u32, now_ms: u64) -> bool {
        let parts = ticket.parts();
        let Some((sender, head)) = self.posts.signed(parts) else {
            return false;
        };
        let mut runs = Vec::new();
        self.posts.runs(parts, head, &mut runs);
        for run in &runs {
            if self.has_reached(sender, run) {
                continue;
            }
            for word in run.words() {
                self.catch_up(word.pfn(), word.generation(), depth + 1, now_ms);
                // The first one that cannot be reached ends it: nobody has the daemon try all.
                if !self.are_rings_settled && self.is_ahead(word) {
                    return false;
                }
            }
        }
        // What was caught up with may have been this one.
        if self.posts.signed(parts).is_none() {
            return false;
        }
        if !self.posts.settle(ticket, taker) {
            return false;
        }
        self.keep_taken(ticket, sender, taker, &runs, head.is_shared, now_ms);
        true
    }

    /// Makes a parcel its taker's that has not told of it.
    pub fn keep_taken(
        &mut self,
        ticket: Ticket,
        sender: ClientId,
        taker: ClientId,
        runs: &[WordRun],
        is_shared: bool,
        now_ms: u64,
    ) {
        let is_known = self.posts.lates.get(ticket).is_some();
        if is_shared {
            if !is_known {
                self.add_holding(sender, taker, ticket, runs[0].first, now_ms);
            }
            self.posts.mark_settled(ticket.parts());
            return self.reconsider(sender, runs[0].first.pfn(), now_ms);
        }
        if !is_known {
            let words = runs.iter().flat_map(|run| run.words()).collect();
            self.posts.lates.add(ticket, taker, words, false);
        }
        // The sender's mistake, if any; it is not asked here.
        let _ = self.move_parcel(sender, taker, runs, Done::Kept, now_ms);
        self.posts.mark_settled(ticket.parts());
    }

    /// What a daemon before was settling when it died: decided by the transit word, and its sender
    /// not told. What that was told of is settled.
    pub fn unfinished_parcels(&mut self) -> Vec<(Ticket, ClientId, ClientId)> {
        let senders: Vec<ClientId> = self.posts.iter().map(|of| of.client).collect();
        let mut unfinished = Vec::new();
        for sender in senders {
            for (ticket, found) in self.posts.parcels_of(sender) {
                let parts = ticket.parts();
                if let Transit::Settled(taker) = found
                    && !self.posts.recall_settled(parts)
                    && let Some(taker) = self.posts.taker(taker, parts.zone)
                {
                    unfinished.push((ticket, sender, taker));
                }
            }
        }
        unfinished
    }

    /// Goes on where it died.
    pub fn finish_parcels(&mut self, parcels: Vec<(Ticket, ClientId, ClientId)>, now_ms: u64) {
        for (ticket, sender, taker) in parcels {
            let parts = ticket.parts();
            let mut runs = Vec::new();
            if let Some((_, head)) = self.posts.signed(parts) {
                self.posts.runs(parts, head, &mut runs);
                self.keep_taken(ticket, sender, taker, &runs, head.is_shared, now_ms);
            }
        }
    }

    /// Applies the taken parcels that lead from the block's custodian to this generation, as far as
    /// transit words tell of them.
    pub fn catch_up(&mut self, pfn: u32, generation: u32, depth: u32, now_ms: u64) {
        if depth > MAX_CHAIN {
            return;
        }
        for _ in 0..MAX_CHAIN {
            let Some(Cell::Lent(lent)) = self.cell_of(pfn) else {
                return;
            };
            if !is_before(lent.generation, generation) {
                return;
            }
            let found = self.posts.find_taken(lent.client, pfn, lent.generation);
            let is_applied =
                found.is_some_and(|(ticket, taker)| self.apply_taken(ticket, taker, depth, now_ms));
            if !is_applied {
                return;
            }
        }
    }

    /// Whether neighbouring pages are a client's at exactly their generation; false also where that
    /// is to be found out for each.
    fn has_reached(&self, client: ClientId, run: &WordRun) -> bool {
        let generation = Some(run.first.generation());
        run.first.order() == 0
            && self
                .owners
                .alike(client, HeadRun::from(*run), generation)
                .is_some()
    }

    /// Whether a claim is to a later generation than the block has reached.
    pub fn is_ahead(&self, word: RawPage) -> bool {
        self.is_ahead_of(word.pfn(), word.generation())
    }

    /// The same of a block by its head.
    pub fn is_ahead_of(&self, pfn: u32, generation: u32) -> bool {
        match self.cell_of(pfn) {
            Some(Cell::Lent(lent)) => is_before(lent.generation, generation),
            _ => false,
        }
    }

    fn cell_of(&self, pfn: u32) -> Option<Cell> {
        let is_there = self.owners.is_managed(pfn);
        is_there.then(|| self.owners.cell(Pfn::new(pfn)))
    }

    /// Takes home, from the taker, what the sender had handed it; returns the pages.
    fn take_all_home(
        &mut self,
        words: &[RawPage],
        sender: ClientId,
        wrong: &mut Option<Misuse>,
    ) -> u64 {
        let mut heads = core::mem::take(&mut self.heads);
        let mut nr_pages = 0;
        for run in words.chunk_by(|a, b| a.order() == b.order()) {
            heads.clear();
            self.owners.take_all(run, sender, &mut heads, wrong);
            let order = u8::try_from(run[0].order()).ok().and_then(Order::new);
            let Some(order) = order else { continue };
            nr_pages += num::count(heads.len()) << order.get();
            self.put_all(&heads, order);
        }
        self.heads = heads;
        nr_pages
    }

    /// Settles what a client has on its way, because it has no room for more: all that is taken.
    pub fn settle_taken_of(&mut self, sender: ClientId, now_ms: u64) -> bool {
        let mut has_settled = false;
        for (ticket, found) in self.posts.parcels_of(sender) {
            if let Transit::Taken(taker) = found
                && let Some(taker) = self.posts.taker(taker, ticket.parts().zone)
            {
                has_settled |= self.apply_taken(ticket, taker, 0, now_ms);
            }
        }
        has_settled
    }

    /// Winds up what a client that is gone had on its way: nothing that it offered can be claimed
    /// any more, and all that is taken, from it or by it, is the taker's. All rings have been
    /// settled.
    pub fn wind_up(&mut self, gone: ClientId, now_ms: u64) {
        self.are_rings_settled = true;
        for (ticket, _) in self.posts.parcels_of(gone) {
            let parts = ticket.parts();
            if let Some(word) = self.posts.transit(parts) {
                // Whoever was first has it.
                let _ = word.close(parts.sequence);
            }
        }
        self.settle_taken_of(gone, now_ms);
        let others: Vec<ClientId> = self.posts.iter().map(|of| of.client).collect();
        for sender in others {
            for (ticket, found) in self.posts.parcels_of(sender) {
                if let Transit::Taken(taker) = found
                    && self.posts.taker(taker, ticket.parts().zone) == Some(gone)
                {
                    self.apply_taken(ticket, gone, 0, now_ms);
                }
            }
        }
        self.posts.close(gone);
        self.end_shares(gone, now_ms);
        self.are_rings_settled = false;
    }
}
