//! What can be measured, as it is typed.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Take and give back n pages through the lane; the whole zone; a full array; high orders
    Bulk {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
        /// Microseconds that a daemon of the bench's own, and its client, look for one another
        /// before they sleep or ask [default: as they do of themselves]
        #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=10_000))]
        spin_us: Option<u32>,
    },
    /// Refill 65 slots as an NFS server does: single calls, list, array, a mix
    Svc {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// Become a client
    Attach {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// Calls over gRPC: an empty one, and batches
    Rpc {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// Hand pages to another process: lent and given back, or freed there
    Pipeline {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// Bring sections online: whole pageblocks against single pages, alone and end to end
    Hotadd {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// Compact a fragmented zone with contiguity caches on and off
    Compact {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// Memory of the daemon's books by page, and of a client's control segment with four lanes
    Memory {
        /// Clients that are measured
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// From the kill of a client to the moment its last page is home
    Reclaim {
        /// Clients killed for each case
        #[arg(long, value_name = "N", default_value_t = 9)]
        reps: u32,
    },
    /// From the start of a daemon to the moment it serves, after one that was killed under clients
    Restart {
        /// Daemons killed
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// What a good client notices of floods: garbage, connections without end, half open ones
    Flood {
        /// Windows of each case, of which the median is printed
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
    /// Take a section half full of movable pages away under two clients that use them
    Offline {
        /// Sections taken away
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
    },
}

impl Bench {
    /// As it was typed, and as its lines say.
    pub fn name(&self) -> &'static str {
        match self {
            Bench::Bulk { .. } => "bulk",
            Bench::Svc { .. } => "svc",
            Bench::Attach { .. } => "attach",
            Bench::Rpc { .. } => "rpc",
            Bench::Pipeline { .. } => "pipeline",
            Bench::Hotadd { .. } => "hotadd",
            Bench::Compact { .. } => "compact",
            Bench::Memory { .. } => "memory",
            Bench::Reclaim { .. } => "reclaim",
            Bench::Restart { .. } => "restart",
            Bench::Offline { .. } => "offline",
            Bench::Flood { .. } => "flood",
        }
    }
}
