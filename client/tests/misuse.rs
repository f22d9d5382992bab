//! What no safe program can ask for, asked for by call: refused, counted, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{io::IoSliceMut, time::Duration};

use hugepool::{Client, Request};
use hugepool_proto::v1::{
    AllocBulkRequest, FreeBulkRequest, FreeBulkResponse, OfflineSectionsRequest, PageCounts,
    RemoveSectionsRequest, Run, pages_client::PagesClient, refused::Reason,
};
use nix::{
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};
use support::Daemon;
use tonic::transport::{Channel, Endpoint};

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

/// A session that is a connection's own.
struct Session {
    runtime: tokio::runtime::Runtime,
    pages: PagesClient<Channel>,
    next_id: u64,
}

impl Session {
    fn open(daemon: &Daemon) -> Session {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let socket = format!("unix://{}", daemon.dir().join("pages.sock").display());
        let channel = runtime
            .block_on(Endpoint::from_shared(socket).unwrap().connect())
            .unwrap();
        Session {
            runtime,
            pages: PagesClient::new(channel),
            next_id: 1,
        }
    }

    fn alloc(&mut self, order: u32, nr_pages: u32) -> Vec<Run> {
        let request = AllocBulkRequest {
            request_id: self.id(),
            order,
            nr_pages,
            ..AllocBulkRequest::default()
        };
        let answer = self
            .runtime
            .block_on(self.pages.alloc_bulk(request))
            .unwrap()
            .into_inner();
        assert_eq!(answer.nr_pages, nr_pages);
        answer.runs
    }

    fn free(&mut self, runs: &[Run]) -> FreeBulkResponse {
        let request_id = self.id();
        let request = FreeBulkRequest {
            request_id,
            acknowledged: request_id - 1,
            runs: runs.to_vec(),
        };
        self.runtime
            .block_on(self.pages.free_bulk(request))
            .unwrap()
            .into_inner()
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

/// What a refused free must leave as it is.
fn books(daemon: &mut Daemon) -> PageCounts {
    daemon.verify().pages.unwrap()
}

/// R16: freeing an address that heads no block ended the daemon.
#[test]
fn r16_a_free_of_a_middle_page_a_foreign_pfn_or_a_wrong_order_is_refused_alone() {
    let mut daemon = Daemon::start("r16");
    let mut session = Session::open(&daemon);
    let block = session.alloc(3, 1)[0];
    let one = session.alloc(0, 1)[0];
    let before = books(&mut daemon);
    let free_pfn = before.present; // Beyond what is present: nobody has it.
    let cases = [
        (
            Run {
                first_pfn: block.first_pfn + 1,
                order: 0,
                ..block
            },
            "the middle of a block",
        ),
        (
            Run {
                first_pfn: u32::try_from(free_pfn).unwrap(),
                ..one
            },
            "a pfn without a page",
        ),
        (
            Run {
                first_pfn: u32::MAX,
                ..one
            },
            "the last pfn there can be",
        ),
        (Run { order: 2, ..block }, "a smaller order"),
        (
            Run {
                order: 4,
                first_pfn: block.first_pfn & !15,
                ..block
            },
            "a larger order",
        ),
        (
            Run {
                generation: one.generation.wrapping_add(1),
                ..one
            },
            "another lend",
        ),
        (
            Run {
                first_pfn: block.first_pfn + 3,
                ..block
            },
            "a head that is not aligned",
        ),
    ];
    for (run, what) in cases {
        let answer = session.free(&[run]);
        assert_eq!(answer.nr_pages, 0, "{what}");
        assert_eq!(answer.refused.len(), 1, "{what}");
        assert_ne!(answer.refused[0].reason(), Reason::Unspecified, "{what}");
        assert_eq!(books(&mut daemon), before, "{what}");
    }
    // The right ones still count, in the same call as a wrong one.
    let answer = session.free(&[cases[0].0, block, one]);
    assert_eq!((answer.nr_pages, answer.refused.len()), (2, 1));
    daemon.verify();
}

/// R25: a second free made a cycle in the free list, and two owners got the same page.
#[test]
fn r25_a_second_free_is_refused_and_nobody_gets_the_page_twice() {
    let mut daemon = Daemon::start("r25");
    let mut session = Session::open(&daemon);
    let p = session.alloc(0, 1)[0];
    assert_eq!(session.free(&[p]).nr_pages, 1);
    let again = session.free(&[p]);
    assert_eq!(again.nr_pages, 0);
    assert_eq!(again.refused[0].reason(), Reason::NotYours);
    // Twice in one call, too.
    let p = session.alloc(0, 1)[0];
    let twice = session.free(&[p, p]);
    assert_eq!((twice.nr_pages, twice.refused.len()), (1, 1));

    let (q, r) = (session.alloc(0, 1)[0], session.alloc(0, 1)[0]);
    assert_ne!(q.first_pfn, r.first_pfn);
    daemon.verify();
}

/// R26: a cached pointer was used after its backing had gone. Here: a fault, or bytes that are
/// nobody's; never those of another client.
///
/// Seen to fail: an engine that goes on announcing a section while it is being removed.
#[test]
fn r26_a_stale_address_never_shows_another_clients_bytes() {
    let daemon = Daemon::with_zones("r26", &["normal=16MiB,backing=shm,reserve=256MiB"]);
    let client = daemon.attach("stale");
    let mut page = client.alloc_page().unwrap();
    page.fill(0x11);
    let address = page.as_ptr().addr();
    let section = page.pfn() / 2048;
    drop(page);
    let ids = vec![section];
    let offline = OfflineSectionsRequest {
        section_ids: ids.clone(),
        timeout_ms: 5000,
        ..Default::default()
    };
    let answer = daemon.ask(|mut admin| async move { admin.offline_sections(offline).await });
    assert!(answer.results[0].ok, "{answer:?}");
    let remove = RemoveSectionsRequest {
        section_ids: ids,
        ..Default::default()
    };
    let answer = daemon.ask(|mut admin| async move { admin.remove_sections(remove).await });
    assert!(answer.results[0].ok, "{answer:?}");

    // Another client writes all that there is.
    let other = daemon.attach("other");
    let mut all = Vec::new();
    while short(&other)
        .alloc_pages_bulk_list(1024, &mut all)
        .populated
        > 0
    {}
    all.iter_mut().for_each(|page| page.fill(0x99));

    // The kernel reads for us, so that a fault is an answer.
    if let Some(bytes) = read_own_memory(address) {
        let start = &bytes[..8];
        assert!(
            bytes.iter().all(|&byte| byte == 0),
            "somebody's bytes: {start:x?}"
        );
    }
    // The next refill takes the section out of the map, and the address faults from then on.
    assert!(short(&client).alloc_exact(4096).is_err());
    assert!(read_own_memory(address).is_none(), "it is still mapped");
}

/// What a load of a page's bytes would find, or `None` where it would fault.
fn read_own_memory(address: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0xff; 4096];
    let len = bytes.len();
    let from = [RemoteIoVec { base: address, len }];
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let nr_read = process_vm_readv(Pid::this(), into, &from).ok()?;
    (nr_read == len).then_some(bytes)
}

fn short(client: &Client) -> Request<'_> {
    client.with_deadline(Duration::ZERO)
}
