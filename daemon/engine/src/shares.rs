//! Pages that several clients hold at once, to be read (PROTOCOLS P5).
//!
//! A page becomes shared when the daemon first hears of a second holding: until then it is simply
//! its sealer's. Its owner in the table is always one of its holders, and passes to another when
//! that one's last holding ends; its generation stays. A holder that has let go of the page and
//! still offers it, or has it taken from it by who has not told yet, *lingers*: so nobody who can
//! come to hold the page finds it gone. When nobody is left the page goes home.
//!
//! Holdings are counted by client: the sealer's own, and one for each ticket that was taken. A
//! ticket that was claimed and let go before the daemon looked was never one of them.

use std::collections::BTreeMap;

use hugepool_mm::Pfn;
use hugepool_shm::raw::RawPage;
use hugepool_shm::ticket::{Holds, ShareWord, Ticket};
use hugepool_shm::word_run::WordRun;

use crate::cell::Cell;
use crate::custody::Custody;
use crate::id::ClientId;
use crate::late::{Key, Place};
use crate::misuse::Misuse;
use crate::parcels::Unsettled;

/// One client's part in a shared page; it lingers if it has no holding.
#[derive(Clone, Copy, Debug)]
struct Holder {
    client: ClientId,
    /// Whether it sealed the page and has not let go of it.
    is_sealer: bool,
    /// Where that is kept.
    sealed_at: Option<Place>,
    /// Tickets that it has claimed and not let go of.
    nr_claimed: u32,
}

/// Who holds one page.
#[derive(Debug)]
struct Share {
    generation: u32,
    holders: Vec<Holder>,
}

/// All shared pages, by their heads.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    by_pfn: BTreeMap<u32, Share>,
    /// Heads that were found marked as shared, ascending, until their records are made anew.
    pub marked: Vec<Pfn>,
}

impl Shares {
    /// Whether a client holds any, or lingers at one.
    pub fn holds_any(&self, client: ClientId) -> bool {
        let mut all = self.by_pfn.values();
        all.any(|share| share.position(client).is_some())
    }

    /// Heads of all.
    pub fn heads(&self) -> impl Iterator<Item = Pfn> + '_ {
        self.by_pfn.keys().map(|&pfn| Pfn::new(pfn))
    }

    /// Whether a client is a holder of the page at this generation.
    pub fn is_held_by(&self, pfn: Pfn, generation: u32, client: ClientId) -> bool {
        let share = self.by_pfn.get(&pfn.get());
        share
            .is_some_and(|share| share.generation == generation && share.position(client).is_some())
    }
}

impl Share {
    fn position(&self, client: ClientId) -> Option<usize> {
        self.holders.iter().position(|of| of.client == client)
    }

    fn holder(&mut self, client: ClientId) -> &mut Holder {
        let at = self.position(client).unwrap_or_else(|| {
            self.holders.push(Holder {
                client,
                is_sealer: false,
                sealed_at: None,
                nr_claimed: 0,
            });
            self.holders.len() - 1
        });
        &mut self.holders[at]
    }
}

impl Custody {
    /// Settles what a client says of a page that it has sealed, or offered.
    pub fn settle_share_word(
        &mut self,
        who: ClientId,
        said: ShareWord,
        is_last: bool,
        now_ms: u64,
    ) -> Result<(), Unsettled> {
        let ShareWord {
            pfn, generation, ..
        } = said;
        self.catch_up(pfn, generation, 0, now_ms);
        if !is_last && self.is_ahead_of(pfn, generation) {
            return Err(Unsettled::Ahead);
        }
        match said.says {
            Holds::Recalled => self.reconsider(who, pfn, now_ms),
            Holds::LetGo => self.let_go(who, pfn, generation, now_ms)?,
        }
        Ok(())
    }

    /// The sealer holds the page no longer.
    fn let_go(
        &mut self,
        who: ClientId,
        pfn: u32,
        generation: u32,
        now_ms: u64,
    ) -> Result<(), Misuse> {
        if !self.owners.is_managed(pfn) {
            return Err(Misuse::NoSuchPage { pfn });
        }
        let at = Pfn::new(pfn);
        let Cell::Lent(lent) = self.owners.cell(at) else {
            return Err(Misuse::NotLent { pfn: at });
        };
        if lent.generation != generation {
            return Err(Misuse::Stale {
                pfn: at,
                claimed: generation,
                there: lent.generation,
            });
        }
        let owner = lent.client;
        let not_yours = Misuse::NotYours { pfn: at, owner };
        if !lent.is_shared {
            if owner != who {
                return Err(not_yours);
            }
            if !self.posts.offers_share(who, pfn, generation) {
                return self.take_head_home(who, pfn).map(|_| ());
            }
            let word = RawPage::of_block(pfn, lent.order.get().into(), generation);
            self.open_share(who, word, now_ms);
        }
        let share = self.shares.by_pfn.get_mut(&pfn);
        let holder = share.and_then(|share| {
            let at = share.position(who)?;
            Some(&mut share.holders[at])
        });
        let holder = holder.filter(|holder| holder.is_sealer).ok_or(not_yours)?;
        holder.is_sealer = false;
        let kept = holder.sealed_at.take();
        self.posts.lates.let_go(kept);
        self.reconsider(who, pfn, now_ms);
        Ok(())
    }

