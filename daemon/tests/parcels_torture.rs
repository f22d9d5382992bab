//! Pages fly between four processes that are killed at random instants, and at every step of a
//! hand-over: no page is lost, none is doubled, and the books are even after each death.
//!
//! Each process stamps what it claims, and checks the stamps before it lets go of a page: one that
//! two processes have shows. Tickets travel by datagrams, some of them twice, and are claimed, kept,
//! given back, taken back and freed as chance has it.
//!
//! Seen to fail: the transit words of the dead not looked at (pages of a killed taker stay lent to
//! their sender for ever); what it had offered not closed (a posthumous claim brings a page that is
//! free, and is taken for misuse).

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugepool::{ClaimError, Client, Page, Parcel, Ticket};
use hugepool_proto::v1;
use support::Daemon;
use support::grpc::{self, verify};
use support::victim::{Victim, Xorshift, heard, part, say};

const NR_FLYERS: usize = 4;
const NR_KILLS: u32 = 300;

/// One zone of six sections of 4 MiB.
const ZONES: &[&str] = &[
    "--section-size",
    "4MiB",
    "--zone",
    "normal=24MiB,reserve=64MiB,backing=shm",
];

/// Each instant between two writes of a hand-over, and how often it is passed before.
#[cfg(debug_assertions)]
const STEPS: [&str; 8] = [
    "hand_over.signed",
    "hand_over.offered",
    "claim.copied",
    "claim.taken",
    "take_back.withdrawn",
    "take_back.cleared",
    "give_back.given",
    "notice.told",
];

/// Not a test: a process that a test here has started.
#[test]
fn victim() {
    let Some((options, part)) = part() else {
        return;
    };
    let mut words = part.split(' ');
    let (Some("fly"), Some(me), Some(seed)) = (words.next(), words.next(), words.next()) else {
        panic!("no part is called {part}")
    };
    #[cfg(debug_assertions)]
    if let Some(step) = words.next() {
        hugepool_shm::step::die_at(step);
    }
    let dir = PathBuf::from(std::env::var("HUGEPOOL_TEST_DIR").unwrap());
    let options = options
        .deadline(support::DEADLINE)
        .attach_timeout(support::DEADLINE);
    // Among so many that are busy a step of attaching may come too late for the daemon.
    let mut attempts = (0..5).map(|_| Client::attach(options.clone()));
    let client = attempts.find_map(Result::ok).expect("one of five attempts");
    Flyer::new(client, &dir, me.parse().unwrap(), seed.parse().unwrap()).fly();
}

