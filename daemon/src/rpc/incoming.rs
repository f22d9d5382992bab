//! Accepting gRPC connections: credentials read, users counted, the accepting never given up.
//!
//! The transport ends its server on an error from this stream, so it yields none: what cannot be
//! accepted now is tried again after a pause.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use hugepool_shm::peer::{self, PeerCredentials};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::peer::{Gate, PeerStream};
use crate::shared::Shared;

/// How long accepting rests when no descriptor is left.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted and not yet taken by the transport.
const AHEAD: usize = 16;

/// Starts to accept; to be called on the runtime that serves. Each connection has `patience` to begin.
///
/// # Errors
/// Those of registering the socket with the runtime.
pub fn accept(
    listener: StdListener,
    gate: Arc<Gate>,
    patience: Duration,
    shared: Arc<Shared>,
) -> io::Result<ReceiverStream<Result<PeerStream, io::Error>>> {
    let listener = UnixListener::from_std(listener)?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        loop {
            // One a turn: calls that have come meanwhile go first, however many stand at the door.
            tokio::task::yield_now().await;
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(stream) = admit(stream, &gate, patience, &shared) else {
                continue;
            };
            if sender.send(Ok(stream)).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(receiver))
}

/// Lets a connection in, or drops it when it is one too many.
fn admit(
    stream: UnixStream,
    gate: &Arc<Gate>,
    patience: Duration,
    shared: &Arc<Shared>,
) -> Option<PeerStream> {
    let found = stream.peer_cred().ok()?;
    let peer = PeerCredentials {
        // 0 when the peer lives in a pid namespace that cannot be seen from here.
        pid: found
            .pid()
            .and_then(|pid| u32::try_from(pid).ok())
            .unwrap_or(0),
        uid: found.uid(),
        gid: found.gid(),
    };
    let Some(pass) = gate.enter(peer.uid) else {
        tracing::warn!(
            uid = peer.uid,
            pid = peer.pid,
            "one connection too many: closed"
        );
        return None;
    };
    // A system that does not tell them leaves the primary group.
    let groups = peer::groups(&stream).unwrap_or_default();
    let peer = (peer, groups);
    Some(PeerStream::new(
        stream,
        peer,
        shared.clone(),
        pass,
        patience,
    ))
}
