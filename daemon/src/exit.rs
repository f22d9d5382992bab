//! How the process ends: one line on standard error, and a status.
//!
//! 0 stopped as asked, 1 could not start or serve, 2 the configuration is wrong. A broken invariant
//! of our own aborts instead, so that nobody goes on with what cannot be trusted.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use crate::app::AppError;
use crate::config::ConfigError;

/// The status for a configuration that is wrong.
pub fn usage(error: &ConfigError) -> ExitCode {
    say(error);
    ExitCode::from(2)
}

/// The status for how the run ended.
pub fn status(ended: Result<(), AppError>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

/// The status for something that could not be done.
pub fn failure(why: &str) -> ExitCode {
    // Nobody to tell is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "hugepoold: {why}");
    ExitCode::FAILURE
}

/// The error and its sources on one line.
pub fn one_line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        line.push_str(": ");
        line.push_str(error.to_string().trim_end());
        source = error.source();
    }
    line
}

/// The error and its sources on one line, prefixed by the program.
fn say(error: &dyn Error) {
    let line = format!("hugepoold: {}", one_line(error));
    // Nobody to tell is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
