//! The steps of pages: clients take and give them, pin them, die; balloons; pressure.

use hugepool_mm::{CompactMode, CompactRequest, Mark, Migratetype, Order, Pfn};

use super::expr::Value;
use super::file::{Step, parse_ranges, parse_size};
use super::runner::Runner;
use crate::host::alloc::{Ask, Loc, Short, Source, order_of};
use crate::host::held::Owner;
use crate::prng::Prng;

impl Runner {
    pub(super) fn act_pages(&mut self, step: &Step, prng: &mut Prng) -> Result<(), String> {
        match step.verb.as_str() {
            "alloc" => self.act_alloc(step),
            "free" => self.act_free(step, prng),
            "free-twice" => self.act_free_twice(step),
            "free-wrong" => self.act_free_wrong(step),
            "bulk" => self.act_bulk(step),
            "pressure" => self.act_pressure(step),
            "balloon" => self.act_balloon(step),
            "deflate" => {
                let owner = Owner::BALLOON;
                let nr = step.count.unwrap_or(u64::MAX);
                let given = self.give_newest(owner, nr)?;
                self.results.insert("pages", given.into());
                Ok(())
            }
            "lists" => self.act_lists(step),
            "die" => {
                let owner = self.owner(step)?;
                let pages = self.host.kill(owner);
                self.results.insert("pages", pages.into());
                Ok(())
            }
            "pin" | "unpin" => {
                let owner = self.owner(step)?;
                let blocks = self.host.clients[usize::from(owner.0)].blocks.clone();
                for loc in blocks {
                    let entry = self.host.zones[loc.zone()].held.get_mut(loc.pfn);
                    entry.ok_or("what is on a list is held")?.is_pinned = step.verb == "pin";
                }
                Ok(())
            }
            "limit" => {
                let owner = self.owner(step)?;
                let bytes = step.size.as_deref().map(parse_size).transpose()?;
                let pages = bytes.map(|bytes| bytes / self.host.geometry.page_bytes());
                self.host.clients[usize::from(owner.0)].limit_pages = pages;
                Ok(())
            }
            other => Err(format!("no verb {other:?}")),
        }
    }

    fn owner(&mut self, step: &Step) -> Result<Owner, String> {
        let name = step
            .client
            .as_ref()
            .ok_or_else(|| format!("{} needs a client", step.verb))?;
        Ok(self.host.client(name))
    }

    /// What a step asks for.
    fn ask(&mut self, step: &Step) -> Result<Ask, String> {
        let order = Order::new(step.order.unwrap_or(0)).filter(|order| *order <= Order::MAX);
        let source = match (&step.zone, &step.blocks, step.node) {
            (Some(zone), None, None) => Source::Zone(self.host.zone_named(zone)?),
            (None, Some(blocks), None) => {
                let ranges = parse_ranges(blocks)?;
                match ranges[..] {
                    [(first, last)] if first == last => Source::Section(first),
                    _ => return Err("alloc takes one block".to_owned()),
                }
            }
            (None, None, node) => Source::Node(node.unwrap_or(0)),
            _ => return Err("a zone, a block and a node are one too many".to_owned()),
        };
        Ok(Ask {
            owner: self.owner(step)?,
            order: order.ok_or("no such order")?,
            mt: migratetype(step.migratetype.as_deref())?,
            is_pinned: step.pinned.unwrap_or(false),
            source,
            mark: if step.dip == Some(true) {
                Mark::None
            } else {
                Mark::Min
            },
        })
    }

    fn count_of(&self, step: &Step, order: Order) -> Result<u64, String> {
        let bytes = u64::from(order.nr_pages()) * self.host.geometry.page_bytes();
        match (step.count, &step.size) {
            (Some(count), None) => Ok(count),
            (None, Some(size)) => Ok(parse_size(size)?.div_ceil(bytes)),
            (None, None) => Ok(1),
            _ => Err("a count and a size are one too many".to_owned()),
        }
    }

    /// Takes a block; compacts and tries again if told to.
    fn take(&mut self, ask: Ask, compacts: bool) -> Result<Loc, Short> {
        let first = self.host.take(ask);
        let Err(Short::Zone(at, _)) = first else {
            return first;
        };
        if !compacts || ask.order == Order::ZERO {
            return first;
        }
        let request = CompactRequest::direct(ask.order, ask.mt, CompactMode::Sync);
        match self.host.compact(at, request, None) {
            Ok(_) => self.host.take(ask),
            Err(_) => first,
        }
    }

