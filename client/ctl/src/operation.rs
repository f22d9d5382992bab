//! `hugepoolctl operation list|watch|cancel`, and how any verb follows its operation.

use hugepool_proto::v1::{GetOperationRequest, ListOperationsRequest, Operation};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    cli::OperationVerb,
    compact,
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Cell, Column, Output, Table},
    progress::Bar,
    section::results,
    size, status,
};

const COLUMNS: &[Column] = &[
    Column::shown("ID", "id", "number of the operation"),
    Column::shown("KIND", "kind", "add, online, offline or remove"),
    Column::shown("STATE", "state", "running, done, failed or cancelled"),
    Column::shown("DONE", "done_pages", "pages done"),
    Column::shown("TOTAL", "total_pages", "pages to do in all"),
    Column::shown("LEFT", "estimate_ms", "time to go, where it can be told"),
    Column::shown("SINCE", "age_ms", "time since it began"),
    Column::shown("SECTIONS", "section_ids", "sections that it is about"),
];

/// What an interrupt does to an operation that is being followed.
#[derive(Debug)]
pub enum OnInterrupt {
    /// The tool ends, as it would anyway; the operation goes on.
    Leave,
    /// The operation is cancelled, and followed to its end.
    Cancel(Signal),
}

impl OnInterrupt {
    /// Takes interrupts over from now on: one that comes before the operation is followed, or has
    /// even begun, cancels it all the same.
    pub fn cancel() -> Result<OnInterrupt, Failure> {
        signal(SignalKind::interrupt())
            .map(OnInterrupt::Cancel)
            .map_err(|error| {
                Failure::refused(
                    format_args!("cannot watch for interrupts: {error}"),
                    "try --detach",
                )
            })
    }

    async fn interrupted(&mut self) {
        match self {
            OnInterrupt::Leave => std::future::pending().await,
            OnInterrupt::Cancel(signal) => drop(signal.recv().await),
        }
    }
}

/// Runs a verb on operations.
pub async fn run(verb: OperationVerb, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    match verb {
        OperationVerb::List => {
            let operations = admin
                .list_operations(ListOperationsRequest {})
                .await?
                .into_inner()
                .operations;
            let page_bytes = status::page_bytes(admin).await?;
            out.table(&table(&operations, page_bytes))?;
            Ok(Outcome::Done)
        }
        OperationVerb::Watch { id } => {
            let ended = follow(id, OnInterrupt::Leave, admin).await?;
            print(&ended, out)
        }
        OperationVerb::Cancel { id } => {
            let operation = admin
                .cancel_operation(GetOperationRequest { id })
                .await?
                .into_inner();
            out.either(|| json(&operation), || text(&operation))?;
            // An operation that ended before the cancel came was not cancelled.
            let is_stopping = matches!(operation.state.as_str(), "running" | "cancelled");
            Ok(if is_stopping {
                Outcome::Done
            } else {
                Outcome::Refused
            })
        }
    }
}

/// Follows an operation until it ends, with a bar where a person reads along.
pub async fn follow(
    id: u64,
    mut on_interrupt: OnInterrupt,
    admin: &mut Admin,
) -> Result<Operation, Failure> {
    let request = GetOperationRequest { id };
    let mut states = admin.watch_operation(request).await?.into_inner();
    let bar = Bar::new();
    let mut latest = None;
    let mut is_cancelled = false;
    loop {
        let state = tokio::select! {
            state = states.message() => state?,
            () = on_interrupt.interrupted() => {
                if is_cancelled {
                    let next = format!("it goes on: 'hugepoolctl operation watch {id}'");
                    return Err(Failure::refused(format_args!("left operation {id}"), next));
                }
                is_cancelled = true;
                bar.say("cancelling");
                admin.cancel_operation(request).await?;
                continue;
            }
        };
        let Some(state) = state else { break };
        bar.show(&state);
        let has_ended = state.state != "running";
        latest = Some(state);
        if has_ended {
            break;
        }
    }
    latest.ok_or_else(|| {
        let what = format_args!("operation {id} sent no state");
        Failure::refused(what, "see 'hugepoolctl operation list'")
    })
}

fn print(operation: &Operation, out: &Output) -> Result<Outcome, Failure> {
    out.either(|| json(operation), || text(operation))?;
    Ok(match operation.state.as_str() {
        "done" if operation.results.is_empty() => Outcome::Done,
        _ => results::outcome(&operation.results),
    })
}

fn json(operation: &Operation) -> Value {
    json!({
        "id": operation.id,
        "kind": operation.kind,
        "state": operation.state,
        "done_pages": operation.done_pages,
        "total_pages": operation.total_pages,
        "estimate_ms": operation.estimate_ms,
        "age_ms": operation.age_ms,
        "results": results::json_list(&operation.results),
        "compacted": operation.compacted.as_ref().map(compact::json),
    })
}

fn text(operation: &Operation) -> String {
    let answer = hugepool_proto::v1::SectionsResponse {
        operation_id: operation.id,
        results: operation.results.clone(),
        dry_run: false,
    };
    let results = if let Some(done) = &operation.compacted {
        compact::text(done)
    } else if answer.results.is_empty() {
        String::new()
    } else {
        results::text(&answer)
    };
    format!(
        "operation {} ({}): {} after {}, {} of {} pages\n{results}",
        operation.id,
        operation.kind,
        operation.state,
        size::human_millis(operation.age_ms),
        operation.done_pages,
        operation.total_pages,
    )
}

fn table(operations: &[Operation], page_bytes: u64) -> Table {
    let pages = |count| Cell::Pages { count, page_bytes };
    let row = |operation: &Operation| {
        let sections = operation
            .results
            .iter()
            .map(|result| result.section_id.to_string());
        vec![
            Cell::number(operation.id),
            Cell::text(&operation.kind),
            Cell::text(&operation.state),
            pages(operation.done_pages),
            pages(operation.total_pages),
            operation.estimate_ms.map_or(Cell::Absent, Cell::Millis),
            Cell::Millis(operation.age_ms),
            Cell::List(sections.collect()),
        ]
    };
    Table {
        key: "operations",
        columns: COLUMNS,
        rows: operations.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_a_line_with_its_progress() {
        let operation = Operation {
            id: 7,
            kind: "offline".into(),
            state: "running".into(),
            done_pages: 16384,
            total_pages: 32768,
            estimate_ms: Some(1500),
            age_ms: 2000,
            results: vec![],
            compacted: None,
        };
        let table = table(std::slice::from_ref(&operation), 4096);
        assert_eq!(
            table.text(&table.pick(None).unwrap(), &Output::plain()),
            "ID  KIND     STATE     DONE   TOTAL  LEFT  SINCE  SECTIONS\n\
             \x207  offline  running  64MiB  128MiB  1.5s   2.0s  -\n"
        );
        assert_eq!(
            text(&operation),
            "operation 7 (offline): running after 2.0s, 16384 of 32768 pages\n"
        );
    }
}
