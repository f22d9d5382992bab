//! What a client may not do to the daemon or to others: wrong lengths, garbage, floods, stalls,
//! messages cut short, tokens of others. After each: the daemon serves, and its books add up.
//!
//! Seen to fail, each by the test of its name: any token accepted; no deadline; no limit a user;
//! descriptors accepted with a message; a hang-up that does not detach.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hugepool_proto::v1;
use hugepool_shm::attach::{
    AttachMessage, AttachReady, AttachRequest, LAYOUT_VERSION, RefusalCode,
};
use hugepool_shm::message::MAX_MESSAGE_BYTES;
use hugepool_shm::token::Token;
use support::grpc::{self, code, verify, want};
use support::{Daemon, raw, until};
use tonic::{Code, Request};

/// The daemon still gives places and pages, and everything adds up.
async fn is_well(daemon: &mut Daemon) {
    assert!(daemon.is_running());
    let place = raw::attach(daemon);
    place.ready();
    drop(place);
    let mut pages = grpc::pages(daemon).await;
    assert_eq!(
        pages
            .alloc_bulk(want(1, 3, 0))
            .await
            .unwrap()
            .into_inner()
            .nr_pages,
        3
    );
    verify(&mut grpc::admin(daemon).await).await;
}

async fn clients(daemon: &Daemon) -> Vec<v1::Client> {
    let mut admin = grpc::admin(daemon).await;
    admin
        .list_clients(v1::ListClientsRequest {})
        .await
        .unwrap()
        .into_inner()
        .clients
}

