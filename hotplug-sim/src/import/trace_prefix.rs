//! What stands before an event: `  kworker/0:1-33 (33) [006] d..1   889.213383: `.
//!
//! ftrace writes task, pid, CPU, flags and time; trace-cmd leaves the flags out; perf writes
//! `task pid[/tid] [cpu] time: `; a function graph has only ` 24)` or a time before it.

use super::text::{small, take_dec, take_seconds};

/// What a prefix says. `None` is not said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prefix<'a> {
    /// The name of the task, which may hold blanks and hyphens.
    pub task: Option<&'a str>,
    /// Its thread.
    pub pid: Option<u32>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// Seconds since boot.
    pub time: Option<f64>,
}

impl<'a> Prefix<'a> {
    /// Reads what stands before the name of an event.
    pub fn read(before: &'a [u8]) -> Prefix<'a> {
        let stamp = time(before);
        let mut prefix = Prefix {
            time: stamp.map(|(time, _)| time),
            ..Prefix::default()
        };
        if let Some((open, cpu)) = cpu_bracket(before) {
            prefix.cpu = Some(cpu);
            prefix.task_and_pid(before[..open].trim_ascii());
        } else if !prefix.latency(before) && !prefix.graph(before) {
            // perf without its CPU column: `bash 1234 12345.678901: kmem:`
            if let Some((_, start)) = stamp {
                prefix.task_and_pid(before[..start].trim_ascii());
            }
        }
        prefix
    }

    /// ` 24)               |  /* `, also with a time before it or a task before the bar. Says whether it is one.
    fn graph(&mut self, before: &'a [u8]) -> bool {
        let mut rest = before.trim_ascii_start();
        if let Some((time, tail)) = take_seconds(rest) {
            let Some(tail) = tail.trim_ascii_start().strip_prefix(b"|") else {
                return false;
            };
            self.time = Some(time);
            rest = tail.trim_ascii_start();
        }
        let Some((cpu, rest)) = take_dec(rest) else {
            return false;
        };
        let Some(rest) = rest.strip_prefix(b")") else {
            return false;
        };
        self.cpu = u32::try_from(cpu).ok();
        let bar = rest.iter().position(|byte| *byte == b'|').unwrap_or(0);
        // A duration stands there too, and ends in `us`.
        self.task_and_pid(rest[..bar].trim_ascii());
        true
    }

    /// `    bash-1994    0d..1    5us+: `, the latency format; the time in it counts from the start
    /// of the trace and is left out. Says whether it is one.
    fn latency(&mut self, before: &'a [u8]) -> bool {
        let rest = before.trim_ascii_end();
        let Some(rest) = rest.strip_suffix(b":") else {
            return false;
        };
        let rest = rest.trim_ascii_end();
        let marks = rest
            .iter()
            .rev()
            .take_while(|byte| b"+!#*@$ ".contains(byte))
            .count();
        let Some(rest) = rest[..rest.len() - marks].strip_suffix(b"us") else {
            return false;
        };
        let digits = rest
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let rest = rest[..rest.len() - digits].trim_ascii_end();
        let start = rest
            .iter()
            .rposition(u8::is_ascii_whitespace)
            .map_or(0, |at| at + 1);
        let Some((cpu, flags)) = take_dec(&rest[start..]) else {
            return false;
        };
        if digits == 0 || flags.is_empty() {
            return false;
        }
        self.cpu = u32::try_from(cpu).ok();
        self.task_and_pid(rest[..start].trim_ascii());
        true
    }

    /// `kworker/0:1-33`, `bash-1234  ( 1234)`, or `bash 1234/1235` of perf.
    fn task_and_pid(&mut self, who: &'a [u8]) {
        let who = match who
            .strip_suffix(b")")
            .and_then(|inner| inner.iter().rposition(|byte| *byte == b'('))
        {
            Some(open)
                if who[open..]
                    .iter()
                    .all(|byte| b"()- ".contains(byte) || byte.is_ascii_digit()) =>
            {
                who[..open].trim_ascii_end()
            }
            _ => who,
        };
        let digits = who
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let Some(at) = who.len().checked_sub(digits).filter(|_| digits > 0) else {
            return;
        };
        let (mut head, number) = who.split_at(at);
        match head.last() {
            // The second number of perf is the thread.
            Some(b'/') => {
                let main = &head[..head.len() - 1];
                let digits = main
                    .iter()
                    .rev()
                    .take_while(|byte| byte.is_ascii_digit())
                    .count();
                head = &main[..main.len() - digits];
            }
            Some(b'-') => head = &head[..head.len() - 1],
            Some(b' ' | b'\t') => {}
            _ => return,
        }
        self.pid = small(number);
        let task = head.trim_ascii();
        self.task = std::str::from_utf8(task)
            .ok()
            .filter(|task| !task.is_empty() && *task != "<...>" && *task != ":");
    }
}

/// Whether a line begins as a trace has it: it is then no continuation of another.
pub fn is_headed(text: &[u8]) -> bool {
    cpu_bracket(text).is_some_and(|(open, _)| text[open..].windows(2).any(|two| two == b": "))
}

/// Where ` [006]` opens, and the number in it. Brackets in task names hold no bare number.
fn cpu_bracket(before: &[u8]) -> Option<(usize, u32)> {
    let mut end = before.len();
    while let Some(open) = memchr::memrchr(b'[', &before[..end]) {
        let inside = &before[open + 1..];
        let digits = inside
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits > 0 && inside.get(digits) == Some(&b']') {
            return Some((open, small(&inside[..digits])?));
        }
        end = open;
    }
    None
}

/// The time, which stands before the colon before the event (and before the name of its system),
/// and where it begins.
fn time(before: &[u8]) -> Option<(f64, usize)> {
    let mut rest = before.trim_ascii_end();
    for _ in 0..2 {
        rest = rest.strip_suffix(b":")?.trim_ascii_end();
        let start = rest
            .iter()
            .rposition(|byte| !byte.is_ascii_digit() && *byte != b'.')
            .map_or(0, |at| at + 1);
        if let Some((seconds, b"")) = take_seconds(&rest[start..]) {
            return Some((seconds, start));
        }
        // `kmem:` of perf.
        let system = rest
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_alphabetic() || **byte == b'_')
            .count();
        rest = rest[..rest.len() - system].trim_ascii_end();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_writers_of_prefixes_are_read() {
        for (before, task, pid, cpu, time) in [
            (
                "  <...>-22275 [006] ....   889.213383: ",
                None,
                Some(22275),
                Some(6),
                Some(889.213_383),
            ),
            (
                "kswapd0-1207  [005] ...1   889.213398: ",
                Some("kswapd0"),
                Some(1207),
                Some(5),
                Some(889.213_398),
            ),
            (
                "     kworker/0:1-33    (     33) [006] d..1.   1.5: ",
                Some("kworker/0:1"),
                Some(33),
                Some(6),
                Some(1.5),
            ),
            (
                "     my-task-33    (-------) [006] d..1.   1.5: ",
                Some("my-task"),
                Some(33),
                Some(6),
                Some(1.5),
            ),
            (
                "Web Content 4711/4712 [003] 12345.678901:  kmem:",
                Some("Web Content"),
                Some(4712),
                Some(3),
                Some(12_345.678_901),
            ),
            (
                "swapper     0 [000]  1.000001: kmem:",
                Some("swapper"),
                Some(0),
                Some(0),
                Some(1.000_001),
            ),
            (" 24)               |  /* ", None, None, Some(24), None),
            (
                "    bash-1994    0d..1    5us+: ",
                Some("bash"),
                Some(1994),
                Some(0),
                None,
            ),
            (
                " 1210.268022 |   1)  bash-1994    |               |  /* ",
                Some("bash"),
                Some(1994),
                Some(1),
                Some(1_210.268_022),
            ),
            (
                "bash  1994 12345.678901: kmem:",
                Some("bash"),
                Some(1994),
                None,
                Some(12_345.678_901),
            ),
            ("  ", None, None, None, None),
            (
                "bash-12 [001] 1234567: ",
                Some("bash"),
                Some(12),
                Some(1),
                None,
            ),
        ] {
            let prefix = Prefix::read(before.as_bytes());
            assert_eq!(
                prefix,
                Prefix {
                    task,
                    pid,
                    cpu,
                    time
                },
                "{before}"
            );
        }
    }
}
