//! A running daemon, or this host: made into a machine description ([`snapshot`]), or taken through
//! a scenario by real client processes ([`drive`]) beside the simulation of it.

use std::path::Path;
use std::time::Duration;

use hugepool::runtime_dir;
use hugepool_proto::v1::admin_client::AdminClient;
use tonic::transport::{Channel, Endpoint};

pub mod client;
pub mod drive;
pub mod peer;
pub mod side;
pub mod snapshot;
pub mod told;

/// What the daemon's state is asked through.
pub type Admin = AdminClient<Channel>;

/// How long a daemon may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Twice what a reply may have at most.
const MAX_REPLY_BYTES: usize = 8 << 20;

/// A runtime for calls, one after the other.
///
/// # Errors
/// The system has no room for it.
pub fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| error.to_string())
}

/// Dials the daemon of a run-time directory; without one, of the first that has a socket.
///
/// # Errors
/// There is none, or nobody answers.
pub async fn connect(dir: Option<&Path>) -> Result<Admin, String> {
    let socket = runtime_dir::find(dir, "admin.sock").map_err(|error| error.to_string())?;
    let path = socket
        .to_str()
        .ok_or("the run-time directory is not UTF-8")?;
    let endpoint =
        Endpoint::from_shared(format!("unix://{path}")).map_err(|error| error.to_string())?;
    let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await;
    let channel = channel.map_err(|error| format!("no daemon answers at {path}: {error}"))?;
    Ok(AdminClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES))
}
