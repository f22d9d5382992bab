//! What a doorbell or a tick asks for: settle what came back, empty what is closed, refill.
//!
//! One client at a time, zones and owners beside it. Nothing here waits, and nothing here
//! decides who is served; that is [`Engine::service`].

use hugepool_mm::{Mark, Pfn};
use hugepool_shm::lane_daemon::Poisoned;
use hugepool_shm::raw::{Class, NR_CLASSES, PageParts};
use hugepool_shm::word_run::WordRun;

use crate::Engine;
use crate::client::{Client, Link};
use crate::custody::Custody;
use crate::deferred::Early;
use crate::head_run::HeadRun;
use crate::id::{ClientId, Now, millis};
use crate::journal::Errand;
use crate::lanes::{Hunger, class_migratetype, class_order, raw_migratetype};
use crate::lending::Borrower;
use crate::misuse::Misuse;
use crate::num;
use crate::outside::Outside;
use crate::parcels::Unsettled;

/// Words of the free map looked at in one visit: a client that fills its map with
/// nonsense gets no more of the daemon's time than that.
const MAP_BUDGET_WORDS: usize = 512;
/// How often batch and high of idle lanes fall.
const TICK: Now = Now::from_secs(1);
/// A client's wants keep the daemon awake for so many visits that could not fill them.
const MAX_FRUITLESS: u32 = 3;

/// What a visit has moved.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    nr_home: usize,
    nr_lent: usize,
    /// Something was wanted, whether it could be given or not.
    was_wanted: bool,
}

/// A lane whose words made no sense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sick {
    pub lane: usize,
    pub why: Poisoned,
}

impl Engine {
    /// Settles what clients gave back, empties closed lanes, and refills those that run low:
    /// of one client, whose doorbell rang, or of all. Returns the blocks moved.
    pub fn service(
        &mut self,
        now: Now,
        outside: &mut dyn Outside,
        only: Option<ClientId>,
    ) -> usize {
        let ids = only.map_or_else(|| self.clients.ids(), |id| vec![id]);
        let nr_moved = ids
            .into_iter()
            .map(|id| self.service_client(id, now, outside))
            .sum();
        if now.saturating_sub(self.last_tick) >= TICK {
            self.last_tick = now;
            self.tick_lanes();
        }
        nr_moved
    }

    fn service_client(&mut self, id: ClientId, now: Now, outside: &mut dyn Outside) -> usize {
        self.refresh_bounds(id);
        let Some(client) = self.clients.get_mut(id) else {
            return 0;
        };
        let Some(link) = &mut client.link else {
            return 0;
        };
        if !link.is_told_awake {
            link.segment.announce_wake();
            link.is_told_awake = true;
        }
        let before = client.nr_misuses;
        let mut served = Served::default();
        if self.custody.posts.take_full(id) && self.custody.settle_taken_of(id, millis(now)) {
            served.nr_home += 1;
        }
        let health = serve(client, &mut self.custody, now, &mut served);
        publish_allowance(client, &self.custody);
        let Served {
            nr_home,
            nr_lent,
            was_wanted,
        } = served;
        self.nr_misuses += client.nr_misuses - before;
        if let Some(link) = &mut client.link {
            let is_fruitless = nr_home + nr_lent == 0;
            link.nr_fruitless = if is_fruitless {
                link.nr_fruitless.saturating_add(1)
            } else {
                0
            };
            if (nr_lent > 0 || was_wanted) && link.segment.raise_wake() {
                outside.wake(id);
            }
        }
        if let Err(sick) = health {
            self.poison(id, sick, now, outside);
        }
        self.settle_deferred(now);
        nr_home + nr_lent
    }

    /// Settles words that came too early: all rings are settled, as they stand now, and what still
    /// finds nothing that could come before it is wrong.
    pub(crate) fn settle_deferred(&mut self, now: Now) {
        self.settle_deferred_of(now, false);
    }

