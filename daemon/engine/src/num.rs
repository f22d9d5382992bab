//! Small conversions, each written once, because truncating casts are denied.

/// A 32-bit number as an index of a slice: `usize` has at least 32 bits here.
#[inline]
pub(crate) const fn index(value: u32) -> usize {
    value as usize
}

/// A count of things in memory as 64 bits.
#[inline]
pub(crate) const fn count(value: usize) -> u64 {
    value as u64
}

/// A count known to fit 32 bits, or as many as fit.
#[inline]
pub(crate) fn saturate(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
