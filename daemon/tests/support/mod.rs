//! One test, one daemon, one folder: started from the built binary, ended by pid, cleaned up.
//!
//! Everything waits with a deadline, so that a test that hangs fails instead.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

pub mod grpc;
pub mod kept;
pub mod raw;
pub mod victim;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long anything may take before the test counts as hung. Far above what it takes.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Two zones of two sections of 4 MiB, plain memory, room for more.
pub const TINY: &[&str] = &[
    "--section-size",
    "4MiB",
    "--zone",
    "normal=8MiB,reserve=64MiB,backing=shm",
    "--zone",
    "movable=8MiB,kind=movable,reserve=64MiB,backing=shm",
];

/// Pages of [`TINY`].
pub const TINY_PAGES: u64 = 4096;

/// A daemon in a folder of its own.
pub struct Daemon {
    child: Child,
    dir: Option<TempDir>,
    path: PathBuf,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl Daemon {
    /// Starts [`TINY`] and waits until clients can attach.
    pub fn tiny() -> Daemon {
        Daemon::start(TINY)
    }

    /// Starts with these arguments and waits until clients can attach.
    pub fn start(args: &[&str]) -> Daemon {
        let mut daemon = Daemon::spawn(args);
        daemon.wait_for_line("ready");
        daemon
    }

    /// Starts, and does not wait.
    pub fn spawn(args: &[&str]) -> Daemon {
        let dir = tempfile::Builder::new()
            .prefix("hugepool-")
            .tempdir()
            .unwrap();
        let path = dir.path().join("run");
        let mut daemon = Daemon::spawn_in(&path, args);
        daemon.dir = Some(dir);
        daemon
    }

    /// Starts in a folder of the caller's.
    pub fn spawn_in(path: &Path, args: &[&str]) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hugepoold"));
        command.arg("--runtime-dir").arg(path).args(args);
        Daemon::spawn_command(path, command)
    }

    /// Starts by a command of the caller's.
    pub fn spawn_command(path: &Path, mut command: Command) -> Daemon {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Daemon {
            child,
            dir: None,
            path: path.to_owned(),
            lines,
            log: Vec::new(),
        }
    }

    /// Keeps the folder that its own one lies in until it is dropped.
    pub fn adopt_dir(&mut self, dir: TempDir) {
        self.dir = Some(dir);
    }

    /// Where its sockets are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One of its sockets.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line on its standard error.
    #[track_caller]
    pub fn wait_for_line(&mut self, wanted: &str) {
        self.wait_until_said(wanted, |line| line == wanted);
    }

    /// Waits for a line with these words.
    #[track_caller]
    pub fn wait_for_words(&mut self, wanted: &str) {
        self.wait_until_said(wanted, |line| line.contains(wanted));
    }

    #[track_caller]
    fn wait_until_said(&mut self, wanted: &str, is_it: impl Fn(&str) -> bool) {
        let end = Instant::now() + DEADLINE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let is_it = is_it(&line);
                    self.log.push(line);
                    if is_it {
                        return;
                    }
                }
                Err(_) => panic!("no `{wanted}` on standard error:\n{}", self.log.join("\n")),
            }
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        send_signal(self.pid(), signal);
    }

    /// Waits for its end; its status, and all it said.
    #[track_caller]
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let status = wait_for(&mut self.child);
        // The pipe ends with the process, so this ends too.
        while let Ok(line) = self.lines.recv_timeout(DEADLINE) {
            self.log.push(line);
        }
        (status, self.log.join("\n"))
    }

    /// Asks it to stop as systemd does, and waits.
    #[track_caller]
    pub fn stop(mut self) -> (ExitStatus, String) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.wait()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // By handle, not by name: a process of this test alone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Ended the hard way, it could not; nobody else would come by.
        let _ = hugepool_shm::stats::remove_left_over(&self.path);
        if thread::panicking() {
            while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
                self.log.push(line);
            }
            eprintln!("--- the daemon said:\n{}\n---", self.log.join("\n"));
        }
    }
}

/// Sends a signal to a process of this test's.
pub fn send_signal(pid: u32, signal: nix::sys::signal::Signal) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// Waits for a child with the deadline.
#[track_caller]
pub fn wait_for(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < end, "process {} does not end", child.id());
        // tidy: sleep: between two looks at a condition that has a deadline
        thread::sleep(Duration::from_millis(2));
    }
}

/// Asks again and again until it holds, or the deadline has passed.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        // tidy: sleep: between two looks at a condition that has a deadline
        thread::sleep(Duration::from_millis(2));
    }
}

/// Says that a test was skipped, past the capture of the test harness.
pub fn skipped(name: &str, reason: &str) {
    let line = format!("skipped: {name}: {reason}\n");
    let direct = std::fs::OpenOptions::new()
        .append(true)
        .open("/proc/self/fd/2");
    let written = direct.and_then(|mut stderr| stderr.write_all(line.as_bytes()));
    if written.is_err() {
        eprint!("{line}");
    }
}
