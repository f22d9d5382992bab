//! What the parsers write into: one source, in the units in which it prints.
//!
//! A report in kB cannot be turned into pages before the page size is known, and that may
//! stand at its end or in another file. So amounts keep their unit here ([`Amount`]) and
//! become pages in [`finish`](super::finish). Zones that are shown again begin the next
//! snapshot ([`Zones::show`]).

use std::collections::HashMap;

use super::boot::Boot;
use super::events::Events;
use super::format::Format;
use super::model::{Device, Diagnostic, Range, Section, SectionState, Severity, Totals};
use super::page_size::PageSizes;
use super::text::Counter;

/// No machine has so many pages or kibibytes, nor counts so many events while it is up.
const MOST: i64 = 1 << 44;

/// A count in the unit of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Pages.
    Pages(i64),
    /// Kibibytes, as `%lukB` prints them.
    Kib(i64),
}

impl Amount {
    /// In pages, if the page size is known where it is needed.
    pub fn pages(self, page_size: Option<u64>) -> Option<i64> {
        match self {
            Amount::Pages(pages) => Some(pages),
            Amount::Kib(kib) => {
                let per_page = i64::try_from(page_size? / 1024)
                    .ok()
                    .filter(|kib| *kib > 0)?;
                Some(kib / per_page)
            }
        }
    }

    /// The number, whatever its unit.
    pub fn number(self) -> i64 {
        match self {
            Amount::Pages(number) | Amount::Kib(number) => number,
        }
    }
}

/// What a source has shown of a zone, so that showing it again can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Aspect {
    /// A heading of zoneinfo.
    Heading = 1,
    /// A line of buddyinfo.
    Buddy = 2,
    /// A row of pageblock counts.
    Pageblocks = 4,
    /// A `free:` line of a report.
    Report = 8,
    /// A list of free blocks in a report.
    List = 16,
}

/// A zone as a source shows it.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct ZoneDraft {
    pub name: String,
    /// The line that heads it.
    pub line: u64,
    pub seen: u8,
    pub start_pfn: Option<u64>,
    pub spanned: Option<Amount>,
    pub present: Option<Amount>,
    pub managed: Option<Amount>,
    pub free: Option<Amount>,
    pub free_cma: Option<Amount>,
    pub reserved_highatomic: Option<Amount>,
    pub min: Option<Amount>,
    pub low: Option<Amount>,
    pub high: Option<Amount>,
    pub boost: Option<Amount>,
    pub protection: Option<Vec<i64>>,
    /// From buddyinfo or a report.
    pub free_blocks: Option<Vec<Option<i64>>>,
    /// The list stops before its last order, so it has no sum.
    pub list_cut: bool,
    pub letters: Option<Vec<String>>,
    /// From pagetypeinfo: blocks by order, for each type.
    pub by_type: Vec<(String, Vec<Option<i64>>)>,
    /// The input ended before the last type.
    pub types_cut: bool,
    pub pageblocks: Vec<(String, i64)>,
    pub pcp_count: Option<i64>,
    /// The same sum as a report has it, in kB.
    pub pcp_kib: Option<i64>,
}

/// A node as a source shows it.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct NodeDraft {
    pub node: u32,
    pub zones: Vec<ZoneDraft>,
}

/// The zones of a source: those shown now, and those that were shown before.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    /// Complete snapshots, with the line that began each.
    pub before: Vec<(u64, Vec<NodeDraft>)>,
    /// The one being read.
    pub now: Vec<NodeDraft>,
    /// The line that began it.
    pub line: u64,
}

impl Zones {
    /// The zone, made if it is not there yet.
    pub fn zone(&mut self, node: u32, name: &str, line: u64) -> &mut ZoneDraft {
        let at = match self.now.iter().position(|other| other.node == node) {
            Some(at) => at,
            None => {
                if self.now.is_empty() {
                    self.line = line;
                }
                self.now.push(NodeDraft {
                    node,
                    zones: Vec::new(),
                });
                self.now.len() - 1
            }
        };
        let zones = &mut self.now[at].zones;
        let at = match zones.iter().position(|other| other.name == name) {
            Some(at) => at,
            None => {
                zones.push(ZoneDraft {
                    name: name.to_string(),
                    line,
                    ..ZoneDraft::default()
                });
                zones.len() - 1
            }
        };
        &mut zones[at]
    }

    /// The zone, if it has been shown in this snapshot.
    pub fn find(&self, node: u32, name: &str) -> Option<&ZoneDraft> {
        let node = self.now.iter().find(|other| other.node == node)?;
        node.zones.iter().find(|other| other.name == name)
    }

