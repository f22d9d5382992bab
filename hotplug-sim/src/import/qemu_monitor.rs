//! The QEMU monitor: what `info memory-devices` lists, what it is told, and what it answers.
//!
//! A listing shows a virtio-mem device with `size` as what is plugged and `max-size` as the
//! region; a DIMM with `size` as both. A value set with `qom-set` replaces the one listed. Of
//! `info memdev` the size of a device is taken that tells none itself.

use super::attempt::Attempts;
use super::draft::Draft;
use super::event::{Event, EventKind};
use super::format::Format;
use super::line::Line;
use super::model::DeviceKind;
use super::outcome::Outcome;
use super::qemu::{Props, Qemu, kind_of, unnamed};
use super::text::{self, has, lossy, strip};

/// Which device is being listed, and what was asked.
#[derive(Clone, Debug, Default)]
pub struct QemuMonitor {
    pub(super) device: Option<(String, Option<DeviceKind>)>,
    /// The memory object that is being listed.
    backend: Option<String>,
    /// `qom-get` of this property of this device was asked; the answer is a line of its own.
    asked: Option<(String, String)>,
    /// Boot memory of each node, from `info numa`.
    node_bytes: u64,
}

impl QemuMonitor {
    /// Reads a line.
    pub fn line(
        &mut self,
        line: &Line<'_>,
        qemu: &mut Qemu,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) -> Outcome {
        let body = line.body();
        let prompted = strip(body, "(qemu)");
        let command = prompted.unwrap_or(body).trim_ascii();
        if let Some(outcome) = self.command(command, line, qemu, attempts, draft) {
            return self.said(outcome, draft);
        }
        if prompted.is_some() {
            self.device = None;
            return Outcome::Empty;
        }
        if let Some(rest) = strip(body, "memory backend:") {
            self.device = None;
            self.backend = (!line.cut).then(|| lossy(rest.trim_ascii()));
            return self.said(Outcome::Yes, draft);
        }
        if let Some(outcome) = self.of_backend(body, line, qemu, draft) {
            return outcome;
        }
        if let Some(rest) = strip(body, "Memory device [") {
            self.backend = None;
            let outcome = self.heading(rest, line, draft);
            return self.said(outcome, draft);
        }
        if let Some(reason) = strip(body, "Error: ") {
            self.device = None;
            return if attempts.refuse(&lossy(reason), line.number, None, draft) {
                Outcome::Yes
            } else {
                Outcome::Empty
            };
        }
        let outcome = self
            .property(body, line, qemu, draft)
            .or_else(|| self.sums(body, line, draft))
            .unwrap_or(Outcome::No);
        self.said(outcome, draft)
    }

    pub(super) fn said(&self, outcome: Outcome, draft: &mut Draft) -> Outcome {
        if outcome == Outcome::Yes {
            draft.met(Format::QemuMonitor);
        }
        outcome
    }

    /// `object_add …`, `device_add …`, `device_del …`, `qom-set …`, `info …`.
    fn command(
        &mut self,
        command: &[u8],
        line: &Line<'_>,
        qemu: &mut Qemu,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) -> Option<Outcome> {
        let (verb, rest) = text::word(command);
        if line.cut && matches!(verb, b"object_add" | b"device_add" | b"qom-set") {
            draft.cut(line.number, "the input ends in a command");
            return Some(Outcome::Empty);
        }
        let rest = lossy(rest.trim_ascii());
        match verb {
            b"object_add" => {
                let memory = qemu.object(&Props::parse(&rest));
                Some(if memory { Outcome::Yes } else { Outcome::Empty })
            }
            b"device_add" => {
                let Some(id) = qemu.device(&Props::parse(&rest), draft) else {
                    return Some(Outcome::Empty);
                };
                self.plugged_in(&id, line, attempts, draft);
                Some(Outcome::Yes)
            }
            b"qom-set" => {
                let mut words = rest.split_ascii_whitespace();
                let (path, property, value) = (words.next()?, words.next()?, words.next()?);
                let value = text::size(value.as_bytes(), 1)?.bytes;
                Some(if set(path, property, value, draft) {
                    Outcome::Yes
                } else {
                    Outcome::Empty
                })
            }
            b"qom-get" => {
                let mut words = rest.split_ascii_whitespace();
                self.asked = Some((
                    last_element(words.next()?).to_string(),
                    words.next()?.to_string(),
                ));
                Some(Outcome::Empty)
            }
            b"device_del"
            | b"object_del"
            | b"info"
            | b"query-memory-devices"
            | b"balloon"
            | b"qom-list"
            | b"migrate"
            | b"cont"
            | b"stop"
            | b"quit" => {
                self.device = None;
                self.backend = None;
                Some(Outcome::Empty)
            }
            _ => None,
        }
    }

