//! The demo's other processes, as its director has them: started, listened to, ended.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Parser as _;
use hugepool_daemon::{
    config::{Config, Surroundings},
    exit,
    flags::Flags,
    keeper,
};
use serde::de::DeserializeOwned;

/// How long a process may take to say its first word.
pub const START_DEADLINE: Duration = Duration::from_secs(20);
/// How long it may take to say its last one.
const WORK_DEADLINE: Duration = Duration::from_secs(60);

/// The daemon's process; ended politely on drop.
pub struct Daemon {
    /// The keeper; asked to stop, it stops the daemon.
    child: Child,
    lines: Receiver<String>,
    lock: PathBuf,
}

impl Daemon {
    /// Starts it with its keeper, and waits until clients can attach.
    pub fn start(runtime_dir: &Path) -> anyhow::Result<Daemon> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("keeper")
            .arg(runtime_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the daemon")?;
        let stderr = child
            .stderr
            .take()
            .context("the daemon has no standard error")?;
        let mut daemon = Daemon {
            child,
            lines: lines_of(stderr),
            lock: runtime_dir.join("hugepoold.lock"),
        };
        match daemon.wait_until_ready() {
            Err(error) if matches!(daemon.child.try_wait(), Ok(Some(_))) => {
                Err(error.context("the daemon has ended"))
            }
            other => other.map(|()| daemon),
        }
    }

    /// Where its sockets are.
    pub fn runtime_dir(&self) -> &Path {
        self.lock.parent().unwrap_or(Path::new("."))
    }

    /// The process that serves now.
    pub fn pid(&self) -> anyhow::Result<u32> {
        let text = std::fs::read_to_string(&self.lock).context("no daemon has the lock")?;
        text.trim().parse().context("the lock names no process")
    }

    /// Waits until clients can attach, to the first daemon or the next one.
    pub fn wait_until_ready(&self) -> anyhow::Result<()> {
        let lines = &self.lines;
        let deadline = Instant::now() + START_DEADLINE;
        let mut said = Vec::new();
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == "ready" => return Ok(()),
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the daemon is not ready after {START_DEADLINE:?}: {}",
                    said.join(" / ")
                ),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the daemon ended: {}", said.join(" / "));
                }
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()) else {
            return;
        };
        let asked = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGTERM,
        );
        if asked.is_err() {
            return;
        }
        if let Err(error) = self.child.wait() {
            eprintln!("hugepool-demo: the daemon's end was not seen: {error}");
        }
    }
}

/// A worker's process; killed on drop if it still runs.
pub struct Worker {
    pub child: Child,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts one in this role.
    pub fn start(role: &str, arguments: &[&OsStr]) -> anyhow::Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(role)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let stdout = child
            .stdout
            .take()
            .context("a worker has no standard output")?;
        Ok(Worker {
            child,
            lines: lines_of(stdout),
        })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The same, for signals.
    pub fn nix_pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// The next thing it says.
    pub fn next_line<T: DeserializeOwned>(&self, within: Duration) -> anyhow::Result<T> {
        let line = self.lines.recv_timeout(within).with_context(|| {
            format!(
                "worker {} said nothing for {within:?} or has ended",
                self.pid()
            )
        })?;
        serde_json::from_str(&line).with_context(|| format!("worker {} said {line:?}", self.pid()))
    }

    /// Tells it to stop and takes its last word.
    pub fn finish<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
        drop(self.child.stdin.take());
        let line = self.next_line(WORK_DEADLINE)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("worker {} ended with {status}", self.pid());
        }
        Ok(line)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && self.child.kill().is_ok()
            && self.child.wait().is_err()
        {
            eprintln!(
                "hugepool-demo: the end of worker {} was not seen",
                self.pid()
            );
        }
    }
}

/// The lines of a stream, read by a thread so that waiting for one has a deadline.
fn lines_of(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The keeper's role of a re-executed process. It ends when the director does, however that ends.
pub fn keeper(runtime_dir: &Path) -> ExitCode {
    if let Err(errno) = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM) {
        eprintln!("hugepool-demo: the daemon would outlive the demo: {errno}");
        return ExitCode::FAILURE;
    }
    keeper::run(runtime_dir, &|| {
        let program = std::env::current_exe().unwrap_or_else(|_| "hugepool-demo".into());
        let mut command = Command::new(program);
        command.arg("daemon").arg(runtime_dir);
        command
    })
}

/// The daemon's role of a re-executed process.
pub fn daemon(runtime_dir: &Path) -> ExitCode {
    let words = [
        OsStr::new("hugepoold"),
        OsStr::new("--runtime-dir"),
        runtime_dir.as_os_str(),
    ];
    let flags = Flags::parse_from(words);
    match Config::load(&flags, &Surroundings::of_this_process()) {
        Ok(config) => exit::status(hugepool_daemon::run(config)),
        Err(error) => exit::usage(&error),
    }
}
