//! Blocks under handles, and the runner that moves them: interrupted, late, or failing.
//!
//! Here the model learns where a block is now, by the word of its handle, as its client does. Each
//! page holds a number that its holder wrote there, so a copy that lands where it must not is
//! found when the page is given back.

use hugepool_engine::{BlockCopy, MoveBatch, MovedBatch};
use hugepool_shm::handle::{HandleState, PinError};
use hugepool_shm::raw::{RawMigratetype, RawPage};

use crate::model::Broken;
use crate::tenant::{Tenant, UnderHandle};
use crate::world::World;

impl World {
    pub(crate) fn make_movable(&mut self) -> Result<(), Broken> {
        let like = |tenant: &Tenant| tenant.segment.is_some() && !tenant.held.is_empty();
        let Some(at) = self.some_tenant(like) else {
            return Ok(());
        };
        let count = self.prng.small(64) as usize;
        let tenant = &mut self.tenants[at];
        let Some(segment) = tenant.segment.clone() else {
            return Ok(());
        };
        let is_movable = |page: &RawPage| page.migratetype() != Some(RawMigratetype::Unmovable);
        let mut nr = 0;
        while nr < count
            && let Some(index) = tenant.held.iter().position(is_movable)
        {
            let page = tenant.held.swap_remove(index);
            let handle = tenant.free_handles.pop().unwrap_or_else(|| {
                tenant.next_handle += 1;
                tenant.next_handle - 1
            });
            if !segment.handles().fill(handle, page) {
                // There is one for each page; who has words twice runs out of them.
                if tenant.is_honest {
                    return Err(format!("{} has no handle {handle}", tenant.id));
                }
                tenant.next_handle -= 1;
                tenant.held.push(page);
                break;
            }
            tenant.movable.push(UnderHandle {
                handle,
                page,
                nr_pins: 0,
            });
            nr += 1;
        }
        self.trace.add(format_args!("{} {nr}", tenant.id));
        Ok(())
    }

    pub(crate) fn pin(&mut self) -> Result<(), Broken> {
        let Some((at, nth)) = self.some_movable(|_| true) else {
            return Ok(());
        };
        self.pin_one(at, nth)?;
        self.trace.add(format_args!(
            "{} {:?}",
            self.tenants[at].id, self.tenants[at].movable[nth]
        ));
        Ok(())
    }

    pub(crate) fn unpin(&mut self) -> Result<(), Broken> {
        if let Some((at, nth)) = self.some_movable(|one| one.nr_pins > 0) {
            self.unpin_one(at, nth);
        }
        Ok(())
    }

    /// Takes blocks out of their handles, to be kept as plain pages or freed.
    pub(crate) fn unhand(&mut self) -> Result<(), Broken> {
        let is_freed = self.prng.chance(2, 3);
        for _ in 0..self.prng.small(16) {
            let Some((at, nth)) = self.some_movable(|one| one.nr_pins == 0) else {
                return Ok(());
            };
            self.unhand_one(at, nth, is_freed)?;
        }
        Ok(())
    }

    /// The runner carries a batch out, and may be slow to say so.
    pub(crate) fn carry_out(&mut self, batch: &MoveBatch, is_well: bool) -> Result<(), Broken> {
        let answer = self.carry_out_unheard(batch, is_well)?;
        self.answers.push(answer);
        self.follow_moves()?;
        if self.prng.chance(1, 2) {
            self.answer_moves()?;
        }
        Ok(())
    }

    /// The same; what came of it is told to nobody yet.
    pub(crate) fn carry_out_unheard(
        &mut self,
        batch: &MoveBatch,
        is_well: bool,
    ) -> Result<MovedBatch, Broken> {
        let mut broken = None;
        let answer = batch.carry_out(&mut |copy| {
            let outcome = self.copy(copy, is_well);
            outcome.unwrap_or_else(|why| {
                broken = Some(why);
                false
            })
        });
        broken.map_or(Ok(answer), Err)
    }

    /// The engine hears of a batch.
    pub(crate) fn answer_moves(&mut self) -> Result<(), Broken> {
        let nth = self.prng.index(self.answers.len());
        let answer = self.answers.swap_remove(nth);
        self.trace.add(format_args!("{answer:?}"));
        let again = self.prng.chance(1, 8).then(|| answer.clone());
        self.engine.moved(answer, self.now, &mut self.outside);
        if let Some(again) = again {
            self.engine.moved(again, self.now, &mut self.outside);
        }
        self.follow_moves()
    }

