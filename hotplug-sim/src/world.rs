//! The world of a run: the engine, its clients, told time, and a runner that may be late.
//!
//! One step is one [`Event`], carried out here and in the files beside it by who
//! acts: [`clients`](crate::clients), [`calls`](crate::calls), [`movable`](crate::movable),
//! [`hostile`](crate::hostile), [`admin`](crate::admin).

use hugepool_engine::{
    ClientId, Effect, Engine, MovedBatch, Now, OperationId, Outside, Saved, StateShape, StateWords,
};
use hugepool_mm::{Geometry, SectionId};
use hugepool_shm::raw::RawPage;

use crate::model::{Broken, Model};
use crate::prng::Prng;
use crate::swarm::{Event, Swarm};
use crate::tenant::Tenant;
use crate::trace::Trace;

/// What the engine asks for at once: counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Barriers issued.
    pub nr_barriers: u64,
}

impl Outside for Counted {
    fn barrier(&mut self) {
        self.nr_barriers += 1;
    }

    fn wake(&mut self, _client: ClientId) {}
}

/// Everything there is.
#[derive(Debug)]
pub struct World {
    /// What is simulated.
    pub engine: Engine,
    /// Its words, which outlive it.
    pub state: StateWords,
    /// What was saved of it last, and what it was then.
    pub saved: Saved,
    pub(crate) saved_version: u64,
    /// What it asked for.
    pub outside: Counted,
    /// Told time.
    pub now: Now,
    /// Chance.
    pub prng: Prng,
    /// What may happen.
    pub swarm: Swarm,
    /// The naive twin.
    pub model: Model,
    /// What was done.
    pub trace: Trace,
    /// Clients and connections that live.
    pub tenants: Vec<Tenant>,
    /// What the runner has not done yet.
    pub effects: Vec<Effect>,
    /// Moves that the runner has carried out and not told the engine yet.
    pub answers: Vec<MovedBatch>,
    /// What each page holds.
    pub bytes: Vec<u64>,
    /// What its holder wrote there.
    pub written: Vec<u64>,
    /// Numbers written so far: each is written once.
    pub last_written: u64,
    /// The last operation begun.
    pub last_operation: OperationId,
    /// Zone index of each page.
    pub zone_of: Vec<u32>,
    next_pid: u32,
}

impl World {
    /// The world of a seed, before anything has happened.
    ///
    /// # Errors
    /// The settings drawn make no engine.
    pub fn new(seed: u64, is_printed: bool) -> Result<World, Broken> {
        let mut prng = Prng::from_seed(seed);
        let swarm = Swarm::draw(&mut prng);
        let state = StateWords::private(&StateShape::of(&swarm.config));
        let state = state.map_err(|error| error.to_string())?;
        let engine = Engine::with_state(swarm.config.clone(), state.clone());
        let engine = engine.map_err(|error| error.to_string())?;
        let shape = engine.control_geometry(1);
        let nr_pages = usize::try_from(shape.nr_pages).map_err(|error| error.to_string())?;
        let mut zone_of = Vec::with_capacity(nr_pages);
        for (index, zone) in (0..).zip(&swarm.config.zones) {
            let zone_pages = usize::try_from(zone.reserve_pages).unwrap_or(0);
            zone_of.extend(core::iter::repeat_n(index, zone_pages));
        }
        Ok(World {
            saved: engine.save(),
            saved_version: engine.slow_version(),
            state,
            engine,
            outside: Counted::default(),
            now: Now::from_secs(10),
            prng,
            model: Model::new(nr_pages, shape.nr_sections as usize),
            trace: Trace::new(is_printed),
            tenants: Vec::new(),
            effects: Vec::new(),
            answers: Vec::new(),
            bytes: vec![0; nr_pages],
            written: vec![0; nr_pages],
            last_written: 0,
            last_operation: OperationId(0),
            zone_of,
            next_pid: 100,
            swarm,
        })
    }

