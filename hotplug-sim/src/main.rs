//! The `hotplug-sim` binary: a verb, its function, an exit status.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use hotplug_sim::flags::{Command, Flags};

fn main() -> ExitCode {
    match Flags::parse().command {
        Command::Import(args) => hotplug_sim::import::command::run(&args),
        Command::Replay(args) => hotplug_sim::replay::command::run(&args),
        Command::Snapshot(args) => hotplug_sim::live::snapshot::run(&args),
        Command::Drive(args) => hotplug_sim::live::drive::run(&args),
        Command::DriveClient(args) => hotplug_sim::live::client::run(&args),
        Command::Ask(args) => hotplug_sim::ask::run(&args),
        Command::Run(args) => hotplug_sim::run::run(&args),
        Command::Report(args) => hotplug_sim::report::run(&args),
        Command::Minimize(args) => hotplug_sim::scenario::command::run_minimize(&args),
        Command::Fleet(args) => hotplug_sim::fleet::command::run(&args),
        Command::Seeds(args) => hotplug_sim::seeds::run(&args),
    }
}
