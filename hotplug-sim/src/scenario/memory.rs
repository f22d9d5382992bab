//! The steps of memory: blocks and devices that come and go, and what is told to zones.

use hugepool_mm::{
    CompactMode, CompactRequest, ContiguityMode, Migratetype, OnlineOrder, Order, ZoneKind,
};

use super::expr::Value;
use super::file::{Step, parse_ranges, parse_size};
use super::runner::Runner;
use crate::host::hotplug::{Records, Refused};

/// What became of several blocks.
#[derive(Default)]
struct Tally {
    done: u64,
    already: u64,
    refused: u64,
    pages: u64,
    moved: u64,
    first: Option<Refused>,
}

impl Runner {
    pub(super) fn act_memory(&mut self, step: &Step) -> Result<(), String> {
        if step.verb == "request" {
            return self.act_request(step);
        }
        let blocks = self.select(step)?;
        let mut tally = Tally::default();
        let mut undo = Vec::new();
        let is_offline = |block: &&u64| {
            let row = self.host.sections.get(block);
            row.is_some_and(|row| row.zones.is_empty())
        };
        let already = blocks.iter().filter(is_offline).count() as u64;
        let wanted = match &step.size {
            Some(size)
                if step.verb == "offline" || step.verb == "online" || step.verb == "remove" =>
            {
                Some(parse_size(size)?.div_ceil(self.host.geometry.section_bytes()))
            }
            _ => None,
        };
        for block in blocks {
            if wanted.is_some_and(|wanted| tally.done >= wanted) {
                break;
            }
            let zone = self
                .host
                .sections
                .get(&block)
                .and_then(|row| row.zones.first().copied());
            match self.one_block(step, block)? {
                Ok((pages, moved)) => {
                    tally.done += 1;
                    tally.pages += pages;
                    tally.moved += moved;
                    undo.push((block, zone));
                }
                Err(refused) => {
                    tally.moved += refused.nr_moved;
                    if is_already(&step.verb, &refused) {
                        tally.already += 1;
                        continue;
                    }
                    tally.refused += 1;
                    tally.first.get_or_insert(refused);
                    if step.all_or_nothing == Some(true) {
                        for (block, zone) in undo.drain(..) {
                            if step.verb == "add" {
                                self.host.remove(block).map_err(|refused| refused.what)?;
                                continue;
                            }
                            let zone = zone.ok_or("a block that was online had a zone")?;
                            let back = self.host.online(block, zone, OnlineOrder::Pageblock);
                            back.map_err(|refused| refused.what)?;
                        }
                        tally.done = 0;
                        tally.already = already;
                        break;
                    }
                }
            }
        }
        self.tell(tally);
        Ok(())
    }

    fn tell(&mut self, tally: Tally) {
        let numbers = [
            ("done", tally.done),
            ("already", tally.already),
            ("refused", tally.refused),
            ("pages", tally.pages),
            ("moved", tally.moved),
        ];
        for (name, number) in numbers {
            self.results.insert(name, number.into());
        }
        self.tell_refusal(tally.first);
    }

    fn tell_refusal(&mut self, refused: Option<Refused>) {
        let word = refused.as_ref().map_or("", |refused| refused.word);
        self.results.insert("reason", Value::Word(word.to_owned()));
        let Some(refused) = refused else { return };
        self.results.insert("why", Value::Word(refused.what));
        self.results
            .insert("holder", Value::Word(refused.holder.unwrap_or_default()));
        if let Some(pfn) = refused.pfn {
            self.results.insert("pfn", pfn.into());
        }
        if let Some(order) = refused.order {
            self.results.insert("order", u64::from(order).into());
        }
    }

    fn one_block(
        &mut self,
        step: &Step,
        block: u64,
    ) -> Result<Result<(u64, u64), Refused>, String> {
        let host = &mut self.host;
        Ok(match step.verb.as_str() {
            "add" => {
                let node = match &step.device {
                    Some(id) => host.devices[host.device_named(id)?].node,
                    None => step.node.unwrap_or(0),
                };
                host.add(block, node, records(step)?).map(|()| (0, 0))
            }
            "online" => {
                let node = host.sections.get(&block).map_or(0, |row| row.node);
                let zone = match (&step.zone, step.policy.as_deref()) {
                    (Some(zone), None) => host.zone_named(zone)?,
                    (None, policy) => host.zone_for(node, kind(policy)?)?,
                    (Some(_), Some(_)) => {
                        return Err("a zone and a policy are one too many".to_owned());
                    }
                };
                let order = match step.mode.as_deref() {
                    None | Some("pageblock") => OnlineOrder::Pageblock,
                    Some("page") => OnlineOrder::Page,
                    Some(other) => return Err(format!("no mode {other:?}: pageblock or page")),
                };
                host.online(block, zone, order).map(|pages| (pages, 0))
            }
            "offline" => host.offline(block).map(|moved| (0, moved)),
            _ => host.remove(block).map(|()| (0, 0)),
        })
    }

