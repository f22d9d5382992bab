//! A small generator: the same seed, the same choices.

use std::time::Duration;

/// Xorshift, never 0.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        // Neighbouring seeds are to differ from the first draw on.
        let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Chance((mixed ^ mixed >> 31) | 1)
    }

    /// The next number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// The next index into so many things, at least one.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// A time between these.
    pub fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        let width = u64::try_from(longest.saturating_sub(shortest).as_micros()).unwrap_or(0);
        shortest + Duration::from_micros(self.below(width + 1))
    }

    /// A seed for somebody else.
    pub fn seed(&mut self) -> u64 {
        self.below(u64::MAX)
    }
}
