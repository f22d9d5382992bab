//! Replays what a log says of memory blocks and devices, and compares each outcome.
//!
//! What holds pages in a block is not in a log, but for the page that a failure names: that one
//! is pinned, everything else is free. So an offline that the kernel refused for a reason that
//! the log does not give goes well here, which is said in its row, and undone.

use std::collections::BTreeSet;

use hugepool_mm::{Geometry, SectionState};

use super::blocks::{Blocks, Key, Refusal};
use crate::import::event::{Event, EventKind};
use crate::import::model::Import;

/// One thing that the log says, done again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The line of the log.
    pub line: u64,
    /// What was tried.
    pub what: String,
    /// How the log says that it went.
    pub log: String,
    /// How it went here.
    pub ours: String,
    /// Whether that is the same outcome; `None` where the log gives none.
    pub is_same: Option<bool>,
}

/// What a replay came to.
#[derive(Clone, Debug)]
pub struct ReplayedLog {
    /// Sizes of pages, pageblocks, memory blocks.
    pub geometry: Geometry,
    /// All of it, in order.
    pub rows: Vec<Row>,
    /// Pages that the log says would not go.
    pub nr_pinned: u64,
    /// Pages managed at the end.
    pub managed: u64,
    /// After which line of the log how many pages were managed.
    pub managed_after: Vec<(u64, u64)>,
}

/// Kinds of events that are replayed here.
pub const KINDS: [EventKind; 13] = [
    EventKind::Online,
    EventKind::OnlineFailed,
    EventKind::Offline,
    EventKind::OfflineFailed,
    EventKind::Remove,
    EventKind::RemoveFailed,
    EventKind::MigrateFailed,
    EventKind::Plug,
    EventKind::Unplug,
    EventKind::PlugFailed,
    EventKind::Request,
    EventKind::AddCapacity,
    EventKind::ReleaseCapacity,
];

/// The most memory blocks of one event: more than that is no log of one machine.
const MOST_BLOCKS: u64 = 1 << 16;

/// Replays.
///
/// # Errors
/// There are more memory blocks than zones can hold, or a check of a zone failed.
pub fn replay(import: &Import, geometry: Geometry) -> Result<ReplayedLog, String> {
    let mut replay = Replay::new(import, geometry)?;
    let mut rows = Vec::new();
    let mut managed_after = Vec::new();
    for event in import
        .events
        .iter()
        .filter(|event| KINDS.contains(&event.kind))
    {
        replay.one(&event, &mut rows);
        replay.blocks.verify()?;
        managed_after.push((event.line, replay.blocks.managed()));
    }
    Ok(ReplayedLog {
        geometry,
        rows,
        nr_pinned: replay.nr_pinned,
        managed: replay.blocks.managed(),
        managed_after,
    })
}

struct Replay<'a> {
    import: &'a Import,
    blocks: Blocks,
    /// Blocks that some line names, so that no line without a name means them.
    named: BTreeSet<Key>,
    nr_pinned: u64,
}

