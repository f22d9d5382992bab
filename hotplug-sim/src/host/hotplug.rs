//! Memory blocks come and go, as in the kernel: an offline block belongs to no zone; which one
//! it joins is decided when it comes online.

use hugepool_mm::{Mark, Migratetype, OnlineOrder, Order};

use super::alloc::{Ask, Loc, Source};
use super::held::Owner;
use super::{Host, HostSection, build, cost};

/// Where the records of a new section's pages lie (64 bytes a page).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Records {
    /// Nowhere: our allocator keeps some bits a page, elsewhere.
    #[default]
    None,
    /// In one block of memory that is there already.
    Old,
    /// In the first pages of the section itself.
    Inside,
}

/// Why a section did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A word that scenarios compare with.
    pub word: &'static str,
    /// For people.
    pub what: String,
    /// The page in the way, as the kernel numbers it.
    pub pfn: Option<u64>,
    /// Who holds it.
    pub holder: Option<String>,
    /// The order that was lacking.
    pub order: Option<u8>,
    /// Pages moved before it stopped.
    pub nr_moved: u64,
}

impl Refused {
    pub(super) fn new(word: &'static str, what: String) -> Refused {
        Refused {
            word,
            what,
            pfn: None,
            holder: None,
            order: None,
            nr_moved: 0,
        }
    }
}

impl Host {
    /// Adds a memory block: it is there, and offline.
    ///
    /// # Errors
    /// It is there already, there is no room for it or for its records, or no backing.
    pub fn add(&mut self, section: u64, node: u32, records: Records) -> Result<(), Refused> {
        if self.sections.contains_key(&section) {
            return Err(Refused::new(
                "present",
                format!("block {section} is there already"),
            ));
        }
        let pages = u64::from(self.geometry.section_pages());
        let first = section.saturating_mul(pages);
        let has_room = self.zones.iter().any(|zone| {
            zone.node == node
                && zone.ours(first).is_some()
                && zone.ours(first + pages - 1).is_some()
        });
        if !has_room {
            return Err(Refused::new(
                "range",
                format!("node {node} has no room for block {section}"),
            ));
        }
        let bytes = self.geometry.section_bytes();
        if self.backing_bytes.is_some_and(|left| left < bytes) {
            let left = self.backing_bytes.unwrap_or(0);
            let what = format!("{bytes} bytes of backing are needed, {left} are left");
            return Err(Refused::new("backing", what));
        }
        let nr_records = (pages * 64).div_ceil(self.geometry.page_bytes());
        let mut row = HostSection::new(node);
        match records {
            Records::None => {}
            Records::Old => row.records = Some(self.take_records(node, nr_records)?),
            Records::Inside => row.records_inside = nr_records,
        }
        row.extents.push((first, first + pages));
        if let Some(left) = &mut self.backing_bytes {
            *left -= bytes;
        }
        self.sections.insert(section, row);
        self.poison(section);
        Ok(())
    }

    fn take_records(&mut self, node: u32, nr_pages: u64) -> Result<Loc, Refused> {
        let nr_pages = u32::try_from(nr_pages).unwrap_or(u32::MAX);
        let order = Order::holding(nr_pages).filter(|order| *order <= self.geometry.max_order());
        let lacking = |order: Option<Order>, why: String| {
            let mut refused =
                Refused::new("records", format!("no block for the page records: {why}"));
            refused.order = order.map(Order::get);
            refused
        };
        let Some(order) = order else {
            return Err(lacking(
                None,
                format!("{nr_pages} pages are more than a block can have"),
            ));
        };
        let owner = self.client("page_records");
        let ask = Ask {
            owner,
            order,
            mt: Migratetype::Unmovable,
            is_pinned: true,
            source: Source::Node(node),
            mark: Mark::Min,
        };
        self.take(ask)
            .map_err(|short| lacking(Some(order), format!("order {order}, {short}")))
    }

    /// Brings an offline block online in a zone.
    ///
    /// # Errors
    /// It is not there, or not offline, or out of the zone's reach.
    pub fn online(&mut self, section: u64, at: usize, order: OnlineOrder) -> Result<u64, Refused> {
        let row = self.row(section)?;
        if !row.zones.is_empty() {
            return Err(Refused::new(
                "online",
                format!("block {section} is online already"),
            ));
        }
        let (extents, inside) = (row.extents.clone(), row.records_inside);
        let first = extents.first().map_or(0, |extent| extent.0);
        if self.zones[at].ours(first).is_none() {
            let what = format!(
                "block {section} is out of the reach of zone {}",
                self.zone_name(at)
            );
            return Err(Refused::new("range", what));
        }
        for block in self.blocks_in(at, section) {
            self.zones[at].held.clear(block);
        }
        let nr_pages = build::bring_online(&mut self.zones[at], section, &extents, order);
        let row = self.sections.get_mut(&section).expect("it was looked up");
        row.zones.push(at);
        self.take_inside(section, at, inside);
        self.setup_zones();
        let nr_pageblocks = nr_pages >> self.geometry.pageblock_order().get();
        self.clock_ns += match order {
            OnlineOrder::Pageblock => nr_pageblocks * cost::ONLINE_PAGEBLOCK_NS,
            OnlineOrder::Page => nr_pages * cost::GIVE_NS,
        };
        self.hot.push((at, section));
        Ok(nr_pages - inside)
    }

