//! A corpus again, and seeded mutations of it for a while.
//!
//! In order, so that a failure comes again; the message of one has the bytes, which belong into the
//! corpus then.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Mutations between two looks at the clock, and the fewest of all.
const ROUND: u64 = 16;

/// SplitMix64, as published by Steele, Lea and Flood in 2014.
pub struct Prng(pub u64);

impl Prng {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 below 1.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }
}

fn seconds() -> f64 {
    let text = std::env::var("HUGEPOOL_TEST_FUZZ_SECONDS");
    text.ok().and_then(|text| text.parse().ok()).unwrap_or(0.1)
}

/// The files of a folder, by name.
pub fn corpus(folder: &Path) -> Vec<Vec<u8>> {
    let files = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Gives `target` each file of the folder, then mutations for as long as
/// `HUGEPOOL_TEST_FUZZ_SECONDS` says (CI: 5), and a few in any case.
pub fn replay_and_mutate(folder: &Path, target: &dyn Fn(&[u8])) {
    let corpus = corpus(folder);
    for bytes in &corpus {
        check(bytes, target);
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds());
    let mut seed = 0;
    while seed < ROUND || Instant::now() < end {
        for _ in 0..ROUND {
            seed += 1;
            let mut prng = Prng(seed);
            let mut bytes = corpus[prng.below(corpus.len())].clone();
            for _ in 0..=prng.below(6) {
                let other = &corpus[prng.below(corpus.len())];
                mutate(&mut bytes, other, &mut prng);
            }
            check(&bytes, target);
        }
    }
}

fn check(bytes: &[u8], target: &dyn Fn(&[u8])) {
    let result = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    assert!(result.is_ok(), "a finding, by the bytes {bytes:?}");
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], prng: &mut Prng) {
    const EDGES: [u64; 6] = [0, 1, u64::MAX, 1 << 63, 0x7fff_ffff, 0xffff_ffff];
    let at = prng.below(bytes.len() + 1);
    let end = (at + prng.below(24)).min(bytes.len());
    match prng.below(8) {
        0 => drop(bytes.drain(at..end)),
        1 => {
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
        2 => {
            let from = prng.below(other.len() + 1);
            let piece = &other[from..(from + prng.below(40)).min(other.len())];
            bytes.splice(at..end, piece.iter().copied());
        }
        3 => {
            let edge = EDGES[prng.below(EDGES.len())].to_le_bytes();
            bytes.splice(at..end, edge.into_iter().take(1 + prng.below(8)));
        }
        4 => {
            let more: Vec<u8> = (0..prng.below(48))
                .map(|_| prng.next().to_le_bytes()[0])
                .collect();
            bytes.splice(at..at, more);
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << prng.below(8);
            }
        }
    }
    bytes.truncate(4096);
}
