//! Logging: one line an event on standard error, where systemd and people look for it.
//!
//! Under the journal (`JOURNAL_STREAM` names our standard error) events go to it by its own protocol,
//! with their fields (`CLIENT=`, `ZONE=`, `ERROR=` and so on), so that `journalctl CLIENT=3.1` finds all of
//! a client. Where its socket cannot be reached a line starts with the level as `<N>`, which it takes for
//! the priority, and has no time of its own. Of one kind there are so many lines in a while and no more.

mod sparing;

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use tracing::{Event, Level, Subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::sparing::{Sparing, SparingLayer};
use crate::config::ConfigError;

type SetFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// How the running logger's filter is changed: one logger, one process.
static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// Whether `filter` can be used, told before anything is opened.
///
/// # Errors
/// [`ConfigError::LogFilter`] with the place.
pub fn check_filter(filter: &str) -> Result<(), ConfigError> {
    parse(filter).map(drop)
}

fn parse(filter: &str) -> Result<EnvFilter, ConfigError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|source| ConfigError::LogFilter {
            filter: filter.to_owned(),
            source: Box::new(source),
        })
}

/// Starts logging for the life of the process. A program that logs already keeps its own way.
pub fn start(filter: &str) {
    let Ok(filter) = parse(filter) else { return };
    if is_journal()
        && let Ok(journal) = tracing_journald::layer()
    {
        let journal = journal
            .with_field_prefix(None)
            .with_priority_mappings(PRIORITIES);
        let journal = SparingLayer::new(journal);
        // A logger that was there before stays: an embedding program's choice.
        let _ = tracing_subscriber::registry()
            .with(filter)
            .with(journal)
            .try_init();
        return;
    }
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that nobody reads any more is lost; that it was would be told there as well, by a panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // A logger that was there before stays: an embedding program's choice.
    if is_journal() {
        let builder = builder
            .event_format(Sparing::new(JournalLines))
            .with_filter_reloading();
        let handle = builder.reload_handle();
        if builder.try_init().is_ok() {
            let _ = SET_FILTER.set(Box::new(move |filter| handle.reload(filter).is_ok()));
        }
    } else {
        let builder = builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .event_format(Sparing::new(Format::default()))
            .with_filter_reloading();
        let handle = builder.reload_handle();
        if builder.try_init().is_ok() {
            let _ = SET_FILTER.set(Box::new(move |filter| handle.reload(filter).is_ok()));
        }
    }
}

/// Changes the filter of the logger that [`start`] has started, if it has.
pub fn set_filter(filter: &str) {
    if let (Some(set), Ok(filter)) = (SET_FILTER.get(), parse(filter))
        && !set(filter)
    {
        tracing::warn!("the filter of the log stays as it was");
    }
}

/// As the lines have them.
const PRIORITIES: PriorityMappings = PriorityMappings {
    error: Priority::Error,
    warn: Priority::Warning,
    info: Priority::Informational,
    debug: Priority::Debug,
    trace: Priority::Debug,
};

/// Whether standard error is the stream that the journal opened for us.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(found) = std::fs::metadata("/proc/self/fd/2") else {
        return false;
    };
    stream == format!("{}:{}", found.dev(), found.ino())
}

/// `<6>target: message key=value`.
struct JournalLines;

impl<S, N> FormatEvent<S, N> for JournalLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        Format::default()
            .without_time()
            .with_level(false)
            .with_ansi(false)
            .format_event(context, writer, event)
    }
}

/// The syslog priority of a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_are_filters_and_nonsense_is_not() {
        for filter in ["info", "warn,hugepool_daemon=debug"] {
            check_filter(filter).unwrap();
        }
        for filter in ["hugepool=loud", "!!"] {
            assert!(check_filter(filter).is_err(), "{filter}");
        }
    }
}
