//! Runs of words moved and looked at in one pass: what a batch costs.
//!
//! It knows nothing of lanes. Every routine goes from the front in steps of the same width, on
//! purpose: a batch that goes to and fro is loaded again a moment after it was stored, and only a
//! load that lies inside one earlier store is forwarded at once. (The library's copy aligns its
//! steps to the target, so that the way back straddles them: twice the time for 65 words.)
//!
//! Wide steps need AVX2, looked for at run time; short runs, other processors and Miri go word by
//! word.

/// From how many words on the wide routines are worth their call.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const WIDE_FROM: usize = 16;

/// Copies `count` words, and tells whether one of them is 0.
///
/// # Safety
/// `from` must be valid for reading and `to` for writing `count` words, the two must not overlap,
/// and nobody may write the former or touch the latter meanwhile.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u64, to: *mut u64, count: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if count >= WIDE_FROM && wide::is_there() {
        // SAFETY: AVX2 is there; the rest is the caller's promise.
        return unsafe { wide::copy(from, to, count) };
    }
    let mut has_zero = false;
    for at in 0..count {
        // SAFETY: `at < count`, and the caller promises that many words.
        let word = unsafe { from.wrapping_add(at).read() };
        // SAFETY: as for reading.
        unsafe { to.wrapping_add(at).write(word) };
        has_zero |= word == 0;
    }
    has_zero
}

/// Copies `count` words, and gives the bits in which any of them differs from `first`.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_and_compare(
    from: *const u64,
    to: *mut u64,
    count: usize,
    first: u64,
) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if count >= WIDE_FROM && wide::is_there() {
        // SAFETY: AVX2 is there; the rest is the caller's promise.
        return unsafe { wide::copy_and_compare(from, to, count, first) };
    }
    let mut differences = 0;
    for at in 0..count {
        // SAFETY: `at < count`, and the caller promises that many words.
        let word = unsafe { from.wrapping_add(at).read() };
        // SAFETY: as for reading.
        unsafe { to.wrapping_add(at).write(word) };
        differences |= word ^ first;
    }
    differences
}

/// How many words are 0.
#[inline(always)]
pub(crate) fn count_zeros(words: &[u64]) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if words.len() >= WIDE_FROM && wide::is_there() {
        // SAFETY: AVX2 is there.
        return unsafe { wide::count_zeros(words) };
    }
    words.iter().filter(|&&word| word == 0).count()
}

