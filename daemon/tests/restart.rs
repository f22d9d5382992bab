//! Daemons that are killed under clients, and the ones that come after them.
//!
//! Seen to fail: without the descriptors of clients in the store, with a state that is not saved.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use hugepool::{Client, MovablePage, Options, Order, Page, Shortfall};
use hugepool_proto::v1;
use hugepool_shm::attach::AttachMessage;
use nix::sys::signal::Signal;
use support::grpc::{self, admin, at_home, until_lent, verify};
use support::kept::Kept;
use support::victim::{self, Victim};
use support::{TINY_PAGES, raw, send_signal, until};

#[test]
fn victim() {
    victim::play();
}

fn attach(kept: &Kept) -> Client {
    let options = Options::default()
        .runtime_dir(kept.path())
        .lanes(3)
        // What a daemon needs to come back on a busy machine, and more.
        .deadline(support::DEADLINE);
    let mut client = None;
    // A daemon that dies in the middle of it has told nobody that he is attached.
    until("somebody is attached", || {
        client = Client::attach(options.clone()).ok();
        client.is_some()
    });
    client.unwrap()
}

/// Takes so many pages, each with a mark of its own.
fn take_marked(client: &Client, nr: usize) -> Vec<Page> {
    let mut pages = client.alloc_exact(nr).unwrap();
    for page in &mut pages {
        let mark = page.pfn() ^ 0x5a5a_5a5a;
        page[..4].copy_from_slice(&mark.to_le_bytes());
        let last = page.len() - 4;
        page[last..].copy_from_slice(&mark.to_le_bytes());
    }
    pages
}

#[track_caller]
fn check_marks(pages: &[Page]) {
    for page in pages {
        let mark = (page.pfn() ^ 0x5a5a_5a5a).to_le_bytes();
        assert_eq!(
            (&page[..4], &page[page.len() - 4..]),
            (&mark[..], &mark[..])
        );
    }
}

#[tokio::test]
async fn a_client_lives_through_the_deaths_of_its_daemon() {
    let mut kept = Kept::tiny();
    let client = attach(&kept);
    let mut pages = take_marked(&client, 300);
    let movable: MovablePage = client.alloc_movable().unwrap();
    movable.pin().unwrap();
    // SIGSEGV as by `systemctl kill`. Seen to fail: it was passed over, and nothing died.
    for signal in [Signal::SIGKILL, Signal::SIGABRT, Signal::SIGSEGV] {
        let before = kept.daemon_pid();
        send_signal(before, signal);
        // With no daemon there: what lies in the lane is taken and given back, and pins work.
        if let Ok(page) = client.try_alloc_page() {
            drop(page);
        }
        pages.truncate(pages.len() - 10);
        movable.pin().unwrap();
        // What needs the daemon waits for the next one.
        pages.extend(take_marked(&client, 500));
        kept.keeper.wait_for_line("ready");
        assert_ne!(kept.daemon_pid(), before);
        check_marks(&pages);
        let mut admin = admin(&kept.keeper).await;
        let lent = verify(&mut admin).await.lent;
        assert!(lent > pages.len() as u64);
        let clients = admin.list_clients(v1::ListClientsRequest::default()).await;
        let clients = clients.unwrap().into_inner().clients;
        assert_eq!(
            (clients.len(), clients[0].nr_misuses),
            (1, 0),
            "{clients:?}"
        );
    }
    drop((pages, movable));
    drop(client);
    let mut admin = admin(&kept.keeper).await;
    until_lent(&mut admin, 0).await;
    assert_eq!(at_home(&mut admin).await, TINY_PAGES);
    kept.end_beside().await;
}

#[test]
fn without_a_daemon_calls_say_so_at_their_deadline_and_lanes_go_on() {
    let mut kept = Kept::tiny();
    let client = attach(&kept);
    let mut pages = take_marked(&client, 100);
    // Nobody is left to start another one.
    let daemon = kept.daemon_pid();
    kept.keeper.signal(Signal::SIGKILL);
    kept.keeper.wait();
    send_signal(daemon, Signal::SIGKILL);
    let short = client.with_deadline(Duration::from_millis(50));
    assert_eq!(short.alloc_exact(1000).unwrap_err(), Shortfall::DaemonAway);
    let back = pages.split_off(50);
    client.free_pages_bulk(back);
    let again = client.try_alloc_page().unwrap();
    check_marks(&pages);
    drop((again, pages));
}

