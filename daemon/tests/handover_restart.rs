//! Parcels and shared pages fly between four processes while the daemon is killed again and again,
//! and they as well: no page is lost, none is doubled, and what several hold stays as it was sealed.
//!
//! Each process stamps the pages of its parcels with a mark of its own; a sealed page bears the mark
//! that it was sealed with for as long as anybody holds it: one that was lent to somebody else
//! meanwhile shows.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugepool::channel::{self, ChannelError, RecvError, RingEnd};
use hugepool::{Client, Options, Page, Parcel, SharedPage, Ticket};
use hugepool_proto::v1;
use nix::sys::signal::Signal;
use support::grpc::{self, verify};
use support::kept::Kept;
use support::until;
use support::victim::{Victim, Xorshift, heard, part, say};

const NR_FLYERS: usize = 4;
const NR_ROUNDS: u32 = 6;

const ZONES: &[&str] = &[
    "--section-size",
    "4MiB",
    "--zone",
    "normal=24MiB,reserve=64MiB,backing=shm",
];

/// Not a test: a process that the test here has started.
#[test]
fn victim() {
    let Some((options, part)) = part() else {
        return;
    };
    let dir = PathBuf::from(std::env::var("HUGEPOOL_TEST_DIR").unwrap());
    // Not the time that an attempt may take: a daemon that dies in the middle of it answers nobody.
    let options = options.deadline(support::DEADLINE);
    let client = attach(&options);
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["fly", me, seed] => {
            Flyer::new(client, &dir, me.parse().unwrap(), seed.parse().unwrap()).fly();
        }
        ["send", name] => send_when_told(&client, name),
        _ => panic!("no part is called {part}"),
    }
}

/// Whatever the daemon dies of meanwhile.
fn attach(options: &Options) -> Client {
    let mut client = None;
    until("somebody is attached", || {
        client = Client::attach(options.clone()).ok();
        client.is_some()
    });
    client.unwrap()
}

/// Sends ten pages at each word, by the channel of that name.
fn send_when_told(client: &Client, name: &str) {
    let mut sender = channel::join_sender(client, name.parse().unwrap()).unwrap();
    say("ready");
    while let Some(word) = heard() {
        if let Some(name) = word.strip_prefix("join ") {
            let receiver = channel::join_receiver(client, name.parse().unwrap());
            say(if receiver.is_ok() {
                "joined"
            } else {
                "not joined"
            });
            continue;
        }
        let mut pages = client.alloc_exact(10).unwrap();
        pages.iter_mut().for_each(|page| stamp(page, 77));
        sender.send_pages(&mut pages, support::DEADLINE).unwrap();
        say("sent");
    }
}

/// What one process has.
struct Flyer {
    client: Client,
    random: Xorshift,
    mark: u64,
    post: UnixDatagram,
    peers: Vec<PathBuf>,
    held: Vec<Page>,
    parcels: Vec<Parcel>,
    /// With the mark that each was sealed with.
    shared: Vec<(SharedPage, u64)>,
    out: Vec<Ticket>,
    nr_claimed: u64,
}

impl Flyer {
    fn new(client: Client, dir: &Path, me: usize, seed: u64) -> Flyer {
        let peers: Vec<PathBuf> = (0..NR_FLYERS)
            .map(|at| dir.join(format!("flyer-{at}")))
            .collect();
        // That of a predecessor, who cannot have taken it away.
        let _ = std::fs::remove_file(&peers[me]);
        let post = UnixDatagram::bind(&peers[me]).unwrap();
        post.set_nonblocking(true).unwrap();
        Flyer {
            client,
            random: Xorshift(seed | 1),
            mark: u64::from(std::process::id()) << 32 | seed & 0xffff_ffff,
            post,
            peers,
            held: Vec::new(),
            parcels: Vec::new(),
            shared: Vec::new(),
            out: Vec::new(),
            nr_claimed: 0,
        }
    }

