//! `bench flood`: what a good client notices of bad ones.
//!
//! The good client refills 65 slots from its lane and asks for pages by call; measured is the 99th
//! percentile of both, alone and under each flood, in turns. The floods come from a process of
//! the lowest priority, so that what is measured is the daemon's time and not the processor's:
//! messages of every wrong length, connections opened and closed, connections that say nothing
//! (10 000 are tried, the daemon keeps what its limits allow), requests that are no HTTP/2, and a
//! stream that nobody reads. Beside it the daemon's memory.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Lines, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hugepool::{Client, Options, Page, runtime_dir};
use hugepool_proto::v1::{AllocBulkRequest, FreeBulkRequest, pages_client::PagesClient};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket,
};
use serde_json::json;
use tonic::transport::{Channel, Endpoint};

use super::{attach, report::Report, short};
use crate::outcome::{Failure, Outcome};

/// Connections that say nothing.
const HALF_OPEN: usize = 10_000;
/// Refills and calls of one window.
const REFILLS: u32 = 4_000;
const CALLS: u32 = 400;
const SLOTS: usize = 65;

/// What the bad ones do.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Messages of lengths that no message has.
    Garbage,
    /// Attach connections opened and closed.
    Connects,
    /// Connections that say nothing, on all three sockets, kept open.
    HalfOpen,
    /// Bytes that are no HTTP/2.
    NotHttp,
    /// HTTP/2 begun and never read.
    SlowReaders,
}

const FLOODS: [(&str, Flood); 5] = [
    ("garbage", Flood::Garbage),
    ("connects", Flood::Connects),
    ("half_open", Flood::HalfOpen),
    ("not_http", Flood::NotHttp),
    ("slow_readers", Flood::SlowReaders),
];

/// Measures alone and under each flood, `reps` windows each, in turns. `pid` is the daemon's, if it
/// is the bench's own.
pub async fn run(
    reps: u32,
    dir: Option<&Path>,
    pid: Option<u32>,
    report: &Report<'_>,
) -> Result<(), Failure> {
    let next = "see whether the daemon runs: 'hugepoolctl status'";
    let refuse = |error| Failure::refused(error, next);
    let socket = runtime_dir::find(dir, "attach.sock").map_err(refuse)?;
    let sockets = socket.parent().unwrap_or(Path::new("/")).to_owned();
    let address = format!("unix:{}", sockets.join("pages.sock").display());
    let endpoint = Endpoint::from_shared(address).map_err(|e| Failure::refused(e, next))?;
    let channel = endpoint
        .connect()
        .await
        .map_err(|e| Failure::refused(e, next))?;
    let mut good = Good {
        client: attach(dir, Options::default())?,
        pages: PagesClient::new(channel),
        next_id: 1,
        slots: [const { None }; SLOTS],
    };
    for (name, _) in FLOODS {
        let mut alone = [Vec::new(), Vec::new()];
        let mut under = [Vec::new(), Vec::new()];
        let mut nr = 0;
        let before = resident_kib(pid);
        let mut most_kib = before;
        for _ in 0..reps {
            let [refill, call] = good.window().await?;
            alone[0].push(refill);
            alone[1].push(call);
            let bad = Bad::begin(name, &sockets)?;
            let [refill, call] = good.window().await?;
            under[0].push(refill);
            under[1].push(call);
            most_kib = most_kib.max(resident_kib(pid));
            nr += bad.end();
        }
        for (at, op) in ["refill", "call"].into_iter().enumerate() {
            let arm = |flood: &str, nr: u64| json!({ "op": op, "flood": flood, "nr_bad": nr });
            report.measured("p99", SLOTS as u64, "us", &alone[at], arm("none", 0))?;
            report.measured("p99", SLOTS as u64, "us", &under[at], arm(name, nr))?;
        }
        report.line(json!({
            "case": "memory", "flood": name, "unit": "KiB",
            "before": before, "most": most_kib,
        }))?;
    }
    Ok(())
}

/// Memory of the daemon's own that is resident, shared pages left out; 0 where it cannot be seen.
fn resident_kib(pid: Option<u32>) -> u64 {
    let Some(pid) = pid else { return 0 };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

struct Good {
    client: Client,
    pages: PagesClient<Channel>,
    next_id: u64,
    slots: [Option<Page>; SLOTS],
}

impl Good {
    /// The 99th percentiles of a window, in microseconds: of refills, and of calls.
    async fn window(&mut self) -> Result<[f64; 2], Failure> {
        let mut refills = Vec::new();
        for _ in 0..REFILLS {
            self.client.free_pages_bulk_array(&mut self.slots);
            let begun = Instant::now();
            let bulk = self.client.alloc_pages_bulk_array(&mut self.slots);
            refills.push(begun.elapsed().as_secs_f64() * 1e6);
            if let Some(shortfall) = bulk.shortfall {
                return Err(short(shortfall));
            }
        }
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            let request_id = self.next_id;
            let request = AllocBulkRequest {
                request_id,
                acknowledged: request_id - 1,
                nr_pages: 65,
                ..Default::default()
            };
            let begun = Instant::now();
            let reply = self.pages.alloc_bulk(request).await?.into_inner();
            calls.push(begun.elapsed().as_secs_f64() * 1e6);
            let request = FreeBulkRequest {
                request_id: request_id + 1,
                acknowledged: request_id,
                runs: reply.runs,
            };
            self.pages.free_bulk(request).await?;
            self.next_id += 2;
        }
        Ok([p99(refills), p99(calls)])
    }
}

