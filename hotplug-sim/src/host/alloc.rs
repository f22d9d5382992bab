//! Clients take pages, let go of them, and die.

use hugepool_mm::{Mark, Migratetype, Order, Pfn, Shortfall, ZoneKind};

use super::held::{Entry, Owner};
use super::{Host, cost};
use crate::prng::Prng;

/// A held block, by its zone and first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loc {
    /// Index of the zone.
    pub zone: u16,
    /// First page, as we number it.
    pub pfn: Pfn,
}

impl Loc {
    /// The zone's index.
    pub fn zone(self) -> usize {
        usize::from(self.zone)
    }
}

/// Who holds pages.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// Its blocks, in no order.
    pub blocks: Vec<Loc>,
    /// Pages of them.
    pub nr_pages: u64,
    /// The most pages it may have.
    pub limit_pages: Option<u64>,
}

impl Client {
    /// A client without a page.
    pub fn new(name: &str) -> Client {
        Client {
            name: name.to_owned(),
            blocks: Vec::new(),
            nr_pages: 0,
            limit_pages: None,
        }
    }

    /// The holders that every machine has, in the order of their numbers.
    pub fn builtin() -> Vec<Client> {
        [
            "reserved",
            "high-atomic",
            "balloon",
            "unplugged",
            "past",
            "records",
        ]
        .map(Client::new)
        .into()
    }
}

/// Where a request would like its pages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This node's zones, then the others'.
    Node(u32),
    /// This zone only.
    Zone(usize),
    /// This memory block only.
    Section(u64),
}

/// A request for one block.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// For whom.
    pub owner: Owner,
    /// Its order.
    pub order: Order,
    /// What kind of pages.
    pub mt: Migratetype,
    /// Never to be moved.
    pub is_pinned: bool,
    /// From where.
    pub source: Source,
    /// What it has to leave.
    pub mark: Mark,
}

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Short {
    /// What the zone that came nearest said.
    Zone(usize, Shortfall),
    /// The client's limit is reached.
    Limit {
        /// The limit.
        limit_pages: u64,
    },
    /// There is no such place, or nothing free in it.
    Nowhere,
}

impl Short {
    /// The word that scenarios compare with.
    pub fn word(&self) -> &'static str {
        match self {
            Short::Zone(_, Shortfall::ZoneEmpty) => "empty",
            Short::Zone(_, Shortfall::BelowWatermark { .. }) => "watermark",
            Short::Zone(_, Shortfall::Fragmented { .. }) => "fragmented",
            Short::Zone(_, Shortfall::WrongKind) => "kind",
            Short::Zone(_, Shortfall::OrderTooLarge { .. }) => "order",
            Short::Limit { .. } => "limit",
            Short::Nowhere => "nowhere",
        }
    }
}

impl core::fmt::Display for Short {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Short::Zone(_, why) => why.fmt(f),
            Short::Limit { limit_pages } => write!(f, "the client may have {limit_pages} pages"),
            Short::Nowhere => f.write_str("nothing is free there"),
        }
    }
}

impl Host {
    /// Takes one block.
    ///
    /// # Errors
    /// [`Short`]; nothing is taken then.
    pub fn take(&mut self, ask: Ask) -> Result<Loc, Short> {
        let client = &self.clients[usize::from(ask.owner.0)];
        if let Some(limit_pages) = client.limit_pages
            && client.nr_pages + u64::from(ask.order.nr_pages()) > limit_pages
        {
            return Err(Short::Limit { limit_pages });
        }
        let loc = self.find(ask)?;
        self.note(loc, ask);
        self.clock_ns += cost::TAKE_NS;
        Ok(loc)
    }

