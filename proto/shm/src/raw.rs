//! The page word: how one process names a page to another, in 8 bytes.
//!
//! A [`RawPage`] read from shared memory is a *claim*: it has no arithmetic here, and becomes a
//! page frame number of the allocator only where range, owner and generation are checked.
//! Which of a lane's caches a block belongs to says its [`Class`](crate::class::Class).
//!
//! Shape, from the lowest bit:
//!
//! | bits | what |
//! |---|---|
//! | 0..32 | pfn, unique over all zones |
//! | 32..36 | order: the block has `2^order` pages |
//! | 36..38 | migratetype as asked: 1 unmovable, 2 movable, 3 reclaimable (so the word is never 0) |
//! | 38..41 | zone index |
//! | 41..44 | client index in the process that holds it |
//! | 44..64 | generation: the number of the lend, compared serially |

use core::num::NonZeroU64;

pub use crate::class::{Class, NR_CLASSES, NR_ORDER_SLOTS, NR_SMALL_ORDERS};

/// Highest order that fits into a page word.
pub const ORDER_MAX: u32 = 15;
/// Zones that a page word can tell apart.
pub const NR_ZONES: usize = 8;
/// Clients that one process may have at once.
pub const NR_CLIENTS: usize = 8;
/// Generations are counted modulo two to this.
pub const GENERATION_BITS: u32 = 20;
/// Migratetypes that can be asked for.
pub const NR_MIGRATETYPES: usize = 3;

const ORDER_SHIFT: u32 = 32;
const MIGRATETYPE_SHIFT: u32 = 36;
const ZONE_SHIFT: u32 = 38;
const CLIENT_SHIFT: u32 = 41;
const GENERATION_SHIFT: u32 = 64 - GENERATION_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

/// The bits that two pages share when they may lie in the same magazine.
pub(crate) const KEY_MASK: u64 = (1 << GENERATION_SHIFT) - (1 << ORDER_SHIFT);

/// What kind of contents the asker promised: whether its pages may be moved, or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RawMigratetype {
    /// Stays where it is.
    Unmovable = 1,
    /// May be moved while nobody pins it.
    Movable = 2,
    /// May be taken away under pressure.
    Reclaimable = 3,
}

impl RawMigratetype {
    /// All of them, in the order of their numbers.
    pub const ALL: [RawMigratetype; NR_MIGRATETYPES] = [
        RawMigratetype::Unmovable,
        RawMigratetype::Movable,
        RawMigratetype::Reclaimable,
    ];

    /// The type with this number (1..=3), if there is one.
    pub const fn new(number: u32) -> Option<RawMigratetype> {
        match number {
            1 => Some(RawMigratetype::Unmovable),
            2 => Some(RawMigratetype::Movable),
            3 => Some(RawMigratetype::Reclaimable),
            _ => None,
        }
    }

    /// Its number in the page word, 1..=3.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The parts of a page word, before they are packed or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageParts {
    /// Page frame number of the block's first page, unique over all zones.
    pub pfn: u32,
    /// The block has `2^order` pages; at most [`ORDER_MAX`].
    pub order: u32,
    /// As asked for.
    pub migratetype: RawMigratetype,
    /// Index of the zone, below [`NR_ZONES`].
    pub zone: u32,
    /// Index of the client in its process, below [`NR_CLIENTS`].
    pub client: u32,
    /// Number of the lend, taken modulo `2^20`.
    pub generation: u32,
}

impl PageParts {
    /// Packs the parts, if each fits its field; the generation is cut to its 20 bits.
    pub const fn pack(self) -> Option<RawPage> {
        if self.order > ORDER_MAX
            || self.zone as usize >= NR_ZONES
            || self.client as usize >= NR_CLIENTS
        {
            return None;
        }
        Some(RawPage(
            self.pfn as u64
                | (self.order as u64) << ORDER_SHIFT
                | (self.migratetype as u64) << MIGRATETYPE_SHIFT
                | (self.zone as u64) << ZONE_SHIFT
                | (self.client as u64) << CLIENT_SHIFT
                | ((self.generation & GENERATION_MASK) as u64) << GENERATION_SHIFT,
        ))
    }
}