    /// The zone, of which `aspect` is about to be read: the next snapshot begins if it was shown already.
    pub fn show(&mut self, node: u32, name: &str, aspect: Aspect, line: u64) -> &mut ZoneDraft {
        if self
            .find(node, name)
            .is_some_and(|zone| zone.seen & aspect as u8 != 0)
        {
            self.next_snapshot();
        }
        let zone = self.zone(node, name, line);
        zone.seen |= aspect as u8;
        zone
    }

    /// Ends the snapshot being read.
    pub fn next_snapshot(&mut self) {
        if !self.now.is_empty() {
            self.before.push((self.line, std::mem::take(&mut self.now)));
        }
    }
}

/// Everything that one source says.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Draft {
    /// The name of the file, for messages.
    pub source: String,
    pub formats: Vec<Format>,
    pub page_sizes: PageSizes,
    pub pageblock_order: Option<u32>,
    pub zones: Zones,
    pub boot: Boot,
    pub sections: Vec<Section>,
    section_index: HashMap<u64, usize>,
    pub section_bytes: Option<u64>,
    pub ranges: Vec<Range>,
    pub devices: Vec<Device>,
    pub events: Events,
    /// Totals as printed, in pages where they are pages.
    pub totals: Totals,
    /// Totals as printed in kB: available, all there is, reserved.
    pub totals_kib: [Option<i64>; 3],
    /// The line of the printed total of pages.
    pub total_line: u64,
    pub diagnostics: Vec<Diagnostic>,
    pub truncated: bool,
}

impl Draft {
    /// Remembers that text of this kind was understood.
    pub fn met(&mut self, format: Format) {
        if !self.formats.contains(&format) {
            self.formats.push(format);
        }
    }

    fn diagnose(&mut self, line: u64, severity: Severity, what: String) {
        self.diagnostics.push(Diagnostic {
            line,
            what,
            severity,
        });
    }

    /// Something worth knowing that is nobody's fault.
    pub fn note(&mut self, line: u64, what: impl Into<String>) {
        self.diagnose(line, Severity::Note, what.into());
    }

    /// Something that was not understood or can hardly be right.
    pub fn warn(&mut self, line: u64, what: impl Into<String>) {
        self.diagnose(line, Severity::Warning, what.into());
    }

    /// Something that cannot be.
    pub fn error(&mut self, line: u64, what: impl Into<String>) {
        self.diagnose(line, Severity::Error, what.into());
    }

    /// A line, or the input, stops in the middle.
    pub fn cut(&mut self, line: u64, what: impl Into<String>) {
        self.truncated = true;
        self.error(line, what);
    }

    /// Says it if a counter had wrapped, and gives its value.
    pub fn value(&mut self, line: u64, field: &str, counter: Counter) -> i64 {
        if counter.value > MOST {
            let value = counter.value;
            self.warn(
                line,
                format!("{field} is {value}, which can hardly be right"),
            );
        }
        if counter.wrapped {
            self.error(
                line,
                format!("{field} is wrapped below zero: {}", counter.value),
            );
        }
        counter.value
    }

    /// The device of that name, made if it is not there yet.
    pub fn device(&mut self, id: &str) -> &mut Device {
        let at = match self.devices.iter().position(|device| device.id == id) {
            Some(at) => at,
            None => {
                self.devices.push(Device::new(id));
                self.devices.len() - 1
            }
        };
        &mut self.devices[at]
    }

    /// The memory block of that number, made if it is not there yet.
    pub fn section(&mut self, id: u64) -> &mut Section {
        // A machine of 12 TiB has a hundred thousand of them.
        let at = *self.section_index.entry(id).or_insert_with(|| {
            self.sections.push(Section {
                id,
                ..Section::default()
            });
            self.sections.len() - 1
        });
        &mut self.sections[at]
    }

    /// Remembers the state of a memory block that an event names.
    pub fn section_is(&mut self, id: Option<u64>, state: SectionState) {
        if let Some(id) = id {
            self.section(id).state = Some(state);
        }
    }

    /// The size of a memory block, stated on a line; two sizes are a contradiction.
    pub fn section_size(&mut self, line: u64, bytes: u64) {
        match self.section_bytes {
            Some(before) if before != bytes => {
                self.warn(
                    line,
                    format!("memory block size is {bytes} bytes here, {before} bytes before"),
                );
            }
            _ => self.section_bytes = Some(bytes),
        }
    }
}
