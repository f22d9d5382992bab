//! Memory blocks as a log names them, each a section of a zone of ours.
//!
//! Two zones share one row of sections: what comes online for the kernel goes to the first, all
//! else to the second. A block is known by where it lies, or by its device and its place in it;
//! one that nobody has named yet was there before the log began, and online.

use std::collections::{BTreeMap, BTreeSet};

use hugepool_mm::{
    AllocFlags, Geometry, Migratetype, OnlineOrder, Pfn, SectionError, SectionId, SectionState,
    Zone, ZoneConfig, ZoneId, ZoneKind,
};

/// A memory block: its device, or none for physical memory, and its number there.
pub type Key = (Option<String>, u64);

/// Memory blocks of a log.
#[derive(Clone, Debug)]
pub struct Blocks {
    zones: [Zone; 2],
    sections: BTreeMap<Key, SectionId>,
    /// For each section which zone it is or was in.
    zone_of: BTreeMap<SectionId, usize>,
    /// Pages that cannot be moved, by the block they are in.
    pins: BTreeMap<Key, BTreeSet<u64>>,
    next: u32,
    most: u32,
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A page that cannot be moved: how many pages into the block.
    Pinned(u64),
    /// Not from this state.
    State(SectionState),
    /// A signal ended it, and the block is as it was.
    BrokenOff,
    /// There are too many blocks.
    Full,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::Pinned(page) => write!(f, "page {page} of the block is in use and stays"),
            Refusal::State(state) => write!(f, "the block is {state}"),
            Refusal::BrokenOff => f.write_str("broken off by a signal, the block is as it was"),
            Refusal::Full => f.write_str("more blocks than there is room for"),
        }
    }
}

fn refusal(error: SectionError) -> Refusal {
    match error {
        SectionError::WrongState { state, .. } => Refusal::State(state),
        _ => Refusal::Full,
    }
}

const KERNEL: usize = 0;
const MOVABLE: usize = 1;

impl Blocks {
    /// Room for so many blocks, none there.
    ///
    /// # Errors
    /// There are more than zones can hold.
    pub fn new(geometry: Geometry, most: u32) -> Result<Blocks, String> {
        let most = most.max(1);
        let make = |id: u8, kind| {
            let config = ZoneConfig {
                id: ZoneId::new(id),
                name: format!("{kind:?}"),
                kind,
                node: 0,
                start: Pfn::new(0),
                span_pages: u64::from(most) * u64::from(geometry.section_pages()),
            };
            Zone::new(config, geometry).map_err(|error| error.to_string())
        };
        Ok(Blocks {
            zones: [make(0, ZoneKind::Normal)?, make(1, ZoneKind::Movable)?],
            sections: BTreeMap::new(),
            zone_of: BTreeMap::new(),
            pins: BTreeMap::new(),
            next: 0,
            most,
        })
    }

    /// The sizes.
    pub fn geometry(&self) -> Geometry {
        self.zones[0].geometry()
    }

    /// A page of a block is in use and cannot be moved.
    pub fn pin(&mut self, key: Key, page: u64) {
        self.pins.entry(key).or_default().insert(page);
    }

    /// The state of a block; absent if it was never there.
    pub fn state(&self, key: &Key) -> SectionState {
        let state = self.sections.get(key).and_then(|id| {
            let zone = *self.zone_of.get(id)?;
            self.zones[zone].section_state(*id)
        });
        state.unwrap_or(SectionState::Absent)
    }

    /// Blocks of a device that are there, ascending.
    pub fn of_device(&self, device: &str) -> Vec<Key> {
        let is_there = |key: &&Key| {
            key.0.as_deref() == Some(device) && self.state(key) != SectionState::Absent
        };
        self.sections.keys().filter(is_there).cloned().collect()
    }

    /// The highest block that is online and of which `is_taken` says no.
    pub fn highest_online(&self, is_taken: impl Fn(&Key) -> bool) -> Option<Key> {
        let is_wanted = |key: &&Key| self.state(key) == SectionState::Online && !is_taken(key);
        self.sections.keys().rev().find(is_wanted).cloned()
    }

