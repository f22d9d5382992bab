//! What the hot operations cost in instructions: a number that does not depend on how busy the
//! machine is, so that a check can hold it against the one before.
//!
//! The operations are in `benches/instructions.rs`, what they cost in `baseline.txt`, and
//! `.ci/counts/compare` runs the ones and compares with the other.
#![forbid(unsafe_code)]
