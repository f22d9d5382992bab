//! Goes through the steps of a scenario: does, checks, compares.
//!
//! The run is counted in *units*: a step (each time it is repeated), or one operation of a
//! `mix`. Every unit draws from a source of chance of its own, made of the seed and its number,
//! so that one may be left out and the others do what they did: the minimiser lives on that.

use std::collections::BTreeMap;

use super::expr::{self, Value};
use super::file::{Scenario, Step};
use super::samples::Samples;
use crate::host::Host;
use crate::prng::Prng;
use crate::progress::Progress;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where chance comes from.
    pub seed: u64,
    /// Stop before this unit.
    pub until: Option<u64>,
    /// Print a line for each unit.
    pub trace: bool,
    /// Check everything every so many units.
    pub verify_every: u64,
    /// Units to leave out: first and last, ascending.
    pub skip: Vec<(u64, u64)>,
}

/// Why a run ended before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An invariant does not hold.
    Broken {
        /// The unit.
        unit: u64,
        /// What.
        what: String,
    },
    /// An expectation is not met.
    Failed {
        /// The unit.
        unit: u64,
        /// The step, counted from 1.
        step: usize,
        /// The expectation.
        expected: String,
        /// Both sides as they came out.
        found: String,
    },
    /// The scenario makes no sense on this machine.
    Senseless {
        /// The step, counted from 1.
        step: usize,
        /// What is wrong.
        what: String,
    },
}

impl core::fmt::Display for Stop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Stop::Broken { unit, what } => write!(f, "broken at unit {unit}: {what}"),
            Stop::Failed {
                unit,
                step,
                expected,
                found,
            } => {
                write!(
                    f,
                    "step {step} (unit {unit}): expected {expected}, found {found}"
                )
            }
            Stop::Senseless { step, what } => write!(f, "step {step}: {what}"),
        }
    }
}

/// What a step brought: names and values.
pub type Results = BTreeMap<&'static str, Value>;

/// A run under way.
pub struct Runner {
    /// The machine.
    pub host: Host,
    /// What the last step brought.
    pub results: Results,
    /// What was saved.
    pub saved: BTreeMap<String, Value>,
    /// Numbers over time.
    pub samples: Samples,
    /// How to run.
    pub options: Options,
    /// The next unit.
    pub unit: u64,
    hash: u64,
    progress: Option<Progress>,
}

impl Runner {
    /// A run on that machine.
    pub fn new(host: Host, options: Options) -> Runner {
        Runner {
            samples: Samples::new(&host),
            host,
            results: Results::new(),
            saved: BTreeMap::new(),
            options,
            unit: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            progress: None,
        }
    }

    /// Shows how far it is of so many units, once it takes long.
    pub fn show_progress(&mut self, nr_units: u64) {
        self.progress = Some(Progress::new(nr_units));
    }

    /// Shows it no longer.
    pub fn hide_progress(&mut self) {
        self.progress = None;
    }

    /// What was done, as one number: the same for the same run.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Goes through all steps.
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn run(&mut self, scenario: &Scenario) -> Result<(), Stop> {
        for (at, step) in scenario.steps.iter().enumerate() {
            for _ in 0..step.repeat.unwrap_or(1) {
                if self.is_over() {
                    return Ok(());
                }
                self.one(at + 1, step)?;
            }
        }
        self.samples.take(self.unit, &self.host);
        self.verify()
    }

    fn one(&mut self, at: usize, step: &Step) -> Result<(), Stop> {
        let senseless = |what| Stop::Senseless { step: at, what };
        self.results.clear();
        let before_ns = self.host.clock_ns;
        if step.verb == "mix" {
            self.mix(at, step)?;
        } else {
            let unit = self.next_unit();
            if let Some(progress) = &mut self.progress {
                progress.set(unit);
            }
            if self.is_skipped(unit) {
                return Ok(());
            }
            let mut prng = self.chance(unit);
            self.act(step, &mut prng).map_err(senseless)?;
            let line = self.describe(step);
            self.note(unit, || line);
            self.check(unit)?;
        }
        self.results
            .insert("ns", (self.host.clock_ns - before_ns).into());
        self.samples.take(self.unit, &self.host);
        for (name, what) in &step.save {
            let value = expr::evaluate(what, &|name| self.look_up(name)).map_err(senseless)?;
            self.saved.insert(name.clone(), value);
        }
        if self.is_over() {
            return Ok(());
        }
        for expected in &step.expect {
            let compared =
                expr::compare(expected, &|name| self.look_up(name)).map_err(senseless)?;
            if !compared.holds {
                return Err(Stop::Failed {
                    unit: self.unit - 1,
                    step: at,
                    expected: expected.clone(),
                    found: format!("{} and {}", compared.left, compared.right),
                });
            }
        }
        Ok(())
    }

    fn act(&mut self, step: &Step, prng: &mut Prng) -> Result<(), String> {
        match step.verb.as_str() {
            "add" | "online" | "offline" | "remove" | "request" => self.act_memory(step),
            "compact" | "contiguity" | "min-free" => self.act_zone(step),
            "verify" => {
                let verified = self.host.verify();
                let what = verified.err().unwrap_or_default();
                self.results.insert("broken", Value::Word(what));
                Ok(())
            }
            _ => self.act_pages(step, prng),
        }
    }

    /// The number of the next unit.
    pub(super) fn next_unit(&mut self) -> u64 {
        let unit = self.unit;
        self.unit += 1;
        if unit.is_multiple_of(4096)
            && let Some(progress) = &mut self.progress
        {
            progress.set(unit);
        }
        unit
    }

    pub(super) fn is_over(&self) -> bool {
        self.options.until.is_some_and(|until| self.unit >= until)
    }

    pub(super) fn is_skipped(&self, unit: u64) -> bool {
        let skip = &self.options.skip;
        let at = skip.partition_point(|range| range.1 < unit);
        skip.get(at).is_some_and(|range| range.0 <= unit)
    }

    pub(super) fn chance(&self, unit: u64) -> Prng {
        Prng::from_seed(self.options.seed ^ unit.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Takes a unit into the hash, and prints it if that was asked for.
    pub(super) fn note(&mut self, unit: u64, line: impl FnOnce() -> String) {
        let sum = self
            .host
            .zones
            .iter()
            .map(|zone| zone.zone.free_pages())
            .fold(0, u64::wrapping_add);
        for word in [unit, self.host.clock_ns, sum] {
            self.hash = (self.hash ^ word)
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(23);
        }
        if self.options.trace {
            use std::io::Write as _;
            // Nobody listening is no reason to stop.
            let _ = writeln!(
                std::io::stdout().lock(),
                "{unit} {} {}",
                self.host.clock_ns / 1000,
                line()
            );
        }
    }

    pub(super) fn check(&mut self, unit: u64) -> Result<(), Stop> {
        let broken = |what| Stop::Broken { unit, what };
        self.host.check().map_err(broken)?;
        if (unit + 1).is_multiple_of(self.options.verify_every) {
            self.host.verify().map_err(broken)?;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Stop> {
        let unit = self.unit;
        self.host
            .verify()
            .map_err(|what| Stop::Broken { unit, what })
    }

    fn describe(&self, step: &Step) -> String {
        let mut line = step.verb.clone();
        for part in [
            &step.zone,
            &step.client,
            &step.device,
            &step.blocks,
            &step.size,
            &step.to,
            &step.mode,
        ]
        .into_iter()
        .flatten()
        {
            line.push(' ');
            line.push_str(part);
        }
        line.push_str(" ->");
        for (name, value) in &self.results {
            line.push_str(&format!(" {name}={value}"));
        }
        line
    }
}
