//! Makes a failing run small: leaves units out as long as it still fails in the same way.
//!
//! Each unit has a source of chance of its own, so leaving one out changes the others only
//! through the machine. Halves are tried first, then quarters, and so on (Zeller's ddmin, with
//! the complement only).

use super::command::Loaded;
use super::runner::{Options, Runner, Stop};
use crate::progress::Progress;

/// The most runs that are spent.
const MOST_RUNS: u64 = 2000;

/// What is left.
#[derive(Clone, Debug)]
pub struct Small {
    /// Units to leave out.
    pub skip: Vec<(u64, u64)>,
    /// Units that are left.
    pub nr_left: usize,
    /// Units there were up to the failure.
    pub nr_before: u64,
    /// Runs it took.
    pub nr_runs: u64,
    /// How it stops now.
    pub stop: Stop,
}

/// Whether two runs fail in the same way.
fn is_alike(one: &Stop, other: &Stop) -> bool {
    match (one, other) {
        (Stop::Broken { .. }, Stop::Broken { .. }) => true,
        (
            Stop::Failed { step, expected, .. },
            Stop::Failed {
                step: other_step,
                expected: other_expected,
                ..
            },
        ) => step == other_step && expected == other_expected,
        _ => false,
    }
}

fn last_unit(stop: &Stop) -> Option<u64> {
    match stop {
        Stop::Broken { unit, .. } | Stop::Failed { unit, .. } => Some(*unit),
        Stop::Senseless { .. } => None,
    }
}

/// Makes the run small; `None` if it does not fail.
pub fn minimize(loaded: &Loaded) -> Option<Small> {
    let attempt = |left: &[u64], last: u64| {
        let options = Options {
            skip: gaps(left, last),
            trace: false,
            ..loaded.options.clone()
        };
        let mut runner = Runner::new(loaded.host.clone(), options);
        runner.run(&loaded.scenario).err()
    };
    let mut progress = Progress::new(MOST_RUNS);
    let mut runner = Runner::new(
        loaded.host.clone(),
        Options {
            trace: false,
            ..loaded.options.clone()
        },
    );
    let first = runner.run(&loaded.scenario).err()?;
    let last = last_unit(&first)?;
    let is_skipped = |unit: u64| {
        loaded
            .options
            .skip
            .iter()
            .any(|(first, end)| (*first..=*end).contains(&unit))
    };
    let mut left: Vec<u64> = (0..=last).filter(|unit| !is_skipped(*unit)).collect();
    let nr_before = last + 1;
    let (mut stop, mut nr_runs) = (first.clone(), 1);
    let mut nr_parts = 2;
    while left.len() > 1 && nr_runs < MOST_RUNS {
        let size = left.len().div_ceil(nr_parts).max(1);
        let mut found = None;
        for start in (0..left.len()).step_by(size).rev() {
            let mut fewer = left.clone();
            fewer.drain(start..(start + size).min(left.len()));
            nr_runs += 1;
            progress.set(nr_runs);
            if let Some(now) = attempt(&fewer, last).filter(|now| is_alike(now, &first)) {
                found = Some((fewer, now));
                break;
            }
            if nr_runs >= MOST_RUNS {
                break;
            }
        }
        match found {
            Some((fewer, now)) => {
                left = fewer;
                stop = now;
                nr_parts = (nr_parts - 1).max(2);
            }
            None if size == 1 => break,
            None => nr_parts = (nr_parts * 2).min(left.len()),
        }
    }
    Some(Small {
        skip: gaps(&left, last),
        nr_left: left.len(),
        nr_before,
        nr_runs,
        stop,
    })
}

/// The units up to `last` that are not among those, as ranges.
fn gaps(left: &[u64], last: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut next = 0;
    for &unit in left {
        if unit > next {
            gaps.push((next, unit - 1));
        }
        next = unit + 1;
    }
    if next <= last {
        gaps.push((next, last));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_what_lies_between() {
        assert_eq!(gaps(&[2, 3, 7], 9), [(0, 1), (4, 6), (8, 9)]);
        assert_eq!(gaps(&[0], 0), []);
        assert_eq!(gaps(&[], 4), [(0, 4)]);
    }
}
