//! What operators ask, what the runner answers, and that time passes.

use core::time::Duration;

use hugepool_engine::{
    Backing, Command, CommandError, Effect, Limit, ListPages, OperationReport, Reply, Sections,
    SectionsRequest, Whom,
};
use hugepool_mm::{CompactMode, SectionId};

use crate::model::Broken;
use crate::world::World;

impl World {
    /// The doorbell of one client.
    pub(crate) fn ring(&mut self) -> Result<(), Broken> {
        let Some(at) = self.some_tenant(|tenant| tenant.segment.is_some()) else {
            return Ok(());
        };
        let id = self.tenants[at].id;
        let nr_moved = self.engine.service(self.now, &mut self.outside, Some(id));
        self.trace.add(format_args!("{id} -> {nr_moved}"));
        Ok(())
    }

    pub(crate) fn sweep(&mut self) -> Result<(), Broken> {
        let nr_moved = self.engine.service(self.now, &mut self.outside, None);
        let may_sleep = self.engine.before_sleep();
        self.trace.add(format_args!("-> {nr_moved} {may_sleep}"));
        Ok(())
    }

    pub(crate) fn wait(&mut self) -> Result<(), Broken> {
        let ms = if self.prng.chance(1, 20) {
            self.prng.below(3000)
        } else {
            self.prng.below(15)
        };
        self.now += Duration::from_millis(ms);
        let next = self.engine.poll(self.now, &mut self.outside);
        self.trace
            .add(format_args!("{ms} -> {:?}", next.map(|at| at.as_millis())));
        Ok(())
    }

    pub(crate) fn answer(&mut self) -> Result<(), Broken> {
        if !self.answers.is_empty() && self.prng.chance(1, 2) {
            return self.answer_moves();
        }
        if self.effects.is_empty() {
            return Ok(());
        }
        let nth = self.prng.index(self.effects.len());
        let is_well = !self.prng.chance(1, 8);
        self.answer_effect(nth, is_well)
    }

    /// The runner has done one of the things it was asked to do, well or not.
    ///
    /// # Errors
    /// The engine's answer does not fit what the model knows.
    pub fn answer_effect(&mut self, nth: usize, is_well: bool) -> Result<(), Broken> {
        let effect = self.effects.swap_remove(nth);
        self.trace.add(format_args!("{effect:?} {is_well}"));
        match effect {
            Effect::Populate { section, .. } => {
                let backing = || Backing {
                    name: "told".to_owned(),
                    node: -1,
                    not_taken: vec![],
                };
                let result = is_well.then(backing).ok_or_else(|| "no memory".to_owned());
                self.engine.populated(section, result, self.now);
                self.collect_effects()?;
                // Cancelled meanwhile, what was made is given back.
                let is_unwound = self.effects.iter().any(
                    |effect| matches!(effect, Effect::Punch { section: other, .. } if *other == section),
                );
                if is_well && !is_unwound {
                    self.model.set_present(section.get(), true)?;
                }
            }
            Effect::Punch { section, .. } => {
                let before = self.engine.status().pages.present;
                let result = if is_well {
                    Ok(())
                } else {
                    Err("EIO".to_owned())
                };
                self.engine.punched(section, result, self.now);
                if self.engine.status().pages.present < before {
                    self.model.set_present(section.get(), false)?;
                }
            }
            Effect::Move { batch } => self.carry_out(&batch, is_well)?,
            Effect::Kill { client } => {
                if let Some(at) = self.tenant_of(client) {
                    self.die(at)?;
                }
            }
            // A connection is what is closed: the session is over.
            Effect::Close { client } => {
                let at = self.tenant_of(client);
                if let Some(at) = at.filter(|&at| self.tenants[at].segment.is_none()) {
                    self.die(at)?;
                }
            }
            Effect::Forget { .. } => {}
        }
        Ok(())
    }

    pub(crate) fn add(&mut self) -> Result<(), Broken> {
        let request = self.draw_sections();
        let online_order = self.draw_online_order();
        let keep_offline = self.prng.chance(1, 4);
        self.operate(Command::AddSections {
            request,
            online_order,
            keep_offline,
        })
    }

    pub(crate) fn online(&mut self) -> Result<(), Broken> {
        let request = self.draw_sections();
        let online_order = self.draw_online_order();
        self.operate(Command::OnlineSections {
            request,
            online_order,
        })
    }

