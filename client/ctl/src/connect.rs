//! The way to the daemon's `admin.sock`.

use std::{io, path::Path, time::Duration};

use hugepool::runtime_dir;
use hugepool_proto::v1::admin_client::AdminClient;
use tonic::transport::{Channel, Endpoint};

use crate::outcome::Failure;

/// What every verb talks to.
pub type Admin = AdminClient<Channel>;

/// The socket that serves `Admin`.
const SOCKET: &str = "admin.sock";

/// How long a daemon may take to accept: far beyond what a live one needs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of a reply: twice what the contract promises never to pass.
const MAX_REPLY_BYTES: usize = 8 << 20;

/// Dials the first run-time directory that has the socket.
pub async fn admin(runtime_dir: Option<&Path>) -> Result<Admin, Failure> {
    let socket = runtime_dir::find(runtime_dir, SOCKET).map_err(|error| {
        Failure::refused(error, "start hugepoold, or say where with --runtime-dir")
    })?;
    let path = socket.to_str().ok_or_else(|| {
        Failure::usage(
            format_args!("{} is not UTF-8", socket.display()),
            "use another folder",
        )
    })?;
    let endpoint = Endpoint::from_shared(format!("unix://{path}"))
        .map_err(|error| Failure::usage(error, "use another --runtime-dir"))?
        .connect_timeout(CONNECT_TIMEOUT);
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| refusal(&socket, &error))?;
    Ok(AdminClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES))
}

/// Says why the socket did not answer, from the system's error at the bottom of the chain.
fn refusal(socket: &Path, error: &tonic::transport::Error) -> Failure {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    let mut system = None;
    while let Some(error) = source {
        system = error.downcast_ref::<io::Error>().or(system);
        source = error.source();
    }
    let socket = socket.display();
    match system.map(io::Error::kind) {
        Some(io::ErrorKind::PermissionDenied) => Failure::refused(
            format_args!("may not open {socket}"),
            "join the group hugepool-admin, or run it as root",
        ),
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Failure::refused(
            format_args!("no daemon answers at {socket}"),
            "start hugepoold, or say where with --runtime-dir",
        ),
        Some(kind) => Failure::refused(
            format_args!("cannot dial {socket}: {kind}"),
            "see the daemon's log",
        ),
        None => Failure::refused(
            format_args!("cannot dial {socket}: {error}"),
            "see the daemon's log",
        ),
    }
}
