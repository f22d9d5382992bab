//! Who is at the other end of a gRPC connection, and what goes home when it closes.
//!
//! A [`PeerStream`] is the connection's socket; each request carries the same [`Connection`] in
//! its extensions. A connection that was lent pages without a token is a session of its own, begun
//! at its first call and ended when the stream is dropped: that is how the transport tells a close.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hugepool_engine::ClientId;
use hugepool_shm::peer::PeerCredentials;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use crate::shared::Shared;

/// Connections at once, to one socket.
const MAX_CONNECTIONS: usize = 1024;

/// Counts connections, so that no user can take them all.
#[derive(Debug)]
pub struct Gate {
    per_uid: u32,
    open: Mutex<HashMap<u32, u32>>,
}

impl Gate {
    /// A gate that lets in `per_uid` connections of each user.
    pub fn new(per_uid: u32) -> Arc<Gate> {
        Arc::new(Gate {
            per_uid,
            open: Mutex::default(),
        })
    }

    /// Lets one more in; `None` when the user, or the socket, has enough.
    pub fn enter(self: &Arc<Gate>, uid: u32) -> Option<Pass> {
        let mut open = lock(&self.open);
        let total: usize = open.values().map(|&nr| nr as usize).sum();
        let nr = open.entry(uid).or_default();
        if total >= MAX_CONNECTIONS || *nr >= self.per_uid {
            return None;
        }
        *nr += 1;
        Some(Pass {
            gate: self.clone(),
            uid,
        })
    }
}

impl Gate {
    /// Counts one that is in already.
    pub fn enter_unasked(self: &Arc<Gate>, uid: u32) -> Pass {
        *lock(&self.open).entry(uid).or_default() += 1;
        Pass {
            gate: self.clone(),
            uid,
        }
    }
}

/// One connection counted; given back on drop.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    uid: u32,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut open = lock(&self.gate.open);
        if let Some(nr) = open.get_mut(&self.uid) {
            *nr -= 1;
            if *nr == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared
        .lock()
        .expect("a panic ends the process, so no lock is left poisoned")
}

/// One gRPC connection, as its requests see it.
#[derive(Debug)]
pub struct Connection {
    peer: PeerCredentials,
    groups: Vec<u32>,
    session: Mutex<Session>,
}

/// The connection's own session.
#[derive(Debug)]
enum Session {
    /// Not yet asked for anything.
    None,
    /// Lent to under this name.
    Open(ClientId),
    /// The connection is closed: a call still on its way is refused.
    Closed,
}

impl Connection {
    /// Who connected.
    pub fn peer(&self) -> PeerCredentials {
        self.peer
    }

    /// The session of this connection, begun by `begin` at the first call; `None` once it is
    /// closed.
    ///
    /// # Errors
    /// Those of `begin`.
    pub fn session<E>(
        &self,
        begin: impl FnOnce(PeerCredentials, &[u32]) -> Result<ClientId, E>,
    ) -> Result<Option<ClientId>, E> {
        let mut session = lock(&self.session);
        match *session {
            Session::Open(client) => Ok(Some(client)),
            Session::Closed => Ok(None),
            Session::None => {
                let client = begin(self.peer, &self.groups)?;
                *session = Session::Open(client);
                Ok(Some(client))
            }
        }
    }
}

/// What a client sends first, whatever it wants: the preface of HTTP/2 (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Reads and writes of a connection in a row; then it is the others' turn. The runtime's own measure is
/// 128, which is a quarter of a millisecond of somebody who pings and does not listen.
const TURN: u32 = 16;

/// Whose turn it is.
#[derive(Default)]
struct Turn {
    /// Reads and writes since it last gave way.
    nr: u32,
    /// While others have their turn.
    gives_way: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Turn {
    /// One more read or write: ready while it is this connection's turn.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(others) = &mut self.gives_way {
            ready!(others.as_mut().poll(context));
            self.gives_way = None;
            self.nr = 0;
        }
        self.nr += 1;
        if self.nr <= TURN {
            return Poll::Ready(());
        }
        let others = self.gives_way.insert(Box::pin(tokio::task::yield_now()));
        // It is never ready at once.
        others.as_mut().poll(context)
    }
}

