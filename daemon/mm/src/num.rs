//! Small conversions, each written once.
//!
//! Truncating casts are denied in this project, so the few places where a number
//! changes its width go through here and say why nothing is lost.

/// A 32-bit index as an index of a slice: `usize` has at least 32 bits here.
#[inline]
pub(crate) const fn index(value: u32) -> usize {
    value as usize
}

/// A length or position that is known to lie below 2^32.
///
/// # Panics
/// If it does not: spans are at most 2^32 pages, so a count of anything per page fits.
#[inline]
pub(crate) fn to_u32(value: usize) -> u32 {
    u32::try_from(value).expect("positions inside a zone fit 32 bits")
}

/// A count of pages that is known to lie below 2^32.
///
/// # Panics
/// If it does not.
#[inline]
pub(crate) fn low_u32(value: u64) -> u32 {
    u32::try_from(value).expect("a page number inside a zone fits 32 bits")
}

/// `nr` ones at the bottom of a word, `nr <= 64`.
#[inline]
pub(crate) const fn low_bits(nr: u32) -> u64 {
    if nr >= 64 { u64::MAX } else { (1 << nr) - 1 }
}

/// The word a bit lies in, and the bit alone.
#[inline]
pub(crate) const fn word_bit(at: u32) -> (usize, u64) {
    (index(at >> 6), 1 << (at & 63))
}
