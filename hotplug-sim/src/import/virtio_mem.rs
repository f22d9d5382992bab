//! Messages of the virtio-mem driver: `virtio_mem virtio0: plugged size: 0x0`.
//!
//! Sizes are hexadecimal. The sizes that do not change are of the device; a requested size
//! is an event, each time that it is shown. Debug messages tell each plug, add, remove and
//! unplug; that a block was added belongs to its plug, and so does what then goes wrong.

use super::draft::Draft;
use super::event::{Event, EventKind};
use super::format::Format;
use super::line::Line;
use super::model::DeviceKind;
use super::oom_report::AllocFailure;
use super::outcome::Outcome;
use super::span::hex_range;
use super::text::{self, lossy, strip};

/// What the lines before have told.
#[derive(Clone, Debug, Default)]
pub struct VirtioMem {
    plug: Option<Plug>,
    /// The event of the last removal.
    removal: Option<usize>,
}

/// The plug being done.
#[derive(Clone, Debug)]
struct Plug {
    index: usize,
    device: String,
    start: u64,
    failed: bool,
}

impl VirtioMem {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let body = line.body();
        if let Some(outcome) = self.out_of_memory(body, line, draft) {
            return outcome;
        }
        let Some((device, says)) = strip(body, "virtio_mem ").and_then(|rest| {
            let colon = text::find(rest, ":")?;
            Some((&rest[..colon], rest[colon + 1..].trim_ascii()))
        }) else {
            return Outcome::No;
        };
        if device.is_empty() || device.contains(&b' ') {
            return Outcome::No;
        }
        let device = lossy(device);
        let outcome = match size_message(says, line, &device, draft) {
            Some(outcome) => outcome,
            None => self.deed(says, line, &device, draft),
        };
        if outcome == Outcome::Yes {
            draft.device(&device).kind = Some(DeviceKind::VirtioMem);
            draft.met(Format::VirtioMem);
        }
        outcome
    }

    /// A memory map that could not be allocated is why the block being plugged was not.
    fn out_of_memory(
        &mut self,
        body: &[u8],
        line: &Line<'_>,
        draft: &mut Draft,
    ) -> Option<Outcome> {
        let plug = self.plug.as_mut()?;
        let failure = AllocFailure::read(body)?;
        if failure.is_open(body) && line.wraps {
            return Some(Outcome::More);
        }
        let mut event = failure.event(line);
        event.kind = EventKind::PlugFailed;
        event.time = None;
        draft.events.amend(plug.index, event);
        plug.failed = true;
        Some(Outcome::Yes)
    }

    /// Plug, add, remove, unplug, and their failures.
    fn deed(&mut self, says: &[u8], line: &Line<'_>, device: &str, draft: &mut Draft) -> Outcome {
        const DEEDS: [(&str, &str); 6] = [
            ("plugging memory:", "plug"),
            ("unplugging memory:", "unplug"),
            ("adding memory:", "add"),
            ("removing memory:", "remove"),
            ("offlining and removing memory:", "remove"),
            ("offline and remove memory:", "remove"),
        ];
        if let Some((rest, deed)) = DEEDS
            .iter()
            .find_map(|(head, deed)| strip(says, head).map(|rest| (rest, *deed)))
        {
            let rest = rest.trim_ascii();
            let Some((start, end, _)) = hex_range(rest).filter(|(.., tail)| tail.is_empty()) else {
                return line.unfinished().unwrap_or(Outcome::No);
            };
            // A last line without a line feed may lack digits of the end.
            if line.cut {
                draft.cut(line.number, "the input ends in a range");
                return Outcome::Empty;
            }
            self.done(deed, start, end, line, device, draft);
            return Outcome::Yes;
        }
        const FAILURES: [(&str, &str); 5] = [
            ("adding memory failed:", "plug"),
            ("plugging memory failed:", "plug"),
            ("removing memory failed:", "remove"),
            ("offlining and removing memory failed:", "remove"),
            ("unplugging memory failed:", "remove"),
        ];
        if let Some((head, rest, deed)) = FAILURES
            .iter()
            .find_map(|(head, deed)| strip(says, head).map(|rest| (*head, rest, *deed)))
        {
            let Some(ret) = text::counter(rest.trim_ascii()) else {
                return Outcome::No;
            };
            let reason = head.trim_end_matches(':');
            self.failed(deed, reason, ret.value, line, device, draft);
            return Outcome::Yes;
        }
        const REMARKS: [&str; 12] = [
            "The alignment of the physical",
            "Some memory is not addressable",
            "Some device memory is not addressable",
            "requested size",
            "unplugging all memory",
            "unplug all",
            "memory was plugged",
            "big block",
            "plugging memory temporarily",
            "memory onlining",
            "nid",
            "config",
        ];
        if REMARKS.iter().any(|head| says.starts_with(head.as_bytes())) {
            return Outcome::Empty;
        }
        if let Some(ret) = strip(says, "unknown error, marking device broken:") {
            draft.warn(
                line.number,
                format!(
                    "{device} is marked broken: error {}",
                    lossy(ret.trim_ascii())
                ),
            );
            return Outcome::Yes;
        }
        Outcome::No
    }

    fn done(
        &mut self,
        deed: &str,
        start: u64,
        end: u64,
        line: &Line<'_>,
        device: &str,
        draft: &mut Draft,
    ) {
        let same = self
            .plug
            .as_ref()
            .filter(|plug| plug.device == device && plug.start == start);
        let kind = match (deed, same) {
            // The block was plugged in the line before, and is now given to the kernel.
            ("add", Some(_)) => return,
            // Rolled back: the failed plug says it.
            ("unplug", Some(plug)) if plug.failed => return,
            ("plug" | "add", _) => EventKind::Plug,
            ("unplug", _) => EventKind::Unplug,
            _ => EventKind::Remove,
        };
        let mut event = Event::new(kind, line.number);
        event.time = line.time;
        event.more.device = Some(device);
        event.more.start_byte = Some(start);
        event.more.end_byte = Some(end);
        let index = draft.events.push(event);
        match kind {
            EventKind::Plug => {
                self.plug = Some(Plug {
                    index,
                    device: device.to_string(),
                    start,
                    failed: false,
                })
            }
            EventKind::Remove => self.removal = Some(index),
            _ => self.plug = None,
        }
    }

    fn failed(
        &mut self,
        deed: &str,
        reason: &str,
        ret: i64,
        line: &Line<'_>,
        device: &str,
        draft: &mut Draft,
    ) {
        let (kind, attempt) = if deed == "plug" {
            let known = self
                .plug
                .as_mut()
                .filter(|plug| plug.device == device)
                .map(|plug| {
                    let again = plug.failed;
                    plug.failed = true;
                    (plug.index, again)
                });
            (EventKind::PlugFailed, known)
        } else {
            (
                EventKind::RemoveFailed,
                self.removal.take().map(|index| (index, false)),
            )
        };
        let mut event = Event::new(kind, line.number);
        event.more.ret = Some(ret);
        match attempt {
            Some((index, told)) => {
                // What failed first, the memory map, says more than that adding failed.
                event.more.reason = (!told).then_some(reason);
                draft.events.amend(index, event);
            }
            None => {
                event.time = line.time;
                event.more.device = Some(device);
                event.more.reason = Some(reason);
                draft.events.push(event);
            }
        }
    }
}

