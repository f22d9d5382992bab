//! `hotplug-sim seeds`: the four ideas that the allocator grew from, each measured again here.
//!
//! [`bulk`] is the kernel's bulk allocation, by list and by array, against single pages;
//! [`online`] the freeing of whole pageblocks at memory hotplug; [`contiguity`] the answers
//! remembered about whole pageblocks. [`anchors`] has the figures of others, [`table`] prints.
//! Every figure that is called ours is measured in the run that prints it, in this process.

mod anchors;
mod bulk;
mod contiguity;
mod online;
mod table;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;

use crate::progress::Progress;

/// `seeds`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: 0 measured, 1 an experiment could not be made, 2 usage.")]
pub struct SeedsArgs {
    /// Windows of each measurement; the median is shown.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Print JSON instead of a table.
    #[arg(short = 'J', long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: &SeedsArgs) -> ExitCode {
    let measured = match measure(args.reps) {
        Ok(measured) => measured,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "hotplug-sim: {error}");
            return ExitCode::from(1);
        }
    };
    let rows = table::rows(&measured, args.reps);
    let text = if args.json {
        table::json(&rows)
    } else {
        table::text(&rows)
    };
    // Nobody listening is no reason to stop.
    let _ = write!(std::io::stdout().lock(), "{text}");
    ExitCode::SUCCESS
}

/// What was measured here.
#[derive(Clone, Debug)]
struct Measured {
    bulk: bulk::Measured,
    online: online::Measured,
    contiguity: contiguity::Measured,
}

fn measure(reps: u32) -> Result<Measured, String> {
    // Drawn between the experiments only: nothing runs beside them.
    let mut progress = Progress::new(3);
    let bulk = bulk::measure(reps)?;
    progress.set(1);
    let online = online::measure(reps)?;
    progress.set(2);
    let contiguity = contiguity::measure(reps)?;
    Ok(Measured {
        bulk,
        online,
        contiguity,
    })
}

/// The middle one.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Seconds that something takes.
fn seconds(work: impl FnOnce()) -> f64 {
    // tidy: pure: what this verb is for; nothing is decided by it
    let begun = std::time::Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_measured_and_has_a_row() {
        let measured = measure(1).unwrap();
        let rows = table::rows(&measured, 1);
        for part in [
            "array",
            "list",
            "single",
            "order 0",
            "pageblock",
            "none",
            "zone",
        ] {
            assert!(rows.iter().any(|row| row.arm.contains(part)), "{part}");
        }
        for row in &rows {
            assert!(row.ours.is_finite() && row.ours > 0.0, "{row:?}");
            assert!(row.command.starts_with("hotplug-sim seeds"), "{row:?}");
        }
        let json: serde_json::Value = serde_json::from_str(&table::json(&rows)).unwrap();
        assert_eq!(json.as_array().map(Vec::len), Some(rows.len()));
    }
}
