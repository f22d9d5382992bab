//! `hugepoold`: logging, configuration, run, exit status. Everything else is in the library.
#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};

use clap::Parser as _;
use hugepool_daemon::bench;
use hugepool_daemon::config::{Config, Surroundings};
use hugepool_daemon::flags::{Flags, Hidden, PrintConfig};
use hugepool_daemon::reload::Source;
use hugepool_daemon::{check, exit, keeper, man, run_reloadable, telemetry};

fn main() -> ExitCode {
    let flags = Flags::parse();
    match &flags.hidden {
        Some(Hidden::Bench { bench }) => return bench::run(bench),
        Some(Hidden::Config {
            print: PrintConfig::Explain,
        }) => return check::explain(),
        Some(Hidden::Man { dir }) => {
            return match man::write(dir) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => exit::failure(&format!("{}: {error}", dir.display())),
            };
        }
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
    if flags.keeper {
        return keeper::run(&config.runtime_dir, &daemon);
    }
    #[cfg(debug_assertions)]
    die_on_demand();
    let source = Source {
        flags,
        around: Surroundings::of_this_process(),
    };
    exit::status(run_reloadable(config, source))
}

/// What the keeper starts: this program without its flag.
fn daemon() -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "hugepoold".into());
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1).filter(|arg| arg != "--keeper"));
    command
}

/// For tests that kill a daemon after a certain step; the one that comes after it lives.
#[cfg(debug_assertions)]
fn die_on_demand() {
    let is_next = std::env::var("LISTEN_FDS").is_ok_and(|nr| nr != "0");
    if let Ok(step) = std::env::var("HUGEPOOLD_TEST_DIE_AT")
        && !is_next
    {
        hugepool_shm::step::die_at(&step);
    }
}
