//! Commands that take time: begun, waited for, and undone when the caller goes away.
//!
//! The engine advances an operation by being polled; here it is only asked how far it is. A call
//! that is dropped before its operation has ended cancels it, unless it was asked to detach.

use std::sync::Arc;
use std::time::Duration;

use hugepool_engine::{
    ClientId, Command, CommandError, OperationId, OperationReport, OperationState, Reply,
    Sections as Which, SectionsRequest,
};
use hugepool_mm::SectionId;
use hugepool_proto::v1;
use prost::Message as _;
use tonic::{Response, Status};

use super::admin::{MAX_REPLY_BYTES, mismatch, slot};
use super::{convert, status};
use crate::shared::Shared;

/// How long a kill is waited for: the death of a process with much memory takes its time.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// Sections in one request: each has its outcome in the reply.
const MAX_SECTIONS: u32 = 16_384;

/// The sections of a request, as they came.
pub struct Sections {
    /// Name of the zone; empty: none.
    pub zone: String,
    /// So many.
    pub count: u32,
    /// Or these.
    pub section_ids: Vec<u32>,
    /// Only say what would be.
    pub dry_run: bool,
}

impl Sections {
    /// The request in the engine's words.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when both a count and ids are given.
    pub fn check(self) -> Result<SectionsRequest, Status> {
        let too_many = || format!("at most {MAX_SECTIONS} sections a call");
        if self.count > MAX_SECTIONS {
            return Err(status::bad_value("count", too_many()));
        }
        if self.section_ids.len() > MAX_SECTIONS as usize {
            return Err(status::bad_value("section_ids", too_many()));
        }
        let sections = match (self.count, self.section_ids.is_empty()) {
            (count, true) => Which::Count(count),
            (0, false) => Which::Ids(self.section_ids.into_iter().map(SectionId::new).collect()),
            (_, false) => {
                return Err(status::bad_value(
                    "count",
                    "give a count or section_ids, not both",
                ));
            }
        };
        Ok(SectionsRequest {
            zone: Some(self.zone).filter(|zone| !zone.is_empty()),
            sections,
            dry_run: self.dry_run,
        })
    }
}

/// Begins an operation, or asks for one, and does not wait for it.
///
/// # Errors
/// Why it was not begun.
pub fn ask(shared: &Shared, command: Command) -> Result<OperationReport, Status> {
    let reply = shared.apply(command).map_err(status::of_command)?;
    match reply {
        Reply::Operation(report) => Ok(report),
        other => Err(mismatch(&other)),
    }
}

/// How far an operation is.
///
/// # Errors
/// `NOT_FOUND` when there is none, or no longer.
pub fn get(shared: &Shared, id: u64) -> Result<OperationReport, Status> {
    ask(
        shared,
        Command::GetOperation {
            id: OperationId(id),
        },
    )
}

/// Stops an operation.
///
/// # Errors
/// `NOT_FOUND` when there is none, or no longer.
pub fn cancel(shared: &Shared, id: u64) -> Result<OperationReport, Status> {
    ask(
        shared,
        Command::CancelOperation {
            id: OperationId(id),
        },
    )
}

/// Begins a hotplug operation and does not wait for it.
///
/// # Errors
/// Why it was not begun.
pub fn begin(shared: &Shared, command: Command) -> Result<Response<v1::SectionsResponse>, Status> {
    outcome(ask(shared, command)?)
}

/// Does a hotplug operation and answers with what became of each section.
///
/// # Errors
/// Why it was not begun, or why no section could be done.
pub async fn sections(
    shared: &Arc<Shared>,
    command: Command,
) -> Result<Response<v1::SectionsResponse>, Status> {
    let report = run(shared, command).await?;
    match status::of_outcome(&report) {
        Some(status) => Err(status),
        None => outcome(report),
    }
}

/// The outcome of each section, without its details where they would be too much for a reply.
fn outcome(report: OperationReport) -> Result<Response<v1::SectionsResponse>, Status> {
    let mut reply = convert::sections_response(report);
    if reply.encoded_len() > MAX_REPLY_BYTES {
        for result in &mut reply.results {
            result.holders.clear();
            result.onlined = None;
        }
    }
    Ok(Response::new(reply))
}

/// Begins an operation and waits until it has ended.
///
/// # Errors
/// Why it was not begun.
pub async fn run(shared: &Arc<Shared>, command: Command) -> Result<OperationReport, Status> {
    let mut changes = shared.operation_steps();
    let mut report = ask(shared, command)?;
    let mut guard = CancelOnDrop {
        shared,
        running: Some(report.id),
    };
    while report.state == OperationState::Running {
        if shared.is_stopping() {
            return Err(status::busy("the daemon is stopping".to_owned()));
        }
        changes.moved().await;
        report = get(shared, report.id.0)?;
    }
    guard.running = None;
    Ok(report)
}

/// Cancels an operation whose caller has gone away.
struct CancelOnDrop<'a> {
    shared: &'a Arc<Shared>,
    running: Option<OperationId>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.running {
            // One that has ended meanwhile stays as it is.
            let _ = cancel(self.shared, id.0);
        }
    }
}

/// Shuts a client out, and kills it if asked to.
///
/// # Errors
/// `NOT_FOUND` without such a client, `PERMISSION_DENIED` when it may not be killed: it is shut
/// out then all the same.
pub async fn evict(
    shared: &Arc<Shared>,
    request: v1::EvictClientRequest,
) -> Result<Response<v1::EvictClientResponse>, Status> {
    let incarnation = match u16::try_from(request.incarnation) {
        Ok(0) => None,
        Ok(incarnation) => Some(incarnation),
        Err(_) => return Err(status::bad_value("incarnation", "above 65535")),
    };
    let slot = slot(request.slot)?;
    let client = find(shared, slot, incarnation)?;
    let command = Command::EvictClient {
        slot,
        incarnation: Some(client.incarnation),
        // Killed below, where a refusal can be answered.
        kill: false,
    };
    let report = run(shared, command).await?;
    let mut recalled = report.recalled.unwrap_or_default();
    if request.kill {
        shared.kill(client)?;
        if is_gone(shared, client).await {
            recalled.nr_pages += std::mem::take(&mut recalled.nr_held);
        }
    }
    Ok(Response::new(v1::EvictClientResponse {
        nr_pages_home: recalled.nr_pages,
        nr_pages_held: recalled.nr_held,
    }))
}

/// The client in a slot, if it is the one of that incarnation.
fn find(shared: &Shared, slot: u16, incarnation: Option<u16>) -> Result<ClientId, Status> {
    let reply = shared
        .apply(Command::ListClients)
        .map_err(status::of_command)?;
    let Reply::Clients(clients) = reply else {
        return Err(mismatch(&reply));
    };
    let there = clients
        .iter()
        .map(|report| report.client)
        .find(|client| client.slot == slot);
    let error = match (there, incarnation) {
        (None, _) => CommandError::NoSuchClient { slot },
        (Some(client), Some(asked)) if client.incarnation != asked => {
            CommandError::OtherIncarnation {
                slot,
                asked,
                there: client.incarnation,
            }
        }
        (Some(client), _) => return Ok(client),
    };
    Err(status::of_command(error))
}

/// Waits for a burial, for a while.
async fn is_gone(shared: &Arc<Shared>, client: ClientId) -> bool {
    let mut changes = shared.pages_home();
    let wait = async {
        while find(shared, client.slot, Some(client.incarnation)).is_ok() {
            changes.moved().await;
        }
    };
    tokio::time::timeout(KILL_WAIT, wait).await.is_ok()
}
