//! The demo's other processes, as its director has them: started, listened to, ended.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

/// How long a process may take to say its first word.
pub const START_DEADLINE: Duration = Duration::from_secs(20);
/// How long it may take to say its last one.
const WORK_DEADLINE: Duration = Duration::from_secs(60);

/// The daemon's process; ended politely on drop.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts it, and waits until clients can attach.
    pub fn start(runtime_dir: &Path) -> anyhow::Result<Daemon> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("daemon")
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
        let mut daemon = Daemon { child };
        let lines = lines_of(stderr);
        let deadline = Instant::now() + START_DEADLINE;
        let mut said = Vec::new();
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == "ready" => return Ok(daemon),
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the daemon is not ready after {START_DEADLINE:?}: {}",
                    said.join(" / ")
                ),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = daemon.child.wait()?;
                    bail!("the daemon ended with {status}: {}", said.join(" / "));
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
