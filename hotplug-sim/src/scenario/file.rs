//! A scenario as a TOML file: a machine, and steps with what is to come of them.
//!
//! `hotplug-sim run --help` and `scenarios/README.md` explain the verbs. Every field of a step
//! may be left out where its verb does not need it; one that its verb does not know is refused,
//! as is a misspelt one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::import::machine::{Machine, MachineDevice};

/// A scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The seed that is used if the command gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Units (a step, or one operation of a `mix`) that are left out, as `FIRST-LAST`: what
    /// `minimize` writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip: Vec<String>,
    /// The machine, if the command names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<SmallMachine>,
    /// The steps.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
}

/// A machine that is made up for a scenario: everything in it is free.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallMachine {
    /// A saved machine, beside the scenario's file; or else the fields below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Bytes of a page; 4096 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Bytes of a memory block; 128 MiB if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    /// The order of a pageblock; 9 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pageblock_order: Option<u32>,
    /// Bytes of backing for blocks that are added; without a limit if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<String>,
    /// Zones.
    #[serde(default, rename = "zone", skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<SmallZone>,
    /// Devices, as in a saved machine.
    #[serde(default, rename = "device", skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<MachineDevice>,
}

/// A zone of such a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallZone {
    /// `Normal`, `Movable`, `DMA32`, ...
    pub name: String,
    /// Its node; 0 if left out.
    #[serde(default)]
    pub node: u32,
    /// Its first memory block; behind the one before if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_block: Option<u64>,
    /// Its memory.
    pub size: String,
    /// Of it, bytes that the machine keeps for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<String>,
}

/// A part of a `mix`: who asks for what, how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The client.
    pub client: String,
    /// `movable` (if left out), `unmovable` or `reclaimable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migratetype: Option<String>,
    /// The order; 0 if left out.
    #[serde(default)]
    pub order: u8,
    /// How often, in relation to the other parts; 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// What to do, and what is to come of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Step {
    /// The verb.
    #[serde(rename = "do")]
    pub verb: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How often; once if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migratetype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Bytes, such as `1GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Memory blocks: `32-39,41`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Compact when an allocation falls short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact: Option<bool>,
    /// May take the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dip: Option<bool>,
    /// Go back to how it was if a part is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_or_nothing: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filled: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<u64>,
    /// Percent of the managed pages that a mix keeps in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<u64>,
    /// Of a million operations of a mix, deaths of a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deaths: Option<u64>,
    /// Of a million operations of a mix, memory blocks that go or come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hotplugs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<Part>>,
    /// Numbers to remember: a name, and what it stands for from now on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub save: BTreeMap<String, String>,
    /// What must be true after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<String>,
}

/// Why a text is no scenario.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// It is no TOML, or has a name that is not known.
    #[error("not a scenario: {0}")]
    Toml(#[from] toml::de::Error),
    /// A step makes no sense.
    #[error("step {step}: {what}")]
    Step {
        /// Counted from 1.
        step: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The machine makes no sense.
    #[error("machine: {0}")]
    Machine(String),
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn from_toml(text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = toml::from_str(text)?;
        for (at, step) in scenario.steps.iter().enumerate() {
            super::verb::check(step).map_err(|what| ScenarioError::Step { step: at + 1, what })?;
        }
        Ok(scenario)
    }

    /// The text of the file.
    ///
    /// # Errors
    /// A number is too large for TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

impl SmallMachine {
    /// The description that it stands for.
    ///
    /// # Errors
    /// A size is none.
    pub fn to_machine(&self) -> Result<Machine, ScenarioError> {
        let size = |text: &Option<String>, else_bytes: u64| match text {
            Some(text) => parse_size(text).map_err(ScenarioError::Machine),
            None => Ok(else_bytes),
        };
        let page = size(&self.page, 4096)?;
        let block = size(&self.block, 128 << 20)?;
        let mut machine = Machine {
            version: crate::import::machine::VERSION,
            page_size_bytes: Some(page),
            pageblock_order: Some(self.pageblock_order.unwrap_or(9)),
            section_bytes: Some(block),
            devices: self.devices.clone(),
            ..Machine::default()
        };
        let mut next = 0;
        for zone in &self.zones {
            let first = zone.first_block.unwrap_or(next);
            let bytes = parse_size(&zone.size).map_err(ScenarioError::Machine)?;
            let reserved = size(&zone.reserved, 0)?;
            let pages = i64::try_from(bytes / page)
                .map_err(|_| ScenarioError::Machine(zone.size.clone()))?;
            let kept = i64::try_from(reserved / page).unwrap_or(pages);
            next = first + bytes.div_ceil(block);
            machine.zones.push(crate::import::machine::MachineZone {
                node: zone.node,
                name: zone.name.clone(),
                start_pfn: Some(first * block / page),
                spanned: Some(pages),
                present: Some(pages),
                managed: Some(pages - kept),
                ..Default::default()
            });
        }
        Ok(machine)
    }
}

/// A size in bytes: `4096`, `4KiB`, `512M`, `2GiB`.
///
/// # Errors
/// It is none.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size: write 4096, 64KiB, 512MiB, 2GiB or 1TiB");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let shift = match unit.trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// Numbers and ranges of them: `32-39,41`.
///
/// # Errors
/// It is no such list.
pub fn parse_ranges(text: &str) -> Result<Vec<(u64, u64)>, String> {
    text.split(',')
        .map(|part| {
            let (first, last) = part
                .trim()
                .split_once('-')
                .unwrap_or((part.trim(), part.trim()));
            match (first.trim().parse(), last.trim().parse()) {
                (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
                _ => Err(format!("{part:?} is no block or range of blocks")),
            }
        })
        .collect()
}
