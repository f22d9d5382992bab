//! Clients that break the rules: whatever they write, nobody else is touched.
//!
//! From its first misdeed on, what a client says it holds is not believed.

use hugepool_engine::{ClaimedRun, FreeBulk};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::raw::{Class, RawPage};
use hugepool_shm::scribble::LaneWord;

use crate::model::Broken;
use crate::world::World;

impl World {
    pub(crate) fn misbehave(&mut self) -> Result<(), Broken> {
        let Some(at) = self.some_tenant(|tenant| tenant.segment.is_some()) else {
            return Ok(());
        };
        self.stop_believing(at)?;
        let Some(segment) = self.tenants[at].segment.clone() else {
            return Ok(());
        };
        let id = self.tenants[at].id;
        let lane = self.prng.below_u32(self.tenants[at].nr_lanes());
        for _ in 0..self.prng.small(4) {
            let deed = self.prng.below(9);
            self.trace.add(format_args!("{id}/{lane} deed {deed}"));
            match deed {
                0 | 1 => self.push_nonsense(at, &segment, lane),
                2 => self.scribble_slots(at, &segment, lane),
                3 => {
                    for _ in 0..self.prng.small(64) {
                        let pfn = self.prng.next_u64().to_le_bytes();
                        let pfn = u32::from_le_bytes([pfn[0], pfn[1], 0, 0]);
                        segment.free_map().set(pfn);
                    }
                }
                4 => self.claim_nonsense(at),
                // In its window for good, or out of it too early.
                5 => {
                    let reach = u64::from(self.prng.below_u32(3) * self.prng.below_u32(2000));
                    segment.scribble(lane, LaneWord::Busy, reach);
                }
                6 => {
                    let epoch = self.prng.next_u64();
                    segment.scribble(lane, LaneWord::Epoch, epoch);
                }
                7 => self.scribble_handles(at, &segment),
                _ => self.scribble_cursor(&segment, lane),
            }
        }
        Ok(())
    }

    /// What the client holds is the model's business no more.
    fn stop_believing(&mut self, at: usize) -> Result<(), Broken> {
        let tenant = &mut self.tenants[at];
        if !tenant.is_honest {
            return Ok(());
        }
        self.follow_moves()?;
        self.forget_movable(at)?;
        let tenant = &mut self.tenants[at];
        tenant.is_honest = false;
        let stopped = tenant.stopped.iter().flat_map(|stopped| &stopped.pages);
        for &page in tenant.held.iter().chain(stopped) {
            self.model.give(tenant.id, page)?;
        }
        Ok(())
    }

    /// A word that it has, that somebody else has, or that nobody ever had.
    fn some_word(&mut self, at: usize) -> RawPage {
        let from = match self.prng.below(4) {
            0 => return RawPage::from_bits(self.prng.next_u64()),
            1 => self.prng.index(self.tenants.len()),
            _ => at,
        };
        let held = &self.tenants[from].held;
        match self.prng.pick(held) {
            Some(&page) if self.prng.chance(1, 4) => {
                // A bit of it changed.
                RawPage::from_bits(page.bits() ^ (1 << self.prng.below(64)))
            }
            Some(&page) => page,
            None => RawPage::from_bits(0),
        }
    }

    fn push_nonsense(&mut self, at: usize, segment: &ControlSegment, lane: u32) {
        let tail = segment.peek(lane, LaneWord::ReturnsTail).unwrap_or(0);
        let mut tail = u32::try_from(tail).unwrap_or(0);
        for _ in 0..self.prng.small(40) {
            let word = self.some_word(at);
            segment.scribble(lane, LaneWord::Return(tail), word.bits());
            tail = tail.wrapping_add(1);
        }
        segment.scribble(lane, LaneWord::ReturnsTail, u64::from(tail));
    }

    fn scribble_slots(&mut self, at: usize, segment: &ControlSegment, lane: u32) {
        for _ in 0..self.prng.small(40) {
            let class = Class::from_index(self.prng.index(15)).unwrap_or(Class::PAGE);
            let slot = self.prng.below_u32(1024);
            let word = self.some_word(at).bits();
            let place = if self.prng.chance(1, 2) {
                LaneWord::Grant(class, slot)
            } else {
                LaneWord::Cached(class, slot)
            };
            segment.scribble(lane, place, word);
        }
    }

    /// Handles that name what is somebody else's, the same block twice, or nothing that there is.
    fn scribble_handles(&mut self, at: usize, segment: &ControlSegment) {
        for _ in 0..self.prng.small(16) {
            let handle = self.prng.below_u32(32);
            let word = self.some_word(at);
            if self.prng.chance(3, 4) {
                segment.handles().fill(handle, word);
            } else {
                segment.scribble_handle(handle, self.prng.next_u64());
            }
        }
    }

    fn scribble_cursor(&mut self, segment: &ControlSegment, lane: u32) {
        let class = Class::from_index(self.prng.index(15)).unwrap_or(Class::PAGE);
        let word = match self.prng.below(5) {
            0 => LaneWord::ReturnsTail,
            1 => LaneWord::GrantsHead(class),
            2 => LaneWord::MagazineBottom(class),
            3 => LaneWord::MagazineTop(class),
            _ => LaneWord::Wanted(class),
        };
        let there = segment.peek(lane, word).unwrap_or(0);
        let value = match self.prng.below(3) {
            0 => self.prng.next_u64(),
            1 => there.wrapping_add(self.prng.below(100)),
            _ => there.wrapping_sub(self.prng.below(100)),
        };
        segment.scribble(lane, word, value);
    }

    fn claim_nonsense(&mut self, at: usize) {
        let mut runs = Vec::new();
        for _ in 0..self.prng.small(8) {
            let word = self.some_word(at);
            runs.push(ClaimedRun {
                first_pfn: word.pfn(),
                nr_blocks: self.prng.small(20),
                order: if self.prng.chance(1, 8) {
                    self.prng.below_u32(80)
                } else {
                    word.order()
                },
                generation: word.generation(),
            });
        }
        let request = FreeBulk {
            request_id: 0,
            acknowledged: 0,
            runs,
        };
        // Whatever the answer is: others are looked at by the checker.
        let _ = self.engine.free_bulk(self.tenants[at].id, &request);
    }
}
