//! gRPC: both services on their sockets, each with health and reflection beside it.
//!
//! One thread runs everything here, and takes the engine's lock itself: no other thread has to
//! wake for a call. [`pages`] and [`admin`] translate, [`status`] knows the codes, [`peer`] knows
//! who is calling.

pub mod admin;
pub mod convert;
pub mod in_flight;
pub mod incoming;
pub mod operations;
pub mod pages;
pub mod peer;
pub mod sealed;
pub mod status;
pub mod streams;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use hugepool_proto::FILE_DESCRIPTOR_SET;
use hugepool_proto::v1::admin_server::{self, AdminServer};
use hugepool_proto::v1::pages_server::{self, PagesServer};
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use self::admin::{AdminService, MAX_REPLY_BYTES};
use self::in_flight::InFlight;
use self::pages::PagesService;
use self::peer::Gate;
use crate::shared::Shared;

/// How long answers may take to their connections when the daemon stops.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Requests in flight on one connection; more wait in the transport.
const MAX_STREAMS: u32 = 256;

/// A server that ended when nobody had asked it to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The runtime did not take a socket.
    #[error("a socket cannot be served")]
    Socket(#[source] io::Error),
    /// The contract's own description is broken: a mistake of the build.
    #[error("reflection cannot be built")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport gave up.
    #[error("the gRPC transport has failed")]
    Transport(#[from] tonic::transport::Error),
}

/// Both servers, running.
pub struct Serving {
    servers: JoinSet<Result<(), tonic::transport::Error>>,
    health: [(&'static str, HealthReporter); 2],
    in_flight: InFlight,
}

/// Who is let in.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// Connections of one user, to each socket.
    pub per_uid: u32,
    /// How long a connection may say nothing at all.
    pub patience: Duration,
}

impl Serving {
    /// Serves both sockets on the current runtime.
    ///
    /// # Errors
    /// [`ServeError`]; nothing is served then.
    pub async fn start(
        pages: UnixListener,
        admin: UnixListener,
        door: Door,
        shared: &Arc<Shared>,
    ) -> Result<Serving, ServeError> {
        let mut servers = JoinSet::new();
        let in_flight = InFlight::default();
        let with = (door, &in_flight);
        let service = PagesServer::new(PagesService::new(shared.clone()))
            .max_encoding_message_size(MAX_REPLY_BYTES);
        let service = (pages_server::SERVICE_NAME, Routes::new(service));
        let first = serve(&mut servers, pages, service, with, shared).await?;
        let service = AdminServer::new(AdminService::new(shared.clone()))
            .max_encoding_message_size(MAX_REPLY_BYTES);
        let service = (admin_server::SERVICE_NAME, Routes::new(service));
        let second = serve(&mut servers, admin, service, with, shared).await?;
        Ok(Serving {
            servers,
            health: [
                (pages_server::SERVICE_NAME, first),
                (admin_server::SERVICE_NAME, second),
            ],
            in_flight,
        })
    }

    /// Returns when a server has ended, which it should not.
    pub async fn ended(&mut self) -> Result<(), ServeError> {
        match self.servers.join_next().await {
            Some(Ok(ended)) => Ok(ended?),
            // A panic has ended the process already.
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Tells that nothing is served any more, and waits until the calls in flight have ended. The
    /// servers stop accepting when the daemon begins to stop.
    pub async fn drain(mut self) {
        for (name, health) in &self.health {
            for name in [name, ""] {
                let status = ServingStatus::NotServing;
                health.set_service_status(name, status).await;
            }
        }
        self.in_flight.none().await;
        let all = async { while self.servers.join_next().await.is_some() {} };
        // What was answered last is on its way; who does not listen keeps his connection until it breaks.
        let _ = tokio::time::timeout(LAST_WORDS, all).await;
    }
}

/// Serves one service on its socket.
async fn serve(
    servers: &mut JoinSet<Result<(), tonic::transport::Error>>,
    listener: UnixListener,
    (name, service): (&'static str, Routes),
    (door, in_flight): (Door, &InFlight),
    shared: &Arc<Shared>,
) -> Result<HealthReporter, ServeError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter
        .set_service_status(name, ServingStatus::Serving)
        .await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // Errors carry details: so tools can show them in words.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(name)
            .with_service_name("grpc.health.v1.Health")
    };
    let routes = service
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let gate = Gate::new(door.per_uid);
    let incoming = incoming::accept(listener, gate, door.patience, shared.clone());
    let incoming = incoming.map_err(ServeError::Socket)?;
    let server = Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .layer(in_flight.clone())
        .add_routes(routes);
    let stopped = shared.clone();
    servers.spawn(async move {
        server
            .serve_with_incoming_shutdown(incoming, async move { stopped.stopped().await })
            .await
    });
    Ok(reporter)
}
