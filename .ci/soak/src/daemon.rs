//! The keeper and its daemon, as re-executed processes.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::Parser as _;
use hugepool_daemon::{
    config::{Config, Surroundings},
    exit,
    flags::Flags,
    keeper, telemetry,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::process::{self, wait};

/// Small enough that all of it is always in somebody's hands, with room for sections to come.
const MEMORY: &[&str] = &[
    "--section-size",
    "4MiB",
    "--zone",
    "normal=48MiB,reserve=128MiB",
    "--zone",
    "movable=48MiB,kind=movable,reserve=128MiB",
];

/// How long a daemon may take until it serves, on a machine that does much else.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Lines of the log that are shown when something is wrong.
const LOG_LINES: usize = 80;

/// A keeper with its daemon. Both end with it.
pub struct Daemon {
    keeper: Child,
    lines: Receiver<String>,
    log: Vec<String>,
    dir: PathBuf,
}

impl Daemon {
    /// Starts both and waits until clients can attach.
    pub fn start(dir: &Path) -> anyhow::Result<Daemon> {
        let mut keeper = process::again("keeper", &[dir.as_os_str()])?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the keeper")?;
        let stderr = keeper.stderr.take().context("no standard error")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut daemon = Daemon {
            keeper,
            lines,
            log: Vec::new(),
            dir: dir.to_owned(),
        };
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// The process that serves now.
    pub fn pid(&self) -> anyhow::Result<Pid> {
        let end = Instant::now() + READY_DEADLINE;
        loop {
            let lock = std::fs::read_to_string(self.dir.join("hugepoold.lock"));
            // The next one may just be writing its own.
            if let Some(pid) = lock.ok().and_then(|text| text.trim().parse().ok()) {
                return Ok(Pid::from_raw(pid));
            }
            if Instant::now() > end {
                bail!("no daemon has the lock");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the one that serves, and waits for the next; how long that took.
    pub fn kill(&mut self, signal: Signal) -> anyhow::Result<Duration> {
        self.drain();
        let begun = Instant::now();
        kill(self.pid()?, signal).context("cannot kill the daemon")?;
        self.wait_until_ready()?;
        Ok(begun.elapsed())
    }

    /// Stops it where it stands for a while, and kills it then.
    pub fn freeze_and_kill(&mut self, pause: Duration) -> anyhow::Result<Duration> {
        let pid = self.pid()?;
        kill(pid, Signal::SIGSTOP).context("cannot stop the daemon")?;
        thread::sleep(pause);
        self.kill(Signal::SIGKILL)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + READY_DEADLINE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line == "ready" => return Ok(()),
                Ok(line) => self.log.push(line),
                Err(why) => {
                    let what = match why {
                        RecvTimeoutError::Timeout => "the daemon does not get ready",
                        RecvTimeoutError::Disconnected => "the keeper has ended",
                    };
                    bail!("{what}:\n{}", self.last_words());
                }
            }
        }
    }

    fn drain(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.log.push(line);
        }
    }

    /// Errors that the daemons have logged so far, except that they have died.
    pub fn errors(&mut self) -> Vec<String> {
        self.drain();
        let is_error = |line: &&String| {
            (line.contains("ERROR") && !line.contains("started again"))
                || line.contains("panicked")
                || line.contains("sealed")
        };
        self.log.iter().filter(is_error).cloned().collect()
    }

    /// The end of the log.
    pub fn last_words(&mut self) -> String {
        self.drain();
        let nr_before = self.log.len().saturating_sub(LOG_LINES);
        self.log[nr_before..].join("\n")
    }

    /// Ends both, as the service manager would.
    pub fn stop(mut self) -> anyhow::Result<()> {
        process::signal(&self.keeper, Signal::SIGTERM)?;
        let status = wait(&mut self.keeper)?;
        if !status.success() {
            bail!("the keeper ended with {status}:\n{}", self.last_words());
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.keeper.try_wait(), Ok(Some(_))) {
            return;
        }
        let daemon = self.pid();
        // Asked, it takes its daemon along.
        let asked = process::signal(&self.keeper, Signal::SIGTERM);
        if asked.is_err() || wait(&mut self.keeper).is_err() {
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
            if let Ok(pid) = daemon {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        let _ = hugepool::stats::remove_left_over(&self.dir);
    }
}

/// The keeper's role. It ends when the director does, however that ends.
pub fn keeper(runtime_dir: &Path) -> ExitCode {
    if let Err(errno) = nix::sys::prctl::set_pdeathsig(Signal::SIGTERM) {
        eprintln!("hugepool-soak: the daemon would outlive the soak: {errno}");
        return ExitCode::FAILURE;
    }
    telemetry::start("info");
    keeper::run(runtime_dir, &|| {
        let program = std::env::current_exe().unwrap_or_else(|_| "hugepool-soak".into());
        let mut command = Command::new(program);
        command.arg("daemon").arg(runtime_dir);
        command
    })
}

/// The daemon's role.
pub fn daemon(runtime_dir: &Path) -> ExitCode {
    let words = ["hugepoold", "--runtime-dir"].map(OsStr::new).into_iter();
    let words = words.chain([runtime_dir.as_os_str()]);
    let flags = Flags::parse_from(words.chain(MEMORY.iter().map(OsStr::new)));
    match Config::load(&flags, &Surroundings::of_this_process()) {
        Ok(config) => {
            telemetry::start(&config.log);
            exit::status(hugepool_daemon::run(config))
        }
        Err(error) => exit::usage(&error),
    }
}
