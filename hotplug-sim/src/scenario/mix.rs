//! Operations drawn from the seed: the everyday of a machine.

use hugepool_mm::{Mark, OnlineOrder, Order, ZoneKind};

use super::file::{Part, Step};
use super::pages::migratetype;
use super::runner::{Runner, Stop};
use crate::host::alloc::{Ask, Source};
use crate::host::held::Owner;
use crate::prng::Prng;

/// Chances are out of so many.
const MILLION: u64 = 1_000_000;

/// One part, ready to be drawn.
struct Drawn {
    owner: Owner,
    ask: Ask,
    weight: u64,
}

/// What was counted.
#[derive(Default)]
struct Counts {
    taken: u64,
    given: u64,
    short: u64,
    deaths: u64,
    hotplugs: u64,
    refused: u64,
}

/// The parts of a mix that names none: applications, the kernel, its caches, huge pages.
pub fn usual_parts() -> Vec<Part> {
    let part = |client: &str, migratetype: &str, order, weight| Part {
        client: client.to_owned(),
        migratetype: Some(migratetype.to_owned()),
        order,
        weight: Some(weight),
    };
    vec![
        part("apps", "movable", 0, 60),
        part("cache", "movable", 0, 15),
        part("slab", "reclaimable", 0, 10),
        part("kernel", "unmovable", 0, 8),
        part("kernel", "unmovable", 2, 4),
        part("net", "unmovable", 3, 2),
        part("thp", "movable", 9, 1),
    ]
}

impl Runner {
    pub(super) fn mix(&mut self, at: usize, step: &Step) -> Result<(), Stop> {
        let senseless = |what| Stop::Senseless { step: at, what };
        let parts = self.parts(step).map_err(senseless)?;
        let fill = step.fill.unwrap_or(80);
        let mut counts = Counts::default();
        for _ in 0..step.ops.unwrap_or(1000) {
            if self.is_over() {
                break;
            }
            let unit = self.next_unit();
            if self.is_skipped(unit) {
                continue;
            }
            let mut prng = self.chance(unit);
            let what = self.operate(step, &parts, fill, &mut prng, &mut counts);
            self.note(unit, || what.describe());
            self.check(unit)?;
            if self.samples.is_due(unit) && unit.is_multiple_of(1024) {
                self.samples.take(unit, &self.host);
            }
        }
        let numbers = [
            ("done", counts.taken),
            ("given", counts.given),
            ("short", counts.short),
            ("deaths", counts.deaths),
            ("hotplugs", counts.hotplugs),
            ("refused", counts.refused),
        ];
        for (name, number) in numbers {
            self.results.insert(name, number.into());
        }
        Ok(())
    }

    fn parts(&mut self, step: &Step) -> Result<Vec<Drawn>, String> {
        let parts = step.parts.clone().unwrap_or_else(usual_parts);
        let source = match &step.zone {
            Some(zone) => Some(Source::Zone(self.host.zone_named(zone)?)),
            None => step.node.map(Source::Node),
        };
        let max = self.host.geometry.max_order();
        parts
            .iter()
            .map(|part| {
                let owner = self.host.client(&part.client);
                let ask = Ask {
                    owner,
                    order: Order::new(part.order).ok_or("no such order")?.min(max),
                    mt: migratetype(part.migratetype.as_deref())?,
                    is_pinned: false,
                    source: source.unwrap_or(Source::Node(0)),
                    mark: Mark::Min,
                };
                let weight = u64::from(part.weight.unwrap_or(1));
                Ok(Drawn { owner, ask, weight })
            })
            .collect()
    }

