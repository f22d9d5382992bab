//! Lines, and the prefixes that logs and mails put before them.
//!
//! A [`Scanner`] walks a cleaned file; [`Line::new`] takes off quoting, time stamps, the
//! host and `kernel:` of a journal. What is left, [`Line::text`], is what the kernel or
//! the tool printed. No parser sees a prefix.

use memchr::memchr;

use super::outcome::Outcome;
use super::text::{self, strip, take_dec, take_seconds};

/// One line of a source, without its prefixes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line<'a> {
    /// Its number in the file, from 1.
    pub number: u64,
    /// What was printed, with its indentation, without the blanks at its end.
    pub text: &'a [u8],
    /// Seconds since boot, where the prefix has them.
    pub time: Option<f64>,
    /// It has the prefix of a kernel log.
    pub logged: bool,
    /// It is the last one and has no line feed: it may stop in the middle.
    pub cut: bool,
    /// The next one may be its continuation: an unfinished line is then better left to be joined.
    pub wraps: bool,
    /// It was joined from several: what still makes no sense was no continuation.
    pub joined: bool,
    /// Its length in the file, in bytes, for telling terminal wraps.
    pub width: usize,
}

impl<'a> Line<'a> {
    /// Takes the prefixes off `raw`.
    pub fn new(number: u64, raw: &'a [u8], cut: bool) -> Line<'a> {
        let mut line = Line {
            number,
            text: unbroken(unquote(raw)),
            time: None,
            logged: false,
            cut,
            wraps: false,
            joined: false,
            width: raw.len(),
        };
        // A journal line can carry several: date, host, `kernel:`, the kernel's own stamp, the caller.
        for _ in 0..6 {
            let Some((rest, time)) = prefix(line.text, line.logged) else {
                break;
            };
            line.text = rest;
            line.time = line.time.or(time);
            line.logged = true;
        }
        line
    }

    /// The text without its indentation.
    pub fn body(&self) -> &'a [u8] {
        self.text.trim_ascii_start()
    }

    /// What to say of an unfinished line: that more is wanted, or that what was joined to it does
    /// not belong. `None` if the line is all there is, and is to be kept as far as it goes.
    pub fn unfinished(&self) -> Option<Outcome> {
        match (self.wraps, self.joined) {
            (true, _) => Some(Outcome::More),
            (false, true) => Some(Outcome::No),
            (false, false) => None,
        }
    }

    /// The same line with other text: one that was joined from two.
    pub fn with_text<'b>(&self, text: &'b [u8], cut: bool) -> Line<'b> {
        Line {
            number: self.number,
            text,
            time: self.time,
            logged: self.logged,
            cut,
            wraps: false,
            joined: true,
            width: self.width,
        }
    }
}

/// Without the blanks at its end, and the `<br />` that a web page ends its lines with.
fn unbroken(raw: &[u8]) -> &[u8] {
    let mut text = raw.trim_ascii_end();
    if text.ends_with(b">") {
        for end in ["<br>", "<br/>", "<br />"] {
            if let Some(rest) = text.strip_suffix(end.as_bytes()) {
                text = rest.trim_ascii_end();
            }
        }
    }
    text
}

/// Takes off the `> ` or `| ` of a mail, however often it was quoted, and the bar that ends a row of
/// a tracker's table.
fn unquote(raw: &[u8]) -> &[u8] {
    let (mut text, mut is_row) = (raw, false);
    loop {
        let inner = text.trim_ascii_start();
        let quoted = match inner {
            [b'>', rest @ ..] => Some(rest),
            [b'|', rest @ ..] if matches!(rest, [] | [b' ' | b'\t', ..]) => {
                is_row = true;
                Some(rest)
            }
            _ => None,
        };
        let Some(rest) = quoted else { break };
        text = rest.strip_prefix(b" ").unwrap_or(rest);
    }
    match text.trim_ascii_end().strip_suffix(b"|") {
        Some(row) if is_row => row,
        _ => text,
    }
}

/// One prefix: what follows it, and the time it tells.
fn prefix(text: &[u8], logged: bool) -> Option<(&[u8], Option<f64>)> {
    let inner = text.trim_ascii_start();
    match inner.first()? {
        b'[' => bracketed(&inner[1..], logged),
        b'<' => {
            let (level, rest) = take_dec(&inner[1..])?;
            let rest = strip(rest, ">")?;
            (level < 1024).then_some((rest, None))
        }
        b'0'..=b'9' => kmsg_record(inner).or_else(|| iso_date(inner)),
        b'A'..=b'Z' => syslog_date(inner).map(|rest| (host_and_kernel(rest), None)),
        b'k' if inner.starts_with(b"kernel:") => Some((unspaced(&inner[7..]), None)),
        b'k' if inner.starts_with(b"kern ") => facility(inner).map(|rest| (rest, None)),
        _ => None,
    }
}

