//! What may be typed: the one definition that parsing, help, completions and man pages come from.
//!
//! Parsing does nothing but parse; what the words mean is each noun's own file.

mod bench;
pub mod limit;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::size;

pub use bench::Bench;
use limit::LimitVerb;

/// Administers and inspects a running hugepoold.
#[derive(Debug, Parser)]
#[command(
    name = "hugepoolctl",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = "\
Examples:
  hugepoolctl status                              is it up, and do the pages add up?
  hugepoolctl section add --zone movable          one section more
  hugepoolctl section offline 24-27 --dry-run     could these go, and who stands in the way?
  hugepoolctl client list -o SLOT,PID,HELD        who holds how much
  hugepoolctl zone list -J | jq '.zones[].free_pages'

Exit status: 0 done (dry run: could be done), 1 nothing done, refused, or answered no,
2 usage, 3 broken invariant (verify), 64 partly done.

Run-time directory: --runtime-dir, else $HUGEPOOL_RUNTIME_DIR, else $RUNTIME_DIRECTORY,
else /run/hugepool for root, else $XDG_RUNTIME_DIR/hugepool; then /run/hugepool."
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub noun: Noun,
}

/// Flags that every verb takes.
#[derive(Debug, Args)]
pub struct Global {
    /// Folder with the daemon's sockets
    #[arg(long, global = true, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Print JSON: counts of pages and bytes, said in the names
    #[arg(short = 'J', long, global = true)]
    pub json: bool,
    /// Columns to print, in this order; -o help says which there are
    #[arg(
        short = 'o',
        long,
        global = true,
        value_name = "COL,…",
        value_delimiter = ','
    )]
    pub output: Option<Vec<String>>,
    /// Print sizes in bytes
    #[arg(short = 'b', long, global = true)]
    pub bytes: bool,
}

