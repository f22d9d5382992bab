//! A daemon of the bench's own: started in a folder of its own, stopped at the end.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::{self, Pid},
};

use crate::{
    outcome::{Failure, Outcome},
    program,
};

/// How long it may take to be ready: populating memory takes a while.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Becomes the daemon of the bench that has started this process. A bench that is killed cannot stop
/// it, so the system is told to; what is told outlives the change of program.
pub fn become_it(bench: u32, arguments: &[OsString]) -> Result<Outcome, Failure> {
    let refuse = |what: String| Failure::refused(what, "build hugepoold beside this tool");
    prctl::set_pdeathsig(Signal::SIGTERM)
        .map_err(|errno| refuse(format!("the daemon would outlive its bench: {errno}")))?;
    if i64::from(unistd::getppid().as_raw()) != i64::from(bench) {
        return Err(refuse("the bench has ended already".to_owned()));
    }
    let error = Command::new(program::of_daemon()).args(arguments).exec();
    Err(refuse(format!(
        "cannot start a hugepoold of its own: {error}"
    )))
}

/// A running daemon; killed when dropped without having been stopped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    dir: PathBuf,
    is_stopped: bool,
    lines: Receiver<(Instant, String)>,
}

impl Daemon {
    /// Starts one with these zones, and sections of this size if one is given, and waits until
    /// clients can attach.
    pub fn start(zones: &[&str], section_size: Option<&str>) -> Result<Daemon, Failure> {
        Daemon::start_with(zones, section_size, &[])
    }

    /// The same with a daemon that looks for work so many microseconds before it sleeps.
    pub fn start_spinning(
        zones: &[&str],
        section_size: Option<&str>,
        spin_us: Option<u32>,
    ) -> Result<Daemon, Failure> {
        let us = spin_us.map(|us| us.to_string());
        let flags: Vec<&str> = us.iter().flat_map(|us| ["--spin-us", us]).collect();
        Daemon::start_with(zones, section_size, &flags)
    }

    /// The same, with these flags too.
    pub fn start_with(
        zones: &[&str],
        section_size: Option<&str>,
        flags: &[&str],
    ) -> Result<Daemon, Failure> {
        let name = format!("hugepool-bench-{}", std::process::id());
        let name = section_size.map_or(name.clone(), |size| format!("{name}-{size}"));
        let dir = env::temp_dir().join(name);
        let refuse = |error: io::Error| {
            let what = format!("cannot start a hugepoold of its own: {error}");
            Failure::refused(
                what,
                "build it beside this tool, or name a running one with --runtime-dir",
            )
        };
        fs::create_dir_all(&dir).map_err(refuse)?;
        let own = env::current_exe().map_err(refuse)?;
        let mut command = Command::new(own);
        let bench = std::process::id().to_string();
        // What follows is the daemon's, whatever this tool calls so too.
        command.args(["bench-daemon", &bench, "--", "--runtime-dir"]);
        command.arg(&dir).args(flags);
        for zone in zones {
            command.args(["--zone", zone]);
        }
        if let Some(size) = section_size {
            command.args(["--section-size", size]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(refuse)?;
        let log = child.stderr.take();
        // The log is read to its end, so that the daemon never waits for a reader.
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = log
                .into_iter()
                .flat_map(|log| BufReader::new(log).lines())
                .map_while(Result::ok);
            for line in lines {
                // Who does not listen any more is not told.
                let _ = sender.send((Instant::now(), line));
            }
        });
        let daemon = Daemon {
            child,
            dir,
            is_stopped: false,
            lines,
        };
        daemon.wait_for("ready").map(|_| daemon)
    }

    /// Waits for a line that is these words or has them as words of their own; says when it came.
    pub fn wait_for(&self, words: &str) -> Result<Instant, Failure> {
        let end = Instant::now() + START_TIMEOUT;
        let mut last = String::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                // "already" is another word.
                Ok((at, line)) if line.trim() == words || line.contains(&format!(" {words} ")) => {
                    return Ok(at);
                }
                Ok((_, line)) if line.trim().is_empty() => {}
                Ok((_, line)) => last = line,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::refused(
                        format_args!("hugepoold ended: {last}"),
                        "see what it says",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::refused(
                        "hugepoold did not get ready",
                        "see whether memory is free",
                    ));
                }
            }
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its sockets are.
    pub fn runtime_dir(&self) -> &Path {
        &self.dir
    }

    /// Stops it, as the service manager would.
    pub fn stop(mut self) -> Result<(), Failure> {
        let pid = i32::try_from(self.child.id()).map(Pid::from_raw);
        let asked = pid.is_ok_and(|pid| kill(pid, Signal::SIGTERM).is_ok());
        let ended = asked.then(|| self.child.wait());
        self.is_stopped = matches!(ended, Some(Ok(_)));
        match ended {
            Some(Ok(status)) if status.success() => Ok(()),
            other => {
                let what = format!("hugepoold did not stop cleanly: {other:?}");
                Err(Failure::refused(what, "see its log"))
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.is_stopped {
            // On the way out of a failure: what cannot be cleaned up is reported by that failure.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
