//! The zones and their sections, as the engine keeps them beside the allocator.
//!
//! Names, places and incarnations of sections, which operation works on which, and what
//! backs them. Pages inside a zone are [`hugepool_mm::Zone`]'s; who borrows them is
//! [`custody`](crate::custody)'s.

use hugepool_mm::{
    Geometry, OnlineOrder, Onlined, Order, Pfn, SectionError, SectionId, SectionState, Zone,
    ZoneConfig, ZoneError, ZoneId, setup_zones,
};
use hugepool_shm::raw::NR_ZONES;
use thiserror::Error;

use crate::config::ZoneSettings;
use crate::head_run::HeadRun;
use crate::id::OperationId;
use crate::num;
use crate::report::{Backing, PageCounts};

/// Why no engine could be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A bad value.
    #[error("{nr_zones} zones are asked for, 1 to {most} can be")]
    NrZones {
        /// As asked.
        nr_zones: usize,
        /// The most.
        most: usize,
    },
    /// A bad value.
    #[error("two zones are named {name:?}")]
    NameTwice {
        /// The name.
        name: String,
    },
    /// A bad value: the reserves do not fit.
    #[error("zone {name:?} cannot be made: {error}")]
    Zone {
        /// Its name.
        name: String,
        /// What the allocator said.
        error: ZoneError,
    },
    /// The owner table could not be had.
    #[error("the owner table for {nr_pages} pages could not be mapped: {why}")]
    OwnerTable {
        /// Pages of all reserves.
        nr_pages: u64,
        /// What the system said.
        why: String,
    },
}

/// From so many neighbours on pages go to the free maps and not to the daemon's lists: there they
/// are a word's bits, and find their neighbours again.
const STRAIGHT_HOME: u32 = 8;

/// What is known of a section beside its state in the zone.
#[derive(Clone, Debug)]
pub(crate) struct SectionRow {
    /// Index of its zone.
    pub zone: usize,
    /// Its life, from 1; 0 before the first.
    pub incarnation: u32,
    /// What it is made of, while it is.
    pub backing: Option<Backing>,
    /// The operation that works on it.
    pub operation: Option<OperationId>,
}

/// All zones, in order of index.
#[derive(Debug)]
pub(crate) struct Zones {
    geometry: Geometry,
    zones: Vec<Zone>,
    settings: Vec<ZoneSettings>,
    sections: Vec<SectionRow>,
    /// By zone: lent pages whose clients are dead, and that wait.
    quarantined: [u64; NR_ZONES],
    /// By zone: sections that are going offline.
    nr_leaving: [u32; NR_ZONES],
    /// Rises with each announcement and withdrawal, from 1: a client that has mapped nothing
    /// yet says 0.
    epoch: u32,
}

impl Zones {
    /// The zones of these settings, one behind the other, all sections absent.
    pub fn new(geometry: Geometry, settings: Vec<ZoneSettings>) -> Result<Zones, ConfigError> {
        if settings.is_empty() || settings.len() > NR_ZONES {
            return Err(ConfigError::NrZones {
                nr_zones: settings.len(),
                most: NR_ZONES,
            });
        }
        let mut zones = Vec::new();
        let mut sections = Vec::new();
        let mut start = 0u64;
        for (at, zone) in settings.iter().enumerate() {
            let name = zone.name.clone();
            if settings[..at].iter().any(|other| other.name == name) {
                return Err(ConfigError::NameTwice { name });
            }
            let made = new_zone(geometry, at, zone, start)
                .map_err(|error| ConfigError::Zone { name, error })?;
            zones.push(made);
            start += zone.reserve_pages;
            let row = SectionRow {
                zone: at,
                incarnation: 0,
                backing: None,
                operation: None,
            };
            let nr_sections = zone.reserve_pages >> geometry.section_order();
            sections.extend((0..nr_sections).map(|_| row.clone()));
        }
        Ok(Zones {
            geometry,
            zones,
            settings,
            sections,
            quarantined: [0; NR_ZONES],
            nr_leaving: [0; NR_ZONES],
            epoch: 0,
        })
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Pages of all reserves: one above the highest pfn.
    pub fn nr_pages(&self) -> u64 {
        num::count(self.sections.len()) << self.geometry.section_order()
    }

    /// Sections of all reserves.
    pub fn nr_sections(&self) -> u32 {
        num::saturate(num::count(self.sections.len()))
    }

    /// Zone index of each section.
    pub fn zone_of_sections(&self) -> Vec<u8> {
        self.sections
            .iter()
            .map(|row| ZoneIndex(row.zone).id().get())
            .collect()
    }

    pub fn len(&self) -> usize {
        self.zones.len()
    }

    /// The zones, by index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Zone, &ZoneSettings)> {
        self.zones
            .iter()
            .zip(&self.settings)
            .enumerate()
            .map(|(at, (zone, set))| (at, zone, set))
    }