    /// A DIMM that is added is memory plugged; a virtio-mem device is only the room for it.
    pub(super) fn plugged_in(
        &self,
        id: &str,
        line: &Line<'_>,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) {
        if draft.device(id).kind != Some(DeviceKind::Dimm) {
            return;
        }
        let mut event = Event::new(EventKind::Plug, line.number);
        event.time = line.time;
        event.more.device = Some(id);
        attempts.try_it(event, draft);
    }

    /// `virtio-mem]: "vm0"`.
    fn heading(&mut self, rest: &[u8], line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let Some(close) = text::find(rest, "]:") else {
            return Outcome::No;
        };
        let kind = lossy(&rest[..close]);
        let name = lossy(rest[close + 2..].trim_ascii());
        if name.starts_with('"') && (name.len() < 2 || !name.ends_with('"')) {
            if line.cut {
                draft.cut(line.number, "the input ends in the name of a device");
            }
            return Outcome::Empty;
        }
        if name.is_empty() && line.cut {
            draft.cut(line.number, "the input ends before the name of a device");
            return Outcome::Empty;
        }
        let name = name.trim_matches('"');
        let Some(kind) = kind_of(&kind) else {
            self.device = Some((String::new(), None));
            return Outcome::Empty;
        };
        let id = if name.is_empty() || name == "(null)" {
            unnamed(kind, draft)
        } else {
            name.to_string()
        };
        draft.device(&id).kind = Some(kind);
        self.device = Some((id, Some(kind)));
        Outcome::Yes
    }

    /// `size:  1073741824`, `policy: default`, `host nodes: 0-1` of the object being listed.
    fn of_backend(
        &mut self,
        body: &[u8],
        line: &Line<'_>,
        qemu: &mut Qemu,
        draft: &mut Draft,
    ) -> Option<Outcome> {
        let id = self.backend.as_deref()?;
        let colon = body.iter().position(|byte| *byte == b':')?;
        let (key, word) = (&body[..colon], body[colon + 1..].trim_ascii());
        const CARRY_NOTHING: [&[u8]; 7] = [
            b"merge",
            b"dump",
            b"prealloc",
            b"share",
            b"reserve",
            b"policy",
            b"host nodes",
        ];
        if CARRY_NOTHING.contains(&key) {
            return Some(Outcome::Empty);
        }
        if key != b"size" {
            return None;
        }
        if line.cut {
            draft.cut(
                line.number,
                format!("the input may end in the size of {id}"),
            );
            return Some(Outcome::Empty);
        }
        let size = text::size(word, 1)?.bytes;
        qemu.backend(id, size);
        Some(Outcome::Yes)
    }

