//! `bench pipeline`: pages from one process to another, in parcels of 65 through channels.
//!
//! `borrow_return`: the other one looks at them and gives them back, the steady case;
//! `handover_free_by_receiver`: it frees them, and each page goes through the daemon's custody on its
//! way back; `shared`: sealed pages, a ticket for each holding, which ends when it was looked at. Both processes are tied to a processor of their own, as the peer's are; the daemon runs
//! where there is room. Processor time is that of whole processes, by the system's count.

use std::{fs, os::unix::net::UnixStream, path::Path, time::Duration, time::Instant};

use hugepool::{
    Client, HandOverError, Options, Page, SharedPage, channel, channel::Receiver, channel::Sender,
};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::json;

use super::{consumer::Consumer, report::Report};
use crate::outcome::Failure;

/// Pages of a parcel: 256 KiB of data and a page for the head.
pub const PAGES: usize = 65;
/// Parcels on their way at a time.
const IN_FLIGHT: usize = 8;
/// Tickets that a channel holds.
const CAPACITY: u32 = 64;
/// Parcels of a window.
const PARCELS: u32 = 20_000;
/// No step of a window takes so long.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Looks at a channel before it sleeps: a little, since the daemon needs a processor too.
pub const SPINS: u32 = 300;

/// What one window took.
struct Window {
    /// Nanoseconds a page.
    ns: f64,
    daemon_ns: f64,
    all_ns: f64,
}

/// The producer's side.
struct Producer {
    client: Client,
    sender: Sender,
    back: Receiver,
    consumer: Consumer,
    daemon: i32,
}

/// Runs all cases with `reps` windows each.
pub fn run(reps: u32, runtime_dir: Option<&Path>, report: &Report<'_>) -> Result<(), Failure> {
    let client = super::attach(runtime_dir, Options::default())?;
    let (mut sender, there) = channel::sender(&client, CAPACITY).map_err(cannot)?;
    let (mut back, home) = channel::receiver(&client, CAPACITY).map_err(cannot)?;
    sender.set_spins(SPINS);
    back.set_spins(SPINS);
    let consumer = Consumer::start(&there.to_string(), &home.to_string(), runtime_dir)?;
    let mut producer = Producer {
        client,
        sender,
        back,
        consumer,
        daemon: daemon_pid(runtime_dir)?,
    };
    super::consumer::tie_to(0);
    for touch in [false, true] {
        let windows = producer.windows(reps, "give", touch)?;
        let arm = || json!({ "touch": u8::from(touch) });
        let pages = PAGES as u64;
        let of = |windows: &[Window], what: fn(&Window) -> f64| -> Vec<f64> {
            windows.iter().map(what).collect()
        };
        report.measured(
            "borrow_return",
            pages,
            "ns/page",
            &of(&windows, |w| w.ns),
            arm(),
        )?;
        let arm_of = |flow: &str| json!({ "touch": u8::from(touch), "flow": flow });
        let cpu = of(&windows, |w| w.all_ns);
        report.measured("all_cpu", pages, "ns/page", &cpu, arm_of("borrow_return"))?;

        let windows = producer.windows(reps, "free", touch)?;
        let flow = "handover_free_by_receiver";
        report.measured(flow, pages, "ns/page", &of(&windows, |w| w.ns), arm())?;
        let cpu = of(&windows, |w| w.daemon_ns);
        report.measured("daemon_cpu", pages, "ns/page", &cpu, arm_of(flow))?;
        let cpu = of(&windows, |w| w.all_ns);
        report.measured("all_cpu", pages, "ns/page", &cpu, arm_of(flow))?;
    }
    let windows = producer.windows(reps, "share", true)?;
    let ns: Vec<f64> = windows.iter().map(|w| w.ns).collect();
    report.measured("shared", 1, "ns/page", &ns, json!({ "touch": 1 }))
}

impl Producer {
    fn windows(&mut self, reps: u32, what: &str, touch: bool) -> Result<Vec<Window>, Failure> {
        // The first one warms up.
        self.window(what, touch)?;
        (0..reps).map(|_| self.window(what, touch)).collect()
    }

