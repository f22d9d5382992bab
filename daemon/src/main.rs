//! `hugepoold`: logging, configuration, run, exit status. Everything else is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use hugepool_daemon::bench;
use hugepool_daemon::config::{Config, Surroundings};
use hugepool_daemon::flags::{Flags, Hidden, PrintConfig};
use hugepool_daemon::{check, exit, run, telemetry};

fn main() -> ExitCode {
    let flags = Flags::parse();
    match &flags.hidden {
        Some(Hidden::Bench { bench }) => return bench::run(bench),
        Some(Hidden::Config {
            print: PrintConfig::Explain,
        }) => return check::explain(),
        _ => {}
    }
    let config = match Config::load(&flags, &Surroundings::of_this_process()) {
        Ok(config) => config,
        Err(error) => return exit::usage(&error),
    };
    if let Some(Hidden::Config {
        print: PrintConfig::Show { json },
    }) = flags.hidden
    {
        return check::show(&config, json);
    }
    if flags.check {
        return check::print(&config);
    }
    telemetry::start(&config.log);
    exit::status(run(config))
}
