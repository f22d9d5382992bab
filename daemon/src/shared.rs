//! The one engine, and everything that both threads share beside it.
//!
//! [`Shared::with`] is the only way to the engine: it takes the lock, tells the time, lets what
//! takes time advance, and carries out what the engine wants done outside once the lock is free
//! again. Under the lock there is no I/O but the engine's own barrier, and nothing is logged above
//! debug.
//!
//! Lock order: engine → keeping → nothing. The small locks beside it ([`Registry`], the mailbox) are taken
//! for a map's look-up and never around another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hugepool_engine::{
    AttachError, Changes, ClientId, Command, CommandError, ConnectSpec, Effect, Engine, Now,
    Outside, Reply, nearest_first,
};
use hugepool_mm::{Geometry, ZoneId};
use hugepool_shm::barrier;
use hugepool_shm::eventfd::Bell;
use hugepool_shm::numa::Nodes;
use hugepool_shm::peer::PeerCredentials;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tonic::Status;

use crate::config::{Config, ZonePlan};
use crate::effects::{Effects, Job};
use crate::fair::FairLock;
use crate::keeping::Keeping;
use crate::memory::Memory;
use crate::registry::Registry;
use crate::rpc::status;
use crate::waiting::{Counter, Moves};

/// The engine and its surroundings.
pub struct Shared {
    engine: FairLock<Engine>,
    /// Taken for a moment only, with the engine's lock held.
    keeping: Mutex<Keeping>,
    geometry: Geometry,
    zones: Vec<ZonePlan>,
    /// The same zones, with those who may use them now.
    access: RwLock<Vec<ZonePlan>>,
    zonelist: Vec<ZoneId>,
    started: Now,
    nodes: Nodes,
    memory: Arc<Memory>,
    registry: Registry,
    effects: Effects,
    mailbox: Mutex<Vec<ClientEffect>>,
    kick: Bell,
    /// When the lanes thread looks at the engine again of itself, in microseconds since boot.
    looks_at: AtomicU64,
    home: Counter,
    operations: Counter,
    events: Counter,
    stopping: watch::Sender<bool>,
}

/// What the lanes thread has to do for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEffect {
    /// Close its connection.
    Close(ClientId),
    /// Drop everything of it: it is buried.
    Forget(ClientId),
}

/// What the engine asks for in the middle of a step. Wakes are only noted: they are done when the
/// lock is free.
#[derive(Debug, Default)]
pub struct Outer {
    wakes: Vec<ClientId>,
}

impl Outside for Outer {
    fn barrier(&mut self) {
        // Refused only where it was refused from the start, and then no client is registered
        // for it: each fences by itself.
        if let Err(error) = barrier::issue() {
            tracing::debug!(%error, "no barrier");
        }
    }

    fn wake(&mut self, client: ClientId) {
        self.wakes.push(client);
    }
}

impl Shared {
    /// Puts the engine among its surroundings.
    ///
    /// # Errors
    /// `EMFILE` when no descriptor is left for the bell.
    pub fn new(
        engine: Engine,
        keeping: Keeping,
        config: &Config,
        memory: Arc<Memory>,
        effects: Effects,
    ) -> Result<Shared, Errno> {
        let zonelist = config.zonelist.iter().map(|zone| ZoneId::new(*zone));
        Ok(Shared {
            engine: FairLock::new(engine),
            keeping: Mutex::new(keeping),
            geometry: config.geometry,
            zones: config.zones.clone(),
            access: RwLock::new(config.zones.clone()),
            zonelist: zonelist.collect(),
            started: now(),
            nodes: Nodes::read(),
            memory,
            registry: Registry::default(),
            effects,
            mailbox: Mutex::default(),
            kick: Bell::new()?,
            looks_at: AtomicU64::new(0),
            home: Counter::default(),
            operations: Counter::default(),
            events: Counter::default(),
            stopping: watch::Sender::new(false),
        })
    }

