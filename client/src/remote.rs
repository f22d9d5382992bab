//! What the lanes do not have: one call to the daemon over `pages.sock`.
//!
//! The caller's own thread drives the call, on a runtime of the client's own, so that no other
//! thread has to be woken on the way. A caller that is itself inside an asynchronous runtime may
//! not drive a second one; its call is driven by a thread made for it. Every call ends: the daemon
//! is told how long to wait, and shortly after that its answer is no longer waited for.

use std::{
    cell::Cell,
    future::Future,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hugepool_proto::{
    SESSION_KEY,
    v1::{AllocBulkRequest, FreeBulkRequest, Migratetype, Run, pages_client::PagesClient},
};
use hugepool_shm::{process, raw::RawMigratetype, step::reached as step, token::Token};
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::{
    calls::{Calls, Header},
    shortfall::{self, Shortfall},
};

/// What the daemon's answer may take beyond the time that it was told to wait: a wake-up, a large
/// reply on a busy machine. A daemon that takes longer counts as away.
const GRACE: Duration = Duration::from_millis(500);

/// Pauses between the tries to reach a daemon that is not there.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// Blocks asked for in one call: its answer stays far below the contract's 4 MiB even if no two
/// blocks are neighbours.
const MAX_BLOCKS_PER_CALL: usize = 65_536;

/// The longest wait that is asked for; the daemon refuses longer ones.
const MAX_WAIT: Duration = Duration::from_secs(600);

thread_local! {
    /// Whether this thread is in the middle of a call: then another one comes from a signal
    /// handler, and must not wait for locks that the interrupted one has.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// What is asked for in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    /// Name of the zone; empty for the configured order.
    pub(crate) zone: &'a str,
    pub(crate) order: u8,
    pub(crate) migratetype: RawMigratetype,
    pub(crate) nr_blocks: usize,
    /// May go below the zones' min marks.
    pub(crate) urgent: bool,
    /// How long the daemon may wait until it has all of them; zero for what there is.
    pub(crate) wait: Duration,
    /// How long it may take to answer at all, at least.
    pub(crate) patience: Duration,
}

impl Want<'_> {
    /// Blocks that one call asks for: the rest takes another.
    pub(crate) fn nr_asked(&self) -> usize {
        self.nr_blocks.min(MAX_BLOCKS_PER_CALL)
    }
}

/// What a call brought: runs of blocks, each a claim of the daemon's until it has been looked at.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    pub(crate) runs: Vec<Run>,
    pub(crate) shortfall: Option<Shortfall>,
}

impl Lent {
    fn nothing(why: Shortfall) -> Lent {
        Lent {
            runs: vec![],
            shortfall: Some(why),
        }
    }
}

/// The client's way to `pages.sock`.
#[derive(Debug)]
pub(crate) struct Remote {
    socket: PathBuf,
    token: MetadataValue<Ascii>,
    calls: Mutex<Calls>,
    /// Made at the first call: a client that lives on its lanes needs none.
    dialled: OnceLock<Option<Dialled>>,
}

#[derive(Debug)]
struct Dialled {
    runtime: Runtime,
    pages: PagesClient<Channel>,
}

/// How to reach the daemon, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    channel: Endpoint,
    token: MetadataValue<Ascii>,
}

impl Way {
    /// The service, dialled at its first call; to be made inside the runtime that drives it.
    pub(crate) fn dial(&self) -> PagesClient<Channel> {
        PagesClient::new(self.channel.connect_lazy())
    }

    /// The request, as the session's.
    pub(crate) fn sign<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert(SESSION_KEY, self.token.clone());
        request
    }
}

impl Remote {
    /// Dials nothing yet.
    pub(crate) fn new(socket: PathBuf, token: Token) -> Remote {
        let token = MetadataValue::try_from(token.to_hex());
        Remote {
            socket,
            token: token.expect("hexadecimal digits are valid in metadata"),
            calls: Mutex::new(Calls::new()),
            dialled: OnceLock::new(),
        }
    }

    /// Asks for blocks. What comes is the caller's to keep or to free, block for block.
    pub(crate) fn alloc_bulk(&self, want: &Want<'_>) -> Lent {
        if IN_CALL.replace(true) {
            return Lent::nothing(Shortfall::Reentered);
        }
        let lent = self.ask(want);
        IN_CALL.set(false);
        lent
    }