/// One life of a client with all that a daemon does for it; whatever the daemon dies of meanwhile.
async fn one_life(kept: &Kept) {
    let client = attach(kept);
    let mut pages = take_marked(&client, 200);
    let mut movable: Vec<MovablePage> = Vec::new();
    while movable.len() < 40 {
        movable.push(client.alloc_movable().unwrap());
    }
    client.free_pages_bulk(pages.split_off(100));
    pages.extend(take_marked(&client, 700));
    // No lane has blocks of this order: each is a call, and one to give it back.
    let order = Order::new(4).unwrap();
    for _ in 0..6 {
        drop(client.alloc_pages(order).unwrap());
    }
    // Sections leave and come back; what the daemon that dies has begun is begun anew.
    for section in 16..18 {
        let end = tokio::time::Instant::now() + support::DEADLINE;
        while !comes_and_goes(kept, section).await {
            assert!(tokio::time::Instant::now() < end, "section {section}");
            tokio::task::yield_now().await;
        }
    }
    let drained = v1::DrainLanesRequest::default();
    if let Ok(mut admin) = try_admin(kept).await {
        let _ = admin.drain_lanes(drained).await;
    }
    for page in &movable {
        page.pin().unwrap();
    }
    check_marks(&pages);
    drop((pages, movable));
}

async fn try_admin(
    kept: &Kept,
) -> Result<v1::admin_client::AdminClient<tonic::transport::Channel>, ()> {
    let socket = kept.path().join("admin.sock");
    let connected = tokio::net::UnixStream::connect(&socket).await;
    drop(connected.map_err(|_| ())?);
    Ok(admin(&kept.keeper).await)
}

/// Takes a section offline, away, and brings it back, as far as the daemon lives; whether it did.
async fn comes_and_goes(kept: &Kept, section: u32) -> bool {
    let Ok(mut admin) = try_admin(kept).await else {
        return false;
    };
    let ids = vec![section];
    let offline = v1::OfflineSectionsRequest {
        section_ids: ids.clone(),
        timeout_ms: 200,
        ..Default::default()
    };
    if admin.offline_sections(offline).await.is_err() {
        // Refused, or cut off in the middle.
        let status = admin.get_status(v1::GetStatusRequest::default()).await;
        return status.is_ok();
    }
    let remove = v1::RemoveSectionsRequest {
        section_ids: ids.clone(),
        ..Default::default()
    };
    // One that could not leave cannot go.
    let _ = admin.remove_sections(remove).await;
    let add = v1::AddSectionsRequest {
        section_ids: ids,
        ..Default::default()
    };
    let _ = admin.add_sections(add).await;
    true
}

#[tokio::test]
async fn a_daemon_killed_after_any_of_its_steps_loses_nothing() {
    let mut alive = Vec::new();
    for step in [
        "journal.noted:3",
        "lend.cell:70",
        "grant.slots",
        "grant.cursor",
        "settle.cells:4",
        "settle.cursor:5",
        "home.cell:30",
        "ledger.kept:2",
        "journal.close:4",
        "snapshot.written:5",
        "section.noted:9",
        "recall.gate",
        "recall.cells",
        "recall.tail:4",
        "recall.emptied",
        "recall.open",
        "intent.noted",
        "move.closed",
        "move.copied:2",
        "move.opened:3",
        "move.handed:2",
        "move.cells:3",
        "attach.placed",
        "attach.stored",
    ] {
        let kept = Kept::dying_at(step);
        one_life(&kept).await;
        let mut admin = admin(&kept.keeper).await;
        until_lent(&mut admin, 0).await;
        let pages = verify(&mut admin).await;
        assert_eq!(pages.lent, 0, "{step}");
        let status = admin.get_status(v1::GetStatusRequest::default()).await;
        assert_eq!(status.unwrap().into_inner().nr_misuses, 0, "{step}");
        if !kept.end_beside().await.contains("started again") {
            alive.push(step);
        }
    }
    assert!(alive.is_empty(), "no daemon came to {alive:?}");
}

