//! Serving what clients ask by call: bulk allocation and bulk free.
//!
//! Each call is answered at once. A caller that waits asks again when pages came home;
//! what was found so far is kept for it under its request id.

use hugepool_mm::{Mark, Order, Pfn};

use crate::Engine;
use crate::call::{
    AllocBulk, AllocOutcome, AllocReply, CallError, ClaimedRun, FreeBulk, FreeReply, LentRun,
    MAX_BLOCKS_PER_CALL, MAX_REFUSED_NAMED, Patience, Refused, Shortfall,
};
use crate::client::Client;
use crate::compacting::Caller;
use crate::custody::Custody;
use crate::head_run::HeadRun;
use crate::id::{ClientId, Now, millis};
use crate::journal::Errand;
use crate::ledger::{Answer, Known};
use crate::ledger_words;
use crate::lending::Borrowed;
use crate::num;
use crate::outside::Outside;
use crate::report::ClientState;
use crate::worker::publish_allowance;
use crate::zones::Zones;

impl Engine {
    /// Lends up to so many blocks of any order. Before it answers with fewer, unused blocks
    /// are taken back from lanes, and then evictable ones from whoever has them.
    ///
    /// # Errors
    /// [`CallError`]: nothing was lent. A shortfall is no error.
    pub fn alloc_bulk(
        &mut self,
        session: ClientId,
        request: &AllocBulk,
        patience: Patience,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<AllocOutcome, CallError> {
        let client = in_service(self.clients.get_mut(session))?;
        let settled = settle_ids(
            client,
            &mut self.custody,
            request.acknowledged,
            &request.abandoned,
        );
        self.keep_ledger(session);
        settled?;
        let order = self.check_order(request)?;
        let client = in_service(self.clients.get_mut(session))?;
        let zonelist = zonelist(client, &self.custody, request)?;
        let mut reply = match known(client, request.request_id, self.defaults.max_unacknowledged)? {
            None => AllocReply::default(),
            Some(Answer::Alloc {
                reply,
                is_final: true,
            }) => {
                return Ok(AllocOutcome::Done(reply.clone()));
            }
            Some(Answer::Alloc { reply, .. }) => core::mem::take(reply),
            Some(Answer::Free(_)) => {
                return Err(CallError::OtherCall {
                    request_id: request.request_id,
                });
            }
        };
        let ask = Ask {
            session,
            zonelist,
            order,
            request,
            now,
        };
        let request_id = request.request_id;
        self.custody
            .open_journal(session, Errand::Call { request_id });
        let mut shortfall = self.lend_to(&ask, &mut reply);
        let nr_missing = request.nr_blocks.saturating_sub(reply.nr_blocks);
        let wanted = u64::from(nr_missing) << order.get();
        if shortfall.is_some_and(may_be_relieved)
            && self.relieve(session, &ask.zonelist, wanted, now, outside) > 0
        {
            shortfall = self.lend_to(&ask, &mut reply);
        }
        let nr_missing = request.nr_blocks.saturating_sub(reply.nr_blocks);
        // Who owns more than its share has nothing taken from others for it.
        if shortfall.is_some_and(may_be_relieved)
            && self.by_greed(&[session], &ask.zonelist).0.is_empty()
            && self.evict_for(&ask.zonelist, order, nr_missing, now) > 0
        {
            shortfall = self.lend_to(&ask, &mut reply);
        }
        let caller = Caller {
            session,
            request_id: request.request_id,
        };
        match shortfall {
            Some(Shortfall::Fragmented { .. }) if patience == Patience::Waits => {
                self.compact_for(caller, &ask.zonelist, order, request.migratetype, now);
            }
            Some(_) if patience == Patience::Waits => {}
            _ => self.leave_compactions(session, Some(request.request_id)),
        }
        let outcome = self.conclude(session, request_id, reply, shortfall, patience);
        self.keep_ledger(session);
        self.custody.owners.journal.close();
        Ok(outcome)
    }

    /// Takes blocks back. What is not the caller's is refused block by block, and nothing
    /// else changes.
    ///
    /// # Errors
    /// [`CallError`]: nothing was taken.
    pub fn free_bulk(
        &mut self,
        session: ClientId,
        request: &FreeBulk,
    ) -> Result<FreeReply, CallError> {
        let client = in_service(self.clients.get_mut(session))?;
        settle_ids(client, &mut self.custody, request.acknowledged, &[])?;
        let asked = request
            .runs
            .iter()
            .map(|run| u64::from(run.nr_blocks))
            .sum();
        if asked > u64::from(MAX_BLOCKS_PER_CALL) {
            return Err(CallError::TooManyBlocks {
                asked,
                most: MAX_BLOCKS_PER_CALL,
            });
        }
        match known(client, request.request_id, self.defaults.max_unacknowledged)? {
            None => {}
            Some(Answer::Free(reply)) => return Ok(reply.clone()),
            Some(Answer::Alloc { .. }) => {
                return Err(CallError::OtherCall {
                    request_id: request.request_id,
                });
            }
        }
        let named = self.named_by(session, request);
        self.open_free(session, request.request_id, &named);
        let mut reply = FreeReply::default();
        let Some(client) = self.clients.get_mut(session) else {
            return Err(CallError::NoSession);
        };
        let custody = &mut self.custody;
        let mut take_block = |custody: &mut Custody, reply: &mut FreeReply, block: Block| {
            let Block {
                pfn,
                order,
                generation,
            } = block;
            match custody.take_named_home(session, pfn, order, generation) {
                Ok(_) => reply.nr_blocks += 1,
                Err(misuse) => {
                    client.note_misuse(misuse);
                    reply.nr_refused += 1;
                    if reply.refused.len() < MAX_REFUSED_NAMED {
                        reply.refused.push(Refused { pfn, misuse });
                    }
                }
            }
        };
        for named in named {
            match named {
                Named::Block(block) => take_block(custody, &mut reply, block),
                Named::Pages(run, generation) => {
                    if custody.take_heads_home(session, run, Some(generation)) {
                        reply.nr_blocks += run.nr_blocks;
                        continue;
                    }
                    // Some of them were named before.
                    for head in run.heads(Order::ZERO) {
                        let block = Block {
                            pfn: head.get(),
                            order: 0,
                            generation,
                        };
                        take_block(custody, &mut reply, block);
                    }
                }
            }
        }
        publish_allowance(client, &self.custody);
        self.nr_misuses += u64::from(reply.nr_refused);
        if request.request_id != 0 {
            client
                .ledger
                .remember(request.request_id, Answer::Free(reply.clone()));
        }
        self.keep_ledger(session);
        self.custody.owners.journal.close();
        Ok(reply)
    }

    /// What a call to free names: neighbours together where all of them are the caller's.
    fn named_by(&self, session: ClientId, request: &FreeBulk) -> Vec<Named> {
        let mut named = Vec::new();
        for run in &request.runs {
            let pages = HeadRun {
                first: Pfn::new(run.first_pfn),
                nr_blocks: run.nr_blocks,
            };
            let generation = run.generation;
            let owners = &self.custody.owners;
            if run.order == 0
                && run.nr_blocks > 1
                && owners.alike(session, pages, Some(generation)).is_some()
            {
                named.push(Named::Pages(pages, generation));
            } else {
                named.extend(blocks_of(run).map(Named::Block));
            }
        }
        named
    }

    /// Notes which blocks a call is about to take back: those that are the caller's.
    fn open_free(&mut self, session: ClientId, request_id: u64, named: &[Named]) {
        let owners = &self.custody.owners;
        let mut right = Vec::new();
        let mut nr_refused = 0;
        for named in named {
            match named {
                Named::Pages(run, generation) => right.push((*run, Order::ZERO, *generation)),
                Named::Block(block) => {
                    match owners.check(session, block.pfn, block.order, block.generation) {
                        Ok(lent) => {
                            let run = HeadRun::of_one(Pfn::new(block.pfn));
                            right.push((run, lent.order, block.generation));
                        }
                        Err(_) => nr_refused += 1,
                    }
                }
            }
        }
        let errand = Errand::Free {
            request_id,
            nr_refused,
        };
        let journal = &mut self.custody.owners.journal;
        journal.open_with(session, errand, &right);
    }

    /// Keeps what a session has not acknowledged, for a daemon that comes after.
    pub(crate) fn keep_ledger(&self, session: ClientId) {
        // A connection without a segment ends with this daemon.
        if let Some(client) = self.clients.get(session).filter(|c| c.link.is_some()) {
            let words = self.state.ledger(session);
            ledger_words::keep(&words, &client.ledger, session.incarnation);
            hugepool_shm::step::reached("ledger.kept");
        }
    }

    /// The caller gave a call up before it was answered, or its reply could not be handed over:
    /// what was lent for it goes home, and the id is not served again.
    pub fn abandon(&mut self, session: ClientId, request_id: u64) {
        self.leave_compactions(session, Some(request_id));
        if let Some(client) = self.clients.get_mut(session).filter(|_| request_id != 0) {
            // A full ledger is a caller's nonsense; its pages stay its own.
            let _ = settle_ids(client, &mut self.custody, 0, &[request_id]);
        }
        self.keep_ledger(session);
    }

    fn check_order(&self, request: &AllocBulk) -> Result<Order, CallError> {
        let max_order = self.custody.zones.geometry().max_order();
        let order = u8::try_from(request.order).ok().and_then(Order::new);
        let order = order
            .filter(|&order| order <= max_order)
            .ok_or(CallError::Order {
                order: request.order,
                max_order: u32::from(max_order.get()),
            })?;
        let asked = u64::from(request.nr_blocks);
        if asked > u64::from(MAX_BLOCKS_PER_CALL) {
            return Err(CallError::TooManyBlocks {
                asked,
                most: MAX_BLOCKS_PER_CALL,
            });
        }
        Ok(order)
    }

    /// Lends what is missing in `reply`; returns why it is still short.
    fn lend_to(&mut self, ask: &Ask<'_>, reply: &mut AllocReply) -> Option<Shortfall> {
        let client = self.clients.get(ask.session)?;
        let missing = ask.request.nr_blocks.saturating_sub(reply.nr_blocks);
        let mut who = client.borrower(&ask.zonelist);
        if ask.request.is_urgent {
            who.mark = Mark::Atomic;
        }
        let mut lent: Vec<(HeadRun, u32)> = Vec::new();
        let Borrowed {
            nr_blocks,
            shortfall,
        } = self.custody.lend(
            &who,
            ask.order,
            ask.request.migratetype,
            num::index(missing),
            millis(ask.now),
            &mut |run, generation| lent.push((run, generation)),
        );
        lent.sort_unstable();
        append_runs(&mut reply.runs, &lent, ask.order, &self.custody.zones);
        reply.nr_blocks += num::saturate(num::count(nr_blocks));
        shortfall
    }

    fn conclude(
        &mut self,
        session: ClientId,
        request_id: u64,
        mut reply: AllocReply,
        shortfall: Option<Shortfall>,
        patience: Patience,
    ) -> AllocOutcome {
        // Without an id nothing can be kept for the caller: it waits for the first block.
        let waits = patience == Patience::Waits && (request_id != 0 || reply.nr_blocks == 0);
        let is_final = shortfall.is_none() || !waits;
        reply.shortfall = match (shortfall, patience) {
            (Some(reason), Patience::Over(timeout)) if may_pass(reason) => {
                Some(Shortfall::Deadline { timeout })
            }
            (shortfall, _) => shortfall,
        };
        if let Some(client) = self.clients.get_mut(session) {
            publish_allowance(client, &self.custody);
            if request_id != 0 {
                let answer = Answer::Alloc {
                    reply: reply.clone(),
                    is_final,
                };
                client.ledger.remember(request_id, answer);
            }
        }
        match reply.shortfall {
            Some(shortfall) if !is_final => AllocOutcome::Waiting {
                nr_blocks: reply.nr_blocks,
                shortfall,
            },
            _ => AllocOutcome::Done(reply),
        }
    }
}

/// One call's way through the engine.
#[derive(Debug)]
struct Ask<'a> {
    session: ClientId,
    zonelist: Vec<usize>,
    order: Order,
    request: &'a AllocBulk,
    now: Now,
}