    /// The same; `is_replay`: of a daemon before, which may have settled some of them.
    pub(crate) fn settle_deferred_of(&mut self, now: Now, is_replay: bool) {
        if self.custody.deferred.is_empty() {
            return;
        }
        for id in self.clients.ids() {
            self.settle_rings(id, now);
        }
        let mut all = self.custody.deferred.take();
        let mut nr_left = usize::MAX;
        while all.len() < nr_left {
            nr_left = all.len();
            all.retain(|&(id, early)| match early {
                Early::Word(word) => {
                    let settled = self.custody.settle_word(id, word, false, millis(now));
                    matches!(settled, Err(Unsettled::Ahead))
                }
                Early::Head(pfn) => self.custody.settle_head(id, pfn, millis(now)).is_err(),
            });
        }
        for (id, early) in all {
            match early {
                Early::Word(word) => {
                    let settled = self.custody.settle_word(id, word, true, millis(now));
                    let is_known = is_replay && self.custody.is_settled(word);
                    if let Err(Unsettled::Misuse(misuse)) = settled
                        && !is_known
                    {
                        self.note_misuse(id, misuse);
                    }
                }
                Early::Head(pfn) => match self.custody.settle_head(id, pfn, millis(now)) {
                    Ok(()) | Err(Misuse::NotLent { .. }) => {}
                    Err(_) if is_replay => {}
                    Err(misuse) => self.note_misuse(id, misuse),
                },
            }
        }
        self.custody.deferred.forget();
    }

    fn note_misuse(&mut self, id: ClientId, misuse: Misuse) {
        if let Some(client) = self.clients.get_mut(id) {
            client.note_misuse(misuse);
            self.nr_misuses += 1;
        }
    }

    /// Settles what one client gave back and says, without lending anything. Words of a lane that
    /// make no sense are left for its next visit to find.
    pub(crate) fn settle_rings(&mut self, id: ClientId, now: Now) {
        let Some(client) = self.clients.get_mut(id) else {
            return;
        };
        let before = client.nr_misuses;
        let _ = collect(client, &mut self.custody, now);
        self.nr_misuses += client.nr_misuses - before;
    }

    /// Tells all clients that the daemon is about to sleep, and looks once more whether it may.
    /// If not, [`service`](Self::service) is to be called.
    pub fn before_sleep(&mut self) -> bool {
        let mut may_sleep = true;
        for client in self.clients.iter_mut() {
            let Some(link) = &mut client.link else {
                continue;
            };
            if !link.is_told_awake {
                continue;
            }
            link.segment.announce_sleep();
            link.is_told_awake = false;
            may_sleep &= !has_work(link) && !self.custody.posts.is_full(client.id);
        }
        may_sleep
    }

    fn tick_lanes(&mut self) {
        for client in self
            .clients
            .iter_mut()
            .filter(|client| client.is_in_service())
        {
            let Some(link) = &mut client.link else {
                continue;
            };
            for lane in &mut link.lanes {
                lane.tick(&link.bounds);
                lane.publish(&link.bounds);
            }
        }
    }
}

/// Tells a client how many pages it may still claim from others (PROTOCOLS P9).
pub(crate) fn publish_allowance(client: &Client, custody: &Custody) {
    if let Some(link) = &client.link {
        let allowance = custody.limits.allowance(client.id, custody.owners.tally());
        let nr_settled = custody
            .posts
            .get(client.id)
            .map_or(0, |of| of.nr_claimed_pages);
        link.segment.set_claim_allowance(allowance, nr_settled);
    }
}

fn serve(
    client: &mut Client,
    custody: &mut Custody,
    now: Now,
    served: &mut Served,
) -> Result<(), Sick> {
    let before = custody.nr_home;
    let health = collect(client, custody, now);
    served.nr_home += usize::try_from(custody.nr_home - before).unwrap_or(usize::MAX);
    health?;
    if client.is_in_service() {
        refill(client, custody, now, served)?;
    }
    Ok(())
}

/// Takes home what a client gave back and what lies in its closed lanes; returns the pages.
pub(crate) fn collect(client: &mut Client, custody: &mut Custody, now: Now) -> Result<u64, Sick> {
    let before = custody.nr_pages_home;
    bring_home(client, custody, millis(now))?;
    take_closed(client, custody, now)?;
    Ok(custody.nr_pages_home - before)
}