    /// Does `work` with the engine, and afterwards, without the lock, what the engine asked for.
    pub fn with<T>(&self, work: impl FnOnce(&mut Engine, Now, &mut Outer) -> T) -> T {
        let (value, next) = self.visit(work);
        // The lanes thread is the one that looks again; it must not sleep past the time.
        if next.is_some_and(|at| micros(at) < self.looks_at.load(Ordering::Relaxed)) {
            self.kick();
        }
        value
    }

    /// [`Shared::with`] for the lanes thread, which is told when to look again instead of kicked.
    pub fn visit<T>(
        &self,
        work: impl FnOnce(&mut Engine, Now, &mut Outer) -> T,
    ) -> (T, Option<Now>) {
        let mut outer = Outer::default();
        let (value, next, effects, changes) = {
            let mut engine = self.engine.lock();
            let now = now();
            let value = work(&mut engine, now, &mut outer);
            let next = engine.poll(now, &mut outer);
            // Before anybody hears of what was done.
            lock(&self.keeping).save(&engine);
            (value, next, engine.take_effects(), engine.changes())
        };
        for client in outer.wakes {
            self.registry.wake(client);
        }
        for effect in effects {
            self.carry_out(effect);
        }
        let Changes {
            home,
            operations,
            events,
        } = changes;
        self.home.set(home);
        self.operations.set(operations);
        self.events.set(events);
        (value, next)
    }

    /// Hands an effect to who does it.
    fn carry_out(&self, effect: Effect) {
        let for_lanes = match effect {
            Effect::Populate { zone, section, .. } => {
                return self.effects.put(Job::Populate(zone, section));
            }
            Effect::Punch { zone, section, .. } => {
                return self.effects.put(Job::Punch(zone, section));
            }
            Effect::Move { batch } => return self.effects.put_moves(batch),
            Effect::Kill { client } => {
                if let Err(errno) = self.registry.kill(client) {
                    tracing::warn!(%client, %errno, "the client could not be killed");
                }
                return;
            }
            Effect::Close { client } => ClientEffect::Close(client),
            Effect::Forget { client } => ClientEffect::Forget(client),
        };
        lock(&self.mailbox).push(for_lanes);
        self.kick();
    }

    /// The daemon ends because it was asked to.
    pub fn has_ended_well(&self) {
        lock(&self.keeping).has_ended_well();
    }

    /// What there is to do for clients; for the lanes thread.
    pub fn take_mail(&self) -> Vec<ClientEffect> {
        std::mem::take(&mut lock(&self.mailbox))
    }

    /// Says until when the lanes thread sleeps.
    pub fn sleeps_until(&self, at: Now) {
        self.looks_at.store(micros(at), Ordering::Relaxed);
    }

    /// Wakes the lanes thread.
    pub fn kick(&self) {
        if let Err(errno) = self.kick.ring() {
            tracing::error!(%errno, "the lanes thread could not be woken");
        }
    }

    /// What wakes the lanes thread.
    pub fn kick_bell(&self) -> &Bell {
        &self.kick
    }

    /// Who is attached, with what it takes to wake and to kill.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The zones' memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where slow work is put.
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// The sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The zones as configured, by index.
    pub fn zones(&self) -> &[ZonePlan] {
        &self.zones
    }

    /// The name of a zone.
    pub fn zone_name(&self, zone: ZoneId) -> String {
        let plan = self.zones.get(usize::from(zone.get()));
        plan.map_or_else(String::new, |plan| plan.name.clone())
    }

    /// Zones that somebody with these credentials and supplementary groups may use, best first: in
    /// the order of the zonelist, those of the node that he runs on before the others where the
    /// machine has several.
    pub fn zones_open_to(&self, peer: PeerCredentials, groups: &[u32]) -> Vec<ZoneId> {
        let zones = self.access.read().unwrap_or_else(PoisonError::into_inner);
        let may_use = |zone: &&ZoneId| {
            let plan = zones.get(usize::from(zone.get()));
            plan.is_some_and(|plan| plan.allows(peer.uid, peer.gid, groups))
        };
        let mut zones: Vec<ZoneId> = self.zonelist.iter().filter(may_use).copied().collect();
        let node_of = |zone: ZoneId| self.zones.get(usize::from(zone.get()))?.node;
        let first = zones.iter().find_map(|&zone| node_of(zone));
        if let Some(first) = first.filter(|_| self.nodes.count() > 1) {
            // One whose node is not known is served as the zonelist says first.
            let here = self.nodes.of_process(peer.pid).unwrap_or(first);
            nearest_first(&mut zones, node_of, |node| self.nodes.distance(here, node));
        }
        zones
    }