    /// The first pages of a section hold its own records.
    fn take_inside(&mut self, section: u64, at: usize, nr_pages: u64) {
        let first = section * u64::from(self.geometry.section_pages());
        let shift = self.zones[at].shift;
        let max = self.geometry.max_order();
        for (pfn, order) in build::aligned(first - shift, first - shift + nr_pages, max) {
            assert!(
                self.zones[at].zone.take_exact(pfn, order),
                "a new section is free"
            );
            let zone = u16::try_from(at).expect("few zones");
            self.hold(Loc { zone, pfn }, order, Owner::RECORDS);
        }
    }

    /// Notes a taken block as counted out until its section goes.
    pub(super) fn hold(&mut self, loc: Loc, order: Order, owner: Owner) {
        let ask = Ask {
            owner,
            order,
            mt: Migratetype::Unmovable,
            is_pinned: true,
            source: Source::Zone(loc.zone()),
            mark: Mark::None,
        };
        self.note(loc, ask);
    }

    /// Whether a block could go, by what is in it: the pages that would have to be moved.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn could_go(&self, section: u64) -> Result<u64, Refused> {
        let at = self.only_zone(section)?;
        let first = section * u64::from(self.geometry.section_pages());
        let first = self.zones[at]
            .ours(first)
            .expect("a section of the zone lies in its reserve");
        let id = self.geometry.section_of(first);
        let blocks = self.zones[at].held.block_of(first);
        let nr = usize::try_from(self.geometry.section_pageblocks()).expect("a section is small");
        for block in blocks..blocks + nr {
            self.look_for_unmovable(section, at, block)?;
        }
        let held = &self.zones[at].held;
        let entries = (blocks..blocks + nr).flat_map(|block| held.entries(block));
        let going: u64 = entries
            .filter(|entry| entry.owner.goes_with_section())
            .map(|entry| 1_u64 << entry.order)
            .sum();
        Ok(self.zones[at].zone.held_in(id).saturating_sub(going))
    }

    /// The one zone that a block is online in.
    fn only_zone(&self, section: u64) -> Result<usize, Refused> {
        match self.row(section)?.zones[..] {
            [at] => Ok(at),
            [] => {
                let what = format!("block {section} is offline");
                Err(Refused::new("offline", what))
            }
            _ => {
                let what = format!("block {section} is in more than one zone");
                Err(Refused::new("zones", what))
            }
        }
    }

    /// Takes a block offline: what is in use is moved elsewhere. Returns the pages moved.
    ///
    /// # Errors
    /// What stands in the way; the block stays online as it was, with what was moved moved.
    pub fn offline(&mut self, section: u64) -> Result<u64, Refused> {
        let at = self.only_zone(section)?;
        let first = section * u64::from(self.geometry.section_pages());
        let first = self.zones[at]
            .ours(first)
            .expect("a section of the zone lies in its reserve");
        let id = self.geometry.section_of(first);
        let blocks = self.zones[at].held.block_of(first);
        let nr = usize::try_from(self.geometry.section_pageblocks()).expect("a section is small");
        // As the kernel, look for what can never move before anything is disturbed.
        for block in blocks..blocks + nr {
            self.look_for_unmovable(section, at, block)?;
        }
        self.zones[at]
            .zone
            .isolate(id)
            .expect("an online section of the host is online");
        self.clock_ns +=
            2 * cost::ISOLATE_PAGEBLOCK_NS * u64::from(self.geometry.section_pageblocks());
        let mut nr_moved = 0;
        for block in blocks..blocks + nr {
            for (from, order, _) in self.blocks_of(at, block) {
                if self.zones[at]
                    .held
                    .get(from.pfn)
                    .is_some_and(|entry| entry.owner.goes_with_section())
                {
                    continue;
                }
                match self.find_elsewhere(from, order) {
                    Ok(to) => self.move_to(from, to, order),
                    Err(short) => {
                        self.zones[at]
                            .zone
                            .undo_isolate(id)
                            .expect("it was isolated");
                        self.clock_ns += cost::move_pages(nr_moved, self.geometry.page_bytes());
                        let what = format!("block {section}: no place for what is in it: {short}");
                        let mut refused = Refused::new("no-room", what);
                        refused.pfn = Some(self.zones[at].kernels(from.pfn));
                        refused.order = Some(order.get());
                        refused.nr_moved = nr_moved;
                        return Err(refused);
                    }
                }
                nr_moved += u64::from(order.nr_pages());
            }
        }
        self.release_unplugged(at, blocks, nr);
        self.zones[at]
            .zone
            .finish_offline(id)
            .expect("everything was moved out");
        self.zones[at].zone.begin_remove(id).expect("it is offline");
        self.zones[at]
            .zone
            .finish_remove(id)
            .expect("it is being removed");
        self.sections
            .get_mut(&section)
            .expect("it was looked up")
            .zones
            .clear();
        self.poison(section);
        self.setup_zones();
        self.clock_ns += cost::move_pages(nr_moved, self.geometry.page_bytes());
        Ok(nr_moved)
    }

    /// Pageblocks of a block that lie in the reach of a zone, as it counts them.
    pub(super) fn blocks_in(&self, at: usize, section: u64) -> Vec<usize> {
        let pages = u64::from(self.geometry.section_pages());
        let step = usize::try_from(self.geometry.pageblock_pages()).expect("a pageblock is small");
        let zone = &self.zones[at];
        let pages = (section * pages..(section + 1) * pages).step_by(step);
        pages
            .filter_map(|page| zone.ours(page))
            .map(|pfn| zone.held.block_of(pfn))
            .collect()
    }

    /// The records of a block that is there and offline are nobody's, in any zone.
    pub(super) fn poison(&mut self, section: u64) {
        for at in 0..self.zones.len() {
            for block in self.blocks_in(at, section) {
                self.zones[at].held.poison(block);
            }
            self.hot.push((at, section));
        }
    }

    /// Whether the records of a block that is offline are as nobody wrote and read them.
    pub fn is_untouched(&self, section: u64) -> bool {
        (0..self.zones.len()).all(|at| {
            let mut blocks = self.blocks_in(at, section).into_iter();
            blocks.all(|block| self.zones[at].held.is_poisoned(block))
        })
    }

    /// Sub-blocks that are not plugged, and a section's own records, go with it.
    fn release_unplugged(&mut self, at: usize, first: usize, nr: usize) {
        let zone = u16::try_from(at).expect("few zones");
        for block in first..first + nr {
            let entries = self.zones[at].held.entries(block).to_vec();
            for entry in entries
                .iter()
                .filter(|entry| entry.owner.goes_with_section())
            {
                let pfn = self.zones[at].held.head(block, entry);
                self.give(Loc { zone, pfn }).expect("it was just listed");
            }
        }
    }

    fn look_for_unmovable(&self, section: u64, at: usize, block: usize) -> Result<(), Refused> {
        let host = &self.zones[at];
        let refuse = |word, pfn, holder: &str| {
            let pfn = host.kernels(pfn);
            let mut refused = Refused::new(
                word,
                format!("block {section}: pfn {pfn} is {word}, held by {holder}"),
            );
            refused.pfn = Some(pfn);
            refused.holder = Some(holder.to_owned());
            Err(refused)
        };
        for entry in host.held.entries(block) {
            let holder = &self.clients[usize::from(entry.owner.0)].name;
            let pfn = host.held.head(block, entry);
            match entry.owner {
                owner if owner.goes_with_section() => {}
                Owner::RESERVED => return refuse("reserved", pfn, holder),
                _ if entry.mt == Migratetype::Unmovable => return refuse("unmovable", pfn, holder),
                _ if entry.is_pinned => return refuse("pinned", pfn, holder),
                _ => {}
            }
        }
        if host.held.past.migratetype(block) == Migratetype::Unmovable
            && let Some((page, _)) = host.held.past.runs(block).first()
        {
            return refuse("unmovable", host.held.pfn_of(*page), "past");
        }
        Ok(())
    }

    /// Removes an offline block.
    ///
    /// # Errors
    /// It is not there, or online.
    pub fn remove(&mut self, section: u64) -> Result<(), Refused> {
        let row = self.row(section)?;
        if !row.zones.is_empty() {
            return Err(Refused::new("online", format!("block {section} is online")));
        }
        let row = self.sections.remove(&section).expect("it was looked up");
        // What is written to them from now on is found by the check of this step.
        self.hot
            .extend((0..self.zones.len()).map(|at| (at, section)));
        if let Some(records) = row.records {
            self.give(records)
                .expect("records are held as long as the section is there");
        }
        if let Some(left) = &mut self.backing_bytes {
            *left += self.geometry.section_bytes();
        }
        Ok(())
    }

    fn row(&self, section: u64) -> Result<&HostSection, Refused> {
        self.sections
            .get(&section)
            .ok_or_else(|| Refused::new("absent", format!("block {section} is not there")))
    }
}
