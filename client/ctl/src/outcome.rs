//! How a run ends: the exit status, and for a failure one line that says what to do next.

use std::{fmt, io, process::ExitCode};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Exit statuses that scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; for a dry run: could be done.
    Done,
    /// Nothing done, refused, or answered no.
    Refused,
    /// Typed wrongly, or a value that the daemon does not take.
    Usage,
    /// The daemon's books do not add up.
    Broken,
    /// Some of it done.
    Partly,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        ExitCode::from(match outcome {
            Outcome::Done => 0,
            Outcome::Refused => 1,
            Outcome::Usage => 2,
            Outcome::Broken => 3,
            Outcome::Partly => 64,
        })
    }
}

/// Why a verb was not carried out, and what to do next.
#[derive(Debug)]
pub struct Failure {
    outcome: Outcome,
    what: String,
    next: String,
    closed_pipe: bool,
}

impl Failure {
    /// Nothing was done: `what`, and the `next` step.
    pub fn refused(what: impl fmt::Display, next: impl Into<String>) -> Failure {
        Failure::new(Outcome::Refused, what, next)
    }

    /// It was asked wrongly.
    pub fn usage(what: impl fmt::Display, next: impl Into<String>) -> Failure {
        Failure::new(Outcome::Usage, what, next)
    }

    fn new(outcome: Outcome, what: impl fmt::Display, next: impl Into<String>) -> Failure {
        // One line, whatever the source had in it.
        let what = what
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        Failure {
            outcome,
            what,
            next: next.into(),
            closed_pipe: false,
        }
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether the reader of the output went away, which is no failure of ours.
    pub fn is_closed_pipe(&self) -> bool {
        self.closed_pipe
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.next)
    }
}

impl From<io::Error> for Failure {
    /// A failed write of the output.
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            let mut failure = Failure::new(Outcome::Done, "closed pipe", "nothing to do");
            failure.closed_pipe = true;
            return failure;
        }
        Failure::refused(
            format_args!("cannot write the output: {error}"),
            "check where it goes",
        )
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        let outcome = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => Outcome::Usage,
            Code::DataLoss => Outcome::Broken,
            _ => Outcome::Refused,
        };
        Failure::new(outcome, what_of(&status), next_of(&status))
    }
}

/// The daemon's own words with the field or precondition that it names.
fn what_of(status: &Status) -> String {
    let message = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    let details = status.get_error_details();
    let violations = details
        .bad_request()
        .map(|bad| {
            bad.field_violations
                .iter()
                .map(|v| v.description.clone())
                .collect::<Vec<_>>()
        })
        .unwrap_or_default();
    match violations
        .into_iter()
        .find(|text| !text.is_empty() && !message.contains(text.as_str()))
    {
        Some(violation) => format!("{message}: {violation}"),
        None => message.to_owned(),
    }
}

fn next_of(status: &Status) -> String {
    let details = status.get_error_details();
    if let Some(delay) = details.retry_info().and_then(|info| info.retry_delay) {
        return format!("try again in {} ms", delay.as_millis());
    }
    if let Some(link) = details.help().and_then(|help| help.links.first()) {
        return link.description.clone();
    }
    if let Some(info) = details.resource_info() {
        let noun = info
            .resource_type
            .rsplit(['.', '/'])
            .next()
            .unwrap_or_default();
        if matches!(noun, "zone" | "section" | "client" | "operation") {
            return format!("see 'hugepoolctl {noun} list'");
        }
    }
    match status.code() {
        Code::FailedPrecondition if status.message().contains("sealed: ") => {
            "see 'hugepoolctl status' for what that means"
        }
        Code::InvalidArgument | Code::OutOfRange => "see --help of this command",
        Code::NotFound => "see 'hugepoolctl zone list', 'section list' or 'client list'",
        Code::FailedPrecondition => "see 'hugepoolctl section list' for the states",
        Code::ResourceExhausted => "see 'hugepoolctl status' for what is free",
        Code::PermissionDenied => "run it as root, or as the user that the daemon runs as",
        Code::Unimplemented => "the daemon is of another version: see 'hugepoolctl status'",
        Code::DeadlineExceeded => "try again with a longer --timeout",
        Code::Unavailable => "see whether the daemon still runs: 'hugepoolctl status'",
        Code::DataLoss => "keep the daemon's log and run 'hugepoolctl verify'",
        _ => "see the daemon's log",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn a_failure_is_one_line_with_a_next_step() {
        let failure = Failure::from(Status::failed_precondition("section 3\nis online"));
        assert_eq!(failure.outcome(), Outcome::Refused);
        assert_eq!(
            failure.to_string(),
            "section 3 is online; see 'hugepoolctl section list' for the states"
        );
    }

    #[test]
    fn a_bad_value_is_a_usage_error_that_names_the_value() {
        let details =
            ErrorDetails::with_bad_request_violation("online_order", "3 is neither 0 nor 9");
        let status = Status::with_error_details(Code::InvalidArgument, "bad online_order", details);
        let failure = Failure::from(status);
        assert_eq!(failure.outcome(), Outcome::Usage);
        assert!(
            failure.to_string().contains("3 is neither 0 nor 9"),
            "{failure}"
        );
    }

    #[test]
    fn an_unknown_thing_points_at_the_list_of_its_kind() {
        let details = ErrorDetails::with_resource_info("zone", "dma", "", "");
        let status = Status::with_error_details(Code::NotFound, "no zone is called dma", details);
        let failure = Failure::from(status);
        assert_eq!(
            failure.to_string(),
            "no zone is called dma; see 'hugepoolctl zone list'"
        );
    }

    #[test]
    fn a_sealed_daemon_is_no_matter_of_sections() {
        let status = Status::failed_precondition("daemon: sealed: 3 daemons have started");
        assert_eq!(
            Failure::from(status).to_string(),
            "daemon: sealed: 3 daemons have started; see 'hugepoolctl status' for what that means"
        );
    }

    #[test]
    fn a_closed_pipe_is_success() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(failure.is_closed_pipe());
        assert_eq!(failure.outcome(), Outcome::Done);
    }
}