    /// All batches are carried out and the engine has heard of them.
    pub(crate) fn finish_moves(&mut self) -> Result<(), Broken> {
        loop {
            self.collect_effects()?;
            let is_move = |effect: &hugepool_engine::Effect| {
                matches!(effect, hugepool_engine::Effect::Move { .. })
            };
            if let Some(nth) = self.effects.iter().position(is_move) {
                self.answer_effect(nth, true)?;
            } else if self.answers.is_empty() {
                // Blocks are taken away without a batch, too.
                return self.follow_moves();
            } else {
                self.answer_moves()?;
            }
        }
    }

    /// Pages that are the daemon's because blocks are being moved to them.
    pub(crate) fn pages_on_their_way(&self) -> u64 {
        self.engine.pages_on_their_way()
    }

    /// What is under handles may be elsewhere now, or taken away: the model is told.
    pub(crate) fn follow_moves(&mut self) -> Result<(), Broken> {
        for at in 0..self.tenants.len() {
            let tenant = &mut self.tenants[at];
            let Some(segment) = tenant.segment.clone().filter(|_| tenant.is_honest) else {
                continue;
            };
            let handles = segment.handles();
            let mut moved = Vec::new();
            let mut is_lost = None;
            tenant.movable.retain_mut(|one| {
                let word = handles.word(one.handle);
                let old = one.page;
                match word.map(|word| word.state()) {
                    Some(HandleState::Open { pfn, .. }) if pfn != old.pfn() => {
                        match handles.page(one.handle, pfn) {
                            Some(new) => one.page = new,
                            None => is_lost = Some(*one),
                        }
                        moved.push((old, Some(one.page)));
                        true
                    }
                    Some(HandleState::Open { .. } | HandleState::Closed { .. }) => true,
                    Some(HandleState::Evicted) => {
                        moved.push((old, None));
                        let emptied = word.map(|word| word.empty());
                        tenant.free_handles.push(one.handle);
                        emptied != Some(Err(PinError::Evicted))
                    }
                    Some(HandleState::Free) | None => {
                        is_lost = Some(*one);
                        false
                    }
                }
            });
            let id = tenant.id;
            if let Some(lost) = is_lost {
                return Err(format!("{id} cannot find {lost:?} any more"));
            }
            // What has left goes first: its place may be another's new one.
            for &(old, _) in &moved {
                self.model.give(id, old)?;
            }
            for (old, new) in moved {
                match new {
                    Some(new) => self.arrive(at, old, new)?,
                    None if old.migratetype() == Some(RawMigratetype::Reclaimable) => {}
                    None => return Err(format!("{old:?} was taken from {id}")),
                }
            }
        }
        Ok(())
    }

    /// What a client has under handles is the model's business no more.
    pub(crate) fn forget_movable(&mut self, at: usize) -> Result<(), Broken> {
        let tenant = &mut self.tenants[at];
        let movable = core::mem::take(&mut tenant.movable);
        if tenant.is_honest {
            for one in movable {
                self.model.give(tenant.id, one.page)?;
            }
        }
        Ok(())
    }

    /// The holder writes into its block.
    pub(crate) fn write(&mut self, page: RawPage) {
        let start = page.pfn() as usize;
        for pfn in start..start + (1 << page.order()) {
            self.last_written += 1;
            self.bytes[pfn] = self.last_written;
            self.written[pfn] = self.last_written;
        }
    }

    /// The block holds what its holder wrote.
    pub(crate) fn check_bytes(&self, page: RawPage) -> Result<(), Broken> {
        let start = page.pfn() as usize;
        let range = start..start + (1 << page.order());
        match range
            .into_iter()
            .find(|&pfn| self.bytes[pfn] != self.written[pfn])
        {
            None => Ok(()),
            Some(pfn) => Err(format!(
                "page {pfn} of {page:?} holds {}, and {} was written",
                self.bytes[pfn], self.written[pfn]
            )),
        }
    }

    /// A block is at a new place: nobody's before, mapped there, with all its bytes.
    fn arrive(&mut self, at: usize, old: RawPage, new: RawPage) -> Result<(), Broken> {
        let tenant = &self.tenants[at];
        let id = tenant.id;
        self.model.take(id, new)?;
        let zone = self.zone_of.get(new.pfn() as usize).copied();
        let is_alike = (old.order(), old.migratetype(), old.client())
            == (new.order(), new.migratetype(), new.client());
        if zone != Some(new.zone()) || !tenant.zones.contains(&new.zone()) || !is_alike {
            return Err(format!("{old:?} of {id} became {new:?} in zone {zone:?}"));
        }
        let section = new.pfn() >> self.geometry().section_order();
        let is_mapped = tenant
            .segment
            .as_ref()
            .is_some_and(|segment| segment.is_mapped(section, segment.announced(section)));
        if !is_mapped {
            return Err(format!(
                "{id} cannot touch {new:?}, to where {old:?} was moved"
            ));
        }
        let (from, to) = (old.pfn() as usize, new.pfn() as usize);
        for offset in 0..1 << new.order() {
            self.written[to + offset] = self.written[from + offset];
        }
        self.check_bytes(new)
    }

