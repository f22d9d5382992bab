//! Many threads, one client: pages taken by one are freed by another, and none is lost or doubled.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use hugepool::{Client, Order, Page};
use support::Daemon;

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

/// Writes the page's own name over its first and last bytes; two owners would see each other's.
fn sign(page: &mut Page, thread: u32) {
    let name = (u64::from(thread) << 32 | u64::from(page.pfn())).to_le_bytes();
    let len = page.len();
    page[..8].copy_from_slice(&name);
    page[len - 8..].copy_from_slice(&name);
}

fn is_signed(page: &Page, thread: u32) -> bool {
    let name = (u64::from(thread) << 32 | u64::from(page.pfn())).to_le_bytes();
    page[..8] == name && page[page.len() - 8..] == name
}

/// One thread's share of the work: single pages, arrays, lists and blocks, some freed here, some
/// sent on.
fn work(client: &Client, thread: u32, next: &mpsc::Sender<(u32, Page)>) {
    let mut array: [Option<Page>; 65] = [const { None }; 65];
    let mut list = Vec::new();
    for round in 0..200_u32 {
        let bulk = client.alloc_pages_bulk_array(&mut array);
        assert!(bulk.populated > 0, "{bulk:?}");
        for page in array.iter_mut().flatten() {
            sign(page, thread);
        }
        if let Ok(mut page) = client.alloc_page() {
            sign(&mut page, thread);
            let _ = next.send((thread, page));
        }
        let _ = client.alloc_pages_bulk_list(8, &mut list);
        list.iter_mut().for_each(|page| sign(page, thread));
        if let Ok(mut block) =
            client.alloc_pages(Order::new(u8::try_from(round % 5).unwrap()).unwrap())
        {
            sign(&mut block, thread);
            let _ = next.send((thread, block));
        }
        assert!(
            array.iter().flatten().all(|page| is_signed(page, thread)),
            "another wrote to it"
        );
        assert!(
            list.iter().all(|page| is_signed(page, thread)),
            "another wrote to it"
        );
        match round % 4 {
            0 => array.iter_mut().for_each(|slot| *slot = None),
            1 => client.free_pages_bulk_array(&mut array),
            2 => client.free_pages_bulk(array.iter_mut().filter_map(Option::take)),
            // Every third slot, so that the next array call meets holes.
            _ => array.iter_mut().step_by(3).for_each(|slot| *slot = None),
        }
        client.free_pages_bulk(list.drain(..));
    }
}

/// Seen to fail: a magazine that does not move its top when it gives a page out.
#[test]
fn pages_taken_by_one_thread_are_freed_by_another() {
    // More threads than lanes: the rest share one.
    const NR_THREADS: u32 = 6;
    let mut daemon = Daemon::start("threads");
    let client = Client::attach(daemon.options("threads").lanes(4)).unwrap();
    let (sender, receiver) = mpsc::channel::<(u32, Page)>();
    let receiver = Arc::new(Mutex::new(receiver));
    let workers: Vec<_> = (0..NR_THREADS)
        .map(|thread| {
            let (client, sender) = (client.clone(), sender.clone());
            thread::spawn(move || work(&client, thread, &sender))
        })
        .collect();
    drop(sender);
    let sinks: Vec<_> = (0..2)
        .map(|_| {
            let receiver = receiver.clone();
            thread::spawn(move || {
                loop {
                    let Ok((thread, page)) = receiver.lock().unwrap().recv() else {
                        break;
                    };
                    assert!(is_signed(&page, thread), "another wrote to it on the way");
                }
            })
        })
        .collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    sinks.into_iter().for_each(|sink| sink.join().unwrap());

    daemon.verify();
    drop(client);
    daemon.wait_for_pages("all are home", |pages| pages.lent == 0);
    daemon.verify();
}

#[test]
fn a_local_lane_takes_and_frees_like_the_client() {
    let mut daemon = Daemon::start("local");
    let client = daemon.attach("local");
    let local = client.local();
    let mut array: [Option<Page>; 65] = [const { None }; 65];
    for _ in 0..100 {
        assert_eq!(local.alloc_pages_bulk_array(&mut array).populated, 65);
        let page = local.alloc_page().unwrap();
        local.free_page(page);
        local.free_pages_bulk_array(&mut array);
        assert!(array.iter().all(Option::is_none));
    }
    // The local lane keeps its client attached.
    drop((local, client));
    daemon.wait_for_pages("all are home", |pages| pages.lent == 0);
    daemon.verify();
}

#[test]
fn pages_outlive_their_client() {
    let mut daemon = Daemon::start("outlive");
    let client = daemon.attach("outlive");
    let mut page = client.alloc_page().unwrap();
    drop(client);
    page.fill(7);
    assert!(page.iter().all(|&byte| byte == 7));
    drop(page);
    daemon.verify();
}

#[test]
fn calls_work_inside_an_asynchronous_runtime() {
    let daemon = Daemon::start("async");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Attached, used and dropped inside it. An order that no lane caches goes by call.
    let taken = runtime.block_on(async {
        let client = daemon.attach("async");
        client
            .alloc_pages(Order::new(5).unwrap())
            .map(|block| block.len())
    });
    assert_eq!(taken, Ok(4096 << 5));
}