    /// Sets who may use the zones of these names, for those who come.
    pub fn set_access(&self, zones: &[ZonePlan]) {
        let mut access = self.access.write().unwrap_or_else(PoisonError::into_inner);
        for plan in access.iter_mut() {
            if let Some(new) = zones.iter().find(|new| new.name == plan.name) {
                plan.allow_uids.clone_from(&new.allow_uids);
                plan.allow_gids.clone_from(&new.allow_gids);
            }
        }
    }

    /// Begins the session of a connection without a token.
    ///
    /// # Errors
    /// When no more are taken.
    pub fn begin_session(
        &self,
        peer: PeerCredentials,
        groups: &[u32],
    ) -> Result<ClientId, AttachError> {
        let spec = ConnectSpec {
            uid: peer.uid,
            gid: peer.gid,
            pid: peer.pid,
            zones: self.zones_open_to(peer, groups),
        };
        self.with(|engine, now, _| engine.connect(spec, now))
    }

    /// Ends it: what it was lent goes home.
    pub fn end_session(&self, client: ClientId) {
        self.with(|engine, _, _| engine.disconnect(client));
    }

    /// Kills a client's process.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` when the daemon may not, `FAILED_PRECONDITION` for a connection, which
    /// the daemon holds no process of.
    pub fn kill(&self, client: ClientId) -> Result<(), Status> {
        match self.registry.kill(client) {
            // Dead already is as good.
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(Errno::ENOENT) => Err(status::wrong_state(
                format!("client {client}"),
                "a connection without a segment: its process is not held, so it is not killed"
                    .to_owned(),
            )),
            Err(errno) => Err(status::denied(
                "KILL",
                &format!(
                    "the process of client {client} may not be killed ({errno}): shut out only"
                ),
            )),
        }
    }

    /// Tells when blocks come home.
    pub fn pages_home(&self) -> Moves {
        self.home.watch()
    }

    /// Tells when operations advance.
    pub fn operation_steps(&self) -> Moves {
        self.operations.watch()
    }

    /// Tells when there is an event.
    pub fn events(&self) -> Moves {
        self.events.watch()
    }

    /// Milliseconds since the daemon started.
    pub fn uptime_ms(&self) -> u64 {
        u64::try_from(now().saturating_sub(self.started).as_millis()).unwrap_or(u64::MAX)
    }

    /// NUMA nodes that the machine had when the daemon started.
    pub fn nr_machine_nodes(&self) -> u32 {
        self.nodes.count()
    }

    /// "running" or "stopping".
    pub fn state_name(&self) -> &'static str {
        if self.is_stopping() {
            "stopping"
        } else if hugepool_shm::passed::is_orphaned() {
            // Its keeper has died: a crash would lose the memory.
            "unprotected"
        } else {
            "running"
        }
    }

    /// Begins to stop: streams end, the lanes thread returns.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
        self.kick();
    }

    /// Whether the daemon has begun to stop.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Returns when the daemon begins to stop.
    pub async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as `self`, so this only ever ends by the value.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// Does a command.
    ///
    /// # Errors
    /// Why it was not begun.
    pub fn apply(&self, command: Command) -> Result<Reply, CommandError> {
        self.with(|engine, now, outside| engine.apply(command, now, outside))
    }
}

/// Takes a lock that no panic leaves poisoned.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared
        .lock()
        .expect("a panic ends the process, so no lock is left poisoned")
}

/// Time since boot, sleep of the machine included.
pub fn now() -> Now {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .expect("every Linux has the boot clock")
}

fn micros(at: Now) -> u64 {
    u64::try_from(at.as_micros()).unwrap_or(u64::MAX)
}
