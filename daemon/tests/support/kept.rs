//! A daemon with a keeper, and what it takes to kill it again and again.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{DEADLINE, Daemon, TINY, send_signal, until};

/// Daemons that start so close together are a row of crashes.
const ROW: usize = 3;
const ROW_TIME: Duration = Duration::from_secs(11);

/// A keeper and its daemon; both end with it.
pub struct Kept {
    pub keeper: Daemon,
    /// When the daemons after the first one were ready.
    readies: Vec<Instant>,
    is_over: bool,
}

impl Kept {
    /// Starts [`TINY`] with a keeper, and waits until clients can attach.
    pub fn tiny() -> Kept {
        Kept::start(TINY, None)
    }

    /// The same; the first daemon is killed when it has done this step so often.
    pub fn dying_at(step: &str) -> Kept {
        Kept::start(TINY, Some(step))
    }

    pub fn start(args: &[&str], step: Option<&str>) -> Kept {
        let dir = tempfile::Builder::new()
            .prefix("hugepool-")
            .tempdir()
            .unwrap();
        let path = dir.path().join("run");
        let mut command = Command::new(env!("CARGO_BIN_EXE_hugepoold"));
        command
            .args(["--keeper", "--runtime-dir"])
            .arg(&path)
            .args(args);
        if let Some(step) = step {
            command.env("HUGEPOOLD_TEST_DIE_AT", step);
        }
        let mut keeper = Daemon::spawn_command(&path, command);
        keeper.adopt_dir(dir);
        keeper.wait_for_line("ready");
        let is_over = false;
        let readies = Vec::new();
        Kept {
            keeper,
            readies,
            is_over,
        }
    }

    pub fn path(&self) -> &Path {
        self.keeper.path()
    }

    /// The daemon that runs now.
    pub fn daemon_pid(&self) -> u32 {
        let mut pid = None;
        // The next one may just be writing its own.
        until("a daemon has the lock", || {
            let lock = std::fs::read_to_string(self.path().join("hugepoold.lock"));
            pid = lock.ok().and_then(|text| text.trim().parse().ok());
            pid.is_some()
        });
        pid.unwrap()
    }

    /// Kills the daemon and waits until the next one serves. Where one more would be a row of crashes, which
    /// the next one would not go on from, waits first.
    #[track_caller]
    pub fn kill(&mut self, signal: Signal) {
        let is_close = |ready: &&Instant| ready.elapsed() < ROW_TIME;
        until("enough time has passed", || {
            self.readies.iter().filter(is_close).count() < ROW
        });
        send_signal(self.daemon_pid(), signal);
        self.keeper.wait_for_line("ready");
        self.readies.push(Instant::now());
    }

    /// Ends both, as SIGTERM does; all that was said.
    pub fn end(mut self) -> String {
        self.is_over = true;
        self.keeper.signal(Signal::SIGTERM);
        let (status, log) = self.keeper.wait();
        assert!(status.success(), "{status}: {log}");
        log
    }

    /// The same beside a runtime, whose connections are closed meanwhile: the daemon waits for them.
    pub async fn end_beside(self) -> String {
        tokio::task::spawn_blocking(|| self.end()).await.unwrap()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.is_over && self.keeper.is_running() {
            // Asked, it takes its daemon along; killed, it would leave it behind.
            self.keeper.signal(Signal::SIGTERM);
            // Waited for also by a test that has failed, which may not fail twice.
            let end = Instant::now() + DEADLINE;
            while self.keeper.is_running() && Instant::now() < end {
                // tidy: sleep: between two looks at a condition that has a deadline
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}
