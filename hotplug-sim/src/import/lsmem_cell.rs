//! The columns of `lsmem`, and what can stand in them.

use super::model::SectionState;
use super::span::hex_range;
use super::text::{self, dec};

/// A column of `lsmem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// First and last byte.
    Range,
    /// Size of the range, rounded.
    Size,
    /// Online or not.
    State,
    /// Whether the kernel thought it could go.
    Removable,
    /// Number of a block, or of the first and the last.
    Block,
    /// NUMA node.
    Node,
    /// Zones, the owner first.
    Zones,
    /// Columns of newer versions that the model has no place for.
    Other,
}

impl Cell {
    /// The columns in their usual order.
    pub const ALL: [Cell; 7] = [
        Cell::Range,
        Cell::Size,
        Cell::State,
        Cell::Removable,
        Cell::Block,
        Cell::Node,
        Cell::Zones,
    ];

    /// The column of that name.
    pub fn named(name: &[u8]) -> Option<Cell> {
        Some(match name {
            b"RANGE" => Cell::Range,
            b"SIZE" => Cell::Size,
            b"STATE" => Cell::State,
            b"REMOVABLE" => Cell::Removable,
            b"BLOCK" => Cell::Block,
            b"NODE" => Cell::Node,
            b"ZONES" => Cell::Zones,
            b"CONFIGURED" | b"MEMMAP-ON-MEMORY" | b"MEMMAP_ON_MEMORY" => Cell::Other,
            _ => return None,
        })
    }

    /// Whether a word can stand in this column.
    pub fn accepts(self, word: &[u8]) -> bool {
        match self {
            Cell::Range => hex_range(word).is_some_and(|(.., rest)| rest.is_empty()),
            Cell::Size => text::size(word, 1).is_some() && !word.starts_with(b"0x"),
            Cell::State => Cell::state(word).is_some(),
            Cell::Removable | Cell::Other => matches!(word, b"yes" | b"no" | b"-" | b"?"),
            Cell::Block => blocks(word).is_some(),
            Cell::Node => word == b"-" || dec(word).is_some(),
            Cell::Zones => word.first().is_some_and(u8::is_ascii_alphabetic),
        }
    }

    /// A state by its word; the outer `None` is a word that is none, the inner an unknown state.
    pub fn state(word: &[u8]) -> Option<Option<SectionState>> {
        match word {
            b"online" => Some(Some(SectionState::Online)),
            b"offline" => Some(Some(SectionState::Offline)),
            b"on->off" | b"going-offline" => Some(Some(SectionState::GoingOffline)),
            b"?" | b"-" | b"unknown" => Some(None),
            _ => None,
        }
    }
}

/// `0-6` or `7`.
pub fn blocks(word: &[u8]) -> Option<(u64, u64)> {
    let (first, rest) = text::take_dec(word)?;
    let last = match text::strip(rest, "-") {
        Some(last) => dec(last)?,
        None if rest.is_empty() => first,
        None => return None,
    };
    (last >= first).then_some((first, last))
}
