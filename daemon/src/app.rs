//! The life of the daemon: build (everything bound, nothing runs), run, drain.
//!
//! The order of building is the order of what can be taken back most cheaply: the lock on the
//! run-time directory, the sockets, the memory, the engine over it. Whatever fails, dropping what
//! was built leaves nothing behind: paths are removed, and files without a name give their memory
//! back with their last descriptor.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hugepool_shm::passed::PassedError;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::attach::Attach;
use crate::config::Config;
use crate::confine;
use crate::effects::{Jobs, Workers};
use crate::exit;
use crate::kept::Kept;
use crate::lanes::Lanes;
use crate::reload::{Reload, Source};
use crate::rpc::peer::Gate;
use crate::rpc::{Door, ServeError, Serving};
use crate::runtime_dir::{RuntimeDir, RuntimeDirError};
use crate::sealed::Sealed;
use crate::shared::Shared;
use crate::sockets::{SocketError, Sockets, StreamSocket};
use crate::startup::{self, StartError, Started};
use crate::stats::Stats;
use crate::store::Store;
use crate::systemd::{self, Seen, Watchdog};

/// How often the zones' files are held against the books.
const AUDIT_PERIOD: Duration = Duration::from_secs(10);

/// Why the daemon does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The run-time directory.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// What systemd passed.
    #[error("the sockets that systemd has bound cannot be taken")]
    Passed(#[from] PassedError),
    /// The sockets.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// The memory.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A thread, descriptor or runtime that the system did not give.
    #[error("the system gives no {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The answer.
        source: io::Error,
    },
    /// gRPC gave up while it should serve.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl AppError {
    fn system(what: &'static str) -> impl Fn(Errno) -> AppError {
        move |errno| AppError::System {
            what,
            source: errno.into(),
        }
    }
}

/// Builds and runs the daemon until it is told to stop.
///
/// # Errors
/// [`AppError`]; nothing is left behind then.
pub fn run(config: Config) -> Result<(), AppError> {
    run_from(config, None)
}

/// The same for a daemon that reads its configuration again on SIGHUP.
///
/// # Errors
/// [`AppError`]; nothing is left behind then.
pub fn run_reloadable(config: Config, source: Source) -> Result<(), AppError> {
    run_from(config, Some(source))
}

fn run_from(config: Config, source: Option<Source>) -> Result<(), AppError> {
    let reload = Reload::new(source, config.clone());
    match App::build(config)? {
        Built::App(app) => app.run(reload),
        Built::Sealed(sealed) => sealed.hold().map_err(|source| AppError::System {
            what: "runtime",
            source,
        }),
    }
}

/// What came of building.
pub enum Built {
    /// A daemon that can serve.
    App(Box<App>),
    /// One that can hold what a daemon before has left, and no more.
    Sealed(Box<Sealed>),
}

/// A daemon with everything bound, that does nothing yet.
pub struct App {
    config: Config,
    pages: StreamSocket,
    admin: StreamSocket,
    lanes: Lanes,
    jobs: Jobs,
    shared: Arc<Shared>,
    watchdog: Arc<Watchdog>,
    // Last: what guards the directory goes when the sockets in it are gone.
    _dir: RuntimeDir,
}

impl App {
    /// Locks the directory, binds the sockets, makes the memory and the engine over it.
    ///
    /// # Errors
    /// [`AppError`]; nothing is left behind then.
    pub fn build(config: Config) -> Result<Built, AppError> {
        abort_on_panic();
        die_of_faults();
        raise_descriptor_limit();
        let (kept, passed) = Kept::sort(systemd::passed_descriptors()?);
        let store = Arc::new(Store::from_environment());
        let dir = RuntimeDir::open(&config.runtime_dir)?;
        let sockets = Sockets::open(dir.path(), &config.sockets, passed)?;
        sockets.keep(&store);
        let runtime_dir = config.runtime_dir.clone();
        let started = match startup::engine(config, kept, &store) {
            Err(StartError::Sealed { why, held }) => {
                return Ok(Built::Sealed(Box::new(Sealed {
                    why,
                    held,
                    sockets,
                    runtime_dir,
                    _dir: dir,
                })));
            }
            started => started?,
        };
        let Started {
            config,
            shared,
            jobs,
            found,
            channels,
        } = started;
        let shared = Arc::new(shared);
        let watchdog = Arc::new(Watchdog::from_environment());
        let limits = config.limits;
        let attach = Attach::new(
            Gate::new(limits.connections_per_uid),
            config.timeouts.attach,
            limits.lanes_per_client,
            store,
        );
        let mut lanes = Lanes::new(
            sockets.attach,
            attach,
            shared.clone(),
            watchdog.clone(),
            config.spin,
        )
        .map_err(AppError::system("epoll"))?;
        for client in found {
            lanes.adopt(client);
        }
        lanes.adopt_channels(channels);
        Ok(Built::App(Box::new(App {
            config,
            pages: sockets.pages,
            admin: sockets.admin,
            lanes,
            jobs,
            shared,
            watchdog,
            _dir: dir,
        })))
    }