#[derive(Debug, Subcommand)]
pub enum Noun {
    #[command(flatten)]
    Asked(Asked),
    /// Show the daemon's counters
    Stats {
        /// Read what the daemon left in memory, though it may be gone
        #[arg(long)]
        offline: bool,
    },
    /// Show, check and explain the daemon's configuration, without a running one
    #[command(after_help = "\
Examples:
  hugepoolctl config check --config /etc/hugepool/hugepoold.toml
  hugepoolctl config explain limits
  hugepoolctl config show -J")]
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Measure what the pool costs, through a daemon of its own or a running one
    #[command(after_help = "\
Prints one line a case, with -J one JSON object: first the environment, last the daemon's verdict.
Without --runtime-dir it starts the hugepoold that lies beside this tool, else the one in PATH.

Examples:
  hugepoolctl bench reclaim -J
  hugepoolctl --runtime-dir /run/hugepool bench reclaim --reps 3")]
    Bench {
        /// Draws nanoseconds a page against n into this folder, as pair.svg
        #[arg(long, value_name = "DIR", global = true)]
        plot: Option<PathBuf>,
        /// A peer's figures for the picture: a file with a JSON object a line
        #[arg(long, value_name = "FILE", global = true, requires = "plot")]
        peer: Option<PathBuf>,
        #[command(subcommand)]
        bench: Bench,
    },
    /// Hold pages until standard input ends: who is killed by `bench reclaim`
    #[command(hide = true)]
    BenchVictim {
        /// How many
        nr_pages: usize,
    },
    /// Become the daemon of a bench, and end with it
    #[command(hide = true)]
    BenchDaemon {
        /// The bench's process
        bench: u32,
        /// The daemon's arguments
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Use movable pages until standard input ends: who is moved by `bench offline`
    #[command(hide = true)]
    BenchPinner {
        /// How many
        nr_pages: usize,
    },
    /// Flood a daemon until standard input ends: the bad ones of `bench flood`
    #[command(hide = true)]
    BenchFlooder {
        /// With what
        flood: String,
        /// The folder of its sockets
        sockets: PathBuf,
    },
    /// Receive parcels until standard input ends: the other process of `bench pipeline`
    #[command(hide = true)]
    BenchConsumer {
        /// Name of the channel that they come by
        there: String,
        /// Name of the channel that tickets go back by
        home: String,
    },
    /// Write completions or man pages, from the same definition as the help
    #[command(hide = true)]
    Generate {
        #[command(subcommand)]
        what: Generated,
    },
}

/// What is asked of a daemon that runs.
#[derive(Debug, Subcommand)]
pub enum Asked {
    /// Show version, geometry, and the equation of pages
    Status,
    /// List the zones
    Zone {
        #[command(subcommand)]
        verb: ZoneVerb,
    },
    /// List sections; add, online, offline and remove them
    Section {
        #[command(subcommand)]
        verb: SectionVerb,
    },
    /// List the clients, or evict one
    Client {
        #[command(subcommand)]
        verb: ClientVerb,
    },
    /// List and set floors and ceilings of clients, users and zones
    Limit {
        #[command(subcommand)]
        verb: LimitVerb,
    },
    /// Print free blocks by order, as /proc/buddyinfo does
    #[command(after_help = "\
The lines have the widths of Linux 6.1, so that whatever parses /proc/buddyinfo parses them:
  mkdir -p /run/proc-of-hugepool
  hugepoolctl buddyinfo > /run/proc-of-hugepool/buddyinfo")]
    Buddyinfo {
        /// One zone only
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
    },
    /// Print free blocks by migratetype and order, as /proc/pagetypeinfo does
    Pagetypeinfo {
        /// One zone only
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
    },
    /// Print counts, watermarks and pagesets of each zone, as /proc/zoneinfo does
    ///
    /// Counters that a page allocator outside the kernel does not have are left out.
    Zoneinfo {
        /// One zone only
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
    },
    /// Show or clear the two contiguity caches
    Contiguity {
        #[command(subcommand)]
        verb: ContiguityVerb,
    },
    /// Move pages under their clients, so that larger blocks become free
    #[command(after_help = "\
Exit status 0 when what was wanted is there, 1 when not.

Examples:
  hugepoolctl compact --zone movable
  hugepoolctl compact --zone movable --order 9 --mode sync -J")]
    Compact {
        /// One zone [default: all, one after the other]
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
        /// Enough is done when a block of this order is free [default: the whole zone]
        #[arg(long, value_name = "ORDER")]
        order: Option<u32>,
        /// manual: whatever earlier runs found; sync and async: as requests have it done
        #[arg(long, value_name = "MODE", default_value = "manual", value_parser = ["manual", "sync", "async"])]
        mode: String,
        /// Return at once; see 'operation watch'
        #[arg(long)]
        detach: bool,
    },
    /// Take unused pages back from the lanes of clients
    Lane {
        #[command(subcommand)]
        verb: LaneVerb,
    },
    /// Set batch and high of the lanes, live
    Pcp {
        #[command(subcommand)]
        verb: PcpVerb,
    },
    /// Check the whole structure: allocator, owner table, equations
    #[command(after_help = "Exit status 0 when all holds, 3 with the findings when not.")]
    Verify,
    /// List, watch or cancel long operations
    Operation {
        #[command(subcommand)]
        verb: OperationVerb,
    },
    /// Print events as they happen, until interrupted
    Events {
        /// Stop after this many
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
}

#[derive(Debug, Subcommand)]
pub enum ZoneVerb {
    /// List the zones with their pages, watermarks and backing
    List,
}

#[derive(Debug, Subcommand)]
pub enum SectionVerb {
    /// List the sections that are present
    List {
        /// One zone only
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
    },
    /// Add sections: backing and metadata, then online
    #[command(after_help = "\
Examples:
  hugepoolctl section add --zone movable --count 4
  hugepoolctl section add 24 --keep-offline")]
    Add {
        #[command(flatten)]
        which: Which,
        /// Say what would happen, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Leave them offline
        #[arg(long)]
        keep_offline: bool,
        /// Free pages to the buddy at this order: 0, or the pageblock order (the default)
        #[arg(long, value_name = "N")]
        online_order: Option<u32>,
    },
    /// Give the pages of offline sections to the buddy
    Online {
        #[command(flatten)]
        which: Which,
        /// Say what would happen, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Free pages to the buddy at this order: 0, or the pageblock order (the default)
        #[arg(long, value_name = "N")]
        online_order: Option<u32>,
    },
    /// Take the pages of online sections: isolate, recall, wait, take
    ///
    /// A section goes whole or stays online exactly as it was; a refusal lists the holders.
    #[command(after_help = "\
Examples:
  hugepoolctl section offline 24-27 --dry-run
  hugepoolctl section offline --zone movable --count 2 --timeout 5s")]
    Offline {
        #[command(flatten)]
        which: Which,
        /// Say what would happen and who stands in the way, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// How long held pages are waited for (500ms, 5s, 1m) [default: the daemon's]
        #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
        timeout: Option<Duration>,
        /// Come back at once with the operation's id
        #[arg(long)]
        detach: bool,
    },
    /// Give the memory of offline sections back to the system
    Remove {
        #[command(flatten)]
        which: Which,
        /// Say what would happen, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Which sections: by id, or so many of a zone.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct Which {
    /// Section ids and ranges of them: 24, 24-27, 24,26
    #[arg(value_name = "ID", value_delimiter = ',')]
    pub ids: Vec<size::IdRange>,
    /// Zone to take them from
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// How many, when no ids are given
    #[arg(long, value_name = "N", requires = "zone", conflicts_with = "ids")]
    pub count: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub enum ClientVerb {
    /// List the clients with what they hold
    List,
    /// Shut a client's lanes and refuse its calls; what it holds stays its own until it exits
    Evict {
        /// Slot of the client (see `client list`)
        slot: u32,
        /// Refuse if the slot has got another client since
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        incarnation: u32,
        /// Send it SIGKILL too, so that what it holds comes home
        #[arg(long)]
        kill: bool,
    },
    /// Set the most pages that a client may own, live
    #[command(after_help = "\
What a client owns beyond a new limit stays its own; it only gets no more.

Examples:
  hugepoolctl client limit 65536
  hugepoolctl client limit none --client 3")]
    Limit {
        /// Pages, or `none`
        #[arg(value_name = "PAGES|none", value_parser = size::parse_limit)]
        pages: size::Limit,
        /// Of the client in this slot only; else of all, and those to come
        #[arg(long, value_name = "SLOT")]
        client: Option<u32>,
    },
    /// Give pages of dead clients free before their zone's quarantine is over
    ///
    /// No device may write them any more: that is for you to know.
    Release {
        /// Of the dead client in this slot only
        slot: Option<u32>,
        /// In this zone only
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum ContiguityVerb {
    /// Show both caches: answers, hits and misses
    Show {
        /// One zone only
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
        /// Print a line for each pageblock
        #[arg(long)]
        pageblocks: bool,
    },
    /// Clear both caches; the next questions walk the sections again
    Invalidate {
        /// One zone only
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// What a daemon would run with: flags' defaults, environment and file together
    Show {
        /// The file; else that of $HUGEPOOLD_CONFIG
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Whether a daemon could start with it now: memory by pool and node, directory, descriptors
    Check {
        /// The file; else that of $HUGEPOOLD_CONFIG
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// What the keys of the file mean, with their types and defaults
    Explain {
        /// Of this key or table only
        key: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum LaneVerb {
    /// Take unused grants and magazines back
    Drain {
        /// Of the client in this slot only
        #[arg(long, value_name = "SLOT")]
        client: Option<u32>,
        /// How long busy lanes are waited for
        #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = size::parse_duration)]
        timeout: Duration,
    },
}

#[derive(Debug, Subcommand)]
pub enum PcpVerb {
    /// Set how many pages move at a visit, and how many a lane keeps
    #[command(group = ArgGroup::new("what").args(["batch", "high"]).required(true).multiple(true))]
    #[command(after_help = "\
Examples:
  hugepoolctl pcp set --batch 63 --high 512
  hugepoolctl pcp set --client 3 --batch auto")]
    Set {
        /// Of the client in this slot only; else of all, and those to come
        #[arg(long, value_name = "SLOT")]
        client: Option<u32>,
        /// Pages moved at a visit, or `auto` to follow demand
        #[arg(long, value_name = "N|auto", value_parser = size::parse_auto)]
        batch: Option<u32>,
        /// Pages a lane keeps before it spills, or `auto`
        #[arg(long, value_name = "N|auto", value_parser = size::parse_auto)]
        high: Option<u32>,
    },
}

#[derive(Debug, Subcommand)]
pub enum OperationVerb {
    /// List running and lately ended operations
    List,
    /// Follow one until it ends
    Watch {
        /// Id of the operation
        id: u64,
    },
    /// Stop one; what it had begun is undone
    Cancel {
        /// Id of the operation
        id: u64,
    },
}

#[derive(Debug, Subcommand)]
pub enum Generated {
    /// Completions for a shell, to standard output
    Completions {
        /// Shell
        shell: Shell,
    },
    /// A man page for each verb, into a folder
    Man {
        /// Folder, made if missing
        dir: PathBuf,
    },
}

/// Shells that completions are written for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Fish,
    Zsh,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("hugepoolctl").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_may_stand_before_and_after_the_noun() {
        for line in ["-J zone list", "zone -J list", "zone list -J"] {
            assert!(parse(line).unwrap().global.json, "{line}");
        }
    }

    #[test]
    fn sections_are_named_by_id_or_by_zone_and_count() {
        for line in [
            "section offline 3",
            "section offline 3-5 7",
            "section offline 3,5-6",
            "section offline --zone movable",
            "section offline --zone movable --count 2",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in [
            "section offline",
            "section offline --count 2",
            "section offline 3 --zone movable --count 2",
            "section offline 5-3",
            "section offline x",
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn every_verb_says_what_it_does() {
        fn visit(command: &clap::Command, path: &str) {
            for sub in command
                .get_subcommands()
                .filter(|sub| sub.get_name() != "help")
            {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path} has no text");
                for arg in sub.get_arguments() {
                    assert!(
                        arg.get_help().is_some(),
                        "{path} {} has no text",
                        arg.get_id()
                    );
                }
                visit(sub, &path);
            }
        }
        visit(&Cli::command(), "hugepoolctl");
    }
}