/// A block as a call names it.
#[derive(Clone, Copy, Debug)]
struct Block {
    pfn: u32,
    order: u32,
    generation: u32,
}

/// What a call to free names.
#[derive(Clone, Copy, Debug)]
enum Named {
    /// Neighbouring pages that were the caller's when it called, at this generation.
    Pages(HeadRun, u32),
    /// Whatever it is.
    Block(Block),
}

/// The blocks of a run, one by one. The first is where the run says,
/// whatever the order; one past the last page names no page.
fn blocks_of(run: &ClaimedRun) -> impl Iterator<Item = Block> + '_ {
    (0..u64::from(run.nr_blocks)).map(|block| {
        let offset = match (block, run.order) {
            (0, _) => Some(0),
            (_, order @ 0..32) => block.checked_shl(order),
            _ => None,
        };
        let pfn = offset.and_then(|offset| u64::from(run.first_pfn).checked_add(offset));
        Block {
            pfn: num::saturate(pfn.unwrap_or(u64::MAX)),
            order: run.order,
            generation: run.generation,
        }
    })
}

fn in_service(client: Option<&mut Client>) -> Result<&mut Client, CallError> {
    let client = client.ok_or(CallError::NoSession)?;
    match client.state {
        ClientState::Attaching | ClientState::Attached => Ok(client),
        ClientState::Detached | ClientState::Poisoned | ClientState::Quarantined => {
            Err(CallError::Detached)
        }
    }
}

