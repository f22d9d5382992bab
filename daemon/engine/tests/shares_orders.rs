//! One shared page, its sealer, one who passes it on, and a third: all orders of their steps, with
//! the daemon looking or not after each of them, scanning or not, dying or not, and with each of
//! them dying at each instant.
//!
//! The page is lent as long as one of them holds it or may come to, and home when nobody does.
//!
//! Seen to fail: nobody lingers for what is offered; a ticket's taker not known as a holder when it
//! has passed the page on; the owner's part not passed on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/mortal.rs"]
mod mortal;
#[path = "support/post.rs"]
mod post;
#[path = "support/mod.rs"]
mod support;

use hugepool_shm::raw::RawPage;
use hugepool_shm::ticket::{Done, Holds, Ticket};

use mortal::Mortal;
use post::Poster;
use support::{PAGE, Rig};

/// What each of the three does, in order: A seals and offers twice, B claims the one and passes it
/// on, C claims that and A takes the other back.
const STEPS: [&[Step]; 3] = [
    &[Step::Offer, Step::LetGo, Step::Recall],
    &[Step::Claim, Step::Offer, Step::LetGo],
    &[Step::Claim, Step::LetGo],
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Offer,
    Claim,
    LetGo,
    Recall,
}

/// What the daemon does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Not,
    Serves,
    /// It also settles what was never told.
    Scans,
    /// It dies, and the next one looks.
    Dies,
}

struct Play {
    mortal: Mortal,
    page: RawPage,
    posters: [Poster; 3],
    /// The ticket that each of them was offered by, and its further one of the sealer's.
    tickets: [Option<Ticket>; 3],
    spare: Option<Ticket>,
    holds: [bool; 3],
    is_dead: [bool; 3],
}

impl Play {
    fn new() -> Play {
        let mut rig = Rig::new(4);
        let transits = rig.post();
        let posters = [(); 3].map(|()| rig.poster(&transits, 1));
        let page = rig.take(&posters[0].tenant, 0, PAGE, 1)[0];
        let mut mortal = Mortal::new(rig);
        mortal.transits = vec![transits];
        for poster in &posters {
            let segment = poster.tenant.segment.clone();
            mortal.segments.insert(poster.id(), segment);
            mortal.outboxes.insert(poster.id(), poster.outbox.clone());
        }
        Play {
            mortal,
            page,
            posters,
            tickets: [None; 3],
            spare: None,
            holds: [true, false, false],
            is_dead: [false; 3],
        }
    }

    /// Does one step, if it can be done.
    fn step(&mut self, who: usize, step: Step) {
        if self.is_dead[who] {
            return;
        }
        match step {
            Step::Offer if self.holds[who] => {
                self.tickets[who + 1] = Some(self.posters[who].share(0, self.page));
                if who == 0 {
                    self.spare = Some(self.posters[0].share(1, self.page));
                }
            }
            Step::Claim => {
                let Some(ticket) = self.tickets[who] else {
                    return;
                };
                let taken = self.posters[who].take(&self.posters[who - 1], ticket);
                assert_eq!(taken.is_ok(), !self.is_dead[who - 1], "{taken:?}");
                self.holds[who] = taken.is_ok();
                if taken.is_err() {
                    self.tickets[who] = None;
                }
            }
            Step::LetGo if self.holds[who] => {
                self.holds[who] = false;
                match self.tickets[who].take() {
                    Some(ticket) => self.posters[who].tell(0, ticket, Done::Freed),
                    None => self.posters[who].say(0, self.page, Holds::LetGo),
                }
            }
            Step::Recall => {
                let Some(ticket) = self.spare.take() else {
                    return;
                };
                let sequence = ticket.parts().sequence;
                assert_eq!(self.posters[0].word(ticket).withdraw(sequence), Ok(()));
                self.posters[0].outbox.slot(1).unwrap().clear();
                self.posters[0].say(0, self.page, Holds::Recalled);
            }
            Step::Offer | Step::LetGo => {}
        }
    }

    fn look(&mut self, look: Look) {
        match look {
            Look::Not => return,
            Look::Serves => self.mortal.service(),
            Look::Scans => {
                let posters = self.posters.iter();
                posters.for_each(|poster| poster.tenant.segment.note_outbox_full());
                self.mortal.service();
            }
            Look::Dies => self.mortal.die(),
        }
        self.mortal.service();
        self.check();
    }

