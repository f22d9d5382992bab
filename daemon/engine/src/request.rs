//! From a request to its sections: which are meant, and what the verb is to do with each.
//!
//! Decides, changes nothing: the same answers serve a dry run and the real one.

use std::collections::BTreeSet;

use hugepool_mm::{OnlineOrder, SectionError, SectionId, SectionState, Zone};

use crate::command::{CommandError, SectionRefusal, Sections, SectionsRequest};
use crate::custody::Custody;
use crate::num;
use crate::report::OperationKind;
use crate::zones::Zones;

/// What a verb is to do with one section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// From its first step on.
    Begin,
    /// Only the last part: an added section that is offline is brought online.
    Finish,
    /// It is so already.
    Already,
    /// It cannot be.
    Refuse(SectionRefusal),
}

/// The sections that are meant.
pub(crate) fn resolve(
    zones: &Zones,
    kind: OperationKind,
    request: &SectionsRequest,
) -> Result<Vec<SectionId>, CommandError> {
    let named = request.zone.as_ref().map(|name| {
        zones
            .named(name)
            .ok_or_else(|| CommandError::NoSuchZone { name: name.clone() })
    });
    let zone = named.transpose()?;
    match &request.sections {
        Sections::Count(0) => Err(CommandError::NoSections),
        Sections::Count(count) => {
            let zone = zone.ok_or(CommandError::NoZoneNamed)?;
            let found = preferred(zones, zones.zone(zone), kind, num::index(*count));
            let there = num::saturate(num::count(found.len()));
            if there < *count {
                return Err(CommandError::TooFewSections {
                    asked: *count,
                    there,
                });
            }
            Ok(found)
        }
        Sections::Ids(ids) => {
            check_ids(zones, zone, ids)?;
            Ok(ids.clone())
        }
    }
}

/// The order in which pages come online.
pub(crate) fn online_order(zones: &Zones, order: Option<u32>) -> Result<OnlineOrder, CommandError> {
    let pageblock_order = u32::from(zones.geometry().pageblock_order().get());
    match order {
        None => Ok(OnlineOrder::Pageblock),
        Some(order) if order == pageblock_order => Ok(OnlineOrder::Pageblock),
        Some(0) => Ok(OnlineOrder::Page),
        Some(order) => Err(CommandError::OnlineOrder {
            order,
            pageblock_order,
        }),
    }
}

/// What the verb is to do with a section as it is now.
pub(crate) fn judge(
    custody: &Custody,
    kind: OperationKind,
    section: SectionId,
    keep_offline: bool,
) -> Verdict {
    use SectionState::{Absent, Adding, GoingOffline, Offline, Online, Removing};
    let zones = &custody.zones;
    if let Some(operation) = zones.section(section).and_then(|row| row.operation) {
        return Verdict::Refuse(SectionRefusal::Taken { section, operation });
    }
    let state = zones.state(section);
    let wrong = SectionError::WrongState { section, state };
    match (kind, state) {
        (OperationKind::Add, Absent) => Verdict::Begin,
        (OperationKind::Add, Offline) if !keep_offline => Verdict::Finish,
        (OperationKind::Online, Offline) => Verdict::Begin,
        (OperationKind::Offline, Online) => custody
            .kept_by_floors(section)
            .map_or(Verdict::Begin, Verdict::Refuse),
        // Removing without an operation: the system did not take its memory back last time.
        (OperationKind::Remove, Offline | Removing) => Verdict::Begin,
        (OperationKind::Add, Offline | Online)
        | (OperationKind::Online, Online)
        | (OperationKind::Offline, Offline)
        | (OperationKind::Remove, Absent) => Verdict::Already,
        (_, Absent | Adding | Offline | Online | GoingOffline | Removing) => {
            Verdict::Refuse(wrong.into())
        }
    }
}

/// The sections that a count means: lowest absent or offline upward, highest online or
/// offline downward, those that another operation works on left out.
fn preferred(zones: &Zones, zone: &Zone, kind: OperationKind, nr: usize) -> Vec<SectionId> {
    let is_free = |id: &SectionId| {
        zones
            .section(*id)
            .is_some_and(|row| row.operation.is_none())
    };
    let in_state = |state: SectionState| {
        let rows: Vec<_> = zone.sections().filter(|row| row.state == state).collect();
        rows.into_iter().map(|row| row.id).filter(is_free)
    };
    match kind {
        OperationKind::Add => zone.lowest_absent(nr).into_iter().filter(is_free).collect(),
        OperationKind::Online => in_state(SectionState::Offline).take(nr).collect(),
        OperationKind::Offline => in_state(SectionState::Online).rev().take(nr).collect(),
        OperationKind::Remove => in_state(SectionState::Offline).rev().take(nr).collect(),
        OperationKind::Drain | OperationKind::Evict | OperationKind::Compact => Vec::new(),
    }
}

fn check_ids(zones: &Zones, zone: Option<usize>, ids: &[SectionId]) -> Result<(), CommandError> {
    if ids.is_empty() {
        return Err(CommandError::NoSections);
    }
    let mut seen = BTreeSet::new();
    for &section in ids {
        let row = zones
            .section(section)
            .ok_or(CommandError::NoSuchSection { section })?;
        if let Some(zone) = zone.filter(|&zone| zone != row.zone) {
            let zone = zones.settings(zone).name.clone();
            return Err(CommandError::OtherZone { section, zone });
        }
        if !seen.insert(section) {
            return Err(CommandError::Twice { section });
        }
    }
    Ok(())
}