    /// A block appears, offline.
    ///
    /// # Errors
    /// It is there, or there is no room.
    pub fn add(&mut self, key: &Key) -> Result<(), Refusal> {
        if self.state(key) != SectionState::Absent {
            return Err(Refusal::State(self.state(key)));
        }
        if !self.sections.contains_key(key) {
            if self.next == self.most {
                return Err(Refusal::Full);
            }
            self.sections.insert(key.clone(), SectionId::new(self.next));
            self.next += 1;
        }
        let id = self.sections[key];
        self.zone_of.insert(id, MOVABLE);
        let zone = &mut self.zones[MOVABLE];
        zone.begin_add(id)
            .and_then(|()| zone.finish_add(id))
            .map_err(refusal)
    }

    /// A block comes online; what is pinned in it is in use from then on.
    ///
    /// # Errors
    /// It is not offline.
    pub fn online(&mut self, key: &Key, for_kernel: bool) -> Result<(), Refusal> {
        if self.state(key) != SectionState::Offline {
            return Err(Refusal::State(self.state(key)));
        }
        let id = self.sections[key];
        let zone = if for_kernel { KERNEL } else { MOVABLE };
        let before = self.zone_of.insert(id, zone).unwrap_or(zone);
        if before != zone {
            let old = &mut self.zones[before];
            old.begin_remove(id)
                .and_then(|()| old.finish_remove(id))
                .map_err(refusal)?;
            let new = &mut self.zones[zone];
            new.begin_add(id)
                .and_then(|()| new.finish_add(id))
                .map_err(refusal)?;
        }
        let zone = &mut self.zones[zone];
        zone.online(id, OnlineOrder::Pageblock).map_err(refusal)?;
        let start = zone.geometry().section_range(id).start;
        for page in self.pins.get(key).into_iter().flatten() {
            if let Ok(pfn) = u32::try_from(start + page) {
                zone.take_exact(Pfn::new(pfn), hugepool_mm::Order::ZERO);
            }
        }
        Ok(())
    }

    /// A block goes offline, or stays as it was.
    ///
    /// # Errors
    /// It is not online, or a page in it is in use and stays.
    pub fn offline(&mut self, key: &Key) -> Result<(), Refusal> {
        let Some(&id) = self.sections.get(key) else {
            return Err(Refusal::State(SectionState::Absent));
        };
        let zone = &mut self.zones[self.zone_of[&id]];
        zone.isolate(id).map_err(refusal)?;
        match zone.finish_offline(id) {
            Ok(()) => Ok(()),
            Err(SectionError::Busy { first, .. }) => {
                let start = zone.geometry().section_range(id).start;
                zone.undo_isolate(id).map_err(refusal)?;
                Err(Refusal::Pinned(u64::from(first.get()) - start))
            }
            Err(error) => Err(refusal(error)),
        }
    }

    /// Somebody breaks an attempt off: the block is as it was.
    ///
    /// # Errors
    /// It is not online.
    pub fn break_off(&mut self, key: &Key) -> Result<(), Refusal> {
        let Some(&id) = self.sections.get(key) else {
            return Err(Refusal::State(SectionState::Absent));
        };
        let zone = &mut self.zones[self.zone_of[&id]];
        zone.isolate(id)
            .and_then(|_| zone.undo_isolate(id))
            .map_err(refusal)
    }

    /// An offline block goes.
    ///
    /// # Errors
    /// It is not offline.
    pub fn remove(&mut self, key: &Key) -> Result<(), Refusal> {
        let Some(&id) = self.sections.get(key) else {
            return Err(Refusal::State(SectionState::Absent));
        };
        let zone = &mut self.zones[self.zone_of[&id]];
        zone.begin_remove(id)
            .and_then(|()| zone.finish_remove(id))
            .map_err(refusal)
    }

    /// Pages that are managed, in both zones.
    pub fn managed(&self) -> u64 {
        self.zones.iter().map(|zone| zone.counts().managed).sum()
    }

    /// A largest free block of each zone can be had: the zones work.
    ///
    /// # Errors
    /// A count is wrong.
    pub fn verify(&mut self) -> Result<(), String> {
        for zone in &mut self.zones {
            zone.verify().map_err(|error| format!("{error:?}"))?;
            let order = zone.geometry().pageblock_order();
            if let Ok(pfn) = zone.alloc(order, Migratetype::Movable, AllocFlags::DIP) {
                zone.free(pfn, order);
            }
        }
        Ok(())
    }
}
