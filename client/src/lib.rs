//! What applications link to take pages from a hugepoold.
#![forbid(unsafe_code)]

pub mod runtime_dir;