    pub(crate) fn offline(&mut self) -> Result<(), Broken> {
        let request = self.draw_sections();
        let timeout = self
            .prng
            .chance(3, 4)
            .then(|| Duration::from_millis(self.prng.below(100)));
        self.operate(Command::OfflineSections { request, timeout })
    }

    pub(crate) fn remove(&mut self) -> Result<(), Broken> {
        let request = self.draw_sections();
        self.operate(Command::RemoveSections { request })
    }

    pub(crate) fn cancel(&mut self) -> Result<(), Broken> {
        let id = self.last_operation;
        self.operate(Command::CancelOperation { id })
    }

    pub(crate) fn compact(&mut self) -> Result<(), Broken> {
        let zones = &self.swarm.config.zones;
        let zone = self.prng.pick(zones).map(|zone| zone.name.clone());
        let zone = zone.filter(|_| self.prng.chance(3, 4));
        let order = self.prng.chance(1, 2).then(|| self.prng.below_u32(9));
        let mode = match self.prng.below(3) {
            0 => CompactMode::Manual,
            1 => CompactMode::Sync,
            _ => CompactMode::Async,
        };
        self.operate(Command::Compact { zone, order, mode })
    }

    pub(crate) fn drain(&mut self) -> Result<(), Broken> {
        let slot = self.draw_slot();
        let timeout = self
            .prng
            .chance(1, 2)
            .then(|| Duration::from_millis(self.prng.below(50)));
        self.operate(Command::DrainLanes { slot, timeout })
    }

    pub(crate) fn evict(&mut self) -> Result<(), Broken> {
        let slot = self.draw_slot().unwrap_or(0);
        let kill = self.prng.chance(1, 2);
        self.operate(Command::EvictClient {
            slot,
            incarnation: None,
            kill,
        })
    }

    pub(crate) fn tune(&mut self) -> Result<(), Broken> {
        let slot = self.draw_slot();
        let command = if self.prng.chance(1, 2) {
            let batch = self.prng.chance(1, 2).then(|| self.prng.below_u32(600));
            let high = self.prng.chance(1, 2).then(|| self.prng.below_u32(1100));
            Command::SetPcp { slot, batch, high }
        } else {
            let ceiling_pages = self.prng.chance(1, 2).then(|| self.prng.below(500));
            Command::SetLimits {
                whom: slot.map_or(Whom::EachClient, Whom::Client),
                zone: None,
                limit: Limit {
                    floor_pages: 0,
                    ceiling_pages,
                },
            }
        };
        let result = self.engine.apply(command, self.now, &mut self.outside);
        self.trace
            .add(format_args!("-> {:?}", result.as_ref().err()));
        Ok(())
    }

    /// All reports are made; what they say of the same pages agrees.
    pub(crate) fn look(&mut self) -> Result<(), Broken> {
        let lent = self.engine.status().pages.lent;
        let by_zone: u64 = self
            .engine
            .list_zones()
            .iter()
            .map(|zone| zone.pages.lent)
            .sum();
        let clients = self.engine.list_clients(self.now);
        let by_client: u64 = clients.iter().map(|client| client.lent).sum();
        let Reply::Sections(sections) = self.ask(Command::ListSections { zone: None })? else {
            return Err("sections were asked for".to_owned());
        };
        let by_section: u64 = sections.iter().map(|section| section.lent).sum();
        let mut by_page = 0;
        let mut from_pfn = Some(0);
        while let Some(from) = from_pfn {
            let request = ListPages {
                limit: 50,
                from_pfn: from,
                ..ListPages::default()
            };
            let Reply::Pages(list) = self.ask(Command::ListPages(request))? else {
                return Err("pages were asked for".to_owned());
            };
            let pages = list
                .runs
                .iter()
                .map(|run| u64::from(run.nr_blocks) << run.order.get());
            by_page += pages.sum::<u64>();
            from_pfn = list.next;
        }
        for command in [
            Command::GetContiguity { zone: None },
            Command::InvalidateContiguity { zone: None },
            Command::GetBuddyInfo { zone: None },
            Command::GetPageTypeInfo { zone: None },
            Command::GetZoneInfo { zone: None },
            Command::ListOperations,
            Command::GetEvents { after: 0 },
        ] {
            self.ask(command)?;
        }
        self.trace.add(format_args!("-> {lent}"));
        let on_its_way = self.pages_on_their_way();
        if [
            by_zone,
            by_client + on_its_way,
            by_section,
            by_page + on_its_way,
        ]
        .iter()
        .all(|&sum| sum == lent)
        {
            return Ok(());
        }
        Err(format!(
            "{lent} pages are lent; {by_zone} by zone, {by_client} by client, {by_section} by \
             section, {by_page} by page, {on_its_way} on their way"
        ))
    }

