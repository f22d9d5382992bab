//! `hotplug-sim fleet`: reads the file, runs each policy, prints them beside each other.
//!
//! Standard output is the same for the same file and seed, byte for byte; how long it took goes to
//! standard error. Exit status: 0 simulated, 2 usage, 3 a sum that does not hold.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant; // tidy: pure: for the report on how long it took

use clap::Args;

use super::file::{BLOCK_BYTES, Fleet, PAGE_BYTES, Policy};
use super::pool::{self, Outcome};
use crate::progress::Shared;

const USAGE: u8 = 2;
const BROKEN: u8 = 3;

/// `fleet`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: 0 simulated, 2 usage, 3 a sum that does not hold.")]
pub struct FleetArgs {
    /// What the fleet is made of and what comes to it (TOML); see hotplug-sim/fleets/README.md.
    file: PathBuf,
    /// The seed (the file's, or 1).
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the verb.
pub fn run(args: &FleetArgs) -> ExitCode {
    let read = std::fs::read_to_string(&args.file).map_err(|error| error.to_string());
    let mut fleet = match read.and_then(|text| Fleet::from_toml(&text)) {
        Ok(fleet) => fleet,
        Err(error) => return complain(&format!("{}: {error}", args.file.display()), USAGE),
    };
    fleet.seed = args.seed.unwrap_or(fleet.seed);
    // tidy: pure: for the report; the simulation is told its time
    let begun = Instant::now();
    let outcomes = match simulate(&fleet) {
        Ok(outcomes) => outcomes,
        Err(error) => return complain(&error, BROKEN),
    };
    // Nobody listening is no reason to stop.
    let _ = write!(std::io::stdout().lock(), "{}", text(&fleet, &outcomes));
    let seconds = begun.elapsed().as_secs_f64();
    let _ = writeln!(
        std::io::stderr().lock(),
        "{} policies in {seconds:.1} s",
        outcomes.len()
    );
    ExitCode::SUCCESS
}

/// Each policy, on a thread of its own: they share nothing.
fn simulate(fleet: &Fleet) -> Result<Vec<(Policy, Outcome)>, String> {
    let hours = u64::from(fleet.nr_hours) * fleet.policies.len() as u64;
    let progress = &Shared::new(hours);
    std::thread::scope(|scope| {
        let runs: Vec<_> = fleet
            .policies
            .iter()
            .map(|&policy| {
                (
                    policy,
                    scope.spawn(move || pool::run(fleet, policy, &|| progress.add(1))),
                )
            })
            .collect();
        runs.into_iter()
            .map(|(policy, run)| {
                let outcome = run
                    .join()
                    .map_err(|_| format!("{}: panicked", policy.name()))?;
                Ok((
                    policy,
                    outcome.map_err(|error| format!("{}: {error}", policy.name()))?,
                ))
            })
            .collect()
    })
}

/// Thousandths, as a percentage with one decimal.
fn percent(part: u64, whole: u64) -> String {
    let thousandths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{}%", thousandths / 10, thousandths % 10)
}

fn text(fleet: &Fleet, outcomes: &[(Policy, Outcome)]) -> String {
    let gib = |blocks: u64| (u128::from(blocks) * u128::from(BLOCK_BYTES)) >> 30;
    let section = u64::from(fleet.section_blocks);
    let mut text = format!(
        "{}{} hosts of {} GiB and a pool of {} GiB, in sections of {} MiB; {} hours, load {} %, seed {}\n\
         figures of the last {} hours\n\n",
        if fleet.about.is_empty() {
            String::new()
        } else {
            format!("{}\n", fleet.about)
        },
        fleet.nr_hosts,
        gib(u64::from(fleet.own_sections) * section),
        gib(fleet.pool_sections * section),
        (section * BLOCK_BYTES) >> 20,
        fleet.nr_hours,
        fleet.load_percent,
        fleet.seed,
        fleet.nr_hours - fleet.nr_hours / 2,
    );
    text.push_str(&format!(
        "{:<9}{:>10}{:>9}{:>11}{:>10}{:>10}{:>10}{:>10}{:>9}{:>9}\n",
        "policy",
        "tenants",
        "served",
        "pool empty",
        "host full",
        "own full",
        "stranded",
        "in pool",
        "pieces",
        "stuck"
    ));
    let total = fleet.total_blocks();
    for (policy, one) in outcomes {
        let all = total * one.nr_hours;
        text.push_str(&format!(
            "{:<9}{:>10}{:>9}{:>11}{:>10}{:>10}{:>10}{:>10}{:>9}{:>9}\n",
            policy.name(),
            one.nr_arrivals,
            percent(one.nr_served, one.nr_arrivals),
            one.nr_pool_empty,
            one.nr_host_full,
            one.nr_own_full,
            percent(one.on_hosts + one.in_pieces, all),
            percent(one.in_pool, all),
            percent(one.in_pieces, all),
            one.stuck / one.nr_hours.max(1),
        ));
    }
    text.push_str(&format!(
        "\n{:<9}{:>12}{:>12}{:>14}{:>16}{:>16}\n",
        "policy", "lent", "back", "GiB moved", "records a host", "bytes a host"
    ));
    for (policy, one) in outcomes {
        let hosts = u64::from(fleet.nr_hosts);
        text.push_str(&format!(
            "{:<9}{:>12}{:>12}{:>14}{:>16}{:>16}\n",
            policy.name(),
            one.nr_given,
            one.nr_back,
            (one.nr_moved * PAGE_BYTES) >> 30,
            one.nr_records / hosts,
            one.record_bytes / hosts,
        ));
    }
    text.push_str(NOTES);
    text
}

const NOTES: &str = "
served: tenants that found room at once, in hundredths; nobody waits or looks at another host. stranded: of all
memory, what is free on hosts (pieces: in pageblocks partly used) and so of no use to others; in pool is of use to
all. stuck: sections of the pool that cannot come back for pages that stay, on average. lent, back: sections.
Simplified: where a pageblock lies within its section is not known, so a free pageblock is as good as another, and no
order above a pageblock is asked for; each host is one node with memory of one speed; a section comes and goes
at once and costs no page records; moves cost no time, only their number is bounded; tenants do not grow or
shrink; what cannot be moved is known when a tenant comes.
";

fn complain(what: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "hotplug-sim: {what}");
    ExitCode::from(code)
}
