//! A client to be killed: takes pages, says so, and holds them until its standard input ends.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use hugepool::{Client, Options, Page};

use crate::outcome::{Failure, Outcome};

/// The victim's side.
pub fn hold(nr_pages: usize, runtime_dir: Option<&Path>) -> Result<Outcome, Failure> {
    let mut options = Options::default().name("victim").deadline(super::PATIENCE);
    if let Some(dir) = runtime_dir {
        options = options.runtime_dir(dir);
    }
    let refuse = |what: &dyn std::fmt::Display| Failure::refused(what, "see 'hugepoolctl status'");
    let client = Client::attach(options).map_err(|error| refuse(&error))?;
    let mut pages: Vec<Page> = Vec::with_capacity(nr_pages);
    while pages.len() < nr_pages {
        let bulk = client.alloc_pages_bulk_list(nr_pages - pages.len(), &mut pages);
        if let Some(why) = bulk.shortfall.filter(|_| pages.len() < nr_pages) {
            return Err(refuse(&why));
        }
    }
    // Touched: a page that was never written is cheaper to take home than a real one.
    for page in &mut pages {
        page[0] = 1;
    }
    writeln!(io::stdout(), "holding {}", pages.len())?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(Outcome::Done)
}

/// A running victim that holds its pages.
#[derive(Debug)]
pub struct Victim(Child);

impl Victim {
    /// Starts one, and waits until it holds `nr_pages`.
    pub fn start(nr_pages: u64, runtime_dir: Option<&Path>) -> Result<Victim, Failure> {
        let cannot = |error: io::Error| {
            Failure::refused(format_args!("cannot start a victim: {error}"), "try again")
        };
        let tool = std::env::current_exe().map_err(cannot)?;
        let mut command = Command::new(tool);
        if let Some(dir) = runtime_dir {
            command.arg("--runtime-dir").arg(dir);
        }
        command.args(["bench-victim", &nr_pages.to_string()]);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let mut victim = Victim(child);
        let mut line = String::new();
        if let Some(stdout) = victim.0.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(cannot)?;
        }
        if line.trim() == format!("holding {nr_pages}") {
            Ok(victim)
        } else {
            let what = format!("the victim did not get its {nr_pages} pages");
            Err(Failure::refused(what, "see what it says above"))
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Stops it where it stands: it answers nothing from now on.
    pub fn stop(&self) -> Result<(), Failure> {
        let pid = i32::try_from(self.0.id()).map(Pid::from_raw);
        let pid = pid.map_err(io::Error::other)?;
        signal::kill(pid, Signal::SIGSTOP).map_err(io::Error::from)?;
        Ok(())
    }

    /// Kills it with SIGKILL and waits until it is dead.
    pub fn kill_and_wait(&mut self) -> Result<(), Failure> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Reaped whatever happened; one that is dead already cannot be killed again.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