/// A page word: from this process a name, from another a claim.
///
/// Any 64 bits may be in one, so that a claim can be carried to where it is judged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct RawPage(u64);

impl RawPage {
    /// The word with these bits, whatever they are.
    pub const fn from_bits(bits: u64) -> RawPage {
        RawPage(bits)
    }

    /// The word's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The word's bits, unless they are all zero.
    pub const fn non_zero(self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0)
    }

    /// Page frame number.
    pub const fn pfn(self) -> u32 {
        low32(self.0)
    }

    /// Order, 0..=15.
    pub const fn order(self) -> u32 {
        self.field(ORDER_SHIFT, 4)
    }

    /// Migratetype as asked, unless the field holds 0.
    pub const fn migratetype(self) -> Option<RawMigratetype> {
        RawMigratetype::new(self.field(MIGRATETYPE_SHIFT, 2))
    }

    /// Zone index, 0..8.
    pub const fn zone(self) -> u32 {
        self.field(ZONE_SHIFT, 3)
    }

    /// Client index in the process that holds the page, 0..8.
    pub const fn client(self) -> u32 {
        self.field(CLIENT_SHIFT, 3)
    }

    /// Number of the lend, modulo `2^20`.
    pub const fn generation(self) -> u32 {
        self.field(GENERATION_SHIFT, GENERATION_BITS)
    }

    /// The parts, unless the migratetype is missing: nothing else can be wrong in shape.
    pub const fn parts(self) -> Option<PageParts> {
        let Some(migratetype) = self.migratetype() else {
            return None;
        };
        Some(PageParts {
            pfn: self.pfn(),
            order: self.order(),
            migratetype,
            zone: self.zone(),
            client: self.client(),
            generation: self.generation(),
        })
    }

    /// A word that names a block by what no holder can change, whoever it is.
    ///
    /// # Panics
    /// If the order is above [`ORDER_MAX`].
    #[must_use]
    pub const fn of_block(pfn: u32, order: u32, generation: u32) -> RawPage {
        let parts = PageParts {
            pfn,
            order,
            migratetype: RawMigratetype::Unmovable,
            zone: 0,
            client: 0,
            generation,
        };
        parts.pack().expect("an order of four bits")
    }

    /// The same word for a client at another index of its process.
    #[must_use]
    pub const fn with_client(self, client: u32) -> RawPage {
        let mask = (NR_CLIENTS as u64 - 1) << CLIENT_SHIFT;
        RawPage(self.0 & !mask | ((client as u64) << CLIENT_SHIFT & mask))
    }

    /// The word that the next holder has of the same block, one generation later, as the client
    /// at this index of its process.
    #[must_use]
    #[inline]
    pub const fn handed_on(self, client: u32) -> RawPage {
        // The generation stands highest, so it goes round by itself.
        RawPage(self.0.wrapping_add(1 << GENERATION_SHIFT)).with_client(client)
    }

    /// Order, migratetype and zone as one number of 9 bits.
    #[inline(always)]
    pub(crate) const fn class_key(self) -> usize {
        self.field(ORDER_SHIFT, CLIENT_SHIFT - ORDER_SHIFT) as usize
    }

    /// A word of pfn 0 with this order, migratetype and zone.
    pub(crate) const fn of_class_key(key: u64) -> RawPage {
        RawPage(key << ORDER_SHIFT)
    }

    /// Bits as words.
    pub(crate) const fn of_bits(bits: &[u64]) -> &[RawPage] {
        // SAFETY: `RawPage` is `repr(transparent)` over `u64`, any of which it may hold.
        unsafe { core::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
    }

    /// The words' bits.
    pub(crate) const fn bits_of(raws: &[RawPage]) -> &[u64] {
        // SAFETY: `RawPage` is `repr(transparent)` over `u64`, so both slices have the same
        // layout and validity.
        unsafe { core::slice::from_raw_parts(raws.as_ptr().cast(), raws.len()) }
    }

    /// The words' bits, to be overwritten.
    pub(crate) const fn bits_of_mut(raws: &mut [RawPage]) -> &mut [u64] {
        // SAFETY: `RawPage` is `repr(transparent)` over `u64` and any bits are one, so whatever
        // is written is valid; the result borrows the only reference.
        unsafe { core::slice::from_raw_parts_mut(raws.as_mut_ptr().cast(), raws.len()) }
    }

    /// The field of `bits` bits at `shift`; `bits` is at most 31 for every field.
    const fn field(self, shift: u32, bits: u32) -> u32 {
        low32(self.0 >> shift) & ((1 << bits) - 1)
    }
}

