//! A client: takes, checks, hands on, moves and frees pages, as chance has it, until it is killed.
//!
//! Every page bears its holder's mark as long as it is held, and is looked at before it is let go.

use std::{
    io::BufRead as _,
    path::Path,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use hugepool::{
    ClaimError, Client, MovablePage, Options, Order, Page, Parcel, PinError, Shortfall, Ticket,
};

use crate::{
    chance::Chance,
    links::{Links, NR_WORKERS, Post},
    mark,
    said::{Done, Kind, Said, say},
};

/// How long a call waits for a daemon, the next one too.
const DEADLINE: Duration = Duration::from_secs(30);

/// How often it says that it lives.
const BEAT: Duration = Duration::from_millis(100);

/// Pages that one keeps at most: all workers together want more than there are.
const MOST_HELD: usize = 3000;
const MOST_MOVABLE: usize = 200;
const MOST_OUT: usize = 1000;

/// Attaches and works.
pub fn run(runtime_dir: &Path, me: usize, seed: u64) -> anyhow::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
        .context("it would outlive the soak")?;
    let options = Options::default()
        .runtime_dir(runtime_dir)
        .name(format!("worker-{me}"))
        .lanes(2)
        .deadline(DEADLINE)
        .attach_timeout(DEADLINE);
    let end = Instant::now() + DEADLINE * 2;
    let client = loop {
        // A daemon that dies in the middle of it has told nobody that he is attached.
        match Client::attach(options.clone()) {
            Ok(client) => break client,
            Err(error) if Instant::now() > end => bail!("cannot attach: {error}"),
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    };
    let links = Links::new(runtime_dir, me)?;
    let mut worker = Worker {
        client,
        links,
        chance: Chance::new(seed),
        mark: u64::from(std::process::id()) << 32 | seed & 0xffff_ffff,
        held: Vec::new(),
        movable: Vec::new(),
        parcels: Vec::new(),
        out: Vec::new(),
        done: Done::default(),
    };
    say(&Said::Ready)?;
    worker.work(&orders())
}

/// What the director says, line by line; its end ends the channel.
fn orders() -> Receiver<String> {
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        let lines = std::io::stdin().lock().lines();
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    orders
}

struct Worker {
    client: Client,
    links: Links,
    chance: Chance,
    mark: u64,
    held: Vec<Page>,
    movable: Vec<(MovablePage, u32)>,
    /// Claimed and not decided on, with who sent them.
    parcels: Vec<(Parcel, usize)>,
    /// Handed over, and perhaps given back.
    out: Vec<Ticket>,
    done: Done,
}

impl Worker {
    fn work(&mut self, orders: &Receiver<String>) -> anyhow::Result<()> {
        let mut beat = Instant::now();
        loop {
            match orders.try_recv() {
                Err(TryRecvError::Empty) => {
                    for _ in 0..32 {
                        self.step();
                    }
                    if beat.elapsed() > BEAT {
                        self.beat()?;
                        beat = Instant::now();
                    }
                }
                // It was told to stand still: the other orders follow.
                Ok(_) => {
                    if !self.land(orders)? {
                        return Ok(());
                    }
                }
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }

    fn beat(&mut self) -> anyhow::Result<()> {
        say(&Said::Done(std::mem::take(&mut self.done)))
    }

    /// Stands still, then lets go of everything, step by step with the others; false if there is
    /// nothing more to do.
    fn land(&mut self, orders: &Receiver<String>) -> anyhow::Result<bool> {
        say(&Said::Has(self.blocks()))?;
        if orders.recv().is_err() {
            return Ok(false);
        }
        self.check_all();
        self.parcels.clear();
        self.held.clear();
        self.movable.clear();
        self.links.hang_up();
        self.beat()?;
        say(&Said::Rested)?;
        if orders.recv().is_err() {
            return Ok(false);
        }
        for ticket in std::mem::take(&mut self.out) {
            // What was claimed or taken back is not its own any more.
            let _ = self.client.take_back(ticket, &mut self.held);
        }
        self.held.clear();
        say(&Said::Landed)?;
        Ok(orders.recv().is_ok())
    }

    fn blocks(&self) -> Vec<(u32, u32)> {
        let held = self.held.iter();
        let claimed = self.parcels.iter().flat_map(|(parcel, _)| parcel.iter());
        let pages = held.chain(claimed);
        let mut blocks: Vec<(u32, u32)> =
            pages.map(|page| (page.pfn(), 1 << page.order())).collect();
        for (page, _) in &self.movable {
            if let Ok(pinned) = page.pin() {
                blocks.push((pinned.pfn(), 1 << page.order()));
            }
        }
        blocks
    }

    fn step(&mut self) {
        match self.chance.below(24) {
            0..=2 => self.take(),
            3 => self.take_block(),
            4 | 5 => self.take_movable(),
            6..=8 => self.look_at_movable(),
            9..=11 => self.hand_over(),
            12 => {
                let to = self.chance.index(NR_WORKERS);
                self.links.open(&self.client, to);
            }
            13 | 14 => self.receive(),
            15 | 16 => self.receive_by_channel(),
            17 | 18 => self.decide(),
            19 => self.take_back(),
            20 => self.free_movable(),
            _ => self.free(),
        }
    }

    fn take(&mut self) {
        if self.held.len() > MOST_HELD {
            return;
        }
        let nr = 1 + self.chance.index(200);
        let nr_before = self.held.len();
        // Fewer than asked is ordinary, the more so while others take all there is.
        let bulk = self.client.request().with_deadline(Duration::ZERO);
        let bulk = bulk.alloc_pages_bulk_list(nr, &mut self.held);
        self.note(bulk.shortfall.as_ref());
        self.stamp_from(nr_before);
    }

    fn take_block(&mut self) {
        let Ok(order) = Order::new([1, 3, 9][self.chance.index(3)]) else {
            return;
        };
        match self.client.with_order(order).try_alloc_page() {
            Ok(page) => {
                let nr_before = self.held.len();
                self.held.push(page);
                self.stamp_from(nr_before);
            }
            Err(why) => self.note(Some(&why)),
        }
    }

    fn stamp_from(&mut self, nr_before: usize) {
        for page in &mut self.held[nr_before..] {
            mark::stamp(page, self.mark);
            self.done.taken += 1 << page.order();
        }
    }

    fn note(&mut self, why: Option<&Shortfall>) {
        match why {
            Some(Shortfall::DaemonAway) => self.done.away += 1,
            Some(Shortfall::Detached) => self.wrong(Kind::Strange, "it was detached"),
            _ => {}
        }
    }

    fn take_movable(&mut self) {
        if self.movable.len() > MOST_MOVABLE {
            return;
        }
        let mut fresh = Vec::new();
        let request = self.client.request().with_deadline(Duration::ZERO);
        let bulk = request.alloc_movable_bulk(1 + self.chance.index(20), &mut fresh);
        self.note(bulk.shortfall.as_ref());
        for mut page in fresh {
            let pfn = match page.pin_mut() {
                Ok(mut pinned) => {
                    mark::stamp(&mut pinned, self.mark);
                    pinned.pfn()
                }
                Err(why) => return self.wrong(Kind::Lost, &format!("a page it took: {why}")),
            };
            self.done.taken += 1;
            self.movable.push((page, pfn));
        }
    }

    fn look_at_movable(&mut self) {
        if self.movable.is_empty() {
            return;
        }
        let at = self.chance.index(self.movable.len());
        let mark = self.mark;
        let (page, before) = &mut self.movable[at];
        let before = *before;
        let seen = page.pin_mut().map(|mut pinned| {
            let kind = mark::wrong(&pinned, mark);
            mark::stamp(&mut pinned, mark);
            (kind, pinned.pfn())
        });
        self.done.checked += 1;
        match seen {
            Err(why) => self.wrong(Kind::Lost, &format!("movable page {before}: {why}")),
            Ok((Some(kind), now)) => {
                self.wrong(kind, &format!("movable page {before}, now at {now}"));
            }
            Ok((None, now)) => {
                self.done.moved += u64::from(now != before);
                self.movable[at].1 = now;
            }
        }
    }

    fn free_movable(&mut self) {
        let nr = self.chance.index(self.movable.len().min(60) + 1);
        for (page, pfn) in self.movable.drain(..nr).collect::<Vec<_>>() {
            self.check_movable(&page, pfn);
        }
    }

    fn check_movable(&mut self, page: &MovablePage, pfn: u32) {
        let kind = match page.pin() {
            Ok(pinned) => mark::wrong(&pinned, self.mark),
            Err(PinError::Evicted) => Some(Kind::Lost),
            Err(_) => Some(Kind::Strange),
        };
        self.done.checked += 1;
        if let Some(kind) = kind {
            self.wrong(kind, &format!("movable page {pfn}"));
        }
    }

    fn hand_over(&mut self) {
        let nr = self.chance.index(self.held.len().min(120) + 1);
        let mut some: Vec<Page> = self.held.drain(..nr).collect();
        self.check(&some);
        let to = self.chance.index(NR_WORKERS);
        let sent = if self.chance.below(2) == 0 {
            self.links.send_pages(to, &mut some)
        } else {
            let sent = self.client.hand_over_bulk(&mut some).ok();
            if let Some(ticket) = sent {
                self.links.send(ticket, to);
                if self.chance.below(4) == 0 {
                    let to = self.chance_peer();
                    self.links.send(ticket, to);
                }
            }
            sent
        };
        self.out.extend(sent);
        // What was not sent is here still.
        self.held.append(&mut some);
        if self.out.len() > MOST_OUT {
            for ticket in std::mem::take(&mut self.out) {
                self.take_back_one(ticket);
            }
        }
    }

    fn chance_peer(&mut self) -> usize {
        self.chance.index(NR_WORKERS)
    }

    fn receive(&mut self) {
        let Post::Ticket(ticket, from) = self.links.receive(&self.client) else {
            return;
        };
        match self.client.claim(ticket) {
            Ok(parcel) => self.keep(parcel, from),
            Err(ClaimError::DaemonAway) => self.done.away += 1,
            // Second, late and posthumous claims are refused, and nothing else happens.
            Err(_) => {}
        }
    }

    fn receive_by_channel(&mut self) {
        let at = self.chance_peer();
        if let Some(parcel) = self.links.receive_parcel(at) {
            self.done.by_channel += 1;
            self.keep(parcel, at);
        }
    }

    fn keep(&mut self, mut parcel: Parcel, from: usize) {
        self.done.parcels += 1;
        let broken = parcel.iter().find(|page| mark::read(page).is_none());
        if let Some(page) = broken {
            let what = format!("page {} of a parcel", page.pfn());
            self.wrong(Kind::Corrupt, &what);
        }
        self.done.claimed += parcel.iter().map(|page| 1_u64 << page.order()).sum::<u64>();
        for bytes in parcel.bytes_mut() {
            mark::stamp(bytes, self.mark);
        }
        self.parcels.push((parcel, from));
    }

    fn decide(&mut self) {
        if self.parcels.is_empty() {
            return;
        }
        let at = self.chance.index(self.parcels.len());
        let (parcel, from) = self.parcels.swap_remove(at);
        self.check(&parcel);
        match self.chance.below(3) {
            0 => drop(parcel),
            1 => self.held.extend(parcel.into_pages()),
            _ => match parcel.give_back() {
                Ok(ticket) => {
                    self.links.send(ticket, from);
                    // It is one's own if the old one was settled meanwhile.
                    self.out.push(ticket);
                }
                Err((_, parcel)) => self.held.extend(parcel.into_pages()),
            },
        }
    }

    fn take_back(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let at = self.chance.index(self.out.len());
        let ticket = self.out.swap_remove(at);
        self.take_back_one(ticket);
    }

    /// Takes one back, or keeps its ticket as long as it may still be given back.
    fn take_back_one(&mut self, ticket: Ticket) {
        let nr_before = self.held.len();
        match self.client.take_back(ticket, &mut self.held) {
            // Given back, they bear the mark of who had them.
            Ok(_) => {
                for page in &mut self.held[nr_before..] {
                    mark::stamp(page, self.mark);
                }
            }
            Err(ClaimError::NoSuchParcel | ClaimError::NotYours) => {}
            Err(_) => self.out.push(ticket),
        }
    }

    fn free(&mut self) {
        let nr = self.chance.index(self.held.len().min(400) + 1);
        let some: Vec<Page> = self.held.drain(..nr).collect();
        self.check(&some);
        if self.chance.below(2) == 0 {
            self.client.free_pages_bulk(some);
        }
    }

    fn check(&mut self, pages: &[Page]) {
        for page in pages {
            self.done.checked += 1 << page.order();
            if let Some(kind) = mark::wrong(page, self.mark) {
                self.wrong(
                    kind,
                    &format!("page {} of order {}", page.pfn(), page.order()),
                );
            }
        }
    }

    fn check_all(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.check(&held);
        self.held = held;
        for (parcel, from) in std::mem::take(&mut self.parcels) {
            self.check(&parcel);
            self.parcels.push((parcel, from));
        }
        for (page, pfn) in std::mem::take(&mut self.movable) {
            self.check_movable(&page, pfn);
        }
    }

    fn wrong(&mut self, kind: Kind, what: &str) {
        let text = format!("client {}: {what}", std::process::id());
        // A director that is gone does not hear it.
        let _ = say(&Said::Wrong(kind, text));
    }
}
