//! Lines that are recognised and carry nothing: elisions, call chains, registers, rules.
//!
//! People paste reports with what stood around them. These shapes belong to no format, so
//! they are told apart once, here; what a shell was told is [`shell`](super::shell)'s.

use super::text::{self, has, strip, words};

/// What kind of nothing a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise<'a> {
    /// Blank, a rule, a call chain, a comment.
    Plain,
    /// Somebody left something out here.
    Elision,
    /// A shell was told this.
    Prompt(&'a [u8]),
}

/// Recognises a line that carries nothing by itself.
pub fn noise(body: &[u8]) -> Option<Noise<'_>> {
    if body.is_empty() {
        return Some(Noise::Plain);
    }
    if is_elision(body) {
        return Some(Noise::Elision);
    }
    // `==> /proc/zoneinfo <==` of head, `-- Boot … --` of a journal.
    let framed = |open: &[u8], close: &[u8]| body.starts_with(open) && body.ends_with(close);
    if framed(b"==> ", b" <==") || framed(b"-- ", b" --") {
        return Some(Noise::Plain);
    }
    if body.len() >= 2 && body.iter().all(|byte| b"-=*~_#`+|".contains(byte)) {
        return Some(Noise::Plain);
    }
    if let Some(command) = prompt(body) {
        return Some(Noise::Prompt(command));
    }
    (body[0] == b'#' || is_trace(body)).then_some(Noise::Plain)
}

fn is_elision(body: &[u8]) -> bool {
    let inner = body.trim_ascii_start();
    let inner = match (inner.first(), inner.last()) {
        (Some(b'['), Some(b']')) | (Some(b'<'), Some(b'>')) | (Some(b'('), Some(b')')) => {
            inner[1..inner.len() - 1].trim_ascii()
        }
        _ => inner,
    };
    let dots = !inner.is_empty()
        && (inner.iter().all(|byte| *byte == b'.') && inner.len() > 1
            || inner == "\u{2026}".as_bytes());
    dots || (inner.len() < body.len()
        && matches!(
            inner.to_ascii_lowercase().as_slice(),
            b"snip" | b"cut" | b"skip" | b"skipped" | b"snipped" | b"deleted" | b"omitted"
        ))
}

/// The command behind a prompt: `# `, `$ `, `[root@host ~]# `, `root@host:~# `, `~ # `; and what
/// a script echoes into `/sys`, also as `set -x` shows it.
fn prompt(body: &[u8]) -> Option<&[u8]> {
    let traced = strip(body, "+ ").unwrap_or(body);
    if traced.starts_with(b"echo ") && has(traced, "/sys/devices/system/") {
        return Some(traced);
    }
    let at = body.windows(2).position(|two| two == b"# " || two == b"$ ");
    let (at, command) = match at {
        Some(at) => (at, &body[at + 2..]),
        None if body.ends_with(b"#") || body.ends_with(b"$") => {
            (body.len() - 1, &body[body.len()..])
        }
        None => return None,
    };
    let before = body[..at].trim_ascii_end();
    let shell = before.is_empty()
        || (before.len() < 80 && before.contains(&b'@') && !before.contains(&b'='))
        || matches!(before, b"~" | b"/" | b"linux" | b"sh" | b"bash");
    let named = before.ends_with(b":~") && words(before).count() == 1;
    (shell || named).then_some(command)
}

/// The heads of lines that an oops, a warning or a dump of a page prints.
const HEADS: [&str; 62] = [
    "Call Trace:",
    "Call trace:",
    "Backtrace:",
    "Stack:",
    "<TASK>",
    "</TASK>",
    "<IRQ>",
    "</IRQ>",
    "<NMI>",
    "</NMI>",
    "CPU: ",
    "CPU#",
    "Hardware name:",
    "Modules linked in:",
    "Workqueue:",
    "Process ",
    "Pid: ",
    "RIP: ",
    "RIP [",
    "RSP: ",
    "RAX: ",
    "RDX: ",
    "RBP: ",
    "R10: ",
    "R13: ",
    "FS: ",
    "CS: ",
    "CR2: ",
    "DR0: ",
    "DR3: ",
    "PKRU:",
    "EIP: ",
    "EAX: ",
    "ESI: ",
    "DS: ",
    "CR0: ",
    "Code: ",
    "pstate: ",
    "pc : ",
    "lr : ",
    "sp : ",
    "x29: ",
    "NIP ",
    "NIP: ",
    "REGS: ",
    "MSR: ",
    "CFAR: ",
    "GPR",
    "LR [",
    "LR: ",
    "---[",
    "[<",
    "Exception stack",
    "Tainted: ",
    "Instruction dump:",
    "Krnl PSW",
    "Krnl GPRS",
    "Krnl Code",
    "Last Breaking-Event",
    "epc : ",
    "<stack trace>",
    "=> ",
];

/// A line of a call chain, of a register dump or of the head of a warning.
fn is_trace(body: &[u8]) -> bool {
    if HEADS.iter().any(|head| body.starts_with(head.as_bytes())) {
        return true;
    }
    // `? func+0x12/0x34 [module]`, and perf's `ffffffff81123456 func+0x12 ([kernel.kallsyms])`.
    let offset = has(body, "+0x") && words(body).count() <= 6;
    if offset && (has(body, "/0x") || body.ends_with(b")")) && !has(body, "=") {
        return true;
    }
    let mut all = words(body);
    let address = all
        .next()
        .is_some_and(|first| first.len() >= 8 && text::hex(first).is_some());
    let place = all
        .last()
        .is_some_and(|last| last.starts_with(b"(") && last.ends_with(b")"));
    let register = strip(body, "x")
        .or_else(|| strip(body, "r"))
        .and_then(text::take_dec)
        .is_some_and(|(_, rest)| {
            rest.trim_ascii_start()
                .first()
                .is_some_and(|byte| *byte == b':')
                && words(rest).count() >= 3
        });
    address && place || register
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_carries_nothing_is_known() {
        for line in [
            "",
            "...",
            "[...]",
            "<snip>",
            "-----",
            "=====",
            "Call Trace:",
            "dump_stack+0x63/0x85",
            "[<ffffffff81123>] ? foo+0x1/0x2 [bar]",
            "ffffffff81188e61 __alloc_pages_nodemask+0x1 ([kernel.kallsyms])",
            "# tracer: nop",
            "x26: ffff000 x25: ffff00",
            "=> foo",
        ] {
            assert!(noise(line.as_bytes()).is_some(), "{line}");
        }
        for line in [
            "Node 0, zone DMA",
            "Offlined Pages 32768",
            "a",
            "[mem 0x0-0x1]",
            "rss: 4",
            "1 = 2",
        ] {
            assert_eq!(noise(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn prompts_give_their_command() {
        for line in [
            "# cat x",
            "$ cat x",
            "[root@host ~]# cat x",
            "root@host:/sys# cat x",
            "~ # cat x",
            "host:~ # cat x",
            "user@host:~$ cat x",
        ] {
            assert_eq!(
                noise(line.as_bytes()),
                Some(Noise::Prompt(b"cat x")),
                "{line}"
            );
        }
    }
}
