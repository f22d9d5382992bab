//! What a running daemon tells of the numbers that a scenario expects, by the names of
//! [`look_up`](crate::scenario::names).
//!
//! A daemon tells of pages, watermarks, clients and sections, and what the step brought; of free
//! blocks by order, caches and devices it is not asked. Lanes are called home before, so that what is
//! free is free; its own lists count as free.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hugepool_proto::v1::{Client, PageCounts, Section, Zone};

use crate::host::Host;
use crate::scenario::expr::{self, Compared, Value};

/// The daemon's numbers after a step.
#[derive(Debug, Default)]
pub struct Told {
    /// What the step brought.
    pub results: BTreeMap<String, Value>,
    /// All zones.
    pub zones: Vec<Zone>,
    /// The clients of the scenario, by their names in it.
    pub clients: Vec<(String, Client)>,
    /// All sections.
    pub sections: Vec<Section>,
}

/// What came of a question.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// This.
    Known(T),
    /// The daemon does not tell what is called so.
    NotTold(String),
}

impl Told {
    /// Compares what is expected with what is.
    ///
    /// # Errors
    /// It is no comparison.
    pub fn compare(
        &self,
        expected: &str,
        host: &Host,
        saved: &BTreeMap<String, Value>,
    ) -> Result<Answer<Compared>, String> {
        self.ask(host, saved, |look_up| expr::compare(expected, look_up))
    }

    /// A number or word that a scenario saves.
    ///
    /// # Errors
    /// It is no sum.
    pub fn evaluate(
        &self,
        what: &str,
        host: &Host,
        saved: &BTreeMap<String, Value>,
    ) -> Result<Answer<Value>, String> {
        self.ask(host, saved, |look_up| expr::evaluate(what, look_up))
    }

    fn ask<T>(
        &self,
        host: &Host,
        saved: &BTreeMap<String, Value>,
        question: impl FnOnce(&dyn Fn(&str) -> Option<Value>) -> Result<T, String>,
    ) -> Result<Answer<T>, String> {
        let unknown = RefCell::new(None);
        let answer = question(&|name| {
            let found = self.results.get(name).or_else(|| saved.get(name)).cloned();
            let found = found.or_else(|| self.look_up(name, host));
            if found.is_none() {
                *unknown.borrow_mut() = Some(name.to_owned());
            }
            found
        });
        match unknown.into_inner() {
            Some(name) => Ok(Answer::NotTold(name)),
            None => answer.map(Answer::Known),
        }
    }

    fn look_up(&self, name: &str, host: &Host) -> Option<Value> {
        match name {
            "page_bytes" => return Some(host.geometry.page_bytes().into()),
            "block_pages" => return Some(u64::from(host.geometry.section_pages()).into()),
            // Of a step that had none.
            "reason" => return Some(Value::Word(String::new())),
            _ => {}
        }
        let (of, field) = name.rsplit_once('.')?;
        if let Some(client) = of.strip_prefix("client.") {
            let mut clients = self.clients.iter();
            let held = clients.find(|(known, _)| known == client);
            let held = held.map_or(0, |(_, client)| client.held);
            return (field == "pages").then(|| held.into());
        }
        if let Some(id) = of.strip_prefix("block.") {
            return self.block(id.parse().ok()?, field);
        }
        if of == "total" {
            let mut fields = self.zones.iter().map(|zone| of_zone(zone, field));
            let sum = fields.try_fold(0, |sum: u64, one| sum.checked_add(one?));
            return sum.map(Value::from);
        }
        let zone = of.split('@').next()?;
        let mut zones = self.zones.iter();
        of_zone(zones.find(|known| known.name == zone)?, field).map(Value::from)
    }

    fn block(&self, id: u32, field: &str) -> Option<Value> {
        let section = self.sections.iter().find(|section| section.id == id);
        let word = match (field, section) {
            ("state", None) => "absent",
            ("state", Some(section)) => &section.state,
            ("zone", Some(section)) if section.state == "online" => &section.zone,
            ("zone", _) => "none",
            _ => return None,
        };
        Some(Value::Word(word.to_owned()))
    }
}

fn of_zone(zone: &Zone, field: &str) -> Option<u64> {
    let PageCounts {
        spanned,
        present,
        reserved,
        managed,
        free,
        pcp,
        lent,
        isolated,
    } = zone.pages.unwrap_or_default();
    let marks = zone.watermarks.unwrap_or_default();
    Some(match field {
        "spanned" => spanned,
        "present" => present,
        "reserved" => reserved,
        "managed" => managed,
        "free" => free + pcp,
        "lent" => lent,
        "isolated" => isolated,
        "min" => marks.min,
        "low" => marks.low,
        "high" => marks.high,
        _ => return None,
    })
}

/// The words of an outcome (`done=3 reason=limit`) as results.
pub fn of_words(outcome: &str) -> BTreeMap<String, Value> {
    let words = outcome.split(' ').filter_map(|word| word.split_once('='));
    words
        .map(|(name, value)| {
            let value = match value.parse::<u64>() {
                Ok(number) => number.into(),
                Err(_) => Value::Word(value.to_owned()),
            };
            (name.to_owned(), value)
        })
        .collect()
}