/// Settles the client's rings and its free map, in the order of PROTOCOLS P2: map words
/// are loaded, then the rings are settled, then the pages taken home, then the bits cleared;
/// nothing is lent before that.
fn bring_home(client: &mut Client, custody: &mut Custody, now_ms: u64) -> Result<(), Sick> {
    let id = client.id;
    let Some(link) = &mut client.link else {
        return Ok(());
    };
    let Link {
        segment,
        lanes,
        map_cursor,
        is_replay,
        ..
    } = link;
    let is_replay = *is_replay;
    let pageblock_order = custody.zones.geometry().pageblock_order();
    let mut misuses = Vec::new();
    let mut settle = || -> Result<(), Sick> {
        for (at, lane) in lanes.iter_mut().enumerate() {
            let mut nr_freed = [0; NR_CLASSES];
            let settled = &mut |run: WordRun| {
                let nr_home = settle_run(custody, id, run, is_replay, now_ms, &mut misuses);
                if let Some(class) = Class::of(run.first, u32::from(pageblock_order.get())) {
                    nr_freed[class.index()] += nr_home;
                }
            };
            let nr_settled = lane.settle(settled);
            lane.note_freed(&nr_freed);
            nr_settled.map_err(|why| Sick { lane: at, why })?;
        }
        Ok(())
    };
    let map = segment.free_map();
    let health = if map.may_have_any() {
        let (settled, health) = map.load(map_cursor, MAP_BUDGET_WORDS).settled_by(settle);
        for (first, nr_blocks) in settled.runs() {
            let run = HeadRun {
                first: Pfn::new(first),
                nr_blocks,
            };
            if custody.take_heads_home(id, run, None) {
                continue;
            }
            for pfn in (0..nr_blocks).filter_map(|at| first.checked_add(at)) {
                match custody.settle_head(id, pfn, now_ms) {
                    Ok(()) => {}
                    // Home already: its word came by a ring, or it was recalled.
                    Err(Misuse::NotLent { .. }) => {}
                    // It may have come by a parcel of which only a notice tells, in another ring.
                    Err(Misuse::NotYours { .. }) => {
                        custody.deferred.push(id, Early::Head(pfn));
                    }
                    Err(misuse) => misuses.push(misuse),
                }
            }
        }
        settled.commit();
        health
    } else {
        settle()
    };
    misuses
        .into_iter()
        .for_each(|misuse| client.note_misuse(misuse));
    health
}

/// Settles what a client says it gives back, or has done with a parcel: all at once if it can be,
/// else word by word. Returns how many words were right.
fn settle_run(
    custody: &mut Custody,
    id: ClientId,
    run: WordRun,
    is_replay: bool,
    now_ms: u64,
    misuses: &mut Vec<Misuse>,
) -> u32 {
    if custody.take_run_home(id, run) {
        return run.nr_blocks;
    }
    let mut nr_right = 0;
    for claim in run.words() {
        match custody.settle_word(id, claim, false, now_ms) {
            Ok(()) => nr_right += 1,
            Err(Unsettled::Ahead) => {
                custody.deferred.push(id, Early::Word(claim));
            }
            // A daemon before has settled it, and died before it could say so.
            Err(_) if is_replay && custody.is_settled(claim) => {}
            Err(Unsettled::Misuse(misuse)) => misuses.push(misuse),
        }
    }
    nr_right
}

/// Takes what can be taken from the client's closed lanes.
fn take_closed(client: &mut Client, custody: &mut Custody, now: Now) -> Result<(), Sick> {
    let id = client.id;
    let Some(link) = &mut client.link else {
        return Ok(());
    };
    let is_replay = link.is_replay;
    let mut misuses = Vec::new();
    let mut health = Ok(());
    for (at, lane) in link.lanes.iter_mut().enumerate() {
        let settle = &mut |claims: &[WordRun]| {
            for &claim in claims {
                settle_run(custody, id, claim, is_replay, millis(now), &mut misuses);
            }
        };
        // A sick lane is judged whole before any of it is taken.
        if let Err(why) = lane.take(now, settle) {
            health = Err(Sick { lane: at, why });
            break;
        }
    }
    misuses
        .into_iter()
        .for_each(|misuse| client.note_misuse(misuse));
    health
}

