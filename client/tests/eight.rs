//! How many clients fit in a process. Alone in its file: the test has the process to itself.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use hugepool::{AttachError, Client};
use support::Daemon;

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

#[test]
fn eight_clients_fit_in_a_process_and_a_ninth_when_one_has_gone() {
    let daemon = Daemon::start("eight");
    let mut clients: Vec<Client> = (0..8).map(|_| daemon.attach("one of eight")).collect();
    let ninth = Client::attach(daemon.options("ninth"));
    assert!(
        matches!(ninth, Err(AttachError::TooManyClients)),
        "{ninth:?}"
    );

    // Each is a client of its own, with pages of its own.
    let pages: Vec<_> = clients
        .iter()
        .map(|client| client.alloc_page().unwrap())
        .collect();
    let mut pfns: Vec<u32> = pages.iter().map(|page| page.pfn()).collect();
    pfns.sort_unstable();
    pfns.dedup();
    assert_eq!(pfns.len(), 8);

    // With a page of it left, its place is not free.
    clients.remove(0);
    assert!(matches!(
        Client::attach(daemon.options("ninth")),
        Err(AttachError::TooManyClients)
    ));
    drop(pages);
    let ninth = daemon.attach("ninth");
    assert!(ninth.alloc_page().is_ok());
}
