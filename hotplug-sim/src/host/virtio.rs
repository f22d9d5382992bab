//! Devices: DIMMs and others that come as whole memory blocks, and virtio-mem, which plugs and
//! unplugs sub-blocks of them.
//!
//! A sub-block that is not plugged, in a memory block that is online, is held by nobody who
//! could use it and counted out of the managed pages, as the kernel's driver does it. A memory
//! block without a plugged sub-block is taken offline and removed.

use hugepool_mm::{OnlineOrder, Order, Pfn, ZoneKind};

use super::alloc::Loc;
use super::held::Owner;
use super::hotplug::{Records, Refused};
use super::{Host, build, cost};
use crate::import::machine::MachineDevice;

/// A device.
#[derive(Clone, Debug)]
pub struct HostDevice {
    /// Its name.
    pub id: String,
    /// Its node.
    pub node: u32,
    /// Its first memory block and their number.
    pub sections: (u64, u64),
    /// Pages of what it plugs at once.
    pub subblock_pages: u64,
    /// For each sub-block whether it is plugged.
    pub plugged: Vec<bool>,
    /// Whether it is virtio-mem.
    pub is_virtio: bool,
}

impl HostDevice {
    /// Sub-blocks that are plugged.
    pub fn nr_plugged(&self) -> usize {
        self.plugged.iter().filter(|plugged| **plugged).count()
    }

    /// First page of a sub-block, as the kernel numbers it.
    fn start(&self, subblock: usize, section_pages: u64) -> u64 {
        self.sections.0 * section_pages + subblock as u64 * self.subblock_pages
    }
}

/// What became of a request of a size.
#[derive(Clone, Debug, Default)]
pub struct Resized {
    /// Sub-blocks that changed.
    pub nr_done: u64,
    /// Pages moved for it.
    pub nr_moved: u64,
    /// What stood in the way of the rest: the first, and how often.
    pub refused: Option<Refused>,
    /// How many were refused.
    pub nr_refused: u64,
}

impl Host {
    /// Takes the devices of a description over; those without an address lie behind all else.
    pub(super) fn set_devices(&mut self, devices: &[MachineDevice]) {
        let section_bytes = self.geometry.section_bytes();
        let mut next = self.sections.keys().next_back().map_or(0, |last| last + 1);
        for device in devices {
            let Some(size) = device.size_bytes.filter(|size| *size > 0) else {
                self.notes.push(format!(
                    "device {}: its size is not known; left out",
                    device.id
                ));
                continue;
            };
            let first = device
                .address
                .map_or(next, |address| address / section_bytes);
            let nr = size.div_ceil(section_bytes);
            next = next.max(first + nr);
            let is_virtio = device.kind.as_deref() == Some("virtio-mem");
            let unit = device
                .subblock_bytes
                .or(device.block_bytes)
                .unwrap_or(section_bytes);
            let pageblock = u64::from(self.geometry.pageblock_pages());
            let pages = (unit / self.geometry.page_bytes())
                .max(pageblock)
                .next_power_of_two()
                .min(u64::from(self.geometry.section_pages()));
            let nr_subblocks = nr * u64::from(self.geometry.section_pages()) / pages;
            // What is online of it when the simulation begins is plugged.
            let is_there = |at: u64| {
                self.sections
                    .contains_key(&(first + at * pages / u64::from(self.geometry.section_pages())))
            };
            let plugged: Vec<bool> = (0..nr_subblocks).map(is_there).collect();
            let nr_there = plugged.iter().filter(|there| **there).count() as u64;
            self.devices.push(HostDevice {
                id: device.id.clone(),
                node: device.node.unwrap_or(0),
                sections: (first, nr),
                subblock_pages: pages,
                plugged,
                is_virtio,
            });
            let bytes = device.plugged_bytes.unwrap_or(0);
            if is_virtio && nr_there == 0 && bytes > 0 {
                let done = self.resize(
                    self.devices.len() - 1,
                    bytes,
                    ZoneKind::Movable,
                    Records::None,
                );
                let nr_done = done.map_or(0, |done| done.nr_done);
                self.notes.push(format!(
                    "device {}: {bytes} bytes were plugged; {nr_done} sub-blocks of {pages} pages are, in Movable",
                    device.id
                ));
            }
        }
    }

