//! The steps of adding, onlining, offlining and removing sections.
//!
//! Each section is all or nothing: a step that fails undoes what came before it. Slow
//! work is left to the runner as effects and goes on when it answers; leaving pages are
//! waited for by [`poll`](Engine::poll).

use core::time::Duration;

use hugepool_mm::{SectionId, SectionState};

use crate::Engine;
use crate::command::{CommandError, Reply, SectionRefusal, SectionsRequest};
use crate::events::About;
use crate::id::{ClientId, Now, OperationId};
use crate::operation::{MAX_RUNNING, Operation, Step, Task};
use crate::outside::{Effect, Outside};
use crate::recall::is_pending;
use crate::report::{Backing, Onlined, OperationKind, SectionOutcome};
use crate::request::{Verdict, judge, online_order, resolve};
use crate::zones::ZoneIndex;

/// How a verb is to be carried out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    pub online_order: Option<u32>,
    pub keep_offline: bool,
    pub timeout: Option<Duration>,
}

impl Engine {
    /// Begins one of the four verbs, or says what it would do.
    pub(crate) fn begin(
        &mut self,
        kind: OperationKind,
        request: &SectionsRequest,
        manner: Manner,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<Reply, CommandError> {
        let timeout = manner.timeout.unwrap_or(self.defaults.offline_timeout);
        let mut operation = Operation::new(kind, now, now.saturating_add(timeout));
        operation.online_order = online_order(&self.custody.zones, manner.online_order)?;
        operation.keep_offline = manner.keep_offline;
        let sections = resolve(&self.custody.zones, kind, request)?;
        if request.dry_run {
            self.foresee(&mut operation, &sections, now);
            return Ok(Reply::Operation(operation.report(
                &self.custody.zones,
                now,
                false,
            )));
        }
        let running = self.operations.nr_running();
        if running >= MAX_RUNNING {
            return Err(CommandError::TooManyOperations { running });
        }
        operation.id = self.operations.next_id();
        for section in sections {
            self.begin_section(&mut operation, section, now);
        }
        let id = operation.id;
        self.operations.put(operation);
        self.advance(id, now, outside);
        self.report_operation(id, now).map(Reply::Operation)
    }

    fn begin_section(&mut self, operation: &mut Operation, section: SectionId, now: Now) {
        let verdict = judge(
            &self.custody,
            operation.kind,
            section,
            operation.keep_offline,
        );
        let state = self.custody.zones.state(section);
        operation.tasks.push(Task {
            step: Step::Ended,
            outcome: new_outcome(section, state),
        });
        let at = operation.tasks.len() - 1;
        let begun = match (verdict, operation.kind) {
            (Verdict::Refuse(refusal), _) => Err(refusal),
            (Verdict::Already, _) => {
                operation.tasks[at].outcome.already = true;
                Ok(Step::Ended)
            }
            (Verdict::Finish, _) | (Verdict::Begin, OperationKind::Online) => {
                self.bring_online(operation, at, now).map(|()| Step::Ended)
            }
            (Verdict::Begin, OperationKind::Add) => self.begin_add(operation.id, section),
            (Verdict::Begin, OperationKind::Remove) => self.begin_remove(operation.id, section),
            (Verdict::Begin, _) => self.begin_offline(operation.id, section),
        };
        match begun {
            Ok(Step::Ended) => operation.end_task(at, Ok(()), now),
            Ok(step) => {
                operation.tasks[at].step = step;
                if let Some(row) = self.custody.zones.section_mut(section) {
                    row.operation = Some(operation.id);
                }
            }
            Err(refusal) => operation.end_task(at, Err(refusal), now),
        }
    }

    fn begin_add(&mut self, id: OperationId, section: SectionId) -> Result<Step, SectionRefusal> {
        let zone = self.custody.zones.zone_of(section)?;
        self.custody.zones.zone_mut(zone).begin_add(section)?;
        self.custody.note_section(section);
        let zone = ZoneIndex(zone).id();
        self.effects.push(Effect::Populate {
            operation: id,
            zone,
            section,
        });
        Ok(Step::Populating)
    }

    fn begin_remove(
        &mut self,
        id: OperationId,
        section: SectionId,
    ) -> Result<Step, SectionRefusal> {
        let zone = self.custody.zones.zone_of(section)?;
        if self.custody.zones.state(section) == SectionState::Offline {
            self.custody.zones.zone_mut(zone).begin_remove(section)?;
            self.custody.forget_section(section);
            self.announce(section);
        }
        let zone = ZoneIndex(zone).id();
        self.effects.push(Effect::Punch {
            operation: id,
            zone,
            section,
        });
        Ok(Step::Punching)
    }

    fn begin_offline(
        &mut self,
        _id: OperationId,
        section: SectionId,
    ) -> Result<Step, SectionRefusal> {
        self.custody.zones.isolate(section)?;
        self.custody.note_section(section);
        self.bounds_changed();
        Ok(Step::Leaving)
    }

    /// The backing of a section was made, or could not be.
    pub fn populated(&mut self, section: SectionId, result: Result<Backing, String>, now: Now) {
        let Some((mut operation, at)) = self.take_task(section, Step::Populating) else {
            return;
        };
        let row = self
            .custody
            .zones
            .section_mut(section)
            .expect("a task has a section");
        let zone = row.zone;
        match result {
            Ok(_) if operation.is_cancelled => {
                operation.tasks[at].step = Step::Unwinding;
                let (operation, zone) = (operation.id, ZoneIndex(zone).id());
                self.effects.push(Effect::Punch {
                    operation,
                    zone,
                    section,
                });
            }
            Ok(backing) => {
                row.backing = Some(backing);
                row.incarnation = row.incarnation.checked_add(1).unwrap_or(1);
                let added = self.custody.zones.zone_mut(zone).finish_add(section);
                added.expect("a section that is being added is in state `Adding`");
                self.custody.note_section(section);
                self.slow_changed();
                self.announce(section);
                let result = if operation.keep_offline {
                    Ok(())
                } else {
                    self.bring_online(&mut operation, at, now)
                };
                self.end_task(&mut operation, at, result, now);
            }
            Err(why) => {
                let aborted = self.custody.zones.zone_mut(zone).abort_add(section);
                aborted.expect("a section that is being added is in state `Adding`");
                self.custody.note_section(section);
                let refusal = if operation.is_cancelled {
                    SectionRefusal::Cancelled
                } else {
                    SectionRefusal::Backing { section, why }
                };
                self.end_task(&mut operation, at, Err(refusal), now);
            }
        }
        self.put_operation(operation, now);
    }

    /// The backing of a section was given back, or could not be.
    pub fn punched(&mut self, section: SectionId, result: Result<(), String>, now: Now) {
        if let Some((mut operation, at)) = self.take_task(section, Step::Punching) {
            let zone = self
                .custody
                .zones
                .zone_of(section)
                .expect("a task has a section");
            let result = match result {
                Ok(()) => {
                    let gone = self.custody.zones.zone_mut(zone).finish_remove(section);
                    gone.expect("a section that is being removed is in state `Removing`");
                    if let Some(row) = self.custody.zones.section_mut(section) {
                        row.backing = None;
                    }
                    self.custody.note_section(section);
                    self.slow_changed();
                    Ok(())
                }
                // What is left of its memory is unknown: it stays `Removing`, to be tried again.
                Err(why) => Err(SectionRefusal::Punch { section, why }),
            };
            self.end_task(&mut operation, at, result, now);
            self.put_operation(operation, now);
        } else if let Some((mut operation, at)) = self.take_task(section, Step::Unwinding) {
            // Memory that was not given back is punched before the section is added again.
            let zone = self
                .custody
                .zones
                .zone_of(section)
                .expect("a task has a section");
            let aborted = self.custody.zones.zone_mut(zone).abort_add(section);
            aborted.expect("a section that is being added is in state `Adding`");
            self.custody.note_section(section);
            self.end_task(&mut operation, at, Err(SectionRefusal::Cancelled), now);
            self.put_operation(operation, now);
        }
    }

    /// Goes on with sections that are leaving: recalls what lies in lanes, moves what can be moved,
    /// takes those whose pages are all home, gives those back whose time is over.
    pub(crate) fn advance_leaving(
        &mut self,
        operation: &mut Operation,
        now: Now,
        outside: &mut dyn Outside,
    ) {
        self.take_left(operation, now);
        if operation.at(Step::Leaving).is_empty() {
            return;
        }
        let clients = self.holding(operation);
        self.advance_recalls(&clients, now, outside);
        if now >= operation.rounds.next && !is_pending(&self.clients, &clients) {
            self.recall(&clients, now, outside);
            let rounds = &mut operation.rounds;
            rounds.next = now + rounds.pause;
            rounds.pause = (rounds.pause * 2).min(crate::recall::MAX_PAUSE);
        }
        self.advance_shift(operation, now);
        self.take_left(operation, now);
        let is_over = operation.is_cancelled
            || (operation.shift.is_over() && !is_pending(&self.clients, &clients));
        for at in operation.at(Step::Leaving) {
            if is_over {
                self.give_back(operation, at, now);
            }
        }
    }

    /// Takes the leaving sections whose pages are all home.
    fn take_left(&mut self, operation: &mut Operation, now: Now) {
        for at in operation.at(Step::Leaving) {
            let section = operation.tasks[at].section();
            if self.custody.owners.tally().section_pages(section.get()) > 0 {
                continue;
            }
            let result = self.custody.zones.finish_offline(section);
            if result.is_ok() {
                self.custody.owners.set_managed(section, false);
                self.custody.note_section(section);
                self.bounds_changed();
            }
            self.end_task(operation, at, result.map_err(SectionRefusal::from), now);
        }
    }

    /// Gives a leaving section back as it was, and names who stood in the way.
    fn give_back(&mut self, operation: &mut Operation, at: usize, now: Now) {
        let section = operation.tasks[at].section();
        let nr_pages = self.custody.owners.tally().section_pages(section.get());
        let refusal = if operation.is_cancelled {
            SectionRefusal::Cancelled
        } else {
            let holders = self.holders_of(section, &operation.shift, now);
            operation.tasks[at].outcome.holders = holders;
            SectionRefusal::Held { section, nr_pages }
        };
        let undone = self.custody.zones.undo_isolate(section);
        undone.expect("a leaving section is in state `GoingOffline`");
        self.custody.note_section(section);
        self.bounds_changed();
        self.end_task(operation, at, Err(refusal), now);
    }

    /// Brings an offline section to the buddy.
    fn bring_online(
        &mut self,
        operation: &mut Operation,
        at: usize,
        now: Now,
    ) -> Result<(), SectionRefusal> {
        let section = operation.tasks[at].section();
        let onlined = self.custody.zones.online(section, operation.online_order)?;
        self.custody.owners.set_managed(section, true);
        self.custody.note_section(section);
        self.custody.nr_home += 1;
        self.bounds_changed();
        operation.tasks[at].outcome.onlined = Some(Onlined {
            nr_pageblocks: onlined.nr_pageblocks,
            nr_pages: onlined.nr_pages,
            blocks_by_order: onlined.blocks_by_order,
        });
        let zone = ZoneIndex(self.custody.zones.zone_of(section)?).id();
        let text = format!("section {section} is online, {} pages", onlined.nr_pages);
        self.events
            .note(now, "online", About::section(section, zone), text);
        Ok(())
    }

    /// Clients that own something in the operation's leaving sections.
    fn holding(&self, operation: &Operation) -> Vec<ClientId> {
        let leaving = operation.at(Step::Leaving);
        let sections: Vec<u32> = leaving
            .iter()
            .map(|&at| operation.tasks[at].section().get())
            .collect();
        let accounts = self.custody.owners.tally().clients();
        let holds = accounts.filter(|account| {
            sections
                .iter()
                .any(|&section| account.section(section).is_some())
        });
        holds.map(|account| account.client).collect()
    }

    /// Tells all clients of a section that has come or gone.
    fn announce(&mut self, section: SectionId) {
        let incarnation = self.custody.zones.announced(section);
        let epoch = self.custody.zones.raise_epoch();
        self.state.keep_section_epoch(epoch);
        for link in self
            .clients
            .iter()
            .filter_map(|client| client.link.as_ref())
        {
            link.segment.announce(section.get(), incarnation);
            link.segment.raise_section_epoch(epoch);
        }
    }

    /// What bounds lanes has changed: tells all clients.
    pub(crate) fn bounds_changed(&mut self) {
        self.bounds_version += 1;
        for id in self.clients.ids() {
            self.refresh_bounds(id);
        }
    }

    /// Takes the operation out that works on this section and is at this step with it.
    fn take_task(&mut self, section: SectionId, step: Step) -> Option<(Operation, usize)> {
        let id = self.custody.zones.section(section)?.operation?;
        let operation = self.operations.get(id)?;
        let at = operation.task_of(section)?;
        if operation.tasks[at].step != step {
            return None;
        }
        Some((self.operations.take(id)?, at))
    }

    fn end_task(
        &mut self,
        operation: &mut Operation,
        at: usize,
        result: Result<(), SectionRefusal>,
        now: Now,
    ) {
        let section = operation.tasks[at].section();
        if let Some(row) = self.custody.zones.section_mut(section) {
            row.operation = None;
            let zone = ZoneIndex(row.zone).id();
            let (kind, name) = (operation.kind.name(), operation.id);
            let text = match &result {
                Ok(()) => format!("operation {name}: {kind} section {section}: done"),
                Err(refusal) => format!("operation {name}: {kind} section {section}: {refusal}"),
            };
            let kind = if result.is_ok() { "section" } else { "refused" };
            self.events
                .note(now, kind, About::section(section, zone), text);
        }
        operation.end_task(at, result, now);
        self.operations.nr_steps += 1;
    }

    /// Puts an operation back, or files it when it has ended.
    pub(crate) fn put_operation(&mut self, operation: Operation, now: Now) {
        if operation.has_ended() && operation.recalled.is_none() {
            self.operations
                .end(operation.report(&self.custody.zones, now, false));
        } else {
            self.operations.put(operation);
        }
    }
}

pub(crate) fn new_outcome(section: SectionId, state: SectionState) -> SectionOutcome {
    SectionOutcome {
        section,
        state,
        done: None,
        already: false,
        holders: Vec::new(),
        onlined: None,
        nr_moved_pages: 0,
        nr_evicted_pages: 0,
        took_us: 0,
    }
}