fn p99(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let at = samples.len() * 99 / 100;
    samples.get(at).copied().unwrap_or(f64::NAN)
}

/// Bad ones at work, in a process that gives way to everybody.
struct Bad {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Bad {
    fn begin(name: &str, sockets: &Path) -> Result<Bad, Failure> {
        let begin = || {
            let child = Command::new("nice")
                .args(["-n", "19"])
                .arg(env::current_exe()?)
                .arg("bench-flooder")
                .arg(name)
                .arg(sockets)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            Ok(child)
        };
        let refuse = |error: io::Error| {
            let what = format!("cannot start who floods: {error}");
            Failure::refused(what, "this is the bench's own fault")
        };
        let mut child = begin().map_err(refuse)?;
        let stdout = child.stdout.take();
        let stdout = stdout.ok_or_else(|| refuse(io::ErrorKind::BrokenPipe.into()))?;
        let mut lines = BufReader::new(stdout).lines();
        // It is at it.
        lines.next().transpose().map_err(refuse)?;
        Ok(Bad { child, lines })
    }

    /// Ends them; returns how often they tried.
    fn end(mut self) -> u64 {
        drop(self.child.stdin.take());
        let last = self.lines.next().and_then(Result::ok);
        // It has said its last.
        let _ = self.child.wait();
        last.and_then(|nr| nr.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Bad {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Floods the sockets in a folder until standard input ends; says when it is at it, and at the end
/// how often it has tried.
pub fn flood(name: &str, sockets: &Path) -> Result<Outcome, Failure> {
    let found = FLOODS.into_iter().find(|(known, _)| *known == name);
    let (_, flood) = found.ok_or_else(|| Failure::usage(name, "this is the bench's own fault"))?;
    let is_over = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let is_over = is_over.clone();
        move || {
            for _ in io::stdin().lines() {}
            is_over.store(true, Ordering::Relaxed);
        }
    });
    let nr = act(flood, sockets, &is_over)?;
    writeln!(io::stdout(), "{nr}")?;
    Ok(Outcome::Done)
}

/// Returns how often it has tried.
fn act(flood: Flood, sockets: &Path, is_over: &AtomicBool) -> Result<usize, Failure> {
    let mut kept = Kept::default();
    let mut turn = 0usize;
    let is_at_it = match flood {
        Flood::HalfOpen => {
            raise_descriptor_limit();
            HALF_OPEN
        }
        _ => 8,
    };
    while !is_over.load(Ordering::Relaxed) {
        turn += 1;
        if turn == is_at_it {
            writeln!(io::stdout(), "go")?;
        }
        match flood {
            Flood::Garbage => {
                // Every length from nothing to more than a message may have.
                let bytes = vec![0xa5; turn * 37 % 70_000];
                if let Some(fd) = attach_connection(&sockets.join("attach.sock")) {
                    // Refused, too long, hung up: what is wanted.
                    let _ = send(
                        fd.as_raw_fd(),
                        &bytes,
                        MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
                    );
                }
            }
            Flood::Connects => drop(attach_connection(&sockets.join("attach.sock"))),
            Flood::HalfOpen => kept.keep_one(sockets, turn),
            Flood::NotHttp => {
                let socket = ["pages.sock", "admin.sock"][turn % 2];
                if let Ok(mut stream) = UnixStream::connect(sockets.join(socket)) {
                    let _ = stream.set_write_timeout(Some(Duration::from_millis(10)));
                    let _ = stream.write_all(&vec![b'G'; 1 + turn % 5_000]);
                }
            }
            Flood::SlowReaders => kept.keep_reader(sockets, turn),
        }
    }
    Ok(turn)
}

/// As many descriptors as the system allows.
fn raise_descriptor_limit() {
    // Refused: then fewer connections are held.
    let _ = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
}

/// Connections that are held open.
#[derive(Default)]
struct Kept {
    seqpackets: Vec<OwnedFd>,
    streams: Vec<UnixStream>,
}

impl Kept {
    fn keep_one(&mut self, sockets: &Path, turn: usize) {
        if self.seqpackets.len() + self.streams.len() >= HALF_OPEN {
            // All are there: let some go, so that it goes on.
            self.seqpackets.clear();
            self.streams.clear();
        }
        match turn % 3 {
            0 => self
                .seqpackets
                .extend(attach_connection(&sockets.join("attach.sock"))),
            at => {
                let name = ["pages.sock", "admin.sock"][at - 1];
                self.streams.extend(UnixStream::connect(sockets.join(name)));
            }
        }
    }

    /// Begins HTTP/2, asks for what is large, and reads nothing.
    fn keep_reader(&mut self, sockets: &Path, turn: usize) {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        if self.streams.len() >= 200 {
            self.streams.clear();
        }
        let name = ["pages.sock", "admin.sock"][turn % 2];
        let Ok(mut stream) = UnixStream::connect(sockets.join(name)) else {
            return;
        };
        let _ = stream.set_nonblocking(true);
        let _ = stream.write_all(PREFACE);
        // Pings, of which each wants an answer that nobody reads.
        for _ in 0..500 {
            if stream
                .write_all(b"\0\0\x08\x06\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08")
                .is_err()
            {
                break;
            }
        }
        let _ = stream.read(&mut [0; 1]);
        self.streams.push(stream);
    }
}

/// A connection to the attach socket, if there is room for one.
fn attach_connection(path: &PathBuf) -> Option<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).ok()?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
    Some(fd)
}