    /// Takes a block out of the allocator for a request, before anybody holds it.
    pub(super) fn find(&mut self, ask: Ask) -> Result<Loc, Short> {
        match ask.source {
            Source::Zone(zone) => self.find_in(zone, zone, ask),
            Source::Section(section) => self.find_in_section(section, ask),
            Source::Node(node) => {
                let mut first = None;
                let mut why = None;
                for &zone in self.zonelist(node).iter() {
                    if ask.mt != Migratetype::Movable
                        && self.zones[zone].zone.kind() == ZoneKind::Movable
                    {
                        continue;
                    }
                    let preferred = *first.get_or_insert(zone);
                    match self.find_in(zone, preferred, ask) {
                        Ok(loc) => return Ok(loc),
                        // Scattered memory is nearer to success than none.
                        Err(short @ Short::Zone(_, Shortfall::Fragmented { .. })) => {
                            why.get_or_insert(short);
                        }
                        Err(short)
                            if why.is_none() && self.zones[zone].zone.counts().managed > 0 =>
                        {
                            why = Some(short);
                        }
                        Err(_) => {}
                    }
                }
                Err(why.unwrap_or(Short::Nowhere))
            }
        }
    }

    fn find_in(&mut self, at: usize, preferred: usize, ask: Ask) -> Result<Loc, Short> {
        let zone = &mut self.zones[at].zone;
        let flags = zone.flags_for(ask.mark, preferred);
        let pfn = zone
            .alloc(ask.order, ask.mt, flags)
            .map_err(|why| Short::Zone(at, why))?;
        Ok(Loc {
            zone: u16::try_from(at).expect("few zones"),
            pfn,
        })
    }

    fn find_in_section(&mut self, section: u64, ask: Ask) -> Result<Loc, Short> {
        let row = self.sections.get(&section).ok_or(Short::Nowhere)?;
        let zones = row.zones.clone();
        let pages = u64::from(self.geometry.section_pages());
        for at in zones {
            let zone = &mut self.zones[at];
            if !zone.zone.admits(ask.mt) {
                return Err(Short::Zone(at, Shortfall::WrongKind));
            }
            let Some(first) = zone.ours(section * pages) else {
                continue;
            };
            let id = self.geometry.section_of(first);
            let starts: Vec<Pfn> = zone.zone.pageblocks(id).map(|block| block.start).collect();
            let mut out = Vec::new();
            for start in starts {
                if ask.order >= self.geometry.pageblock_order() {
                    if start.is_aligned(ask.order) && zone.zone.take_exact(start, ask.order) {
                        out.push(start);
                    }
                } else {
                    zone.zone.take_from_pageblock(start, ask.order, 1, &mut out);
                }
                if let Some(&pfn) = out.first() {
                    let zone = u16::try_from(at).expect("few zones");
                    return Ok(Loc { zone, pfn });
                }
            }
        }
        Err(Short::Nowhere)
    }

    /// Notes who holds a block that was taken.
    pub(super) fn note(&mut self, loc: Loc, ask: Ask) {
        let client = &mut self.clients[usize::from(ask.owner.0)];
        let at = u32::try_from(client.blocks.len()).expect("fewer blocks than 2^32");
        client.blocks.push(loc);
        client.nr_pages += u64::from(ask.order.nr_pages());
        let zone = &mut self.zones[loc.zone()];
        let off = zone.held.page_of(loc.pfn) & (self.geometry.pageblock_pages() - 1);
        let entry = Entry {
            off: u16::try_from(off).expect("a pageblock is small"),
            order: ask.order.get(),
            mt: ask.mt,
            is_pinned: ask.is_pinned,
            owner: ask.owner,
            at,
        };
        zone.held.insert(loc.pfn, entry);
        if ask.owner.is_counted_out() {
            zone.zone.reserve(loc.pfn, ask.order);
        }
        self.touch(loc);
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// Nobody holds a block that begins there: nothing is changed.
    pub fn give(&mut self, loc: Loc) -> Result<u64, String> {
        let entry = self
            .forget(loc)
            .ok_or_else(|| format!("nobody holds a block at pfn {}", loc.pfn))?;
        let order = order_of(&entry);
        let zone = &mut self.zones[loc.zone()];
        if entry.owner.is_counted_out() {
            zone.zone.unreserve(loc.pfn, order);
        }
        zone.zone.free(loc.pfn, order);
        self.clock_ns += cost::GIVE_NS;
        self.touch(loc);
        Ok(u64::from(order.nr_pages()))
    }

    /// Gives a block back as a client names it, if it is that.
    ///
    /// # Errors
    /// A word for what it is not: nothing is changed.
    pub fn give_claimed(
        &mut self,
        owner: Owner,
        loc: Loc,
        order: Order,
    ) -> Result<u64, &'static str> {
        let zone = self.zones.get(loc.zone()).ok_or("outside")?;
        let is_online = zone
            .zone
            .reserve_range()
            .contains(loc.pfn)
            .then(|| zone.zone.pageblock(loc.pfn));
        if is_online.flatten().is_none() {
            return Err("outside");
        }
        let entry = zone.held.get(loc.pfn).ok_or("not-held")?;
        if entry.owner != owner {
            return Err("not-held");
        }
        if order_of(entry) != order {
            return Err("order");
        }
        self.give(loc).map_err(|_| "not-held")
    }

