//! `hotplug-sim drive`: a scenario on a running daemon, with real client processes, beside the
//! simulation of it on a machine made of the daemon as it was before.
//!
//! A step's verb is one call or one line to a client ([`side`](super::side)). What was done, what was
//! refused and why is compared after each step; at the end, what each zone has and each client holds.
//! What the scenario expects is asked of both; a number that no daemon tells of
//! ([`told`](super::told)) is asked of the simulation alone, and that is said. Verbs and fields
//! without a counterpart (`mix`, `balloon`, devices, ...) are refused before anything is done.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::side::{Live, is_free};
use super::told::{Answer, Told};
use super::{connect, runtime, snapshot};
use crate::host::Host;
use crate::host::hotplug::Records;
use crate::scenario::expr::{self, Compared, Value};
use crate::scenario::file::{Scenario, Step, parse_size};
use crate::scenario::runner::{Options, Results, Runner};

/// `drive`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 the daemon did what the simulation did and the scenario expects, 1 they differ or \
                  something expected is not so, 2 usage or no daemon."
)]
pub struct DriveArgs {
    /// The daemon's run-time directory.
    #[arg(long, value_name = "DIR")]
    runtime_dir: PathBuf,
    /// The scenario; its own machine is not used.
    scenario: PathBuf,
}

/// Verbs that a daemon can be told, and with which fields.
const DRIVEN: [(&str, &[&str]); 10] = [
    ("online", &["zone", "size"]),
    ("offline", &["zone", "size"]),
    ("remove", &["zone", "size"]),
    (
        "alloc",
        &["client", "zone", "order", "migratetype", "count", "size"],
    ),
    ("free", &["client", "count", "pattern"]),
    (
        "bulk",
        &["client", "zone", "slots", "filled", "migratetype"],
    ),
    ("die", &["client"]),
    ("limit", &["client", "size"]),
    ("verify", &[]),
    ("compact", &["zone", "order", "mode"]),
];
/// Fields that are of no consequence to the daemon: a scenario's own.
const OWN: [&str; 5] = ["do", "name", "repeat", "save", "expect"];

/// Drives.
pub fn run(args: &DriveArgs) -> ExitCode {
    match drive(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("hotplug-sim: {error}");
            ExitCode::from(2)
        }
    }
}

fn drive(args: &DriveArgs) -> Result<bool, String> {
    let text = std::fs::read_to_string(&args.scenario);
    let text = text.map_err(|error| format!("{}: {error}", args.scenario.display()))?;
    let scenario = Scenario::from_toml(&text).map_err(|error| error.to_string())?;
    for (at, step) in scenario.steps.iter().enumerate() {
        can_be_driven(step).map_err(|what| format!("step {}: {what}", at + 1))?;
    }
    let runtime = runtime()?;
    let mut admin = runtime.block_on(connect(Some(&args.runtime_dir)))?;
    let machine = runtime.block_on(snapshot::of_daemon(&mut admin))?;
    let host = Host::build(&machine, 1).map_err(|error| error.to_string())?;
    let mut runner = Runner::new(
        host,
        Options {
            seed: scenario.seed.unwrap_or(1),
            until: None,
            trace: false,
            verify_every: 1,
            skip: Vec::new(),
        },
    );
    let mut live = Live::new(&args.runtime_dir, admin);
    let mut all_alike = true;
    let mut expectations = Expectations::default();
    println!(
        "{:<4} {:<10} {:<34} {:<34}",
        "step", "verb", "simulation", "daemon"
    );
    for (at, step) in scenario.steps.iter().enumerate() {
        for _ in 0..step.repeat.unwrap_or(1) {
            let alone = Scenario {
                steps: vec![as_driven(&mut runner.host, step)?],
                ..Scenario::default()
            };
            runner
                .run(&alone)
                .map_err(|stop| format!("step {}: {stop}", at + 1))?;
            let simulated = match step.verb.as_str() {
                "compact" => compacted(&runner.host, step)?,
                _ => outcome(&runner.results),
            };
            let done = runtime.block_on(live.act(step, &runner.host))?;
            let is_alike = simulated == done.outcome;
            all_alike &= is_alike;
            let mark = if is_alike { "" } else { "  differs" };
            println!(
                "{:<4} {:<10} {simulated:<34} {:<34}{}{mark}",
                at + 1,
                step.verb,
                done.outcome,
                done.remark,
            );
            if !step.save.is_empty() || !step.expect.is_empty() {
                let told = runtime.block_on(live.told(&done))?;
                all_alike &= expectations
                    .meet(step, &runner, &told)
                    .map_err(|what| format!("step {}: {what}", at + 1))?;
            }
        }
    }
    let ends = runtime.block_on(live.compare_end(&runner))?;
    for (line, is_alike) in ends {
        all_alike &= is_alike;
        println!("{line}{}", if is_alike { "" } else { "  differs" });
    }
    Ok(all_alike)
}

/// What a scenario expects, asked of the daemon and of the simulation.
#[derive(Default)]
struct Expectations {
    /// What the scenario saved, as the daemon told it.
    saved: BTreeMap<String, Value>,
}