    pub fn zone(&self, at: usize) -> &Zone {
        &self.zones[at]
    }

    pub fn zone_mut(&mut self, at: usize) -> &mut Zone {
        &mut self.zones[at]
    }

    pub fn settings(&self, at: usize) -> &ZoneSettings {
        &self.settings[at]
    }

    /// As [`settings`](Self::settings), to be changed: limits alone.
    pub fn settings_mut(&mut self, at: usize) -> &mut ZoneSettings {
        &mut self.settings[at]
    }

    /// The zone of that name.
    pub fn named(&self, name: &str) -> Option<usize> {
        self.settings.iter().position(|zone| zone.name == name)
    }

    /// The index of the zone in which a page lies.
    #[inline]
    pub fn of_page(&self, pfn: Pfn) -> usize {
        self.sections[num::index(self.geometry.section_of(pfn).get())].zone
    }

    /// What is known of a section, if there is one of that number.
    pub fn section(&self, section: SectionId) -> Option<&SectionRow> {
        self.sections.get(num::index(section.get()))
    }

    /// As [`section`](Self::section), to be changed.
    pub fn section_mut(&mut self, section: SectionId) -> Option<&mut SectionRow> {
        self.sections.get_mut(num::index(section.get()))
    }

    /// The state of a section; absent outside all reserves.
    pub fn state(&self, section: SectionId) -> SectionState {
        self.section(section)
            .and_then(|row| self.zones[row.zone].section_state(section))
            .unwrap_or_default()
    }

    /// The epoch of the announcements.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The incarnation in which clients may map a section; 0: they must not.
    pub fn announced(&self, section: SectionId) -> u32 {
        let state = self.state(section);
        let is_there = state.is_present() && state != SectionState::Removing;
        self.section(section)
            .filter(|_| is_there)
            .map_or(0, |row| row.incarnation)
    }