fn refill(
    client: &mut Client,
    custody: &mut Custody,
    now: Now,
    served: &mut Served,
) -> Result<(), Sick> {
    let Some(mut link) = client.link.take() else {
        return Ok(());
    };
    let health = refill_link(client, &mut link, custody, now, served);
    client.link = Some(link);
    health
}

fn refill_link(
    client: &mut Client,
    link: &mut Link,
    custody: &mut Custody,
    now: Now,
    served: &mut Served,
) -> Result<(), Sick> {
    for at in 0..link.lanes.len() {
        let sick = |why| Sick { lane: at, why };
        let hungers = link.lanes[at].hungers(&link.bounds).map_err(sick)?;
        for hunger in &hungers {
            let nr_lent = feed(client, link, at, hunger, custody, now).map_err(sick)?;
            link.lanes[at].was_given(hunger, nr_lent);
            served.nr_lent += nr_lent;
            served.was_wanted |= !hunger.is_ahead;
        }
        if !hungers.is_empty() {
            link.lanes[at].publish(&link.bounds);
        }
    }
    Ok(())
}

/// Lends blocks into one class of a lane; custody is recorded before they are published.
fn feed(
    client: &mut Client,
    link: &mut Link,
    lane: usize,
    hunger: &Hunger,
    custody: &mut Custody,
    now: Now,
) -> Result<usize, Poisoned> {
    let geometry = custody.zones.geometry();
    let order = class_order(hunger.class, geometry.pageblock_order());
    let migratetype = class_migratetype(hunger.class);
    let who = Borrower {
        segment: Some(&link.segment),
        // Ahead of any want it is given only what nobody has to be brought home for.
        mark: if hunger.is_ahead {
            Mark::High
        } else {
            Mark::Min
        },
        ..client.borrower(client.zonelist(migratetype))
    };
    let mut lent: Vec<(HeadRun, u32)> = Vec::new();
    let nr = num::index(hunger.nr_blocks);
    let tell = &mut |run, generation| lent.push((run, generation));
    let daemon = &mut link.lanes[lane].daemon;
    let errand = Errand::Grant {
        lane: daemon.index(),
        class: hunger.class.index(),
        tail: daemon.grants_tail(hunger.class),
    };
    custody.open_journal(client.id, errand);
    custody.lend(&who, order, migratetype, nr, millis(now), tell);
    let word_of = |&(run, generation): &(HeadRun, u32)| {
        let parts = PageParts {
            pfn: run.first.get(),
            order: u32::from(order.get()),
            migratetype: raw_migratetype(migratetype),
            zone: num::saturate(num::count(custody.zones.of_page(run.first))),
            client: link.client_index,
            generation,
        };
        WordRun {
            first: parts
                .pack()
                .expect("zone and client index were checked when they were made"),
            nr_blocks: run.nr_blocks,
        }
    };
    let runs: Vec<WordRun> = lent.iter().map(word_of).collect();
    let granted = link.lanes[lane]
        .daemon
        .grant_runs(hunger.class, runs.iter().copied());
    // What was not published goes straight back.
    let nr_granted = *granted.as_ref().unwrap_or(&0);
    for word in runs.iter().flat_map(|run| run.words()).skip(nr_granted) {
        let taken = custody.take_home(client.id, word);
        debug_assert!(taken.is_ok(), "{word:?} was lent just now");
    }
    custody.owners.journal.close();
    granted
}

/// Whether a visit might move something. Words in returns always can be; the rest counts
/// only while visits bear fruit.
fn has_work(link: &mut Link) -> bool {
    let Link {
        segment,
        lanes,
        bounds,
        nr_fruitless,
        ..
    } = link;
    if lanes.iter().any(|lane| lane.has_returns().unwrap_or(true)) {
        return true;
    }
    *nr_fruitless < MAX_FRUITLESS
        && (segment.free_map().may_have_any()
            || lanes
                .iter_mut()
                .any(|lane| lane.is_hungry(bounds).unwrap_or(true)))
}
