//! `hotplug-sim run` of a machine or a scenario, and `hotplug-sim minimize`.
//!
//! What goes to standard output is the same for the same seed, byte for byte; how long it took
//! goes to standard error. Exit status: 0 as expected, 1 an expectation not met, 2 usage, 3 a
//! broken invariant.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant}; // tidy: pure: for the report on how long a run took

use clap::Args;

use super::file::{Scenario, SmallMachine, Step, parse_ranges, parse_size};
use super::minimize::minimize;
use super::runner::{Options, Runner, Stop};
use crate::host::Host;
use crate::import::machine::Machine;

/// Exit status for an expectation that is not met.
const FAILED: u8 = 1;
/// Exit status for usage.
const USAGE: u8 = 2;
/// Exit status for a broken invariant.
const BROKEN: u8 = 3;

/// What a run of a machine needs.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The machine's file.
    pub machine: Option<&'a Path>,
    /// The scenario's file.
    pub scenario: Option<&'a Path>,
    /// The seed that the command gave.
    pub seed: Option<u64>,
    /// Operations, without a scenario.
    pub steps: u64,
    /// Stop before this unit.
    pub until: Option<u64>,
    /// Print a line for each unit.
    pub trace: bool,
    /// Check everything every so many units.
    pub verify_every: u64,
    /// Where pictures go.
    pub plot: Option<&'a Path>,
}

/// `minimize`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 a smaller run that fails in the same way was written, 1 the run \
                  does not fail, 2 usage."
)]
pub struct MinimizeArgs {
    /// The machine: saved by `import --save`, or any file that `import` reads.
    machine: Option<PathBuf>,
    /// The scenario.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The seed that fails.
    #[arg(long)]
    seed: Option<u64>,
    /// Operations, without a scenario.
    #[arg(long, default_value_t = 100_000)]
    steps: u64,
    /// Where the small scenario is written; standard output if left out.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Checks everything every so many units.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    verify_every: u64,
}

/// A machine, a scenario, and how to run it.
pub struct Loaded {
    /// As built.
    pub host: Host,
    /// As read, or the everyday of a machine.
    pub scenario: Scenario,
    /// How to run.
    pub options: Options,
}

/// Reads and builds.
///
/// # Errors
/// What is wrong, for people.
pub fn load(wanted: &Wanted<'_>) -> Result<Loaded, String> {
    let scenario = wanted.scenario.map(read_scenario).transpose()?;
    let seed = wanted
        .seed
        .or(scenario.as_ref().and_then(|one| one.seed))
        .unwrap_or(1);
    let small = scenario
        .as_ref()
        .and_then(|scenario| scenario.machine.clone());
    let machine = match (wanted.machine, &small) {
        (Some(path), _) => read_machine(path)?,
        (
            None,
            Some(SmallMachine {
                file: Some(file), ..
            }),
        ) => {
            let folder = wanted
                .scenario
                .and_then(Path::parent)
                .unwrap_or(Path::new("."));
            read_machine(&folder.join(file))?
        }
        (None, Some(small)) => small.to_machine().map_err(|error| error.to_string())?,
        (None, None) => return Err("neither a machine nor a scenario with one".to_owned()),
    };
    let mut host = Host::build(&machine, seed).map_err(|error| error.to_string())?;
    if let Some(backing) = small.as_ref().and_then(|small| small.backing.as_ref()) {
        host.backing_bytes = Some(parse_size(backing)?);
    }
    let scenario = scenario.unwrap_or_else(|| everyday(&host, wanted.steps));
    let skip = scenario
        .skip
        .iter()
        .map(|text| parse_ranges(text))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Loaded {
        host,
        options: Options {
            seed,
            until: wanted.until,
            trace: wanted.trace,
            verify_every: wanted.verify_every,
            skip: skip.concat(),
        },
        scenario,
    })
}

fn read_scenario(path: &Path) -> Result<Scenario, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Scenario::from_toml(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a machine: a saved one, or any file that the importer understands.
///
/// # Errors
/// What is wrong, for people.
pub fn read_machine(path: &Path) -> Result<Machine, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let is_toml = path
        .extension()
        .is_some_and(|extension| extension == "toml");
    if is_toml {
        let text =
            String::from_utf8(bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        return Machine::from_toml(&text).map_err(|error| format!("{}: {error}", path.display()));
    }
    let name = path.display().to_string();
    let outcome = crate::import::import(&[(name.clone(), bytes)], None);
    match outcome.import {
        Some(import) => Ok(Machine::of(&import, vec![name])),
        None => Err(outcome.nothing.join("; ")),
    }
}

/// The everyday of a machine, as full as it is, with a memory block that goes or comes now and then.
fn everyday(host: &Host, ops: u64) -> Scenario {
    let (managed, free) = host.zones.iter().fold((0, 0), |(managed, free), zone| {
        let counts = zone.zone.counts();
        (managed + counts.managed, free + counts.free)
    });
    let used = ((managed - free) * 100).checked_div(managed).unwrap_or(0);
    let mix = Step {
        verb: "mix".to_owned(),
        ops: Some(ops),
        fill: Some(if used == 0 { 80 } else { used }),
        hotplugs: Some(20),
        ..Step::default()
    };
    Scenario {
        about: "the everyday of a machine".to_owned(),
        steps: vec![mix],
        ..Scenario::default()
    }
}

/// Units of a scenario, repeats and operations counted.
pub fn nr_units(scenario: &Scenario) -> u64 {
    let units = |step: &Step| {
        let ops = if step.verb == "mix" {
            step.ops.unwrap_or(1000)
        } else {
            1
        };
        step.repeat.unwrap_or(1).saturating_mul(ops)
    };
    scenario
        .steps
        .iter()
        .map(units)
        .fold(0, u64::saturating_add)
}

/// Runs a machine or a scenario.
pub fn run(wanted: &Wanted<'_>) -> ExitCode {
    // tidy: pure: for the report; the simulation is told its time
    let begun = Instant::now();
    let loaded = match load(wanted) {
        Ok(loaded) => loaded,
        Err(error) => return complain(&error, USAGE),
    };
    for note in &loaded.host.notes {
        say(&format!("note: {note}"));
    }
    let built = begun.elapsed();
    let mut runner = Runner::new(loaded.host, loaded.options);
    if !wanted.trace {
        runner.show_progress(nr_units(&loaded.scenario));
    }
    let stopped = runner.run(&loaded.scenario);
    runner.hide_progress();
    let took = begun.elapsed() - built;
    say(&summary(&runner));
    report_time(&runner, built, took);
    if let Some(folder) = wanted.plot
        && let Err(error) = crate::plot::draw(folder, &runner)
    {
        return complain(&format!("{}: {error}", folder.display()), USAGE);
    }
    match stopped {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            say(&format!("stopped: {stop}"));
            let code = match stop {
                Stop::Broken { .. } => BROKEN,
                Stop::Failed { .. } => FAILED,
                Stop::Senseless { .. } => USAGE,
            };
            eprintln!("replay: {}", replay(wanted, &runner));
            ExitCode::from(code)
        }
    }
}

