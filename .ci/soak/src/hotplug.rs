//! Sections that come and go on a thread of their own, so that daemons die in the middle of it.

use std::{
    path::Path,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context as _;
use hugepool_proto::v1::SectionResult;

use crate::{admin::Admin, chance::Chance};

/// Sections of a zone, at least and at most.
const FEWEST: usize = 8;
const MOST: usize = 20;

/// Pauses between two verbs.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(120);

/// How long the thread may take to stand still.
const REST_DEADLINE: Duration = Duration::from_secs(90);

/// What was done, as far as a daemon lived to say so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub added: u64,
    pub removed: u64,
    pub moved: u64,
}

/// The thread. Dropped, it ends at its next look.
pub struct Hotplug {
    rests: Option<Sender<Sender<Counts>>>,
    thread: Option<JoinHandle<()>>,
}

impl Hotplug {
    /// Lets sections come and go from now on.
    pub fn start(dir: &Path, seed: u64) -> anyhow::Result<Hotplug> {
        let mut admin = Admin::new(dir)?;
        let (rests, orders) = mpsc::channel();
        let thread = thread::spawn(move || work(&mut admin, &mut Chance::new(seed), &orders));
        Ok(Hotplug {
            rests: Some(rests),
            thread: Some(thread),
        })
    }

    /// Lets the verb that is under way end; tells what was done in all.
    pub fn stop(mut self) -> anyhow::Result<Counts> {
        let (answer, counts) = mpsc::channel();
        let rests = self.rests.take().context("has no orders")?;
        rests.send(answer).ok().context("the thread has ended")?;
        let counts = counts.recv_timeout(REST_DEADLINE);
        let counts = counts.context("a verb for sections does not end")?;
        if let Some(thread) = self.thread.take() {
            thread.join().ok().context("the thread has panicked")?;
        }
        Ok(counts)
    }
}

fn work(admin: &mut Admin, chance: &mut Chance, orders: &Receiver<Sender<Counts>>) {
    let mut counts = Counts::default();
    loop {
        match orders.recv_timeout(chance.between(SHORTEST, LONGEST)) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(answer) => {
                let _ = answer.send(counts);
                return;
            }
        }
        // A daemon that dies meanwhile answers nothing; what it had begun is for the next.
        let _ = one(admin, chance, &mut counts);
    }
}

fn one(admin: &mut Admin, chance: &mut Chance, counts: &mut Counts) -> anyhow::Result<()> {
    let nr_ok = |results: &[SectionResult]| results.iter().filter(|one| one.ok).count() as u64;
    let zone = ["normal", "movable"][chance.index(2)];
    if chance.below(12) == 0 {
        return admin.compact();
    }
    let sections = admin.sections(zone)?;
    let is_full = sections.len() >= MOST;
    if sections.len() <= FEWEST || (!is_full && chance.below(2) == 0) {
        counts.added += nr_ok(&admin.add(zone)?);
        return Ok(());
    }
    let section = &sections[chance.index(sections.len())];
    if section.state != "offline" {
        let results = admin.offline(section.id)?;
        counts.moved += results.iter().map(|one| one.moved).sum::<u64>();
        if nr_ok(&results) == 0 {
            return Ok(());
        }
    }
    counts.removed += nr_ok(&admin.remove(section.id)?);
    Ok(())
}