/// Waits until the listed clients are so many.
async fn until_clients(daemon: &Daemon, wanted: usize) -> Vec<v1::Client> {
    let end = Instant::now() + support::DEADLINE;
    loop {
        let clients = clients(daemon).await;
        if clients.len() == wanted {
            return clients;
        }
        assert!(Instant::now() < end, "{clients:#?}");
        // tidy: sleep: between two looks at a condition that has a deadline
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn an_honest_client_gets_segment_bell_and_zones() {
    let daemon = Daemon::tiny();
    let place = raw::attach(&daemon);
    assert_eq!(
        place.fds.len(),
        7,
        "control segment, bell, two zones, outbox, their transit words"
    );
    assert_eq!(place.reply.nr_lanes, 2);
    let names: Vec<_> = place
        .reply
        .zones
        .iter()
        .map(|zone| zone.name.as_str())
        .collect();
    assert_eq!(names, ["normal", "movable"]);
    assert_eq!(place.reply.zones[1].start_pfn, 16384);
    let attaching = clients(&daemon).await;
    assert_eq!(attaching[0].state, "attaching");
    place.ready();
    let end = Instant::now() + support::DEADLINE;
    while clients(&daemon).await[0].state != "attached" {
        assert!(Instant::now() < end);
    }
    let client = clients(&daemon).await.remove(0);
    assert_eq!(
        (client.pid, client.name.as_str()),
        (std::process::id(), "by-hand")
    );
    assert_eq!(client.barrier, "fence", "it said that it is not registered");
}

#[tokio::test]
async fn garbage_instead_of_a_request_is_refused_and_hung_up() {
    let mut daemon = Daemon::tiny();
    let valid = AttachMessage::Request(raw::request()).encode().unwrap();
    let mut cut = valid.clone();
    cut.truncate(valid.len() - 1);
    let mut long = valid.clone();
    long.push(0);
    let mut kind = valid.clone();
    kind[8] = 99;
    let reply_kind = {
        let mut bytes = valid.clone();
        bytes[8] = 2;
        bytes
    };
    let garbage: Vec<Vec<u8>> = vec![
        vec![0],
        vec![0xff; 15],
        vec![0xff; 16],
        vec![0; MAX_MESSAGE_BYTES],
        valid[..16].to_vec(),
        cut,
        long,
        kind,
        reply_kind,
        AttachMessage::Ready(AttachReady { registered: true })
            .encode()
            .unwrap(),
    ];
    for bytes in &garbage {
        let connection = raw::connect(&daemon);
        connection.send(bytes, &[]).unwrap();
        match raw::hear(&connection) {
            Some((AttachMessage::Refused(refused), fds)) => {
                assert_eq!(refused.code, RefusalCode::BadRequest, "{bytes:?}");
                assert!(fds.is_empty());
            }
            other => panic!("{bytes:?}: {other:?}"),
        }
        assert!(
            raw::hear(&connection).is_none(),
            "hung up after the refusal"
        );
    }
    assert!(clients(&daemon).await.is_empty());
    is_well(&mut daemon).await;
}

/// Seen to fail: a line for each, 17 000 of them a second.
#[tokio::test]
async fn a_flood_of_garbage_does_not_fill_the_log() {
    let mut daemon = Daemon::tiny();
    let begun = Instant::now();
    for _ in 0..500 {
        let connection = raw::connect(&daemon);
        connection.send(&[0xff; 15], &[]).unwrap();
        raw::hear(&connection);
    }
    is_well(&mut daemon).await;
    // Beside the runtime, which has connections to close.
    let stop = tokio::task::spawn_blocking(|| daemon.stop());
    let (status, log) = stop.await.unwrap();
    assert!(status.success());
    let nr_lines = log.matches("attach refused").count();
    // A hundred in ten seconds, in as many of those as it took.
    let most = 100 * (begun.elapsed().as_secs() / 10 + 2);
    assert!((1..=most).contains(&(nr_lines as u64)), "{nr_lines} lines");
}

#[tokio::test]
async fn every_byte_of_a_request_may_be_wrong() {
    let mut daemon = Daemon::tiny();
    let valid = AttachMessage::Request(raw::request()).encode().unwrap();
    for at in 0..valid.len() {
        let mut bytes = valid.clone();
        bytes[at] ^= 0xff;
        let connection = raw::connect(&daemon);
        connection.send(&bytes, &[]).unwrap();
        // A place, a refusal or a hang-up: an answer in any case, and in time.
        raw::hear(&connection);
    }
    is_well(&mut daemon).await;
}

#[tokio::test]
async fn descriptors_that_come_with_a_request_are_closed_and_it_is_refused() {
    let mut daemon = Daemon::tiny();
    let open = || {
        std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
            .unwrap()
            .count()
    };
    let before = open();
    let file = std::fs::File::open("/dev/null").unwrap();
    for nr in [1, 16] {
        let connection = raw::connect(&daemon);
        let fds = vec![file.as_fd(); nr];
        let bytes = AttachMessage::Request(raw::request()).encode().unwrap();
        connection.send(&bytes, &fds).unwrap();
        match raw::hear(&connection) {
            Some((AttachMessage::Refused(refused), _)) => {
                assert_eq!(refused.code, RefusalCode::BadRequest);
            }
            other => panic!("{other:?}"),
        }
    }
    until("its descriptors are as many as before", || open() == before);
    is_well(&mut daemon).await;
}

#[tokio::test]
async fn closing_at_every_step_leaves_no_client() {
    let mut daemon = Daemon::tiny();
    for _ in 0..20 {
        drop(raw::connect(&daemon));
        let connection = raw::connect(&daemon);
        raw::say(&connection, AttachMessage::Request(raw::request()));
        drop(connection);
        drop(raw::attach(&daemon));
        let place = raw::attach(&daemon);
        place.ready();
        drop(place);
    }
    // This process lives on and holds nothing: nobody is left in the books for it.
    until_clients(&daemon, 0).await;
    is_well(&mut daemon).await;
}

/// A daemon that waits a tenth of a second for what a connection has to say, and the folder of its
/// configuration.
fn impatient() -> (Daemon, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[timeouts]\nattach_ms = 100\n").unwrap();
    let config = ["--config", config.to_str().unwrap()];
    (Daemon::start(&[support::TINY, &config].concat()), dir)
}

#[tokio::test]
async fn who_stalls_is_closed_after_its_deadline_and_others_are_not_kept_waiting() {
    let (mut daemon, _dir) = impatient();
    let silent = raw::connect(&daemon);
    let unready = raw::attach(&daemon);
    is_well(&mut daemon).await;
    assert!(raw::hear(&silent).is_none());
    assert!(raw::hear(&unready.connection).is_none());
    until_clients(&daemon, 0).await;
}

/// Seen to fail when a connection may be silent for good, and when one that has begun may not.
#[tokio::test]
async fn who_calls_and_says_nothing_is_hung_up_on_and_who_has_begun_is_not() {
    let (mut daemon, _dir) = impatient();
    // The preface of HTTP/2 and its empty settings.
    let whole: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for name in ["pages.sock", "admin.sock"] {
        let connect = |said: &[u8]| {
            let mut stream = UnixStream::connect(daemon.socket(name)).unwrap();
            stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
            stream.write_all(said).unwrap();
            stream
        };
        let mut begun = connect(whole);
        let mut heard = [0; 1024];
        assert!(begun.read(&mut heard).unwrap() > 0, "it is answered");
        for said in [&whole[..0], &whole[..1], &whole[..23]] {
            let mut silent = connect(said);
            // Perhaps after some last words of the transport.
            let mut rest = Vec::new();
            silent.read_to_end(&mut rest).unwrap();
        }
        // Three times as long, and it is there still.
        begun.set_nonblocking(true).unwrap();
        let end = loop {
            match begun.read(&mut heard) {
                Ok(0) => break Ok(0),
                Ok(_) => {}
                Err(error) => break Err(error.kind()),
            }
        };
        assert_eq!(end, Err(std::io::ErrorKind::WouldBlock));
    }
    is_well(&mut daemon).await;
}

#[tokio::test]
async fn messages_out_of_turn_detach_their_author() {
    let mut daemon = Daemon::tiny();
    for message in [
        AttachMessage::Request(raw::request()),
        AttachMessage::Ready(AttachReady { registered: true }),
    ] {
        let place = raw::attach(&daemon);
        place.ready();
        raw::say(&place.connection, message);
        assert!(raw::hear(&place.connection).is_none(), "detached");
    }
    let place = raw::attach(&daemon);
    raw::say(&place.connection, AttachMessage::Request(raw::request()));
    assert!(raw::hear(&place.connection).is_none());
    is_well(&mut daemon).await;
}

#[tokio::test]
async fn a_flood_of_connections_is_cut_at_the_users_limit() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[limits]\nconnections_per_uid = 20\n").unwrap();
    let mut args = support::TINY.to_vec();
    args.extend(["--config", config.to_str().unwrap()]);
    let mut daemon = Daemon::start(&args);
    let flood: Vec<_> = (0..40).map(|_| raw::connect(&daemon)).collect();
    let mut nr_refused = 0;
    for connection in &flood[20..] {
        if let Some((AttachMessage::Refused(refused), _)) = raw::hear(connection) {
            assert_eq!(refused.code, RefusalCode::UsedUp);
            nr_refused += 1;
        }
    }
    assert_eq!(nr_refused, 20, "those beyond the limit, and only those");
    // gRPC has a count of its own, so others are served; and when the flood ends, so does this.
    verify(&mut grpc::admin(&daemon).await).await;
    drop(flood);
    let end = Instant::now() + support::DEADLINE;
    loop {
        let connection = raw::connect(&daemon);
        raw::say(&connection, AttachMessage::Request(raw::request()));
        if let Some((AttachMessage::Reply(_), _)) = raw::hear(&connection) {
            break;
        }
        assert!(Instant::now() < end, "the limit does not let go");
    }
    is_well(&mut daemon).await;
}

#[tokio::test]
async fn one_request_cannot_ask_for_everything() {
    let daemon = Daemon::tiny();
    let connection = raw::connect(&daemon);
    let many = AttachRequest {
        nr_lanes: 256,
        ..raw::request()
    };
    raw::say(&connection, AttachMessage::Request(many));
    match raw::hear(&connection) {
        Some((AttachMessage::Reply(reply), _)) => assert_eq!(reply.nr_lanes, 64, "the limit"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_layout_that_is_not_spoken_here_is_refused_with_both_named() {
    let daemon = Daemon::tiny();
    let connection = raw::connect(&daemon);
    // A newer client speaks ours too.
    let newer = AttachRequest {
        layout_version: 1000,
        ..raw::request()
    };
    raw::say(&connection, AttachMessage::Request(newer));
    match raw::hear(&connection) {
        Some((AttachMessage::Reply(reply), _)) => assert_eq!(reply.layout_version, LAYOUT_VERSION),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_serves_its_process_and_dies_with_the_connection() {
    let daemon = Daemon::tiny();
    let place = raw::attach(&daemon);
    place.ready();
    place.map_nothing_and_say_all();
    let mut pages = grpc::pages(&daemon).await;
    let token = Token::from_bytes(place.reply.token).to_hex();
    let with = |token: &str, id| {
        let mut request = Request::new(want(id, 5, 0));
        request
            .metadata_mut()
            .insert(hugepool_proto::SESSION_KEY, token.parse().unwrap());
        request
    };
    assert_eq!(
        pages
            .alloc_bulk(with(&token, 1))
            .await
            .unwrap()
            .into_inner()
            .nr_pages,
        5
    );
    let client = clients(&daemon)
        .await
        .into_iter()
        .find(|c| c.name == "by-hand")
        .unwrap();
    assert_eq!((client.lent, client.held), (5, 5));

    // One digit off.
    let mut forged = token.clone().into_bytes();
    forged[31] = if forged[31] == b'0' { b'1' } else { b'0' };
    let forged = String::from_utf8(forged).unwrap();
    assert_eq!(
        code(pages.alloc_bulk(with(&forged, 2)).await),
        Code::Unauthenticated
    );

    // What it holds stays its own after the hang-up, and its calls are refused.
    drop(place);
    let end = Instant::now() + support::DEADLINE;
    while pages.alloc_bulk(with(&token, 3)).await.is_ok() {
        assert!(Instant::now() < end, "a detached client is still served");
    }
    assert_eq!(
        code(pages.alloc_bulk(with(&token, 4)).await),
        Code::Unauthenticated
    );
    let client = clients(&daemon)
        .await
        .into_iter()
        .find(|c| c.name == "by-hand")
        .unwrap();
    assert_eq!(client.state, "detached");
    assert!(client.held >= 5);
}

#[tokio::test]
async fn words_of_nonsense_in_a_segment_cost_their_author_alone() {
    use std::os::unix::fs::FileExt as _;
    let mut daemon = Daemon::tiny();
    let victim = raw::attach(&daemon);
    victim.ready();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20 {
        let place = raw::attach(&daemon);
        place.ready();
        let segment = std::fs::File::from(place.fds[0].try_clone().unwrap());
        // Everything but the holes of the free map: header, lanes, announcements.
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.to_le_bytes()
        })
        .take(1 << 15)
        .flatten()
        .collect();
        // The length is sealed: nothing can be written past it.
        let len = usize::try_from(place.reply.control_bytes).unwrap();
        segment
            .write_all_at(&noise[..len.min(noise.len())], 0)
            .unwrap();
        nix::unistd::write(&place.fds[1], &1_u64.to_ne_bytes()).unwrap();
        let mut admin = grpc::admin(&daemon).await;
        admin
            .drain_lanes(v1::DrainLanesRequest {
                slot: None,
                timeout_ms: 50,
            })
            .await
            .unwrap();
        verify(&mut admin).await;
    }
    let by_hand: Vec<_> = clients(&daemon).await;
    let first = by_hand
        .iter()
        .find(|c| c.slot == u32::from(victim.reply.slot))
        .unwrap();
    assert_eq!(
        (first.state.as_str(), first.nr_misuses),
        ("attached", 0),
        "others notice nothing"
    );
    assert!(!victim.is_hung_up());
    is_well(&mut daemon).await;
}

#[tokio::test]
async fn a_bell_rung_without_end_does_not_keep_others_waiting() {
    let mut daemon = Daemon::tiny();
    let place = raw::attach(&daemon);
    place.ready();
    let bell = place.fds[1].try_clone().unwrap();
    let ringer = std::thread::spawn(move || {
        for _ in 0..200_000 {
            // Fills up and answers EAGAIN, or is counted up: either is a ring.
            let _ = nix::unistd::write(&bell, &u64::MAX.wrapping_sub(1).to_ne_bytes());
        }
    });
    is_well(&mut daemon).await;
    ringer.join().unwrap();
}
