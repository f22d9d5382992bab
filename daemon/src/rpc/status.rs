//! The one table from the engine's errors to gRPC codes, each with its rich details.
//!
//! A caller can act on the details without reading the text: what was not found, which value was
//! bad, which state was wrong, what is used up, and when to ask again.

use std::time::Duration;

use hugepool_engine::{AttachError, CallError, CommandError, OperationReport, SectionRefusal};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Domain of our machine-readable reasons.
const DOMAIN: &str = "hugepool";

/// When to ask again where something else has to end first.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A value that cannot mean anything.
pub fn bad_value(field: &str, why: impl Into<String>) -> Status {
    let why = why.into();
    let details = ErrorDetails::with_bad_request_violation(field, why.clone());
    Status::with_error_details(Code::InvalidArgument, format!("{field}: {why}"), details)
}

/// A name or number that nothing has.
fn not_found(kind: &str, name: String, message: String) -> Status {
    let details = ErrorDetails::with_resource_info(kind, name, "", message.clone());
    Status::with_error_details(Code::NotFound, message, details)
}

/// Right in itself, but not now.
pub fn wrong_state(subject: String, message: String) -> Status {
    let details =
        ErrorDetails::with_precondition_failure_violation("STATE", subject, message.clone());
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

/// Nothing left of it.
pub fn used_up(subject: &str, message: String) -> Status {
    let details = ErrorDetails::with_quota_failure_violation(subject, message.clone());
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

/// Something else has to end first.
pub fn busy(message: String) -> Status {
    let details = ErrorDetails::with_retry_info(Some(RETRY_AFTER));
    Status::with_error_details(Code::Unavailable, message, details)
}

/// Who is not who it says.
pub fn unauthenticated(reason: &str, message: &str) -> Status {
    with_reason(Code::Unauthenticated, reason, message)
}

/// Known, and may not.
pub fn denied(reason: &str, message: &str) -> Status {
    with_reason(Code::PermissionDenied, reason, message)
}

fn with_reason(code: Code, reason: &str, message: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, DOMAIN, []);
    Status::with_error_details(code, message, details)
}

/// A reply that would not fit; `narrower` says what to ask instead.
pub fn too_large(nr_bytes: usize, narrower: &str) -> Status {
    used_up(
        "reply",
        format!("the reply would be {nr_bytes} bytes, at most 4 MiB are sent: {narrower}"),
    )
}

/// Why a command was not begun.
pub fn of_command(error: CommandError) -> Status {
    let text = error.to_string();
    match error {
        CommandError::NoSuchZone { name } => not_found("hugepool.zone", name, text),
        CommandError::NoSuchSection { section } => {
            not_found("hugepool.section", section.get().to_string(), text)
        }
        CommandError::NoSuchClient { slot } | CommandError::OtherIncarnation { slot, .. } => {
            not_found("hugepool.client", slot.to_string(), text)
        }
        CommandError::NoSuchOperation { id } => {
            not_found("hugepool.operation", id.to_string(), text)
        }
        CommandError::NoZoneNamed => bad_value("zone", text),
        CommandError::NoSections | CommandError::Twice { .. } | CommandError::OtherZone { .. } => {
            bad_value("section_ids", text)
        }
        CommandError::OnlineOrder { .. } => bad_value("online_order", text),
        CommandError::Batch { .. } => bad_value("batch", text),
        CommandError::Order { .. } => bad_value("order", text),
        CommandError::High { .. } => bad_value("high", text),
        CommandError::FloorWithoutZone => bad_value("zone", text),
        CommandError::FloorAboveCeiling { .. } => bad_value("floor_pages", text),
        CommandError::Floors { zone, .. } => used_up(&zone, text),
        CommandError::TooFewSections { .. } => used_up("sections", text),
        CommandError::TooManyOperations { .. } => busy(text),
    }
}

/// Why a connection has no session.
pub fn of_attach(error: AttachError) -> Status {
    used_up("clients", error.to_string())
}

/// A slot beyond all there can be.
pub fn no_such_slot(slot: u32) -> Status {
    let text = format!("there is no client in slot {slot}");
    not_found("hugepool.client", slot.to_string(), text)
}

/// Why a call was not served at all.
pub fn of_call(error: CallError) -> Status {
    let text = error.to_string();
    match error {
        CallError::NoSession => unauthenticated("NO_SESSION", &text),
        CallError::Detached => unauthenticated("DETACHED", &text),
        CallError::NoSuchZone { name } => not_found("hugepool.zone", name, text),
        CallError::ZoneForbidden { .. } => denied("ZONE_FORBIDDEN", &text),
        CallError::Order { .. } => bad_value("order", text),
        CallError::TooManyBlocks { .. } => bad_value("nr_pages", text),
        CallError::MovableOnly { .. } => bad_value("migratetype", text),
        CallError::OtherCall { .. } => bad_value("request_id", text),
        CallError::TooManyUnacknowledged { .. } => used_up("unacknowledged", text),
        CallError::Settled { request_id } => wrong_state(format!("request {request_id}"), text),
    }
}

/// An operation that could not do a single section, as one error; else none, and each section's
/// outcome is in the answer. Held pages are always in the answer: their holders are the point.
pub fn of_outcome(operation: &OperationReport) -> Option<Status> {
    let refusals: Vec<&SectionRefusal> = operation
        .sections
        .iter()
        .map(|section| section.done.as_ref()?.as_ref().err())
        .collect::<Option<_>>()?;
    let first = refusals.first()?;
    if operation.dry_run {
        return None;
    }
    let all = |kind: fn(&SectionRefusal) -> bool| refusals.iter().all(|refusal| kind(refusal));
    let text = refusals
        .iter()
        .map(|refusal| refusal.to_string())
        .collect::<Vec<_>>()
        .join("; ");
    if all(|r| matches!(r, SectionRefusal::Section(_))) {
        let mut details = ErrorDetails::new();
        for (section, refusal) in operation.sections.iter().zip(&refusals) {
            let subject = format!("section {}", section.section.get());
            details.add_precondition_failure_violation("STATE", subject, refusal.to_string());
        }
        return Some(Status::with_error_details(
            Code::FailedPrecondition,
            text,
            details,
        ));
    }
    match first {
        SectionRefusal::Taken { .. } if all(|r| matches!(r, SectionRefusal::Taken { .. })) => {
            Some(busy(text))
        }
        SectionRefusal::Backing { .. } if all(|r| matches!(r, SectionRefusal::Backing { .. })) => {
            Some(used_up("backing", text))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_say_what_to_do_without_reading_the_text() {
        let status = of_command(CommandError::NoSuchZone { name: "dma".into() });
        assert_eq!(status.code(), Code::NotFound);
        let details = status.get_error_details();
        assert_eq!(details.resource_info().unwrap().resource_name, "dma");

        let status = of_command(CommandError::TooManyOperations { running: 8 });
        assert_eq!(status.code(), Code::Unavailable);
        let details = status.get_error_details();
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(RETRY_AFTER));

        let status = of_call(CallError::Order {
            order: 11,
            max_order: 10,
        });
        assert_eq!(status.code(), Code::InvalidArgument);
        let details = status.get_error_details();
        assert_eq!(
            details.bad_request().unwrap().field_violations[0].field,
            "order"
        );
    }
}
