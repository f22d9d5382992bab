//! Timing a step: windows long enough for the clock not to matter, and their figures.

use std::time::{Duration, Instant};

use crate::outcome::Failure;

/// How long a window lasts at least.
const WINDOW: Duration = Duration::from_millis(20);
/// A step that costs nothing at all must not be repeated for ever.
const STEPS_MAX: u32 = 1 << 28;

/// Nanoseconds per unit in each of `reps` windows; a step is worth `units` units (pages, calls).
pub fn time(
    reps: u32,
    units: u64,
    mut step: impl FnMut() -> Result<(), Failure>,
) -> Result<Vec<f64>, Failure> {
    // The warm-up finds how many steps fill a window.
    let mut nr_steps: u32 = 1;
    loop {
        let lasted = run(nr_steps, &mut step)?;
        if lasted >= WINDOW || nr_steps >= STEPS_MAX {
            break;
        }
        let factor = WINDOW.as_nanos() / lasted.as_nanos().max(1) + 1;
        nr_steps = nr_steps.saturating_mul(u32::try_from(factor).unwrap_or(16).clamp(2, 16));
    }
    let mut samples = Vec::new();
    for _ in 0..reps {
        let lasted = run(nr_steps, &mut step)?;
        samples.push(lasted.as_secs_f64() * 1e9 / f64::from(nr_steps) / units.max(1) as f64);
    }
    Ok(samples)
}

fn run(nr_steps: u32, step: &mut impl FnMut() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let begun = Instant::now();
    for _ in 0..nr_steps {
        step()?;
    }
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_samples_as_windows() {
        let mut nr_steps = 0_u64;
        let samples = time(3, 65, || {
            nr_steps += 1;
            Ok(())
        });
        let samples = samples.unwrap();
        assert_eq!(samples.len(), 3);
        assert!(nr_steps > 3 && samples.iter().all(|&ns| ns > 0.0));
    }
}