    /// Whether a client may pass on holdings of the page in `word`, as far as is known: as its
    /// owner, or as one of its holders.
    fn may_share(&self, sender: ClientId, word: RawPage) -> bool {
        let (pfn, generation) = (word.pfn(), word.generation());
        self.shares.is_held_by(Pfn::new(pfn), generation, sender)
            || self
                .owners
                .check(sender, pfn, word.order(), generation)
                .is_ok()
    }

    /// The same, when all was looked at; if it may, there is a record of the page.
    fn open_share(&mut self, sender: ClientId, word: RawPage, now_ms: u64) -> bool {
        if !self.may_share(sender, word) {
            self.settle_shares_of(word, now_ms);
            if !self.may_share(sender, word) {
                return false;
            }
        }
        let (pfn, generation) = (word.pfn(), word.generation());
        if self.shares.is_held_by(Pfn::new(pfn), generation, sender) {
            return true;
        }
        let sealed_at = self.posts.lates.keep(Key::Sealed, sender, &[word], true);
        self.owners.seal(Pfn::new(pfn));
        hugepool_shm::step::reached("share.opened");
        let holder = Holder {
            client: sender,
            is_sealer: true,
            sealed_at,
            nr_claimed: 0,
        };
        let share = Share {
            generation,
            holders: vec![holder],
        };
        self.shares.by_pfn.insert(pfn, share);
        true
    }

    /// Makes holders of all who have taken tickets of a page and not told, in the order in which they
    /// came to it: who passes on what it holds by such a ticket is not known as a holder otherwise.
    fn settle_shares_of(&mut self, word: RawPage, now_ms: u64) {
        loop {
            let taken = self.posts.taken_shares(word.pfn(), word.generation());
            let next = taken
                .into_iter()
                .find(|&(_, sender, _)| self.may_share(sender, word));
            let Some((ticket, sender, taker)) = next else {
                return;
            };
            // Of who has given it up at this moment nothing is to be noted, and it is not found again.
            if self.posts.settle(ticket, taker) {
                let runs = [WordRun::of_one(word)];
                self.keep_taken(ticket, sender, taker, &runs, true, now_ms);
            }
        }
    }

    /// A ticket of a shared page was taken, and its taker may hold it for long: it is a holder.
    /// Nothing happens if the sender had nothing to share.
    pub fn add_holding(
        &mut self,
        sender: ClientId,
        taker: ClientId,
        ticket: Ticket,
        word: RawPage,
        now_ms: u64,
    ) {
        if !self.open_share(sender, word, now_ms) {
            return;
        }
        if let Some(share) = self.shares.by_pfn.get_mut(&word.pfn()) {
            share.holder(taker).nr_claimed += 1;
        }
        let is_shared = true;
        self.posts.lates.add(ticket, taker, vec![word], is_shared);
    }

    /// A holding that was claimed has ended. `sender` is told if the daemon had not heard of the
    /// holding before.
    pub fn end_holding(
        &mut self,
        who: ClientId,
        sender: Option<ClientId>,
        word: RawPage,
        now_ms: u64,
    ) {
        let (pfn, generation) = (word.pfn(), word.generation());
        if let Some(sender) = sender {
            // What it has passed on meanwhile needs somebody to linger for it.
            if self.posts.offers_share(who, pfn, generation)
                && self.open_share(sender, word, now_ms)
                && let Some(share) = self.shares.by_pfn.get_mut(&pfn)
            {
                share.holder(who);
                // Making the record may have settled what it offered.
                self.reconsider(who, pfn, now_ms);
            }
            return self.reconsider(sender, pfn, now_ms);
        }
        let share = self.shares.by_pfn.get_mut(&pfn);
        if let Some(share) = share.filter(|share| share.generation == generation) {
            let holder = share.holder(who);
            holder.nr_claimed = holder.nr_claimed.saturating_sub(1);
        }
        self.reconsider(who, pfn, now_ms);
    }

