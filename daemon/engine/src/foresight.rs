//! What a verb would do, without doing it: the dry run of adding, onlining, offlining and removing.
//!
//! Of a section that would leave it is told who would hold it: what neither lies in a lane nor could
//! be moved, as far as there is room elsewhere, or taken from its client.

use std::collections::BTreeMap;

use hugepool_mm::{Pfn, SectionId};

use crate::Engine;
use crate::command::SectionRefusal;
use crate::hotplug::new_outcome;
use crate::id::Now;
use crate::operation::{Operation, Step, Task};
use crate::report::OperationKind;
use crate::request::{Verdict, judge};

impl Engine {
    /// What the verb would do with each section.
    pub(crate) fn foresee(&self, operation: &mut Operation, sections: &[SectionId], now: Now) {
        for &section in sections {
            let zones = &self.custody.zones;
            let mut outcome = new_outcome(section, zones.state(section));
            outcome.done = Some(
                match judge(
                    &self.custody,
                    operation.kind,
                    section,
                    operation.keep_offline,
                ) {
                    Verdict::Refuse(refusal) => Err(refusal),
                    Verdict::Already => {
                        outcome.already = true;
                        Ok(())
                    }
                    Verdict::Begin if operation.kind == OperationKind::Offline => {
                        let nr_pages = self.held_for_good(section);
                        if nr_pages > 0 {
                            outcome.holders = self.holders_of(section, &operation.shift, now);
                            Err(SectionRefusal::Held { section, nr_pages })
                        } else {
                            Ok(())
                        }
                    }
                    Verdict::Begin | Verdict::Finish => Ok(()),
                },
            );
            operation.tasks.push(Task {
                step: Step::Ended,
                outcome,
            });
        }
    }

    /// Pages lent out of a section that neither lie in lanes nor could be moved or taken: as far as
    /// can be seen, it would be held by them.
    fn held_for_good(&self, section: SectionId) -> u64 {
        let nr_held = self.held_beyond_recall(section);
        let zones = &self.custody.zones;
        let room: u64 = zones
            .iter()
            .map(|(_, zone, _)| zone.free_pages() + zone.counts().pcp)
            .sum();
        let zone = zones.section(section).map(|row| zones.zone(row.zone));
        let here = zone.and_then(|zone| zone.section(section));
        let elsewhere = room.saturating_sub(here.map_or(0, |info| info.free));
        nr_held.saturating_sub(self.nr_loose(section).min(elsewhere))
    }

    /// Pages lent out of a section that do not lie in lanes: as far as can be seen, a recall
    /// would not bring them home.
    fn held_beyond_recall(&self, section: SectionId) -> u64 {
        let geometry = self.custody.zones.geometry();
        let mut in_lanes = BTreeMap::new();
        for client in self.clients.iter() {
            let lanes = client.link.as_ref().map_or(&[][..], |link| &link.lanes);
            for lane in lanes {
                lane.look(&mut |claim| {
                    let named = (claim.pfn(), claim.order(), claim.generation());
                    let owners = &self.custody.owners;
                    if let Ok(lent) = owners.check(client.id, named.0, named.1, named.2) {
                        in_lanes.insert(named.0, lent.order.nr_pages());
                    }
                });
            }
        }
        let range = geometry.section_range(section);
        let in_section = in_lanes
            .iter()
            .filter(|(pfn, _)| range.contains(Pfn::new(**pfn)));
        let nr_in_lanes: u64 = in_section.map(|(_, &pages)| u64::from(pages)).sum();
        self.custody
            .owners
            .tally()
            .section_pages(section.get())
            .saturating_sub(nr_in_lanes)
    }
}
