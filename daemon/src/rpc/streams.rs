//! What flows: an operation's progress, and events.
//!
//! A stream is fed by a task of its own through a short queue; a reader that does not read stops
//! the task, not the daemon. Streams end when the daemon stops.

use std::collections::BTreeMap;
use std::sync::Arc;

use hugepool_engine::{ClientId, Command, EventBatch, OperationState, Reply};
use hugepool_mm::{Pressure, ZoneId};
use hugepool_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{convert, operations, status};
use crate::shared::Shared;

/// Messages ahead of the reader.
const AHEAD: usize = 16;

/// The states of an operation until it has ended, the last one included.
///
/// # Errors
/// `NOT_FOUND` when there is none, or no longer.
pub fn operation(
    shared: Arc<Shared>,
    id: u64,
) -> Result<ReceiverStream<Result<v1::Operation, Status>>, Status> {
    let mut changes = shared.operation_steps();
    let mut report = operations::get(&shared, id)?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        loop {
            let has_ended = report.state != OperationState::Running;
            if sender.send(Ok(convert::operation(report))).await.is_err() || has_ended {
                return;
            }
            tokio::select! {
                () = changes.moved() => {}
                () = sender.closed() => return,
                () = shared.stopped() => return,
            }
            report = match operations::get(&shared, id) {
                Ok(report) => report,
                // Ended and forgotten between two looks.
                Err(status) => return drop(sender.send(Err(status)).await),
            };
        }
    });
    Ok(ReceiverStream::new(receiver))
}

/// All events: those still kept, then each as it happens.
pub fn events(shared: Arc<Shared>) -> ReceiverStream<Result<v1::Event, Status>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut changes = shared.events();
        let mut after = 0;
        loop {
            let batch = match since(&shared, after) {
                Ok(batch) => batch,
                Err(status) => return drop(sender.send(Err(status)).await),
            };
            if batch.nr_lost > 0 && after > 0 {
                let lost = v1::Event {
                    kind: "lost".to_owned(),
                    text: format!("{} events are no longer kept", batch.nr_lost),
                    ..v1::Event::default()
                };
                if sender.send(Ok(lost)).await.is_err() {
                    return;
                }
            }
            for event in batch.events {
                after = event.seq;
                let zone = event.zone.map(|zone| shared.zone_name(zone));
                let event = convert::event(event, zone.unwrap_or_default());
                if sender.send(Ok(event)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = changes.moved() => {}
                () = sender.closed() => return,
                () = shared.stopped() => return,
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// How a session's zones stand: each once, then each that changes, until the session ends.
pub fn pressure(
    shared: Arc<Shared>,
    session: ClientId,
) -> ReceiverStream<Result<v1::Pressure, Status>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut changes = shared.events();
        let mut told: BTreeMap<ZoneId, Pressure> = BTreeMap::new();
        while let Some(zones) = shared.with(|engine, _, _| engine.pressure_of(session)) {
            for stand in zones {
                if told.insert(stand.zone, stand.level) != Some(stand.level) {
                    let wire = convert::pressure(stand, shared.zone_name(stand.zone));
                    if sender.send(Ok(wire)).await.is_err() {
                        return;
                    }
                }
            }
            tokio::select! {
                () = changes.moved() => {}
                () = sender.closed() => return,
                () = shared.stopped() => return,
            }
        }
    });
    ReceiverStream::new(receiver)
}

fn since(shared: &Shared, after: u64) -> Result<EventBatch, Status> {
    let command = Command::GetEvents { after };
    let reply = shared.apply(command).map_err(status::of_command)?;
    match reply {
        Reply::Events(batch) => Ok(batch),
        other => Err(super::admin::mismatch(&other)),
    }
}
