//! Emptying lanes on demand, shutting a client out, and driving all operations on.

use core::time::Duration;

use crate::Engine;
use crate::command::{CommandError, Reply};
use crate::events::About;
use crate::id::{ClientId, Now, OperationId};
use crate::lanes::{Lane, PATIENCE};
use crate::operation::{MAX_RUNNING, Operation, Step};
use crate::outside::{Effect, Outside};
use crate::recall::{is_pending, is_stuck};
use crate::report::{ClientState, OperationKind, OperationReport, Recalled};

/// How often operations that wait want to be polled.
pub(crate) const POLL_SOON: Now = Now::from_millis(10);
/// How often lanes are looked at that an operation in flight keeps closed.
const POLL_STUCK: Now = Now::from_millis(100);

impl Engine {
    /// Begins to empty the lanes of one client or of all.
    pub(crate) fn begin_drain(
        &mut self,
        slot: Option<u16>,
        timeout: Option<Duration>,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<Reply, CommandError> {
        let clients = match slot {
            Some(slot) => vec![self.client_in(slot)?],
            None => self.clients.ids(),
        };
        let deadline = now.saturating_add(timeout.unwrap_or(PATIENCE));
        let mut operation = self.new_drain(OperationKind::Drain, clients, now, deadline)?;
        let nr_pages = self.recall(&operation.rounds.clients, now, outside);
        // What was drained stays away until it is missed, also from clients that were busy.
        for &id in &operation.rounds.clients {
            if let Some(link) = self
                .clients
                .get_mut(id)
                .and_then(|client| client.link.as_mut())
            {
                link.lanes.iter_mut().for_each(Lane::rest);
            }
        }
        operation.recalled = Some(Recalled {
            nr_pages,
            ..Recalled::default()
        });
        self.run(operation, now, outside)
    }

    /// Begins to shut a client out.
    pub(crate) fn begin_evict(
        &mut self,
        slot: u16,
        incarnation: Option<u16>,
        kill: bool,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<Reply, CommandError> {
        let id = self.client_in(slot)?;
        if let Some(asked) = incarnation.filter(|&asked| asked != id.incarnation) {
            return Err(CommandError::OtherIncarnation {
                slot,
                asked,
                there: id.incarnation,
            });
        }
        let deadline = now.saturating_add(PATIENCE);
        let mut operation = self.new_drain(OperationKind::Evict, vec![id], now, deadline)?;
        let nr_pages = self.evict(id, kill, now, outside);
        operation.recalled = Some(Recalled {
            nr_pages,
            ..Recalled::default()
        });
        self.run(operation, now, outside)
    }

    fn evict(&mut self, id: ClientId, kill: bool, now: Now, outside: &mut dyn Outside) -> u64 {
        let Some(client) = self.clients.get(id) else {
            return 0;
        };
        let state = client.state;
        let is_new = matches!(state, ClientState::Attaching | ClientState::Attached);
        if is_new {
            let text = format!("client {id} is evicted");
            self.events.note(now, "evict", About::client(id), text);
            self.effects.push(Effect::Close { client: id });
        }
        if kill {
            self.effects.push(Effect::Kill { client: id });
        }
        let state = if is_new { ClientState::Detached } else { state };
        self.shut(id, state, now, outside)
    }

    /// Advances what takes time: operations, and lanes that were closed. Returns when it
    /// wants to be called again; `None`: not before something else happens.
    pub fn poll(&mut self, now: Now, outside: &mut dyn Outside) -> Option<Now> {
        let balance = self.balance(now, outside);
        let all = self.clients.ids();
        if is_pending(&self.clients, &all) || is_stuck(&self.clients, &all) {
            self.advance_recalls(&all, now, outside);
        }
        for id in self.operations.ids() {
            self.advance(id, now, outside);
        }
        self.tick_compaction(now);
        self.compact_noted(now);
        if !self.undecided.is_empty() {
            self.decide_undecided(now);
        }
        self.retire_detached(now);
        let releases = self.tick_quarantine(now);
        let waits = |operation: &Operation| {
            operation.recalled.is_some() || !operation.at(Step::Leaving).is_empty()
        };
        let recalls = if self.operations.running().any(waits) || is_pending(&self.clients, &all) {
            Some(now + POLL_SOON)
        } else if is_stuck(&self.clients, &all) {
            Some(now + POLL_STUCK)
        } else {
            None
        };
        let compactions = self.operations.running().filter_map(|operation| {
            let compacting = operation.compact.as_ref()?;
            compacting.wakes_at().map(|next| next.max(now))
        });
        let soonest = [recalls, balance, releases].into_iter().flatten();
        soonest.chain(compactions).min()
    }

    /// Advances one operation, and files it when it has ended.
    pub(crate) fn advance(&mut self, id: OperationId, now: Now, outside: &mut dyn Outside) {
        let Some(mut operation) = self.operations.take(id) else {
            return;
        };
        if operation.recalled.is_some() {
            return self.advance_drain(operation, now, outside);
        }
        if operation.compact.is_some() {
            return self.advance_compact(operation, now);
        }
        self.advance_leaving(&mut operation, now, outside);
        self.put_operation(operation, now);
    }

    fn advance_drain(&mut self, mut operation: Operation, now: Now, outside: &mut dyn Outside) {
        let clients = operation.rounds.clients.clone();
        let nr_pages = self.advance_recalls(&clients, now, outside);
        let mut recalled = operation.recalled.take().unwrap_or_default();
        recalled.nr_pages += nr_pages;
        let waits = is_pending(&self.clients, &clients)
            || (is_stuck(&self.clients, &clients) && now < operation.deadline);
        if waits && !operation.is_cancelled {
            operation.recalled = Some(recalled);
            return self.operations.put(operation);
        }
        recalled.holders = self.holders_in_flight(&clients, now);
        recalled.nr_in_flight = recalled.holders.iter().map(|holder| holder.nr_pages).sum();
        let owned = |id: &ClientId| Some(self.custody.owners.tally().client(*id)?.pages);
        recalled.nr_held = clients.iter().filter_map(owned).sum();
        operation.recalled = Some(recalled);
        self.operations
            .end(operation.report(&self.custody.zones, now, false));
    }

    /// Stops an operation; what it has begun is undone exactly.
    pub(crate) fn cancel(
        &mut self,
        id: OperationId,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<OperationReport, CommandError> {
        if let Some(mut operation) = self.operations.take(id) {
            operation.is_cancelled = true;
            self.operations.put(operation);
            self.advance(id, now, outside);
        }
        self.report_operation(id, now)
    }

    /// How an operation stands or has ended.
    pub(crate) fn report_operation(
        &self,
        id: OperationId,
        now: Now,
    ) -> Result<OperationReport, CommandError> {
        if let Some(operation) = self.operations.get(id) {
            return Ok(operation.report(&self.custody.zones, now, true));
        }
        self.operations
            .ended(id)
            .cloned()
            .ok_or(CommandError::NoSuchOperation { id })
    }

    fn new_drain(
        &mut self,
        kind: OperationKind,
        clients: Vec<ClientId>,
        now: Now,
        deadline: Now,
    ) -> Result<Operation, CommandError> {
        let running = self.operations.nr_running();
        if running >= MAX_RUNNING {
            return Err(CommandError::TooManyOperations { running });
        }
        let mut operation = Operation::new(kind, now, deadline);
        operation.rounds.clients = clients;
        operation.id = self.operations.next_id();
        Ok(operation)
    }

    pub(crate) fn run(
        &mut self,
        operation: Operation,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<Reply, CommandError> {
        let id = operation.id;
        self.operations.put(operation);
        self.advance(id, now, outside);
        self.report_operation(id, now).map(Reply::Operation)
    }

    pub(crate) fn client_in(&self, slot: u16) -> Result<ClientId, CommandError> {
        let client = self
            .clients
            .in_slot(slot)
            .ok_or(CommandError::NoSuchClient { slot })?;
        Ok(client.id)
    }
}
