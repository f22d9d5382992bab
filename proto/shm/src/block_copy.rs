//! Runs of words moved and looked at in one pass: what a batch costs.
//!
//! It knows nothing of lanes. Every routine goes from the front in steps of the same width, on
//! purpose: a batch that goes to and fro is loaded again a moment after it was stored, and only a
//! load that lies inside one earlier store is forwarded at once. (The library's copy aligns its
//! steps to the target, so that the way back straddles them: twice the time for 65 words.)
//!
//! Wide steps need AVX2, looked for at run time; short runs, other processors and Miri go word by
//! word.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide;

/// From how many words on the wide routines are worth their call.
const WIDE_FROM: usize = 4;

/// How runs of words are moved and looked at.
pub(crate) trait Width: Copy {
    /// Copies `count` words, and tells whether one of them is 0.
    ///
    /// # Safety
    /// `from` must be valid for reading and `to` for writing `count` words, the two must not
    /// overlap, and nobody may write the former or touch the latter meanwhile.
    unsafe fn copy(self, from: *const u64, to: *mut u64, count: usize) -> bool;

    /// Copies `count` words, and gives the bits in which any of them differs from `first`.
    ///
    /// # Safety
    /// As for [`Width::copy`].
    unsafe fn copy_and_compare(
        self,
        from: *const u64,
        to: *mut u64,
        count: usize,
        first: u64,
    ) -> u64;

    /// How many words are 0.
    fn count_zeros(self, words: &[u64]) -> usize;

    /// Makes all words 0, in stores of fixed sizes.
    ///
    /// `fill` would be a call of `memset`, whose masked store for less than 64 bytes costs tens of
    /// nanoseconds where the next load looks at it, and hundreds for no bytes at all: then its
    /// address may be none, and a masked-out fault is looked into by microcode.
    fn clear(self, words: &mut [u64]);
}

/// The widest there is, found out at each run of words.
#[derive(Clone, Copy)]
pub(crate) struct Any;

/// In steps of four words. A value of it is the proof that the processor has them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy)]
pub(crate) struct Wide(());

/// In steps of four words; there is none here.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[derive(Clone, Copy)]
pub(crate) enum Wide {}

