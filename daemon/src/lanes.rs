//! The lanes thread: one epoll over the attach socket, its connections, doorbells and pidfds.
//!
//! It serves what clients ring for, notices who came, hung up or died, and lets the engine advance
//! what takes time. It never waits for a client: every receive and send is immediate, doorbells are
//! watched edge-triggered and never read. What is said on a connection is the affair of
//! [`attach`](crate::attach).
//!
//! Each watched descriptor is known by a [`Watched`] packed into the epoll word. Connections are
//! numbered and no number comes twice, so an event that is late finds nobody instead of somebody
//! else.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugepool_engine::ClientId;
use hugepool_shm::listener::Listener;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::attach::Attach;
use crate::kept::ChannelEnd;
use crate::shared::{self, ClientEffect, Shared};
use crate::systemd::Watchdog;
use crate::takeover::Found;

/// Events taken at a time.
const BATCH: usize = 64;

/// Connections accepted at a time: a flood of them does not keep others waiting.
const ACCEPTS: usize = 16;

/// How often all is looked at in any case: bounds what a lost wake-up can cost.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// How long accepting rests when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a watched descriptor is: in the lower three bits of the epoll word, the number above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The attach socket, or the bell of the other threads.
    Ours(u64),
    /// The socket of a connection.
    Socket(u64),
    /// The doorbell of a client.
    Bell(u64),
    /// The pidfd of a client.
    Process(u64),
    /// Tells that the store has what a client needs.
    Stored(u64),
}

const LISTENER: Watched = Watched::Ours(0);
const KICK: Watched = Watched::Ours(1);

impl Watched {
    fn pack(self) -> u64 {
        match self {
            Watched::Ours(number) => number << 3,
            Watched::Socket(number) => number << 3 | 1,
            Watched::Bell(number) => number << 3 | 2,
            Watched::Process(number) => number << 3 | 3,
            Watched::Stored(number) => number << 3 | 4,
        }
    }

    fn unpack(word: u64) -> Watched {
        let number = word >> 3;
        match word & 7 {
            0 => Watched::Ours(number),
            1 => Watched::Socket(number),
            2 => Watched::Bell(number),
            3 => Watched::Process(number),
            _ => Watched::Stored(number),
        }
    }
}

/// The epoll, as the attach side may use it.
#[derive(Debug)]
pub struct Watch {
    epoll: Epoll,
}

impl Watch {
    fn new() -> Result<Watch, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Watch { epoll })
    }

    /// Watches for something to read, and for the other end to go.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` when the system has no room for one more.
    pub fn readable(&self, fd: impl AsFd, what: Watched) -> Result<(), Errno> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        self.epoll.add(fd, EpollEvent::new(flags, what.pack()))
    }

    /// Watches a bell: each ring is told once, and nothing is read.
    ///
    /// # Errors
    /// As [`Watch::readable`].
    pub fn rings(&self, fd: impl AsFd, what: Watched) -> Result<(), Errno> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        self.epoll.add(fd, EpollEvent::new(flags, what.pack()))
    }

    /// Watches no longer; to be called before the descriptor is closed, since a peer may hold
    /// another one of the same open file.
    pub fn forget(&self, fd: impl AsFd) {
        // Not watched is as good.
        let _ = self.epoll.delete(fd);
    }
}

/// The thread's state.
pub struct Lanes {
    watch: Watch,
    listener: Listener,
    accepts_again: Option<Instant>,
    attach: Attach,
    shared: Arc<Shared>,
    watchdog: Arc<Watchdog>,
    /// How long to go on looking after the last work.
    spin: Duration,
    worked_at: Option<Instant>,
}

impl Lanes {
    /// Watches the attach socket and the bell; nobody is served yet.
    ///
    /// # Errors
    /// When the system gives no epoll.
    pub fn new(
        listener: Listener,
        attach: Attach,
        shared: Arc<Shared>,
        watchdog: Arc<Watchdog>,
        spin: Duration,
    ) -> Result<Lanes, Errno> {
        let watch = Watch::new()?;
        watch.readable(&listener, LISTENER)?;
        watch.rings(shared.kick_bell(), KICK)?;
        Ok(Lanes {
            watch,
            listener,
            accepts_again: None,
            attach,
            shared,
            watchdog,
            spin,
            worked_at: None,
        })
    }

    /// Goes on with a client of a daemon before.
    pub fn adopt(&mut self, found: Found) {
        self.attach.adopt(found, &self.watch, &self.shared);
    }

    /// Goes on with the channels of a daemon before, when its clients are there.
    pub fn adopt_channels(&mut self, ends: Vec<(ChannelEnd, OwnedFd)>) {
        self.attach.adopt_channels(ends);
    }

