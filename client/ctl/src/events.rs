//! `hugepoolctl events`: one line an event, as they happen.

use hugepool_proto::v1::{Event, WatchEventsRequest};
use serde_json::json;

use crate::{
    connect::Admin,
    outcome::{Failure, Outcome},
    output::Output,
};

/// Follows the stream until it has printed `count`, is interrupted, or the daemon ends it.
pub async fn follow(
    count: Option<u64>,
    admin: &mut Admin,
    out: &Output,
) -> Result<Outcome, Failure> {
    let mut events = admin
        .watch_events(WatchEventsRequest {})
        .await?
        .into_inner();
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        let event = tokio::select! {
            event = events.message() => event?,
            _ = tokio::signal::ctrl_c() => break,
        };
        let Some(event) = event else { break };
        if out.is_json() {
            out.json_line(&json(&event))?;
        } else {
            out.text(&text(&event))?;
        }
        printed += 1;
    }
    Ok(Outcome::Done)
}

fn json(event: &Event) -> serde_json::Value {
    json!({
        "seq": event.seq,
        "at_ms": event.at_ms,
        "kind": event.kind,
        "text": event.text,
        "section_id": event.section_id,
        "slot": event.slot,
        "zone": event.zone,
    })
}

/// Seconds since boot, as the kernel's log has them.
fn text(event: &Event) -> String {
    let (seconds, millis) = (event.at_ms / 1000, event.at_ms % 1000);
    format!(
        "[{seconds:>5}.{millis:03}] {}: {}\n",
        event.kind, event.text
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_like_the_kernel_log() {
        let event = Event {
            seq: 9,
            at_ms: 61_007,
            kind: "online".into(),
            text: "section 24 is online".into(),
            section_id: Some(24),
            ..Event::default()
        };
        assert_eq!(text(&event), "[   61.007] online: section 24 is online\n");
        assert_eq!(json(&event)["slot"], serde_json::Value::Null);
    }
}
