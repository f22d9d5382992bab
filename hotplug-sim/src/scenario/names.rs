//! What can be compared: the names of a machine's numbers.
//!
//! | name | value |
//! |---|---|
//! | `done`, `refused`, `already`, `pages`, `moved`, `reason`, `pfn`, `holder`, `order`, ... | what the step brought |
//! | `ZONE.spanned` `present` `managed` `reserved` `free` `pcp` `lent` `isolated` | pages |
//! | `ZONE.min` `low` `high` `boost` | watermarks, pages |
//! | `ZONE.start` `end` | first page and one past the last, 0 if empty |
//! | `ZONE.free_9`, `ZONE.unusable_9` | free blocks of an order; unusable index for it, thousandths |
//! | `ZONE.largest` | order of the largest free block, -1 if nothing is free |
//! | `ZONE.unmovable`, `ZONE.movable`, `ZONE.reclaimable` | pageblocks of that type |
//! | `ZONE.contiguous` | 1 or 0, asked honestly |
//! | `ZONE.walks`, `ZONE.hits` | contiguity questions that walked, or that a cache answered |
//! | `total.X` | any of the pages above, summed over the zones |
//! | `client.NAME.pages`, `client.NAME.blocks` | what a client holds |
//! | `block.N.state` | `"online"`, `"offline"` or `"absent"`; `block.N.zone` its zone's name; `block.N.records` `"untouched"` while it is offline and nobody wrote them |
//! | `device.ID.plugged_bytes`, `device.ID.online`, `device.ID.offline` | of a device |
//! | `page_bytes`, `block_pages`, `clock_ms`, `backing` | of the machine |
//! | `min_free_kib`, `min_free_computed` | `min_free_kbytes` in force, and what the formula gives |

use hugepool_mm::{Order, SectionState};

use super::expr::Value;
use super::runner::Runner;
use crate::host::Host;

impl Runner {
    /// The value of a name.
    pub fn look_up(&self, name: &str) -> Option<Value> {
        if let Some(value) = self.results.get(name).or_else(|| self.saved.get(name)) {
            return Some(value.clone());
        }
        let host = &self.host;
        match name {
            "page_bytes" => return Some(host.geometry.page_bytes().into()),
            "block_pages" => return Some(u64::from(host.geometry.section_pages()).into()),
            "clock_ms" => return Some((host.clock_ns / 1_000_000).into()),
            "min_free_computed" => return Some(self.computed_min_free().into()),
            "min_free_kib" => {
                let set = host.min_free_kib;
                return Some(set.unwrap_or_else(|| self.computed_min_free()).into());
            }
            "backing" => return host.backing_bytes.map(Value::from),
            _ => {}
        }
        if let Some(rest) = name.strip_prefix("client.") {
            let (client, field) = rest.rsplit_once('.')?;
            let client = host.clients.iter().find(|one| one.name == client);
            let blocks = client.map_or(0, |client| client.blocks.len() as u64);
            return match field {
                "pages" => Some(client.map_or(0, |client| client.nr_pages).into()),
                "blocks" => Some(blocks.into()),
                _ => None,
            };
        }
        if let Some(rest) = name.strip_prefix("block.") {
            return block(host, rest);
        }
        if let Some(rest) = name.strip_prefix("device.") {
            return device(host, rest);
        }
        let (zone, field) = name.rsplit_once('.')?;
        if zone == "total" {
            let sum =
                (0..host.zones.len()).try_fold(0_i128, |sum, at| match of_zone(host, at, field)? {
                    Value::Number(number) => Some(sum + number),
                    Value::Word(_) => None,
                });
            return sum.map(Value::Number);
        }
        of_zone(host, host.zone_named(zone).ok()?, field)
    }
}

fn of_zone(host: &Host, at: usize, field: &str) -> Option<Value> {
    let of = &host.zones[at];
    let zone = &of.zone;
    let counts = zone.counts();
    let marks = zone.watermarks();
    let span = zone.span();
    let order = |text: &str| text.parse().ok().and_then(Order::new);
    if let Some(text) = field.strip_prefix("free_") {
        return zone
            .buddyinfo()
            .get(order(text)?.index())
            .copied()
            .map(Value::from);
    }
    if let Some(text) = field.strip_prefix("unusable_") {
        return Some(u64::from(zone.unusable_index(order(text)?)).into());
    }
    let types = |at: usize| zone.pagetypeinfo().rows[at].nr_pageblocks;
    let number = match field {
        "spanned" => counts.spanned,
        "present" => counts.present,
        "managed" => counts.managed,
        "reserved" => counts.reserved,
        "free" => counts.free,
        "pcp" => counts.pcp,
        "lent" => counts.lent,
        "isolated" => counts.isolated,
        "min" => marks.min,
        "low" => marks.low,
        "high" => marks.high,
        "boost" => zone.watermark_boost(),
        "start" => {
            if span.is_empty() {
                0
            } else {
                span.start + of.shift
            }
        }
        "end" => {
            if span.is_empty() {
                0
            } else {
                span.end + of.shift
            }
        }
        "unmovable" => types(0),
        "movable" => types(1),
        "reclaimable" => types(2),
        "contiguous" => {
            let nr_whole = zone.sections().filter(|section| {
                section.state == SectionState::Online && section.present == section.nr_pages
            });
            let pages: u64 = nr_whole.map(|section| section.nr_pages).sum();
            u64::from(pages > 0 && pages == counts.spanned)
        }
        "walks" => zone.contiguity().walks,
        "hits" => zone.contiguity().zone_hits + zone.contiguity().pageblock_hits,
        "largest" => {
            let largest = zone.largest_free_order();
            return Some(Value::Number(
                largest.map_or(-1, |order| i128::from(order.get())),
            ));
        }
        _ => return None,
    };
    Some(number.into())
}

fn block(host: &Host, rest: &str) -> Option<Value> {
    let (id, field) = rest.split_once('.')?;
    let section = host.sections.get(&id.parse().ok()?);
    let state = match section {
        None => "absent",
        Some(section) if section.zones.is_empty() => "offline",
        Some(_) => "online",
    };
    let zone = section.and_then(|section| section.zones.first());
    match field {
        "state" => Some(Value::Word(state.to_owned())),
        "records" => {
            let is_untouched = state == "offline" && host.is_untouched(id.parse().ok()?);
            let word = if is_untouched { "untouched" } else { "" };
            Some(Value::Word(word.to_owned()))
        }
        "zone" => Some(Value::Word(
            zone.map_or("none".to_owned(), |at| host.zone_name(*at)),
        )),
        _ => None,
    }
}

fn device(host: &Host, rest: &str) -> Option<Value> {
    let (id, field) = rest.rsplit_once('.')?;
    let device = &host.devices[host.device_named(id).ok()?];
    let sections = device.sections.0..device.sections.0 + device.sections.1;
    let in_state = |online: bool| {
        let rows = sections.clone().filter_map(|id| host.sections.get(&id));
        rows.filter(|row| row.zones.is_empty() != online).count() as u64
    };
    let number = match field {
        "plugged_bytes" => {
            device.nr_plugged() as u64 * device.subblock_pages * host.geometry.page_bytes()
        }
        "online" => in_state(true),
        "offline" => in_state(false),
        _ => return None,
    };
    Some(number.into())
}
