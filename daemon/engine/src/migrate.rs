//! Moving blocks that their clients hold, while they hold them: the primitive under offline and
//! compaction.
//!
//! [`Engine::migrate`] takes blocks that can be moved ([`Engine::standing`]), finds each a place,
//! and hands the runner a batch; [`Engine::moved`] settles what came of it. In between, the block
//! is its client's and the place the daemon's. Which blocks, where to, and how often to try is the
//! asker's affair ([`shift`](crate::shift) for sections that leave).

use std::collections::BTreeMap;

use hugepool_mm::{Migratetype, Pfn};
use hugepool_shm::handles::{Named, PageRecord};
use hugepool_shm::raw::PageParts;

use crate::Engine;
use crate::cell::Lent;
use crate::client::{Client, Clients};
use crate::custody::Custody;
use crate::id::{ClientId, Now, OperationId, millis};
use crate::intent::{Intent, IntentId, Intents, Kind};
use crate::lanes::raw_migratetype;
use crate::lending::Borrower;
use crate::moves::{BlockCopy, Move, MoveBatch, MoveOutcome, MovedBatch};
use crate::outside::{Effect, Outside};
use crate::report::ClientState;
use crate::zones::ZoneIndex;

/// The most blocks in a batch: so many are settled and so many begun under one hold of the lock,
/// some tens of microseconds.
pub(crate) const MAX_BLOCKS: usize = 64;
/// The most pages in a batch, beyond its first block: 2 MiB.
const MAX_PAGES: u32 = 512;

/// What can be done with a lent block now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A handle names it, and nobody pins it.
    Free(Named),
    /// A handle names it, and somebody pins it, or has it closed.
    Pinned,
    /// It is on its way already.
    UnderWay,
    /// No handle names it: it stays where it is until its client frees it.
    Fixed,
}

/// A block that can be moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub pfn: Pfn,
    pub lent: Lent,
    pub named: Named,
}

/// What came of one block's move, for its asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Where it was.
    pub from: Pfn,
    pub nr_pages: u32,
    pub outcome: MoveOutcome,
}

/// What was begun.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// The batch, if there is anything in it.
    pub batch: Option<u64>,
    /// Blocks from the front that are in it, or found no place.
    pub nr_seen: usize,
    /// Blocks that found no place.
    pub homeless: Vec<Source>,
}

/// Batches that the runner has not answered yet, and who asked for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batches {
    last: u64,
    asked_by: BTreeMap<u64, OperationId>,
}

/// Where a block is to go. It is taken from its zone already and nobody's yet.
pub(crate) type Target<'a> = dyn FnMut(&mut Custody, &Borrower<'_>, &Source) -> Option<Pfn> + 'a;

/// Anywhere in its zone, else in the other zones of its client that take its kind.
pub(crate) fn anywhere(custody: &mut Custody, who: &Borrower<'_>, source: &Source) -> Option<Pfn> {
    let zone = custody.zones.of_page(source.pfn);
    custody.take_target(who, zone, source.lent.order, source.lent.migratetype)
}

/// What can be done with a lent block now.
pub(crate) fn standing(clients: &Clients, intents: &Intents, pfn: Pfn, lent: &Lent) -> Standing {
    if lent.migratetype == Migratetype::Unmovable || lent.is_shared {
        // Not worth a look into its client's segment.
        return Standing::Fixed;
    }
    if lent.client == ClientId::DAEMON || intents.is_under_way(pfn) {
        return Standing::UnderWay;
    }
    let client = clients.get(lent.client).filter(|client| moves(client));
    let Some(link) = client.and_then(|client| client.link.as_ref()) else {
        return Standing::Fixed;
    };
    match link.segment.handles().look(pfn.get()) {
        Some(named) if named.is_pinned => Standing::Pinned,
        Some(named) => Standing::Free(named),
        None => Standing::Fixed,
    }
}

impl Engine {
    /// What can be done with a lent block now.
    pub(crate) fn standing(&self, pfn: Pfn, lent: &Lent) -> Standing {
        standing(&self.clients, &self.custody.intents, pfn, lent)
    }

    /// Begins to move blocks from the front of `sources`, as many as fit a batch; `asker` is told
    /// by [`moved`](Self::moved).
    pub(crate) fn migrate(
        &mut self,
        asker: OperationId,
        sources: &[Source],
        target: &mut Target<'_>,
        now: Now,
    ) -> Begun {
        let mut begun = Begun::default();
        let mut batch = MoveBatch {
            number: self.batches.last + 1,
            segments: Vec::new(),
            moves: Vec::new(),
        };
        let mut clients: Vec<ClientId> = Vec::new();
        let mut nr_pages = 0;
        for source in sources {
            let pages = source.lent.order.nr_pages();
            let is_full = batch.moves.len() == MAX_BLOCKS
                || (nr_pages > 0 && nr_pages + pages > MAX_PAGES)
                || self.custody.intents.room() == 0;
            if is_full {
                break;
            }
            begun.nr_seen += 1;
            let client = self.clients.get(source.lent.client);
            let is_under_way = self.custody.intents.is_under_way(source.pfn);
            let Some(client) = client.filter(|_| !is_under_way) else {
                continue;
            };
            let who = client.borrower(client.zonelist(source.lent.migratetype));
            let Some(to) = target(&mut self.custody, &who, source) else {
                begun.homeless.push(*source);
                continue;
            };
            let known = clients.iter().position(|&id| id == client.id);
            let Some(segment) = who.segment else { continue };
            let segment = known.unwrap_or_else(|| {
                clients.push(client.id);
                batch.segments.push(segment.clone());
                clients.len() - 1
            });
            nr_pages += pages;
            let link = client.link.as_ref();
            let client_index = link.map_or(0, |link| link.client_index);
            let one = prepare(&mut self.custody, source, to, client_index, now);
            batch.moves.push(Move { segment, ..one });
        }
        if !batch.moves.is_empty() {
            self.batches.last = batch.number;
            self.batches.asked_by.insert(batch.number, asker);
            begun.batch = Some(batch.number);
            self.effects.push(Effect::Move { batch });
        }
        begun
    }