/// The first claim from a sender asks for its outbox. The daemon that has read the question dies with
/// it; the next one is asked again. The one after that knows the answer already.
///
/// Seen to fail when a question is put once: the claim waited to the end of its deadline.
#[cfg(debug_assertions)]
#[tokio::test]
async fn a_claim_whose_question_died_with_the_daemon_is_answered_by_the_next_one() {
    let kept = Kept::dying_at("attach.asked");
    let (sender, receiver) = (attach(&kept), attach(&kept));
    let mut pages = take_marked(&sender, 100);
    let pfns: Vec<u32> = pages.iter().map(Page::pfn).collect();
    let ticket = sender.hand_over_bulk(&mut pages).unwrap();
    let begun = std::time::Instant::now();
    let taken = receiver.claim(ticket).unwrap().into_pages();
    assert!(begun.elapsed() < support::DEADLINE);
    let taken: Vec<Page> = taken.into_iter().collect();
    check_marks(&taken);
    assert_eq!(taken.iter().map(Page::pfn).collect::<Vec<_>>(), pfns);
    drop((taken, sender, receiver));
    let mut admin = admin(&kept.keeper).await;
    until_lent(&mut admin, 0).await;
    verify(&mut admin).await;
    assert!(kept.end_beside().await.contains("started again"));
}

/// Twelve steps bring the first four sections; the next three bring the one that is added.
///
/// Seen to fail with the sections that have memory taken from the snapshot: the next daemon's audit
/// took the bytes of one that clients had pages in for nobody's, and punched them out.
#[cfg(debug_assertions)]
#[tokio::test]
async fn a_section_that_had_just_come_keeps_its_bytes() {
    let mut kept = Kept::dying_at("section.noted:15");
    let client = attach(&kept);
    let mut admin = admin(&kept.keeper).await;
    let add = v1::AddSectionsRequest {
        zone: "normal".into(),
        count: 1,
        ..Default::default()
    };
    // Cut off by the death of the daemon.
    assert!(admin.add_sections(add).await.is_err());
    kept.keeper.wait_for_line("ready");
    let mut admin = grpc::admin(&kept.keeper).await;
    let list = v1::ListSectionsRequest {
        zone: "normal".into(),
        ..Default::default()
    };
    let sections = admin.list_sections(list.clone()).await;
    let sections = sections.unwrap().into_inner().sections;
    let states: Vec<&str> = sections.iter().map(|one| one.state.as_str()).collect();
    assert_eq!(states, ["online"; 3]);
    assert_eq!(sections[2].backing, sections[0].backing);
    let pages = take_marked(&client, 2600);
    // Each list holds the files against the books.
    let sections = admin.list_sections(list).await;
    let sections = sections.unwrap().into_inner().sections;
    let nr_bytes: Vec<i64> = sections
        .iter()
        .map(|one| one.audit_difference_bytes)
        .collect();
    assert_eq!(nr_bytes, [0; 3]);
    check_marks(&pages);
    drop((pages, client, admin));
    kept.end_beside().await;
}

#[tokio::test]
async fn busy_clients_notice_nothing_of_a_daemon_that_is_killed_again_and_again() {
    let mut kept = Kept::tiny();
    let victims: Vec<Victim> = (1..3)
        .map(|seed| Victim::start(&kept.keeper, &format!("churn {seed}")))
        .collect();
    // One more would be a row of crashes.
    for _ in 0..3 {
        kept.kill(Signal::SIGKILL);
        let mut admin = admin(&kept.keeper).await;
        verify(&mut admin).await;
        // The next one serves, whoever comes.
        let client = attach(&kept);
        drop(take_marked(&client, 10));
    }
    for victim in victims {
        assert!(victim.end().success());
    }
    let mut admin = admin(&kept.keeper).await;
    until_lent(&mut admin, 0).await;
    let status = admin.get_status(v1::GetStatusRequest::default()).await;
    assert_eq!(status.unwrap().into_inner().nr_misuses, 0);
    kept.end_beside().await;
}

#[tokio::test]
async fn a_client_that_dies_while_no_daemon_is_there_is_found_dead() {
    let mut kept = Kept::tiny();
    let victim = Victim::start(&kept.keeper, "steady 200");
    send_signal(kept.daemon_pid(), Signal::SIGKILL);
    victim.kill();
    kept.keeper.wait_for_line("ready");
    let mut admin = admin(&kept.keeper).await;
    until_lent(&mut admin, 0).await;
    kept.end_beside().await;
}

