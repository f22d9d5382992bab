//! A client that is killed loses nothing for the others: what it held, cached or had on the way
//! comes home.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use hugepool::{Client, Options, Order, Page};
use support::Daemon;

/// The run-time directory, in a process that is to be a victim.
const VICTIM: &str = "HUGEPOOL_TEST_VICTIM";

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

/// Run again by a test, it takes pages and holds them; run by the harness it does nothing.
#[test]
fn the_victim() {
    let Ok(dir) = env::var(VICTIM) else { return };
    let client = Client::attach(
        Options::default()
            .runtime_dir(dir)
            .name("victim")
            .deadline(support::PATIENCE),
    )
    .unwrap();
    let mut held: Vec<Page> = Vec::new();
    assert_eq!(client.alloc_pages_bulk_list(300, &mut held).populated, 300);
    held.push(client.alloc_pages(Order::new(9).unwrap()).unwrap());
    held.push(client.alloc_pages(Order::new(5).unwrap()).unwrap());
    // Some lie in the magazine, some in `returns`.
    client.free_pages_bulk(held.drain(..150));
    held.iter_mut().for_each(|page| page.fill(0xee));
    println!("\nholding {}", held.len());
    // Until killed; or until the test that started it has gone.
    let _ = std::io::stdin().read(&mut [0]);
}

fn start_victim(daemon: &Daemon) -> Child {
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["the_victim", "--exact", "--nocapture"])
        .env(VICTIM, daemon.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.as_mut().unwrap()).lines();
    let is_holding = lines.any(|line| line.unwrap().starts_with("holding "));
    assert!(is_holding, "the victim ended: {:?}", victim.wait());
    victim
}

/// Seen to fail: a daemon that does not bury the client when its process ends; its held pages stay
/// lent for ever.
#[test]
fn every_page_of_a_killed_client_comes_home() {
    let mut daemon = Daemon::start("killed");
    let bystander = daemon.attach("bystander");
    let mut kept = bystander.alloc_page().unwrap();
    kept.fill(0x33);
    drop(bystander.alloc_pages(Order::PAGE));
    for _ in 0..5 {
        let mut victim = start_victim(&daemon);
        let lent_to = |pid| {
            let clients = daemon.clients();
            let client = clients.iter().find(|client| client.pid == pid);
            client.map_or(0, |client| client.lent)
        };
        assert!(lent_to(victim.id()) > 600);
        victim.kill().unwrap();
        victim.wait().unwrap();
        // The bystander's lane may be given pages at any time; all that is lent is its own.
        daemon.wait_for_pages("the dead client's pages are home", |pages| {
            lent_to(victim.id()) == 0 && pages.lent <= lent_to(std::process::id())
        });
        daemon.verify();
        assert!(
            !daemon
                .clients()
                .iter()
                .any(|client| client.pid == victim.id())
        );
    }
    assert!(
        kept.iter().all(|&byte| byte == 0x33),
        "the bystander notices nothing"
    );
}