/// The socket of a connection; its drop ends the connection's session.
pub struct PeerStream {
    stream: UnixStream,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
    /// While the preface is not all there: when it is too late, and how much has come.
    greeting: Option<(Pin<Box<Sleep>>, usize)>,
    turn: Turn,
    _pass: Pass,
}

impl PeerStream {
    /// A connection that has just been accepted, from somebody in these supplementary groups. It has
    /// `patience` to begin to speak. One that has begun may be silent for as long as it likes: a client
    /// that is stopped is no dead one, and has pages by it perhaps.
    pub fn new(
        stream: UnixStream,
        (peer, groups): (PeerCredentials, Vec<u32>),
        shared: Arc<Shared>,
        pass: Pass,
        patience: Duration,
    ) -> PeerStream {
        PeerStream {
            stream,
            connection: Arc::new(Connection {
                peer,
                groups,
                session: Mutex::new(Session::None),
            }),
            shared,
            greeting: Some((Box::pin(tokio::time::sleep(patience)), 0)),
            turn: Turn::default(),
            _pass: pass,
        }
    }

    /// Counts what has come, and ends the connection when it is too late for more.
    fn greeted(
        &mut self,
        context: &mut Context<'_>,
        nr_bytes: Option<usize>,
    ) -> Poll<io::Result<()>> {
        let Some((too_late, nr_before)) = &mut self.greeting else {
            return nr_bytes.map_or(Poll::Pending, |_| Poll::Ready(Ok(())));
        };
        if let Some(nr_bytes) = nr_bytes {
            *nr_before += nr_bytes;
            if *nr_before >= PREFACE_BYTES {
                self.greeting = None;
            }
            return Poll::Ready(Ok(()));
        }
        too_late.as_mut().poll(context).map(|()| {
            let what = "the connection has not said in time what it wants";
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        })
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        let mut session = lock(&self.connection.session);
        if let Session::Open(client) = std::mem::replace(&mut *session, Session::Closed) {
            self.shared.end_session(client);
        }
    }
}

impl Connected for PeerStream {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Arc<Connection> {
        self.connection.clone()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.turn.poll(context));
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.greeted(context, None),
            Poll::Ready(Ok(())) => self.greeted(context, Some(buffer.filled().len() - before)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.turn.poll(context));
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.turn.poll(context));
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail with a turn that never ends.
    #[tokio::test]
    async fn a_connection_gives_way_after_its_turn_and_goes_on() {
        let mut turn = Turn::default();
        for _ in 0..3 {
            let mut nr_in_a_row = 0;
            std::future::poll_fn(|context| {
                while turn.poll(context).is_ready() {
                    nr_in_a_row += 1;
                    assert!(nr_in_a_row <= TURN, "it goes on and on");
                }
                Poll::Ready(())
            })
            .await;
            assert!(nr_in_a_row > 0);
        }
        // Others run meanwhile, and it is woken by itself.
        let other = tokio::spawn(async {});
        for _ in 0..2 * TURN {
            std::future::poll_fn(|context| turn.poll(context)).await;
        }
        assert!(other.is_finished());
    }

    #[test]
    fn one_user_cannot_take_every_connection() {
        let gate = Gate::new(2);
        let first = gate.enter(7).unwrap();
        let _second = gate.enter(7).unwrap();
        assert!(gate.enter(7).is_none());
        assert!(gate.enter(8).is_some());
        drop(first);
        assert!(gate.enter(7).is_some());
    }

    #[test]
    fn the_socket_as_a_whole_has_its_limit() {
        let gate = Gate::new(u32::MAX);
        let mut passes: Vec<Pass> = (0..1024).map(|uid| gate.enter(uid).unwrap()).collect();
        assert!(gate.enter(5000).is_none());
        passes.pop();
        assert!(gate.enter(5000).is_some());
    }
}
