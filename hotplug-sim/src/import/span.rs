//! Ranges of addresses as the kernel prints them, with the last byte included.

use super::text::{strip, take_hex};

/// `[mem 0x0000000000001000-0x0000000000ffffff]`, also without `mem`, with ` - ` or with a colon:
/// first byte, one past the last byte, and what follows the bracket.
pub fn mem_range(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let inside = strip(bytes.trim_ascii_start(), "[")?;
    let inside = strip(inside, "mem").unwrap_or(inside).trim_ascii_start();
    let (start, end, rest) = hex_range(inside)?;
    let close = rest.iter().position(|byte| *byte == b']')?;
    Some((start, end, &rest[close + 1..]))
}

/// `0x0-0xfff` or `0x0 - 0xfff`: first byte, one past the last byte, and what follows. A range
/// that ends before it starts, or beyond all addresses, is none.
pub fn hex_range(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (start, rest) = take_hex(bytes)?;
    let rest = strip(rest.trim_ascii_start(), "-")?.trim_ascii_start();
    let (last, rest) = take_hex(rest)?;
    let end = last.checked_add(1)?;
    (end > start).then_some((start, end, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_exclusive() {
        assert_eq!(
            mem_range(b"[mem 0x1000-0xffffff] usable"),
            Some((0x1000, 0x100_0000, b" usable".as_slice()))
        );
        assert_eq!(
            mem_range(b"[0x40000000 - 0x7fffffff] on node 0"),
            Some((0x4000_0000, 0x8000_0000, b" on node 0".as_slice()))
        );
        assert_eq!(mem_range(b"[mem 0x1000-0xffff"), None);
        assert_eq!(mem_range(b"[mem 0x1000-0xff]"), None);
        assert_eq!(mem_range(b"[mem 0x0-0xffffffffffffffff]"), None);
    }
}