    /// Goes on from the epoch of a daemon before.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// Notes that what is announced has changed; returns the new epoch.
    pub fn raise_epoch(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Index of the section's zone, or why there is none.
    pub fn zone_of(&self, section: SectionId) -> Result<usize, SectionError> {
        self.section(section)
            .map(|row| row.zone)
            .ok_or(SectionError::NotInZone { section })
    }

    /// Brings a section's pages to the free lists, and shares the watermarks out anew.
    pub fn online(
        &mut self,
        section: SectionId,
        order: OnlineOrder,
    ) -> Result<Onlined, SectionError> {
        let zone = self.zone_of(section)?;
        let onlined = self.zones[zone].online(section, order)?;
        setup_zones(&mut self.zones, None);
        Ok(onlined)
    }

    /// Takes an isolated section whose pages are all free, and shares the watermarks out anew.
    pub fn finish_offline(&mut self, section: SectionId) -> Result<(), SectionError> {
        let zone = self.zone_of(section)?;
        self.zones[zone].finish_offline(section)?;
        self.nr_leaving[zone] -= 1;
        setup_zones(&mut self.zones, None);
        Ok(())
    }

    /// Puts a block on the daemon's own lists, or straight home where it has none.
    #[inline]
    pub fn put(&mut self, pfn: Pfn, order: Order) {
        let zone = self.of_page(pfn);
        self.zones[zone].pcp_put(pfn, order);
    }

    /// Puts neighbouring pages away, which may lie in several zones: many past the daemon's lists,
    /// a few as single ones.
    pub fn put_run(&mut self, run: HeadRun) {
        let end = run.end(Order::ZERO);
        let mut at = run.first;
        while u64::from(at.get()) < end {
            let zone = self.of_page(at);
            let end_here = self.zones[zone].reserve_range().end.min(end);
            let here = HeadRun {
                first: at,
                nr_blocks: num::saturate(end_here - u64::from(at.get())),
            };
            if here.nr_blocks >= STRAIGHT_HOME {
                self.zones[zone].free_run(at, here.nr_blocks);
            } else {
                here.heads(Order::ZERO)
                    .for_each(|pfn| self.zones[zone].pcp_put(pfn, Order::ZERO));
            }
            at = Pfn::new(num::saturate(end_here));
        }
    }

    /// Frees blocks of one order that ascend, each run of a zone at once.
    pub fn free_bulk(&mut self, heads: &[Pfn], order: Order) {
        let mut rest = heads;
        while let Some(&first) = rest.first() {
            let zone = self.of_page(first);
            let range = self.zones[zone].reserve_range();
            let len = rest.iter().take_while(|&&pfn| range.contains(pfn)).count();
            let (here, others) = rest.split_at(len);
            self.zones[zone].free_bulk(here, order);
            rest = others;
        }
    }

    /// Puts a section out of reach; returns the pages still held there.
    pub fn isolate(&mut self, section: SectionId) -> Result<u64, SectionError> {
        let zone = self.zone_of(section)?;
        let nr_held = self.zones[zone].isolate(section)?;
        self.nr_leaving[zone] += 1;
        Ok(nr_held)
    }

    /// Gives an isolated section back exactly as it was.
    pub fn undo_isolate(&mut self, section: SectionId) -> Result<(), SectionError> {
        let zone = self.zone_of(section)?;
        self.zones[zone].undo_isolate(section)?;
        self.nr_leaving[zone] -= 1;
        Ok(())
    }

    /// Sections of a zone that are going offline.
    pub fn nr_leaving(&self, at: usize) -> u32 {
        self.nr_leaving[at]
    }

    /// Bit per zone index that has a section on its way out: its pages should come home.
    pub fn leaving(&self) -> u32 {
        let zones = self
            .nr_leaving
            .iter()
            .enumerate()
            .filter(|&(_, &nr)| nr > 0);
        zones.fold(0, |bits, (at, _)| bits | 1 << at)
    }

    /// The equations of a zone.
    pub fn counts(&self, at: usize) -> PageCounts {
        let counts = self.zones[at].counts();
        let quarantined = self.quarantined[at];
        PageCounts {
            spanned: counts.spanned,
            present: counts.present,
            reserved: counts.reserved,
            managed: counts.managed,
            free: counts.free,
            pcp: counts.pcp,
            lent: counts.lent - quarantined,
            isolated: counts.isolated + quarantined,
        }
    }

    /// Pages of a zone that wait in quarantine.
    pub fn quarantined(&self, at: usize) -> u64 {
        self.quarantined[at]
    }

    /// Counts pages, by zone, as quarantined or no longer.
    pub fn count_quarantined(&mut self, pages: &[u64; NR_ZONES], is_in: bool) {
        for (count, pages) in self.quarantined.iter_mut().zip(pages) {
            *count = if is_in {
                *count + pages
            } else {
                *count - pages
            };
        }
    }

    /// The equations of all zones together.
    pub fn counts_of_all(&self) -> PageCounts {
        let mut sum = PageCounts::default();
        (0..self.zones.len()).for_each(|at| sum += self.counts(at));
        sum
    }
}

/// Index of a zone, below 8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZoneIndex(pub usize);

impl ZoneIndex {
    pub fn id(self) -> ZoneId {
        ZoneId::new(u8::try_from(self.0).expect("there are at most 8 zones"))
    }
}

fn new_zone(
    geometry: Geometry,
    at: usize,
    settings: &ZoneSettings,
    start: u64,
) -> Result<Zone, ZoneError> {
    let too_long = ZoneError::TooLong {
        end_pfn: start.saturating_add(settings.reserve_pages),
    };
    let config = ZoneConfig {
        id: ZoneIndex(at).id(),
        name: settings.name.clone(),
        kind: settings.kind,
        node: u32::try_from(settings.node).unwrap_or(0),
        start: Pfn::new(u32::try_from(start).map_err(|_| too_long)?),
        span_pages: settings.reserve_pages,
    };
    Zone::new(config, geometry)
}
