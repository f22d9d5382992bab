//! CXL dynamic capacity, as a QEMU machine protocol command adds and releases it.
//!
//! Each extent is an event. What was added and not released is what the device has. The
//! early form of the commands (`region-id`, `dpa`) counted in units that its text does not
//! state; extents that are no whole pages in bytes are refused rather than guessed.

use super::draft::Draft;
use super::event::{Event, EventKind};
use super::format::Format;
use super::json::Json;
use super::model::DeviceKind;
use super::text;

/// No extent is smaller than a page, whatever its size.
const GRAIN: u64 = 4096;

/// Commands in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct Cxl {
    /// The command whose answer has not been seen.
    pending: Option<Command>,
    /// What each device has.
    held: Vec<Held>,
}

/// A range that was added and not released.
#[derive(Clone, Debug)]
struct Held {
    device: String,
    region: u64,
    start: u64,
    end: u64,
    tag: Option<String>,
}

#[derive(Clone, Debug)]
struct Command {
    line: u64,
    add: bool,
    device: String,
    region: Option<u64>,
    tag: Option<String>,
    extents: Vec<Extent>,
}

#[derive(Clone, Debug)]
struct Extent {
    line: u64,
    start: Option<u64>,
    len: Option<u64>,
    tag: Option<String>,
    early: bool,
}

impl Cxl {
    /// Reads a document; `false` if it is no such command. An error that follows a command undoes it.
    pub fn json(&mut self, value: &Json, draft: &mut Draft) -> bool {
        if let Some(error) = value.get("error") {
            let Some(command) = self.pending.take() else {
                return false;
            };
            let why = error
                .get("desc")
                .and_then(Json::text)
                .unwrap_or("no reason given");
            draft.warn(
                value.line(),
                format!("the command of line {} was refused: {why}", command.line),
            );
            return true;
        }
        let command = Command::read(value);
        if command.is_some() || value.get("execute").is_some() || value.get("return").is_some() {
            self.settle(draft);
        }
        let Some(command) = command else { return false };
        draft.met(Format::CxlDcd);
        self.pending = Some(command);
        true
    }

    /// Nothing refused the last command: it happened.
    pub fn settle(&mut self, draft: &mut Draft) {
        let Some(command) = self.pending.take() else {
            return;
        };
        let mut pieces: Vec<(u64, Held)> = Vec::new();
        for extent in &command.extents {
            if let Some((start, end)) = extent.bytes(draft) {
                let tag = extent.tag.clone().or(command.tag.clone());
                pieces.push((extent.line, command.piece(start, end, tag)));
            }
        }
        if command.by_tag() {
            let tagged = |held: &&Held| held.device == command.device && held.tag == command.tag;
            pieces.extend(
                self.held
                    .iter()
                    .filter(tagged)
                    .map(|held| (command.line, held.clone())),
            );
        }
        for (line, piece) in pieces {
            let kind = if command.add {
                EventKind::AddCapacity
            } else {
                EventKind::ReleaseCapacity
            };
            let mut event = Event::new(kind, line);
            event.more.device = Some(&piece.device);
            event.more.region = command.region.or(command.by_tag().then_some(piece.region));
            event.more.start_byte = Some(piece.start);
            event.more.end_byte = Some(piece.end);
            event.more.tag = piece.tag.as_deref();
            draft.events.push(event);
            let gone = self.cut_out(&piece);
            let bytes = piece.end - piece.start;
            if command.add {
                if gone > 0 {
                    draft.warn(
                        line,
                        format!("{gone} of the {bytes} bytes added were there already"),
                    );
                }
                self.held.push(piece);
            } else if gone < bytes {
                let missing = bytes - gone;
                draft.warn(
                    line,
                    format!("{missing} of the {bytes} bytes released were not there"),
                );
            }
            let of_device = self
                .held
                .iter()
                .filter(|held| held.device == command.device);
            let held = text::sum(of_device.map(|held| held.end - held.start));
            let device = draft.device(&command.device);
            device.kind = Some(DeviceKind::Cxl);
            device.plugged_bytes = Some(held);
        }
    }

