//! Kills by chance, and calls to account.
//!
//! Nothing here waits without an end: a worker that says nothing, a daemon that does not come back,
//! pages that do not come home are findings, and the soak ends with them.

use std::{
    path::Path,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::sys::signal::Signal;

use crate::{
    admin::Admin,
    chance::Chance,
    daemon::Daemon,
    hotplug::Hotplug,
    links::NR_WORKERS,
    process::{Heard, Worker},
    said::{Kind, Said},
    tally::Tally,
};

/// How long all work between two callings to account.
const FLIGHT: Duration = Duration::from_secs(15);

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(90);

/// Daemons that may die so close together; one more would be taken for one that cannot recover.
const ROW: usize = 3;
const ROW_TIME: Duration = Duration::from_secs(11);

/// Runs it; whether all was well.
pub fn run(duration: Duration, seed: u64) -> anyhow::Result<bool> {
    println!("soak: seed {seed}");
    let folder = tempfile::Builder::new()
        .prefix("hugepool-soak-")
        .tempdir()
        .context("no folder")?;
    let dir = folder.path().join("run");
    let mut soak = Soak::start(&dir, seed)?;
    let end = Instant::now() + duration;
    let outcome = soak.go_on_until(end);
    if let Err(error) = &outcome {
        soak.tally.wrong(Kind::Strange, 1, &format!("{error:#}"));
    }
    let Soak {
        tally,
        mut daemon,
        workers,
        ..
    } = soak;
    let is_well = tally.is_well();
    if !is_well {
        println!("soak: the daemons said last:\n{}", daemon.last_words());
    }
    drop(workers);
    if is_well {
        daemon.stop()?;
    }
    println!("{tally}");
    Ok(is_well)
}

struct Soak<'d> {
    dir: &'d Path,
    chance: Chance,
    daemon: Daemon,
    admin: Admin,
    workers: Vec<Worker>,
    nr_lives: u64,
    ears: Sender<Heard>,
    heard: Receiver<Heard>,
    last_beat: Vec<Instant>,
    readies: Vec<Instant>,
    tally: Tally,
}

/// When what happens next.
struct Agenda {
    daemon: Instant,
    worker: Instant,
    stop: Instant,
}

