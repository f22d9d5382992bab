//! A daemon of the test's own: this test binary, run again as the daemon.
//!
//! A test file that uses it has a test `the_daemon` that calls [`be_the_daemon_if_asked`]; run by
//! the harness it does nothing, run again by [`Daemon::start`] it is a `hugepoold`. So
//! `cargo test` needs no binary of another package. One test, one daemon, one folder.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use hugepool::{Client, Options};
use hugepool_proto::v1::{
    Client as ClientInfo, GetStatusRequest, ListClientsRequest, PageCounts, VerifyRequest,
    VerifyResponse, admin_client::AdminClient,
};
use tonic::transport::{Channel, Endpoint};

/// The daemon's arguments, one a line; set in the process that is to be a daemon.
const ROLE: &str = "HUGEPOOL_TEST_DAEMON";

/// What a healthy daemon does in milliseconds may take this long on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the daemon, if this process was started to be one, and never returns then.
pub fn be_the_daemon_if_asked() {
    let Ok(arguments) = env::var(ROLE) else {
        return;
    };
    // A test that is killed leaves no daemon behind.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).unwrap();
    // Nothing that the test's environment says may change what the daemon does.
    let flags = <hugepool_daemon::flags::Flags as clap::Parser>::parse_from(
        std::iter::once("hugepoold").chain(arguments.lines()),
    );
    let surroundings = hugepool_daemon::config::Surroundings::of_this_process();
    let config = hugepool_daemon::config::Config::load(&flags, &surroundings).unwrap();
    hugepool_daemon::telemetry::start("info");
    let ended = hugepool_daemon::run(config);
    if let Err(error) = &ended {
        eprintln!("the daemon ended: {error:?}");
    }
    std::process::exit(i32::from(ended.is_err()));
}

/// A running daemon; killed, with its folder, when dropped.
pub struct Daemon {
    child: Child,
    dir: PathBuf,
    admin: Admin,
}

struct Admin {
    runtime: tokio::runtime::Runtime,
    client: AdminClient<Channel>,
}

impl Daemon {
    /// Starts one with a normal zone of 16 MiB and a movable one of 8 MiB, on plain memory.
    pub fn start(name: &str) -> Daemon {
        let zones = ["normal=16MiB,backing=shm,reserve=256MiB"];
        let movable = ["movable=8MiB,kind=movable,backing=shm,reserve=256MiB"];
        Daemon::with_zones(name, &[zones, movable].concat())
    }

    /// Starts one with these zones, in sections of 8 MiB.
    pub fn with_zones(name: &str, zones: &[&str]) -> Daemon {
        let dir = env::temp_dir().join(format!("hugepool-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut arguments = format!("--runtime-dir\n{}\n--section-size\n8MiB", dir.display());
        zones
            .iter()
            .for_each(|zone| arguments += &format!("\n--zone\n{zone}"));
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["the_daemon", "--exact", "--nocapture"])
            .env(ROLE, arguments)
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until_ready(&mut child);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let channel = {
            let _entered = runtime.enter();
            let socket = format!("unix://{}", dir.join("admin.sock").display());
            Endpoint::from_shared(socket).unwrap().connect_lazy()
        };
        let admin = Admin {
            runtime,
            client: AdminClient::new(channel),
        };
        Daemon { child, dir, admin }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How to attach to it.
    pub fn options(&self, name: &str) -> Options {
        // On a busy machine an answer may take long; no test means that.
        Options::default()
            .runtime_dir(&self.dir)
            .name(name)
            .deadline(PATIENCE)
    }

    pub fn attach(&self, name: &str) -> Client {
        Client::attach(self.options(name)).unwrap()
    }

    /// Asks its `Admin`.
    pub fn ask<T, F>(&self, call: impl FnOnce(AdminClient<Channel>) -> F) -> T
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let answer = self.admin.runtime.block_on(call(self.admin.client.clone()));
        answer.unwrap().into_inner()
    }

    /// The sum of the pages of all zones.
    pub fn pages(&self) -> PageCounts {
        let status =
            self.ask(|mut admin| async move { admin.get_status(GetStatusRequest {}).await });
        status.pages.unwrap()
    }

    pub fn clients(&self) -> Vec<ClientInfo> {
        self.ask(|mut admin| async move { admin.list_clients(ListClientsRequest {}).await })
            .clients
    }

    /// Checks the daemon's books, and that it is still this process that answers.
    pub fn verify(&mut self) -> VerifyResponse {
        let verdict = self.ask(|mut admin| async move { admin.verify(VerifyRequest {}).await });
        assert!(verdict.ok, "{:?}", verdict.findings);
        assert_eq!(self.child.try_wait().unwrap(), None, "the daemon has ended");
        let pages = verdict.pages.unwrap();
        assert_eq!(pages.present, pages.managed + pages.reserved);
        assert_eq!(
            pages.managed,
            pages.free + pages.pcp + pages.lent + pages.isolated
        );
        verdict
    }

    /// Waits until `is_so` of the pages of all zones.
    pub fn wait_for_pages(&self, what: &str, is_so: impl Fn(&PageCounts) -> bool) -> PageCounts {
        let begun = Instant::now();
        loop {
            let pages = self.pages();
            if is_so(&pages) {
                return pages;
            }
            assert!(begun.elapsed() < PATIENCE, "never came: {what}; {pages:?}");
            thread::yield_now();
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have been killed by the test already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Ended the hard way, it could not; nobody else would come by.
        let _ = hugepool::stats::remove_left_over(&self.dir);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Reads its log until it says that clients can attach, and goes on reading for its life, so that
/// it never waits for a reader; what it says is shown with the test's own output.
fn wait_until_ready(child: &mut Child) {
    let log = BufReader::new(child.stderr.take().unwrap());
    let (sender, ready) = mpsc::channel();
    thread::spawn(move || {
        for line in log.lines().map_while(Result::ok) {
            eprintln!("daemon: {line}");
            if line.trim() == "ready" {
                // The wait may be over, in a test that has failed.
                let _ = sender.send(());
            }
        }
    });
    let heard = ready.recv_timeout(PATIENCE);
    if heard.is_err() {
        let _ = child.kill();
        panic!("the daemon did not get ready: {:?}", child.wait());
    }
}

/// Says on the terminal that a test was skipped: what a test prints, the harness swallows.
pub fn skipped(name: &str, reason: &str) {
    use std::io::Write as _;
    let stderr = fs::OpenOptions::new().append(true).open("/proc/self/fd/2");
    let line = format!("skipped: {name}: {reason}\n");
    match stderr {
        Ok(mut stderr) => stderr.write_all(line.as_bytes()).unwrap(),
        Err(_) => eprint!("{line}"),
    }
}