/// Makes all words 0, in stores of fixed sizes.
///
/// `fill` would be a call of `memset`, whose masked store for less than 64 bytes costs tens of
/// nanoseconds where the next load looks at it, and hundreds for no bytes at all: then its address
/// may be none, and a masked-out fault is looked into by microcode.
#[inline]
pub(crate) fn clear(words: &mut [u64]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if words.len() >= WIDE_FROM && wide::is_there() {
        // SAFETY: AVX2 is there.
        return unsafe { wide::clear(words) };
    }
    let (chunks, rest) = words.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = [0; 8];
    }
    let (fours, rest) = rest.as_chunks_mut::<4>();
    if let [four] = fours {
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

/// The same in steps of four words. Raw pointers throughout, so that the compiler cannot know
/// that nothing overlaps and put the library's copy back in.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use core::arch::x86_64::{
        __m256i, _mm256_cmpeq_epi64, _mm256_extract_epi64, _mm256_loadu_si256, _mm256_or_si256,
        _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_sub_epi64,
        _mm256_testz_si256, _mm256_xor_si256,
    };

    /// Words in a step.
    const STEP: usize = 4;

    /// Whether this processor has AVX2; one load once that is known.
    #[inline(always)]
    pub fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("avx2")
    }

    /// # Safety
    /// As the one outside; AVX2 must be there.
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy(from: *const u64, to: *mut u64, count: usize) -> bool {
        let zero = _mm256_setzero_si256();
        let mut zeros = zero;
        let mut at = 0;
        while at + STEP <= count {
            // SAFETY: `at + STEP <= count`, and the caller promises `count` words.
            let step = unsafe { load(from.wrapping_add(at)) };
            // SAFETY: as for loading.
            unsafe { store(to.wrapping_add(at), step) };
            zeros = _mm256_or_si256(zeros, _mm256_cmpeq_epi64(step, zero));
            at += STEP;
        }
        let mut has_zero = _mm256_testz_si256(zeros, zeros) == 0;
        while at < count {
            // SAFETY: `at < count`, and the caller promises that many words.
            let word = unsafe { from.wrapping_add(at).read() };
            // SAFETY: as for reading.
            unsafe { to.wrapping_add(at).write(word) };
            has_zero |= word == 0;
            at += 1;
        }
        has_zero
    }

    /// # Safety
    /// As the one outside; AVX2 must be there.
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy_and_compare(
        from: *const u64,
        to: *mut u64,
        count: usize,
        first: u64,
    ) -> u64 {
        let firsts = _mm256_set1_epi64x(first.cast_signed());
        let mut differences = _mm256_setzero_si256();
        let mut at = 0;
        while at + STEP <= count {
            // SAFETY: `at + STEP <= count`, and the caller promises `count` words.
            let step = unsafe { load(from.wrapping_add(at)) };
            // SAFETY: as for loading.
            unsafe { store(to.wrapping_add(at), step) };
            differences = _mm256_or_si256(differences, _mm256_xor_si256(step, firsts));
            at += STEP;
        }
        let mut all = [
            _mm256_extract_epi64::<0>(differences),
            _mm256_extract_epi64::<1>(differences),
            _mm256_extract_epi64::<2>(differences),
            _mm256_extract_epi64::<3>(differences),
        ]
        .into_iter()
        .fold(0, |all, part| all | part.cast_unsigned());
        while at < count {
            // SAFETY: `at < count`, and the caller promises that many words.
            let word = unsafe { from.wrapping_add(at).read() };
            // SAFETY: as for reading.
            unsafe { to.wrapping_add(at).write(word) };
            all |= word ^ first;
            at += 1;
        }
        all
    }

    #[target_feature(enable = "avx2")]
    pub fn count_zeros(words: &[u64]) -> usize {
        let zero = _mm256_setzero_si256();
        let mut counts = zero;
        let (steps, rest) = words.as_chunks::<STEP>();
        for step in steps {
            // SAFETY: a step is four words.
            let step = unsafe { load(step.as_ptr()) };
            // A hit is -1.
            counts = _mm256_sub_epi64(counts, _mm256_cmpeq_epi64(step, zero));
        }
        let in_steps = [
            _mm256_extract_epi64::<0>(counts),
            _mm256_extract_epi64::<1>(counts),
            _mm256_extract_epi64::<2>(counts),
            _mm256_extract_epi64::<3>(counts),
        ];
        // Each is at most the number of steps.
        let in_steps: u64 = in_steps.into_iter().map(i64::cast_unsigned).sum();
        usize::try_from(in_steps).unwrap_or(usize::MAX)
            + rest.iter().filter(|&&word| word == 0).count()
    }

    #[target_feature(enable = "avx2")]
    pub fn clear(words: &mut [u64]) {
        let zero = _mm256_setzero_si256();
        let (steps, rest) = words.as_chunks_mut::<STEP>();
        for step in steps {
            // SAFETY: a step is four words, borrowed exclusively.
            unsafe { store(step.as_mut_ptr(), zero) };
        }
        for word in rest {
            *word = 0;
        }
    }

    /// # Safety
    /// `from` must be valid for reading four words.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load(from: *const u64) -> __m256i {
        // SAFETY: the caller's promise; the address need not be aligned to the step.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    /// # Safety
    /// `to` must be valid for writing four words.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn store(to: *mut u64, step: __m256i) {
        // SAFETY: the caller's promise; the address need not be aligned to the step.
        unsafe { _mm256_storeu_si256(to.cast(), step) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_cleared_to_its_end_and_no_further() {
        for len in 0..40 {
            let mut words = vec![7; len + 1];
            clear(&mut words[..len]);
            assert!(words[..len].iter().all(|&word| word == 0), "{len}");
            assert_eq!(words[len], 7, "{len}");
        }
    }

    /// Lengths around every step and threshold.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..40).chain([63, 64, 65, 66, 67, 255, 256, 257])
    }

    #[test]
    fn all_words_are_copied_and_zeros_are_found_wherever_they_are() {
        for len in lengths() {
            for zero_at in 0..=len {
                let mut words: Vec<u64> = (1..=len as u64).collect();
                if zero_at < len {
                    words[zero_at] = 0;
                }
                let mut out = vec![99; len + 1];
                // SAFETY: both are at least `len` words long, and they are two vectors.
                let has_zero = unsafe { copy(words.as_ptr(), out.as_mut_ptr(), len) };
                assert_eq!((&out[..len], out[len]), (&words[..], 99));
                assert_eq!(has_zero, zero_at < len);
                assert_eq!(count_zeros(&words), usize::from(zero_at < len));
                clear(&mut out[..len]);
                assert_eq!((count_zeros(&out[..len]), out[len]), (len, 99));
            }
        }
    }

    #[test]
    fn differences_are_found_wherever_they_are() {
        for len in lengths().filter(|&len| len > 0) {
            for other_at in 0..len {
                let mut words = vec![0b0101; len];
                words[other_at] = 0b1001;
                let mut out = vec![0; len];
                let (from, to) = (words.as_ptr(), out.as_mut_ptr());
                // SAFETY: both are `len` words long, and they are two vectors.
                let differences = unsafe { copy_and_compare(from, to, len, 0b0101) };
                assert_eq!((differences, &out), (0b1100, &words));
            }
        }
    }
}
