//! Sizes, times and ids as people write and read them.
//!
//! Shape: `4KiB`, `512MiB`, `1.5GiB` (binary); `500ms`, `5s`, `1m`; `24`, `24-27`.

use std::{ops::RangeInclusive, str::FromStr, time::Duration};

/// Most section ids that one range may name: more than any daemon has.
const MAX_IDS: u32 = 65_536;

/// A size in bytes for people: whole where it is whole, else with one decimal.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut shift = 0;
    while bytes >> shift >= 1024 {
        unit += 1;
        shift += 10;
    }
    let whole = bytes >> shift;
    let rest = bytes & ((1_u64 << shift) - 1);
    if rest == 0 {
        return format!("{whole}{}", UNITS[unit]);
    }
    // Rounded down, so that what is not full never reads as full.
    let tenths = (u128::from(rest) * 10) >> shift;
    format!("{whole}.{tenths}{}", UNITS[unit])
}

/// A span of time for people, from milliseconds.
pub fn human_millis(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis}ms"),
        1..60 => format!("{seconds}.{}s", millis % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Reads `500ms`, `5s`, `1m`, `2h`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u32 = digits
        .parse()
        .map_err(|_| "give a number and ms, s, m or h, like 5s")?;
    let number = u64::from(number);
    match &text[digits.len()..] {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        "h" => Ok(Duration::from_secs(number * 3600)),
        _ => Err("give a number and ms, s, m or h, like 5s".into()),
    }
}

/// Milliseconds of `duration` as the contract carries them, at least 1 unless it is zero.
pub fn wire_millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

/// Reads a number above 0, or `auto` as 0.
pub fn parse_auto(text: &str) -> Result<u32, String> {
    match text {
        "auto" => Ok(0),
        _ => match text.parse() {
            Ok(0) | Err(_) => Err("give a number of pages above 0, or auto".into()),
            Ok(number) => Ok(number),
        },
    }
}

/// The most pages that somebody may own; none for as many as there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

/// Reads a number of pages, or `none`.
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        _ => match text.parse() {
            Ok(pages) => Ok(Limit(Some(pages))),
            Err(_) => Err("give a number of pages, or none".into()),
        },
    }
}

/// One id, or the ids from one to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRange(RangeInclusive<u32>);

impl IdRange {
    /// The ids of the range, rising.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.clone()
    }
}

impl FromStr for IdRange {
    type Err = String;

    fn from_str(text: &str) -> Result<IdRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parse = |text: &str| {
            text.parse()
                .map_err(|_| format!("{text:?} is not a section id"))
        };
        let (first, last): (u32, u32) = (parse(first)?, parse(last)?);
        if last < first {
            return Err("the range ends before it begins".into());
        }
        if last - first >= MAX_IDS {
            return Err(format!("the range names more than {MAX_IDS} sections"));
        }
        Ok(IdRange(first..=last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_or_rounded_down() {
        let cases = [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1024, "1KiB"),
            (4096, "4KiB"),
            (128 << 20, "128MiB"),
            ((1 << 30) + (1 << 29), "1.5GiB"),
            ((1 << 30) - 1, "1023.9MiB"),
            (1 << 40, "1TiB"),
            (u64::MAX, "15.9EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn times_take_the_unit_that_fits() {
        let cases = [
            (0, "0ms"),
            (999, "999ms"),
            (1500, "1.5s"),
            (61_000, "1m01s"),
            (3_660_000, "1h01m"),
            (90_000_000, "1d01h"),
        ];
        for (millis, text) in cases {
            assert_eq!(human_millis(millis), text);
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "5", "s", "-1s", "5 s", "1.5s", "5d"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_short_wait_is_not_sent_as_no_wait() {
        assert_eq!(wire_millis(Duration::from_micros(1)), 1);
        assert_eq!(wire_millis(Duration::ZERO), 0);
        assert_eq!(wire_millis(Duration::MAX), u32::MAX);
    }

    #[test]
    fn a_limit_is_a_number_of_pages_or_none() {
        assert_eq!(parse_limit("none"), Ok(Limit(None)));
        assert_eq!(parse_limit("0"), Ok(Limit(Some(0))));
        for text in ["", "-1", "4KiB", "all"] {
            assert!(parse_limit(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ranges_name_their_ends_too() {
        let range: IdRange = "24-26".parse().unwrap();
        assert_eq!(range.ids().collect::<Vec<_>>(), [24, 25, 26]);
        for text in ["", "-", "1-", "-1", "2-1", "0-65536", "a"] {
            assert!(text.parse::<IdRange>().is_err(), "{text:?}");
        }
    }
}