    /// Lets go of a holder that has no holding and offers none any more; of the page, if it was the
    /// last.
    pub fn reconsider(&mut self, client: ClientId, pfn: u32, now_ms: u64) {
        let Some(share) = self.shares.by_pfn.get(&pfn) else {
            return;
        };
        let Some(at) = share.position(client) else {
            return;
        };
        let Holder {
            is_sealer,
            nr_claimed,
            ..
        } = share.holders[at];
        let holds = is_sealer || nr_claimed > 0;
        if !holds && !self.posts.offers_share(client, pfn, share.generation) {
            self.drop_holder(client, pfn, now_ms);
        }
    }

    fn drop_holder(&mut self, client: ClientId, pfn: u32, now_ms: u64) {
        let Some(share) = self.shares.by_pfn.get_mut(&pfn) else {
            return;
        };
        let Some(at) = share.position(client) else {
            return;
        };
        let gone = share.holders.swap_remove(at);
        let next = share.holders.first().map(|holder| holder.client);
        self.posts.lates.let_go(gone.sealed_at);
        let at = Pfn::new(pfn);
        match next {
            Some(next) => {
                if matches!(self.owners.cell(at), Cell::Lent(lent) if lent.client == client) {
                    self.owners.pass_shared(at, next, now_ms);
                    hugepool_shm::step::reached("share.passed");
                }
            }
            None => {
                self.shares.by_pfn.remove(&pfn);
                if let Some(taken) = self.owners.take_shared(at) {
                    self.put_all(&[taken.pfn], taken.order);
                }
            }
        }
    }

    /// A client is gone: none of its holdings is left. What it offers is closed, and what is taken
    /// from it is its takers'.
    pub fn end_shares(&mut self, gone: ClientId, now_ms: u64) {
        let shares = self.shares.by_pfn.iter();
        let held = shares.filter(|(_, share)| share.position(gone).is_some());
        let held: Vec<u32> = held.map(|(&pfn, _)| pfn).collect();
        for pfn in held {
            self.drop_holder(gone, pfn, now_ms);
        }
    }

    /// Makes the records anew of what a daemon before has left: `sealed` and `claimed` are the
    /// holdings that it had kept.
    pub fn recover_shares(
        &mut self,
        sealed: Vec<(ClientId, RawPage, Place)>,
        claimed: &[(ClientId, RawPage)],
        now_ms: u64,
    ) {
        let mut strays = Vec::new();
        for (client, word, place) in sealed {
            let is_so = self.is_lent_at(word);
            if !is_so {
                strays.push(place);
                continue;
            }
            let holder = self.share_at(word).holder(client);
            holder.is_sealer = true;
            holder.sealed_at = Some(place);
        }
        for place in strays {
            self.posts.lates.let_go(Some(place));
        }
        for &(client, word) in claimed {
            if self.is_lent_at(word) {
                self.share_at(word).holder(client).nr_claimed += 1;
            }
        }
        for (client, word) in self.posts.offered_shares() {
            // Of a page that is not marked nothing but its sealer was known, which is its owner.
            let is_marked = self.shares.marked.binary_search(&Pfn::new(word.pfn()));
            if is_marked.is_ok() && self.is_lent_at(word) {
                self.share_at(word).holder(client);
            }
        }
        let heads: Vec<Pfn> = self.shares.heads().collect();
        for at in heads {
            self.owners.seal(at);
            let Cell::Lent(lent) = self.owners.cell(at) else {
                continue;
            };
            let holders = self
                .shares
                .by_pfn
                .get(&at.get())
                .map(|share| &share.holders);
            let next = holders.and_then(|holders| holders.first());
            let next = next.map(|holder| holder.client);
            if let Some(next) = next
                && !self.shares.is_held_by(at, lent.generation, lent.client)
            {
                self.owners.pass_shared(at, next, now_ms);
            }
        }
    }

    /// Brings home what a daemon before had not: the last holding had ended.
    pub fn drop_strays_of_shares(&mut self) {
        for at in core::mem::take(&mut self.shares.marked) {
            if !self.shares.by_pfn.contains_key(&at.get())
                && let Some(taken) = self.owners.take_shared(at)
            {
                self.put_all(&[taken.pfn], taken.order);
            }
        }
    }

    fn is_lent_at(&self, word: RawPage) -> bool {
        self.owners.is_managed(word.pfn())
            && matches!(self.owners.cell(Pfn::new(word.pfn())), Cell::Lent(lent)
                if lent.generation == word.generation())
    }

    fn share_at(&mut self, word: RawPage) -> &mut Share {
        self.shares
            .by_pfn
            .entry(word.pfn())
            .or_insert_with(|| Share {
                generation: word.generation(),
                holders: Vec::new(),
            })
    }
}