    fn operate(
        &mut self,
        step: &Step,
        parts: &[Drawn],
        fill: u64,
        prng: &mut Prng,
        counts: &mut Counts,
    ) -> What {
        let draw = prng.below(MILLION);
        let (deaths, hotplugs) = (step.deaths.unwrap_or(2), step.hotplugs.unwrap_or(0));
        if draw < deaths {
            let Some(part) = prng.pick(parts) else {
                return What::Nothing;
            };
            let pages = self.host.kill(part.owner);
            counts.deaths += 1;
            return What::Died(part.owner, pages);
        }
        if draw < deaths + hotplugs {
            return self.hotplug(prng, counts);
        }
        let Some(part) = draw_part(parts, prng) else {
            return What::Nothing;
        };
        let (managed, free) = self
            .host
            .zones
            .iter()
            .fold((0, 0), |(managed, free), zone| {
                let counts = zone.zone.counts();
                (managed + counts.managed, free + counts.free)
            });
        let is_below = (managed - free) * 100 < managed * fill;
        if prng.chance(if is_below { 60 } else { 40 }, 100) {
            let mut ask = part.ask;
            // Without a place of its own, a request comes from any node.
            if step.zone.is_none() && step.node.is_none() {
                let zone = prng.index(self.host.zones.len());
                ask.source = Source::Node(self.host.zones[zone].node);
            }
            return match self.host.take(ask) {
                Ok(loc) => {
                    counts.taken += 1;
                    What::Took(ask, self.host.zones[loc.zone()].kernels(loc.pfn))
                }
                Err(_) => {
                    counts.short += 1;
                    What::Short(ask)
                }
            };
        }
        if let Some((loc, pages)) = self.host.give_any(part.owner, prng) {
            counts.given += 1;
            return What::Gave(
                part.owner,
                self.host.zones[loc.zone()].kernels(loc.pfn),
                pages,
            );
        }
        // A client that has nothing: some of what was there before is given up instead.
        let zone = prng.index(self.host.zones.len());
        let pages = self
            .host
            .give_past(zone, 1 << part.ask.order.get().min(5), prng);
        counts.given += u64::from(pages > 0);
        What::GavePast(zone, pages)
    }

    fn hotplug(&mut self, prng: &mut Prng, counts: &mut Counts) -> What {
        let sections = &self.host.sections;
        let (Some(first), Some(last)) = (sections.keys().next(), sections.keys().next_back())
        else {
            return What::Nothing;
        };
        let draw = first + prng.below(last - first + 1);
        let Some((&block, row)) = sections.range(draw..).next() else {
            return What::Nothing;
        };
        let (is_online, node) = (!row.zones.is_empty(), row.node);
        let done = if is_online {
            self.host.offline(block).map(drop)
        } else {
            match self.host.zone_for(node, ZoneKind::Movable) {
                Ok(zone) => self
                    .host
                    .online(block, zone, OnlineOrder::Pageblock)
                    .map(drop),
                Err(_) => return What::Nothing,
            }
        };
        counts.hotplugs += u64::from(done.is_ok());
        counts.refused += u64::from(done.is_err());
        What::Hotplug(block, is_online, done.err().map(|refused| refused.word))
    }
}

fn draw_part<'a>(parts: &'a [Drawn], prng: &mut Prng) -> Option<&'a Drawn> {
    let total: u64 = parts.iter().map(|part| part.weight).sum();
    let mut draw = prng.below(total);
    parts.iter().find(|part| {
        let is_it = draw < part.weight;
        draw = draw.saturating_sub(part.weight);
        is_it
    })
}

/// What an operation was, for the trace.
enum What {
    Nothing,
    Took(Ask, u64),
    Short(Ask),
    Gave(Owner, u64, u64),
    GavePast(usize, u64),
    Died(Owner, u64),
    Hotplug(u64, bool, Option<&'static str>),
}

impl What {
    fn describe(&self) -> String {
        match self {
            What::Nothing => "nothing".to_owned(),
            What::Took(ask, pfn) => {
                format!(
                    "alloc client={} order={} {} -> pfn={pfn}",
                    ask.owner.0, ask.order, ask.mt
                )
            }
            What::Short(ask) => {
                format!(
                    "alloc client={} order={} {} -> short",
                    ask.owner.0, ask.order, ask.mt
                )
            }
            What::Gave(owner, pfn, pages) => {
                format!("free client={} pfn={pfn} -> pages={pages}", owner.0)
            }
            What::GavePast(zone, pages) => format!("free past zone={zone} -> pages={pages}"),
            What::Died(owner, pages) => format!("die client={} -> pages={pages}", owner.0),
            What::Hotplug(block, is_online, refused) => {
                let verb = if *is_online { "offline" } else { "online" };
                format!("{verb} block={block} -> {}", refused.unwrap_or("done"))
            }
        }
    }
}