    fn fly(mut self) {
        let (said, orders) = std::sync::mpsc::channel();
        std::thread::spawn(move || while heard().is_some_and(|order| said.send(order).is_ok()) {});
        say("ready");
        while let Err(std::sync::mpsc::TryRecvError::Empty) = orders.try_recv() {
            for _ in 0..64 {
                self.step();
            }
            std::thread::yield_now();
        }
        // In peace: first what is here goes home, then what nobody has claimed.
        self.parcels.clear();
        self.held.clear();
        self.shared
            .drain(..)
            .for_each(|(page, mark)| check(&page, mark));
        say(&format!("claimed {}", self.nr_claimed));
        if orders.recv().is_err() {
            return;
        }
        for ticket in std::mem::take(&mut self.out) {
            let _ = self.client.take_back(ticket, &mut self.held);
        }
        self.held.clear();
        say("landed");
        let _ = orders.recv();
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0 => self.take(),
            1 | 2 => self.hand_over(),
            3 => self.seal(),
            4 | 5 => self.share(),
            6..=8 => self.receive(),
            9 => self.decide(),
            10 => self.let_go(),
            _ if self.random.below(2) == 0 => self.take_back(),
            _ => {
                let nr = self.random.index(self.held.len() + 1);
                let some: Vec<Page> = self.held.drain(..nr).collect();
                some.iter().for_each(|page| check(page, self.mark));
                self.client.free_pages_bulk(some);
            }
        }
    }

    fn take(&mut self) {
        if self.held.len() > 300 {
            return;
        }
        let nr = 1 + self.random.index(65);
        let nr_before = self.held.len();
        // Fewer than asked is ordinary, the more so while no daemon is there.
        let request = self.client.request().with_deadline(Duration::ZERO);
        let _ = request.alloc_pages_bulk_list(nr, &mut self.held);
        let mark = self.mark;
        self.held[nr_before..]
            .iter_mut()
            .for_each(|page| stamp(page, mark));
    }

    fn hand_over(&mut self) {
        let nr = self.random.index(self.held.len().min(40) + 1);
        let mut some: Vec<Page> = self.held.drain(..nr).collect();
        some.iter().for_each(|page| check(page, self.mark));
        match self.client.hand_over_bulk(&mut some) {
            Ok(ticket) => self.send(ticket, 0),
            // No room, or nothing: they are here still.
            Err(_) => self.held.append(&mut some),
        }
    }

    fn seal(&mut self) {
        if self.shared.len() > 100 {
            return;
        }
        let Some(mut page) = self.held.pop() else {
            return;
        };
        let seal = self.random.below(u64::MAX);
        stamp(&mut page, seal);
        let sealed = self.client.share(page).map_err(|(why, _)| why).unwrap();
        self.shared.push((sealed, seal));
    }

    fn share(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        let at = self.random.index(self.shared.len());
        if let Ok(ticket) = self.shared[at].0.hand_over() {
            self.send(ticket, 1);
        }
    }

    /// Sends to anybody; who is dead or has no room does not get it.
    fn send(&mut self, ticket: Ticket, kind: u8) {
        let to = self.random.index(NR_FLYERS);
        let mut message = ticket.to_bytes().to_vec();
        message.push(kind);
        let _ = self.post.send_to(&message, &self.peers[to]);
        self.out.push(ticket);
        if self.out.len() > 1000 {
            for ticket in std::mem::take(&mut self.out) {
                self.take_back_one(ticket);
            }
        }
    }

    fn receive(&mut self) {
        let mut message = [0; 16];
        let Ok(9) = self.post.recv(&mut message) else {
            return;
        };
        let (bytes, kind) = message.split_first_chunk::<8>().unwrap();
        let Some(ticket) = Ticket::from_bytes(*bytes) else {
            return;
        };
        // Late and posthumous claims are refused, and nothing else happens.
        if kind[0] == 1 {
            if let Ok(page) = self.client.claim_shared(ticket) {
                self.nr_claimed += 1;
                let seal = stamped(&page).expect("half a seal");
                self.shared.push((page, seal));
            }
        } else if let Ok(mut parcel) = self.client.claim(ticket) {
            self.nr_claimed += 1;
            for bytes in parcel.bytes_mut() {
                stamp(bytes, self.mark);
            }
            self.parcels.push(parcel);
        }
    }

    fn decide(&mut self) {
        if self.parcels.is_empty() {
            return;
        }
        let at = self.random.index(self.parcels.len());
        let parcel = self.parcels.swap_remove(at);
        parcel.iter().for_each(|page| check(page, self.mark));
        match self.random.below(3) {
            0 => drop(parcel),
            1 => self.held.extend(parcel.into_pages()),
            _ => match parcel.give_back() {
                // It is one's own if the old one was settled meanwhile.
                Ok(ticket) => self.out.push(ticket),
                Err((_, parcel)) => self.held.extend(parcel.into_pages()),
            },
        }
    }

    fn let_go(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        let at = self.random.index(self.shared.len());
        let (page, seal) = self.shared.swap_remove(at);
        check(&page, seal);
    }

    fn take_back(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let at = self.random.index(self.out.len());
        let ticket = self.out.swap_remove(at);
        self.take_back_one(ticket);
    }

    /// Takes one back, or keeps its ticket as long as it may still be given back.
    fn take_back_one(&mut self, ticket: Ticket) {
        use hugepool::ClaimError::{NoSuchParcel, NotYours};
        let nr_before = self.held.len();
        match self.client.take_back(ticket, &mut self.held) {
            // Given back, they bear the mark of who had them.
            Ok(_) => {
                let mark = self.mark;
                self.held[nr_before..]
                    .iter_mut()
                    .for_each(|page| stamp(page, mark));
            }
            Err(NoSuchParcel | NotYours) => {}
            Err(_) => self.out.push(ticket),
        }
    }
}

