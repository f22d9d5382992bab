//! The zones' memory: a file for each zone, and which of its sections have been populated.
//!
//! Slow and able to fail, so it is never reached with the engine's lock held. Each zone has a lock
//! of its own, under which its file is populated, punched and audited one at a time: a file can only
//! be counted as a whole.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, TryLockError};

use hugepool_engine::{Backing as BackingReport, BlockCopy};
use hugepool_mm::{Geometry, Pfn, SectionId, ZoneId};
use hugepool_shm::backing::{Backing, BackingFacts, ChosenBacking};
use hugepool_shm::mapping::MapError;
use hugepool_shm::page_io::PageIo;
use hugepool_shm::region::{Region, RegionError};
use hugepool_shm::storage::Storage;
use hugepool_shm::transit::TransitTable;

use crate::backing_plan::choose_more;
use crate::config::ZonePlan;
use crate::shared::lock;

/// All zones' memory.
#[derive(Debug)]
pub struct Memory {
    geometry: Geometry,
    zones: Vec<ZoneMemory>,
}

#[derive(Debug)]
struct ZoneMemory {
    plan: ZonePlan,
    at_start: ChosenBacking,
    storage: Storage,
    /// Its bytes, for copies.
    io: PageIo,
    /// The transit words of its parcels.
    transits: Region,
    /// Those of its sections with memory, by number, and what serves them. Held while its file is
    /// worked on.
    populated: Mutex<BTreeMap<u32, Backing>>,
    /// Bytes that audits have found beyond, or short of, what is right, since each section was
    /// populated or punched. Taken for a moment only, also with `populated` held.
    found: Mutex<BTreeMap<u32, i64>>,
}

/// A zone as a daemon before has left it.
#[derive(Debug)]
pub struct FoundZone {
    /// As it is now configured.
    pub plan: ZonePlan,
    /// What its file is made of.
    pub at_start: ChosenBacking,
    /// Its file.
    pub region: Region,
    /// Sections that have memory.
    pub populated: Vec<(SectionId, Backing)>,
    /// The transit words of its parcels.
    pub transits: Region,
}

impl Memory {
    /// Makes a zone's file for each plan, all empty.
    ///
    /// # Errors
    /// [`RegionError`] with the name of the zone.
    pub fn new(
        geometry: Geometry,
        max_clients: u16,
        zones: Vec<(ZonePlan, ChosenBacking)>,
    ) -> Result<Memory, (String, RegionError)> {
        let make = |(plan, at_start): (ZonePlan, ChosenBacking)| {
            let bytes = plan.span_pages.saturating_mul(geometry.page_bytes());
            let made = Storage::create(&plan.name, bytes, at_start.backing, plan.node);
            let made = made.and_then(|storage| {
                say_if_unbound(&plan, &storage);
                let io = PageIo::new(storage.region());
                let io = io.map_err(|errno| RegionError::System {
                    step: "map",
                    len_bytes: bytes,
                    errno,
                })?;
                let len_bytes = TransitTable::len_bytes(u32::from(max_clients) + 1);
                let len_bytes = u64::try_from(len_bytes).unwrap_or(u64::MAX);
                let transits = Region::for_peers(&format!("transits-{}", plan.name), len_bytes)?;
                Ok((storage, io, transits))
            });
            match made {
                Ok((storage, io, transits)) => Ok(ZoneMemory {
                    plan,
                    at_start,
                    storage,
                    io,
                    transits,
                    populated: Mutex::default(),
                    found: Mutex::default(),
                }),
                Err(error) => Err((plan.name, error)),
            }
        };
        Ok(Memory {
            geometry,
            zones: zones.into_iter().map(make).collect::<Result<_, _>>()?,
        })
    }

