//! Channels between two clients: what is sent arrives, and an end that is gone is told.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    env,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use hugepool::{
    ClaimError, Client, Options,
    channel::{self, ChannelError, RecvError, RingEnd, SendError},
};
use support::{Daemon, PATIENCE};

/// The run-time directory, in a process that is to be the other end.
const OTHER_END: &str = "HUGEPOOL_TEST_OTHER_END";

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

/// A process has eight clients at most: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Run again by a test: joins the channels that it reads the names of, and echoes.
#[test]
fn the_other_end() {
    let Ok(dir) = env::var(OTHER_END) else { return };
    let options = Options::default().runtime_dir(dir).name("other");
    let client = Client::attach(options.deadline(PATIENCE)).unwrap();
    let mut names = std::io::stdin().lines().map(|line| line.unwrap());
    let mut receiver =
        channel::join_receiver(&client, names.next().unwrap().parse().unwrap()).unwrap();
    let mut sender = channel::join_sender(&client, names.next().unwrap().parse().unwrap()).unwrap();
    println!("\njoined");
    std::io::stdout().flush().unwrap();
    loop {
        let mut parcel = match receiver.recv_parcel(PATIENCE) {
            Ok(parcel) => parcel,
            Err(RecvError::End(RingEnd::Closed)) => return,
            Err(error) => panic!("{error}"),
        };
        for bytes in parcel.bytes_mut() {
            bytes[0] = bytes[0].wrapping_add(1);
        }
        let back = parcel.give_back().map_err(|(why, _)| why).unwrap();
        sender.send(back, PATIENCE).unwrap();
    }
}

struct OtherEnd {
    child: Child,
    to: channel::Sender,
    from: channel::Receiver,
    /// Open for its last words.
    _said: Lines<BufReader<ChildStdout>>,
}

impl OtherEnd {
    fn start(daemon: &Daemon, client: &Client) -> OtherEnd {
        let (to, there) = channel::sender(client, 8).unwrap();
        let (from, back) = channel::receiver(client, 8).unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["the_other_end", "--exact", "--nocapture"])
            .env(OTHER_END, daemon.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "{there}\n{back}").unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "joined"), "it ended");
        OtherEnd {
            child,
            to,
            from,
            _said: lines,
        }
    }
}

impl Drop for OtherEnd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn pages_go_to_another_process_and_come_back() {
    let _alone = alone();
    let mut daemon = Daemon::start("echo");
    let client = daemon.attach("first");
    let mut other = OtherEnd::start(&daemon, &client);
    let mut pages = client.alloc_exact(65).unwrap();
    for round in 0..2000_u32 {
        let mark = u8::try_from(round % 200).unwrap();
        pages.iter_mut().for_each(|page| page[0] = mark);
        other.to.send_pages(&mut pages, PATIENCE).unwrap();
        let back = other.from.recv(PATIENCE).unwrap();
        assert_eq!(client.take_back(back, &mut pages), Ok(65));
        assert!(pages.iter().all(|page| page[0] == mark + 1));
    }
    client.free_pages_bulk(pages);
    // An end that is dropped is told as such, and the other one ends well.
    let (fresh, _) = channel::sender(&client, 1).unwrap();
    drop(std::mem::replace(&mut other.to, fresh));
    assert!(other.child.wait().unwrap().success());
    assert_eq!(other.from.recv(PATIENCE), Err(RingEnd::Closed));
    daemon.verify();
}

#[test]
fn an_end_that_is_killed_is_told_and_its_pages_are_home() {
    let _alone = alone();
    let mut daemon = Daemon::start("killed-end");
    let client = daemon.attach("first");
    for _ in 0..5 {
        let mut other = OtherEnd::start(&daemon, &client);
        let mut pages = client.alloc_exact(3).unwrap();
        // Stopped, it takes nothing more out of the channel, or it has taken it already.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(other.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        let ticket = other.to.send_pages(&mut pages, PATIENCE).unwrap();
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| other.from.recv(PATIENCE));
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
            waiting.join().unwrap()
        });
        if let Ok(back) = waiting {
            // It was faster than the stop.
            assert_eq!(back, ticket);
            assert_eq!(other.from.recv(PATIENCE), Err(RingEnd::Gone));
        } else {
            assert_eq!(waiting, Err(RingEnd::Gone));
        }
        // The daemon says so of one channel after the other.
        let mut more = client.alloc_exact(1).unwrap();
        let end = loop {
            match other.to.send_pages(&mut more, PATIENCE) {
                Err(end) => break end,
                Ok(sent) => assert_eq!(client.take_back(sent, &mut more), Ok(1)),
            }
        };
        assert_eq!(end, SendError::End(RingEnd::Gone));
        other.child.wait().unwrap();
        // Never claimed, given back, or taken and home.
        let back = client.take_back(ticket, &mut pages);
        assert!(
            matches!(
                back,
                Ok(3) | Err(ClaimError::Claimed { .. } | ClaimError::NoSuchParcel)
            ),
            "{back:?}"
        );
        client.free_pages_bulk(pages);
        daemon.wait_for_pages("the dead one's pages are home", |_| {
            daemon.clients().len() == 1
        });
        daemon.verify();
    }
}

