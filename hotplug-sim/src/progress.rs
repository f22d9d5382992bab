//! A bar on standard error for what takes longer than two seconds, if that is a terminal.

use std::sync::Mutex;
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
        self.show_if_due();
        self.bar.set_position(nr_done);
    }

    /// So many more are done.
    pub fn add(&mut self, nr_done: u64) {
        self.show_if_due();
        self.bar.inc(nr_done);
    }

    fn show_if_due(&mut self) {
        if !self.is_shown && self.begun.elapsed() >= PATIENCE {
            // Nothing is drawn where it is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// One bar for the work of several threads.
pub struct Shared(Mutex<Progress>);

impl Shared {
    /// A bar for so many units of all of them, not shown yet.
    pub fn new(nr_units: u64) -> Shared {
        Shared(Mutex::new(Progress::new(nr_units)))
    }

    /// So many more are done.
    pub fn add(&self, nr_done: u64) {
        // A panic under the lock leaves a bar that is a little behind.
        let mut progress = self.0.lock().unwrap_or_else(|poison| poison.into_inner());
        progress.add(nr_done);
    }
}
