//! `hugepoolctl`: administers and inspects a running hugepoold.
//!
//! Parses ([`cli`]), runs one verb over gRPC, prints ([`output`]) and maps the result to an exit
//! status ([`outcome`]). It knows the contract of `hugepool.v1` and nothing of the daemon's inside.
#![forbid(unsafe_code)]

mod cli;
mod client;
mod connect;
mod contiguity;
mod events;
mod generate;
mod lane;
mod operation;
mod outcome;
mod output;
mod proc_files;
mod progress;
mod section;
mod size;
mod status;
mod verify;
mod zone;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{
    cli::{Cli, Noun},
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
    if let Noun::Generate { what } = cli.noun {
        return generate::run(&what, &out);
    }
    let mut admin = connect::admin(cli.global.runtime_dir.as_deref()).await?;
    match cli.noun {
        Noun::Status => status::show(&mut admin, &out).await,
        Noun::Zone { verb } => zone::run(verb, &mut admin, &out).await,
        Noun::Section { verb } => section::run(verb, &mut admin, &out).await,
        Noun::Client { verb } => client::run(verb, &mut admin, &out).await,
        Noun::Buddyinfo { zone } => proc_files::buddyinfo(zone, &mut admin, &out).await,
        Noun::Pagetypeinfo { zone } => proc_files::pagetypeinfo(zone, &mut admin, &out).await,
        Noun::Zoneinfo { zone } => proc_files::zoneinfo(zone, &mut admin, &out).await,
        Noun::Contiguity { verb } => contiguity::run(verb, &mut admin, &out).await,
        Noun::Lane { verb } => lane::run_lane(verb, &mut admin, &out).await,
        Noun::Pcp { verb } => lane::run_pcp(verb, &mut admin, &out).await,
        Noun::Verify => verify::run(&mut admin, &out).await,
        Noun::Operation { verb } => operation::run(verb, &mut admin, &out).await,
        Noun::Events { count } => events::follow(count, &mut admin, &out).await,
        Noun::Generate { .. } => unreachable!("handled before the daemon was dialled"),
    }
}
