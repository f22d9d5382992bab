//! Lines of a kind, so many and no more: nobody fills the log by asking for nonsense again and again.
//!
//! A kind is a place in the source. What is left out is counted, and told with the next line of the
//! kind.

use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Lines of a kind in a [`WINDOW`].
const LINES: u32 = 100;
const WINDOW: Duration = Duration::from_secs(10);

/// Budgets of all kinds.
#[derive(Debug)]
struct Budgets {
    begun: Instant,
    kinds: Mutex<HashMap<Identifier, Budget>>,
}

impl Budgets {
    fn new() -> Budgets {
        Budgets {
            begun: Instant::now(),
            kinds: Mutex::default(),
        }
    }

    /// Whether this one may be written, and how many of its kind were not since the last that was.
    fn spend(&self, event: &Event<'_>) -> Option<u64> {
        let now = self.begun.elapsed();
        let mut kinds = crate::shared::lock(&self.kinds);
        kinds
            .entry(event.metadata().callsite())
            .or_default()
            .spend(now)
    }
}

/// A format that leaves out what is too much.
pub struct Sparing<F> {
    format: F,
    budgets: Budgets,
}

impl<F> Sparing<F> {
    /// Writes in this format.
    pub fn new(format: F) -> Sparing<F> {
        Sparing {
            format,
            budgets: Budgets::new(),
        }
    }
}

impl<S, N, F> FormatEvent<S, N> for Sparing<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // What is not written makes no line.
        let Some(nr_left_out) = self.budgets.spend(event) else {
            return Ok(());
        };
        self.format.format_event(context, writer.by_ref(), event)?;
        if nr_left_out > 0 {
            writeln!(writer, "{}", left_out(nr_left_out))?;
        }
        Ok(())
    }
}

/// A layer that is told of no more than that. Nothing here opens spans.
pub struct SparingLayer<L> {
    layer: L,
    budgets: Budgets,
}

impl<L> SparingLayer<L> {
    /// Tells this one.
    pub fn new(layer: L) -> SparingLayer<L> {
        SparingLayer {
            layer,
            budgets: Budgets::new(),
        }
    }
}

impl<S: Subscriber, L: Layer<S>> Layer<S> for SparingLayer<L> {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(nr_left_out) = self.budgets.spend(event) else {
            return;
        };
        self.layer.on_event(event, context);
        if nr_left_out > 0 {
            // Standard error ends in the same log.
            let _ = writeln!(std::io::stderr().lock(), "<4>{}", left_out(nr_left_out));
        }
    }
}

fn left_out(nr: u64) -> String {
    format!("({nr} lines like this one were left out)")
}

/// What has been written of a kind.
#[derive(Debug, Default)]
struct Budget {
    window: Duration,
    nr_written: u32,
    nr_left_out: u64,
}

impl Budget {
    /// Whether one more may be written, and how many were not since the last that was.
    fn spend(&mut self, now: Duration) -> Option<u64> {
        if now.saturating_sub(self.window) >= WINDOW {
            self.window = now;
            self.nr_written = 0;
        }
        if self.nr_written == LINES {
            self.nr_left_out += 1;
            return None;
        }
        self.nr_written += 1;
        Some(std::mem::take(&mut self.nr_left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_lines_in_each_window_and_what_was_left_out_is_told() {
        let mut budget = Budget::default();
        let at = Duration::from_secs;
        for _ in 0..LINES {
            assert_eq!(budget.spend(at(1)), Some(0));
        }
        assert_eq!((budget.spend(at(1)), budget.spend(at(9))), (None, None));
        assert_eq!(budget.spend(at(11)), Some(2));
        assert_eq!(budget.spend(at(12)), Some(0));
    }
}
