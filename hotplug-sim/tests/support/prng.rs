//! A small generator of numbers for tests: the same seed, the same numbers, on any machine.

/// SplitMix64, as published by Steele, Lea and Flood in 2014.
pub struct Prng(u64);

impl Prng {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }
}
