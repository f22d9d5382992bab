//! `cargo xtask soak`: real processes come and die, the daemon too, and no page is lost or doubled.
//!
//! Re-executes itself as the keeper, the daemon and the workers. [`director`] kills them by chance and
//! calls them to account every now and then; [`worker`] takes, hands on, moves and frees pages and
//! checks their bytes; [`hotplug`] makes sections come and go; [`tally`] says what became of it all.
#![forbid(unsafe_code)]

mod admin;
mod chance;
mod daemon;
mod director;
mod hotplug;
mod links;
mod mark;
mod process;
mod said;
mod tally;
mod worker;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use clap::{Parser, Subcommand};

/// Lets clients, daemon and sections come and go, and counts every page.
///
/// Clients take, check, hand on, move and free pages and are killed at random instants; the daemon is
/// killed every few seconds, and its keeper starts the next; sections are added and removed. Every
/// 15 seconds all stand still and are called to account. Ends with the sum, and exit status 3 if a
/// page was lost, doubled or corrupt, or a client was taken for a liar.
#[derive(Parser)]
#[command(name = "hugepool-soak", version)]
struct Flags {
    /// How long it goes on.
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    minutes: f64,
    /// Chooses the same instants and sizes again, as far as processes can be held to that.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What a re-executed process is.
#[derive(Subcommand)]
enum Role {
    /// Keeps the memory while daemons die, and starts the next one.
    #[command(hide = true)]
    Keeper { runtime_dir: PathBuf },
    /// The daemon in the given run-time directory.
    #[command(hide = true)]
    Daemon { runtime_dir: PathBuf },
    /// A client that works until its standard input ends.
    #[command(hide = true)]
    Worker {
        runtime_dir: PathBuf,
        me: usize,
        seed: u64,
    },
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let outcome = match flags.role {
        Some(Role::Keeper { runtime_dir }) => return daemon::keeper(&runtime_dir),
        Some(Role::Daemon { runtime_dir }) => return daemon::daemon(&runtime_dir),
        Some(Role::Worker {
            runtime_dir,
            me,
            seed,
        }) => worker::run(&runtime_dir, me, seed).map(|()| true),
        None => {
            let seed = flags.seed.unwrap_or_else(fresh_seed);
            let minutes = flags.minutes.clamp(0.05, 60.0 * 24.0 * 365.0);
            director::run(Duration::from_secs_f64(minutes * 60.0), seed)
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("hugepool-soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |since| u64::from(since.subsec_nanos()))
}