    /// One step.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn step(&mut self, step: u64) -> Result<(), Broken> {
        self.trace.begin(step, self.now.as_millis());
        let event = self.swarm.next(&mut self.prng);
        self.trace.add(format_args!("{event:?}"));
        self.act(event)?;
        self.collect_effects()?;
        self.save();
        self.trace.end();
        Ok(())
    }

    fn act(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Attach => self.attach(),
            Event::HangUp => self.hang_up(),
            Event::Die => self.some_tenant(|_| true).map_or(Ok(()), |at| self.die(at)),
            Event::Connection => self.connection(),
            Event::Take => self.take(),
            Event::Put => self.put(),
            Event::PutIntoMap => self.put_into_map(),
            Event::MakeMovable => self.make_movable(),
            Event::Pin => self.pin(),
            Event::Unpin => self.unpin(),
            Event::Unhand => self.unhand(),
            Event::Call => self.call(),
            Event::FreeCall => self.free_call(),
            Event::Probe => self.probe(),
            Event::Repeat => self.repeat(),
            Event::Map => self.map(),
            Event::Stop => self.stop(),
            Event::Resume => self.resume(),
            Event::Misbehave => self.misbehave(),
            Event::Ring => self.ring(),
            Event::Sweep => self.sweep(),
            Event::Wait => self.wait(),
            Event::Answer => self.answer(),
            Event::Add => self.add(),
            Event::Online => self.online(),
            Event::Offline => self.offline(),
            Event::Remove => self.remove(),
            Event::Cancel => self.cancel(),
            Event::Compact => self.compact(),
            Event::Drain => self.drain(),
            Event::Evict => self.evict(),
            Event::Tune => self.tune(),
            Event::Look => self.look(),
            Event::Crash => self.crash(),
        }
    }

    /// The sizes.
    pub fn geometry(&self) -> Geometry {
        self.swarm.config.geometry
    }

    /// A tenant that is like that.
    pub fn some_tenant(&mut self, is_like: impl Fn(&Tenant) -> bool) -> Option<usize> {
        let like: Vec<usize> = (0..self.tenants.len())
            .filter(|&at| self.tenants.get(at).is_some_and(&is_like))
            .collect();
        self.prng.pick(&like).copied()
    }

    /// A number no process has had.
    pub fn next_pid(&mut self) -> u32 {
        self.next_pid += 1;
        self.next_pid
    }

    /// An honest client has been handed blocks: they must be nobody's, and it must be able to
    /// touch them.
    ///
    /// # Errors
    /// They are not, or it is not.
    pub fn receive(&mut self, at: usize, pages: Vec<RawPage>) -> Result<(), Broken> {
        self.follow_moves()?;
        let geometry = self.geometry();
        let tenant = &mut self.tenants[at];
        if tenant.is_honest {
            for &page in &pages {
                let zone = self.zone_of.get(page.pfn() as usize).copied();
                if zone != Some(page.zone()) || page.client() != tenant.terms.client_index {
                    return Err(format!(
                        "{page:?} is not of zone {zone:?}, or of another client"
                    ));
                }
                if !tenant.zones.contains(&page.zone()) {
                    return Err(format!(
                        "{} was handed {page:?} of a forbidden zone",
                        tenant.id
                    ));
                }
                let section = page.pfn() >> geometry.section_order();
                if let Some(segment) = &tenant.segment
                    && !segment.is_mapped(section, segment.announced(section))
                {
                    return Err(format!(
                        "{} was handed {page:?}, which it cannot touch",
                        tenant.id
                    ));
                }
                self.model.take(tenant.id, page)?;
            }
        }
        tenant.held.extend(&pages);
        if self.tenants[at].is_honest {
            pages.iter().for_each(|page| self.write(*page));
        }
        Ok(())
    }

    /// Takes some blocks out of a client's hands, to be given back.
    ///
    /// # Errors
    /// The simulator has lost count.
    pub fn let_go(&mut self, at: usize, count: usize) -> Result<Vec<RawPage>, Broken> {
        let mut pages = Vec::new();
        while pages.len() < count && !self.tenants[at].held.is_empty() {
            let tenant = &mut self.tenants[at];
            let index = self.prng.index(tenant.held.len());
            let page = tenant.held.swap_remove(index);
            if tenant.is_honest {
                self.model.give(tenant.id, page)?;
                self.check_bytes(page)?;
            }
            pages.push(page);
        }
        Ok(pages)
    }

    /// The tenant of that name.
    pub fn tenant_of(&self, id: ClientId) -> Option<usize> {
        self.tenants.iter().position(|tenant| tenant.id == id)
    }

    /// Takes over what the engine left to the runner. Whom it forgets is gone at once: the
    /// dead, and those who had hung up and own nothing.
    ///
    /// # Errors
    /// Somebody was forgotten who has something in hand.
    pub fn collect_effects(&mut self) -> Result<(), Broken> {
        for effect in self.engine.take_effects() {
            match effect {
                Effect::Forget { client } => {
                    // What was taken from it meanwhile is not in its hands any more.
                    self.follow_moves()?;
                    let Some(at) = self.tenant_of(client) else {
                        continue;
                    };
                    let tenant = self.tenants.swap_remove(at);
                    let nr_known = tenant.nr_held() + tenant.nr_pending();
                    if tenant.is_honest && nr_known > 0 {
                        return Err(format!("{client} was forgotten and has {nr_known} pages"));
                    }
                }
                effect => {
                    if let Effect::Close { client } = effect
                        && let Some(at) = self.tenant_of(client)
                    {
                        self.tenants[at].is_closed = true;
                    }
                    self.effects.push(effect);
                }
            }
        }
        Ok(())
    }

    /// Pages of a section.
    pub fn section_pages(&self) -> u64 {
        u64::from(self.geometry().section_pages())
    }

    /// Some section's number, now and then one that is nowhere.
    pub fn some_section(&mut self) -> SectionId {
        let nr_sections = self.engine.control_geometry(1).nr_sections;
        SectionId::new(self.prng.below_u32(nr_sections + 1))
    }
}
