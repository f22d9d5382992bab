//! `hugepoold`: logging, configuration, run, exit status. Everything else is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use hugepool_daemon::bench::{self, Hidden};
use hugepool_daemon::config::{Config, Surroundings};
use hugepool_daemon::flags::Flags;
use hugepool_daemon::{check, exit, run, telemetry};

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(Hidden::Bench { bench }) = &flags.hidden {
        return bench::run(bench);
    }
    let config = match Config::load(&flags, &Surroundings::of_this_process()) {
        Ok(config) => config,
        Err(error) => return exit::usage(&error),
    };
    if flags.check {
        return check::print(&config);
    }
    telemetry::start(&config.log);
    exit::status(run(config))
}