fn stamp(bytes: &mut [u8], mark: u64) {
    let len = bytes.len();
    bytes[..8].copy_from_slice(&mark.to_le_bytes());
    bytes[len - 8..].copy_from_slice(&mark.to_le_bytes());
}

/// What a page is stamped with; none if its two halves differ.
fn stamped(bytes: &[u8]) -> Option<u64> {
    let (first, last) = (bytes.first_chunk::<8>()?, bytes.last_chunk::<8>()?);
    (first == last).then(|| u64::from_le_bytes(*first))
}

#[track_caller]
fn check(bytes: &[u8], mark: u64) {
    assert_eq!(stamped(bytes), Some(mark), "somebody else wrote to a page");
}

fn spawn(kept: &Kept, random: &mut Xorshift, at: usize) -> Victim {
    let seed = random.below(u64::MAX);
    Victim::spawn(&kept.keeper, &format!("fly {at} {seed}"))
}

#[tokio::test]
async fn hand_overs_outlive_daemons_that_are_killed_under_them() {
    let told = std::env::var("HUGEPOOL_TEST_SEED").ok();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = told.and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(now.unwrap().subsec_nanos()));
    eprintln!("HUGEPOOL_TEST_SEED={seed}");
    let mut random = Xorshift(seed | 1);
    let mut kept = Kept::start(ZONES, None);
    let mut flyers: Vec<Victim> = (0..NR_FLYERS)
        .map(|at| spawn(&kept, &mut random, at))
        .collect();
    flyers
        .iter_mut()
        .for_each(|flyer| assert_eq!(flyer.line(), "ready"));
    for round in 0..NR_ROUNDS {
        let pause = random.below(300_000);
        // tidy: sleep: the moment of the kill is what is chosen here, nothing is waited for
        tokio::time::sleep(Duration::from_micros(pause)).await;
        if round % 2 == 1 {
            // A process dies while no daemon is there, or just before or after.
            let at = random.index(NR_FLYERS);
            let next = spawn(&kept, &mut random, at);
            std::mem::replace(&mut flyers[at], next).kill();
        }
        kept.kill(Signal::SIGKILL);
        let mut admin = grpc::admin(&kept.keeper).await;
        verify(&mut admin).await;
    }
    let mut nr_claimed = 0;
    for flyer in &mut flyers {
        flyer.tell("stop");
        let said = flyer.line();
        let said = if said == "ready" { flyer.line() } else { said };
        let nr = said.strip_prefix("claimed ").expect("what it has claimed");
        nr_claimed += nr.parse::<u64>().unwrap();
    }
    for flyer in &mut flyers {
        flyer.tell("back");
        assert_eq!(flyer.line(), "landed");
    }
    // While all of them are there still, all is home.
    let mut admin = grpc::admin(&kept.keeper).await;
    let end = Instant::now() + support::DEADLINE;
    loop {
        let all = v1::DrainLanesRequest::default();
        admin.drain_lanes(all).await.unwrap();
        let lent = verify(&mut admin).await.lent;
        if lent == 0 {
            break;
        }
        assert!(Instant::now() < end, "{lent} pages are with nobody");
    }
    let clients = admin.list_clients(v1::ListClientsRequest::default()).await;
    let clients = clients.unwrap().into_inner().clients;
    let nr_misuses: u64 = clients.iter().map(|client| client.nr_misuses).sum();
    // A place that was half kept when its daemon died, and of which nobody was told, stays until its
    // process ends: so a process may have two.
    let pids: BTreeSet<u32> = clients.iter().map(|client| client.pid).collect();
    assert_eq!((pids.len(), nr_misuses), (NR_FLYERS, 0), "{clients:?}");
    for flyer in flyers {
        assert!(flyer.end().success());
    }
    eprintln!("{NR_ROUNDS} deaths of the daemon; those who lived claimed {nr_claimed} times");
    kept.end();
}

