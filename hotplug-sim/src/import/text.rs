//! Numbers, words and sizes in bytes that nobody promised to be UTF-8.
//!
//! Everything here is total: what is not a number is `None`, never a panic, and a
//! number that does not fit is not a number. The callers are the parsers beside it.

use memchr::memmem;

/// Where `needle` begins in `hay`.
pub fn find(hay: &[u8], needle: &str) -> Option<usize> {
    memmem::find(hay, needle.as_bytes())
}

/// Whether `needle` stands somewhere in `hay`.
pub fn has(hay: &[u8], needle: &str) -> bool {
    find(hay, needle).is_some()
}

/// What follows the first `needle` in `hay`.
pub fn after<'a>(hay: &'a [u8], needle: &str) -> Option<&'a [u8]> {
    find(hay, needle).map(|at| &hay[at + needle.len()..])
}

/// What follows `prefix`, where `bytes` begins with it.
pub fn strip<'a>(bytes: &'a [u8], prefix: &str) -> Option<&'a [u8]> {
    bytes.strip_prefix(prefix.as_bytes())
}

/// The words between ASCII blanks.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// The first word, and what follows it.
pub fn word(bytes: &[u8]) -> (&[u8], &[u8]) {
    let bytes = bytes.trim_ascii_start();
    let end = bytes
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(bytes.len());
    bytes.split_at(end)
}

/// Text for a message or a name; what is not UTF-8 is replaced.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The value of the leading decimal digits, and what follows them.
pub fn take_dec(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value: u64 = 0;
    let mut at = 0;
    while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
        value = value
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
        at += 1;
    }
    (at > 0).then(|| (value, &bytes[at..]))
}

/// The value of the leading hexadecimal digits (with or without `0x`), and what follows them.
pub fn take_hex(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let bytes = strip(bytes, "0x")
        .or_else(|| strip(bytes, "0X"))
        .unwrap_or(bytes);
    let mut value: u64 = 0;
    let mut at = 0;
    while let Some(digit) = bytes
        .get(at)
        .and_then(|byte| char::from(*byte).to_digit(16))
    {
        value = value.checked_mul(16)?.checked_add(u64::from(digit))?;
        at += 1;
    }
    (at > 0).then(|| (value, &bytes[at..]))
}

/// The value of a leading number, hexadecimal if it says `0x`, and what follows it.
pub fn take_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    if bytes.starts_with(b"0x") || bytes.starts_with(b"0X") {
        take_hex(bytes)
    } else {
        take_dec(bytes)
    }
}

fn whole(taken: Option<(u64, &[u8])>) -> Option<u64> {
    taken
        .filter(|(_, rest)| rest.is_empty())
        .map(|(value, _)| value)
}

/// A word that is a decimal number and nothing else.
pub fn dec(word: &[u8]) -> Option<u64> {
    whole(take_dec(word))
}

/// A word that is a hexadecimal number and nothing else.
pub fn hex(word: &[u8]) -> Option<u64> {
    whole(take_hex(word))
}

/// A word that is a number, hexadecimal if it says `0x`, and nothing else.
pub fn number(word: &[u8]) -> Option<u64> {
    whole(take_number(word))
}

/// A sum that stays at the largest number where it would go beyond: only damage gets there.
pub fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// A word that is a small decimal number: a node, an order, a block.
pub fn small(word: &[u8]) -> Option<u32> {
    dec(word).and_then(|value| u32::try_from(value).ok())
}

/// The number that stands behind `key` (blanks between are skipped).
pub fn number_after(hay: &[u8], key: &str) -> Option<u64> {
    take_number(after(hay, key)?.trim_ascii_start()).map(|(value, _)| value)
}

/// A counter as the kernel prints it with `%lu`, which may have been decremented below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The value, negative if it had wrapped.
    pub value: i64,
    /// The source shows an unsigned number that only makes sense as a negative one.
    pub wrapped: bool,
}

/// The leading counter, and what follows it. A printed minus counts as wrapped too.
pub fn take_counter(bytes: &[u8]) -> Option<(Counter, &[u8])> {
    if let Some(digits) = strip(bytes, "-") {
        let (value, rest) = take_dec(digits)?;
        let value = i64::try_from(value).ok()?.checked_neg()?;
        return Some((
            Counter {
                value,
                wrapped: value != 0,
            },
            rest,
        ));
    }
    let (value, rest) = take_dec(bytes)?;
    // Two's complement on purpose: 18446744073709551615 is what -1 looks like through %lu.
    let signed = value.cast_signed();
    Some((
        Counter {
            value: signed,
            wrapped: signed < 0,
        },
        rest,
    ))
}

/// A word that is a counter and nothing else.
pub fn counter(word: &[u8]) -> Option<Counter> {
    take_counter(word)
        .filter(|(_, rest)| rest.is_empty())
        .map(|(counter, _)| counter)
}