/// What the call says of earlier ids: facts, whatever becomes of the call itself. An id may be
/// abandoned and acknowledged at once, so abandoned ones come first.
fn settle_ids(
    client: &mut Client,
    custody: &mut Custody,
    acknowledged: u64,
    abandoned: &[u64],
) -> Result<(), CallError> {
    let mut result = Ok(());
    for &id in abandoned {
        match client.ledger.abandon(id) {
            Ok(runs) => runs
                .iter()
                .for_each(|run| take_back(client.id, custody, run)),
            Err(error) => result = Err(error),
        }
    }
    client.ledger.acknowledge(acknowledged);
    result
}

/// Takes home what is still as it was lent; the rest the caller has freed meanwhile.
fn take_back(client: ClientId, custody: &mut Custody, run: &LentRun) {
    let pages = HeadRun {
        first: run.first,
        nr_blocks: run.nr_blocks,
    };
    if run.order == Order::ZERO && custody.take_heads_home(client, pages, Some(run.generation)) {
        return;
    }
    for block in 0..run.nr_blocks {
        let offset = block.saturating_mul(run.order.nr_pages());
        let pfn = run.first.get().saturating_add(offset);
        let order = u32::from(run.order.get());
        let _ = custody.take_named_home(client, pfn, order, run.generation);
    }
}

