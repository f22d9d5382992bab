//! Runs of words in steps of four, four steps a turn: what AVX2 is good for.
//!
//! Raw pointers throughout, so that the compiler cannot know that nothing overlaps and put the
//! library's copy back in; and no loop over the last few words, which it would make a wide one of.

use super::move_word;
use core::arch::x86_64::{
    __m256i, _mm256_add_epi64, _mm256_cmpeq_epi64, _mm256_extract_epi64, _mm256_loadu_si256,
    _mm256_or_si256, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_storeu_si256,
    _mm256_sub_epi64, _mm256_testz_si256, _mm256_xor_si256,
};

/// Words in a step.
const STEP: usize = 4;
/// Words in a turn.
const TURN: usize = 4 * STEP;

#[target_feature(enable = "avx2")]
#[inline]
pub fn run<R>(wide: super::Wide, work: impl FnOnce(super::Wide) -> R) -> R {
    work(wide)
}

/// # Safety
/// As the one outside; AVX2 must be there.
#[target_feature(enable = "avx2")]
#[inline]
pub unsafe fn copy(from: *const u64, to: *mut u64, count: usize) -> bool {
    let zero = _mm256_setzero_si256();
    let mut zeros = [zero; 4];
    let mut at = 0;
    while at + TURN <= count {
        for (step, zeros) in zeros.iter_mut().enumerate() {
            // SAFETY: `at + TURN <= count`, and the caller promises `count` words.
            let words = unsafe { move_step(from, to, at + step * STEP) };
            *zeros = _mm256_or_si256(*zeros, _mm256_cmpeq_epi64(words, zero));
        }
        at += TURN;
    }
    while at + STEP <= count {
        // SAFETY: `at + STEP <= count`, and the caller promises `count` words.
        let words = unsafe { move_step(from, to, at) };
        zeros[0] = _mm256_or_si256(zeros[0], _mm256_cmpeq_epi64(words, zero));
        at += STEP;
    }
    let zeros = _mm256_or_si256(
        _mm256_or_si256(zeros[0], zeros[1]),
        _mm256_or_si256(zeros[2], zeros[3]),
    );
    let mut has_zero = _mm256_testz_si256(zeros, zeros) == 0;
    if count & 2 != 0 {
        // SAFETY: what is left is `count % STEP`, with this bit at least two words.
        has_zero |= unsafe { move_word(from, to, at) } == 0;
        // SAFETY: as above.
        has_zero |= unsafe { move_word(from, to, at + 1) } == 0;
        at += 2;
    }
    if count & 1 != 0 {
        // SAFETY: the last one of an odd number is left.
        has_zero |= unsafe { move_word(from, to, at) } == 0;
    }
    has_zero
}

/// # Safety
/// As the one outside; AVX2 must be there.
#[target_feature(enable = "avx2")]
#[inline]
pub unsafe fn copy_and_compare(from: *const u64, to: *mut u64, count: usize, first: u64) -> u64 {
    let firsts = _mm256_set1_epi64x(first.cast_signed());
    let mut differences = [_mm256_setzero_si256(); 4];
    let mut at = 0;
    while at + TURN <= count {
        for (step, differences) in differences.iter_mut().enumerate() {
            // SAFETY: `at + TURN <= count`, and the caller promises `count` words.
            let words = unsafe { move_step(from, to, at + step * STEP) };
            *differences = _mm256_or_si256(*differences, _mm256_xor_si256(words, firsts));
        }
        at += TURN;
    }
    while at + STEP <= count {
        // SAFETY: `at + STEP <= count`, and the caller promises `count` words.
        let words = unsafe { move_step(from, to, at) };
        differences[0] = _mm256_or_si256(differences[0], _mm256_xor_si256(words, firsts));
        at += STEP;
    }
    let differences = _mm256_or_si256(
        _mm256_or_si256(differences[0], differences[1]),
        _mm256_or_si256(differences[2], differences[3]),
    );
    let mut all = lanes(differences)
        .into_iter()
        .fold(0, |all, part| all | part);
    if count & 2 != 0 {
        // SAFETY: what is left is `count % STEP`, with this bit at least two words.
        all |= unsafe { move_word(from, to, at) } ^ first;
        // SAFETY: as above.
        all |= unsafe { move_word(from, to, at + 1) } ^ first;
        at += 2;
    }
    if count & 1 != 0 {
        // SAFETY: the last one of an odd number is left.
        all |= unsafe { move_word(from, to, at) } ^ first;
    }
    all
}

#[target_feature(enable = "avx2")]
#[inline]
pub fn count_zeros(words: &[u64]) -> usize {
    let zero = _mm256_setzero_si256();
    // A hit is -1.
    let hits = |step: &[u64; STEP]| {
        // SAFETY: a step is four words.
        _mm256_cmpeq_epi64(unsafe { load(step.as_ptr()) }, zero)
    };
    let mut counts = [zero; 4];
    let (turns, rest) = words.as_chunks::<TURN>();
    for turn in turns {
        let (steps, _) = turn.as_chunks::<STEP>();
        for (count, step) in counts.iter_mut().zip(steps) {
            *count = _mm256_sub_epi64(*count, hits(step));
        }
    }
    let (steps, rest) = rest.as_chunks::<STEP>();
    for (count, step) in counts.iter_mut().zip(steps) {
        *count = _mm256_sub_epi64(*count, hits(step));
    }
    let counts = _mm256_add_epi64(
        _mm256_add_epi64(counts[0], counts[1]),
        _mm256_add_epi64(counts[2], counts[3]),
    );
    let nr_in_steps: u64 = lanes(counts).into_iter().sum();
    let nr_in_rest: usize = match *rest {
        [] => 0,
        [one] => usize::from(one == 0),
        [one, two] => usize::from(one == 0) + usize::from(two == 0),
        _ => rest.iter().map(|&word| usize::from(word == 0)).sum(),
    };
    usize::try_from(nr_in_steps).unwrap_or(usize::MAX) + nr_in_rest
}

#[target_feature(enable = "avx2")]
#[inline]
pub fn clear(words: &mut [u64]) {
    let zero = _mm256_setzero_si256();
    let (turns, rest) = words.as_chunks_mut::<TURN>();
    for turn in turns {
        let (steps, _) = turn.as_chunks_mut::<STEP>();
        for step in steps {
            // SAFETY: a step is four words, borrowed exclusively.
            unsafe { store(step.as_mut_ptr(), zero) };
        }
    }
    let (steps, rest) = rest.as_chunks_mut::<STEP>();
    for step in steps {
        // SAFETY: a step is four words, borrowed exclusively.
        unsafe { store(step.as_mut_ptr(), zero) };
    }
    match rest {
        [] => {}
        [one] => *one = 0,
        [one, others @ ..] => {
            *one = 0;
            others[0] = 0;
            others[others.len() - 1] = 0;
        }
    }
}

/// Moves the words of one step, and gives them.
///
/// # Safety
/// Both must be valid for four words from `at` on.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn move_step(from: *const u64, to: *mut u64, at: usize) -> __m256i {
    // SAFETY: the caller's promise.
    let words = unsafe { load(from.wrapping_add(at)) };
    // SAFETY: as for loading.
    unsafe { store(to.wrapping_add(at), words) };
    words
}

/// The four words of a step.
#[target_feature(enable = "avx2")]
#[inline]
fn lanes(step: __m256i) -> [u64; 4] {
    [
        _mm256_extract_epi64::<0>(step),
        _mm256_extract_epi64::<1>(step),
        _mm256_extract_epi64::<2>(step),
        _mm256_extract_epi64::<3>(step),
    ]
    .map(i64::cast_unsigned)
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
