//! What has gone through a lane and what lies in it, read off its cursors.
//!
//! Nothing is counted for this on the fast path. The sums add up:
//! `granted + brought = returned + mapped frees + recalled + cached + held + taken away`, and so
//! the client knows how many pages it still holds without keeping a count of them.

use crate::layout::{LANE_CLASSES, Lane};
use crate::sync::{Acquire, Relaxed};

/// What has gone through a lane so far, modulo 2^32, and what lies in it, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Taken from grants.
    pub nr_granted: u32,
    /// Put into `returns`, notices of parcels among them.
    pub nr_returned: u32,
    /// Freed through the free map.
    pub nr_mapped_frees: u32,
    /// Taken out of magazines by recalls.
    pub nr_recalled: u32,
    /// Asked for and not there.
    pub nr_wanted: u32,
    /// In magazines now.
    pub nr_cached: u32,
    /// In grants now.
    pub nr_waiting: u32,
}

impl LaneStats {
    /// Reads a lane. Where nobody takes any more, [`LaneStats::nr_out`] is never too low: what
    /// blocks move into is read before what they move out of.
    pub(crate) fn of(lane: &Lane) -> LaneStats {
        let mut stats = LaneStats {
            // SYNC(lane.counts): pairs with `free_into_map`.
            nr_mapped_frees: lane.client.nr_mapped_frees.load(Acquire),
            // SYNC(ring.tail): pairs with the push of a spill, after its blocks' leaving the
            // magazine.
            nr_returned: lane.client.returns_tail.load(Acquire),
            ..LaneStats::default()
        };
        let classes = &lane.classes[..LANE_CLASSES];
        for words in classes {
            // SYNC(lane.recalled): pairs with the recall, after its emptying the magazine.
            let nr_recalled = words.settings.nr_recalled.load(Acquire);
            stats.nr_recalled = stats.nr_recalled.wrapping_add(nr_recalled);
        }
        for words in classes {
            let (bottom, top) = (&words.client.mag_bottom, &words.client.mag_top);
            let nr_cached = top.load(Relaxed).wrapping_sub(bottom.load(Relaxed));
            let nr_last = u32::from(words.client.mag_last.load(Relaxed) != 0);
            stats.nr_cached = stats
                .nr_cached
                .wrapping_add(nr_cached.wrapping_add(nr_last));
            let head = words.client.grants_head.load(Relaxed);
            stats.nr_granted = stats.nr_granted.wrapping_add(head);
            let nr_waiting = words.granted.grants_tail.load(Relaxed).wrapping_sub(head);
            stats.nr_waiting = stats.nr_waiting.wrapping_add(nr_waiting);
            stats.nr_wanted = stats
                .nr_wanted
                .wrapping_add(words.client.wanted.load(Relaxed));
        }
        stats
    }

    /// Adds another lane's.
    #[must_use]
    pub fn plus(self, other: LaneStats) -> LaneStats {
        LaneStats {
            nr_granted: self.nr_granted.wrapping_add(other.nr_granted),
            nr_returned: self.nr_returned.wrapping_add(other.nr_returned),
            nr_mapped_frees: self.nr_mapped_frees.wrapping_add(other.nr_mapped_frees),
            nr_recalled: self.nr_recalled.wrapping_add(other.nr_recalled),
            nr_wanted: self.nr_wanted.wrapping_add(other.nr_wanted),
            nr_cached: self.nr_cached.wrapping_add(other.nr_cached),
            nr_waiting: self.nr_waiting.wrapping_add(other.nr_waiting),
        }
    }

    /// Blocks that came out of grants and are neither home nor cached, modulo 2^32: what is held,
    /// less what came in other ways, plus what left in other ways.
    pub fn nr_out(self) -> u32 {
        self.nr_granted
            .wrapping_sub(self.nr_returned)
            .wrapping_sub(self.nr_mapped_frees)
            .wrapping_sub(self.nr_recalled)
            .wrapping_sub(self.nr_cached)
    }
}
