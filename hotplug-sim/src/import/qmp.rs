//! The machine protocol of QEMU: the monitor's commands, answers and events as JSON.

use super::attempt::Attempts;
use super::draft::Draft;
use super::event::{Event, EventKind};
use super::json::Json;
use super::line::Line;
use super::model::DeviceKind;
use super::outcome::Outcome;
use super::qemu::{Props, Qemu, kind_of, unnamed};
use super::qemu_monitor::{QemuMonitor, last_element, listed, set};

impl QemuMonitor {
    /// A document of the machine protocol; `None` if it is none.
    pub fn json(
        &mut self,
        value: &Json,
        qemu: &mut Qemu,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) -> Option<Outcome> {
        let outcome = if let Some(answer) = value.get("return") {
            self.answer(answer, qemu, attempts, draft)
        } else if let Some(event) = value.get("event").and_then(Json::text) {
            happened(event, value, draft)
        } else if let Some(command) = value.get("execute").and_then(Json::text) {
            self.execute(command, value, qemu, attempts, draft)
        } else if value.get("QMP").is_some() {
            Outcome::Empty
        } else if let Some(error) = value.get("error") {
            let why = error
                .get("desc")
                .and_then(Json::text)
                .unwrap_or("no reason given");
            attempts.refuse(why, value.line(), None, draft);
            Outcome::Empty
        } else {
            return None;
        };
        Some(self.said(outcome, draft))
    }

    fn answer(
        &mut self,
        answer: &Json,
        qemu: &mut Qemu,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) -> Outcome {
        let mut outcome = Outcome::Empty;
        if let Some(text) = answer.text() {
            // The human monitor's answer, carried in the protocol.
            for body in text.lines() {
                let line = Line::new(answer.line(), body.as_bytes(), false);
                if self.line(&line, qemu, attempts, draft) == Outcome::Yes {
                    outcome = Outcome::Yes;
                }
            }
            self.device = None;
            return outcome;
        }
        if let Some(bytes) = answer.get("base-memory").and_then(Json::number) {
            draft.totals.boot_bytes = Some(bytes);
            outcome = Outcome::Yes;
        }
        for item in answer.objects_with("type") {
            let (Some(kind), Some(data)) = (
                item.get("type").and_then(Json::text).and_then(kind_of),
                item.get("data"),
            ) else {
                continue;
            };
            let id = data
                .get("id")
                .and_then(Json::text)
                .map_or_else(|| unnamed(kind, draft), str::to_string);
            draft.device(&id).kind = Some(kind);
            for (key, value) in data.entries() {
                if key == "memdev" {
                    qemu.back(&id, value.text().unwrap_or_default());
                } else if let Some(value) = value.number() {
                    listed(key, value, kind, &id, draft);
                }
            }
            outcome = Outcome::Yes;
        }
        outcome
    }

    fn execute(
        &mut self,
        command: &str,
        value: &Json,
        qemu: &mut Qemu,
        attempts: &mut Attempts,
        draft: &mut Draft,
    ) -> Outcome {
        let Some(arguments) = value.get("arguments") else {
            return Outcome::Empty;
        };
        match command {
            "object-add" if qemu.object(&Props::from_json(arguments)) => {
                return Outcome::Yes;
            }
            "device_add" => {
                if let Some(id) = qemu.device(&Props::from_json(arguments), draft) {
                    let line = Line::new(value.line(), b"", false);
                    self.plugged_in(&id, &line, attempts, draft);
                    return Outcome::Yes;
                }
            }
            "qom-set" => {
                let get = |key: &str| arguments.get(key);
                if let (Some(path), Some(property), Some(value)) = (
                    get("path").and_then(Json::text),
                    get("property").and_then(Json::text),
                    get("value").and_then(Json::number),
                ) && set(path, property, value, draft)
                {
                    return Outcome::Yes;
                }
            }
            _ => {}
        }
        Outcome::Empty
    }
}

/// An event of the machine protocol.
fn happened(name: &str, value: &Json, draft: &mut Draft) -> Outcome {
    let Some(data) = value.get("data") else {
        return Outcome::Empty;
    };
    let named = |key: &str| {
        data.get(key)
            .and_then(Json::text)
            .map(|path| last_element(path).to_string())
    };
    let Some(id) = named("id")
        .or_else(|| named("device"))
        .or_else(|| named("qom-path"))
        .or_else(|| named("path"))
    else {
        return Outcome::Empty;
    };
    match name {
        "MEMORY_DEVICE_SIZE_CHANGE" => {
            let Some(size) = data.get("size").and_then(Json::number) else {
                return Outcome::Empty;
            };
            let device = draft.device(&id);
            device.plugged_bytes = Some(size);
            device.kind = device.kind.or(Some(DeviceKind::VirtioMem));
            Outcome::Yes
        }
        "DEVICE_DELETED" | "DEVICE_UNPLUG_GUEST_ERROR" | "MEM_UNPLUG_ERROR" => {
            let memory =
                draft.devices.iter().any(|device| device.id == id) || name == "MEM_UNPLUG_ERROR";
            if !memory {
                return Outcome::Empty;
            }
            let kind = if name == "DEVICE_DELETED" {
                EventKind::Unplug
            } else {
                EventKind::RemoveFailed
            };
            let reason = data.get("msg").and_then(Json::text);
            let mut event = Event::new(kind, value.line());
            event.more.device = Some(&id);
            event.more.reason = reason;
            draft.events.push(event);
            Outcome::Yes
        }
        _ => Outcome::Empty,
    }
}
