//! Processes of the soak's own: started as this program, waited for with a deadline.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::said::Said;

/// How long a process may take to end.
const END_DEADLINE: Duration = Duration::from_secs(60);

/// This program again, in another role.
pub fn again(role: &str, arguments: &[&OsStr]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program has no path")?);
    command.arg(role).args(arguments);
    Ok(command)
}

/// Waits for its end, no longer than the deadline.
pub fn wait(child: &mut Child) -> anyhow::Result<ExitStatus> {
    let end = Instant::now() + END_DEADLINE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > end {
            bail!("process {} does not end", child.id());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal to a child that has not been waited for.
pub fn signal(child: &Child, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    kill(pid, signal).with_context(|| format!("cannot signal process {pid}"))
}

/// What one of the workers said, or none: its output has ended.
pub struct Heard {
    /// Which life of which worker.
    pub life: u64,
    pub said: Option<Said>,
}

/// A worker; killed with this.
pub struct Worker {
    pub life: u64,
    child: Child,
    orders: Option<ChildStdin>,
}

impl Worker {
    /// Starts one. What it says goes to `ears`.
    pub fn start(
        dir: &Path,
        me: usize,
        seed: u64,
        life: u64,
        ears: &Sender<Heard>,
    ) -> anyhow::Result<Worker> {
        let (me, seed) = (me.to_string(), seed.to_string());
        let arguments = [dir.as_os_str(), OsStr::new(&me), OsStr::new(&seed)];
        let mut child = again("worker", &arguments)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let orders = child.stdin.take();
        let stdout = child.stdout.take().context("no standard output")?;
        let ears = ears.clone();
        thread::spawn(move || {
            let lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
            // The last line of one that was killed may be half a one.
            let said = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok());
            for said in said.map(Some).chain([None]) {
                if ears.send(Heard { life, said }).is_err() {
                    return;
                }
            }
        });
        Ok(Worker {
            life,
            child,
            orders,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it what to do next. One that has died is found out by its output.
    pub fn tell(&mut self, order: &str) {
        if let Some(orders) = &mut self.orders {
            let _ = std::io::Write::write_all(orders, format!("{order}\n").as_bytes());
        }
    }

    /// Kills it; it is dead then.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        wait(&mut self.child)?;
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, what: Signal) -> anyhow::Result<()> {
        signal(&self.child, what)
    }

    /// Lets it end of itself.
    pub fn end(mut self) -> anyhow::Result<ExitStatus> {
        drop(self.orders.take());
        wait(&mut self.child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