/// Without the one blank that separates a prefix from the text.
fn unspaced(rest: &[u8]) -> &[u8] {
    rest.strip_prefix(b" ").unwrap_or(rest)
}

/// `[  12.345678]`, `[ T123]`, `[    C0]`, `[Tue Nov 15 17:08:06 2022]`, `[  +0.000012]`, `[Nov15 17:08]`.
fn bracketed(inside: &[u8], logged: bool) -> Option<(&[u8], Option<f64>)> {
    let end = memchr(b']', inside.get(..inside.len().min(40))?)?;
    let (inner, rest) = (inside[..end].trim_ascii(), unspaced(&inside[end + 1..]));
    if let Some((time, b"")) = take_seconds(inner) {
        let rest = match text::find(rest, " kernel: ") {
            // journalctl -o short-monotonic puts the host between.
            Some(at) if rest[..at].iter().all(u8::is_ascii_graphic) => &rest[at + 9..],
            _ => rest,
        };
        return Some((rest, Some(time)));
    }
    let caller =
        logged && matches!(inner, [b'T' | b'C', digits @ ..] if text::dec(digits).is_some());
    // Some vendors print `[0:      swapper:    0]`: CPU, task, thread.
    let vendor = logged
        && take_dec(inner).is_some_and(|(_, rest)| rest.starts_with(b":") && has_thread(rest));
    let relative = strip(inner, "+").and_then(take_seconds).is_some();
    let dated = inner.first().is_some_and(u8::is_ascii_uppercase) && has_clock(inner);
    (caller || vendor || relative || dated).then_some((rest, None))
}

/// Whether it ends in a colon and a number.
fn has_thread(text: &[u8]) -> bool {
    let colon = text.iter().rposition(|byte| *byte == b':');
    colon.is_some_and(|colon| colon > 0 && text::dec(text[colon + 1..].trim_ascii()).is_some())
}

/// Whether `17:08` or `17:08:06` stands somewhere in it.
fn has_clock(text: &[u8]) -> bool {
    text.windows(5).any(|five| matches!(five, [a, b, b':', c, d] if [a, b, c, d].iter().all(|byte| byte.is_ascii_digit())))
}

/// A record of `/dev/kmsg`: `6,339,5140900,-;text`; the third number is microseconds.
fn kmsg_record(text: &[u8]) -> Option<(&[u8], Option<f64>)> {
    let (_, rest) = take_dec(text)?;
    let (_, rest) = take_dec(strip(rest, ",")?)?;
    let (micros, rest) = take_dec(strip(rest, ",")?)?;
    let semicolon = memchr(b';', strip(rest, ",")?)?;
    #[allow(clippy::cast_precision_loss)]
    Some((&rest[semicolon + 2..], Some(micros as f64 / 1e6)))
}

/// `2022-11-15T17:08:06,123456+00:00 host kernel: ` or `2022-11-15 17:08:06.123 `.
fn iso_date(text: &[u8]) -> Option<(&[u8], Option<f64>)> {
    let date = text.get(..10)?;
    let is_date = date.iter().enumerate().all(|(at, byte)| {
        if at == 4 || at == 7 {
            *byte == b'-'
        } else {
            byte.is_ascii_digit()
        }
    });
    if !is_date || !matches!(text.get(10), Some(b'T' | b' ')) {
        return None;
    }
    let (clock, rest) = text::word(&text[11..]);
    if clock.len() < 8 || !has_clock(clock) {
        return None;
    }
    Some((host_and_kernel(unspaced(rest)), None))
}

/// What follows `Nov 15 17:08:06 `.
fn syslog_date(text: &[u8]) -> Option<&[u8]> {
    const MONTHS: [&[u8]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    let month = text.get(..3)?;
    if !MONTHS.contains(&month) || text.get(3) != Some(&b' ') {
        return None;
    }
    let (day, rest) = take_dec(text[4..].trim_ascii_start())?;
    let (clock, rest) = text::word(strip(rest, " ")?);
    (day <= 31 && clock.len() >= 8 && has_clock(clock)).then(|| unspaced(rest))
}

/// Without `host kernel: ` or `kernel: `, or `host PROGRAM[PID]: ` of who logged what it had read.
fn host_and_kernel(text: &[u8]) -> &[u8] {
    if let Some(rest) = strip(text, "kernel:") {
        return unspaced(rest);
    }
    let (host, rest) = text::word(text);
    if host.ends_with(b":") {
        return text;
    }
    let (tag, rest) = text::word(unspaced(rest));
    match tag.strip_suffix(b":") {
        Some(name) if name == b"kernel" || is_program(name) => unspaced(rest),
        _ => text,
    }
}

/// Whether it is `PROGRAM[PID]`.
fn is_program(tag: &[u8]) -> bool {
    let pid = tag.strip_suffix(b"]").and_then(|tag| {
        let open = tag.iter().rposition(|byte| *byte == b'[')?;
        (open > 0).then(|| &tag[open + 1..])
    });
    pid.is_some_and(|pid| text::dec(pid).is_some())
}

/// `kern  :info  : ` of `dmesg -x`.
fn facility(text: &[u8]) -> Option<&[u8]> {
    let rest = strip(text[4..].trim_ascii_start(), ":")?;
    let colon = memchr(b':', rest.get(..rest.len().min(10))?)?;
    Some(unspaced(&rest[colon + 1..]))
}

/// Walks the lines of a cleaned file. Copying it is cheap: that is how one looks ahead.
#[derive(Clone)]
pub struct Scanner<'a> {
    rest: &'a [u8],
    index: usize,
    numbers: Option<&'a [u64]>,
}