    fn window(&mut self, what: &str, touch: bool) -> Result<Window, Failure> {
        self.consumer.begin(what, touch, PARCELS)?;
        let before = (self.daemon_cpu()?, self.all_cpu()?);
        let begun = Instant::now();
        let mut nr_pages = PAGES as f64;
        if what == "give" {
            self.lend(touch)?;
        } else if what == "share" {
            self.share()?;
            nr_pages = 1.0;
        } else {
            self.send(touch)?;
        }
        self.consumer.finished()?;
        let took = begun.elapsed();
        let after = (self.daemon_cpu()?, self.all_cpu()?);
        let per_page = |ns: u64| ns as f64 / (f64::from(PARCELS) * nr_pages);
        Ok(Window {
            ns: per_page(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)),
            daemon_ns: per_page(after.0.saturating_sub(before.0)),
            all_ns: per_page(after.1.saturating_sub(before.1)),
        })
    }

    /// Lends parcels and takes them back, so many at a time; each time the pages come from the lane
    /// and go there.
    fn lend(&mut self, touch: bool) -> Result<(), Failure> {
        let mut pages = Vec::with_capacity(PAGES);
        let (mut nr_sent, mut nr_back) = (0, 0);
        while nr_back < PARCELS {
            while nr_sent < PARCELS && (nr_sent - nr_back) as usize <= IN_FLIGHT {
                self.send_one(&mut pages, touch)?;
                nr_sent += 1;
            }
            let ticket = self.back.recv(PATIENCE).map_err(cannot)?;
            self.client.take_back(ticket, &mut pages).map_err(cannot)?;
            self.client.free_pages_bulk_list(&mut pages);
            nr_back += 1;
        }
        Ok(())
    }

    /// Shares sealed pages one after the other, each as often as its turn comes.
    fn share(&mut self) -> Result<(), Failure> {
        let pages = self.client.alloc_exact(PAGES).map_err(super::short)?;
        let sealed = pages.into_iter().map(|page| self.client.share(page));
        let sealed: Vec<SharedPage> = sealed
            .collect::<Result<_, _>>()
            .map_err(|(why, _)| cannot(why))?;
        for page in sealed.iter().cycle().take(PARCELS as usize) {
            let end = Instant::now() + PATIENCE;
            let ticket = loop {
                match page.hand_over() {
                    // Their taker has not let go of so many, or the daemon has not looked.
                    Err(HandOverError::OutboxFull) if Instant::now() < end => {
                        std::thread::yield_now();
                    }
                    answer => break answer.map_err(cannot)?,
                }
            };
            self.sender.send(ticket, PATIENCE).map_err(cannot)?;
        }
        Ok(())
    }

    fn send(&mut self, touch: bool) -> Result<(), Failure> {
        let mut pages = Vec::with_capacity(PAGES);
        for _ in 0..PARCELS {
            self.send_one(&mut pages, touch)?;
        }
        Ok(())
    }

    #[inline]
    fn send_one(&mut self, pages: &mut Vec<Page>, touch: bool) -> Result<(), Failure> {
        while pages.len() < PAGES {
            let nr_missing = PAGES - pages.len();
            // From the lane; a call where it is empty.
            let bulk = self.client.alloc_pages_bulk_list(nr_missing, pages);
            if let Some(why) = bulk.shortfall.filter(|_| bulk.populated == 0) {
                return Err(super::short(why));
            }
        }
        if touch {
            for page in &mut *pages {
                page[..8].copy_from_slice(&0x5bd1_e995_u64.to_le_bytes());
            }
        }
        self.sender.send_pages(pages, PATIENCE).map_err(cannot)?;
        Ok(())
    }

    fn daemon_cpu(&self) -> Result<u64, Failure> {
        cpu_ns(self.daemon)
    }

    fn all_cpu(&self) -> Result<u64, Failure> {
        let consumer = i32::try_from(self.consumer.pid()).unwrap_or(0);
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        Ok(cpu_ns(self.daemon)? + cpu_ns(consumer)? + cpu_ns(own)?)
    }
}

/// Processor time of a process so far, its threads together, by the scheduler's count.
fn cpu_ns(pid: i32) -> Result<u64, Failure> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ends meanwhile has its time in none of these; none does here.
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split(' ').next();
        sum += first.and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// The process that made the daemon's sockets.
fn daemon_pid(runtime_dir: Option<&Path>) -> Result<i32, Failure> {
    let dir = runtime_dir
        .ok_or_else(|| Failure::usage("no run-time directory", "this is the bench's own fault"))?;
    let stream = UnixStream::connect(dir.join("admin.sock"))?;
    let peer = getsockopt(&stream, PeerCredentials).map_err(std::io::Error::from)?;
    Ok(peer.pid())
}

pub fn cannot(error: impl std::fmt::Display) -> Failure {
    Failure::refused(error, "see 'hugepoolctl status'")
}
