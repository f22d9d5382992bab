//! Pages from one client to another: parcels, tickets, claims, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use hugepool::{ClaimError, Client, HandOverError, Order, Page, Ticket};
use support::Daemon;

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

/// A process has eight clients at most: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(client: &Client, count: usize) -> Vec<Page> {
    client.alloc_exact(count).unwrap()
}

fn fill(pages: &mut [Page], mark: u8) {
    pages.iter_mut().for_each(|page| page.fill(mark));
}

fn hold(pages: &[Page], mark: u8) -> bool {
    pages
        .iter()
        .all(|page| page.iter().all(|&byte| byte == mark))
}

/// Everything is home but what lies in lanes, and nobody has claimed what was not its own.
fn end(mut daemon: Daemon, clients: impl IntoIterator<Item = Client>) {
    drop(clients.into_iter().collect::<Vec<_>>());
    daemon.wait_for_pages("all is home", |pages| pages.lent == 0);
    daemon.verify();
    let status = daemon.ask(|mut admin| async move {
        admin
            .get_status(hugepool_proto::v1::GetStatusRequest {})
            .await
    });
    assert_eq!(status.nr_misuses, 0);
}

#[test]
fn the_first_claim_has_the_pages_and_the_others_hear_who() {
    let _alone = alone();
    let daemon = Daemon::start("claim");
    let [a, b, c] = ["a", "b", "c"].map(|name| daemon.attach(name));
    let mut pages = take(&a, 65);
    fill(&mut pages, 7);
    let pfns: Vec<u32> = pages.iter().map(Page::pfn).collect();
    let ticket = a.hand_over_bulk(&mut pages).unwrap();
    assert!(pages.is_empty());

    let parcel = b.claim(ticket).unwrap();
    assert!(parcel.iter().map(Page::pfn).eq(pfns));
    assert!(hold(&parcel, 7));
    let Err(ClaimError::Claimed { by }) = c.claim(ticket) else {
        panic!("two have it")
    };
    assert!(matches!(b.claim(ticket), Err(ClaimError::Claimed { by: again }) if again == by));
    assert!(matches!(
        a.take_back(ticket, &mut pages),
        Err(ClaimError::Claimed { .. })
    ));

    // Taken out, they are its own: it hands them on, and the last one frees them.
    let mut own = parcel.into_pages();
    fill(&mut own, 9);
    let on = b.hand_over_bulk(&mut own).unwrap();
    let mut at_c = Vec::new();
    assert_eq!(c.claim_pages(on, &mut at_c), Ok(65));
    assert!(hold(&at_c, 9));
    c.free_pages_bulk(at_c);
    end(daemon, [a, b, c]);
}

#[test]
fn what_nobody_claimed_is_taken_back_and_cannot_be_claimed() {
    let _alone = alone();
    let daemon = Daemon::start("back");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let mut page = a.alloc_page().unwrap();
    page.fill(3);
    let ticket = page.hand_over().unwrap();
    let mut back = Vec::new();
    assert_eq!(b.take_back(ticket, &mut back), Err(ClaimError::NotYours));
    assert_eq!(a.take_back(ticket, &mut back), Ok(1));
    assert!(hold(&back, 3));
    assert!(matches!(b.claim(ticket), Err(ClaimError::TakenBack)));
    assert_eq!(
        a.take_back(ticket, &mut back),
        Err(ClaimError::NoSuchParcel)
    );
    // The slot's next parcel has another name.
    let next = a.hand_over_bulk(&mut back).unwrap();
    assert_ne!(next, ticket);
    assert!(matches!(b.claim(ticket), Err(ClaimError::NoSuchParcel)));
    drop(b.claim(next).unwrap());
    end(daemon, [a, b]);
}

#[test]
fn a_parcel_is_borrowed_and_given_back_without_the_daemon() {
    let _alone = alone();
    let daemon = Daemon::start("borrow");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let mut pages = take(&a, 65);
    // More rounds than there are slots or room for notices: nothing is used up by it.
    for round in 0..3000_u32 {
        let mark = u8::try_from(round % 251).unwrap();
        pages[64][4095] = mark;
        let ticket = a.hand_over_bulk(&mut pages).unwrap();
        let mut parcel = b.claim(ticket).unwrap();
        assert_eq!(parcel[64][4095], mark);
        parcel.block_mut(0).unwrap()[0] = mark;
        let back = parcel.give_back().unwrap();
        assert_eq!(back, ticket);
        assert!(b.claim(ticket).is_err());
        assert_eq!(a.take_back(back, &mut pages), Ok(65));
        assert_eq!(pages[0][0], mark);
    }
    a.free_pages_bulk(pages);
    end(daemon, [a, b]);
}

