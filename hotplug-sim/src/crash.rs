//! The daemon dies between two steps, and another one goes on from the words it has left.
//!
//! The engine is thrown away with all that it had in mind, and the runner with what it was asked to do;
//! what is left is the state words, the last snapshot and the clients' segments. The snapshot is as
//! old as the daemon's own would be: made when the engine says that something in it has changed.
//!
//! Seen to fail: with moves not decided by their handles; with the cursors of lanes not kept (a client
//! is blamed for what the one before had settled); with a section that two operations name punched for
//! both.

use hugepool_engine::{Engine, Saved, Survivor};

use crate::model::Broken;
use crate::world::World;

impl World {
    /// Saves what the daemon would have saved by now.
    pub(crate) fn save(&mut self) {
        let version = self.engine.slow_version();
        if self.saved_version != version {
            self.saved_version = version;
            self.saved = self.engine.save();
        }
    }

    pub(crate) fn crash(&mut self) -> Result<(), Broken> {
        self.follow_moves()?;
        // A runner may have done what nobody hears of any more.
        while self.prng.chance(1, 2)
            && let Some(nth) = self.some_move()
        {
            let effect = self.effects.swap_remove(nth);
            if let hugepool_engine::Effect::Move { batch } = effect {
                // Its answer is never given.
                let _ = self.carry_out_unheard(&batch, true)?;
            }
        }
        self.save();
        self.effects.clear();
        self.answers.clear();
        // A connection without a segment ends with the daemon that it was to.
        while let Some(at) = self.tenants.iter().position(|one| one.segment.is_none()) {
            self.forget(at)?;
        }
        let bytes = self.saved.encode().map_err(|error| error.to_string())?;
        let saved = Saved::decode(&bytes).map_err(|error| error.to_string())?;
        let survivors = self.tenants.iter().filter_map(|tenant| {
            let segment = tenant.segment.clone()?;
            Some(Survivor {
                client: tenant.id,
                segment,
                outbox: None,
                is_lost: false,
            })
        });
        let recovered = Engine::recover(
            &saved,
            self.swarm.config.defaults.clone(),
            self.state.clone(),
            survivors.collect(),
            Vec::new(),
            self.now,
            &mut self.outside,
        );
        let (engine, found) = recovered.map_err(|error| format!("not recovered: {error}"))?;
        self.trace.add(format_args!("-> {found:?}"));
        self.engine = engine;
        self.saved_version = 0;
        self.collect_effects()?;
        self.follow_moves()?;
        self.count_anew()
    }

    fn some_move(&mut self) -> Option<usize> {
        let is_move = |effect: &hugepool_engine::Effect| {
            matches!(effect, hugepool_engine::Effect::Move { .. })
        };
        let moves: Vec<usize> = (0..self.effects.len())
            .filter(|&nth| is_move(&self.effects[nth]))
            .collect();
        self.prng.pick(&moves).copied()
    }

    /// What the one before had counted and not saved is not known any more. Nothing more may be.
    fn count_anew(&mut self) -> Result<(), Broken> {
        for client in self.engine.list_clients(self.now) {
            let Some(at) = self.tenant_of(client.client) else {
                return Err(format!("client {} has risen from the dead", client.client));
            };
            let tenant = &mut self.tenants[at];
            if tenant.is_honest && client.nr_misuses > tenant.nr_probes {
                return Err(format!(
                    "honest client {} is blamed by the next daemon: {:?}",
                    tenant.id, client.last_misuse
                ));
            }
            tenant.nr_probes = client.nr_misuses;
            tenant.last_owned = client.lent;
        }
        Ok(())
    }
}