#[tokio::test]
async fn a_damaged_state_is_held_and_said_and_nothing_is_lent() {
    let kept = Kept::tiny();
    let client = attach(&kept);
    let pages = take_marked(&client, 10);
    // The keeper's descriptor of the state, written over by somebody who may.
    let fds = format!("/proc/{}/fd", kept.keeper.pid());
    let state = std::fs::read_dir(fds).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        let target = std::fs::read_link(&path).ok()?;
        target.to_str()?.contains("hugepool-state").then_some(path)
    });
    let file = std::fs::OpenOptions::new().write(true).open(state.unwrap());
    use std::os::unix::fs::FileExt as _;
    file.unwrap().write_at(b"garbage!", 0).unwrap();
    let before = kept.daemon_pid();
    send_signal(before, Signal::SIGKILL);
    until("another one has started", || kept.daemon_pid() != before);
    let short = client.with_deadline(Duration::from_millis(50));
    assert_eq!(short.alloc_exact(1000).unwrap_err(), Shortfall::DaemonAway);
    check_marks(&pages);
    let mut admin = admin(&kept.keeper).await;
    says_sealed(&mut admin, "sealed: this is no state segment").await;
    let log = kept.end_beside().await;
    assert!(log.contains("sealed: this is no state segment"), "{log}");
}

type Admin = v1::admin_client::AdminClient<tonic::transport::Channel>;

/// It says so itself, vouches for nothing, and does nothing.
async fn says_sealed(admin: &mut Admin, wanted: &str) {
    let status = admin.get_status(v1::GetStatusRequest::default()).await;
    let status = status.unwrap().into_inner();
    assert!(status.state.starts_with(wanted), "{status:?}");
    let verdict = admin.verify(v1::VerifyRequest::default()).await;
    assert!(!verdict.unwrap().into_inner().ok);
    let refused = admin.list_clients(v1::ListClientsRequest::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains(wanted), "{refused}");
}

#[tokio::test]
async fn a_row_of_crashes_is_held_and_said() {
    let kept = Kept::tiny();
    let client = attach(&kept);
    let pages = take_marked(&client, 10);
    // Three within ten seconds: on a machine that is very busy the first ones may be too far apart.
    for nr_kills in 1.. {
        let before = kept.daemon_pid();
        send_signal(before, Signal::SIGKILL);
        until("another one has started", || kept.daemon_pid() != before);
        let mut admin = admin(&kept.keeper).await;
        let status = admin.get_status(v1::GetStatusRequest::default()).await;
        if status.unwrap().into_inner().state.starts_with("sealed") {
            assert!(nr_kills > 3, "sealed after {nr_kills}");
            says_sealed(&mut admin, "sealed: 3 daemons have started").await;
            break;
        }
        assert!(nr_kills < 30, "no end of it");
    }
    check_marks(&pages);
    kept.end_beside().await;
}

/// A client between two calls drives no connection, and would not hear that it is to be closed.
///
/// Seen to fail: each restart waited for it until the time for draining was over, 5 s.
#[test]
fn a_stop_waits_for_calls_and_not_for_who_makes_none() {
    let kept = Kept::tiny();
    let client = attach(&kept);
    // More than a lane is given ahead: a call.
    let pages = take_marked(&client, 1500);
    let log = kept.end();
    assert!(log.contains("stopped"), "{log}");
    assert!(!log.contains("cut off"), "{log}");
    drop(pages);
}

/// Seen to fail, by never ending, seven times in eight: a keeper that waited without listening, and a daemon that waited for
/// room to tell it what its clients need.
#[test]
fn a_stop_while_clients_come_ends() {
    let kept = Kept::tiny();
    let daemon = kept.daemon_pid();
    send_signal(daemon, Signal::SIGSTOP);
    until("each of its threads has stopped", || has_stopped(daemon));
    let comers: Vec<_> = (0..12).map(|_| raw::connect(&kept.keeper)).collect();
    for comer in &comers {
        raw::say(comer, AttachMessage::Request(raw::request()));
    }
    kept.keeper.signal(Signal::SIGTERM);
    until("the keeper has passed it on", || {
        has_pending(daemon, Signal::SIGTERM)
    });
    send_signal(daemon, Signal::SIGCONT);
    kept.end();
}

/// Whether all threads of a process are stopped.
fn has_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    })
}

/// Whether a signal waits to be taken by this process.
fn has_pending(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let of_all = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let mask = u64::from_str_radix(of_all.unwrap().trim(), 16).unwrap();
    mask & 1 << (signal as u32 - 1) != 0
}
