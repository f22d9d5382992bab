//! Keeps the maps of the zones in step with the sections that the daemon announces.
//!
//! The daemon says by an epoch that something has changed; the client looks when it refills, maps
//! what has come, unmaps what has gone, and marks each section. The daemon lends from marked
//! sections only. So neither waits for the other, and a section whose map failed costs a typed
//! shortfall, not a fault.

use std::sync::{Mutex, PoisonError, TryLockError};

use hugepool_shm::{control::ControlSegment, step::reached as step};

use crate::attach::ZonePlace;

/// The sections of one client.
#[derive(Debug)]
pub(crate) struct Sections {
    section_order: u8,
    /// What was done last; also keeps two threads from mapping at the same time.
    done: Mutex<Done>,
}

#[derive(Debug)]
struct Done {
    /// The epoch that was looked at, once one was.
    epoch: Option<u32>,
    /// The incarnation of each section that is mapped, zone by zone; 0 for none.
    incarnations: Vec<Vec<u32>>,
}

impl Sections {
    pub(crate) fn new(section_order: u8, zones: &[ZonePlace]) -> Sections {
        let incarnations = zones
            .iter()
            .map(|zone| vec![0; zone.map.nr_sections()])
            .collect();
        Sections {
            section_order,
            done: Mutex::new(Done {
                epoch: None,
                incarnations,
            }),
        }
    }

    /// Maps and unmaps what has changed since the last time. True if anything was done.
    pub(crate) fn follow(&self, control: &ControlSegment, zones: &[ZonePlace]) -> bool {
        // A panic under the lock can only have left work undone, which the next epoch repeats.
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.follow_locked(&mut done, control, zones)
    }

    /// The same, unless another thread is at it, or this very one, interrupted by a signal: then
    /// false.
    pub(crate) fn try_follow(&self, control: &ControlSegment, zones: &[ZonePlace]) -> bool {
        let mut done = match self.done.try_lock() {
            Ok(done) => done,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.follow_locked(&mut done, control, zones);
        true
    }

    fn follow_locked(
        &self,
        done: &mut Done,
        control: &ControlSegment,
        zones: &[ZonePlace],
    ) -> bool {
        let epoch = control.section_epoch();
        if done.epoch == Some(epoch) {
            return false;
        }
        let mut all_mapped = true;
        for (zone, incarnations) in zones.iter().zip(&mut done.incarnations) {
            let start = zone.map.extent().start_pfn >> self.section_order;
            for (index, mapped) in incarnations.iter_mut().enumerate() {
                // Ids count from pfn 0, and there are fewer sections than pfns.
                let id = u32::try_from(start)
                    .unwrap_or(u32::MAX)
                    .saturating_add(narrow(index));
                let announced = control.announced(id);
                if announced == *mapped {
                    continue;
                }
                // Unmarked first: nothing is lent from it while it changes.
                control.mark_mapped(id, 0);
                *mapped = 0;
                let is_mapped = change(zone, index, announced);
                if is_mapped {
                    step("section.mapped");
                    control.mark_mapped(id, announced);
                    step("section.marked");
                    *mapped = announced;
                }
                all_mapped &= is_mapped;
            }
        }
        control.mark_mapped_epoch(epoch);
        // A map that failed is tried again at the next refill, not only at the next change.
        done.epoch = all_mapped.then_some(epoch);
        true
    }
}

/// Brings one section to the incarnation announced, and says whether it is there.
fn change(zone: &ZonePlace, index: usize, announced: u32) -> bool {
    // Also between two incarnations: the file may have been punched meanwhile.
    let is_unmapped = zone.map.unmap_section(index).is_ok();
    if announced == 0 {
        return is_unmapped;
    }
    is_unmapped && zone.map.map_section(index).is_ok()
}

fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
