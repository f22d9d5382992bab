//! Slow work that the engine asks for: populating, punching and moving, on threads of their own.
//!
//! The engine is told the result under its lock, as any other call; a section whose memory could not
//! be had is undone by it. Jobs are as many as sections in running operations, so the queue is
//! bounded by what the engine lets run. Moves have threads to themselves, since populating may take
//! seconds; an operation has two batches of them at a time, so that one is copied while the other
//! is settled.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use hugepool_engine::MoveBatch;
use hugepool_mm::{SectionId, ZoneId};

use crate::shared::{Shared, lock};

/// Threads: populating two zones side by side gains, one zone twice does not.
const NR_WORKERS: usize = 2;
/// Threads that copy.
const NR_MOVERS: usize = 2;

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Take memory for a section.
    Populate(ZoneId, SectionId),
    /// Give a section's memory back.
    Punch(ZoneId, SectionId),
    /// The thread may end.
    Stop,
}

/// Where jobs are put.
#[derive(Debug)]
pub struct Effects {
    sender: Sender<Job>,
    /// `None`: the thread may end.
    moves: Sender<Option<MoveBatch>>,
}

/// Where they are taken from.
#[derive(Debug)]
pub struct Jobs {
    receiver: Receiver<Job>,
    moves: Receiver<Option<MoveBatch>>,
}

/// A queue of jobs with its two ends.
pub fn queue() -> (Effects, Jobs) {
    let (sender, receiver) = mpsc::channel();
    let (put_moves, moves) = mpsc::channel();
    let effects = Effects {
        sender,
        moves: put_moves,
    };
    (effects, Jobs { receiver, moves })
}

impl Jobs {
    /// A job that is there already; for the start, when there are no threads yet.
    pub fn next(&self) -> Option<Job> {
        self.receiver.try_recv().ok()
    }
}

impl Effects {
    /// Puts a job; it is done while the workers run.
    pub fn put(&self, job: Job) {
        // Without workers the daemon is stopping, and its memory goes with it.
        let _ = self.sender.send(job);
    }

    /// Puts moves; they are carried out while the workers run.
    pub fn put_moves(&self, batch: MoveBatch) {
        let _ = self.moves.send(Some(batch));
    }
}

/// The threads that do the jobs.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts them.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(jobs: Jobs, shared: &Arc<Shared>) -> std::io::Result<Workers> {
        let receiver = Arc::new(Mutex::new(jobs.receiver));
        let mut workers = Workers {
            threads: Vec::with_capacity(NR_WORKERS + NR_MOVERS),
        };
        let moves = Arc::new(Mutex::new(jobs.moves));
        for number in 0..NR_MOVERS {
            let (moves, shared) = (moves.clone(), shared.clone());
            let thread = thread::Builder::new()
                .name(format!("mover-{number}"))
                .spawn(move || move_blocks(&moves, &shared))?;
            workers.threads.push(thread);
        }
        for number in 0..NR_WORKERS {
            let (receiver, shared) = (receiver.clone(), shared.clone());
            let thread = thread::Builder::new()
                .name(format!("backing-{number}"))
                .spawn(move || work(&receiver, &shared))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Lets them finish what they are at, and end.
    pub fn stop(self, shared: &Shared) {
        for _ in 0..NR_WORKERS {
            shared.effects().put(Job::Stop);
        }
        for _ in 0..NR_MOVERS {
            // Without the threads there is nobody to end.
            let _ = shared.effects().moves.send(None);
        }
        for thread in self.threads {
            // A panic has ended the process.
            let _ = thread.join();
        }
    }
}

fn work(receiver: &Mutex<Receiver<Job>>, shared: &Shared) {
    loop {
        let job = lock(receiver).recv();
        match job {
            Ok(Job::Stop) | Err(_) => return,
            Ok(job) => perform(job, shared),
        }
    }
}

fn move_blocks(moves: &Mutex<Receiver<Option<MoveBatch>>>, shared: &Shared) {
    loop {
        let batch = lock(moves).recv();
        let Ok(Some(batch)) = batch else { return };
        let answer = batch.carry_out(&mut |block| shared.memory().copy(block));
        shared.with(|engine, now, outside| engine.moved(answer, now, outside));
    }
}

/// Does a job and tells the engine.
pub fn perform(job: Job, shared: &Shared) {
    match job {
        Job::Populate(zone, section) => {
            let result = shared.memory().populate(zone, section);
            shared.with(|engine, now, _| engine.populated(section, result, now));
        }
        Job::Punch(zone, section) => {
            let result = shared.memory().punch(zone, section);
            shared.with(|engine, now, _| engine.punched(section, result, now));
        }
        Job::Stop => {}
    }
}