/// What was answered under this id before; `None` for a new id and for no id.
fn known(
    client: &mut Client,
    request_id: u64,
    most: usize,
) -> Result<Option<&mut Answer>, CallError> {
    if request_id == 0 {
        return Ok(None);
    }
    match client.ledger.look_up(request_id, most)? {
        Known::New => Ok(None),
        Known::Answer(answer) => Ok(Some(answer)),
    }
}

/// The zones that may serve the request, best first.
fn zonelist(
    client: &Client,
    custody: &Custody,
    request: &AllocBulk,
) -> Result<Vec<usize>, CallError> {
    let Some(name) = &request.zone else {
        return Ok(client.zonelist(request.migratetype).to_vec());
    };
    let name = || name.clone();
    let Some(zone) = custody.zones.named(&name()) else {
        return Err(CallError::NoSuchZone { name: name() });
    };
    if !client.may_use(zone) {
        return Err(CallError::ZoneForbidden { name: name() });
    }
    if !custody.zones.zone(zone).admits(request.migratetype) {
        return Err(CallError::MovableOnly { name: name() });
    }
    Ok(vec![zone])
}

/// Whether pages in lanes could be what is missing.
fn may_be_relieved(shortfall: Shortfall) -> bool {
    match shortfall {
        Shortfall::ZoneEmpty { .. } | Shortfall::Fragmented { .. } | Shortfall::Offlining => true,
        Shortfall::Quota { .. } | Shortfall::NotMapped { .. } | Shortfall::Deadline { .. } => false,
    }
}

/// Whether waiting longer could have helped, so that the deadline is the reason.
fn may_pass(shortfall: Shortfall) -> bool {
    !matches!(shortfall, Shortfall::Quota { .. })
}

/// Adds blocks, sorted by pfn, to runs.
fn append_runs(runs: &mut Vec<LentRun>, lent: &[(HeadRun, u32)], order: Order, zones: &Zones) {
    for &(HeadRun { first, nr_blocks }, generation) in lent {
        let follows = runs.last().is_some_and(|run| {
            let nr_pages = run.nr_blocks.saturating_mul(order.nr_pages());
            run.generation == generation
                && run.first.checked_add(nr_pages) == Some(first)
                // Zones lie one behind the other; a run is of one.
                && zones.of_page(run.first) == zones.of_page(first)
        });
        match runs.last_mut().filter(|_| follows) {
            Some(run) => run.nr_blocks += nr_blocks,
            None => runs.push(LentRun {
                first,
                nr_blocks,
                order,
                generation,
            }),
        }
    }
}