    /// One copy of the runner's; meanwhile anything may happen, to that block above all.
    fn copy(&mut self, copy: &BlockCopy, is_well: bool) -> Result<bool, Broken> {
        let (from, to) = (copy.from.get() as usize, copy.to.get() as usize);
        let nr_pages = copy.nr_pages as usize;
        // Half of it before, half after what happens meanwhile.
        let half = nr_pages / 2;
        self.bytes.copy_within(from..from + half, to);
        let owner = (0..self.tenants.len()).find_map(|at| {
            let tenant = &self.tenants[at];
            let is_it = |one: &UnderHandle| one.page.pfn() == copy.from.get();
            let nth = tenant.movable.iter().position(is_it);
            nth.filter(|_| tenant.is_honest).map(|nth| (at, nth))
        });
        match self.prng.below(40) {
            0..4 => {
                if let Some((at, nth)) = owner {
                    self.pin_one(at, nth)?;
                    self.unpin_one(at, nth);
                }
            }
            4 | 5 => {
                if let Some((at, nth)) = owner {
                    self.unhand_one(at, nth, true)?;
                }
            }
            6 => {
                self.engine.service(self.now, &mut self.outside, None);
            }
            7 if self.prng.chance(1, 8) => {
                if let Some((at, _)) = owner {
                    self.die(at)?;
                }
            }
            8 => self.take()?,
            9 => self.call()?,
            _ => {}
        }
        self.bytes
            .copy_within(from + half..from + nr_pages, to + half);
        Ok(is_well || self.prng.chance(1, 2))
    }

    fn pin_one(&mut self, at: usize, nth: usize) -> Result<(), Broken> {
        let one = self.tenants[at].movable[nth];
        let Some(segment) = self.tenants[at].segment.clone() else {
            return Ok(());
        };
        let word = segment.handles().word(one.handle);
        let pinned = word.map(|word| word.pin(0));
        if pinned != Some(Ok(one.page.pfn())) {
            return Err(format!("{one:?} was pinned as {pinned:?}"));
        }
        self.tenants[at].movable[nth].nr_pins += 1;
        self.check_bytes(one.page)?;
        self.write(one.page);
        Ok(())
    }

    fn unpin_one(&mut self, at: usize, nth: usize) {
        let tenant = &mut self.tenants[at];
        let one = &mut tenant.movable[nth];
        one.nr_pins -= 1;
        if let Some(segment) = &tenant.segment
            && let Some(word) = segment.handles().word(one.handle)
        {
            word.unpin();
        }
    }

    fn unhand_one(&mut self, at: usize, nth: usize, is_freed: bool) -> Result<(), Broken> {
        let Some(segment) = self.tenants[at].segment.clone() else {
            return Ok(());
        };
        let one = self.tenants[at].movable.swap_remove(nth);
        let handles = segment.handles();
        let emptied = handles.word(one.handle).map(|word| word.empty());
        if emptied != Some(Ok(one.page.pfn())) {
            return Err(format!("{one:?} was emptied as {emptied:?}"));
        }
        self.tenants[at].free_handles.push(one.handle);
        let id = self.tenants[at].id;
        self.trace
            .add(format_args!("{id} {:?} {is_freed}", one.page));
        if !is_freed {
            self.tenants[at].held.push(one.page);
            return Ok(());
        }
        self.model.give(id, one.page)?;
        self.check_bytes(one.page)?;
        let lane = self.prng.below_u32(self.tenants[at].nr_lanes());
        let tenant = &self.tenants[at];
        if !tenant.is_stopped(lane)
            && let Some(client) = tenant.lane(&segment, lane)
        {
            client.put_one_raw(one.page);
        } else {
            segment.free_map().set(one.page.pfn());
        }
        Ok(())
    }

    /// A block under a handle of an honest client that is like that.
    fn some_movable(&mut self, is_like: impl Fn(&UnderHandle) -> bool) -> Option<(usize, usize)> {
        let at = self.some_tenant(|tenant| tenant.is_honest && !tenant.movable.is_empty())?;
        let like: Vec<usize> = (0..self.tenants[at].movable.len())
            .filter(|&nth| is_like(&self.tenants[at].movable[nth]))
            .collect();
        self.prng.pick(&like).map(|&nth| (at, nth))
    }
}
