//! What mail and terminals do to a file, undone before any line is looked at.
//!
//! Knows bytes only: a byte-order mark, text of two bytes a character, carriage returns, escape
//! sequences, blanks that do not break, and quoted-printable text with its soft line breaks. It does
//! not know what the lines mean. A file without any of it is borrowed as it is.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// A file with the damage of its journey undone.
pub struct Cleaned<'a> {
    /// The text, lines separated by `\n`.
    pub text: Cow<'a, [u8]>,
    /// The number in the file of each line of `text`, counted from 1; `None` if they are the same.
    pub numbers: Option<Vec<u64>>,
}

/// Cleans a file.
pub fn clean(bytes: &[u8]) -> Cleaned<'_> {
    let bytes: Cow<'_, [u8]> = match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => Cow::Borrowed(rest),
        [0xff, 0xfe, rest @ ..] => Cow::Owned(of_pairs(rest, u16::from_le_bytes)),
        [0xfe, 0xff, rest @ ..] => Cow::Owned(of_pairs(rest, u16::from_be_bytes)),
        _ => Cow::Borrowed(bytes),
    };
    let is_dirty = memchr2(b'\r', b'\x1b', &bytes).is_some() || memchr(0xc2, &bytes).is_some();
    let plain = if is_dirty {
        Cow::Owned(plain(&bytes))
    } else {
        bytes
    };
    if is_quoted_printable(&plain) {
        let (text, numbers) = decode(&plain);
        // What was encoded may be a blank that does not break.
        let text = if memchr(0xc2, &text).is_some() {
            self::plain(&text)
        } else {
            text
        };
        return Cleaned {
            text: Cow::Owned(text),
            numbers: Some(numbers),
        };
    }
    Cleaned {
        text: plain,
        numbers: None,
    }
}

/// Text of two bytes a character, as some terminals save it. Half a character at its end is told as
/// the line that it is in: one that is not understood.
fn of_pairs(bytes: &[u8], order: fn([u8; 2]) -> u16) -> Vec<u8> {
    let (pairs, half) = bytes.as_chunks::<2>();
    let units = pairs.iter().map(|pair| order(*pair));
    let text: String = char::decode_utf16(units)
        .map(|one| one.unwrap_or(char::REPLACEMENT_CHARACTER))
        .chain(half.iter().map(|_| char::REPLACEMENT_CHARACTER))
        .collect();
    text.into_bytes()
}

/// Takes out carriage returns and escape sequences; a blank that does not break becomes a blank.
fn plain(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'\r' => {}
            b'\x1b' => {
                if let Some(body) = tail.strip_prefix(b"[") {
                    let end = body
                        .iter()
                        .position(|byte| (0x40..=0x7e).contains(byte) || *byte == b'\n');
                    rest = match end {
                        Some(end) if body[end] != b'\n' => &body[end + 1..],
                        Some(end) => &body[end..],
                        None => &[],
                    };
                }
            }
            0xc2 if tail.first() == Some(&0xa0) => {
                out.push(b' ');
                rest = &tail[1..];
            }
            other => out.push(other),
        }
    }
    out
}

/// The two hexadecimal digits behind an equals sign, as quoted-printable writes them.
fn escaped(tail: &[u8]) -> Option<u8> {
    let digit = |byte: u8| {
        if byte.is_ascii_lowercase() {
            None
        } else {
            char::from(byte).to_digit(16)
        }
    };
    let (high, low) = (digit(*tail.first()?)?, digit(*tail.get(1)?)?);
    u8::try_from(high * 16 + low).ok()
}

/// Whether an escape is one that mail programs write: of an equals sign, of a byte that is not
/// ASCII, or of a blank at the end of a line. `nr_taken=128` is none, though 12 is hexadecimal.
fn is_mailers(tail: &[u8]) -> bool {
    match escaped(tail) {
        Some(b'=' | 0x80..) => true,
        Some(b' ' | b'\t') => matches!(tail.get(2), None | Some(b'\n' | b'=')),
        _ => false,
    }
}