    /// A batch of moves was carried out. An answer to a batch that was answered already is
    /// ignored.
    pub fn moved(&mut self, answer: MovedBatch, now: Now, outside: &mut dyn Outside) {
        let Some(asker) = self.batches.asked_by.remove(&answer.number) else {
            return;
        };
        let mut moved = Vec::with_capacity(answer.outcomes.len());
        for (intent, outcome) in answer.outcomes {
            moved.extend(self.settle_move(intent, outcome, now));
        }
        if let Some(mut operation) = self.operations.take(asker) {
            operation.shift.note(&moved);
            operation.note_moved(&self.custody.zones, &moved);
            if let Some(compacting) = &mut operation.compact {
                compacting.note(&mut self.custody, answer.number, &moved);
            }
            self.operations.put(operation);
            self.advance(asker, now, outside);
        }
    }

    /// Gives both places to whom they belong now. The word says already where the block is.
    fn settle_move(&mut self, intent: IntentId, outcome: MoveOutcome, now: Now) -> Option<Moved> {
        let custody = &mut self.custody;
        let id = intent;
        let intent = custody.intents.get(id)?;
        let Intent { lent, old, new, .. } = intent;
        let order = u32::from(lent.order.get());
        let nr_pages = lent.order.nr_pages();
        let client = self
            .clients
            .get_mut(lent.client)
            .filter(|_| outcome == MoveOutcome::Moved);
        let checked = client.map(|client| {
            let there = custody
                .owners
                .check(client.id, old.get(), order, lent.generation);
            (client, there.err())
        });
        let mut is_misused = false;
        match checked {
            Some((client, None)) => {
                let daemon = ClientId::DAEMON;
                custody
                    .owners
                    .hand_over(new, daemon, client.id, millis(now));
                hugepool_shm::step::reached("move.handed");
                client.nr_moved_pages += u64::from(nr_pages);
                if intent.is_returned {
                    let generation = intent.new_generation;
                    let home = custody.take_named_home(client.id, new.get(), order, generation);
                    debug_assert!(home.is_ok(), "{intent:?}: {home:?}");
                }
                // After the new place: while that is the daemon's, an old one that is home was
                // given back there.
                let home = custody.take_named_home(client.id, old.get(), order, lent.generation);
                debug_assert!(home.is_ok(), "{intent:?}: {home:?}");
            }
            checked => {
                if let Some((client, Some(misuse))) = checked {
                    // Only a client that lies about its handles has freed it from under the move:
                    // it gets nothing for it.
                    client.note_misuse(misuse);
                    is_misused = true;
                }
                let generation = daemon_generation(&intent);
                let home = custody.take_named_home(ClientId::DAEMON, new.get(), order, generation);
                debug_assert!(home.is_ok(), "{intent:?}: {home:?}");
            }
        }
        // Last: whoever finds it goes by what the handle says.
        hugepool_shm::step::reached("move.cells");
        custody.intents.take(id);
        self.nr_misuses += u64::from(is_misused);
        self.nr_move_faults += u64::from(outcome == MoveOutcome::Fault);
        Some(Moved {
            from: old,
            nr_pages,
            outcome,
        })
    }
}

/// Notes the intent and takes the new place into the daemon's custody.
fn prepare(custody: &mut Custody, source: &Source, to: Pfn, client_index: u32, now: Now) -> Move {
    let Source { pfn, lent, named } = *source;
    let generation = custody.lend_to_daemon(to, lent.order, lent.migratetype, millis(now));
    let new_generation = hugepool_shm::raw::next_generation(generation);
    let zone = |pfn| ZoneIndex(custody.zones.of_page(pfn)).id();
    let (from_zone, to_zone) = (zone(pfn), zone(to));
    let parts = PageParts {
        pfn: to.get(),
        order: u32::from(lent.order.get()),
        migratetype: raw_migratetype(lent.migratetype),
        zone: u32::from(to_zone.get()),
        client: client_index,
        generation: new_generation,
    };
    let raw = parts
        .pack()
        .expect("zone and client index were checked when they were made");
    let intent = custody.intents.put(Intent {
        kind: Kind::Move,
        lent,
        old: pfn,
        new: to,
        new_generation,
        handle: named.handle,
        is_returned: false,
    });
    Move {
        intent: intent.expect("there was room, and neither page was under way"),
        segment: 0,
        named,
        copy: BlockCopy {
            from: pfn,
            from_zone,
            to,
            to_zone,
            nr_pages: lent.order.nr_pages(),
        },
        record: PageRecord::new(raw, named.handle),
    }
}

/// The generation of a new place while it is the daemon's: one before the client's.
fn daemon_generation(intent: &Intent) -> u32 {
    intent.new_generation.wrapping_sub(1) & ((1 << hugepool_shm::raw::GENERATION_BITS) - 1)
}

/// Whether the client's words are to be trusted as far as that. One that hung up lives on.
fn moves(client: &Client) -> bool {
    match client.state {
        ClientState::Attaching | ClientState::Attached | ClientState::Detached => true,
        ClientState::Poisoned | ClientState::Quarantined => false,
    }
}