impl<'d> Soak<'d> {
    fn start(dir: &'d Path, seed: u64) -> anyhow::Result<Soak<'d>> {
        let daemon = Daemon::start(dir)?;
        let admin = Admin::new(dir)?;
        let (ears, heard) = mpsc::channel();
        let mut soak = Soak {
            dir,
            chance: Chance::new(seed),
            daemon,
            admin,
            workers: Vec::new(),
            nr_lives: 0,
            ears,
            heard,
            last_beat: vec![Instant::now(); NR_WORKERS],
            readies: Vec::new(),
            tally: Tally::default(),
        };
        for me in 0..NR_WORKERS {
            let worker = soak.spawn(me)?;
            soak.workers.push(worker);
        }
        Ok(soak)
    }

    fn spawn(&mut self, me: usize) -> anyhow::Result<Worker> {
        self.nr_lives += 1;
        self.last_beat[me] = Instant::now();
        let seed = self.chance.seed();
        Worker::start(self.dir, me, seed, self.nr_lives, &self.ears)
    }

    fn go_on_until(&mut self, end: Instant) -> anyhow::Result<()> {
        while Instant::now() < end {
            self.fly((Instant::now() + FLIGHT).min(end))?;
            self.land()?;
            if !self.tally.is_well() {
                return Ok(());
            }
        }
        for worker in std::mem::take(&mut self.workers) {
            let status = worker.end()?;
            if !status.success() {
                bail!("a worker ended with {status}");
            }
        }
        self.until_home()
    }

    /// All work, and are killed by chance.
    fn fly(&mut self, end: Instant) -> anyhow::Result<()> {
        let hotplug = Hotplug::start(self.dir, self.chance.seed())?;
        let now = Instant::now();
        let mut next = Agenda {
            daemon: now + self.chance.between(ms(500), ms(4000)),
            worker: now + self.chance.between(ms(50), ms(400)),
            stop: now + self.chance.between(ms(100), ms(3000)),
        };
        while Instant::now() < end {
            let first = next.daemon.min(next.worker).min(next.stop).min(end);
            self.listen(first)?;
            let now = Instant::now();
            if now >= next.daemon && now < end {
                self.kill_daemon()?;
                next.daemon = Instant::now() + self.chance.between(ms(1500), ms(4500));
            }
            if now >= next.worker {
                self.kill_worker()?;
                next.worker = Instant::now() + self.chance.between(ms(20), ms(500));
            }
            if now >= next.stop {
                self.stop_worker()?;
                next.stop = Instant::now() + self.chance.between(ms(500), ms(4000));
            }
        }
        let counts = hotplug.stop()?;
        self.tally.added += counts.added;
        self.tally.removed += counts.removed;
        self.tally.moved_for_sections += counts.moved;
        Ok(())
    }

    /// Kills the daemon, unless so many have died lately that the next would not go on.
    fn kill_daemon(&mut self) -> anyhow::Result<()> {
        let oldest = self.readies.iter().rev().nth(ROW - 1);
        if oldest.is_some_and(|ready| ready.elapsed() < ROW_TIME) {
            return Ok(());
        }
        let took = match self.chance.below(8) {
            0 => self.daemon.kill(Signal::SIGABRT)?,
            1 => self.daemon.kill(Signal::SIGSEGV)?,
            2 => {
                let pause = self.chance.between(ms(1), ms(300));
                self.daemon.freeze_and_kill(pause)?
            }
            _ => self.daemon.kill(Signal::SIGKILL)?,
        };
        self.readies.push(Instant::now());
        self.tally.restarts += 1;
        self.tally.slowest_restart = self.tally.slowest_restart.max(took);
        Ok(())
    }

    fn kill_worker(&mut self) -> anyhow::Result<()> {
        let me = self.chance.index(NR_WORKERS);
        // The next one comes while the last one is being buried.
        let next = self.spawn(me)?;
        std::mem::replace(&mut self.workers[me], next).kill()?;
        self.tally.kills += 1;
        Ok(())
    }

    /// One stands still in the middle of whatever it does; the others go on.
    fn stop_worker(&mut self) -> anyhow::Result<()> {
        let me = self.chance.index(NR_WORKERS);
        let pause = self.chance.between(ms(1), ms(300));
        self.workers[me].signal(Signal::SIGSTOP)?;
        self.listen(Instant::now() + pause)?;
        self.workers[me].signal(Signal::SIGCONT)?;
        self.tally.stops += 1;
        Ok(())
    }

    /// Takes in what is said until then.
    fn listen(&mut self, until: Instant) -> anyhow::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(heard) => drop(self.take_in(heard)?),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => bail!("nobody can be heard"),
            }
        }
        match self
            .last_beat
            .iter()
            .position(|beat| beat.elapsed() > PATIENCE)
        {
            Some(me) => bail!("worker {me}, process {}, hangs", self.workers[me].pid()),
            None => Ok(()),
        }
    }

    /// Counts it; what is left to be dealt with, and by which worker it was said.
    fn take_in(&mut self, heard: Heard) -> anyhow::Result<Option<(usize, Said)>> {
        let life = heard.life;
        let me = self.workers.iter().position(|worker| worker.life == life);
        match heard.said {
            Some(Said::Wrong(kind, text)) => self.tally.wrong(kind, 1, &text),
            Some(Said::Done(done)) => self.tally.done.add(&done),
            None if me.is_some() => bail!("a worker has ended of itself"),
            None => return Ok(None),
            Some(said) => {
                if let Some(me) = me {
                    self.last_beat[me] = Instant::now();
                    return Ok(Some((me, said)));
                }
            }
        }
        if let Some(me) = me {
            self.last_beat[me] = Instant::now();
        }
        Ok(None)
    }

    /// Tells all to do something, and waits until each has said what `is_it` knows.
    fn all(&mut self, order: &str, mut is_it: impl FnMut(&Said) -> bool) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            worker.tell(order);
        }
        let end = Instant::now() + PATIENCE;
        let mut has_said = [false; NR_WORKERS];
        while has_said.contains(&false) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(heard) = self.heard.recv_timeout(left) else {
                let late = has_said.iter().position(|said| !said).unwrap_or(0);
                let pid = self.workers[late].pid();
                bail!("worker {late}, process {pid}, does not answer to `{order}`");
            };
            if let Some((me, said)) = self.take_in(heard)? {
                has_said[me] |= is_it(&said);
            }
        }
        Ok(())
    }

    /// All stand still, show what they have, let go of it, and the books are to be even.
    fn land(&mut self) -> anyhow::Result<()> {
        // The last connection may have been to a daemon that is dead.
        self.admin = Admin::new(self.dir)?;
        let mut blocks: Vec<(u32, u32)> = Vec::new();
        self.all("halt", |said| match said {
            Said::Has(some) => {
                blocks.extend(some);
                true
            }
            _ => false,
        })?;
        let nr_held = self.count(blocks);
        let lent = self.even()?;
        if lent < nr_held {
            let what = format!("{nr_held} pages are held, and {lent} are lent");
            self.tally.wrong(Kind::Doubled, nr_held - lent, &what);
        }
        self.all("rest", |said| matches!(said, Said::Rested))?;
        self.all("back", |said| matches!(said, Said::Landed))?;
        self.until_home()?;
        for error in self.daemon.errors() {
            self.tally.wrong(Kind::Strange, 1, &error);
        }
        self.tally.landings += 1;
        for worker in &mut self.workers {
            worker.tell("go");
        }
        Ok(())
    }

    /// How many pages there are in these blocks; those that are there twice are found.
    fn count(&mut self, mut blocks: Vec<(u32, u32)>) -> u64 {
        blocks.sort_unstable();
        for pair in blocks.windows(2) {
            let ((first, nr), (next, _)) = (pair[0], pair[1]);
            if first + nr > next {
                let what = format!("page {next} is with two clients");
                self.tally.wrong(Kind::Doubled, 1, &what);
            }
        }
        blocks.iter().map(|&(_, nr)| u64::from(nr)).sum()
    }

    /// The equations add up, and no client is taken for a liar; pages that are lent.
    fn even(&mut self) -> anyhow::Result<u64> {
        let verify = self.admin.verify()?;
        for finding in &verify.findings {
            self.tally.wrong(Kind::Strange, 1, finding);
        }
        let nr_misuses = self.admin.status()?.nr_misuses;
        if nr_misuses > 0 {
            let what = format!("{nr_misuses} claims of honest clients were refused");
            self.tally.wrong(Kind::Strange, nr_misuses, &what);
        }
        let pages = verify.pages.context("no counts")?;
        let is_even = pages.present == pages.managed + pages.reserved
            && pages.managed == pages.free + pages.pcp + pages.lent + pages.isolated;
        if !is_even {
            self.tally.wrong(Kind::Lost, 1, &format!("{pages:?}"));
        }
        Ok(pages.lent)
    }

    /// Waits until nothing is lent and the dead are buried; what stays away is lost.
    fn until_home(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.admin.drain()?;
            let lent = self.even()?;
            let mut pids: Vec<u32> = self.workers.iter().map(Worker::pid).collect();
            let clients = self.admin.clients()?;
            pids.retain(|pid| !clients.iter().any(|client| client.pid == *pid));
            let is_settled = clients.len() == self.workers.len() && pids.is_empty();
            if lent == 0 && is_settled {
                return self.sections_are_there();
            }
            if Instant::now() > end || !self.tally.is_well() {
                let names: Vec<_> = clients
                    .iter()
                    .map(|c| (c.pid, &c.state, c.lent, c.held))
                    .collect();
                let what =
                    format!("{lent} pages are with nobody; attached: {names:?}, not: {pids:?}");
                self.tally.wrong(Kind::Lost, lent.max(1), &what);
                return Ok(());
            }
            self.listen(Instant::now() + ms(5))?;
        }
    }

    /// Every section that is there counts, and none is stuck half way.
    fn sections_are_there(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut sections = self.admin.sections("normal")?;
            sections.extend(self.admin.sections("movable")?);
            let present = self.admin.verify()?.pages.context("no counts")?.present;
            let is_still = |state: &str| matches!(state, "online" | "offline");
            let moving = sections.iter().find(|section| !is_still(&section.state));
            let there: u64 = sections.iter().map(|section| section.nr_pages).sum();
            if moving.is_none() && there == present {
                return Ok(());
            }
            if Instant::now() > end {
                let what =
                    format!("sections have {there} pages, {present} are present; {moving:?}");
                self.tally
                    .wrong(Kind::Lost, there.abs_diff(present).max(1), &what);
                return Ok(());
            }
            self.listen(Instant::now() + ms(5))?;
        }
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
