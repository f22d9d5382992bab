//! `hugepoolctl`: administers and inspects a running hugepoold.
//!
//! Parses ([`cli`]), runs one verb over gRPC, prints ([`output`]) and maps the result to an exit
//! status ([`outcome`]). It knows the contract of `hugepool.v1` and nothing of the daemon's inside.
#![forbid(unsafe_code)]

mod bench;
mod cli;
mod client;
mod compact;
mod config;
mod connect;
mod contiguity;
mod events;
mod generate;
mod lane;
mod limit;
mod operation;
mod outcome;
mod output;
mod proc_files;
mod program;
mod progress;
mod section;
mod size;
mod stats;
mod status;
mod verify;
mod zone;

use std::{path::Path, process::ExitCode};

use clap::Parser as _;
use hugepool_proto::v1::CompactRequest;

use crate::{
    cli::{Asked, Cli, Noun},
    outcome::{Failure, Outcome},
    output::Output,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            return report(&Failure::refused(
                error,
                "try again when the system has room",
            ));
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(outcome) => outcome.into(),
        Err(failure) => report(&failure),
    }
}

/// Prints what went wrong, and what to do next, on one line.
fn report(failure: &Failure) -> ExitCode {
    if !failure.is_closed_pipe() {
        eprintln!("hugepoolctl: {failure}");
    }
    failure.outcome().into()
}

async fn run(cli: Cli) -> Result<Outcome, Failure> {
    let out = Output::new(&cli.global);
    let runtime_dir = cli.global.runtime_dir.as_deref();
    match cli.noun {
        Noun::Asked(asked) => ask(asked, runtime_dir, &out).await,
        Noun::Stats { offline } => stats::show(offline, runtime_dir, &out).await,
        Noun::Bench { plot, peer, bench } => {
            let plot = plot.as_deref().map(|dir| bench::plot::Plot {
                dir,
                peer: peer.as_deref(),
            });
            bench::run(bench, plot, runtime_dir, &out).await
        }
        Noun::BenchVictim { nr_pages } => bench::victim::hold(nr_pages, runtime_dir),
        Noun::BenchDaemon { bench, arguments } => bench::daemon::become_it(bench, &arguments),
        Noun::BenchFlooder { flood, sockets } => bench::flood::flood(&flood, &sockets),
        Noun::BenchConsumer { there, home } => bench::consumer::consume(&there, &home, runtime_dir),
        Noun::BenchPinner { nr_pages } => bench::pinner::pin(nr_pages, runtime_dir),
        Noun::Config { verb } => config::run(&verb, runtime_dir, &out),
        Noun::Generate { what } => generate::run(&what, &out),
    }
}

async fn ask(asked: Asked, runtime_dir: Option<&Path>, out: &Output) -> Result<Outcome, Failure> {
    let admin = &mut connect::admin(runtime_dir).await?;
    match asked {
        Asked::Status => status::show(admin, out).await,
        Asked::Zone { verb } => zone::run(verb, admin, out).await,
        Asked::Section { verb } => section::run(verb, admin, out).await,
        Asked::Client { verb } => client::run(verb, admin, out).await,
        Asked::Limit { verb } => limit::run(verb, admin, out).await,
        Asked::Buddyinfo { zone } => proc_files::buddyinfo(zone, admin, out).await,
        Asked::Pagetypeinfo { zone } => proc_files::pagetypeinfo(zone, admin, out).await,
        Asked::Zoneinfo { zone } => proc_files::zoneinfo(zone, admin, out).await,
        Asked::Contiguity { verb } => contiguity::run(verb, admin, out).await,
        Asked::Compact {
            zone,
            order,
            mode,
            detach,
        } => {
            let request = CompactRequest {
                zone: zone.unwrap_or_default(),
                order,
                mode,
                detach,
            };
            compact::run(request, admin, out).await
        }
        Asked::Lane { verb } => lane::run_lane(verb, admin, out).await,
        Asked::Pcp { verb } => lane::run_pcp(verb, admin, out).await,
        Asked::Verify => verify::run(admin, out).await,
        Asked::Operation { verb } => operation::run(verb, admin, out).await,
        Asked::Events { count } => events::follow(count, admin, out).await,
    }
}