    /// Serves until the daemon stops.
    pub fn run(mut self) {
        let mut events = [EpollEvent::empty(); BATCH];
        while !self.shared.is_stopping() {
            self.watchdog.beat_lanes();
            let now = Instant::now();
            self.attach.expire(now, &self.watch, &self.shared);
            self.accept_again(now);
            let (timeout, is_quiet) = self.sleep_for(now);
            let nr = match self.watch.epoll.wait(&mut events, timeout) {
                Ok(nr) => nr,
                Err(Errno::EINTR) => 0,
                Err(errno) => panic!("epoll of our own cannot be waited on: {errno}"),
            };
            let events = &events[..nr];
            // Quiet and rung for: only who rang has anything. Else everybody is looked at: somebody
            // put something down without ringing, or it is time.
            let is_enough = is_quiet && !events.is_empty();
            self.serve(events, is_enough);
        }
    }

    /// How long to sleep, having told clients to ring: not at all if one of them has just put
    /// something down.
    fn sleep_for(&mut self, now: Instant) -> (EpollTimeout, bool) {
        if self
            .worked_at
            .is_some_and(|at| now.saturating_duration_since(at) < self.spin)
        {
            return (EpollTimeout::ZERO, false);
        }
        let since_boot = shared::now();
        // Before the look at the engine: who asks for an earlier look from now on kicks.
        self.shared.sleeps_until(since_boot + IDLE_TICK);
        let (is_quiet, next) = self.shared.visit(|engine, _, _| engine.before_sleep());
        if !is_quiet {
            return (EpollTimeout::ZERO, false);
        }
        let beat = self.watchdog.beat_every();
        let engine = next.map(|at| at.saturating_sub(since_boot));
        let ours = [self.attach.next_deadline(), self.accepts_again];
        let ours = ours.map(|at| Some(at?.saturating_duration_since(now)));
        let sleep = [beat, engine]
            .into_iter()
            .chain(ours)
            .flatten()
            .fold(IDLE_TICK, Duration::min);
        self.shared.sleeps_until(since_boot + sleep);
        // Rounded up, so that a deadline has passed when its sleep is over.
        let millis = sleep.as_micros().div_ceil(1000);
        (
            EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::ZERO),
            true,
        )
    }

    fn serve(&mut self, events: &[EpollEvent], only_who_rang: bool) {
        let rang = |event: &EpollEvent| match Watched::unpack(event.data()) {
            Watched::Bell(number) => self.attach.client(number),
            _ => None,
        };
        let rang: Vec<ClientId> = events.iter().filter_map(rang).collect();
        // One visit to the engine for all of them.
        let (nr_moved, _) = self.shared.visit(|engine, now, outside| {
            if only_who_rang {
                let served = rang.into_iter();
                served
                    .map(|client| engine.service(now, outside, Some(client)))
                    .sum()
            } else {
                engine.service(now, outside, None)
            }
        });
        if nr_moved > 0 && !self.spin.is_zero() {
            self.worked_at = Some(Instant::now());
        }
        for event in events {
            match Watched::unpack(event.data()) {
                LISTENER => self.accept(),
                // Served above, or awake: that is all it wanted.
                Watched::Bell(_) | Watched::Ours(_) => {}
                Watched::Socket(number) => self.attach.heard(number, &self.watch, &self.shared),
                Watched::Process(number) => self.attach.died(number, &self.watch, &self.shared),
                Watched::Stored(number) => self.attach.stored(number, &self.watch, &self.shared),
            }
        }
        for effect in self.shared.take_mail() {
            match effect {
                ClientEffect::Close(client) => {
                    self.attach.close(client, &self.watch, &self.shared);
                }
                ClientEffect::Forget(client) => {
                    self.attach.forget(client, &self.watch, &self.shared);
                }
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok(Some(connection)) => self.attach.greet(connection, &self.watch),
                Ok(None) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "no connection can be accepted now");
                    // The connection stays in the queue and would be told again at once.
                    self.watch.forget(&self.listener);
                    self.accepts_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn accept_again(&mut self, now: Instant) {
        if self.accepts_again.is_some_and(|at| at <= now) {
            self.accepts_again = match self.watch.readable(&self.listener, LISTENER) {
                Ok(()) => None,
                Err(_) => Some(now + ACCEPT_PAUSE),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_descriptor_survives_the_epoll_word() {
        for number in [0, 1, 77, (1 << 61) - 1] {
            for what in [
                Watched::Ours(number),
                Watched::Socket(number),
                Watched::Bell(number),
                Watched::Process(number),
                Watched::Stored(number),
            ] {
                assert_eq!(Watched::unpack(what.pack()), what);
            }
        }
    }
}
