//! The simulator's own source of chance: integers only, the same on every machine.
//!
//! xoshiro256** by Blackman and Vigna, seeded through splitmix64, both in the public domain.
//! Not for secrets.

/// A generator; its whole state comes from one seed.
#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

impl Prng {
    /// The generator of a seed; any number is a good one.
    pub fn from_seed(seed: u64) -> Prng {
        let mut mix = seed;
        let state = core::array::from_fn(|_| {
            mix = mix.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let a = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            b ^ (b >> 31)
        });
        Prng { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the multiplication is below 2^-32 for the bounds used here.
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half fits")
    }

    /// As [`below`](Self::below), of 32 bits.
    pub fn below_u32(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).expect("it is below 32 bits")
    }

    /// An index into something of that length; 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("it is below a length")
    }

    /// True `times` times in `of`.
    pub fn chance(&mut self, times: u32, of: u32) -> bool {
        self.below_u32(of) < times
    }

    /// A count from 1 to `most`, small ones more often than large ones.
    pub fn small(&mut self, most: u32) -> u32 {
        let bits = u32::BITS - most.leading_zeros();
        let bound = 1 << self.below_u32(bits + 1).min(31);
        1 + self.below_u32(bound).min(most.saturating_sub(1))
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.index(from.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_numbers_that_it_always_gave() {
        let mut prng = Prng::from_seed(0);
        let first: Vec<u64> = (0..3).map(|_| prng.next_u64()).collect();
        assert_eq!(
            first,
            [
                0x99ec_5f36_cb75_f2b4,
                0xbf6e_1f78_4956_452a,
                0x1a5f_849d_4933_e6e0
            ]
        );
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut prng = Prng::from_seed(7);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[prng.index(5)] += 1);
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
        assert!((0..1000).all(|_| (1..=9).contains(&prng.small(9))));
        assert_eq!((prng.below(0), prng.index(0)), (0, 0));
    }
}
