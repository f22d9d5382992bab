//! `daxctl`: the JSON of its listings, and its messages.
//!
//! A device is any object that has a `chardev`, at whatever depth: `daxctl list`, its
//! regions and `ndctl list` nest them differently. A size for humans (`64.00 GiB`) is only
//! taken if a whole number of alignments rounds to it.

use super::attempt::Attempts;
use super::draft::Draft;
use super::event::{Event, EventKind};
use super::format::Format;
use super::json::Json;
use super::line::Line;
use super::model::DeviceKind;
use super::outcome::Outcome;
use super::shell::block_file;
use super::text::{self, has, lossy, strip};

/// Reads a document; `false` if there is no such device in it.
pub fn json(value: &Json, draft: &mut Draft) -> bool {
    let objects = value.objects_with("chardev");
    for object in &objects {
        let Some(id) = object.get("chardev").and_then(Json::text) else {
            continue;
        };
        let get = |key: &str| object.get(key).and_then(Json::number);
        let size = size_of(object, draft);
        let (node, online, total) = (
            get("target_node"),
            get("online_memblocks"),
            get("total_memblocks"),
        );
        let device = draft.device(id);
        device.kind = Some(DeviceKind::Dax);
        device.size_bytes = size.or(device.size_bytes);
        device.node = node
            .and_then(|node| u32::try_from(node).ok())
            .or(device.node);
        device.online_blocks = online.or(device.online_blocks);
        device.total_blocks = total.or(device.total_blocks);
        if let (Some(online), Some(total)) = (online, total)
            && online > total
        {
            draft.warn(
                object.line(),
                format!("{id}: {online} blocks online of {total}"),
            );
        }
        draft.met(Format::Daxctl);
    }
    !objects.is_empty()
}

fn size_of(object: &Json, draft: &mut Draft) -> Option<u64> {
    let value = object.get("size")?;
    if let Some(bytes) = value.number() {
        return Some(bytes);
    }
    let written = value.text()?;
    let binary = written.split('(').next().unwrap_or(written);
    let size = text::size(binary.as_bytes(), 1)?;
    let align = object
        .get("align")
        .and_then(Json::number)
        .filter(|align| *align > 0)
        .unwrap_or(2 << 20);
    if size.slack == 0 || size.bytes % align == 0 {
        draft.note(
            object.line(),
            format!(
                "the size {written} is rounded; it is taken as {} bytes",
                size.bytes
            ),
        );
        return Some(size.bytes);
    }
    draft.note(
        object.line(),
        format!("the size {written} is rounded and no whole number of {align} bytes"),
    );
    None
}

/// Reads a message.
pub fn line(line: &Line<'_>, attempts: &mut Attempts, draft: &mut Draft) -> Outcome {
    let body = line.body();
    let body = strip(body, "libdaxctl: ").unwrap_or(body);
    if let Some(outcome) = memory_block(body, line, attempts, draft) {
        return outcome;
    }
    let about = text::word(body).0;
    let device = about
        .strip_suffix(b":")
        .filter(|name| name.starts_with(b"dax") && name.contains(&b'.'));
    let summary = [
        "reconfigured ",
        "onlined memory for ",
        "offlined memory for ",
        "error reconfiguring devices:",
        "error onlining memory:",
        "error offlining memory:",
    ];
    if device.is_some() || summary.iter().any(|head| body.starts_with(head.as_bytes())) {
        return Outcome::Empty;
    }
    Outcome::No
}

/// `offline_one_memblock: dax0.0: Failed to offline /sys/…/memory272/state: Device or resource busy`.
fn memory_block(
    body: &[u8],
    line: &Line<'_>,
    attempts: &mut Attempts,
    draft: &mut Draft,
) -> Option<Outcome> {
    let rest = [
        "offline_one_memblock: ",
        "online_one_memblock: ",
        "set_one_memblock: ",
    ]
    .iter()
    .find_map(|head| strip(body, head))?;
    let colon = text::find(rest, ": ")?;
    let (device, says) = (lossy(&rest[..colon]), &rest[colon + 2..]);
    let kind = if strip(says, "Failed to offline ").is_some() {
        EventKind::OfflineFailed
    } else if strip(says, "Failed to online ").is_some() || strip(says, "Failed to set ").is_some()
    {
        EventKind::OnlineFailed
    } else {
        return (has(says, "already") || has(says, "kernel policy")).then_some(Outcome::Empty);
    };
    let path = text::after(says, "/sys/devices/system/")?;
    let (block, _) = block_file(path)?;
    let Some(at) = text::find(path, ": ") else {
        return line.unfinished();
    };
    let reason = lossy(path[at + 2..].trim_ascii());
    let mut event = Event::new(kind, line.number);
    event.more.block = Some(block);
    event.more.device = Some(&device);
    event.more.reason = Some(&reason);
    event.more.node =
        text::number_after(path, "node/node").and_then(|node| u32::try_from(node).ok());
    attempts.answer(event, draft);
    draft.met(Format::Daxctl);
    Some(Outcome::Yes)
}
