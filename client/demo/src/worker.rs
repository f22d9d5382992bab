//! A worker: serves the file as a stream of 256 KiB READs from pages of the pool.
//!
//! The shape of the stream is that of `svc_alloc_arg()` in the kernel's NFS server: before
//! each request the array of page slots is refilled, which takes 65 pages after a READ, often
//! 1, sometimes 0. The arms take turns of a few READs each: a loop of single allocations, the bulk
//! list, the bulk array. Talks to the director by lines of JSON on standard output.

use std::{
    fs::File,
    io::{self, BufRead, IoSliceMut, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use hugepool::{Client, Options, Page};
use serde::{Deserialize, Serialize};

use crate::source::{self, READ_BYTES};

/// Pages that a READ of 256 KiB takes: 64 of data and one for the reply's head.
pub const SLOTS: usize = 65;
/// READs in the turn of an arm: 8 MiB.
const TURN: usize = 32;
/// READs after which all arms have had a turn.
const ROUND: usize = TURN * ARMS.len();
const PATIENCE: Duration = Duration::from_secs(10);

/// How the empty slots are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    /// One `alloc_page` for each empty slot.
    Single,
    /// `alloc_pages_bulk_list`, then the list is dealt out to the slots.
    List,
    /// `alloc_pages_bulk_array` on the slots themselves.
    Array,
}

/// All arms, in the order of a round.
pub const ARMS: [Arm; 3] = [Arm::Single, Arm::List, Arm::Array];

/// What a worker tells the director.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Attached, and each arm has had its first turn; it holds `pages` now.
    Serving { pages: usize },
    /// The last word: what was served, and nanoseconds of each call that needed all 65 pages.
    Done {
        bytes: u64,
        checksums_ok: bool,
        calls: [Vec<u32>; 3],
    },
}

/// Serves until standard input ends, then reports.
pub fn run(runtime_dir: &Path, path: &Path) -> anyhow::Result<()> {
    let client = Client::attach(
        Options::default()
            .runtime_dir(runtime_dir)
            .name("demo-worker")
            // A daemon that is restarted on a busy machine is waited for.
            .deadline(PATIENCE),
    )
    .context("cannot attach to the daemon")?;
    let mut server = Server::new(client, path)?;
    let stop = stop_at_end_of_input();

    while server.nr_reads < 2 * ROUND || !stop.load(Relaxed) {
        server.serve_file()?;
    }
    say(&Line::Done {
        bytes: server.bytes,
        checksums_ok: server.checksums_ok,
        calls: server.calls,
    })
}

struct Server {
    client: Client,
    file: File,
    file_bytes: u64,
    checksum: u32,
    slots: [Option<Page>; SLOTS],
    list: Vec<Page>,
    nr_reads: usize,
    bytes: u64,
    checksums_ok: bool,
    calls: [Vec<u32>; 3],
}

impl Server {
    fn new(client: Client, path: &Path) -> anyhow::Result<Server> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let file_bytes = source::served_bytes(file.metadata()?.len());
        Ok(Server {
            client,
            file_bytes,
            file,
            checksum: source::checksum(path, file_bytes)?,
            slots: [const { None }; SLOTS],
            list: Vec::with_capacity(SLOTS),
            nr_reads: 0,
            bytes: 0,
            checksums_ok: true,
            calls: [const { Vec::new() }; 3],
        })
    }

    /// One pass: READs from the first byte to the last, small requests between them.
    fn serve_file(&mut self) -> anyhow::Result<()> {
        let mut hasher = crc32fast::Hasher::new();
        let mut offset = 0;
        while offset < self.file_bytes {
            let arm = ARMS[self.nr_reads / TURN % ARMS.len()];
            self.refill(arm)?;
            let want =
                READ_BYTES.min(usize::try_from(self.file_bytes - offset).unwrap_or(READ_BYTES));
            self.read(offset, want, &mut hasher)?;
            offset += want as u64;
            self.release(SLOTS);
            // A LOOKUP and a GETATTR use one page each, a NULL call none.
            for used in [1, 1, 0] {
                self.refill(arm)?;
                self.release(used);
            }
            self.nr_reads += 1;
            if self.nr_reads == ROUND {
                say(&Line::Serving {
                    pages: self.nr_held(),
                })?;
            }
        }
        self.bytes += self.file_bytes;
        self.checksums_ok &= hasher.finalize() == self.checksum;
        Ok(())
    }

    /// Fills the empty slots; a call that needed all of them is timed.
    fn refill(&mut self, arm: Arm) -> anyhow::Result<()> {
        let empty = self.slots.iter().filter(|slot| slot.is_none()).count();
        let begun = Instant::now();
        match arm {
            Arm::Single => {
                for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
                    *slot = Some(self.client.alloc_page()?);
                }
            }
            Arm::List => {
                while self.list.len() < empty {
                    let bulk = self
                        .client
                        .alloc_pages_bulk_list(empty - self.list.len(), &mut self.list);
                    if let (0, Some(shortfall)) = (bulk.populated, bulk.shortfall) {
                        bail!("the bulk list came back empty: {shortfall}");
                    }
                }
                for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
                    *slot = self.list.pop();
                }
            }
            Arm::Array => {
                let mut before = SLOTS - empty;
                while before < SLOTS {
                    let bulk = self.client.alloc_pages_bulk_array(&mut self.slots);
                    if let (true, Some(shortfall)) = (bulk.populated <= before, bulk.shortfall) {
                        bail!("the bulk array got nothing: {shortfall}");
                    }
                    before = bulk.populated;
                }
            }
        }
        if empty == SLOTS {
            let ns = u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX);
            self.calls[arm as usize].push(ns);
        }
        Ok(())
    }

    /// Reads `want` bytes at `offset` straight into the data pages and checksums them there.
    fn read(
        &mut self,
        offset: u64,
        want: usize,
        hasher: &mut crc32fast::Hasher,
    ) -> anyhow::Result<()> {
        let (head, data) = self.slots.split_at_mut(1);
        if let Some(page) = head[0].as_mut() {
            page[..8].copy_from_slice(&offset.to_le_bytes());
        }
        let mut left = want;
        let mut at = offset;
        for page in data.iter_mut().flatten() {
            let len = left.min(page.len());
            let mut slice: IoSliceMut<'_> = page.as_io_slice_mut();
            self.file.read_exact_at(&mut slice[..len], at)?;
            hasher.update(&slice[..len]);
            at += len as u64;
            left -= len;
            if left == 0 {
                return Ok(());
            }
        }
        bail!("{want} bytes do not fit the {} data pages", SLOTS - 1)
    }

    /// Empties the first `used` slots: their pages are on the wire and done with.
    fn release(&mut self, used: usize) {
        self.client
            .free_pages_bulk(self.slots[..used].iter_mut().filter_map(Option::take));
    }

    fn nr_held(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

/// A flag that rises when standard input ends: the director closes it, or is gone.
pub fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
        }
        raised.store(true, Relaxed);
    });
    stop
}

/// Says a line to the director.
pub fn say(line: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out)?;
    out.flush().context("the director is gone")
}
