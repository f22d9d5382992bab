//! A daemon that dies at a chosen step, and the one that comes after it; clients that live on.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use hugepool_engine::{
    ClientId, Defaults, Effect, Engine, Recovered, Saved, SavedClient, Survivor,
};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::outbox::Outbox;
use hugepool_shm::step;
use hugepool_shm::transit::TransitTable;

use crate::support::{Rig, Tenant, copy_bytes};

/// What a step unwinds with that kills the daemon.
struct Killed;

type Hook = Box<dyn FnMut(&'static str)>;

/// A hook that kills the daemon after so many steps, and how many are left.
fn burn(steps: u32) -> (Rc<Cell<u32>>, Hook) {
    let fuse = Rc::new(Cell::new(steps));
    let burning = fuse.clone();
    let hook = Box::new(move |_: &'static str| match burning.get() {
        0 => {}
        left => {
            burning.set(left - 1);
            if left == 1 {
                resume_unwind(Box::new(Killed));
            }
        }
    });
    (fuse, hook)
}

/// A rig whose daemon may die.
pub struct Mortal {
    pub rig: Rig,
    /// What the daemon saved last.
    pub saved: Saved,
    /// Segments of all that ever attached.
    pub segments: BTreeMap<ClientId, ControlSegment>,
    /// Outboxes of those that have one.
    pub outboxes: BTreeMap<ClientId, Outbox>,
    /// The transit words of the zones.
    pub transits: Vec<TransitTable>,
    /// Steps until the daemon dies; 0: it lives.
    pub fuse: u32,
    pub nr_deaths: u32,
    pub last: Recovered,
}

impl Mortal {
    pub fn new(rig: Rig) -> Mortal {
        Mortal {
            saved: rig.engine.save(),
            rig,
            segments: BTreeMap::new(),
            outboxes: BTreeMap::new(),
            transits: Vec::new(),
            fuse: 0,
            nr_deaths: 0,
            last: Recovered::default(),
        }
    }

    pub fn tenant(&mut self, nr_lanes: u32) -> Tenant {
        let tenant = self.rig.tenant(nr_lanes);
        self.segments.insert(tenant.id, tenant.segment.clone());
        self.saved = self.rig.engine.save();
        tenant
    }

    /// One call into the daemon. Nothing, if it died in the middle: another one is there then.
    pub fn call<T>(&mut self, work: impl FnOnce(&mut Rig) -> T) -> Option<T> {
        let (fuse, hook) = burn(self.fuse);
        let rig = &mut self.rig;
        let result = catch_unwind(AssertUnwindSafe(|| step::with_hook(hook, || work(rig))));
        self.fuse = fuse.get();
        match result {
            Ok(value) => {
                // As the daemon does, before anybody hears of what was done.
                self.saved = self.rig.engine.save();
                Some(value)
            }
            Err(killed) if killed.is::<Killed>() => {
                self.die();
                None
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// One call into the daemon, which dies when it has done the step of this name and `meanwhile`
    /// has happened beside it.
    pub fn die_after<T>(
        &mut self,
        name: &'static str,
        mut meanwhile: Box<dyn FnMut()>,
        work: impl FnOnce(&mut Rig) -> T,
    ) {
        let hook = Box::new(move |step: &'static str| {
            if step == name {
                meanwhile();
                resume_unwind(Box::new(Killed));
            }
        });
        let rig = &mut self.rig;
        let result = catch_unwind(AssertUnwindSafe(|| step::with_hook(hook, || work(rig))));
        match result.map(drop) {
            Ok(()) => panic!("it did not come to {name}"),
            Err(killed) if killed.is::<Killed>() => self.die(),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// The daemon dies between two calls, and another one takes over; that may die too.
    pub fn die(&mut self) {
        loop {
            self.nr_deaths += 1;
            let saved = Saved::decode(&self.saved.encode().unwrap()).unwrap();
            let lives = |client: &&SavedClient| self.segments.contains_key(&client.id());
            let survivors = saved.clients().iter().filter(lives).map(|client| Survivor {
                client: client.id(),
                segment: self.segments[&client.id()].clone(),
                outbox: self.outboxes.get(&client.id()).cloned(),
                is_lost: false,
            });
            let survivors: Vec<Survivor> = survivors.collect();
            let (state, now) = (self.rig.state.clone(), self.rig.now);
            let (transits, outside) = (self.transits.clone(), &mut self.rig.outside);
            let (fuse, hook) = burn(self.fuse);
            let result = catch_unwind(AssertUnwindSafe(|| {
                step::with_hook(hook, || {
                    Engine::recover(
                        &saved,
                        Defaults::default(),
                        state,
                        survivors,
                        transits,
                        now,
                        outside,
                    )
                })
            }));
            self.fuse = fuse.get();
            match result {
                Ok(recovered) => {
                    let (engine, found) = recovered.unwrap();
                    self.rig.engine = engine;
                    self.last = found;
                    self.saved = self.rig.engine.save();
                    self.rig.verify();
                    return;
                }
                Err(killed) if killed.is::<Killed>() => {}
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    /// Carries out what the engine left to the runner, which dies with it.
    pub fn settle_effects(&mut self) {
        loop {
            let deaths = self.nr_deaths;
            let effects = self.rig.engine.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                if self.nr_deaths != deaths {
                    break;
                }
                self.carry_out(&effect);
            }
        }
    }

    fn carry_out(&mut self, effect: &Effect) {
        match effect {
            Effect::Move { batch } => {
                let batch = batch.clone();
                let answer =
                    self.call(|rig| batch.carry_out(&mut |copy| copy_bytes(&mut rig.bytes, copy)));
                if let Some(answer) = answer {
                    self.call(|rig| rig.engine.moved(answer, rig.now, &mut rig.outside));
                }
            }
            &Effect::Populate { section, .. } => {
                let backing = hugepool_engine::Backing {
                    name: "heap".to_owned(),
                    node: -1,
                    not_taken: Vec::new(),
                };
                self.call(|rig| rig.engine.populated(section, Ok(backing), rig.now));
            }
            &Effect::Punch { section, .. } => {
                self.call(|rig| rig.engine.punched(section, Ok(()), rig.now));
            }
            Effect::Close { .. } | Effect::Kill { .. } | Effect::Forget { .. } => {}
        }
    }

    /// Time passes, 10 ms at a time, until nothing waits.
    pub fn pass(&mut self, nr_ticks: u32) {
        for _ in 0..nr_ticks {
            self.settle_effects();
            self.rig.now += std::time::Duration::from_millis(10);
            self.call(|rig| rig.engine.poll(rig.now, &mut rig.outside));
        }
        self.settle_effects();
    }

    pub fn service(&mut self) {
        self.call(|rig| rig.service());
    }
}