impl core::fmt::Debug for RawPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "RawPage({:#018x}: pfn {}, order {}, type {}, zone {}, client {}, generation {})",
            self.0,
            self.pfn(),
            self.order(),
            self.field(MIGRATETYPE_SHIFT, 2),
            self.zone(),
            self.client(),
            self.generation()
        )
    }
}

/// The low half; meant where the high half is known not to matter.
#[expect(
    clippy::cast_possible_truncation,
    reason = "cutting off is what it is for"
)]
pub(crate) const fn low32(bits: u64) -> u32 {
    bits as u32
}

/// Whether generation `a` is before `b`, counted modulo `2^20` (serial arithmetic).
pub const fn is_before(a: u32, b: u32) -> bool {
    let distance = b.wrapping_sub(a) & GENERATION_MASK;
    distance != 0 && distance < 1 << (GENERATION_BITS - 1)
}

/// The generation after `generation`, modulo `2^20`.
pub const fn next_generation(generation: u32) -> u32 {
    generation.wrapping_add(1) & GENERATION_MASK
}

const _: () = assert!(size_of::<RawPage>() == 8);
const _: () = assert!(KEY_MASK == 0x0000_0fff_0000_0000);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_come_back_as_they_were_packed(
            pfn: u32, order in 0..=ORDER_MAX, mt in 1u32..=3, zone in 0u32..8,
            client in 0u32..8, generation in 0u32..=GENERATION_MASK,
        ) {
            let migratetype = RawMigratetype::new(mt).unwrap();
            let parts = PageParts { pfn, order, migratetype, zone, client, generation };
            let raw = parts.pack().unwrap();
            prop_assert_eq!(raw.parts(), Some(parts));
            prop_assert!(raw.non_zero().is_some());
            let handed = PageParts { client: 7 - client, generation: next_generation(generation), ..parts };
            prop_assert_eq!(raw.handed_on(7 - client).parts(), Some(handed));
            let moved = raw.with_client(7 - client);
            prop_assert_eq!(moved.parts(), Some(PageParts { client: 7 - client, ..parts }));
        }

        #[test]
        fn any_bits_can_be_looked_at(bits: u64) {
            let raw = RawPage::from_bits(bits);
            let _ = format!("{raw:?}");
            prop_assert_eq!(raw.bits(), bits);
            if let Some(parts) = raw.parts() {
                prop_assert_eq!(parts.pack(), Some(raw));
            }
        }

        #[test]
        fn a_generation_is_before_its_successor_only(generation in 0..=GENERATION_MASK) {
            let next = next_generation(generation);
            prop_assert!(is_before(generation, next));
            prop_assert!(!is_before(next, generation));
            prop_assert!(!is_before(generation, generation));
        }
    }

    #[test]
    fn parts_too_large_for_their_field_are_refused() {
        let fits = PageParts {
            pfn: 0,
            order: 0,
            migratetype: RawMigratetype::Movable,
            zone: 0,
            client: 0,
            generation: 0,
        };
        assert!(fits.pack().is_some());
        assert_eq!(PageParts { order: 16, ..fits }.pack(), None);
        assert_eq!(PageParts { zone: 8, ..fits }.pack(), None);
        assert_eq!(PageParts { client: 8, ..fits }.pack(), None);
    }
}