    /// The blocks that a step is about, in the order in which it goes through them.
    fn select(&self, step: &Step) -> Result<Vec<u64>, String> {
        let host = &self.host;
        if let Some(blocks) = &step.blocks {
            return Ok(parse_ranges(blocks)?
                .into_iter()
                .flat_map(|(first, last)| first..=last)
                .collect());
        }
        if let Some(id) = &step.device {
            let device = &host.devices[host.device_named(id)?];
            return Ok((device.sections.0..device.sections.0 + device.sections.1).collect());
        }
        let zone = step
            .zone
            .as_deref()
            .map(|zone| host.zone_named(zone))
            .transpose()?;
        let Some(size) = &step.size else {
            return Err(format!("{} needs blocks, a size or a device", step.verb));
        };
        match step.verb.as_str() {
            "add" => {
                let nr = parse_size(size)?.div_ceil(host.geometry.section_bytes());
                let first = host.sections.keys().next_back().map_or(0, |last| last + 1);
                Ok((first..first + nr).collect())
            }
            "offline" => Ok(host
                .sections
                .iter()
                .rev()
                .filter(|(_, row)| match zone {
                    Some(zone) => row.zones.contains(&zone),
                    None => !row.zones.is_empty(),
                })
                .map(|(id, _)| *id)
                .collect()),
            _ => Ok(host
                .sections
                .iter()
                .filter(|(_, row)| row.zones.is_empty())
                .map(|(id, _)| *id)
                .collect()),
        }
    }

    fn act_request(&mut self, step: &Step) -> Result<(), String> {
        let id = step.device.as_ref().ok_or("request needs a device")?;
        let size = parse_size(step.size.as_ref().ok_or("request needs a size")?)?;
        let device = self.host.device_named(id)?;
        let kind = kind(step.policy.as_deref())?;
        let resized = self.host.resize(device, size, kind, records(step)?)?;
        let of = &self.host.devices[device];
        let plugged = of.nr_plugged() as u64 * of.subblock_pages * self.host.geometry.page_bytes();
        let numbers = [
            ("done", resized.nr_done),
            ("refused", resized.nr_refused),
            ("moved", resized.nr_moved),
            ("plugged_bytes", plugged),
        ];
        for (name, number) in numbers {
            self.results.insert(name, number.into());
        }
        self.tell_refusal(resized.refused);
        Ok(())
    }

    pub(super) fn act_zone(&mut self, step: &Step) -> Result<(), String> {
        if step.verb == "min-free" {
            let (before, computed) = (self.host.min_free_kib, self.computed_min_free());
            self.host.min_free_kib = step.kib;
            self.host.setup_zones();
            self.results
                .insert("before", before.unwrap_or(computed).into());
            self.results.insert("computed", computed.into());
            return Ok(());
        }
        let zones = match &step.zone {
            Some(zone) => vec![self.host.zone_named(zone)?],
            None => (0..self.host.zones.len()).collect(),
        };
        if step.verb == "contiguity" {
            let mode = contiguity_mode(step.mode.as_deref())?;
            for at in zones {
                self.host.zones[at].zone.set_contiguity_mode(mode);
            }
            return Ok(());
        }
        let order = step
            .order
            .map(|order| Order::new(order).ok_or("no such order"))
            .transpose()?;
        let request = match (order, step.mode.as_deref()) {
            (None, None | Some("manual")) => CompactRequest::MANUAL,
            (Some(order), None | Some("sync")) => {
                CompactRequest::direct(order, Migratetype::Movable, CompactMode::Sync)
            }
            (Some(order), Some("async")) => {
                CompactRequest::direct(order, Migratetype::Movable, CompactMode::Async)
            }
            (_, Some(mode)) => return Err(format!("no compaction mode {mode:?} here")),
        };
        let (mut moved, mut made, mut checks, mut ended, mut refused) = (0, 0, 0, 0, String::new());
        for at in zones {
            match self.host.compact(at, request, step.count) {
                Ok(run) => {
                    moved += run.counts.nr_moved;
                    made += run.counts.nr_blocks_made;
                    checks += run.counts.nr_checks;
                    ended += 1;
                }
                Err(error) => refused = error.to_string(),
            }
        }
        let numbers = [
            ("moved", moved),
            ("made", made),
            ("checks", checks),
            ("done", ended),
        ];
        for (name, number) in numbers {
            self.results.insert(name, number.into());
        }
        self.results.insert("reason", Value::Word(refused));
        Ok(())
    }

    /// What the formula gives for `min_free_kbytes` now.
    pub(super) fn computed_min_free(&self) -> u64 {
        let page_kib = self.host.geometry.page_bytes() >> 10;
        let normal = self
            .host
            .zones
            .iter()
            .filter(|zone| zone.zone.kind() == ZoneKind::Normal);
        let pages: u64 = normal.map(|zone| zone.zone.counts().managed).sum();
        hugepool_mm::watermark::min_free_kib(pages * page_kib)
    }
}

/// Whether a refusal only says that there was nothing to do.
fn is_already(verb: &str, refused: &Refused) -> bool {
    match verb {
        "add" => refused.word == "present",
        "remove" => refused.word == "absent",
        _ => refused.word == verb,
    }
}

/// The kind of zone that a policy means.
pub fn kind(policy: Option<&str>) -> Result<ZoneKind, String> {
    match policy {
        None | Some("movable") => Ok(ZoneKind::Movable),
        Some("kernel") => Ok(ZoneKind::Normal),
        Some(other) => Err(format!("no policy {other:?}: movable or kernel")),
    }
}

/// The contiguity mode of that name.
pub fn contiguity_mode(mode: Option<&str>) -> Result<ContiguityMode, String> {
    match mode {
        Some("none") => Ok(ContiguityMode::None),
        Some("zone") => Ok(ContiguityMode::Zone),
        Some("pageblock") => Ok(ContiguityMode::Pageblock),
        None | Some("both") => Ok(ContiguityMode::Both),
        Some(other) => Err(format!("no mode {other:?}: none, zone, pageblock or both")),
    }
}

fn records(step: &Step) -> Result<Records, String> {
    match step.records.as_deref() {
        None | Some("none") => Ok(Records::None),
        Some("old") => Ok(Records::Old),
        Some("inside") => Ok(Records::Inside),
        Some(other) => Err(format!(
            "no place {other:?} for records: none, old or inside"
        )),
    }
}