    fn die(&mut self, who: usize) {
        if self.is_dead[who] {
            return;
        }
        let id = self.posters[who].id();
        self.mortal.call(|rig| rig.engine.bury(id, rig.now));
        self.is_dead[who] = true;
        if core::mem::take(&mut self.holds[who]) {
            self.tickets[who] = None;
        }
        if who == 0 {
            self.spare = None;
        }
        // What it had offered and nobody had claimed is closed.
        if let Some(ticket) = self.tickets.get(who + 1).copied().flatten()
            && !self.holds[who + 1]
            && self.posters[who].word(ticket).look(ticket.parts().sequence)
                == hugepool_shm::transit::Transit::Closed
        {
            self.tickets[who + 1] = None;
        }
    }

    /// Whether the page is lent as it should be, when the daemon has heard of all.
    fn check(&self) {
        // A ticket that waits for its taker, or is its taker's.
        let is_offered = (1..3).any(|at| self.tickets[at].is_some() && !self.is_dead[at - 1]);
        let is_held = self.holds.contains(&true) || is_offered || self.spare.is_some();
        let rig = &self.mortal.rig;
        let alive = (0..3).filter(|&at| !self.is_dead[at]);
        let cached = alive.map(|at| {
            let report = rig.client(self.posters[at].id());
            assert_eq!(report.nr_misuses, 0);
            let lanes = report.lanes.iter();
            lanes.map(|lane| lane.granted + lane.magazine).sum::<u64>()
        });
        let nr_held = rig.pages().lent - cached.sum::<u64>();
        assert_eq!(nr_held, u64::from(is_held));
    }

    fn end(mut self) {
        for who in 0..3 {
            self.step(who, Step::LetGo);
        }
        // Claimed by nobody: its sender takes it back.
        for at in 1..3 {
            if let Some(ticket) = self.tickets[at].take() {
                let sender = &self.posters[at - 1];
                let sequence = ticket.parts().sequence;
                if !self.is_dead[at - 1] && sender.word(ticket).withdraw(sequence).is_ok() {
                    sender.outbox.slot(0).unwrap().clear();
                    sender.say(0, self.page, Holds::Recalled);
                }
            }
        }
        if !self.is_dead[0] {
            self.step(0, Step::Recall);
        }
        self.look(Look::Serves);
        self.mortal.rig.verify();
        for who in 0..3 {
            self.die(who);
        }
        assert_eq!(self.mortal.rig.pages().lent, 0);
    }
}

/// All ways to merge the three in which nobody claims what is not offered yet, each as whose step
/// comes next.
fn orders(done: [usize; 3], so_far: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    let mut is_over = true;
    for who in 0..3 {
        if done[who] < STEPS[who].len() {
            is_over = false;
            let offered = who
                .checked_sub(1)
                .map(|from| done[from] > usize::from(from == 1));
            if done[who] == 0 && offered == Some(false) {
                continue;
            }
            let mut next = done;
            next[who] += 1;
            so_far.push(who);
            orders(next, so_far, all);
            so_far.pop();
        }
    }
    if is_over {
        all.push(so_far.clone());
    }
}

fn play(order: &[usize], look: impl Fn(usize) -> Look, death: Option<(usize, usize)>) {
    let mut play = Play::new();
    let mut done = [0; 3];
    for (at, &who) in order.iter().enumerate() {
        play.step(who, STEPS[who][done[who]]);
        done[who] += 1;
        if let Some((_, dies)) = death.filter(|&(when, _)| when == at) {
            play.die(dies);
        }
        play.look(look(at));
    }
    play.end();
}

#[test]
fn in_every_order_the_page_is_home_when_nobody_holds_it_and_not_before() {
    let mut all = Vec::new();
    orders([0; 3], &mut Vec::new(), &mut all);
    assert_eq!(all.len(), 63);
    for order in &all {
        // Looked at or not after each step.
        for looks in 0..1_u32 << order.len() {
            // Each other way to look is tried where there is something to look at once.
            let kinds = [Look::Serves, Look::Scans, Look::Dies];
            let kind = kinds[(looks as usize + order[0]) % 3];
            let look = |at: usize| {
                if looks >> at & 1 == 1 {
                    kind
                } else {
                    Look::Not
                }
            };
            if looks.count_ones() <= 2 {
                play(order, look, None);
            }
        }
        for when in 0..order.len() {
            for dies in 0..3 {
                let kind = [Look::Not, Look::Scans][(when + dies) % 2];
                play(order, |_| kind, Some((when, dies)));
            }
        }
    }
}
