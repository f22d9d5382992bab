//! Pages that several clients read at once: held, passed on, let go of, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use hugepool::{
    ClaimError, Client, HandOverError, Order, SharedPage, Ticket,
    channel::{self, RecvError, RingEnd, SendError},
};
use support::{Daemon, PATIENCE};

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

/// A process has eight clients at most: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seal(client: &Client, mark: u8) -> SharedPage {
    let mut page = client.alloc_page().unwrap();
    page.fill(mark);
    client.share(page).unwrap()
}

fn holds(page: &SharedPage, mark: u8) -> bool {
    page.iter().all(|&byte| byte == mark)
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
fn several_read_one_page_and_the_last_of_them_frees_it() {
    let _alone = alone();
    let daemon = Daemon::start("share");
    let [a, b, c] = ["a", "b", "c"].map(|name| daemon.attach(name));
    let sealed = seal(&a, 7);
    let (pfn, twin) = (sealed.pfn(), sealed.clone());
    let at_b = b.claim_shared(sealed.hand_over().unwrap()).unwrap();
    // Whoever holds it passes it on.
    let at_c = c.claim_shared(at_b.hand_over().unwrap()).unwrap();
    let again = a.claim_shared(at_c.hand_over().unwrap()).unwrap();
    let all = [&sealed, &twin, &at_b, &at_c, &again];
    assert!(all.iter().all(|page| page.pfn() == pfn && holds(page, 7)));
    drop((sealed, twin, again, at_b));
    // Nobody gets it while one holds it.
    let other: Vec<_> = a.alloc_exact(1000).unwrap();
    assert!(other.iter().all(|page| page.pfn() != pfn) && holds(&at_c, 7));
    drop((at_c, other));
    end(daemon, [a, b, c]);
}

#[test]
fn a_ticket_is_for_one_and_of_its_kind() {
    let _alone = alone();
    let daemon = Daemon::start("kinds");
    let [a, b, c] = ["a", "b", "c"].map(|name| daemon.attach(name));
    let sealed = seal(&a, 1);
    let ticket = sealed.hand_over().unwrap();
    assert_eq!(a.claim_shared(ticket).unwrap_err(), ClaimError::Own);
    let other_kind = |is_shared| ClaimError::OtherKind { is_shared };
    assert_eq!(b.claim(ticket).unwrap_err(), other_kind(true));
    let at_b = b.claim_shared(ticket).unwrap();
    assert!(matches!(
        c.claim_shared(ticket),
        Err(ClaimError::Claimed { .. })
    ));
    assert!(matches!(
        a.take_back(ticket, &mut Vec::new()),
        Err(ClaimError::Claimed { .. })
    ));
    let mut pages = a.alloc_exact(1).unwrap();
    let parcel = a.hand_over_bulk(&mut pages).unwrap();
    assert_eq!(b.claim_shared(parcel).unwrap_err(), other_kind(false));
    drop(b.claim(parcel).unwrap());
    // Made up, or of another slot.
    for bits in [1_u64 << 48, 3 << 48 | 7, u64::from(u16::MAX) << 48] {
        let forged = Ticket::from_bits(bits).unwrap();
        assert!(b.claim_shared(forged).is_err());
    }
    // Taken back, it is nobody's to claim; the page is there still.
    let ticket = sealed.hand_over().unwrap();
    let mut none = Vec::new();
    assert_eq!(a.take_back(ticket, &mut none), Ok(0));
    assert_eq!(b.claim_shared(ticket).unwrap_err(), ClaimError::TakenBack);
    assert!(holds(&sealed, 1) && holds(&at_b, 1));
    drop((sealed, at_b));
    end(daemon, [a, b, c]);
}

#[test]
fn what_is_offered_outlives_who_sealed_it_until_it_is_claimed() {
    let _alone = alone();
    let daemon = Daemon::start("offered");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let sealed = seal(&a, 5);
    let (first, second) = (sealed.hand_over().unwrap(), sealed.hand_over().unwrap());
    let pfn = sealed.pfn();
    drop(sealed);
    let held = a.alloc_exact(1500).unwrap();
    assert!(held.iter().all(|page| page.pfn() != pfn));
    let at_b = b.claim_shared(first).unwrap();
    assert!(holds(&at_b, 5));
    assert_eq!(a.take_back(second, &mut Vec::new()), Ok(0));
    drop((at_b, held));
    end(daemon, [a, b]);
}

#[test]
fn there_is_no_writable_map_under_a_shared_page() {
    let _alone = alone();
    let daemon = Daemon::start("read-only");
    let a = daemon.attach("a");
    let order = Order::new(3).unwrap();
    let mut block = a.alloc_pages(order).unwrap();
    block.fill(9);
    let where_it_was = block.as_ptr().addr();
    let sealed = a.share(block).unwrap();
    assert_eq!((sealed.order(), sealed.len()), (3, 8 * 4096));
    assert!(holds(&sealed, 9));
    let here = sealed.as_ptr().addr();
    assert_ne!(here, where_it_was);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_it = maps.lines().find(|line| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&here)
    });
    let of_it = of_it.expect("it is mapped");
    assert_eq!(of_it.split(' ').nth(1), Some("r--s"), "{of_it}");
    drop(sealed);
    end(daemon, [a]);
}

