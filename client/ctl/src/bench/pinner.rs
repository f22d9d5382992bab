//! A client with movable pages that it never lets rest: it pins, reads and writes them as fast as
//! it can, and keeps how long each pin took. Or, after `rest` and until `work`, a few of them every
//! millisecond, as a client with little to do.
//!
//! Spoken to a line at a time: `begin` makes it forget what it has measured, `tell` makes it say
//! what it has, `scatter` makes it take as many pages again and let half of all go, drawn by lot, so
//! that what it keeps lies all over the zone; the end of its input makes it look at every byte and
//! end.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use hugepool::{Client, MovablePage, Options};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use crate::outcome::{Failure, Outcome};

/// A bucket of the histogram covers a sixteenth of a power of two of nanoseconds.
const SUB_BUCKETS: u32 = 16;
const NR_BUCKETS: usize = 64 * SUB_BUCKETS as usize;

/// Pins between two looks at what it is told, at work and at rest.
const BURST: u32 = 256;
const BURST_AT_REST: u32 = 16;
/// What passes between two bursts at rest.
const REST: Duration = Duration::from_millis(1);

/// How long pins took.
struct Pins {
    buckets: Vec<u64>,
    nr: u64,
    max_ns: u64,
}

impl Pins {
    fn new() -> Pins {
        Pins {
            buckets: vec![0; NR_BUCKETS],
            nr: 0,
            max_ns: 0,
        }
    }

    fn note(&mut self, ns: u64) {
        let log = ns.max(1).ilog2();
        let sub = if log >= 4 {
            ns >> (log - 4)
        } else {
            ns << (4 - log)
        };
        let bucket = u64::from(log * SUB_BUCKETS) + (sub & 15);
        if let Some(count) = usize::try_from(bucket)
            .ok()
            .and_then(|bucket| self.buckets.get_mut(bucket))
        {
            *count += 1;
        }
        self.nr += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The time that all but one in `one_in` stayed below.
    fn quantile_ns(&self, one_in: u64) -> u64 {
        let mut left = self.nr / one_in;
        for (bucket, count) in self.buckets.iter().enumerate().rev() {
            if *count > left {
                let (log, sub) = (bucket / 16, bucket % 16);
                let base = 1_u64 << log;
                return base + (base * (sub as u64 + 1)) / 16;
            }
            left -= count;
        }
        0
    }
}

/// The pinner's side.
pub fn pin(nr_pages: usize, runtime_dir: Option<&Path>) -> Result<Outcome, Failure> {
    let mut options = Options::default().name("pinner");
    if let Some(dir) = runtime_dir {
        options = options.runtime_dir(dir);
    }
    let client = Client::attach(options).map_err(|error| refuse(&error))?;
    let seed = u64::from(std::process::id()) << 32;
    let mut pages: Pages = Vec::with_capacity(nr_pages);
    take(&client, nr_pages, seed, &mut pages)?;
    writeln!(io::stdout(), "holding {}", pages.len())?;
    let (sender, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            // Nobody listens any more once this process ends.
            let _ = sender.send(line);
        }
    });
    let mut pins = Pins::new();
    let mut random = seed | 1;
    let mut is_at_rest = false;
    loop {
        let line = told.recv_timeout(if is_at_rest { REST } else { Duration::ZERO });
        match line {
            Ok(line) if line == "begin" => pins = Pins::new(),
            Ok(line) if line == "rest" || line == "work" => is_at_rest = line == "rest",
            Ok(line) if line == "scatter" => {
                take(&client, 2 * nr_pages, seed, &mut pages)?;
                while pages.len() > nr_pages {
                    let at = draw(&mut random) % pages.len();
                    pages.swap_remove(at);
                }
                writeln!(io::stdout(), "scattered")?;
            }
            Ok(_) => {
                let (nr, max) = (pins.nr, pins.max_ns);
                writeln!(io::stdout(), "{nr} {} {max}", pins.quantile_ns(1000))?;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        for _ in 0..if is_at_rest { BURST_AT_REST } else { BURST } {
            let at = draw(&mut random) % pages.len();
            let Some((page, mark)) = pages.get_mut(at) else {
                continue;
            };
            let begun = Instant::now();
            let mut bytes = page.pin_mut().map_err(|error| refuse(&error))?;
            let took = begun.elapsed();
            pins.note(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            look(&bytes, *mark)?;
            if random.is_multiple_of(16) {
                *mark = mark.wrapping_add(1 << 20);
                write_all(&mut bytes, *mark);
            }
        }
    }
    for (page, mark) in &pages {
        let bytes = page.pin().map_err(|error| refuse(&error))?;
        let wrong = bytes.chunks_exact(8).any(|word| word != mark.to_le_bytes());
        if wrong {
            return Err(Failure::refused("a page has changed", "this is a defect"));
        }
    }
    writeln!(io::stdout(), "well")?;
    Ok(Outcome::Done)
}

/// Pages, each with the mark that it is full of.
type Pages = Vec<(MovablePage, u64)>;

fn refuse(what: &dyn std::fmt::Display) -> Failure {
    Failure::refused(what, "see 'hugepoolctl status'")
}

/// Takes pages until there are so many, and fills each with a mark.
fn take(client: &Client, nr_pages: usize, seed: u64, pages: &mut Pages) -> Result<(), Failure> {
    while pages.len() < nr_pages {
        let mut more = Vec::new();
        let missing = nr_pages - pages.len();
        let bulk = client.request().alloc_movable_bulk(missing, &mut more);
        if let Some(why) = bulk.shortfall.filter(|_| bulk.populated == 0) {
            return Err(refuse(&why));
        }
        for mut page in more {
            let mark = seed | pages.len() as u64;
            write_all(&mut page.pin_mut().map_err(|error| refuse(&error))?, mark);
            pages.push((page, mark));
        }
    }
    Ok(())
}

fn draw(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    usize::try_from(*random >> 16).unwrap_or(0)
}

fn write_all(bytes: &mut [u8], mark: u64) {
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&mark.to_le_bytes());
    }
}