    /// Takes a range out of what is held, and says how many bytes that were.
    fn cut_out(&mut self, piece: &Held) -> u64 {
        let mut gone = 0;
        let mut left = Vec::with_capacity(self.held.len());
        for held in self.held.drain(..) {
            let same = held.device == piece.device && held.region == piece.region;
            if !same || held.end <= piece.start || piece.end <= held.start {
                left.push(held);
                continue;
            }
            gone += held.end.min(piece.end) - held.start.max(piece.start);
            if held.start < piece.start {
                left.push(Held {
                    end: piece.start,
                    ..held.clone()
                });
            }
            if piece.end < held.end {
                left.push(Held {
                    start: piece.end,
                    ..held
                });
            }
        }
        self.held = left;
        gone
    }
}

impl Command {
    /// A release that names its extents by their tag.
    fn by_tag(&self) -> bool {
        !self.add && self.extents.is_empty() && self.tag.is_some()
    }

    fn piece(&self, start: u64, end: u64, tag: Option<String>) -> Held {
        let (device, region) = (self.device.clone(), self.region.unwrap_or(0));
        Held {
            device,
            region,
            start,
            end,
            tag,
        }
    }

    fn read(value: &Json) -> Option<Command> {
        let add = match value.get("execute")?.text()? {
            "cxl-add-dynamic-capacity" | "cxl-add-dynamic-capacity-event" => true,
            "cxl-release-dynamic-capacity" | "cxl-release-dynamic-capacity-event" => false,
            _ => return None,
        };
        let arguments = value.get("arguments")?;
        let path = arguments.get("path").and_then(Json::text).unwrap_or("cxl0");
        let device = path.rsplit('/').next().unwrap_or(path).to_string();
        let region = arguments
            .get("region")
            .or_else(|| arguments.get("region-id"))
            .or_else(|| arguments.get("rid"))
            .and_then(Json::number);
        let tag = arguments
            .get("tag")
            .and_then(Json::scalar)
            .filter(|tag| !tag.is_empty());
        let extents = arguments
            .get("extents")
            .map_or(&[][..], Json::items)
            .iter()
            .map(Extent::read)
            .collect();
        Some(Command {
            line: value.line(),
            add,
            device,
            region,
            tag,
            extents,
        })
    }
}

impl Extent {
    fn read(value: &Json) -> Extent {
        let get = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| value.get(name))
                .and_then(Json::number)
        };
        Extent {
            line: value.line(),
            start: get(&["offset", "dpa", "start", "start-dpa", "start_dpa"]),
            len: get(&["len", "length"]),
            tag: value
                .get("tag")
                .and_then(Json::scalar)
                .filter(|tag| !tag.is_empty()),
            early: value.get("offset").is_none(),
        }
    }

    /// First byte and one past the last, if they are whole pages.
    fn bytes(&self, draft: &mut Draft) -> Option<(u64, u64)> {
        let (Some(start), Some(len)) = (self.start, self.len) else {
            draft.error(self.line, "an extent lacks its offset or its length");
            return None;
        };
        if len == 0 || !start.is_multiple_of(GRAIN) || !len.is_multiple_of(GRAIN) {
            let form = if self.early {
                "; in the early form (dpa, region-id) the unit is not stated, it may be MiB"
            } else {
                ""
            };
            draft.error(self.line, format!("an extent of len {len} at {start} is not aligned to pages if these are bytes{form}: refused"));
            return None;
        }
        match start.checked_add(len) {
            Some(end) => Some((start, end)),
            None => {
                draft.error(self.line, "an extent ends beyond all addresses");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::read;

    #[test]
    fn a_refused_command_did_not_happen() {
        let add = r#"{ "execute": "cxl-add-dynamic-capacity", "arguments": { "path": "/machine/peripheral/dcd0", "region": 0, "tag": "t1", "extents": [ { "offset": 0, "len": 134217728 } ] } }"#;
        let text = format!(
            "{add}\n{{ \"return\": {{}} }}\n{add}\n{{ \"error\": {{ \"class\": \"GenericError\", \"desc\": \"overlap\" }} }}\n"
        );
        let draft = read("dcd", text.as_bytes(), None);
        assert_eq!(draft.events.len(), 1);
        assert_eq!(
            draft.events.get(0).and_then(|event| event.more.tag),
            Some("t1")
        );
        assert_eq!(draft.devices[0].plugged_bytes, Some(134_217_728));
    }
}
