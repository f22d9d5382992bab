//! What kind of page a request asks for, and what kind a pageblock serves.
//!
//! The type of a *pageblock* decides which requests it serves first; the order in
//! which a request may go elsewhere is the kernel's. Isolation is not a type here
//! but a bit beside it, so that undoing it restores the type exactly.

use core::fmt;

/// Mobility of a page as asked for, and of the requests a pageblock serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Migratetype {
    /// Stays where it is until it is freed.
    Unmovable,
    /// May be moved by the daemon while nobody pins it.
    Movable,
    /// May be moved, and taken away under pressure (evictable).
    Reclaimable,
}

impl Migratetype {
    /// All types, in index order.
    pub const ALL: [Migratetype; 3] = [
        Migratetype::Unmovable,
        Migratetype::Movable,
        Migratetype::Reclaimable,
    ];

    /// Position in tables by type, `0..3`.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The type at a table position, if there is one.
    #[must_use]
    pub const fn from_index(index: usize) -> Option<Migratetype> {
        match index {
            0 => Some(Migratetype::Unmovable),
            1 => Some(Migratetype::Movable),
            2 => Some(Migratetype::Reclaimable),
            _ => None,
        }
    }

    /// Where a request of this type turns when its own pageblocks have nothing,
    /// best first (the kernel's table).
    #[must_use]
    pub const fn fallbacks(self) -> [Migratetype; 2] {
        use Migratetype::{Movable, Reclaimable, Unmovable};
        match self {
            Unmovable => [Reclaimable, Movable],
            Movable => [Reclaimable, Unmovable],
            Reclaimable => [Unmovable, Movable],
        }
    }

    /// The name used in `/proc/pagetypeinfo`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Migratetype::Unmovable => "Unmovable",
            Migratetype::Movable => "Movable",
            Migratetype::Reclaimable => "Reclaimable",
        }
    }
}

impl fmt::Display for Migratetype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_type_falls_back_to_itself() {
        for mt in Migratetype::ALL {
            assert!(!mt.fallbacks().contains(&mt));
            assert_eq!(Migratetype::from_index(mt.index()), Some(mt));
        }
    }
}