    /// Takes a block off the books, without freeing it.
    pub(super) fn forget(&mut self, loc: Loc) -> Option<Entry> {
        let entry = self.zones[loc.zone()].held.remove(loc.pfn)?;
        // What the machine kept for itself when it booted is on no list.
        if entry.owner > Owner::HIGH_ATOMIC {
            let client = &mut self.clients[usize::from(entry.owner.0)];
            let at = usize::try_from(entry.at).expect("32 bits fit");
            client.blocks.swap_remove(at);
            client.nr_pages -= 1 << entry.order;
            if let Some(&moved) = client.blocks.get(at) {
                let other = self.zones[moved.zone()].held.get_mut(moved.pfn);
                other.expect("what is on a list is held").at = entry.at;
            }
        }
        Some(entry)
    }

    /// Gives back one of a client's blocks, drawn; its pages, or `None` if it has none.
    pub fn give_any(&mut self, owner: Owner, prng: &mut Prng) -> Option<(Loc, u64)> {
        let loc = *prng.pick(&self.clients[usize::from(owner.0)].blocks)?;
        let pages = self.give(loc).expect("what is on a list is held");
        Some((loc, pages))
    }

    /// A client dies: all its pages go home. Returns how many.
    pub fn kill(&mut self, owner: Owner) -> u64 {
        let mut nr_pages = 0;
        while let Some(&loc) = self.clients[usize::from(owner.0)].blocks.last() {
            nr_pages += self.give(loc).expect("what is on a list is held");
        }
        nr_pages
    }

    /// Frees up to `most` pages of the past in a pageblock that is drawn; how many.
    pub fn give_past(&mut self, at: usize, most: u32, prng: &mut Prng) -> u64 {
        let zone = &mut self.zones[at];
        let nr = zone.held.nr_pageblocks();
        let span = zone.zone.span();
        if span.is_empty() || nr == 0 {
            return 0;
        }
        let draw = span.start + prng.below(span.nr_pages());
        let drawn = Pfn::new(u32::try_from(draw).expect("pages of a zone"));
        // A hole of the span, whose records are nobody's.
        if zone.zone.pageblock(drawn).is_none() {
            return 0;
        }
        let block = zone.held.block_of(drawn);
        let runs = zone.held.past.runs(block);
        let Some(&(first, nr)) = prng.pick(&runs) else {
            return 0;
        };
        let nr = nr.min(most);
        zone.held.past.set(first, nr, false);
        for page in first..first + nr {
            let pfn = zone.held.pfn_of(page);
            zone.zone.free(pfn, Order::ZERO);
        }
        self.clock_ns += cost::GIVE_NS * u64::from(nr);
        self.touched.push((at, block));
        u64::from(nr)
    }

    /// The pageblock is looked at by the next check. What moves page by page goes to and fro
    /// between two: each is noted once, or a step that moves terabytes would note gigabytes.
    pub(super) fn touch(&mut self, loc: Loc) {
        let block = (loc.zone(), self.zones[loc.zone()].held.block_of(loc.pfn));
        let of_late = self.touched.iter().rev().take(2);
        if !of_late.into_iter().any(|other| *other == block) {
            self.touched.push(block);
        }
    }
}

/// The order of an entry.
pub fn order_of(entry: &Entry) -> Order {
    Order::new(entry.order).expect("orders are checked where they come from")
}