impl<'a> Scanner<'a> {
    /// Starts at the first line of `text`.
    pub fn new(text: &'a [u8], numbers: Option<&'a [u64]>) -> Scanner<'a> {
        Scanner {
            rest: text,
            index: 0,
            numbers,
        }
    }

    /// The next line as it stands in the file: number, bytes, and whether its line feed is missing.
    pub fn next_raw(&mut self) -> Option<(u64, &'a [u8], bool)> {
        if self.rest.is_empty() {
            return None;
        }
        let plain = u64::try_from(self.index).map_or(u64::MAX, |index| index + 1);
        let number = self
            .numbers
            .and_then(|numbers| numbers.get(self.index).copied())
            .unwrap_or(plain);
        self.index += 1;
        match memchr(b'\n', self.rest) {
            Some(end) => {
                let line = &self.rest[..end];
                self.rest = &self.rest[end + 1..];
                Some((number, line, false))
            }
            None => Some((number, std::mem::take(&mut self.rest), true)),
        }
    }
}

impl<'a> Iterator for Scanner<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        self.next_raw()
            .map(|(number, raw, cut)| Line::new(number, raw, cut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(raw: &str) -> (String, Option<f64>, bool) {
        let line = Line::new(1, raw.as_bytes(), false);
        (text::lossy(line.text), line.time, line.logged)
    }

    #[test]
    fn prefixes_of_all_kinds_come_off() {
        let zone = "  DMA      [mem 0x1000-0xffffff]".to_string();
        for (raw, time) in [
            (
                "[    0.009619]   DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
            (
                "   [    0.009619]   DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
            (
                "> > [    0.009619]   DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
            (
                "<6>[    0.009619]   DMA      [mem 0x1000-0xffffff]  ",
                Some(0.009_619),
            ),
            (
                "[    0.009619][    T0]   DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
            (
                "[    0.009619] host kernel:   DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
            (
                "Sep 25 02:28:53 host kernel:   DMA      [mem 0x1000-0xffffff]",
                None,
            ),
            (
                "Sep  5 02:28:53 host kernel: [    0.009619]   DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
            (
                "2022-11-15T17:08:06,123456+00:00 host kernel:   DMA      [mem 0x1000-0xffffff]",
                None,
            ),
            (
                "[Tue Nov 15 17:08:06 2022]   DMA      [mem 0x1000-0xffffff]",
                None,
            ),
            ("[  +0.000002]   DMA      [mem 0x1000-0xffffff]", None),
            (
                "Sep  5 02:28:53 host collect[4711]:   DMA      [mem 0x1000-0xffffff]",
                None,
            ),
            ("| | [  +0.000002]   DMA      [mem 0x1000-0xffffff] |", None),
            (
                "kern  :info  : [    0.009619]   DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
            (
                "6,39,9619,-;  DMA      [mem 0x1000-0xffffff]",
                Some(0.009_619),
            ),
        ] {
            assert_eq!(taken(raw), (zone.clone(), time, true), "{raw}");
        }
    }

    #[test]
    fn what_is_no_prefix_stays() {
        for raw in [
            "[  456]     0   456     6045",
            "[...]",
            "|-- 0x1000",
            "Normal free:896kB |",
            "{ \"a\": 1 }",
            "Normal free:896kB",
            "Memory block size: 1",
            "2 nodes",
            "",
            "[",
            "<...>-12 [001]",
        ] {
            assert_eq!(taken(raw), (raw.to_string(), None, false));
        }
    }

    #[test]
    fn the_last_line_without_a_line_feed_is_marked() {
        let mut scanner = Scanner::new(b"a\nb", None);
        assert_eq!(scanner.next_raw(), Some((1, b"a".as_slice(), false)));
        assert_eq!(scanner.next_raw(), Some((2, b"b".as_slice(), true)));
        assert_eq!(scanner.next_raw(), None);
    }
}