#[test]
fn parcels_are_freed_whole_for_as_long_as_anybody_likes() {
    let _alone = alone();
    let daemon = Daemon::start("freed");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let mut pages = Vec::new();
    let mut nr_full = 0;
    for _ in 0..2000 {
        while pages.len() < 65 {
            let bulk = a.alloc_pages_bulk_list(65 - pages.len(), &mut pages);
            assert!(bulk.populated > 0, "{bulk:?}");
        }
        let ticket = loop {
            match a.hand_over_bulk(&mut pages) {
                Ok(ticket) => break ticket,
                Err(HandOverError::OutboxFull) => nr_full += 1,
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        };
        loop {
            match b.claim(ticket) {
                Ok(parcel) => break drop(parcel),
                Err(ClaimError::ReturnsFull) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
    println!("{nr_full} times the outbox was full");
    end(daemon, [a, b]);
}

#[test]
fn blocks_of_all_orders_and_zones_go_and_a_parcel_lies_in_one_zone() {
    let _alone = alone();
    let daemon = Daemon::start("orders");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let mut pages = vec![
        a.alloc_pages(Order::new(9).unwrap()).unwrap(),
        a.alloc_pages(Order::new(5).unwrap()).unwrap(),
        a.alloc_page().unwrap(),
    ];
    let movable = a.with_zone("movable").unwrap();
    let movable = movable.with_migratetype(hugepool::Migratetype::Movable);
    pages.push(movable.alloc_page().unwrap());
    fill(&mut pages, 5);
    assert_eq!(
        a.hand_over_bulk(&mut pages),
        Err(HandOverError::SeveralZones)
    );
    let other = pages.pop().unwrap().hand_over().unwrap();
    let ticket = a.hand_over_bulk(&mut pages).unwrap();
    let parcel = b.claim(ticket).unwrap();
    let orders: Vec<u32> = parcel.iter().map(Page::order).collect();
    assert_eq!(orders, [9, 5, 0]);
    assert!(hold(&parcel, 5));
    drop(parcel);
    let page = b.claim(other).unwrap().into_page().unwrap();
    assert!(page.iter().all(|&byte| byte == 5));
    drop(page);
    end(daemon, [a, b]);
}

#[test]
fn what_cannot_be_one_parcel_stays_with_the_caller() {
    let _alone = alone();
    let daemon = Daemon::start("refused");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let mut pages = Vec::new();
    assert_eq!(a.hand_over_bulk(&mut pages), Err(HandOverError::Nothing));
    pages = take(&a, 257);
    assert_eq!(
        a.hand_over_bulk(&mut pages),
        Err(HandOverError::TooMany { nr_blocks: 257 })
    );
    assert_eq!(
        b.hand_over_bulk(&mut pages[..0].iter().map(|_| unreachable!()).collect()),
        Err(HandOverError::Nothing)
    );
    pages.truncate(256);
    let mut mixed: Vec<Page> = pages.drain(..3).collect();
    mixed.push(b.alloc_page().unwrap());
    assert_eq!(
        a.hand_over_bulk(&mut mixed),
        Err(HandOverError::OtherClient)
    );
    assert_eq!(
        b.hand_over_bulk(&mut mixed),
        Err(HandOverError::OtherClient)
    );
    assert_eq!((pages.len(), mixed.len()), (253, 4));
    drop((pages, mixed));
    // As many parcels as there are slots, and one more.
    let mut tickets = Vec::new();
    let last = loop {
        match a.alloc_page().unwrap().hand_over() {
            Ok(ticket) => tickets.push(ticket),
            Err((why, page)) => {
                assert_eq!(why, HandOverError::OutboxFull);
                break page;
            }
        }
    };
    assert_eq!(tickets.len(), 512);
    drop(b.claim(tickets[100]).unwrap());
    // The daemon settles it by itself: it was told that the outbox is full.
    let mut page = last;
    let begun = std::time::Instant::now();
    loop {
        match page.hand_over() {
            Ok(ticket) => break tickets.push(ticket),
            Err((_, back)) => page = back,
        }
        assert!(begun.elapsed() < support::PATIENCE);
        std::thread::yield_now();
    }
    // What is offered stays the sender's for as long as its process lives.
    for ticket in tickets {
        let is_back = a.take_back(ticket, &mut Vec::new()).is_ok();
        assert!(
            is_back
                || matches!(
                    b.claim(ticket),
                    Err(ClaimError::Claimed { .. } | ClaimError::NoSuchParcel)
                )
        );
    }
    end(daemon, [a, b]);
}

#[test]
fn forged_tickets_name_nothing() {
    let _alone = alone();
    let mut daemon = Daemon::start("forged");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let mut pages = take(&a, 3);
    let ticket = a.hand_over_bulk(&mut pages).unwrap();
    let mut nr_tried = 0;
    // Each bit turned, and numbers at random.
    let mut random = 0x1234_5678_9abc_def1_u64;
    let flipped = (0..64).map(|bit| ticket.bits() ^ 1 << bit);
    let wild = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    });
    for bits in flipped
        .chain(wild.take(20_000))
        .chain([1, u64::MAX, 1 << 48])
    {
        let Some(forged) = Ticket::from_bits(bits) else {
            continue;
        };
        nr_tried += 1;
        assert!(b.claim(forged).is_err(), "{forged:?}");
        assert!(a.claim(forged).is_err(), "{forged:?}");
    }
    assert!(nr_tried > 500);
    daemon.verify();
    drop(b.claim(ticket).unwrap());
    end(daemon, [a, b]);
}

#[test]
fn a_ticket_of_another_daemon_or_of_a_former_client_is_refused() {
    let _alone = alone();
    let daemon = Daemon::start("other-a");
    let other = Daemon::start("other-b");
    let a = daemon.attach("a");
    let b = daemon.attach("b");
    let at_other = [other.attach("a"), other.attach("b")];
    let ticket = a.alloc_page().unwrap().hand_over().unwrap();
    assert!(at_other[1].claim(ticket).is_err());
    let theirs = at_other[0].alloc_page().unwrap().hand_over().unwrap();
    assert!(b.claim(theirs).is_err());
    drop(b.claim(ticket).unwrap());
    drop(at_other[1].claim(theirs).unwrap());
    end(other, at_other);
    end(daemon, [a, b]);
}
