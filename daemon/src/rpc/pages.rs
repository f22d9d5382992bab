//! `hugepool.v1.Pages`: request → engine → reply. Decides nothing but whose session it is.
//!
//! A call that waits for pages holds nothing of the daemon's but what the engine keeps for it; when
//! its caller goes away it is dropped at its `await`, and what was kept goes home.

use std::sync::Arc;
use std::time::Duration;

use hugepool_engine::{
    AllocBulk, AllocOutcome, AllocReply, ClaimedRun, ClientId, FreeBulk, Patience,
};
use hugepool_mm::Migratetype;
use hugepool_proto::{SESSION_KEY, v1};
use hugepool_shm::token::Token;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::peer::Connection;
use super::{convert, status, streams};
use crate::shared::Shared;

/// The longest that a call waits.
const MAX_TIMEOUT: Duration = Duration::from_secs(600);

/// The service.
#[derive(Clone)]
pub struct PagesService {
    shared: Arc<Shared>,
}

impl PagesService {
    /// Serves the pages of this engine.
    pub fn new(shared: Arc<Shared>) -> PagesService {
        PagesService { shared }
    }

    /// Whose call it is: the client that the token names, else the connection itself.
    fn session<T>(&self, request: &Request<T>) -> Result<ClientId, Status> {
        let connection = request
            .extensions()
            .get::<Arc<Connection>>()
            .ok_or_else(|| Status::internal("the transport did not say who is calling"))?;
        let Some(text) = request.metadata().get(SESSION_KEY) else {
            return connection
                .session(|peer, groups| self.shared.begin_session(peer, groups))
                .map_err(status::of_attach)?
                .ok_or_else(|| status::unauthenticated("CLOSED", "the connection is closed"));
        };
        let token = text.to_str().ok().and_then(Token::from_hex);
        token
            .and_then(|token| self.shared.registry().find(token, connection.peer()))
            // One answer for a token that is malformed, forged or another process's.
            .ok_or_else(|| {
                status::unauthenticated(
                    "WRONG_TOKEN",
                    "the session token is not this process's: attach again",
                )
            })
    }
}

#[tonic::async_trait]
impl v1::pages_server::Pages for PagesService {
    async fn alloc_bulk(
        &self,
        request: Request<v1::AllocBulkRequest>,
    ) -> Result<Response<v1::AllocBulkResponse>, Status> {
        let session = self.session(&request)?;
        let request = request.into_inner();
        let timeout = Duration::from_millis(request.timeout_ms.into());
        if timeout > MAX_TIMEOUT {
            let most = convert::millis_u32(MAX_TIMEOUT);
            return Err(status::bad_value("timeout_ms", format!("at most {most}")));
        }
        let asked = AllocBulk {
            request_id: request.request_id,
            acknowledged: request.acknowledged,
            migratetype: migratetype(request.migratetype)?,
            abandoned: request.abandoned,
            zone: Some(request.zone).filter(|zone| !zone.is_empty()),
            order: request.order,
            nr_blocks: request.nr_pages,
            is_urgent: request.urgent,
        };
        let reply = self.lend(session, &asked, timeout).await?;
        Ok(Response::new(convert::alloc_response(reply)))
    }

    type WatchPressureStream = ReceiverStream<Result<v1::Pressure, Status>>;

    async fn watch_pressure(
        &self,
        request: Request<v1::WatchPressureRequest>,
    ) -> Result<Response<Self::WatchPressureStream>, Status> {
        let session = self.session(&request)?;
        let stream = streams::pressure(self.shared.clone(), session);
        Ok(Response::new(stream))
    }

    async fn free_bulk(
        &self,
        request: Request<v1::FreeBulkRequest>,
    ) -> Result<Response<v1::FreeBulkResponse>, Status> {
        let session = self.session(&request)?;
        let request = request.into_inner();
        let claim = |run: v1::Run| ClaimedRun {
            first_pfn: run.first_pfn,
            nr_blocks: run.nr_pages,
            order: run.order,
            generation: run.generation,
        };
        let asked = FreeBulk {
            request_id: request.request_id,
            acknowledged: request.acknowledged,
            runs: request.runs.into_iter().map(claim).collect(),
        };
        let reply = self
            .shared
            .with(|engine, _, _| engine.free_bulk(session, &asked))
            .map_err(status::of_call)?;
        Ok(Response::new(convert::free_response(reply)))
    }
}

impl PagesService {
    /// Asks until all is lent or the caller's patience ends.
    async fn lend(
        &self,
        session: ClientId,
        asked: &AllocBulk,
        timeout: Duration,
    ) -> Result<AllocReply, Status> {
        let deadline = tokio::time::Instant::now() + timeout;
        let mut changes = self.shared.pages_home();
        let mut kept = Kept {
            shared: &self.shared,
            session,
            request_id: None,
        };
        loop {
            // Who waits while the daemon stops is answered with what there is.
            let may_wait = tokio::time::Instant::now() < deadline && !self.shared.is_stopping();
            let patience = match (timeout.is_zero(), may_wait) {
                (true, _) => Patience::None,
                (false, true) => Patience::Waits,
                (false, false) => Patience::Over(timeout),
            };
            let outcome = self
                .shared
                .with(|engine, now, outside| {
                    engine.alloc_bulk(session, asked, patience, now, outside)
                })
                .map_err(status::of_call);
            match outcome {
                Ok(AllocOutcome::Done(reply)) => {
                    kept.request_id = None;
                    return Ok(reply);
                }
                Ok(AllocOutcome::Waiting { .. }) => kept.request_id = Some(asked.request_id),
                Err(status) => return Err(status),
            }
            tokio::select! {
                () = changes.moved_until(deadline) => {}
                () = self.shared.stopped() => {}
            }
        }
    }
}

/// What the engine keeps for a call that waits: let go when the call is dropped before its answer.
struct Kept<'a> {
    shared: &'a Arc<Shared>,
    session: ClientId,
    request_id: Option<u64>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Some(request_id) = self.request_id {
            self.shared
                .with(|engine, _, _| engine.abandon(self.session, request_id));
        }
    }
}

/// As asked; unspecified means unmovable.
fn migratetype(asked: i32) -> Result<Migratetype, Status> {
    match v1::Migratetype::try_from(asked) {
        Ok(v1::Migratetype::Unspecified | v1::Migratetype::Unmovable) => Ok(Migratetype::Unmovable),
        Ok(v1::Migratetype::Movable) => Ok(Migratetype::Movable),
        Ok(v1::Migratetype::Reclaimable) => Ok(Migratetype::Reclaimable),
        Err(_) => Err(status::bad_value(
            "migratetype",
            format!("{asked} is none: unmovable 1, movable 2, reclaimable 3"),
        )),
    }
}