impl Expectations {
    /// Saves what a step saves, and prints what came of what it expects; whether all of that is so.
    fn meet(&mut self, step: &Step, runner: &Runner, told: &Told) -> Result<bool, String> {
        for (name, what) in &step.save {
            match told.evaluate(what, &runner.host, &self.saved)? {
                Answer::Known(value) => self.saved.insert(name.clone(), value),
                Answer::NotTold(_) => self.saved.remove(name),
            };
        }
        let mut all = true;
        for expected in &step.expect {
            let simulated = expr::compare(expected, &|name| runner.look_up(name))?;
            let answer = told.compare(expected, &runner.host, &self.saved)?;
            let daemon = match &answer {
                Answer::Known(compared) => in_words(compared),
                Answer::NotTold(name) => format!("not told of {name}"),
            };
            let is_so =
                simulated.holds && !matches!(&answer, Answer::Known(compared) if !compared.holds);
            all &= is_so;
            let mark = if is_so { "" } else { "  not as expected" };
            let simulated = in_words(&simulated);
            println!("     expected {expected}: simulation {simulated}, daemon {daemon}{mark}");
        }
        Ok(all)
    }
}

fn in_words(compared: &Compared) -> String {
    if compared.holds {
        return "yes".to_owned();
    }
    format!("no ({} and {})", compared.left, compared.right)
}

/// Whether a daemon can be told a step, all of it.
fn can_be_driven(step: &Step) -> Result<(), String> {
    let Some((_, fields)) = DRIVEN.iter().find(|(verb, _)| *verb == step.verb) else {
        let known: Vec<&str> = DRIVEN.iter().map(|(verb, _)| *verb).collect();
        let known = known.join(", ");
        return Err(format!("{} cannot be driven; {known} can", step.verb));
    };
    let table = toml::Table::try_from(step).map_err(|error| error.to_string())?;
    for field in table.keys().map(String::as_str) {
        if !OWN.contains(&field) && !fields.contains(&field) {
            let known = fields.join(", ");
            return Err(format!(
                "{} cannot be driven with {field}; with {known} it can",
                step.verb
            ));
        }
    }
    if step.verb == "bulk" && step.migratetype.as_deref() != Some("unmovable") {
        return Err("bulk can be driven with migratetype = \"unmovable\" alone".to_owned());
    }
    Ok(())
}

/// What came of a compaction: whether a block of its order is free.
fn compacted(host: &Host, step: &Step) -> Result<String, String> {
    let zones = match &step.zone {
        Some(zone) => vec![host.zone_named(zone)?],
        None => (0..host.zones.len()).collect(),
    };
    let free = zones.iter().map(|&at| host.zones[at].zone.buddyinfo());
    Ok(is_free(step, host.geometry.pageblock_order().get(), free))
}

/// A step as the daemon does it: what comes online is added first, at the lowest places of its zone;
/// what goes is so many blocks from the highest on, and no others in their place.
fn as_driven(host: &mut Host, step: &Step) -> Result<Step, String> {
    let mut alone = Step {
        repeat: None,
        expect: Vec::new(),
        ..step.clone()
    };
    if !matches!(step.verb.as_str(), "online" | "offline") {
        return Ok(alone);
    }
    let name = step
        .zone
        .as_ref()
        .ok_or_else(|| format!("{} needs a zone to be driven", step.verb))?;
    let at = host.zone_named(name)?;
    let nr = match (step.count, &step.size) {
        (None, Some(size)) => parse_size(size)?.div_ceil(host.geometry.section_bytes()),
        _ => return Err(format!("{} needs a size to be driven", step.verb)),
    };
    let nr = usize::try_from(nr).map_err(|error| error.to_string())?;
    let ids: Vec<u64> = if step.verb == "online" {
        let reserve = host.zones[at].zone.reserve_range();
        let section = u64::from(host.geometry.section_pages());
        let shift = host.zones[at].shift;
        let all = (reserve.start + shift) / section..(reserve.end + shift) / section;
        all.filter(|id| !host.sections.contains_key(id))
            .take(nr)
            .collect()
    } else {
        let online = host
            .sections
            .iter()
            .rev()
            .filter(|(_, row)| row.zones.contains(&at));
        online.take(nr).map(|(id, _)| *id).collect()
    };
    if step.verb == "online" {
        for &id in &ids {
            host.add(id, host.zones[at].node, Records::None)
                .map_err(|refused| refused.what)?;
        }
    }
    let words: Vec<String> = ids.iter().map(u64::to_string).collect();
    alone.size = None;
    alone.blocks = Some(words.join(","));
    Ok(alone)
}

/// What is compared of a step.
fn outcome(results: &Results) -> String {
    let mut words = Vec::new();
    for name in ["populated", "done", "refused", "pages", "reason"] {
        match results.get(name) {
            Some(Value::Number(number)) => words.push(format!("{name}={number}")),
            // The daemon does not tell apart what is kept back from what is not there.
            Some(Value::Word(word)) if word == "empty" => words.push("reason=watermark".to_owned()),
            Some(Value::Word(word)) if !word.is_empty() => words.push(format!("{name}={word}")),
            _ => {}
        }
    }
    words.join(" ")
}