    fn act_alloc(&mut self, step: &Step) -> Result<(), String> {
        let ask = self.ask(step)?;
        let wanted = self.count_of(step, ask.order)?;
        let (mut done, mut short) = (0, None);
        let mut first = None;
        for _ in 0..wanted {
            match self.take(ask, step.compact == Some(true)) {
                Ok(loc) => {
                    done += 1;
                    first.get_or_insert(loc);
                }
                Err(why) => {
                    short = Some(why);
                    break;
                }
            }
        }
        self.tell_short(done, wanted - done, short);
        if let Some(loc) = first {
            let pfn = self.host.zones[loc.zone()].kernels(loc.pfn);
            self.results.insert("pfn", pfn.into());
            let name = self.host.zone_name(loc.zone());
            self.results.insert("zone", Value::Word(name));
        }
        Ok(())
    }

    fn tell_short(&mut self, done: u64, refused: u64, short: Option<Short>) {
        self.results.insert("done", done.into());
        self.results.insert("refused", refused.into());
        let word = short.as_ref().map_or("", Short::word);
        self.results.insert("reason", Value::Word(word.to_owned()));
        if let Some(short) = short {
            self.results.insert("why", Value::Word(short.to_string()));
        }
    }

    fn act_free(&mut self, step: &Step, prng: &mut Prng) -> Result<(), String> {
        let owner = self.owner(step)?;
        let page_bytes = self.host.geometry.page_bytes();
        let most_pages = step
            .size
            .as_deref()
            .map(parse_size)
            .transpose()?
            .map(|bytes| bytes / page_bytes);
        let nr = step.count.unwrap_or(u64::MAX);
        let mut pages = 0;
        let is_enough =
            |done: u64, pages: u64| done >= nr || most_pages.is_some_and(|most| pages >= most);
        match step.pattern.as_deref() {
            None | Some("random") => {
                let mut done = 0;
                while !is_enough(done, pages) {
                    let Some((_, nr)) = self.host.give_any(owner, prng) else {
                        break;
                    };
                    pages += nr;
                    done += 1;
                }
            }
            Some("newest") => pages = self.give_newest(owner, nr)?,
            Some(parity @ ("odd" | "even")) => {
                let mut blocks = self.host.clients[usize::from(owner.0)].blocks.clone();
                blocks.sort_unstable_by_key(|loc| (loc.zone, loc.pfn));
                let wanted = u32::from(parity == "odd");
                blocks.retain(|loc| loc.pfn.get() % 2 == wanted);
                for (done, loc) in blocks.into_iter().enumerate() {
                    if is_enough(done as u64, pages) {
                        break;
                    }
                    pages += self.host.give(loc)?;
                }
            }
            Some(other) => {
                return Err(format!("no pattern {other:?}: random, newest, odd or even"));
            }
        }
        self.results.insert("pages", pages.into());
        Ok(())
    }

    fn give_newest(&mut self, owner: Owner, nr: u64) -> Result<u64, String> {
        let mut pages = 0;
        for _ in 0..nr {
            let Some(&loc) = self.host.clients[usize::from(owner.0)].blocks.last() else {
                break;
            };
            pages += self.host.give(loc)?;
        }
        Ok(pages)
    }

    fn act_free_twice(&mut self, step: &Step) -> Result<(), String> {
        let owner = self.owner(step)?;
        let loc = *self.host.clients[usize::from(owner.0)]
            .blocks
            .last()
            .ok_or("it has no block")?;
        let order = self.order_at(loc)?;
        let pages = self.host.give(loc)?;
        let second = self.host.give_claimed(owner, loc, order);
        self.results.insert("pages", pages.into());
        let word = second.err().unwrap_or("");
        self.results.insert("reason", Value::Word(word.to_owned()));
        Ok(())
    }

    /// A client names its newest block wrongly when it gives it back.
    fn act_free_wrong(&mut self, step: &Step) -> Result<(), String> {
        let owner = self.owner(step)?;
        let loc = *self.host.clients[usize::from(owner.0)]
            .blocks
            .last()
            .ok_or("it has no block")?;
        let order = self.order_at(loc)?;
        let at = |pfn: u32| Loc {
            pfn: Pfn::new(pfn),
            ..loc
        };
        let nr = order.nr_pages();
        let claims: Vec<(Loc, Order)> = match step.pattern.as_deref() {
            Some("middle") => (1..nr)
                .map(|page| (at(loc.pfn.get() + page), Order::ZERO))
                .collect(),
            Some("outside") => {
                let span = self.host.zones[loc.zone()].zone.span();
                let ends = [span.start.wrapping_sub(1), span.end, u64::from(u32::MAX)];
                let ends = ends.iter().filter_map(|end| u32::try_from(*end).ok());
                ends.map(|pfn| (at(pfn), Order::ZERO)).collect()
            }
            Some("order") => (0..=Order::MAX.get())
                .filter_map(Order::new)
                .filter(|other| *other != order)
                .map(|other| (loc, other))
                .collect(),
            _ => return Err("free-wrong needs a pattern: middle, outside or order".to_owned()),
        };
        let (mut pages, mut refused, mut word) = (0, 0_u64, "");
        for (loc, order) in claims {
            match self.host.give_claimed(owner, loc, order) {
                Ok(nr) => pages += nr,
                Err(why) => (refused, word) = (refused + 1, why),
            }
        }
        self.results.insert("pages", pages.into());
        self.results.insert("refused", refused.into());
        self.results.insert("reason", Value::Word(word.to_owned()));
        Ok(())
    }

