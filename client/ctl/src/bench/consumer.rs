//! The other process of `bench pipeline`: receives parcels, looks at them, and gives them back or
//! frees them.
//!
//! Spoken to a line at a time: what to do, whether to touch, how many; it says `go` and, at the end,
//! `done`. The end of its input ends it.

use std::{
    io::{self, BufRead as _, BufReader, Lines, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use hugepool::{Options, channel};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::pipeline::{PATIENCE, SPINS, cannot};
use crate::outcome::{Failure, Outcome};

/// The consumer's side.
pub fn consume(there: &str, home: &str, runtime_dir: Option<&Path>) -> Result<Outcome, Failure> {
    let client = super::attach(runtime_dir, Options::default())?;
    let there = there.parse().map_err(cannot)?;
    let mut receiver = channel::join_receiver(&client, there).map_err(cannot)?;
    let mut sender =
        channel::join_sender(&client, home.parse().map_err(cannot)?).map_err(cannot)?;
    receiver.set_spins(SPINS);
    sender.set_spins(SPINS);
    tie_to(1);
    let mut sum = 0_u64;
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let [what, touch, nr_parcels] = words.as_slice() else {
            return Err(Failure::usage(line, "this is the bench's own fault"));
        };
        let (gives, touches) = (*what == "give", *touch == "true");
        let nr_parcels: u32 = nr_parcels.parse().map_err(cannot)?;
        writeln!(io::stdout(), "go")?;
        for _ in 0..nr_parcels {
            if *what == "share" {
                let ticket = receiver.recv(PATIENCE).map_err(cannot)?;
                let page = client.claim_shared(ticket).map_err(cannot)?;
                sum = sum.wrapping_add(page[0].into());
                continue;
            }
            let parcel = receiver.recv_parcel(PATIENCE).map_err(cannot)?;
            if touches {
                for page in parcel.iter() {
                    sum = sum.wrapping_add(page[0].into());
                }
            }
            if gives {
                let back = parcel.give_back().map_err(|(why, _)| cannot(why))?;
                sender.send(back, PATIENCE).map_err(cannot)?;
            }
        }
        writeln!(io::stdout(), "done {}", std::hint::black_box(sum))?;
    }
    Ok(Outcome::Done)
}

/// Keeps this process on one processor, where there is more than one.
pub fn tie_to(cpu: usize) {
    let nr_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    if nr_cores > 1 && set.set(cpu).is_ok() {
        // Refused where the machine keeps that processor from us: then it runs where it may.
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// A running consumer.
#[derive(Debug)]
pub struct Consumer {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Consumer {
    /// Starts one that joins these channels.
    pub fn start(there: &str, home: &str, runtime_dir: Option<&Path>) -> Result<Consumer, Failure> {
        let tool = std::env::current_exe()?;
        let mut command = Command::new(tool);
        if let Some(dir) = runtime_dir {
            command.arg("--runtime-dir").arg(dir);
        }
        let mut child = command
            .args(["bench-consumer", there, home])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot("the consumer has no pipes"));
        };
        Ok(Consumer {
            child,
            stdin,
            stdout: BufReader::new(stdout).lines(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it what to do with the next parcels, and waits until it looks for them.
    pub fn begin(&mut self, what: &str, touch: bool, nr_parcels: u32) -> Result<(), Failure> {
        writeln!(self.stdin, "{what} {touch} {nr_parcels}")?;
        self.expect("go")
    }

    /// Waits until it has had them all.
    pub fn finished(&mut self) -> Result<(), Failure> {
        self.expect("done")
    }

    fn expect(&mut self, word: &str) -> Result<(), Failure> {
        match self.stdout.next() {
            Some(Ok(line)) if line.starts_with(word) => Ok(()),
            other => Err(cannot(format_args!("the consumer says {other:?}"))),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Reaped whatever happened.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