    /// The descriptor of the transit words of a zone.
    pub fn transits(&self, zone: ZoneId) -> BorrowedFd<'_> {
        self.zones[usize::from(zone.get())].transits.as_fd()
    }

    /// Maps the transit words of each zone, for the engine.
    ///
    /// # Errors
    /// What mapping answers.
    pub fn map_transits(&self) -> Result<Vec<TransitTable>, MapError> {
        let zones = self.zones.iter();
        zones
            .map(|zone| Ok(TransitTable::over(zone.transits.map()?)))
            .collect()
    }

    /// Goes on with files that a daemon before has made, and the memory in them.
    ///
    /// # Errors
    /// [`RegionError`] with the name of the zone.
    pub fn take_over(
        geometry: Geometry,
        zones: Vec<FoundZone>,
    ) -> Result<Memory, (String, RegionError)> {
        let take = |found: FoundZone| {
            let FoundZone {
                plan,
                at_start,
                region,
                populated,
                transits,
            } = found;
            let len_bytes = region.len_bytes();
            let taken = Storage::bind(region, plan.node).and_then(|storage| {
                say_if_unbound(&plan, &storage);
                let io = PageIo::new(storage.region());
                let io = io.map_err(|errno| RegionError::System {
                    step: "map",
                    len_bytes,
                    errno,
                })?;
                Ok((storage, io))
            });
            let populated = populated.iter().map(|(id, backing)| (id.get(), *backing));
            match taken {
                Ok((storage, io)) => Ok(ZoneMemory {
                    plan,
                    at_start,
                    storage,
                    io,
                    transits,
                    populated: Mutex::new(populated.collect()),
                    found: Mutex::default(),
                }),
                Err(error) => Err((plan.name, error)),
            }
        };
        Ok(Memory {
            geometry,
            zones: zones.into_iter().map(take).collect::<Result<_, _>>()?,
        })
    }

    /// The file of a zone, to be passed to clients.
    ///
    /// # Panics
    /// If there is no such zone: ids come from the engine, which was made of the same plans.
    pub fn file(&self, zone: ZoneId) -> BorrowedFd<'_> {
        self.zone(zone).storage.region().as_fd()
    }

    fn zone(&self, zone: ZoneId) -> &ZoneMemory {
        &self.zones[usize::from(zone.get())]
    }

    /// Copies a block, from one zone to another where it goes there. False: a page of it has no
    /// memory any more, because a client has punched it out.
    pub fn copy(&self, block: &BlockCopy) -> bool {
        let (source, target) = (self.zone(block.from_zone), self.zone(block.to_zone));
        let from = source.offset(block.from, self.geometry);
        let to = target.offset(block.to, self.geometry);
        let len = u64::from(block.nr_pages) << self.geometry.page_shift();
        let copied = if block.from_zone == block.to_zone {
            target.io.copy(from, to, len)
        } else {
            target.io.copy_from(&source.io, from, to, len)
        };
        copied
            .inspect_err(|error| tracing::warn!(%error, "a block could not be copied"))
            .is_ok()
    }

    /// Takes memory for a section, and says of what kind.
    ///
    /// # Errors
    /// What lacks, with numbers, in one line; the section has nothing then.
    pub fn populate(&self, zone: ZoneId, section: SectionId) -> Result<BackingReport, String> {
        let zone = self.zone(zone);
        let mut populated = lock(&zone.populated);
        let section_bytes = self.geometry.section_bytes();
        let facts = BackingFacts::probe_for(zone.storage.region().pages());
        let chosen = choose_more(&zone.plan, &zone.at_start, section_bytes, &facts)
            .map_err(|error| error.to_string())?;
        let range = zone.range(section, self.geometry);
        zone.storage
            .populate_by(range, chosen.backing, &facts)
            .map_err(|error| one_line(&error))?;
        populated.insert(section.get(), chosen.backing);
        lock(&zone.found).remove(&section.get());
        Ok(BackingReport {
            name: chosen.backing.name().to_owned(),
            node: zone
                .plan
                .node
                .and_then(|node| i32::try_from(node).ok())
                .unwrap_or(-1),
            not_taken: chosen.passed_over.iter().map(ToString::to_string).collect(),
        })
    }

    /// Gives a section's memory back to the system.
    ///
    /// # Errors
    /// What the system answered, in one line; how much is left is not known then.
    pub fn punch(&self, zone: ZoneId, section: SectionId) -> Result<(), String> {
        let zone = self.zone(zone);
        let mut populated = lock(&zone.populated);
        zone.storage
            .punch(zone.range(section, self.geometry))
            .map_err(|error| one_line(&error))?;
        populated.remove(&section.get());
        lock(&zone.found).remove(&section.get());
        Ok(())
    }

    /// Compares each zone's file with what it should hold, punches what is nobody's, fills what
    /// lacks, and says what has been found in each section so far, beyond (or, negative, short of)
    /// what is right. A zone that is being populated or punched is left out.
    pub fn audit(&self) -> BTreeMap<SectionId, i64> {
        let mut all = BTreeMap::new();
        for zone in &self.zones {
            match zone.populated.try_lock() {
                Ok(populated) => zone.audit(self.geometry, &populated),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Poisoned(_)) => panic!("a panic ends the process"),
            }
            let found = lock(&zone.found);
            all.extend(
                found
                    .iter()
                    .map(|(section, nr)| (SectionId::new(*section), *nr)),
            );
        }
        all
    }

    /// [`Memory::audit`] beside the runtime: it may take as long as populating does.
    pub async fn audit_aside(self: &Arc<Memory>) -> BTreeMap<SectionId, i64> {
        let memory = self.clone();
        let audit = tokio::task::spawn_blocking(move || memory.audit());
        // It cannot be cancelled, and a panic has ended the process.
        audit.await.unwrap_or_default()
    }
}