    fn ask(&mut self, command: Command) -> Result<Reply, Broken> {
        let asked = format!("{command:?}");
        let result = self.engine.apply(command, self.now, &mut self.outside);
        result.map_err(|error| format!("{asked} was refused: {error}"))
    }

    /// Applies a command that begins an operation; a dry run must change nothing.
    fn operate(&mut self, command: Command) -> Result<(), Broken> {
        let before = self.engine.status().pages;
        let asked = format!("{command:?}");
        let result = self.engine.apply(command, self.now, &mut self.outside);
        match result {
            Ok(Reply::Operation(report)) => {
                self.trace
                    .add(format_args!("-> {} {:?}", report.id, report.state));
                self.trace_sections(&report);
                let is_changed = self.engine.status().pages != before;
                if report.dry_run && is_changed {
                    return Err(format!("a dry run changed something: {asked}"));
                }
                if !report.dry_run {
                    self.last_operation = report.id;
                }
                Ok(())
            }
            Ok(other) => Err(format!("{asked} was answered {other:?}")),
            Err(error) => {
                self.trace.add(format_args!("-> {error}"));
                let is_expected = !matches!(error, CommandError::OnlineOrder { .. });
                if is_expected {
                    Ok(())
                } else {
                    Err(format!("{asked} was refused: {error}"))
                }
            }
        }
    }

    fn trace_sections(&mut self, report: &OperationReport) {
        for outcome in &report.sections {
            let (section, state) = (outcome.section, outcome.state);
            self.trace.add(format_args!("{section}:{state}"));
        }
    }

    /// Some sections of one zone by count, or some by id, now and then twice or of nowhere.
    fn draw_sections(&mut self) -> SectionsRequest {
        let dry_run = self.prng.chance(1, 10);
        if self.prng.chance(1, 2) {
            let zones = &self.swarm.config.zones;
            let zone = self.prng.pick(zones).map(|zone| zone.name.clone());
            return SectionsRequest {
                zone,
                sections: Sections::Count(self.prng.small(3)),
                dry_run,
            };
        }
        let count = self.prng.small(4);
        let ids: Vec<SectionId> = (0..count).map(|_| self.some_section()).collect();
        SectionsRequest {
            zone: None,
            sections: Sections::Ids(ids),
            dry_run,
        }
    }

    fn draw_online_order(&mut self) -> Option<u32> {
        let pageblock_order = u32::from(self.geometry().pageblock_order().get());
        match self.prng.below(3) {
            0 => None,
            1 => Some(0),
            _ => Some(pageblock_order),
        }
    }

    fn draw_slot(&mut self) -> Option<u16> {
        if self.prng.chance(1, 3) {
            return None;
        }
        let slots: Vec<u16> = self.tenants.iter().map(|tenant| tenant.id.slot).collect();
        self.prng.pick(&slots).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;

    /// Runs of some seeds, until each kind of compaction has moved something. One for a request is
    /// rare, in one of some six hundred seeds; the first is one where it comes soon.
    #[test]
    fn memory_is_compacted_for_whoever_wants_it() {
        let mut whys = vec!["asked for", "for a request", "in the background"];
        for seed in 1861..3500 {
            let mut world = World::new(seed, false).unwrap();
            for step in 0..3000 {
                world.step(step).unwrap();
                world.check_conservation().unwrap();
            }
            let Ok(Reply::Events(batch)) = world.ask(Command::GetEvents { after: 0 }) else {
                panic!("no events")
            };
            let told = |why: &str| {
                let of_it = |text: &str| text.contains(why) && !text.contains(", 0 pages moved");
                let compactions = batch.events.iter().filter(|event| event.kind == "compact");
                compactions.into_iter().any(|event| of_it(&event.text))
            };
            whys.retain(|why| !told(why));
            if whys.is_empty() {
                return;
            }
        }
        panic!("nothing was ever moved that was {whys:?}");
    }
}