/// `device block size: 0x200000` and the others that have a value.
fn size_message(says: &[u8], line: &Line<'_>, device: &str, draft: &mut Draft) -> Option<Outcome> {
    const KEYS: [&str; 10] = [
        "start address",
        "region size",
        "device block size",
        "memory block size",
        "subblock size",
        "big block size",
        "plugged size",
        "requested size",
        "usable region size",
        "nid",
    ];
    let colon = text::find(says, ":")?;
    let key = KEYS
        .into_iter()
        .find(|key| key.as_bytes() == &says[..colon])?;
    let word = says[colon + 1..].trim_ascii();
    if word.is_empty() {
        return line.unfinished();
    }
    let value = text::number(word)?;
    if line.cut {
        draft.cut(
            line.number,
            format!("the input may end in the value of {key}"),
        );
        return Some(Outcome::Empty);
    }
    let entry = draft.device(device);
    match key {
        "start address" => entry.address = Some(value),
        "region size" => entry.size_bytes = Some(value),
        "device block size" => entry.block_bytes = Some(value),
        "subblock size" | "big block size" => entry.subblock_bytes = Some(value),
        "plugged size" => entry.plugged_bytes = Some(value),
        "nid" => entry.node = u32::try_from(value).ok(),
        "memory block size" => draft.section_size(line.number, value),
        "requested size" => {
            entry.requested_bytes = Some(value);
            let mut event = Event::new(EventKind::Request, line.number);
            event.time = line.time;
            event.more.device = Some(device);
            event.more.requested_bytes = Some(value);
            event.more.plugged_bytes = entry.plugged_bytes;
            draft.events.push(event);
        }
        _ => {}
    }
    Some(Outcome::Yes)
}
