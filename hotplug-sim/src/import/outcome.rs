//! What a parser says of a line.

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was understood and said something.
    Yes,
    /// It was recognised and carries nothing: a header, an elision, a call chain.
    Empty,
    /// It begins something that its continuation ends; nothing has been written yet.
    More,
    /// It is not of this family.
    No,
}

/// A zone heading of `/proc`: `Node 0, zone   Normal`, and what follows the name.
///
/// The name of pagetypeinfo ends in a comma, which is taken off.
pub fn zone_heading(body: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let rest = super::text::strip(body, "Node")?;
    let (node, rest) = super::text::take_dec(rest.trim_ascii_start())?;
    let rest = super::text::strip(rest.trim_ascii_start(), ",")?;
    let rest = super::text::strip(rest.trim_ascii_start(), "zone")?;
    if !rest.first().is_some_and(u8::is_ascii_whitespace) {
        return None;
    }
    let (name, rest) = super::text::word(rest);
    let name = name
        .strip_suffix(b",")
        .or_else(|| name.strip_suffix(b":"))
        .unwrap_or(name);
    let sound = name.first().is_some_and(u8::is_ascii_alphabetic)
        && name.iter().all(u8::is_ascii_alphanumeric);
    sound.then_some((u32::try_from(node).ok()?, name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_of_all_three_files_are_one() {
        assert_eq!(
            zone_heading(b"Node 0, zone   Normal"),
            Some((0, b"Normal".as_slice(), b"".as_slice()))
        );
        assert_eq!(
            zone_heading(b"Node 1, zone Normal 1 2"),
            Some((1, b"Normal".as_slice(), b" 1 2".as_slice()))
        );
        assert_eq!(
            zone_heading(b"Node    0, zone      DMA, type CMA"),
            Some((0, b"DMA".as_slice(), b" type CMA".as_slice()))
        );
        assert_eq!(zone_heading(b"Node 0 DMA free:1kB"), None);
        assert_eq!(zone_heading(b"Node 0, zone"), None);
    }
}