    /// The device of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn device_named(&self, id: &str) -> Result<usize, String> {
        let found = self.devices.iter().position(|device| device.id == id);
        found.ok_or_else(|| {
            let all: Vec<&str> = self
                .devices
                .iter()
                .map(|device| device.id.as_str())
                .collect();
            format!("no device {id}; there are {}", all.join(", "))
        })
    }

    /// Asks a virtio-mem device for a size: plugs from below, unplugs from above.
    ///
    /// # Errors
    /// The size is more than the device has.
    pub fn resize(
        &mut self,
        device: usize,
        bytes: u64,
        kind: ZoneKind,
        records: Records,
    ) -> Result<Resized, String> {
        if records == Records::Inside && !self.is_whole_section(device) {
            return Err("records inside need a device that plugs whole memory blocks".to_owned());
        }
        let of = &self.devices[device];
        let unit = of.subblock_pages * self.geometry.page_bytes();
        let wanted = usize::try_from(bytes / unit).map_err(|_| "too large".to_owned())?;
        if wanted > of.plugged.len() {
            return Err(format!(
                "device {} has {} bytes",
                of.id,
                of.plugged.len() as u64 * unit
            ));
        }
        let (has, total) = (of.nr_plugged(), of.plugged.len());
        let mut resized = Resized::default();
        let mut left = has.abs_diff(wanted);
        let order: Vec<usize> = if wanted > has {
            (0..total).collect()
        } else {
            (0..total).rev().collect()
        };
        for subblock in order {
            if left == 0 {
                break;
            }
            if self.devices[device].plugged[subblock] == (wanted > has) {
                continue;
            }
            let result = if wanted > has {
                self.plug(device, subblock, kind, records)
            } else {
                self.unplug(device, subblock)
            };
            match result {
                Ok(nr_moved) => {
                    left -= 1;
                    resized.nr_done += 1;
                    resized.nr_moved += nr_moved;
                }
                Err(refused) => {
                    resized.nr_refused += 1;
                    let is_final = wanted > has;
                    resized.refused.get_or_insert(refused);
                    if is_final {
                        break;
                    }
                }
            }
        }
        Ok(resized)
    }

    fn section_of(&self, device: usize, subblock: usize) -> u64 {
        let pages = u64::from(self.geometry.section_pages());
        self.devices[device].start(subblock, pages) / pages
    }

    /// The sub-block in largest blocks, and the zone it is in.
    fn pieces(&self, device: usize, subblock: usize) -> Option<(usize, Vec<(Pfn, Order)>)> {
        let section = self.section_of(device, subblock);
        let at = *self.sections.get(&section)?.zones.first()?;
        let device = &self.devices[device];
        let start = device.start(subblock, u64::from(self.geometry.section_pages()));
        let first = u64::from(self.zones[at].ours(start)?.get());
        let max = self.geometry.max_order();
        Some((
            at,
            build::aligned(first, first + device.subblock_pages, max).collect(),
        ))
    }

    fn plug(
        &mut self,
        device: usize,
        subblock: usize,
        kind: ZoneKind,
        records: Records,
    ) -> Result<u64, Refused> {
        let section = self.section_of(device, subblock);
        let is_new = !self.sections.contains_key(&section);
        let node = self.devices[device].node;
        if is_new {
            self.add(section, node, records)?;
        }
        if self.sections[&section].zones.is_empty() {
            let online = self
                .zone_for(node, kind)
                .map_err(|what| Refused::new("zone", what))
                .and_then(|zone| self.online(section, zone, OnlineOrder::Pageblock));
            if let Err(refused) = online {
                if is_new {
                    self.remove(section).expect("it was just added");
                }
                return Err(refused);
            }
            self.hold_section(device, section);
        }
        if self.is_whole_section(device) {
            self.devices[device].plugged[subblock] = true;
            return Ok(0);
        }
        let (at, pieces) = self
            .pieces(device, subblock)
            .expect("its section is online");
        let zone = u16::try_from(at).expect("few zones");
        for (pfn, _) in pieces {
            if self.zones[at].held.get(pfn).is_some() {
                self.give(Loc { zone, pfn }).expect("it was just looked up");
            }
        }
        self.devices[device].plugged[subblock] = true;
        Ok(0)
    }

    /// Whether a device plugs whole sections: nothing of one is ever held back then.
    fn is_whole_section(&self, device: usize) -> bool {
        self.devices[device].subblock_pages == u64::from(self.geometry.section_pages())
    }

    /// All sub-blocks of a new section are held.
    fn hold_section(&mut self, device: usize, section: u64) {
        if self.is_whole_section(device) {
            return;
        }
        let pages = u64::from(self.geometry.section_pages());
        let per_section =
            usize::try_from(pages / self.devices[device].subblock_pages).expect("few");
        let index = usize::try_from(section - self.devices[device].sections.0).expect("few");
        for subblock in index * per_section..(index + 1) * per_section {
            let (at, pieces) = self
                .pieces(device, subblock)
                .expect("its section is online");
            let zone = u16::try_from(at).expect("few zones");
            for (pfn, order) in pieces {
                if self.zones[at].zone.take_exact(pfn, order) {
                    self.hold(Loc { zone, pfn }, order, Owner::UNPLUGGED);
                }
            }
        }
    }

    fn unplug(&mut self, device: usize, subblock: usize) -> Result<u64, Refused> {
        if self.is_whole_section(device) {
            let section = self.section_of(device, subblock);
            let nr_moved = self.offline(section)?;
            self.remove(section)?;
            self.devices[device].plugged[subblock] = false;
            return Ok(nr_moved);
        }
        let section = self.section_of(device, subblock);
        let Some((at, pieces)) = self.pieces(device, subblock) else {
            let what = format!("block {section} is not online");
            return Err(Refused::new("offline", what));
        };
        let zone = u16::try_from(at).expect("few zones");
        let mut nr_moved = 0;
        let mut taken: Vec<(Pfn, Order)> = Vec::new();
        for &(pfn, order) in &pieces {
            if let Err(refused) = self.empty(section, at, pfn, order, &mut taken, &mut nr_moved) {
                for (pfn, order) in taken {
                    self.zones[at].zone.free(pfn, order);
                    self.touch(Loc { zone, pfn });
                }
                return Err(refused);
            }
        }
        for (pfn, order) in pieces {
            self.hold(Loc { zone, pfn }, order, Owner::UNPLUGGED);
        }
        self.devices[device].plugged[subblock] = false;
        self.clock_ns += cost::move_pages(nr_moved, self.geometry.page_bytes());
        let of = &self.devices[device];
        let per_section =
            usize::try_from(u64::from(self.geometry.section_pages()) / of.subblock_pages)
                .expect("few");
        let first = subblock / per_section * per_section;
        if of.plugged[first..first + per_section]
            .iter()
            .all(|plugged| !plugged)
        {
            self.offline(section)?;
            self.remove(section)?;
        }
        Ok(nr_moved)
    }

    /// Takes all of a block: what is free at once, what is held after it has been moved.
    fn empty(
        &mut self,
        section: u64,
        at: usize,
        pfn: Pfn,
        order: Order,
        taken: &mut Vec<(Pfn, Order)>,
        nr_moved: &mut u64,
    ) -> Result<(), Refused> {
        if self.zones[at].zone.take_exact(pfn, order) {
            taken.push((pfn, order));
            return Ok(());
        }
        let pageblock = self.geometry.pageblock_order();
        let first = self.zones[at].held.block_of(pfn);
        let nr = 1_usize << (order.get() - pageblock.get().min(order.get()));
        for block in first..first + nr {
            self.check_movable(section, at, block)?;
            let page = u32::try_from(block).expect("pageblocks of 2^32 pages") << pageblock.get();
            let start = self.zones[at].held.pfn_of(page);
            for run in self.zones[at].zone.free_runs(start) {
                for (pfn, order) in build::aligned(run.start, run.end, pageblock) {
                    assert!(
                        self.zones[at].zone.take_exact(pfn, order),
                        "it was just listed"
                    );
                    taken.push((pfn, order));
                }
            }
            for (from, order, _) in self.blocks_of(at, block) {
                let to = self.find_elsewhere(from, order).map_err(|short| Refused {
                    word: "no-room",
                    what: format!("block {section}: no place for what is in it: {short}"),
                    pfn: Some(self.zones[at].kernels(from.pfn)),
                    holder: None,
                    order: Some(order.get()),
                    nr_moved: *nr_moved,
                })?;
                self.move_to(from, to, order);
                *nr_moved += u64::from(order.nr_pages());
                assert!(
                    self.zones[at].zone.take_exact(from.pfn, order),
                    "it was just freed"
                );
                taken.push((from.pfn, order));
            }
        }
        Ok(())
    }

    fn check_movable(&self, section: u64, at: usize, block: usize) -> Result<(), Refused> {
        let stuck = self
            .blocks_of(at, block)
            .into_iter()
            .find(|(_, _, is_movable)| !is_movable);
        let Some((loc, ..)) = stuck else {
            return Ok(());
        };
        let host = &self.zones[at];
        let owner = host
            .held
            .get(loc.pfn)
            .map_or(Owner::PAST, |entry| entry.owner);
        let holder = self.clients[usize::from(owner.0)].name.clone();
        let pfn = host.kernels(loc.pfn);
        Err(Refused {
            word: "unmovable",
            what: format!("block {section}: pfn {pfn} cannot be moved, held by {holder}"),
            pfn: Some(pfn),
            holder: Some(holder),
            order: None,
            nr_moved: 0,
        })
    }
}