impl ZoneMemory {
    fn audit(&self, geometry: Geometry, populated: &BTreeMap<u32, Backing>) {
        let section_bytes = geometry.section_bytes();
        let expected = u64::try_from(populated.len())
            .unwrap_or(u64::MAX)
            .saturating_mul(section_bytes);
        if self.storage.allocated() == Ok(expected) {
            return;
        }
        let present: Vec<(Range<u64>, Backing)> = populated
            .iter()
            .map(|(section, backing)| (self.range(SectionId::new(*section), geometry), *backing))
            .collect();
        let absent = gaps(&present, self.storage.region().len_bytes());
        let audit = match self.storage.audit(&present, &absent) {
            Ok(audit) => audit,
            Err(error) => {
                return tracing::warn!(zone = self.plan.name, %error, "the audit failed");
            }
        };
        let note = |range: &Range<u64>, difference: i64| {
            let section = self.section(range.start, geometry);
            *lock(&self.found).entry(section).or_default() += difference;
        };
        let bytes = |nr: u64| i64::try_from(nr).unwrap_or(i64::MAX);
        for (range, nr) in &audit.strays {
            tracing::warn!(
                zone = self.plan.name,
                ?range,
                nr,
                "bytes that are nobody's: given back"
            );
            note(range, bytes(*nr));
        }
        for (range, nr) in &audit.holes {
            tracing::warn!(
                zone = self.plan.name,
                ?range,
                nr,
                "bytes that lacked: filled with zeros"
            );
            note(range, -bytes(*nr));
        }
        for (range, error) in &audit.unmended {
            tracing::error!(zone = self.plan.name, ?range, %error, "bytes lack and cannot be had");
        }
    }

    /// A page's place in the zone's file, in bytes.
    fn offset(&self, pfn: Pfn, geometry: Geometry) -> u64 {
        let pages = pfn.get().saturating_sub(self.plan.start_pfn);
        u64::from(pages) << geometry.page_shift()
    }

    /// A section's place in the zone's file, in bytes.
    fn range(&self, section: SectionId, geometry: Geometry) -> Range<u64> {
        let first = u64::from(section.get()) << geometry.section_order();
        let offset = first.saturating_sub(self.plan.start_pfn.into());
        let start = offset.saturating_mul(geometry.page_bytes());
        start..start.saturating_add(geometry.section_bytes())
    }

    /// The section at a place in the zone's file.
    fn section(&self, offset: u64, geometry: Geometry) -> u32 {
        let pages = (offset >> geometry.page_shift()) + u64::from(self.plan.start_pfn);
        u32::try_from(pages >> geometry.section_order()).unwrap_or(u32::MAX)
    }
}

/// A zone works without its node, and whoever reads the log knows.
fn say_if_unbound(plan: &ZonePlan, storage: &Storage) {
    if let Some(node) = plan.node.filter(|_| storage.is_unbound()) {
        tracing::warn!(
            zone = plan.name,
            node,
            "this system has no memory policies for us: the zone's memory is of any node",
        );
    }
}

/// What lies between the present ranges of a file, which are in order.
fn gaps(present: &[(Range<u64>, Backing)], len_bytes: u64) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut end = 0;
    for (range, _) in present {
        if end < range.start {
            gaps.push(end..range.start);
        }
        end = range.end;
    }
    if end < len_bytes {
        gaps.push(end..len_bytes);
    }
    gaps
}

/// An error and its sources on one line.
fn one_line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        line.push_str(": ");
        line.push_str(&error.to_string());
        source = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    /// Seen to fail with what was found kept under the lock that populating holds.
    #[test]
    fn a_zone_that_is_being_populated_still_tells_what_was_found_in_it() {
        let geometry = Geometry::new(12, 9, 10, 10).unwrap();
        let zone = "a=0,reserve=128MiB,backing=shm".parse().unwrap();
        let config = Config::embedded(Path::new("/run/test"), vec![zone]).unwrap();
        let chosen = ChosenBacking {
            backing: Backing::Shm,
            passed_over: Vec::new(),
        };
        let plans = vec![(config.zones[0].clone(), chosen)];
        let memory = Memory::new(geometry, 8, plans).unwrap();
        let zone = ZoneId::new(0);
        memory.populate(zone, SectionId::new(0)).unwrap();
        assert!(memory.audit().is_empty(), "as it should be");

        // A byte in the section behind it, which is absent.
        let file = std::fs::File::from(memory.file(zone).try_clone_to_owned().unwrap());
        file.write_all_at(&[1], geometry.section_bytes()).unwrap();
        let found = BTreeMap::from([(SectionId::new(1), 4096)]);
        assert_eq!(memory.audit(), found);
        let populating = lock(&memory.zones[0].populated);
        assert_eq!(memory.audit(), found);
        drop(populating);
        memory.populate(zone, SectionId::new(1)).unwrap();
        assert!(memory.audit().is_empty(), "a new life begins with nothing");
    }

    #[test]
    fn gaps_are_what_the_present_ranges_leave() {
        let at = |start: u64, end: u64| (start..end, Backing::Shm);
        assert_eq!(gaps(&[], 8).as_slice(), std::slice::from_ref(&(0..8)));
        assert_eq!(gaps(&[at(0, 8)], 8), []);
        assert_eq!(gaps(&[at(2, 4), at(4, 5)], 8), [0..2, 5..8]);
    }
}