/// What one process has.
struct Flyer {
    client: Client,
    random: Xorshift,
    me: usize,
    mark: u64,
    post: UnixDatagram,
    peers: Vec<PathBuf>,
    held: Vec<Page>,
    /// Claimed and not decided on, with who sent them.
    parcels: Vec<(Parcel, usize)>,
    /// Handed over, and perhaps given back.
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
            me,
            mark: u64::from(std::process::id()) << 32 | seed & 0xffff_ffff,
            post,
            peers,
            held: Vec::new(),
            parcels: Vec::new(),
            out: Vec::new(),
            nr_claimed: 0,
        }
    }

    fn fly(mut self) {
        let (said, orders) = std::sync::mpsc::channel();
        std::thread::spawn(move || while heard().is_some_and(|order| said.send(order).is_ok()) {});
        say("ready");
        loop {
            match orders.try_recv() {
                Err(std::sync::mpsc::TryRecvError::Empty) => {
                    for _ in 0..64 {
                        self.step();
                    }
                    std::thread::yield_now();
                }
                Ok(_) => break,
                Err(_) => return,
            }
        }
        // In peace: first what is here goes home, then, when nobody gives anything back any more,
        // what nobody has.
        self.parcels.clear();
        self.held.clear();
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
        match self.random.below(10) {
            0 => self.take(),
            1..=3 => self.hand_over(),
            4..=6 => self.receive(),
            7 | 8 => self.decide(),
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
        if self.held.len() > 400 {
            return;
        }
        let nr = 1 + self.random.index(65);
        let nr_before = self.held.len();
        // Fewer than asked is ordinary.
        let request = self.client.request().with_deadline(Duration::ZERO);
        let _ = request.alloc_pages_bulk_list(nr, &mut self.held);
        let mark = self.mark;
        self.held[nr_before..]
            .iter_mut()
            .for_each(|page| stamp(page, mark));
    }

    fn hand_over(&mut self) {
        let nr = self.random.index(self.held.len().min(80) + 1);
        let mut some: Vec<Page> = self.held.drain(..nr).collect();
        some.iter().for_each(|page| check(page, self.mark));
        match self.client.hand_over_bulk(&mut some) {
            Ok(ticket) => {
                self.out.push(ticket);
                self.send(ticket);
                if self.random.below(4) == 0 {
                    self.send(ticket);
                }
            }
            // No room, or nothing: they are here still.
            Err(_) => self.held.append(&mut some),
        }
        if self.out.len() > 2000 {
            self.sort_out();
        }
    }

    /// Sends to anybody; who is dead or has no room does not get it.
    fn send(&mut self, ticket: Ticket) {
        let to = self.random.index(NR_FLYERS);
        self.send_to(ticket, to);
    }

    fn send_to(&self, ticket: Ticket, to: usize) {
        let mut message = ticket.to_bytes().to_vec();
        message.push(u8::try_from(self.me).unwrap());
        let _ = self.post.send_to(&message, &self.peers[to]);
    }

    fn receive(&mut self) {
        let mut message = [0; 16];
        let Ok(9) = self.post.recv(&mut message) else {
            return;
        };
        let (bytes, from) = message.split_first_chunk::<8>().unwrap();
        let Some(ticket) = Ticket::from_bytes(*bytes) else {
            return;
        };
        // Second, late and posthumous claims are refused, and nothing else happens.
        let Ok(mut parcel) = self.client.claim(ticket) else {
            return;
        };
        self.nr_claimed += 1;
        assert!(
            parcel.iter().all(|page| stamped(page).is_some()),
            "half a stamp"
        );
        for bytes in parcel.bytes_mut() {
            stamp(bytes, self.mark);
        }
        self.parcels.push((parcel, from[0].into()));
    }

    fn decide(&mut self) {
        if self.parcels.is_empty() {
            return;
        }
        let at = self.random.index(self.parcels.len());
        let (parcel, from) = self.parcels.swap_remove(at);
        parcel.iter().for_each(|page| check(page, self.mark));
        match self.random.below(3) {
            0 => drop(parcel),
            1 => self.held.extend(parcel.into_pages()),
            _ => match parcel.give_back() {
                Ok(ticket) => {
                    self.send_to(ticket, from);
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
        let at = self.random.index(self.out.len());
        let ticket = self.out.swap_remove(at);
        self.take_back_one(ticket);
    }

    /// Takes one back, or keeps its ticket as long as it may still be given back.
    fn take_back_one(&mut self, ticket: Ticket) {
        let nr_before = self.held.len();
        match self.client.take_back(ticket, &mut self.held) {
            // Given back, they bear the mark of who had them.
            Ok(_) => {
                let mark = self.mark;
                self.held[nr_before..]
                    .iter_mut()
                    .for_each(|page| stamp(page, mark));
            }
            Err(ClaimError::NoSuchParcel | ClaimError::NotYours) => {}
            Err(_) => self.out.push(ticket),
        }
    }

    fn sort_out(&mut self) {
        for ticket in std::mem::take(&mut self.out) {
            self.take_back_one(ticket);
        }
    }
}

/// Writes who has the page into its first and last words.
fn stamp(bytes: &mut [u8], mark: u64) {
    let len = bytes.len();
    bytes[..8].copy_from_slice(&mark.to_le_bytes());
    bytes[len - 8..].copy_from_slice(&mark.to_le_bytes());
}

/// Whose stamp a page bears; none if its two halves differ.
fn stamped(page: &Page) -> Option<&[u8]> {
    let (first, last) = (&page[..8], &page[page.len() - 8..]);
    (first == last).then_some(first)
}

#[track_caller]
fn check(page: &Page, mark: u64) {
    let is_ours = stamped(page) == Some(&mark.to_le_bytes()[..]);
    assert!(is_ours, "another process wrote to page {}", page.pfn());
}

/// The processes, and the daemon between them.
struct Sky {
    daemon: Daemon,
    admin: v1::admin_client::AdminClient<tonic::transport::Channel>,
    flyers: Vec<Option<Victim>>,
    random: Xorshift,
}

/// One sky at a time: each of them keeps all processors busy.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

impl Sky {
    async fn new(seed: u64) -> Sky {
        let daemon = Daemon::start(ZONES);
        let admin = grpc::admin(&daemon).await;
        let mut sky = Sky {
            daemon,
            admin,
            flyers: Vec::new(),
            random: Xorshift(seed | 1),
        };
        for at in 0..NR_FLYERS {
            let flyer = sky.spawn(at, "");
            sky.flyers.push(Some(flyer));
        }
        for flyer in sky.flyers.iter_mut().flatten() {
            assert_eq!(flyer.line(), "ready");
        }
        sky
    }

    fn spawn(&mut self, at: usize, step: &str) -> Victim {
        let seed = self.random.below(u64::MAX);
        Victim::spawn(&self.daemon, &format!("fly {at} {seed} {step}"))
    }

    /// Waits until a process is buried: then nothing of it is lent.
    async fn until_buried(&mut self, pid: u32) {
        let end = Instant::now() + support::DEADLINE;
        loop {
            let list = self.admin.list_clients(v1::ListClientsRequest {}).await;
            let clients = list.unwrap().into_inner().clients;
            if !clients.iter().any(|client| client.pid == pid) {
                return;
            }
            assert!(Instant::now() < end, "process {pid} is not buried");
            tokio::task::yield_now().await;
        }
    }

    /// Everybody lands, and while all of them are there still, all is home: nothing was lost to
    /// anybody. Nobody has claimed what was not its own.
    async fn land(mut self) -> u64 {
        let mut nr_claimed = 0;
        let mut flyers: Vec<Victim> = self.flyers.drain(..).flatten().collect();
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
        let end = Instant::now() + support::DEADLINE;
        loop {
            let all = v1::DrainLanesRequest::default();
            self.admin.drain_lanes(all).await.unwrap();
            let lent = verify(&mut self.admin).await.lent;
            if lent == 0 {
                break;
            }
            assert!(Instant::now() < end, "{lent} pages are with nobody");
        }
        let status = self.admin.get_status(v1::GetStatusRequest {}).await;
        assert_eq!(status.unwrap().into_inner().nr_misuses, 0);
        for flyer in flyers {
            assert!(flyer.end().success());
        }
        nr_claimed
    }
}

fn seed() -> u64 {
    let told = std::env::var("HUGEPOOL_TEST_SEED").ok();
    let seed = told.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(now.unwrap().subsec_nanos())
    });
    eprintln!("HUGEPOOL_TEST_SEED={seed}");
    seed
}

async fn kill_at_random(nr_kills: u32) {
    let _alone = ALONE.lock().await;
    let begun = Instant::now();
    let mut sky = Sky::new(seed()).await;
    for _ in 0..nr_kills {
        let at = sky.random.index(NR_FLYERS);
        let pause = sky.random.below(20_000);
        // tidy: sleep: the moment of the kill is what is chosen here, nothing is waited for
        tokio::time::sleep(Duration::from_micros(pause)).await;
        let Some(flyer) = sky.flyers[at].take() else {
            continue;
        };
        let pid = flyer.pid();
        flyer.kill();
        // The next one comes while the last one is being buried.
        let next = sky.spawn(at, "");
        sky.flyers[at] = Some(next);
        sky.until_buried(pid).await;
        verify(&mut sky.admin).await;
    }
    let nr_claimed = sky.land().await;
    let took = begun.elapsed().as_secs();
    eprintln!(
        "{nr_kills} kills in {took} s, no page lost or doubled; those who lived claimed {nr_claimed} parcels"
    );
}

#[tokio::test]
async fn three_hundred_kills_lose_and_double_no_page() {
    kill_at_random(NR_KILLS).await;
}

#[tokio::test]
#[ignore = "takes many minutes; HUGEPOOL_TEST_KILLS says how many, 20000 if not set"]
async fn kills_for_as_long_as_anybody_likes() {
    let told = std::env::var("HUGEPOOL_TEST_KILLS").ok();
    kill_at_random(told.and_then(|text| text.parse().ok()).unwrap_or(20_000)).await;
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn a_death_at_any_step_of_a_hand_over_leaves_each_page_with_one() {
    let _alone = ALONE.lock().await;
    let mut sky = Sky::new(seed()).await;
    let mut at = 0;
    for step in STEPS {
        for nr in [1, 2, 30] {
            at = (at + 1) % NR_FLYERS;
            let Some(flyer) = sky.flyers[at].take() else {
                continue;
            };
            flyer.kill();
            let mut dies = sky.spawn(at, &format!("{step}:{nr}"));
            let pid = dies.pid();
            let ended = support::wait_for(dies.child());
            let signal = std::os::unix::process::ExitStatusExt::signal(&ended);
            assert_eq!(signal, Some(9), "{step} was not reached: {ended}");
            sky.until_buried(pid).await;
            verify(&mut sky.admin).await;
            let next = sky.spawn(at, "");
            sky.flyers[at] = Some(next);
        }
    }
    sky.land().await;
}
