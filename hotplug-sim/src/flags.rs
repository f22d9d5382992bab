//! What can be typed after `hotplug-sim`. Parsing does nothing but parse.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::ask::AskArgs;
use crate::fleet::command::FleetArgs;
use crate::import::format::Format;
use crate::live::client::ClientArgs;
use crate::live::drive::DriveArgs;
use crate::live::snapshot::SnapshotArgs;
use crate::replay::command::ReplayArgs;
use crate::report::ReportArgs;
use crate::run::RunArgs;
use crate::scenario::command::MinimizeArgs;
use crate::seeds::SeedsArgs;

/// Memory hotplug of real and imagined machines: imported, simulated, replayed.
#[derive(Debug, Parser)]
#[command(name = "hotplug-sim", version, max_term_width = 100)]
pub struct Flags {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read dumps, logs, traces and configurations of a machine.
    Import(ImportArgs),
    /// Simulate a machine, a scenario, or the daemon's engine under seeded chaos; check every step.
    Run(RunArgs),
    /// Describe a running daemon, or this host, as a machine.
    Snapshot(SnapshotArgs),
    /// Do a scenario on a running daemon with real client processes, beside its simulation.
    Drive(DriveArgs),
    /// A client process of `drive`.
    #[command(hide = true)]
    DriveClient(ClientArgs),
    /// Ask what would happen to a machine: what could go, what could be had, what it would cost.
    Ask(AskArgs),
    /// Do again what a trace or a log shows, through our allocator, and compare.
    Replay(ReplayArgs),
    /// Make a failing run of a machine or a scenario small.
    Minimize(MinimizeArgs),
    /// Run a machine or a scenario, and write its tables and pictures as one HTML page.
    Report(ReportArgs),
    /// Simulate many hosts and a pool of memory that they share, under several policies.
    Fleet(FleetArgs),
    /// Measure the four ideas that the allocator grew from, beside what others measured.
    Seeds(SeedsArgs),
}

/// `import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 understood, 1 nothing understood, 2 usage, 64 partly understood."
)]
pub struct ImportArgs {
    /// Files of one machine, in any order; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(short = 'J', long)]
    pub json: bool,
    /// Take the files for this kind of text instead of finding out.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Write a machine description (TOML) that can be edited and simulated.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}
