//! What clients ask by call; replies that are lost, repeated or given up.

use hugepool_engine::{
    AllocBulk, AllocOutcome, AllocReply, CallError, ClaimedRun, FreeBulk, Misuse, Patience,
    Shortfall,
};
use hugepool_mm::Migratetype;
use hugepool_shm::raw::{RawMigratetype, RawPage};

use crate::model::Broken;
use crate::tenant::{Pending, Tenant};
use crate::world::World;

impl World {
    pub(crate) fn call(&mut self) -> Result<(), Broken> {
        self.some_tenant(|_| true)
            .map_or(Ok(()), |at| self.call_by(at))
    }

    /// One tenant asks for blocks.
    pub(crate) fn call_by(&mut self, at: usize) -> Result<(), Broken> {
        let request = self.draw_request(at);
        let patience = match self.prng.below(5) {
            0 | 2 if request.request_id != 0 => Patience::Waits,
            1 => Patience::Over(core::time::Duration::from_millis(5)),
            _ => Patience::None,
        };
        self.send(at, request, patience)
    }

    fn draw_request(&mut self, at: usize) -> AllocBulk {
        let migratetype = *self
            .prng
            .pick(&Migratetype::ALL)
            .unwrap_or(&Migratetype::Unmovable);
        let max_order = u32::from(self.geometry().max_order().get());
        // Now and then an order that is none.
        let order = if self.prng.chance(1, 2) {
            0
        } else {
            self.prng.below_u32(max_order + 2)
        };
        let zone = self.prng.chance(1, 4).then(|| {
            let zones = &self.swarm.config.zones;
            self.prng
                .pick(zones)
                .map_or_else(String::new, |zone| zone.name.clone())
        });
        let nr_blocks = self.prng.small(if order == 0 { 300 } else { 16 }) - 1;
        let is_named = self.prng.chance(3, 4);
        let gives_up = self.prng.chance(1, 3);
        let tenant = &mut self.tenants[at];
        let request_id = if is_named {
            tenant.last_request += 1;
            tenant.last_request
        } else {
            0
        };
        let mut abandoned = Vec::new();
        if gives_up {
            abandoned.extend(
                tenant
                    .pending
                    .iter()
                    .map(|pending| pending.request.request_id),
            );
        }
        // A session that is shut hears of nothing any more: what it was promised stays its own.
        if !tenant.is_shut() {
            let is_kept = |one: &Pending| !abandoned.contains(&one.request.request_id);
            tenant.pending.retain(is_kept);
        }
        // The id of this very call is not answered yet.
        let acknowledged = match tenant.acknowledged() {
            last if last == request_id && last > 0 => last - 1,
            last => last,
        };
        AllocBulk {
            request_id,
            acknowledged,
            abandoned,
            zone,
            order,
            nr_blocks,
            migratetype,
            is_urgent: self.prng.chance(1, 8),
        }
    }

    fn send(&mut self, at: usize, request: AllocBulk, patience: Patience) -> Result<(), Broken> {
        let id = self.tenants[at].id;
        self.trace.add(format_args!(
            "{id} #{} order {} x {} {:?}",
            request.request_id, request.order, request.nr_blocks, patience
        ));
        let outcome = self
            .engine
            .alloc_bulk(id, &request, patience, self.now, &mut self.outside);
        match outcome {
            Ok(AllocOutcome::Done(reply)) => {
                let nr = reply.nr_blocks;
                self.trace
                    .add(format_args!("-> {nr} {:?}", reply.shortfall));
                check_reply(&request, &reply)?;
                if request.request_id != 0 && self.prng.chance(1, 5) {
                    let nr_pages = u64::from(nr) << request.order;
                    let pending = Pending {
                        request,
                        reply: Some(reply),
                        nr_pages,
                    };
                    self.tenants[at].pending.push(pending);
                    return Ok(());
                }
                self.accept(at, &request, &reply)
            }
            Ok(AllocOutcome::Waiting {
                nr_blocks,
                shortfall,
            }) => {
                self.trace
                    .add(format_args!("-> {nr_blocks} so far {shortfall:?}"));
                let nr_pages = u64::from(nr_blocks) << request.order;
                self.tenants[at].pending.push(Pending {
                    request,
                    reply: None,
                    nr_pages,
                });
                Ok(())
            }
            Err(error) => {
                self.trace.add(format_args!("-> {error}"));
                self.check_refusal(at, &request, &error)
            }
        }
    }

