//! `hotplug-sim run`: simulates from seeds, and says how to see a failure again.

use core::time::Duration;
use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant; // tidy: pure: for the report on how long a seed took

use clap::Args;

use crate::model::Broken;
use crate::progress::Progress;
use crate::scenario::command::Wanted;
use crate::world::World;

/// Exit status for a broken invariant.
const BROKEN: u8 = 3;
/// Steps between two checks of the whole structure.
const VERIFY_EVERY: u64 = 1000;
/// The same for a machine of real size, where what is touched is checked at each step.
const VERIFY_MACHINE_EVERY: u64 = 250_000;
/// Steps between two looks at the bar.
const SHOW_EVERY: u64 = 1024;
/// Every so many checks of the structure, lanes are emptied and counted against hands.
const REST_EVERY: u64 = 5;

/// Simulates: a machine, a scenario, or (with neither) the daemon's engine under clients and
/// operators drawn from a seed.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 all held and came as expected, 1 an expectation was not met, 2 usage, \
                  3 a broken invariant (the command that replays it is printed)."
)]
pub struct RunArgs {
    /// A machine: saved by `import --save`, or any file that `import` reads.
    machine: Option<PathBuf>,
    /// What is done to it and expected of it; see hotplug-sim/scenarios/README.md.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Writes pictures (SVG) of a machine's run.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// The first seed (1, or the scenario's); the same seed gives the same run.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds, from the first on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Steps of each run.
    #[arg(long, default_value_t = 100_000)]
    steps: u64,
    /// Stops before this step, counted from 0.
    #[arg(long)]
    until: Option<u64>,
    /// Prints a line for each step.
    #[arg(long)]
    trace: bool,
    /// Takes this step for broken: how a failure is reported can be tried by it.
    #[arg(long, hide = true)]
    break_at: Option<u64>,
    /// Checks the whole structure every so many steps (1000; of a machine 250000, and at the end).
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    verify_every: Option<u64>,
}

/// How a run went.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    nr_steps: u64,
    trace_hash: u64,
}

/// What broke, and when.
#[derive(Clone, Debug)]
struct Failure {
    step: u64,
    broken: Broken,
    line: String,
}

/// Runs the verb.
pub fn run(args: &RunArgs) -> ExitCode {
    if args.machine.is_some() || args.scenario.is_some() {
        return crate::scenario::command::run(&Wanted {
            machine: args.machine.as_deref(),
            scenario: args.scenario.as_deref(),
            seed: args.seed,
            steps: args.steps,
            until: args.until,
            trace: args.trace,
            verify_every: args.verify_every.unwrap_or(VERIFY_MACHINE_EVERY),
            plot: args.plot.as_deref(),
        });
    }
    install_hook();
    let first = args.seed.unwrap_or(1);
    let mut progress = (!args.trace).then(|| Progress::new(args.steps.saturating_mul(args.seeds)));
    for seed in first..first.saturating_add(args.seeds) {
        // tidy: pure: for the report; the simulation is told its time
        let begun = Instant::now();
        match simulate(args, seed, progress.as_mut()) {
            Ok(outcome) => report(args, seed, outcome, begun.elapsed()),
            Err(failure) => {
                eprintln!("broken at step {}: {}", failure.step, failure.broken);
                eprintln!("the step: {}", failure.line);
                eprintln!("replay: {}", replay(args, seed, failure.step));
                return ExitCode::from(BROKEN);
            }
        }
    }
    ExitCode::SUCCESS
}

fn simulate(
    args: &RunArgs,
    seed: u64,
    mut progress: Option<&mut Progress>,
) -> Result<Outcome, Failure> {
    CURRENT.set(Some((args.clone(), seed)));
    let early = |broken| Failure {
        step: 0,
        broken,
        line: String::new(),
    };
    let mut world = World::new(seed, args.trace).map_err(early)?;
    let nr_steps = args.until.map_or(args.steps, |until| until.min(args.steps));
    for step in 0..nr_steps {
        STEP.set(step);
        if step.is_multiple_of(SHOW_EVERY)
            && let Some(progress) = &mut progress
        {
            progress.add(SHOW_EVERY);
        }
        if let Err(broken) = one_step(args, &mut world, step) {
            let line = world.trace.line().to_owned();
            return Err(Failure { step, broken, line });
        }
    }
    let is_whole = nr_steps == args.steps;
    let trace_hash = world.trace.hash();
    if is_whole {
        STEP.set(nr_steps);
        let at_end = |broken| Failure {
            step: nr_steps,
            broken,
            line: "(the end)".to_owned(),
        };
        world.check_end().map_err(at_end)?;
    }
    Ok(Outcome {
        nr_steps,
        trace_hash,
    })
}

fn one_step(args: &RunArgs, world: &mut World, step: u64) -> Result<(), Broken> {
    world.step(step)?;
    if args.break_at == Some(step) {
        return Err("as it was told".to_owned());
    }
    world.check_conservation()?;
    let every = args.verify_every.unwrap_or(VERIFY_EVERY);
    if (step + 1).is_multiple_of(every) {
        world.check_structure()?;
        if ((step + 1) / every).is_multiple_of(REST_EVERY) {
            world.check_at_rest()?;
            world.check_structure()?;
        }
    }
    Ok(())
}

thread_local! {
    /// The run under way, for the way back from a panic: where a panic aborts, nothing after it
    /// runs.
    static CURRENT: core::cell::RefCell<Option<(RunArgs, u64)>> =
        const { core::cell::RefCell::new(None) };
    static STEP: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Makes a panic anywhere in a run end the process as a broken invariant does.
fn install_hook() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some((args, seed)) = CURRENT.with(|current| current.borrow().clone()) {
            eprintln!("replay: {}", replay(&args, seed, STEP.get()));
            std::process::exit(i32::from(BROKEN));
        }
    }));
}

fn replay(args: &RunArgs, seed: u64, step: u64) -> String {
    format!(
        "hotplug-sim run --seed {seed} --steps {} --verify-every {} --until {} --trace",
        args.steps,
        args.verify_every.unwrap_or(VERIFY_EVERY),
        step + 1
    )
}

fn report(args: &RunArgs, seed: u64, outcome: Outcome, took: Duration) {
    let Outcome {
        nr_steps,
        trace_hash,
    } = outcome;
    let seconds = took.as_secs_f64().max(1e-9);
    // Counts of steps are far below 2^52.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = nr_steps as f64 / seconds;
    if args.seeds == 1 && !args.trace {
        println!("seed {seed}: {nr_steps} steps, trace {trace_hash:016x}, {rate:.0} steps/s");
    } else {
        eprintln!("seed {seed}: {nr_steps} steps, trace {trace_hash:016x}, {rate:.0} steps/s");
    }
}
