//! A bar on standard error for what takes longer than two seconds.

use std::time::{Duration, Instant}; // tidy: pure: when to show the bar

use indicatif::{ProgressBar, ProgressDrawTarget};

/// Runs shorter than this show nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// A bar that shows itself late.
pub struct Progress {
    bar: ProgressBar,
    // tidy: pure: when to show the bar
    begun: Instant,
    is_shown: bool,
}

impl Progress {
    /// A bar for so many units, not shown yet.
    pub fn new(nr_units: u64) -> Progress {
        Progress {
            bar: ProgressBar::with_draw_target(Some(nr_units), ProgressDrawTarget::hidden()),
            // tidy: pure: when to show the bar
            begun: Instant::now(),
            is_shown: false,
        }
    }

    /// So many are done.
    pub fn set(&mut self, nr_done: u64) {
        if !self.is_shown && self.begun.elapsed() >= PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
        }
        self.bar.set_position(nr_done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
