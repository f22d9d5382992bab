//! `hugepoold bench NAME` (hidden): what the allocator costs alone, without sockets or memory.
//!
//! Started by `hugepoolctl bench`, which gives the lines their final form. One JSON object a line:
//! `case`, `n`, `unit`, the fields that name the arm, and `samples`, a number for each window.
//! Arms that are compared take turns, so that a slow moment of the machine meets all of them.

pub mod compact;
pub mod hotadd;
mod kernel_map;
mod lines;
pub mod memory;
pub mod populate;
mod zones;

use std::io;
use std::process::ExitCode;

/// What can be measured.
#[derive(clap::Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Onlining sections, metadata only
    Hotadd {
        /// Windows of each case
        #[arg(long, value_name = "N", default_value_t = 15)]
        reps: u32,
    },
    /// Compaction with contiguity caches on and off
    Compact {
        /// Windows of each case
        #[arg(long, value_name = "N", default_value_t = 15)]
        reps: u32,
        /// Size of the zone in sections of 128 MiB
        #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
        sections: u32,
    },
    /// Memory that the books of a zone take; measured once, since bytes do not vary
    Memory,
    /// Populates a section of memory for each line read, and says how long it took
    Populate {
        /// Its size in bytes
        section_bytes: u64,
        /// Of what: hugetlb, thp or shm
        backing: String,
        /// As the daemon does it, in two threads, and not by one call of the system
        #[arg(long)]
        as_daemon: bool,
    },
}

/// Measures, and prints what was measured.
pub fn run(bench: &Bench) -> ExitCode {
    let out = &mut io::stdout().lock();
    let printed = match bench {
        Bench::Hotadd { reps } => hotadd::run(*reps, out),
        Bench::Compact { reps, sections } => compact::run(*reps, *sections, out),
        Bench::Memory => memory::run(out),
        Bench::Populate {
            section_bytes,
            backing,
            as_daemon,
        } => populate::run(*section_bytes, backing, *as_daemon, out),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has gone, or has been told why.
        Err(_) => ExitCode::FAILURE,
    }
}