    fn order_at(&self, loc: Loc) -> Result<Order, String> {
        let entry = self.host.zones[loc.zone()].held.get(loc.pfn);
        Ok(order_of(entry.ok_or("what is on a list is held")?))
    }

    /// `alloc_pages_bulk` on an array: fills the empty slots, returns how many are full.
    fn act_bulk(&mut self, step: &Step) -> Result<(), String> {
        let ask = self.ask(step)?;
        let slots = step.slots.ok_or("bulk needs slots")?;
        let filled = step.filled.unwrap_or(0).min(slots);
        let (mut taken, mut short) = (0, None);
        while filled + taken < slots {
            match self.host.take(ask) {
                Ok(_) => taken += 1,
                Err(why) => {
                    short = Some(why);
                    break;
                }
            }
        }
        self.results.insert("populated", (filled + taken).into());
        self.tell_short(taken, slots - filled - taken, short);
        Ok(())
    }

    fn act_pressure(&mut self, step: &Step) -> Result<(), String> {
        let at = self
            .host
            .zone_named(step.zone.as_ref().ok_or("pressure needs a zone")?)?;
        let marks = self.host.zones[at].zone.watermarks();
        let floor = match step.to.as_deref() {
            Some("min") => marks.min,
            Some("low") => marks.low,
            Some("high") => marks.high,
            Some(size) => parse_size(size)? / self.host.geometry.page_bytes(),
            None => return Err("pressure needs a mark, or a size, to go down to".to_owned()),
        };
        let ask = Ask {
            mark: Mark::None,
            source: Source::Zone(at),
            ..self.ask(step)?
        };
        let mut taken = 0_u64;
        while self.host.zones[at].zone.free_pages() > floor && self.host.take(ask).is_ok() {
            taken += 1;
        }
        self.results.insert("pages", taken.into());
        let free = self.host.zones[at].zone.free_pages();
        self.results.insert("left", free.into());
        Ok(())
    }

    fn act_balloon(&mut self, step: &Step) -> Result<(), String> {
        let ask = Ask {
            owner: Owner::BALLOON,
            order: Order::ZERO,
            mt: Migratetype::Movable,
            is_pinned: false,
            source: match &step.zone {
                Some(zone) => Source::Zone(self.host.zone_named(zone)?),
                None => Source::Node(0),
            },
            mark: Mark::Min,
        };
        let wanted = self.count_of(step, Order::ZERO)?;
        let (mut done, mut short) = (0, None);
        for _ in 0..wanted {
            match self.host.take(ask) {
                Ok(_) => done += 1,
                Err(why) => {
                    short = Some(why);
                    break;
                }
            }
        }
        self.tell_short(done, wanted - done, short);
        Ok(())
    }

    /// Free pages into the zone's own lists: taken, then put there.
    fn act_lists(&mut self, step: &Step) -> Result<(), String> {
        let at = self
            .host
            .zone_named(step.zone.as_ref().ok_or("lists needs a zone")?)?;
        let nr = usize::try_from(step.count.unwrap_or(64)).map_err(|_| "too many")?;
        let zone = &mut self.host.zones[at].zone;
        zone.set_pcp(Some((63, u64::try_from(nr).map_err(|_| "too many")?)));
        let mut pages: Vec<Pfn> = Vec::new();
        let flags = zone.flags_for(Mark::None, at);
        zone.rmqueue_bulk(Order::ZERO, Migratetype::Movable, nr, flags, &mut pages);
        for pfn in pages {
            zone.pcp_put(pfn, Order::ZERO);
        }
        let listed = zone.counts().pcp;
        self.results.insert("pages", listed.into());
        Ok(())
    }
}

/// The migratetype of that name.
pub fn migratetype(name: Option<&str>) -> Result<Migratetype, String> {
    match name {
        None | Some("movable") => Ok(Migratetype::Movable),
        Some("unmovable") => Ok(Migratetype::Unmovable),
        Some("reclaimable") => Ok(Migratetype::Reclaimable),
        Some(other) => Err(format!(
            "no migratetype {other:?}: movable, unmovable or reclaimable"
        )),
    }
}