#[test]
fn anothers_page_cannot_be_sealed() {
    let _alone = alone();
    let daemon = Daemon::start("not-own");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let page = a.alloc_page().unwrap();
    let (why, page) = b.share(page).unwrap_err();
    assert_eq!(why, HandOverError::OtherClient);
    drop(page);
    end(daemon, [a, b]);
}

/// More holdings than there are slots or room for words: nothing is used up by them, and nothing is
/// lost though the daemon settles what was never told.
#[test]
fn many_are_held_at_once() {
    let _alone = alone();
    let daemon = Daemon::start("many");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let sealed: Vec<SharedPage> = (0..=255).map(|nr| seal(&a, nr)).collect();
    let mut held = Vec::new();
    for round in 0..10 {
        for page in &sealed {
            let end = std::time::Instant::now() + support::PATIENCE;
            let ticket = loop {
                match page.hand_over() {
                    Ok(ticket) => break ticket,
                    Err(HandOverError::OutboxFull) => {
                        assert!(std::time::Instant::now() < end, "no slot becomes free");
                        std::thread::yield_now();
                    }
                    Err(why) => panic!("{why}"),
                }
            };
            held.push(b.claim_shared(ticket).unwrap());
        }
        if round % 3 == 2 {
            held.truncate(200);
        }
    }
    drop(sealed);
    assert!(held.iter().zip(0..200_u8).all(|(page, nr)| holds(page, nr)));
    drop(held);
    end(daemon, [a, b]);
}

/// What is not received in time is offered to nobody, and a ticket met by the wrong call is not lost.
#[test]
fn holdings_go_through_a_channel_beside_parcels() {
    let _alone = alone();
    let daemon = Daemon::start("channel");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let (mut sender, invitation) = channel::sender(&a, 2).unwrap();
    let mut receiver = channel::join_receiver(&b, invitation).unwrap();
    let sealed = seal(&a, 3);
    let sent = sender.send_shared(&sealed, PATIENCE).unwrap();
    sender
        .send_pages(&mut a.alloc_exact(2).unwrap(), PATIENCE)
        .unwrap();
    // No room: as often as the outbox has slots, and one more, so each has to be free again.
    let full = std::time::Duration::ZERO;
    for _ in 0..=512 {
        let refused = sender.send_shared(&sealed, full).unwrap_err();
        assert!(matches!(refused, SendError::End(RingEnd::TimedOut { .. })));
    }
    let other_kind = |is_shared| RecvError::Claim(ClaimError::OtherKind { is_shared });
    let refused = receiver.recv_parcel(PATIENCE).unwrap_err();
    assert_eq!(refused, other_kind(true));
    let at_b = receiver.recv_shared(PATIENCE).unwrap();
    assert!(at_b.pfn() == sealed.pfn() && holds(&at_b, 3));
    let late = a.take_back(sent, &mut Vec::new());
    assert!(matches!(late, Err(ClaimError::Claimed { .. })));
    let refused = receiver.recv_shared(PATIENCE).unwrap_err();
    assert_eq!(refused, other_kind(false));
    assert_eq!(receiver.recv_parcel(PATIENCE).unwrap().len(), 2);
    // A holding of another client's could not be taken back.
    let refused = sender.send_shared(&at_b, PATIENCE).unwrap_err();
    assert_eq!(refused, SendError::HandOver(HandOverError::OtherClient));
    drop(receiver);
    let refused = sender.send_shared(&sealed, PATIENCE).unwrap_err();
    assert_eq!(refused, SendError::End(RingEnd::Closed));
    drop((sealed, at_b, sender));
    end(daemon, [a, b]);
}