    fn ask(&self, want: &Want<'_>) -> Lent {
        let begun = Instant::now();
        let Some(dialled) = self.dialled() else {
            return Lent::nothing(Shortfall::DaemonAway);
        };
        let header = self.calls().begin();
        step("call.begun");
        let limit = want
            .wait
            .max(want.patience)
            .min(MAX_WAIT)
            .saturating_add(GRACE);
        let call = async {
            let mut pages = dialled.pages.clone();
            let mut pause = Duration::ZERO;
            loop {
                let left = Want {
                    wait: want.wait.saturating_sub(begun.elapsed()),
                    ..*want
                };
                let asked = if pause.is_zero() { want } else { &left };
                match pages.alloc_bulk(self.request(asked, &header)).await {
                    // The connection was lost, perhaps long ago, or the daemon is being restarted.
                    // The id is the same, so whatever was done for it is answered again.
                    Err(status) if is_lost(&status) => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE);
                    }
                    answer => break answer,
                }
            }
        };
        let call = async { tokio::time::timeout(limit, call).await };
        let outcome = drive(&dialled.runtime, call);
        let waited = begun.elapsed();
        let why = match outcome {
            Ok(Ok(answer)) => {
                step("call.answered");
                self.calls().answered(&header);
                let answer = answer.into_inner();
                let shortfall = answer.shortfall;
                let shortfall = shortfall.and_then(|wire| shortfall::from_wire(wire, waited));
                return Lent {
                    runs: answer.runs,
                    shortfall,
                };
            }
            Ok(Err(status)) => why(&status, waited),
            Err(_elapsed) => Shortfall::DaemonAway,
        };
        self.calls().give_up(&header);
        Lent::nothing(why)
    }

    /// Gives blocks back that this process cannot use, to the next daemon if this one goes away
    /// within `patience`. One that is refused was not ours, and one that does not arrive is the
    /// daemon's to find when the client ends.
    pub(crate) fn free_bulk(&self, runs: Vec<Run>, patience: Duration) {
        let Some(dialled) = self.dialled() else {
            return;
        };
        let header = self.calls().begin();
        let message = FreeBulkRequest {
            request_id: header.id,
            acknowledged: header.acknowledged,
            runs,
        };
        let call = async {
            let mut pages = dialled.pages.clone();
            let mut pause = Duration::ZERO;
            loop {
                let mut request = Request::new(message.clone());
                let token = self.token.clone();
                request.metadata_mut().insert(SESSION_KEY, token);
                match pages.free_bulk(request).await {
                    // As in `ask`.
                    Err(status) if is_lost(&status) => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE);
                    }
                    answer => break answer,
                }
            }
        };
        let limit = patience.min(MAX_WAIT).saturating_add(GRACE);
        let call = async { tokio::time::timeout(limit, call).await };
        match drive(&dialled.runtime, call) {
            // It cannot name what was given up, so that is named again.
            Ok(Ok(_)) => self.calls().answered(&Header {
                abandoned: vec![],
                ..header
            }),
            _ => self.calls().give_up(&header),
        }
    }

    fn request(&self, want: &Want<'_>, header: &Header) -> Request<AllocBulkRequest> {
        let nr_blocks = u32::try_from(want.nr_asked()).unwrap_or(u32::MAX);
        let migratetype = match want.migratetype {
            RawMigratetype::Unmovable => Migratetype::Unmovable,
            RawMigratetype::Movable => Migratetype::Movable,
            RawMigratetype::Reclaimable => Migratetype::Reclaimable,
        };
        // Rounded up: a wait that is not zero must not be sent as none.
        let wait_ms = want.wait.min(MAX_WAIT).as_micros().div_ceil(1000);
        let mut request = Request::new(AllocBulkRequest {
            request_id: header.id,
            acknowledged: header.acknowledged,
            abandoned: header.abandoned.clone(),
            zone: want.zone.to_owned(),
            order: want.order.into(),
            nr_pages: nr_blocks,
            migratetype: migratetype.into(),
            timeout_ms: u32::try_from(wait_ms).unwrap_or(u32::MAX),
            urgent: want.urgent,
        });
        request
            .metadata_mut()
            .insert(SESSION_KEY, self.token.clone());
        request
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        // A panic under the lock leaves sets of numbers, each of which is still true.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dialled(&self) -> Option<&Dialled> {
        self.dialled.get_or_init(|| self.dial()).as_ref()
    }

    fn dial(&self) -> Option<Dialled> {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let way = self.way()?;
        let pages = {
            // The channel's own task is put on the runtime that is entered.
            let _entered = runtime.enter();
            way.dial()
        };
        Some(Dialled { runtime, pages })
    }

    /// The way for calls that are driven by somebody else; `None` for a socket whose name is not
    /// text.
    pub(crate) fn way(&self) -> Option<Way> {
        let channel = Endpoint::from_shared(format!("unix://{}", self.socket.to_str()?)).ok()?;
        let token = self.token.clone();
        Some(Way { channel, token })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let Some(Some(dialled)) = self.dialled.take() else {
            return;
        };
        if process::is_child() {
            // The runtime's epoll is the parent's too: taking it down here would take the
            // parent's connections out of it.
            std::mem::forget(dialled);
        } else {
            // Without waiting: this may be inside an asynchronous runtime, which may not.
            dialled.runtime.shutdown_background();
        }
    }
}

/// Drives `call` on `runtime` to its end, whatever the caller is in the middle of.
fn drive<T: Send>(runtime: &Runtime, call: impl Future<Output = T> + Send) -> T {
    if Handle::try_current().is_err() {
        return runtime.block_on(call);
    }
    thread::scope(|scope| {
        let driver = scope.spawn(|| runtime.block_on(call));
        driver
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether the call ended because the connection did: what the daemon answers has no source. A call
/// that a stopping daemon does not begin any more is cancelled here, or ends with "no error" of the
/// protocol, which comes as an internal one.
fn is_lost(status: &Status) -> bool {
    let source = std::error::Error::source(status);
    let is_of_transport = matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    );
    source.is_some() && is_of_transport
}

/// What a refused call says about the world.
fn why(status: &Status, waited: Duration) -> Shortfall {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => {
            Shortfall::Detached
        }
        Code::DeadlineExceeded => Shortfall::Deadline { waited },
        _ => Shortfall::DaemonAway,
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use super::*;

    /// Seen to fail without the codes of calls that a stopping daemon did not begin.
    #[test]
    fn a_call_that_the_connection_ended_is_asked_again_and_an_answer_is_not() {
        let codes = [
            Code::Unavailable,
            Code::Unknown,
            Code::Cancelled,
            Code::Internal,
        ];
        for code in codes {
            let answer = Status::new(code, "by the daemon");
            assert!(!is_lost(&answer), "{code:?}");
            let mut of_transport = Status::new(code, "by the transport");
            of_transport.set_source(Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)));
            assert!(is_lost(&of_transport), "{code:?}");
        }
    }
}