impl Wide {
    /// The wide routines, if there are any and so many words are worth it.
    #[inline(always)]
    pub fn worth(nr_words: usize) -> Option<Wide> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if nr_words >= WIDE_FROM && std::arch::is_x86_feature_detected!("avx2") {
            return Some(Wide(()));
        }
        let _ = nr_words;
        None
    }

    /// Does `work` where the wide routines need no call of their own.
    #[inline(always)]
    pub fn run<R>(self, work: impl FnOnce(Wide) -> R) -> R {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: `self` is the proof that AVX2 is there.
        return unsafe { wide::run(self, work) };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        work(self)
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Width for Wide {
    #[inline(always)]
    unsafe fn copy(self, from: *const u64, to: *mut u64, count: usize) -> bool {
        // SAFETY: `self` is the proof that AVX2 is there; the rest is the caller's promise.
        unsafe { wide::copy(from, to, count) }
    }

    #[inline(always)]
    unsafe fn copy_and_compare(
        self,
        from: *const u64,
        to: *mut u64,
        count: usize,
        first: u64,
    ) -> u64 {
        // SAFETY: `self` is the proof that AVX2 is there; the rest is the caller's promise.
        unsafe { wide::copy_and_compare(from, to, count, first) }
    }

    #[inline(always)]
    fn count_zeros(self, words: &[u64]) -> usize {
        // SAFETY: `self` is the proof that AVX2 is there.
        unsafe { wide::count_zeros(words) }
    }

    #[inline(always)]
    fn clear(self, words: &mut [u64]) {
        // SAFETY: `self` is the proof that AVX2 is there.
        unsafe { wide::clear(words) }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
impl Width for Wide {
    unsafe fn copy(self, _: *const u64, _: *mut u64, _: usize) -> bool {
        match self {}
    }

    unsafe fn copy_and_compare(self, _: *const u64, _: *mut u64, _: usize, _: u64) -> u64 {
        match self {}
    }

    fn count_zeros(self, _: &[u64]) -> usize {
        match self {}
    }

    fn clear(self, _: &mut [u64]) {
        match self {}
    }
}

impl Width for Any {
    #[inline(always)]
    unsafe fn copy(self, from: *const u64, to: *mut u64, count: usize) -> bool {
        if let Some(wide) = Wide::worth(count) {
            // SAFETY: the caller's promise.
            return unsafe { wide.copy(from, to, count) };
        }
        let mut has_zero = false;
        for at in 0..count {
            // SAFETY: `at < count`, and the caller promises that many words.
            has_zero |= unsafe { move_word(from, to, at) } == 0;
        }
        has_zero
    }

    #[inline(always)]
    unsafe fn copy_and_compare(
        self,
        from: *const u64,
        to: *mut u64,
        count: usize,
        first: u64,
    ) -> u64 {
        if let Some(wide) = Wide::worth(count) {
            // SAFETY: the caller's promise.
            return unsafe { wide.copy_and_compare(from, to, count, first) };
        }
        let mut differences = 0;
        for at in 0..count {
            // SAFETY: `at < count`, and the caller promises that many words.
            differences |= unsafe { move_word(from, to, at) } ^ first;
        }
        differences
    }

    #[inline(always)]
    fn count_zeros(self, words: &[u64]) -> usize {
        match Wide::worth(words.len()) {
            Some(wide) => wide.count_zeros(words),
            None => words.iter().filter(|&&word| word == 0).count(),
        }
    }

    #[inline(always)]
    fn clear(self, words: &mut [u64]) {
        if let Some(wide) = Wide::worth(words.len()) {
            return wide.clear(words);
        }
        let (fours, rest) = words.as_chunks_mut::<4>();
        for four in fours {
            *four = [0; 4];
        }
        let (twos, rest) = rest.as_chunks_mut::<2>();
        if let [two] = twos {
            *two = [0; 2];
        }
        if let [one] = rest {
            *one = 0;
        }
    }
}

/// Moves one word, and gives it.
///
/// # Safety
/// Both must be valid for a word at `at`.
#[inline(always)]
unsafe fn move_word(from: *const u64, to: *mut u64, at: usize) -> u64 {
    // SAFETY: the caller's promise.
    let word = unsafe { from.wrapping_add(at).read() };
    // SAFETY: as for reading.
    unsafe { to.wrapping_add(at).write(word) };
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around every step and threshold.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..40).chain([63, 64, 65, 66, 67, 255, 256, 257])
    }

    fn clears_to_its_end(width: impl Width) {
        for len in lengths() {
            let mut words = vec![7; len + 1];
            width.clear(&mut words[..len]);
            assert!(words[..len].iter().all(|&word| word == 0), "{len}");
            assert_eq!(words[len], 7, "{len}");
        }
    }

    fn copies_and_finds_zeros(width: impl Width) {
        for len in lengths() {
            for zero_at in 0..=len {
                let mut words: Vec<u64> = (1..=len as u64).collect();
                if zero_at < len {
                    words[zero_at] = 0;
                }
                let mut out = vec![99; len + 1];
                // SAFETY: both are at least `len` words long, and they are two vectors.
                let has_zero = unsafe { width.copy(words.as_ptr(), out.as_mut_ptr(), len) };
                assert_eq!((&out[..len], out[len]), (&words[..], 99));
                assert_eq!(has_zero, zero_at < len);
                assert_eq!(width.count_zeros(&words), usize::from(zero_at < len));
                width.clear(&mut out[..len]);
                assert_eq!((width.count_zeros(&out[..len]), out[len]), (len, 99));
            }
        }
    }

    fn finds_differences(width: impl Width) {
        for len in lengths().filter(|&len| len > 0) {
            for other_at in 0..len {
                let mut words = vec![0b0101; len];
                words[other_at] = 0b1001;
                let mut out = vec![0; len];
                let (from, to) = (words.as_ptr(), out.as_mut_ptr());
                // SAFETY: both are `len` words long, and they are two vectors.
                let differences = unsafe { width.copy_and_compare(from, to, len, 0b0101) };
                assert_eq!((differences, &out), (0b1100, &words));
            }
        }
    }

    #[test]
    fn every_length_is_cleared_to_its_end_and_no_further() {
        clears_to_its_end(Any);
        if let Some(wide) = Wide::worth(WIDE_FROM) {
            clears_to_its_end(wide);
        }
    }

    #[test]
    fn all_words_are_copied_and_zeros_are_found_wherever_they_are() {
        copies_and_finds_zeros(Any);
        if let Some(wide) = Wide::worth(WIDE_FROM) {
            copies_and_finds_zeros(wide);
        }
    }

    #[test]
    fn differences_are_found_wherever_they_are() {
        finds_differences(Any);
        if let Some(wide) = Wide::worth(WIDE_FROM) {
            finds_differences(wide);
        }
    }
}