#[tokio::test]
async fn a_channel_outlives_its_daemon_and_tells_of_an_end_that_is_killed() {
    let mut kept = Kept::start(ZONES, None);
    let options = Options::default().runtime_dir(kept.path());
    let client = attach(&options.deadline(support::DEADLINE));
    let (mut receiver, name) = channel::receiver(&client, 8).unwrap();
    let (mut waiting, unjoined) = channel::sender(&client, 8).unwrap();
    let mut victim = Victim::start(&kept.keeper, &format!("send {name}"));
    let receive = |receiver: &mut channel::Receiver| {
        let parcel = receiver.recv_parcel(support::DEADLINE)?;
        assert_eq!(parcel.len(), 10);
        parcel.iter().for_each(|page| check(page, 77));
        Ok::<_, RecvError>(parcel)
    };
    victim.tell("more");
    let first = receive(&mut receiver).unwrap();
    // On its way while there is no daemon.
    victim.tell("more");
    assert_eq!(victim.line(), "sent");
    kept.kill(Signal::SIGKILL);
    let second = receive(&mut receiver).unwrap();
    victim.tell("more");
    let third = receive(&mut receiver).unwrap();
    // The next daemon knows the channels by name, and what ends are free.
    victim.tell(&format!("join {unjoined}"));
    while victim.line() != "joined" {}
    let taken = channel::join_sender(&client, name).unwrap_err();
    assert_eq!(taken, ChannelError::Taken);
    victim.tell("more");
    while victim.line() != "sent" {}
    // Its own end of the other channel went with its receiver, before it died itself.
    let mut one = client.alloc_exact(1).unwrap();
    let ended = waiting.send_pages(&mut one, support::DEADLINE);
    assert!(ended.is_err() && one.len() == 1, "{ended:?}");
    victim.kill();
    // What it had sent and nobody had claimed went home with it; then comes its end.
    let end = loop {
        match receive(&mut receiver) {
            Ok(_) | Err(RecvError::Claim(_)) => {}
            Err(RecvError::End(end)) => break end,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(end, RingEnd::Gone);
    drop((first, second, third, one));
    drop((receiver, waiting, client));
    let mut admin = grpc::admin(&kept.keeper).await;
    grpc::until_lent(&mut admin, 0).await;
    verify(&mut admin).await;
    kept.end();
}
