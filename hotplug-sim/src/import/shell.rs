//! What a person typed between the dumps: the commands that change memory, and `cat`.
//!
//! Understood are the files below `/sys/devices/system` that put a memory block online or
//! offline, written with `echo`. Any other command is recognised as one and passed over;
//! a path with a variable or a wildcard in it names no block.

use super::attempt::Attempts;
use super::draft::Draft;
use super::event::{Event, EventKind};
use super::format::Format;
use super::line::Line;
use super::outcome::Outcome;
use super::text::{self, has};

/// Reads a command. `format` says whether events of it make the file an offline log.
pub fn command(
    command: &[u8],
    line: &Line<'_>,
    attempts: &mut Attempts,
    draft: &mut Draft,
) -> Outcome {
    let Some((kind, block, policy, node)) = memory_write(command) else {
        return Outcome::Empty;
    };
    if line.cut {
        draft.cut(line.number, "the input ends in a command");
        return Outcome::Empty;
    }
    let mut event = Event::new(kind, line.number);
    event.time = line.time;
    event.more.block = Some(block);
    event.more.policy = policy;
    event.more.node = node;
    attempts.try_it(event, draft);
    draft.met(Format::OfflineLog);
    Outcome::Yes
}

/// `echo offline > /sys/devices/system/memory/memory41/state` and its kin: kind, block, policy, node.
fn memory_write(command: &[u8]) -> Option<(EventKind, u64, Option<&'static str>, Option<u32>)> {
    let echo = text::after(command, "echo ")?;
    let path = text::after(echo, "/sys/devices/system/")?;
    let (block, file) = block_file(path)?;
    let value = text::words(echo).find(|word| *word != b"-n")?;
    let value: Vec<u8> = value
        .iter()
        .copied()
        .filter(|byte| !b"\"'>".contains(byte))
        .collect();
    let (kind, policy) = match (file, value.as_slice()) {
        (b"online", b"1") | (b"state", b"online") => (EventKind::Online, None),
        (b"state", b"online_movable") => (EventKind::Online, Some("movable")),
        (b"state", b"online_kernel") => (EventKind::Online, Some("kernel")),
        (b"online", b"0") | (b"state", b"offline") => (EventKind::Offline, None),
        _ => return None,
    };
    let node = text::number_after(path, "node/node").and_then(|node| u32::try_from(node).ok());
    Some((kind, block, policy, node))
}

/// The block and the file of a path such as `memory/memory41/state` or `node/node1/memory56/online`.
pub fn block_file(path: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = path;
    loop {
        rest = text::after(rest, "/memory")?;
        let Some((block, tail)) = text::take_dec(rest) else {
            continue;
        };
        let file = text::strip(tail, "/")?;
        let end = file
            .iter()
            .position(|byte| !byte.is_ascii_lowercase() && *byte != b'_')
            .unwrap_or(file.len());
        return Some((block, &file[..end]));
    }
}

/// What a command prints that was only asked for a number, and what a shell says of itself.
pub fn is_output(body: &[u8]) -> bool {
    text::counter(body).is_some() || has(body, ": command not found") || body == b"^C"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ways_to_write_a_block_are_known() {
        let movable = Some("movable");
        for (command, expected) in [
            (
                "echo \"online_movable\" > /sys/devices/system/memory/memory41/state",
                (EventKind::Online, 41, movable, None),
            ),
            (
                "echo online_movable >/sys/devices/system/memory/memory41/state",
                (EventKind::Online, 41, movable, None),
            ),
            (
                "echo offline | sudo tee /sys/devices/system/memory/memory7/state",
                (EventKind::Offline, 7, None, None),
            ),
            (
                "echo -n 0 > /sys/devices/system/node/node1/memory56/online",
                (EventKind::Offline, 56, None, Some(1)),
            ),
            (
                "echo online_kernel > /sys/devices/system/memory/memory8/state",
                (EventKind::Online, 8, Some("kernel"), None),
            ),
        ] {
            assert_eq!(
                memory_write(command.as_bytes()),
                Some(expected),
                "{command}"
            );
        }
        for command in [
            "echo 0 > /sys/devices/system/cpu/cpu1/online",
            "echo 1 > /sys/devices/system/memory/memory$i/online",
            "cat /sys/devices/system/memory/memory1/state",
        ] {
            assert_eq!(memory_write(command.as_bytes()), None, "{command}");
        }
    }
}
