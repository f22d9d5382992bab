//! What stands in a page: whose it is, at eight places from its first to its last word.

use crate::said::Kind;

/// Places in a block at which the mark stands.
const PLACES: usize = 8;

/// Tells one place from the next.
const STEP: u64 = 0x0101_0101_0101_0101;

fn offsets(len: usize) -> impl Iterator<Item = (usize, u64)> {
    (0..PLACES).map(move |at| {
        let offset = (len - 8) * at / (PLACES - 1);
        // A word may not overlap its neighbour: whole words only.
        (offset & !7, STEP.wrapping_mul(at as u64))
    })
}

/// Writes it into a block.
pub fn stamp(bytes: &mut [u8], mark: u64) {
    for (offset, step) in offsets(bytes.len()) {
        bytes[offset..offset + 8].copy_from_slice(&mark.wrapping_add(step).to_le_bytes());
    }
}

/// What stands in a block; none if its places differ.
pub fn read(bytes: &[u8]) -> Option<u64> {
    let mut words = offsets(bytes.len()).map(|(offset, step)| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[offset..offset + 8]);
        u64::from_le_bytes(word).wrapping_sub(step)
    });
    let first = words.next()?;
    words.all(|word| word == first).then_some(first)
}

/// What is wrong with a block that should bear this mark.
pub fn wrong(bytes: &[u8], mark: u64) -> Option<Kind> {
    match read(bytes) {
        Some(there) if there == mark => None,
        // A whole mark of somebody else's: two have it.
        Some(_) => Some(Kind::Doubled),
        None => Some(Kind::Corrupt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_told_from_anothers_and_from_half_of_one() {
        let mut page = vec![0; 4096];
        stamp(&mut page, 77);
        assert_eq!(wrong(&page, 77), None);
        assert_eq!(wrong(&page, 78), Some(Kind::Doubled));
        page[4095] ^= 1;
        assert_eq!(wrong(&page, 77), Some(Kind::Corrupt));
    }
}