impl<'a> Replay<'a> {
    fn new(import: &'a Import, geometry: Geometry) -> Result<Replay<'a>, String> {
        let section = geometry.section_bytes();
        let devices = import.devices.iter().filter_map(|device| {
            device
                .size_bytes
                .or(device.requested_bytes)
                .or(device.plugged_bytes)
        });
        let of_devices: u64 = devices
            .map(|bytes| bytes.div_ceil(section))
            .fold(0, u64::saturating_add);
        let mut replay = Replay {
            import,
            blocks: Blocks::new(geometry, 1)?,
            named: BTreeSet::new(),
            nr_pinned: 0,
        };
        let (mut most, mut pins) = (of_devices, Vec::new());
        for event in import
            .events
            .iter()
            .filter(|event| KINDS.contains(&event.kind))
        {
            let keys = replay.named_blocks(&event);
            let bytes = event.more.requested_bytes.unwrap_or(0);
            most = most.saturating_add(1 + keys.len() as u64 + bytes.div_ceil(section));
            let is_refusal = matches!(
                event.kind,
                EventKind::MigrateFailed | EventKind::OfflineFailed
            );
            // A failure that gives a range names no page in it.
            let page = event
                .pfn
                .filter(|_| is_refusal && event.more.end_pfn.is_none());
            if let (Some(pfn), Some(key)) = (page, keys.first()) {
                pins.push((key.clone(), pfn % u64::from(geometry.section_pages())));
            }
            replay.named.extend(keys);
        }
        let most = u32::try_from(most.min(MOST_BLOCKS)).unwrap_or(u32::MAX);
        replay.blocks = Blocks::new(geometry, most)?;
        for (key, page) in pins.iter().collect::<BTreeSet<_>>() {
            replay.blocks.pin(key.clone(), *page);
            replay.nr_pinned += 1;
        }
        Ok(replay)
    }

    /// The blocks that an event names: by number, by address, by page.
    fn named_blocks(&self, event: &Event<'_>) -> Vec<Key> {
        let geometry = self.blocks.geometry();
        let (section, page) = (geometry.section_bytes(), geometry.page_bytes());
        let more = &event.more;
        let space = match event.kind {
            EventKind::AddCapacity | EventKind::ReleaseCapacity => {
                let region = more.region.unwrap_or(0);
                Some(format!("{}/{region}", more.device.unwrap_or("cxl")))
            }
            _ => None,
        };
        if let Some(block) = more.block {
            return vec![(space, block)];
        }
        let start = more
            .start_byte
            .or(event.pfn.and_then(|pfn| pfn.checked_mul(page)));
        let Some(start) = start else {
            return Vec::new();
        };
        let pages = more.nr_pages.unwrap_or(1).saturating_mul(page);
        let end = more.end_byte.unwrap_or(start.saturating_add(pages));
        let (first, end) = (start / section, end.div_ceil(section));
        let end = end.min(first.saturating_add(MOST_BLOCKS)).max(first + 1);
        (first..end).map(|block| (space.clone(), block)).collect()
    }

    /// The blocks of an event; one that is not named is the highest that no line names.
    fn blocks_of(&self, event: &Event<'_>) -> Vec<Key> {
        let named = self.named_blocks(event);
        if !named.is_empty() {
            return named;
        }
        match self.blocks.highest_online(|key| self.named.contains(key)) {
            Some(key) => vec![key],
            None => vec![(Some("not named".to_owned()), event.line)],
        }
    }

    fn one(&mut self, event: &Event<'_>, rows: &mut Vec<Row>) {
        match event.kind {
            EventKind::Online | EventKind::OnlineFailed => self.each(event, rows, Self::online),
            EventKind::Offline | EventKind::OfflineFailed => self.each(event, rows, Self::offline),
            EventKind::MigrateFailed => self.each(event, rows, Self::offline),
            EventKind::Remove | EventKind::RemoveFailed => self.each(event, rows, Self::remove),
            EventKind::AddCapacity => self.each(event, rows, Self::add_online),
            EventKind::ReleaseCapacity => self.each(event, rows, Self::release),
            _ => self.device(event, rows),
        }
    }

    fn each(
        &mut self,
        event: &Event<'_>,
        rows: &mut Vec<Row>,
        act: fn(&mut Self, &Event<'_>, &Key) -> Result<(), Refusal>,
    ) {
        for key in self.blocks_of(event) {
            let ours = act(self, event, &key);
            rows.push(self.compare(event, &key, ours.as_ref().err()));
            if let (Ok(()), false) = (&ours, went_well(event.kind)) {
                self.undo(event.kind, &key);
            }
        }
    }

    fn compare(&self, event: &Event<'_>, key: &Key, refused: Option<&Refusal>) -> Row {
        let is_well = went_well(event.kind);
        let has_outcome = !matches!(
            event.kind,
            EventKind::AddCapacity | EventKind::ReleaseCapacity
        );
        let reason = event.more.reason;
        let log = match (has_outcome, is_well, reason) {
            (false, ..) => "not said".to_owned(),
            (_, true, _) => "done".to_owned(),
            (_, false, Some(reason)) => format!("refused: {reason}"),
            (_, false, None) => "refused".to_owned(),
        };
        let ours = match refused {
            None if has_outcome && !is_well => {
                "done, and undone: the log names no page that stood in the way".to_owned()
            }
            None => "done".to_owned(),
            Some(refusal) => format!("refused: {refusal}"),
        };
        Row {
            line: event.line,
            what: format!("{} {}", verb(event.kind), name(key)),
            log,
            ours,
            is_same: has_outcome.then_some(refused.is_none() == is_well),
        }
    }

    /// A block that the log names first here was there, and in the state that the verb needs.
    fn appear(&mut self, key: &Key, state: SectionState) -> Result<(), Refusal> {
        if self.blocks.state(key) == SectionState::Absent {
            self.blocks.add(key)?;
        }
        match (self.blocks.state(key), state) {
            (SectionState::Offline, SectionState::Online) => self.blocks.online(key, false),
            (SectionState::Online, SectionState::Offline) => self.blocks.offline(key),
            _ => Ok(()),
        }
    }

    fn online(&mut self, event: &Event<'_>, key: &Key) -> Result<(), Refusal> {
        if self.blocks.state(key) == SectionState::Absent {
            self.blocks.add(key)?;
        }
        self.blocks.online(key, event.more.policy == Some("kernel"))
    }

    fn offline(&mut self, event: &Event<'_>, key: &Key) -> Result<(), Refusal> {
        self.appear(key, SectionState::Online)?;
        if event
            .more
            .reason
            .is_some_and(|reason| reason.contains("signal"))
        {
            self.blocks.break_off(key)?;
            return Err(Refusal::BrokenOff);
        }
        self.blocks.offline(key)
    }

    fn remove(&mut self, _: &Event<'_>, key: &Key) -> Result<(), Refusal> {
        self.appear(key, SectionState::Offline)?;
        self.blocks.remove(key)
    }

    fn add_online(&mut self, _: &Event<'_>, key: &Key) -> Result<(), Refusal> {
        self.blocks.add(key)?;
        self.blocks.online(key, false)
    }

    fn release(&mut self, _: &Event<'_>, key: &Key) -> Result<(), Refusal> {
        self.appear(key, SectionState::Online)?;
        self.blocks.offline(key)?;
        self.blocks.remove(key)
    }

    fn undo(&mut self, kind: EventKind, key: &Key) {
        let undone = match kind {
            EventKind::OfflineFailed | EventKind::MigrateFailed => self.blocks.online(key, false),
            EventKind::OnlineFailed => self.blocks.offline(key),
            EventKind::RemoveFailed => self.blocks.add(key),
            _ => Ok(()),
        };
        debug_assert_eq!(undone, Ok(()), "what was just done can be undone");
    }

    /// A device comes, goes, or is asked for a size.
    fn device(&mut self, event: &Event<'_>, rows: &mut Vec<Row>) {
        let name = event.more.device.unwrap_or("device");
        let known = self.import.devices.iter().find(|device| device.id == name);
        let section = self.blocks.geometry().section_bytes();
        let before = self.blocks.of_device(name).len() as u64;
        let size = known.and_then(|device| device.size_bytes.or(device.requested_bytes));
        let range = event
            .more
            .start_byte
            .zip(event.more.end_byte)
            .map(|(start, end)| end.saturating_sub(start));
        let wanted = match event.kind {
            EventKind::Unplug => 0,
            EventKind::Request => event.more.requested_bytes.unwrap_or(0),
            // It failed on the way to a size that was asked for before.
            EventKind::PlugFailed => (before * section).max(range.or(size).unwrap_or(section)),
            _ => before * section + range.or(size).unwrap_or(section),
        };
        let ours = self.resize(name, wanted / section);
        let after = self.blocks.of_device(name).len() as u64;
        let (log, is_same) = match event.kind {
            EventKind::PlugFailed => {
                let reason = event.more.reason.unwrap_or("no reason given");
                (format!("refused: {reason}"), Some(ours.is_err()))
            }
            EventKind::Request => match event.more.plugged_bytes {
                Some(bytes) => (
                    format!("{} MiB plugged then", bytes >> 20),
                    Some(bytes / section == before),
                ),
                None => ("not said".to_owned(), None),
            },
            _ => ("done".to_owned(), Some(ours.is_ok())),
        };
        let mut outcome = format!(
            "{} MiB before, {} MiB after",
            (before * section) >> 20,
            (after * section) >> 20
        );
        if let Err(refusal) = &ours {
            outcome.push_str(&format!(", refused: {refusal}"));
        } else if event.kind == EventKind::PlugFailed {
            let bytes = self.blocks.geometry().section_pages() / 8;
            outcome.push_str(&format!(
                ": a memory block costs {bytes} bytes of bits here, not a record for each page"
            ));
        }
        rows.push(Row {
            line: event.line,
            what: format!("{} {name}", verb(event.kind)),
            log,
            ours: outcome,
            is_same,
        });
    }

    /// Plugs a device from below and unplugs it from above, in whole memory blocks.
    fn resize(&mut self, device: &str, nr_blocks: u64) -> Result<(), Refusal> {
        let nr_blocks = nr_blocks.min(MOST_BLOCKS);
        let mut there = self.blocks.of_device(device);
        while there.len() as u64 > nr_blocks {
            let Some(key) = there.pop() else { break };
            if self.blocks.state(&key) == SectionState::Online {
                self.blocks.offline(&key)?;
            }
            self.blocks.remove(&key)?;
        }
        for at in 0..nr_blocks {
            let key = (Some(device.to_owned()), at);
            if self.blocks.state(&key) == SectionState::Absent {
                self.blocks.add(&key)?;
                self.blocks.online(&key, false)?;
            }
        }
        Ok(())
    }
}

fn went_well(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::OnlineFailed
            | EventKind::OfflineFailed
            | EventKind::RemoveFailed
            | EventKind::MigrateFailed
            | EventKind::PlugFailed
    )
}

fn verb(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Online | EventKind::OnlineFailed => "online",
        EventKind::Offline | EventKind::OfflineFailed => "offline",
        EventKind::Remove | EventKind::RemoveFailed => "remove",
        EventKind::MigrateFailed => "empty",
        EventKind::Unplug => "unplug",
        EventKind::Request => "request",
        EventKind::AddCapacity => "add",
        EventKind::ReleaseCapacity => "release",
        _ => "plug",
    }
}

fn name((device, block): &Key) -> String {
    match device.as_deref() {
        None => format!("block {block}"),
        Some("not named") => "a block".to_owned(),
        Some(device) => format!("{device} block {block}"),
    }
}
