//! The demo: the whole way of a page, in one command.
//!
//! Re-executes itself as the daemon and as the workers, so that every process is a real
//! one. [`scene`] directs, [`worker`] serves the file, [`report`] prints; the daemon is the
//! library that `hugepoold` is made of. [`holder`] is a worker whose pages move.
#![forbid(unsafe_code)]

mod admin;
mod holder;
mod process;
mod report;
mod restart;
mod scene;
mod source;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Serves a file from pages of a hugepool while memory comes and goes and a worker is killed.
///
/// Starts a daemon of its own in a temporary folder and at least two workers. Each worker
/// serves the file as a stream of 256 KiB READs, refilling its array of page slots before
/// each, as the NFS server does in svc_alloc_arg(). Needs no root, no configuration and no
/// reserved huge pages; it uses huge pages where there are some.
#[derive(Parser)]
#[command(name = "hugepool-demo", version)]
pub struct Flags {
    /// File to serve, the first GiB of it if it is larger; without it, a file of at least 8 MiB
    /// that the build has made.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Worker processes, one of which is killed on the way.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=16))]
    workers: u32,
    /// Prints one JSON object at the end, and nothing else on standard output.
    #[arg(long)]
    json: bool,
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
    /// A worker that serves the file until its standard input ends.
    #[command(hide = true)]
    Worker { runtime_dir: PathBuf, file: PathBuf },
    /// A worker that never lets its movable pages rest until its standard input ends.
    #[command(hide = true)]
    Holder {
        runtime_dir: PathBuf,
        zone: String,
        nr_pages: usize,
    },
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let outcome = match flags.role {
        Some(Role::Keeper { runtime_dir }) => return process::keeper(&runtime_dir),
        Some(Role::Daemon { runtime_dir }) => return process::daemon(&runtime_dir),
        Some(Role::Worker { runtime_dir, file }) => worker::run(&runtime_dir, &file).map(|()| true),
        Some(Role::Holder {
            runtime_dir,
            zone,
            nr_pages,
        }) => holder::run(&runtime_dir, &zone, nr_pages).map(|()| true),
        None => scene::run(flags.file.as_deref(), flags.workers, flags.json),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("hugepool-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