/// The first and the last word; all of them are looked at at the end.
fn look(bytes: &[u8], mark: u64) -> Result<(), Failure> {
    let mark = mark.to_le_bytes();
    if bytes.starts_with(&mark) && bytes.ends_with(&mark) {
        Ok(())
    } else {
        Err(Failure::refused("a page has changed", "this is a defect"))
    }
}

/// What a pinner has measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Pins.
    pub nr_pins: u64,
    /// The time that all but a thousandth of them stayed below.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// A running pinner.
#[derive(Debug)]
pub struct Pinner {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Pinner {
    /// Starts one, and waits until it holds `nr_pages`.
    pub fn start(nr_pages: u64, runtime_dir: Option<&Path>) -> Result<Pinner, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(dir) = runtime_dir {
            command.arg("--runtime-dir").arg(dir);
        }
        command.args(["bench-pinner", &nr_pages.to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(Failure::refused("a pinner says nothing", "try again"));
        };
        let mut pinner = Pinner {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        };
        let said = pinner.line()?;
        if said == format!("holding {nr_pages}") {
            Ok(pinner)
        } else {
            let what = format!("a pinner did not get its {nr_pages} pages");
            Err(Failure::refused(what, "see what it says above"))
        }
    }

    /// Makes it forget what it has measured.
    pub fn begin(&mut self) -> Result<(), Failure> {
        self.tell("begin")
    }

    /// Lets it work without a rest, or a little now and then.
    pub fn rest(&mut self, is_at_rest: bool) -> Result<(), Failure> {
        self.tell(if is_at_rest { "rest" } else { "work" })
    }

    /// Has its pages lie all over the zone.
    pub fn scatter(&mut self) -> Result<(), Failure> {
        self.tell("scatter")?;
        let said = self.line()?;
        if said == "scattered" {
            Ok(())
        } else {
            let what = format!("a pinner said {said:?}");
            Err(Failure::refused(what, "see what it says above"))
        }
    }

    /// What it has measured since.
    pub fn measured(&mut self) -> Result<Measured, Failure> {
        self.tell("tell")?;
        let said = self.line()?;
        let numbers: Vec<u64> = said
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [nr_pins, p999_ns, max_ns] = numbers[..] else {
            let what = format!("a pinner said {said:?}");
            return Err(Failure::refused(what, "see what it says above"));
        };
        let micros = |ns: u64| std::time::Duration::from_nanos(ns).as_secs_f64() * 1e6;
        Ok(Measured {
            nr_pins,
            p999_us: micros(p999_ns),
            max_us: micros(max_ns),
        })
    }

    /// Stops it where it stands.
    pub fn stop(&self) -> Result<(), Failure> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on after [`stop`](Self::stop).
    pub fn go_on(&self) -> Result<(), Failure> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = i32::try_from(self.child.id()).map(Pid::from_raw);
        let pid = pid.map_err(io::Error::other)?;
        signal::kill(pid, signal).map_err(io::Error::from)?;
        Ok(())
    }

    /// Lets it look at every byte and end.
    pub fn end(mut self) -> Result<(), Failure> {
        drop(self.stdin.take());
        let said = self.line()?;
        let status = self.child.wait()?;
        if said == "well" && status.success() {
            Ok(())
        } else {
            let what = format!("a pinner ended with {status}");
            Err(Failure::refused(what, "see what it says above"))
        }
    }

    fn tell(&mut self, what: &str) -> Result<(), Failure> {
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "{what}")?;
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Pinner {
    fn drop(&mut self) {
        // Reaped whatever happened; one that has ended cannot be killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_within_a_sixteenth() {
        let mut pins = Pins::new();
        (0..9_990).for_each(|_| pins.note(100));
        (0..10).for_each(|_| pins.note(50_000));
        let p999 = pins.quantile_ns(1000);
        assert!((100..=107).contains(&p999), "{p999}");
        let p9999 = pins.quantile_ns(10_000);
        assert!((50_000..=53_200).contains(&p9999), "{p9999}");
        assert_eq!(pins.max_ns, 50_000);
        assert_eq!(Pins::new().quantile_ns(1000), 0);
    }
}
