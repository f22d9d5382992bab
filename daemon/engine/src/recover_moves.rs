//! Moves and evictions that a daemon has left half done, and the one step of its journal.
//!
//! The handle decides (PROTOCOLS P6): of the two places the block is at the one that it names, and
//! the other goes home. A handle that names neither was emptied by its client since, or is about to
//! be told of; then the place that the client gives back says which it was, and until then both
//! stay as they are.

use hugepool_mm::Pfn;
use hugepool_shm::handle::HandleState;

use crate::Engine;
use crate::cell::Cell;
use crate::id::{ClientId, Now, millis};
use crate::intent::{Intent, IntentId, Kind};
use crate::journal::{Errand, Open};
use crate::ledger::Answer;
use crate::recover::{Recovered, claimed};
use crate::tally::Place;
use crate::{FreeReply, num};

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Old,
    New,
    /// It was taken from its client.
    Gone,
    Unknown,
}

impl Engine {
    /// Ends a move or an eviction by what its handle says. False: it says nothing yet.
    pub(crate) fn decide_move(&mut self, id: IntentId, intent: &Intent, now: Now) -> bool {
        let at = self.where_is(intent);
        let client = intent.lent.client;
        let custody = &mut self.custody;
        if at == At::Unknown {
            return false;
        }
        let is_at_new = at == At::New && intent.kind == Kind::Move;
        if is_at_new && custody.is_daemons(intent.new) {
            custody
                .owners
                .hand_over(intent.new, ClientId::DAEMON, client, millis(now));
        }
        if is_at_new && intent.is_returned {
            custody.undo_lend(client, intent.new, intent.new_generation);
        }
        if is_at_new || at == At::Gone {
            // Where it was is free, if it is not so already.
            custody.undo_lend(client, intent.old, intent.lent.generation);
        } else if intent.kind == Kind::Move && custody.is_daemons(intent.new) {
            custody.drop_daemons(intent.new);
        }
        hugepool_shm::step::reached("recover.move");
        custody.intents.take(id);
        true
    }

    /// Looks again at moves that could not be told.
    pub(crate) fn decide_undecided(&mut self, now: Now) {
        for id in core::mem::take(&mut self.undecided) {
            let Some(intent) = self.custody.intents.get(id) else {
                continue;
            };
            if !self.decide_move(id, &intent, now) {
                self.undecided.push(id);
            }
        }
    }

    fn where_is(&self, intent: &Intent) -> At {
        let Intent { old, new, lent, .. } = *intent;
        let client = self.clients.get(lent.client);
        let Some(link) = client.and_then(|client| client.link.as_ref()) else {
            // Dead and swept: what is the daemon's is all there is to say.
            return At::Old;
        };
        if intent.is_returned {
            return At::New;
        }
        let order = claimed(lent.order);
        let is_old_lent = self
            .custody
            .owners
            .check(lent.client, old.get(), order, lent.generation)
            .is_ok();
        if matches!(self.custody.owners.cell(new), Cell::Lent(there) if there.client == lent.client)
            && intent.kind == Kind::Move
        {
            // Settled, but for the intent.
            return At::New;
        }
        if !is_old_lent {
            // It was given back where it was: a move that is settled has its new place first.
            return if intent.kind == Kind::Evict {
                At::Gone
            } else {
                At::Old
            };
        }
        let word = link.segment.handles().word(intent.handle);
        match word.map(|word| word.reopen()) {
            Some(HandleState::Open { pfn, .. }) if pfn == old.get() => At::Old,
            Some(HandleState::Open { pfn, .. }) if pfn == new.get() => At::New,
            Some(HandleState::Evicted) if intent.kind == Kind::Evict => At::Gone,
            _ if intent.kind == Kind::Evict => At::Old,
            _ => At::Unknown,
        }
    }

    /// Brings home what is the daemon's own and no move speaks of.
    pub(crate) fn drop_strays(&mut self, found: &mut Recovered) {
        let known: Vec<Pfn> = self.custody.intents.iter().map(|one| one.new).collect();
        let account = self.custody.owners.tally().client(ClientId::DAEMON);
        let sections: Vec<u32> = account.map_or(Vec::new(), |account| {
            account.sections().map(|row| row.section).collect()
        });
        let nr_blocks = num::index(self.custody.zones.geometry().section_pageblocks());
        let mut strays = Vec::new();
        for section in sections {
            for block in 0..nr_blocks {
                let place = Place { section, block };
                self.custody.owners.for_each_head(place, &mut |pfn, lent| {
                    if lent.client == ClientId::DAEMON && !known.contains(&pfn) {
                        strays.push(pfn);
                    }
                });
            }
        }
        for pfn in strays {
            found.nr_orphans += 1;
            self.custody.drop_daemons(pfn);
        }
    }

    /// Undoes, or ends, the step that the journal was open for.
    pub(crate) fn undo_step(&mut self, open: Open, found: &mut Recovered) {
        let Open {
            client,
            errand,
            entries,
        } = open;
        if self.clients.get(client).is_none() {
            // Its blocks were nobody's any more.
            return;
        }
        match errand {
            Errand::Grant { lane, class, tail } => {
                let kept = self.state.lane(client, lane);
                let nr_told = kept.map_or(0, |kept| kept.grants_tail_of(class).wrapping_sub(tail));
                for &(pfn, generation) in entries.iter().skip(num::index(nr_told)) {
                    found.nr_orphans += u64::from(self.custody.undo_lend(client, pfn, generation));
                }
            }
            Errand::Call { request_id } => {
                let ledger = self.clients.get(client).map(|client| &client.ledger);
                let answer = ledger.and_then(|ledger| ledger.answers.get(&request_id));
                let is_told = |pfn: Pfn, generation: u32| match answer {
                    Some(Answer::Alloc { reply, .. }) => reply.runs.iter().any(|run| {
                        let pages = u64::from(run.nr_blocks) << run.order.get();
                        let first = u64::from(run.first.get());
                        run.generation == generation
                            && (first..first + pages).contains(&u64::from(pfn.get()))
                    }),
                    _ => false,
                };
                let untold: Vec<(Pfn, u32)> = entries
                    .into_iter()
                    .filter(|&(pfn, generation)| !is_told(pfn, generation))
                    .collect();
                for (pfn, generation) in untold {
                    found.nr_orphans += u64::from(self.custody.undo_lend(client, pfn, generation));
                }
            }
            Errand::Free {
                request_id,
                nr_refused,
            } => {
                let mut heads: Vec<Pfn> = entries.iter().map(|&(pfn, _)| pfn).collect();
                heads.sort_unstable();
                let nr_named = heads.len();
                heads.dedup();
                for (pfn, generation) in entries {
                    self.custody.undo_lend(client, pfn, generation);
                }
                let nr_doubled = num::saturate(num::count(nr_named - heads.len()));
                let reply = FreeReply {
                    nr_blocks: num::saturate(num::count(heads.len())),
                    nr_refused: nr_refused + nr_doubled,
                    refused: Vec::new(),
                };
                if let Some(client) = self.clients.get_mut(client).filter(|_| request_id != 0) {
                    let acknowledged = client.ledger.acknowledged;
                    if request_id > acknowledged {
                        client.ledger.remember(request_id, Answer::Free(reply));
                    }
                }
                self.keep_ledger(client);
            }
        }
    }
}