fn replay(wanted: &Wanted<'_>, runner: &Runner) -> String {
    let mut words = vec!["hotplug-sim run".to_owned()];
    words.extend(wanted.machine.map(|path| path.display().to_string()));
    words.extend(
        wanted
            .scenario
            .map(|path| format!("--scenario {}", path.display())),
    );
    words.push(format!("--seed {}", runner.options.seed));
    if wanted.scenario.is_none() {
        words.push(format!("--steps {}", wanted.steps));
    }
    words.push(format!(
        "--verify-every {} --trace",
        runner.options.verify_every
    ));
    words.join(" ")
}

fn report_time(runner: &Runner, built: Duration, took: Duration) {
    let seconds = took.as_secs_f64().max(1e-9);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = runner.unit as f64 / seconds;
    let peak = peak_kib().map_or(String::new(), |kib| format!(", peak {kib} KiB"));
    eprintln!(
        "built in {:.2} s, run in {seconds:.2} s, {rate:.0} units/s{peak}",
        built.as_secs_f64()
    );
}

/// The most memory that this process has had, in KiB, as the kernel counts it.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").trim().parse().ok()
}

/// What a run came to: the zones, and one line.
pub fn summary(runner: &Runner) -> String {
    let host = &runner.host;
    let pageblock = host.geometry.pageblock_order();
    let mut text = format!(
        "{:<14}{:>13}{:>13}{:>13}{:>8}{:>10}\n",
        "zone", "present", "managed", "free", "largest", "unusable"
    );
    for (at, zone) in host.zones.iter().enumerate() {
        let counts = zone.zone.counts();
        if counts.present == 0 {
            continue;
        }
        let largest = zone
            .zone
            .largest_free_order()
            .map_or("-".to_owned(), |order| order.to_string());
        let unusable = zone.zone.unusable_index(pageblock);
        text.push_str(&format!(
            "{:<14}{:>13}{:>13}{:>13}{largest:>8}{:>8}.{}%\n",
            host.zone_name(at),
            counts.present,
            counts.managed,
            counts.free,
            unusable / 10,
            unusable % 10
        ));
    }
    text.push_str(&format!(
        "seed {}: {} units, {} ms of told time, {} pages moved, hash {:016x}",
        runner.options.seed,
        runner.unit,
        host.clock_ns / 1_000_000,
        host.nr_moved,
        runner.hash()
    ));
    text
}

/// Makes a failing run small.
pub fn run_minimize(args: &MinimizeArgs) -> ExitCode {
    let wanted = Wanted {
        machine: args.machine.as_deref(),
        scenario: args.scenario.as_deref(),
        seed: args.seed,
        steps: args.steps,
        until: None,
        trace: false,
        verify_every: args.verify_every,
        plot: None,
    };
    let loaded = match load(&wanted) {
        Ok(loaded) => loaded,
        Err(error) => return complain(&error, USAGE),
    };
    let Some(small) = minimize(&loaded) else {
        return complain(
            "the run does not fail: there is nothing to make small",
            FAILED,
        );
    };
    let mut scenario = loaded.scenario.clone();
    scenario.seed = Some(loaded.options.seed);
    scenario.skip = small
        .skip
        .iter()
        .map(|(first, last)| format!("{first}-{last}"))
        .collect();
    let text = match scenario.to_toml() {
        Ok(text) => text,
        Err(error) => return complain(&error.to_string(), USAGE),
    };
    say(&format!(
        "# {} of {} units are left after {} runs, and it still stops: {}",
        small.nr_left, small.nr_before, small.nr_runs, small.stop
    ));
    match &args.output {
        Some(path) => {
            if let Err(error) = std::fs::write(path, text) {
                return complain(&format!("{}: {error}", path.display()), USAGE);
            }
        }
        None => say(&text),
    }
    ExitCode::SUCCESS
}

fn say(text: &str) {
    // Nobody listening is no reason to stop.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

fn complain(what: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "hotplug-sim: {what}");
    ExitCode::from(code)
}
