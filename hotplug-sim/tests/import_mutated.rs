//! Damaged files: no panic, no broken invariant, whatever is done to the bytes.
//!
//! Seeded, so a failure comes again; bounded by a count, so it takes the same on any machine.
//! Seen to fail: a range that ends before it starts, its length taken by subtraction.

mod support;

use support::prng::Prng;

/// Mutants of each real input.
const MUTANTS: usize = 120;

/// Words that parsers have to be careful with.
const NASTY: [&str; 24] = [
    "18446744073709551615",
    "9223372036854775808",
    "-1",
    "0x",
    "0xffffffffffffffff",
    "99999999999999999999999",
    "[mem ",
    "]",
    "Node 4294967296, zone ",
    "*4kB",
    "*0kB",
    "= 0kB",
    "(",
    ")",
    "\n",
    "\"",
    "{",
    "}",
    "0-18446744073709551615",
    "0x0-0xffffffffffffffff",
    "\u{a0}",
    "=\n",
    "mm_page_alloc:",
    "\0",
];

#[test]
fn mutants_never_panic() {
    let cases = support::cases();
    for (name, bytes) in &cases {
        for seed in 0..MUTANTS {
            let mut prng = Prng::new(support::count(seed) ^ support::count(bytes.len()) << 32);
            let mut mutant = bytes.clone();
            for _ in 0..=prng.below(8) {
                let other = &cases[prng.below(cases.len())].1;
                mutate(&mut mutant, other, &mut prng);
            }
            let run = support::run_text(&mutant);
            let bad = support::invariants::invariants(&run);
            assert!(
                run.document.is_null() || bad.is_empty(),
                "{name} with seed {seed}: {bad:?}"
            );
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], prng: &mut Prng) {
    let at = prng.below(bytes.len() + 1);
    let end = (at + prng.below(40)).min(bytes.len());
    match prng.below(9) {
        0 => drop(bytes.drain(at..end)),
        1 => {
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
        2 => {
            let word = NASTY[prng.below(NASTY.len())];
            bytes.splice(at..at, word.bytes());
        }
        3 => {
            let word = NASTY[prng.below(NASTY.len())];
            bytes.splice(at..end, word.bytes());
        }
        4 => bytes[at..end]
            .iter_mut()
            .for_each(|byte| *byte ^= 1 << (*byte % 8)),
        5 => bytes.truncate(at),
        6 => {
            let from = prng.below(other.len());
            let to = (from + prng.below(300)).min(other.len());
            bytes.splice(at..at, other[from..to].iter().copied());
        }
        7 => {
            // A digit becomes another, which is what a flipped bit in a number is.
            if let Some(digit) = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *digit = b"0123456789"[prng.below(10)];
            }
        }
        _ => {
            let line = bytes[..at]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |newline| newline + 1);
            let moved: Vec<u8> = bytes.drain(line..at).collect();
            bytes.extend(moved);
        }
    }
}