    /// A lost reply is asked for again, or the caller gives the call up.
    pub(crate) fn repeat(&mut self) -> Result<(), Broken> {
        let Some(at) = self.some_tenant(|tenant| !tenant.pending.is_empty()) else {
            return Ok(());
        };
        let nth = self.prng.index(self.tenants[at].pending.len());
        let pending = self.tenants[at].pending.swap_remove(nth);
        let (id, number) = (self.tenants[at].id, pending.request.request_id);
        if self.prng.chance(1, 4) {
            self.trace.add(format_args!("{id} #{number} given up"));
            self.engine.abandon(id, number);
            if self.tenants[at].is_shut() {
                self.tenants[at].pending.push(pending);
            }
            return Ok(());
        }
        let patience = if self.prng.chance(1, 3) {
            Patience::Waits
        } else {
            Patience::None
        };
        let outcome =
            self.engine
                .alloc_bulk(id, &pending.request, patience, self.now, &mut self.outside);
        match outcome {
            Ok(AllocOutcome::Done(reply)) => {
                self.trace
                    .add(format_args!("{id} #{number} -> {}", reply.nr_blocks));
                check_reply(&pending.request, &reply)?;
                if pending.reply.as_ref().is_some_and(|first| *first != reply) {
                    return Err(format!(
                        "{id} #{number} was answered {:?} and then {reply:?}",
                        pending.reply
                    ));
                }
                self.accept(at, &pending.request, &reply)
            }
            Ok(AllocOutcome::Waiting { nr_blocks, .. }) => {
                self.trace
                    .add(format_args!("{id} #{number} -> {nr_blocks} so far"));
                if pending.reply.is_some() {
                    return Err(format!("{id} #{number} was answered and then was not"));
                }
                let nr_pages = u64::from(nr_blocks) << pending.request.order;
                self.tenants[at].pending.push(Pending {
                    nr_pages,
                    ..pending
                });
                Ok(())
            }
            Err(error) => {
                self.trace.add(format_args!("{id} #{number} -> {error}"));
                let result = self.check_refusal(at, &pending.request, &error);
                self.tenants[at].pending.push(pending);
                result
            }
        }
    }

    pub(crate) fn free_call(&mut self) -> Result<(), Broken> {
        let Some(at) = self.some_tenant(|tenant| !tenant.held.is_empty()) else {
            return Ok(());
        };
        let count = self.prng.small(40) as usize;
        let pages = self.let_go(at, count)?;
        let tenant = &mut self.tenants[at];
        let id = tenant.id;
        tenant.last_request += 1;
        let acknowledged = tenant.acknowledged().min(tenant.last_request - 1);
        let runs = pages.iter().map(|page| claim(*page)).collect();
        let request = FreeBulk {
            request_id: tenant.last_request,
            acknowledged,
            runs,
        };
        match self.engine.free_bulk(id, &request) {
            Ok(reply) => {
                self.trace
                    .add(format_args!("{id} {} -> {}", pages.len(), reply.nr_blocks));
                if self.tenants[at].is_honest && reply.nr_refused > 0 {
                    return Err(format!(
                        "{id} gave back what it held and was refused: {reply:?}"
                    ));
                }
                // Asked again, the answer is the same and nothing more happens.
                match self.engine.free_bulk(id, &request) {
                    Ok(again) if again == reply => Ok(()),
                    other => Err(format!("{id} was answered {reply:?} and then {other:?}")),
                }
            }
            Err(error) => {
                self.trace.add(format_args!("{id} -> {error}"));
                let is_full = matches!(error, CallError::TooManyUnacknowledged { .. });
                let tenant = &self.tenants[at];
                if !is_full && !tenant.is_shut() {
                    return Err(format!("{id} was refused a free: {error}"));
                }
                self.receive(at, pages)
            }
        }
    }