/// The seconds of `123.456789`, to the nearest representable number, and what follows.
pub fn take_seconds(bytes: &[u8]) -> Option<(f64, &[u8])> {
    let (whole, rest) = take_dec(bytes)?;
    let fraction = strip(rest, ".")?;
    let digits = fraction
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if digits == 0 || digits > 9 {
        return None;
    }
    let (part, rest) = take_dec(fraction)?;
    let scale = 10_u64.pow(u32::try_from(digits).ok()?);
    let ticks = whole.checked_mul(scale)?.checked_add(part)?;
    if ticks >= 1 << 53 {
        // The division would round twice; long uptimes in nanoseconds are rare enough to be read slowly.
        let shown = &bytes[..bytes.len() - rest.len()];
        return Some((std::str::from_utf8(shown).ok()?.parse().ok()?, rest));
    }
    // Both are exact in a double, so one division rounds once.
    #[allow(clippy::cast_precision_loss)]
    Some((ticks as f64 / scale as f64, rest))
}

/// How a size was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The size in bytes.
    pub bytes: u64,
    /// Half of the last digit shown, in bytes: the truth lies within this of [`Size::bytes`]. 0 where exact.
    pub slack: u64,
}

/// The power of two behind a unit, or the decimal one, in bytes.
fn unit_bytes(unit: &[u8]) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    let power = |letter: u8| {
        b"kmgtpe"
            .iter()
            .position(|other| *other == letter)
            .and_then(|at| u32::try_from(at + 1).ok())
    };
    match lower.as_slice() {
        b"" | b"b" | b"byte" | b"bytes" => Some(1),
        [letter] | [letter, b'i', b'b'] => power(*letter).map(|exponent| 1 << (10 * exponent)),
        [letter, b'b'] => power(*letter).map(|exponent| 1000_u64.pow(exponent)),
        _ => None,
    }
}

/// A size such as `2G`, `4.8G`, `64.00 GiB`, `134217728`; `default` is the unit of a bare number, in bytes.
///
/// A single letter is a binary unit, as the tools around the kernel have it; `kB` of
/// the kernel itself is not read here but by the parsers that know it.
pub fn size(text: &[u8], default: u64) -> Option<Size> {
    let text = text.trim_ascii();
    let (whole, rest) = take_number(text)?;
    let (fraction, digits, rest) = match strip(rest, ".") {
        Some(tail) => {
            let digits = tail.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (fraction, rest) = take_dec(tail)?;
            (fraction, u32::try_from(digits).ok()?, rest)
        }
        None => (0, 0, rest),
    };
    let unit = rest.trim_ascii();
    let scale = if unit.is_empty() {
        default
    } else {
        unit_bytes(unit)?
    };
    let tenths = 10_u128.checked_pow(digits)?;
    let ticks = u128::from(whole)
        .checked_mul(tenths)?
        .checked_add(u128::from(fraction))?;
    let bytes = ticks.checked_mul(u128::from(scale))? / tenths;
    let slack = if scale == 1 {
        0
    } else {
        u128::from(scale) / tenths / 2
    };
    Some(Size {
        bytes: u64::try_from(bytes).ok()?,
        slack: u64::try_from(slack).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_they_end() {
        assert_eq!(take_dec(b"42kB"), Some((42, b"kB".as_slice())));
        assert_eq!(dec(b"42kB"), None);
        assert_eq!(dec(b"18446744073709551616"), None);
        assert_eq!(hex(b"1727813"), Some(24_279_059));
        assert_eq!(number(b"0x10"), Some(16));
        assert_eq!(number(b""), None);
    }

    #[test]
    fn a_wrapped_counter_is_the_negative_number_it_is() {
        assert_eq!(
            counter(b"18446744073709551615"),
            Some(Counter {
                value: -1,
                wrapped: true
            })
        );
        assert_eq!(
            counter(b"-12"),
            Some(Counter {
                value: -12,
                wrapped: true
            })
        );
        assert_eq!(
            counter(b"72057594037927865"),
            Some(Counter {
                value: 72_057_594_037_927_865,
                wrapped: false
            })
        );
    }

    #[test]
    fn seconds_keep_their_decimals() {
        assert_eq!(
            take_seconds(b"889.213383: x"),
            Some((889.213_383, b": x".as_slice()))
        );
        assert_eq!(
            take_seconds(b"12345678.123456790"),
            Some((12_345_678.123_456_79, b"".as_slice()))
        );
        assert_eq!(take_seconds(b"889"), None);
    }

    #[test]
    fn sizes_know_their_slack() {
        assert_eq!(
            size(b"256M", 1),
            Some(Size {
                bytes: 256 << 20,
                slack: 1 << 19
            })
        );
        assert_eq!(
            size(b"4.8G", 1).map(|size| size.slack),
            Some((1 << 30) / 10 / 2)
        );
        assert_eq!(
            size(b"134217728", 1),
            Some(Size {
                bytes: 134_217_728,
                slack: 0
            })
        );
        assert_eq!(
            size(b"2095104", 1024).map(|size| size.bytes),
            Some(2_145_386_496)
        );
        assert_eq!(size(b"64.00 GiB", 1).map(|size| size.bytes), Some(64 << 30));
        assert_eq!(size(b"12 parsecs", 1), None);
        assert_eq!(size(b"99999999999999999999G", 1), None);
    }
}