    /// Serves until SIGTERM or SIGINT, then drains.
    ///
    /// # Errors
    /// [`AppError`] when a thread cannot be had, or gRPC gives up.
    pub fn run(self: Box<App>, reload: Reload) -> Result<(), AppError> {
        let App {
            config,
            pages,
            admin,
            lanes,
            jobs,
            shared,
            watchdog,
            _dir,
        } = *self;
        let io = |what| move |source| AppError::System { what, source };
        // While this is the only thread: the others inherit it.
        confine::confine(&config.runtime_dir, reload.folder().as_deref());
        let workers = Workers::start(jobs, &shared).map_err(io("thread for the backing"))?;
        let lanes = thread::Builder::new()
            .name("lanes".to_owned())
            .spawn(move || lanes.run())
            .map_err(io("thread for the lanes"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(io("runtime"));
        let served = runtime.and_then(|runtime| {
            runtime.block_on(serve(&config, [&pages, &admin], &shared, &watchdog, reload))
        });
        shared.stop();
        workers.stop(&shared);
        if lanes.join().is_err() {
            tracing::error!("the lanes thread has panicked");
        }
        // Not one of a row of crashes.
        shared.has_ended_well();
        tracing::info!("stopped");
        served
    }
}

/// Serves gRPC and feeds the watchdog until a signal comes.
async fn serve(
    config: &Config,
    [pages, admin]: [&StreamSocket; 2],
    shared: &Arc<Shared>,
    watchdog: &Arc<Watchdog>,
    reload: Reload,
) -> Result<(), AppError> {
    let io = |what| move |source| AppError::System { what, source };
    // Before "ready", so that a signal that comes right after it is not missed.
    let mut terminate = signal(SignalKind::terminate()).map_err(io("signal handler"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("signal handler"))?;
    let hangup = signal(SignalKind::hangup()).map_err(io("signal handler"))?;
    let pages = pages.listener().map_err(io("descriptor"))?;
    let admin = admin.listener().map_err(io("descriptor"))?;
    let door = Door {
        per_uid: config.limits.connections_per_uid,
        patience: config.timeouts.attach,
    };
    let mut serving = Serving::start(pages, admin, door, shared).await?;
    let mut stats = Stats::open(&config.runtime_dir, shared);
    announce(config);
    tokio::select! {
        () = asked_to_stop(&mut terminate, &mut interrupt) => {}
        () = feed(watchdog) => {}
        () = keep_writing(stats.as_mut()) => {}
        () = keep_auditing(shared) => {}
        () = keep_reloading(reload, hangup, shared) => {}
        ended = serving.ended() => ended?,
    }
    systemd::stopping();
    shared.stop();
    let drained = tokio::time::timeout(config.timeouts.drain, serving.drain()).await;
    if drained.is_err() {
        tracing::warn!("calls in flight did not end in time: cut off");
    }
    Ok(())
}

/// Says that clients can attach: to systemd, to the log, and as the one word that scripts wait for.
fn announce(config: &Config) {
    let dir = config.runtime_dir.display();
    tracing::info!(%dir, "serving pages.sock, admin.sock and attach.sock");
    systemd::ready(&format!("{} zones", config.zones.len()));
    let _ = io::Write::write_all(&mut io::stderr().lock(), b"ready\n");
}

async fn asked_to_stop(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
}

/// Reads the configuration again at each SIGHUP. Never returns.
async fn keep_reloading(mut reload: Reload, mut hangup: Signal, shared: &Shared) {
    while hangup.recv().await.is_some() {
        systemd::reloading();
        let status = match reload.reload(shared) {
            Ok(keys) => {
                tracing::info!(changed = keys.join(", "), "configuration reloaded");
                "configuration reloaded".to_owned()
            }
            Err(error) => {
                let why = exit::one_line(&error);
                tracing::error!("configuration not reloaded, nothing has changed: {why}");
                format!("configuration not reloaded: {why}")
            }
        };
        systemd::ready(&status);
    }
    std::future::pending().await
}

async fn keep_writing(stats: Option<&mut Stats>) {
    match stats {
        Some(stats) => stats.keep_writing().await,
        None => std::future::pending().await,
    }
}

/// Looks for memory that clients took or gave away behind our back. Never returns.
async fn keep_auditing(shared: &Shared) {
    let mut periods = tokio::time::interval(AUDIT_PERIOD);
    periods.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        periods.tick().await;
        // What is found is mended and logged there; without a finding it costs one look a zone.
        shared.memory().audit_aside().await;
    }
}

/// Beats for this thread and tells systemd when the other one has beaten too. Never returns.
async fn feed(watchdog: &Watchdog) {
    let Some(period) = watchdog.beat_every() else {
        return std::future::pending().await;
    };
    let mut seen = Seen::default();
    let mut beats = tokio::time::interval(period);
    loop {
        beats.tick().await;
        watchdog.beat_rpc();
        watchdog.report(&mut seen);
    }
}

/// A panic is a broken invariant of our own: with one, nothing here is to be trusted, and the
/// process that starts anew is. (Builds that unwind would go on with a poisoned lock.)
fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        std::process::abort();
    }));
}

/// A fault that was sent ends the process as one of its own does.
fn die_of_faults() {
    if let Err(errno) = hugepool_shm::faults::die_of_them() {
        tracing::debug!(%errno, "a fault that is sent is passed over once");
    }
}

/// Every client costs a few descriptors: take as many as the system allows.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = raised {
        tracing::debug!(%errno, "the limit of descriptors stays as it is");
    }
}