    /// An honest client gives a block back by a claim that is wrong in one thing, then twice by
    /// the right one: refused each time but one, with the right reason.
    pub(crate) fn probe(&mut self) -> Result<(), Broken> {
        let like = |tenant: &Tenant| tenant.is_honest && !tenant.is_shut();
        let Some(at) = self.some_tenant(|one| like(one) && !one.held.is_empty()) else {
            return Ok(());
        };
        let pages = self.let_go(at, 1)?;
        let Some(right) = pages.first().map(|page| claim(*page)) else {
            return Ok(());
        };
        let order = (right.order + 1 + self.prng.below_u32(5)) % 7;
        let generation = right.generation ^ (1 << self.prng.below_u32(20));
        let runs = vec![
            ClaimedRun { order, ..right },
            ClaimedRun {
                generation,
                ..right
            },
            right,
            right,
        ];
        let request = FreeBulk {
            request_id: 0,
            acknowledged: 0,
            runs,
        };
        let id = self.tenants[at].id;
        self.tenants[at].nr_probes += 3;
        self.trace.add(format_args!("{id} {}", right.first_pfn));
        let reply = self
            .engine
            .free_bulk(id, &request)
            .map_err(|error| error.to_string())?;
        let reasons: Vec<&Misuse> = reply
            .refused
            .iter()
            .map(|refused| &refused.misuse)
            .collect();
        let is_told = matches!(
            reasons[..],
            [
                Misuse::WrongOrder { .. },
                Misuse::Stale { .. },
                Misuse::NotLent { .. }
            ]
        );
        // A block that is being moved under it is the daemon's for the moment.
        let is_moving = matches!(
            reasons[..],
            [
                Misuse::NotYours { .. },
                Misuse::NotYours { .. },
                Misuse::NotYours { .. }
            ]
        );
        let is_right = is_told || is_moving;
        if is_right && reply.nr_blocks == 1 {
            return Ok(());
        }
        Err(format!(
            "{id} claimed {request:?} and was answered {reply:?}"
        ))
    }

    /// A reply has arrived.
    fn accept(&mut self, at: usize, request: &AllocBulk, reply: &AllocReply) -> Result<(), Broken> {
        let mt = match request.migratetype {
            Migratetype::Unmovable => RawMigratetype::Unmovable,
            Migratetype::Movable => RawMigratetype::Movable,
            Migratetype::Reclaimable => RawMigratetype::Reclaimable,
        };
        let words = self.tenants[at].words(reply, mt, &self.zone_of);
        self.receive(at, words)
    }

    /// A call may be refused for these reasons and no others.
    fn check_refusal(
        &self,
        at: usize,
        request: &AllocBulk,
        error: &CallError,
    ) -> Result<(), Broken> {
        let tenant: &Tenant = &self.tenants[at];
        let max_order = u32::from(self.geometry().max_order().get());
        let is_right = match error {
            CallError::Detached => tenant.is_shut(),
            CallError::Order { .. } => request.order > max_order,
            CallError::ZoneForbidden { .. } | CallError::MovableOnly { .. } => {
                request.zone.is_some()
            }
            CallError::TooManyUnacknowledged { .. } => true,
            _ => !tenant.is_honest,
        };
        if is_right {
            return Ok(());
        }
        Err(format!(
            "{} sent {request:?} and was refused: {error}",
            tenant.id
        ))
    }
}

/// What every answer keeps: no more than asked, a reason exactly if less, and runs that add up.
fn check_reply(request: &AllocBulk, reply: &AllocReply) -> Result<(), Broken> {
    let blocks: u32 = reply.runs.iter().map(|run| run.nr_blocks).sum();
    let is_short = reply.nr_blocks < request.nr_blocks;
    let mut adds_up = blocks == reply.nr_blocks
        && reply.nr_blocks <= request.nr_blocks
        && is_short == reply.shortfall.is_some()
        && reply
            .runs
            .iter()
            .all(|run| u32::from(run.order.get()) == request.order);
    if let Some(Shortfall::Quota {
        owned_pages,
        ceiling_pages,
    }) = reply.shortfall
    {
        let block = 1u64 << request.order;
        adds_up &= owned_pages + block > ceiling_pages;
    }
    if adds_up {
        return Ok(());
    }
    Err(format!("{request:?} was answered {reply:?}"))
}

/// A block in hand as the claim that gives it back.
pub(crate) fn claim(page: RawPage) -> ClaimedRun {
    ClaimedRun {
        first_pfn: page.pfn(),
        nr_blocks: 1,
        order: page.order(),
        generation: page.generation(),
    }
}