/// Whether every equals sign (but few) is one that quoted-printable text can have, and there is one.
///
/// A soft break ends a line of at most 76 characters; a line of equals signs is a rule, not a break.
fn is_quoted_printable(bytes: &[u8]) -> bool {
    let (mut good, mut bad) = (0_u32, 0_u32);
    let mut start = 0;
    while let Some(found) = memchr(b'=', &bytes[start..]) {
        let at = start + found;
        let tail = &bytes[at + 1..];
        start = at + 1;
        if tail.first() == Some(&b'\n') {
            let line = bytes[..at]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |newline| newline + 1);
            let doubled = at > line && bytes[at - 1] == b'=';
            if doubled || at - line > 75 || at == line {
                bad += 1
            } else {
                good += 1
            }
        } else if is_mailers(tail) {
            good += 1;
        } else {
            bad += 1;
            // Most files are not mail and full of `key=value`: they are told apart early.
            if bad > 16 && good < bad {
                return false;
            }
        }
    }
    good > 0 && bad * 8 <= good
}

/// Decodes quoted-printable text, and keeps the number of the first line of each joined one.
fn decode(bytes: &[u8]) -> (Vec<u8>, Vec<u64>) {
    let mut out = Vec::with_capacity(bytes.len());
    let mut numbers = vec![1];
    let mut number = 1;
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'=' if tail.first() == Some(&b'\n') => {
                number += 1;
                rest = &tail[1..];
            }
            b'=' => match escaped(tail) {
                Some(byte) => {
                    // A decoded line feed would shift all line numbers; a blank keeps the words apart.
                    out.push(if byte == b'\n' || byte == b'\r' {
                        b' '
                    } else {
                        byte
                    });
                    rest = &tail[2..];
                }
                None => out.push(b'='),
            },
            b'\n' => {
                number += 1;
                out.push(b'\n');
                numbers.push(number);
            }
            other => out.push(other),
        }
    }
    (out, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_file_is_borrowed() {
        let cleaned = clean(b"Node 0, zone DMA 1 2 3\nkey=value\n");
        assert!(matches!(cleaned.text, Cow::Borrowed(_)));
        assert_eq!(cleaned.numbers, None);
    }

    #[test]
    fn soft_breaks_join_and_keep_the_first_number() {
        let cleaned = clean(b"a\n[mem =\n0x0-0x1]\nnodemask=3D(null)\n");
        assert_eq!(
            cleaned.text.as_ref(),
            b"a\n[mem 0x0-0x1]\nnodemask=(null)\n"
        );
        assert_eq!(cleaned.numbers, Some(vec![1, 2, 4, 5]));
    }

    #[test]
    fn a_rule_of_equals_signs_is_no_soft_break() {
        let cleaned = clean(b"Address range\n=====\n0x0-0x1\n");
        assert_eq!(cleaned.text.as_ref(), b"Address range\n=====\n0x0-0x1\n");
    }

    #[test]
    fn keys_with_values_are_no_escapes() {
        let text = b"nr_scanned=100 nr_taken=12\nzone_start=4096 zone_end=229376\norder=20\n";
        assert!(matches!(clean(text).text, Cow::Borrowed(_)));
    }

    #[test]
    fn two_bytes_a_character_are_one_text_in_either_order() {
        let text = "Node 0, zone DMA\r\n1\n";
        let units: Vec<u16> = text.encode_utf16().collect();
        let little: Vec<u8> = [0xfeff]
            .iter()
            .chain(&units)
            .flat_map(|unit| unit.to_le_bytes())
            .collect();
        let mut big: Vec<u8> = [0xfeff]
            .iter()
            .chain(&units)
            .flat_map(|unit| unit.to_be_bytes())
            .collect();
        assert_eq!(clean(&little).text.as_ref(), b"Node 0, zone DMA\n1\n");
        big.push(0);
        let cut = "Node 0, zone DMA\n1\n\u{fffd}";
        assert_eq!(clean(&big).text.as_ref(), cut.as_bytes());
    }

    #[test]
    fn terminal_dirt_is_gone() {
        let cleaned = clean(b"\xef\xbb\xbf\x1b[1;31mfree\x1b[0m\xc2\xa01\r\n\x1b[");
        assert_eq!(cleaned.text.as_ref(), b"free 1\n");
    }
}
