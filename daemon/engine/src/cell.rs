//! The owner cell: one word for each page, read for block heads only.
//!
//! An all-zero cell means "home, at the section's generation floor", so that a section
//! comes online without touching its cells. The table of cells is
//! [`owners`](crate::owners).
//!
//! Shape, from the lowest bit:
//!
//! | bits | what |
//! |---|---|
//! | 0..20 | generation: of the lend while lent, else the next above the last |
//! | 20..24 | order of the block lent |
//! | 24..26 | migratetype as asked: 1 unmovable, 2 movable, 3 reclaimable; 0 at home |
//! | 26 | written: this cell's generation counts, not the floor |
//! | 27 | shared: several clients hold it, of whom this is one (see [`shares`](crate::shares)) |
//! | 28..32 | 0 |
//! | 32..48 | slot of the client; 0 at home |
//! | 48..64 | incarnation of the client |

use hugepool_mm::{Migratetype, Order};

use crate::id::ClientId;

const ORDER_SHIFT: u32 = 20;
const MIGRATETYPE_SHIFT: u32 = 24;
const WRITTEN: u64 = 1 << 26;
const SHARED: u64 = 1 << 27;
const SLOT_SHIFT: u32 = 32;
const INCARNATION_SHIFT: u32 = 48;
const GENERATION_MASK: u32 = (1 << 20) - 1;

/// What a cell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// Nobody's but the daemon's; the generation is the last used there, or the floor.
    Home {
        /// 20 bits.
        generation: u32,
    },
    /// Heads a block that is a client's.
    Lent(Lent),
}

/// A block in a client's custody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    /// Whose.
    pub client: ClientId,
    /// Its order.
    pub order: Order,
    /// As asked for.
    pub migratetype: Migratetype,
    /// 20 bits.
    pub generation: u32,
    /// Whether others hold it as well.
    pub is_shared: bool,
}

impl Cell {
    /// Reads a word; `floor` is the generation of a cell never written.
    #[inline]
    pub fn decode(word: u64, floor: u32) -> Cell {
        let generation = if word & WRITTEN == 0 {
            floor
        } else {
            field(word, 0, 20)
        };
        let lent = Migratetype::from_index(field_index(word).wrapping_sub(1));
        match (lent, Order::new(low8(word >> ORDER_SHIFT) & 0xf)) {
            (Some(migratetype), Some(order)) => Cell::Lent(Lent {
                client: ClientId {
                    slot: low16(word >> SLOT_SHIFT),
                    incarnation: low16(word >> INCARNATION_SHIFT),
                },
                order,
                migratetype,
                generation,
                is_shared: word & SHARED != 0,
            }),
            _ => Cell::Home { generation },
        }
    }

    /// The word of a page at home at this generation.
    #[inline]
    pub fn home(generation: u32) -> u64 {
        WRITTEN | u64::from(generation & GENERATION_MASK)
    }

    /// The generation, lent or not.
    #[inline]
    pub fn generation(self) -> u32 {
        match self {
            Cell::Home { generation } => generation,
            Cell::Lent(lent) => lent.generation,
        }
    }
}

impl Lent {
    /// The word of the block's head.
    #[inline]
    pub fn encode(self) -> u64 {
        let shared = if self.is_shared { SHARED } else { 0 };
        WRITTEN
            | shared
            | u64::from(self.generation & GENERATION_MASK)
            | u64::from(self.order.get()) << ORDER_SHIFT
            | (self.migratetype.index() as u64 + 1) << MIGRATETYPE_SHIFT
            | u64::from(self.client.slot) << SLOT_SHIFT
            | u64::from(self.client.incarnation) << INCARNATION_SHIFT
    }
}

fn field_index(word: u64) -> usize {
    usize::from(low8(word >> MIGRATETYPE_SHIFT) & 3)
}

fn field(word: u64, shift: u32, bits: u32) -> u32 {
    let [a, b, c, d, ..] = (word >> shift).to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) & ((1 << bits) - 1)
}

fn low8(word: u64) -> u8 {
    let [low, ..] = word.to_le_bytes();
    low
}

fn low16(word: u64) -> u16 {
    let [a, b, ..] = word.to_le_bytes();
    u16::from_le_bytes([a, b])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_cell_is_home_at_the_floor() {
        assert_eq!(Cell::decode(0, 77), Cell::Home { generation: 77 });
        assert_eq!(
            Cell::decode(Cell::home(0), 77),
            Cell::Home { generation: 0 }
        );
    }

    #[test]
    fn a_lent_cell_says_all_again() {
        for (slot, incarnation, order, generation) in [
            (1, 1, 0, 0),
            (u16::MAX, u16::MAX, 15, GENERATION_MASK),
            (7, 300, 9, 12345),
        ] {
            for migratetype in Migratetype::ALL {
                let lent = Lent {
                    client: ClientId { slot, incarnation },
                    order: Order::new(order).unwrap(),
                    migratetype,
                    generation,
                    is_shared: slot == 7,
                };
                assert_eq!(Cell::decode(lent.encode(), 5), Cell::Lent(lent));
            }
        }
    }
}