    /// `requested-size: 134217728` of the device being listed.
    fn property(
        &mut self,
        body: &[u8],
        line: &Line<'_>,
        qemu: &mut Qemu,
        draft: &mut Draft,
    ) -> Option<Outcome> {
        let (id, kind) = self.device.clone()?;
        let colon = body.iter().position(|byte| *byte == b':')?;
        let (key, word) = (&body[..colon], body[colon + 1..].trim_ascii());
        const KEYS: [&[u8]; 11] = [
            b"addr",
            b"memaddr",
            b"slot",
            b"node",
            b"size",
            b"max-size",
            b"requested-size",
            b"block-size",
            b"memdev",
            b"hotplugged",
            b"hotpluggable",
        ];
        if !KEYS.contains(&key) {
            return None;
        }
        let Some(kind) = kind else {
            return Some(Outcome::Empty);
        };
        if word.is_empty()
            && let Some(outcome) = line.unfinished()
        {
            return Some(outcome);
        }
        if line.cut && !matches!(word, b"true" | b"false") {
            draft.cut(
                line.number,
                format!("the input may end in the {} of {id}", lossy(key)),
            );
            return Some(Outcome::Empty);
        }
        if key == b"memdev" {
            qemu.back(&id, &lossy(word));
            return Some(Outcome::Yes);
        }
        if matches!(key, b"slot" | b"hotplugged" | b"hotpluggable") {
            return Some(Outcome::Empty);
        }
        let value = text::size(word, 1)?.bytes;
        listed(&lossy(key), value, kind, &id, draft);
        Some(Outcome::Yes)
    }

    /// `base memory: 4294967296`, `node 0 size: 2048 MB`, and the answer to `qom-get`.
    fn sums(&mut self, body: &[u8], line: &Line<'_>, draft: &mut Draft) -> Option<Outcome> {
        if let Some(rest) = strip(body, "base memory:") {
            draft.totals.boot_bytes = Some(text::dec(rest.trim_ascii()).filter(|_| !line.cut)?);
            return Some(Outcome::Yes);
        }
        if let Some(rest) = strip(body, "node ") {
            let (_, rest) = text::take_dec(rest)?;
            let rest = rest.trim_ascii();
            if strip(rest, "cpus:").is_some() {
                return Some(Outcome::Empty);
            }
            let megabytes = |word: &[u8]| {
                text::dec(word.strip_suffix(b"MB")?.trim_ascii())?.checked_mul(1 << 20)
            };
            if let Some(bytes) = strip(rest, "size:").and_then(|word| megabytes(word.trim_ascii()))
            {
                self.node_bytes = self.node_bytes.checked_add(bytes)?;
            } else {
                let plugged = megabytes(strip(rest, "plugged:")?.trim_ascii())?;
                self.node_bytes = self.node_bytes.saturating_sub(plugged);
            }
            draft.totals.boot_bytes = Some(self.node_bytes);
            return Some(Outcome::Yes);
        }
        if strip(body, "plugged memory:").is_some()
            || strip(body, "balloon:").is_some()
            || body.ends_with(b" nodes") && text::take_dec(body).is_some()
        {
            return Some(Outcome::Empty);
        }
        if text::take_dec(body).is_some() {
            let (id, property) = self.asked.take()?;
            let value = text::number(text::word(body).0)?;
            return Some(if set(&id, &property, value, draft) {
                Outcome::Yes
            } else {
                Outcome::Empty
            });
        }
        (has(body, "QEMU ") && has(body, "monitor - type 'help'")).then_some(Outcome::Empty)
    }
}

/// A property as a listing shows it.
pub(super) fn listed(key: &str, value: u64, kind: DeviceKind, id: &str, draft: &mut Draft) {
    let device = draft.device(id);
    match key {
        "addr" | "memaddr" => device.address = Some(value),
        "node" => device.node = u32::try_from(value).ok(),
        "max-size" => device.size_bytes = Some(value),
        "requested-size" => device.requested_bytes = Some(value),
        "block-size" => device.block_bytes = Some(value),
        "size" => {
            device.plugged_bytes = Some(value);
            if kind == DeviceKind::Dimm {
                device.size_bytes = Some(value);
            }
        }
        _ => {}
    }
}

/// Sets a property of a device by its path; `false` if it is not one of memory.
pub(super) fn set(path: &str, property: &str, value: u64, draft: &mut Draft) -> bool {
    let id = last_element(path).to_string();
    match property {
        "requested-size" => draft.device(&id).requested_bytes = Some(value),
        "size" => draft.device(&id).plugged_bytes = Some(value),
        _ => return false,
    }
    let device = draft.device(&id);
    device.kind = device.kind.or(Some(DeviceKind::VirtioMem));
    true
}

pub(super) fn last_element(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