#[test]
fn a_sender_that_is_gone_leaves_what_it_sent_and_its_tickets_are_refused_only_if_it_died() {
    let _alone = alone();
    let daemon = Daemon::start("gone-sender");
    let [a, b] = ["a", "b"].map(|name| daemon.attach(name));
    let (mut sender, invitation) = channel::sender(&a, 4).unwrap();
    let mut receiver = channel::join_receiver(&b, invitation).unwrap();
    sender
        .send_pages(&mut a.alloc_exact(2).unwrap(), PATIENCE)
        .unwrap();
    drop(sender);
    assert_eq!(receiver.recv_parcel(PATIENCE).unwrap().len(), 2);
    let end = receiver.recv_parcel(PATIENCE).unwrap_err();
    assert_eq!(end, RecvError::End(RingEnd::Closed));

    // The client of the sender is detached: that is told by the daemon.
    let (mut sender, invitation) = channel::sender(&a, 4).unwrap();
    let mut receiver = channel::join_receiver(&b, invitation).unwrap();
    sender
        .send_pages(&mut a.alloc_exact(2).unwrap(), PATIENCE)
        .unwrap();
    let slot = daemon
        .clients()
        .iter()
        .find(|client| client.name == "a")
        .unwrap()
        .slot;
    let evict = hugepool_proto::v1::EvictClientRequest {
        slot,
        ..Default::default()
    };
    daemon.ask(|mut admin| async move { admin.evict_client(evict).await });
    assert_eq!(receiver.recv_parcel(PATIENCE).unwrap().len(), 2);
    let end = receiver.recv_parcel(PATIENCE).unwrap_err();
    assert_eq!(end, RecvError::End(RingEnd::Gone));
    let mut more = Vec::new();
    assert!(sender.send_pages(&mut more, PATIENCE).is_err());
}

#[test]
fn waits_end_and_ends_are_given_once() {
    let _alone = alone();
    let daemon = Daemon::start("waits");
    let [a, b, c] = ["a", "b", "c"].map(|name| daemon.attach(name));
    let soon = Duration::from_millis(10);
    let refused = channel::sender(&a, 3).map(|_| ());
    assert_eq!(refused, Err(ChannelError::Capacity { capacity: 3 }));
    let (mut sender, invitation) = channel::sender(&a, 1).unwrap();
    assert_eq!(invitation.to_string().parse(), Ok(invitation));
    let mut receiver = channel::join_receiver(&b, invitation).unwrap();
    assert_eq!(
        channel::join_receiver(&c, invitation)
            .map(|_| ())
            .unwrap_err(),
        ChannelError::Taken
    );
    let unknown = "00000000000000000000000000000000".parse().unwrap();
    assert_eq!(
        channel::join_sender(&c, unknown).map(|_| ()).unwrap_err(),
        ChannelError::NoSuchChannel
    );
    assert_eq!(receiver.recv(soon), Err(RingEnd::TimedOut { waited: soon }));
    sender
        .send_pages(&mut a.alloc_exact(1).unwrap(), soon)
        .unwrap();
    // No room: the pages are the sender's still.
    let mut pages = a.alloc_exact(2).unwrap();
    let refused = sender.send_pages(&mut pages, soon).unwrap_err();
    assert!(matches!(refused, SendError::End(RingEnd::TimedOut { .. })));
    assert_eq!(pages.len(), 2);
    assert_eq!(receiver.recv_parcel(soon).unwrap().len(), 1);
    sender.send_pages(&mut pages, soon).unwrap();
    assert_eq!(receiver.recv_parcel(soon).unwrap().len(), 2);
    // So many, and no more; those that are closed do not count.
    let mut many = Vec::new();
    let why = loop {
        match channel::sender(&c, 1) {
            Ok(channel) => many.push(channel),
            Err(why) => break why,
        }
    };
    assert_eq!((why, many.len()), (ChannelError::UsedUp, 64));
    many.truncate(10);
    assert!(channel::sender(&c, 1).is_ok());
}
