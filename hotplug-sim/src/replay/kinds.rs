//! What kind of pages a trace asked for: a number whose meaning changed, or the flags beside it.
//!
//! Kernels print the migratetype as a number. 0 was always Unmovable; up to 4.3 1 was
//! Reclaimable and 2 Movable, since 4.4 (commit 016c13daa5c9) it is the other way round. Where the flags are printed as words they say which, line by line; without a
//! line that does, the newer order is taken, and the report says so.

use hugepool_mm::Migratetype;

use crate::import::event::{Event, EventKind};
use crate::import::events::Events;

/// How numbers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// 1 is Movable, and 2 Reclaimable.
    pub is_new: bool,
    /// The flags of some line say so.
    pub is_known: bool,
}

fn flag_says(gfp: &str) -> Option<Migratetype> {
    if gfp.contains("RECLAIMABLE") {
        return Some(Migratetype::Reclaimable);
    }
    let movable = gfp.contains("MOVABLE") || gfp.contains("GFP_TRANSHUGE");
    movable.then_some(Migratetype::Movable)
}

impl Numbering {
    /// The numbering that most lines with words for flags agree with.
    pub fn of(events: &Events) -> Numbering {
        let (mut new, mut old) = (0_u64, 0_u64);
        let allocs = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Alloc | EventKind::AllocFailed));
        for event in allocs {
            match (event.migratetype, event.gfp.and_then(flag_says)) {
                (Some("1"), Some(Migratetype::Movable)) => new += 1,
                (Some("2"), Some(Migratetype::Reclaimable)) => new += 1,
                (Some("2"), Some(Migratetype::Movable)) => old += 1,
                (Some("1"), Some(Migratetype::Reclaimable)) => old += 1,
                _ => {}
            }
        }
        Numbering {
            is_new: old <= new,
            is_known: old != new,
        }
    }

    /// What an allocation asked for. CMA counts as Movable, HighAtomic as Unmovable; where
    /// nothing is said, `None`.
    pub fn kind(self, event: &Event<'_>) -> Option<Migratetype> {
        match event.migratetype {
            Some("0") => Some(Migratetype::Unmovable),
            Some("1") if self.is_new => Some(Migratetype::Movable),
            Some("2") if self.is_new => Some(Migratetype::Reclaimable),
            Some("1") => Some(Migratetype::Reclaimable),
            Some("2") => Some(Migratetype::Movable),
            Some(name) if name.eq_ignore_ascii_case("movable") => Some(Migratetype::Movable),
            Some(name) if name.eq_ignore_ascii_case("cma") => Some(Migratetype::Movable),
            Some(name) if name.eq_ignore_ascii_case("reclaimable") => {
                Some(Migratetype::Reclaimable)
            }
            Some(name) if name.eq_ignore_ascii_case("unmovable") => Some(Migratetype::Unmovable),
            Some(name) if name.eq_ignore_ascii_case("highatomic") => Some(Migratetype::Unmovable),
            _ => event.gfp.and_then(flag_says),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(lines: &[(&str, &str)]) -> Events {
        let mut events = Events::default();
        for (migratetype, gfp) in lines {
            let mut event = Event::new(EventKind::Alloc, 1);
            event.migratetype = Some(migratetype);
            event.gfp = Some(gfp);
            events.push(event);
        }
        events
    }

    #[test]
    fn flags_tell_an_old_kernel_from_a_new_one() {
        let new = events(&[("1", "GFP_HIGHUSER_MOVABLE"), ("0", "GFP_KERNEL")]);
        let old = events(&[
            ("2", "GFP_HIGHUSER_MOVABLE"),
            ("1", "GFP_KERNEL|__GFP_RECLAIMABLE"),
        ]);
        let mute = events(&[("1", "0x140cca")]);
        assert!(Numbering::of(&new).is_new && Numbering::of(&new).is_known);
        assert!(!Numbering::of(&old).is_new && Numbering::of(&old).is_known);
        assert!(Numbering::of(&mute).is_new && !Numbering::of(&mute).is_known);
        let one = old.get(0).expect("it was pushed");
        assert_eq!(Numbering::of(&old).kind(&one), Some(Migratetype::Movable));
    }
}
