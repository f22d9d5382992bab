//! The way in: what is said when there is none, and who is shown when there is.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    env, fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::Command,
};

use hugepool::{AttachError, Client, Options};
use support::Daemon;

/// The user and group without rights.
const NOBODY: u32 = 65534;

#[test]
fn the_daemon() {
    support::be_the_daemon_if_asked();
}

#[test]
fn no_daemon_is_said_with_the_places_and_what_to_do() {
    let dir = PathBuf::from("/no/such/folder");
    let error = Client::attach(Options::default().runtime_dir(&dir))
        .err()
        .unwrap();
    assert!(matches!(error, AttachError::NoDaemon(_)));
    let text = error.to_string();
    assert!(
        text.contains("/no/such/folder") && text.contains("start hugepoold"),
        "{text}"
    );
}

#[test]
fn a_socket_of_a_daemon_that_died_is_nobody() {
    let mut daemon = Daemon::start("died");
    daemon.kill();
    let error = Client::attach(daemon.options("late")).err().unwrap();
    assert!(matches!(error, AttachError::NobodyThere { .. }), "{error}");
}

#[test]
fn a_socket_that_keeps_us_out_names_the_group() {
    if nix::unistd::geteuid().is_root() {
        // Root may connect anywhere.
        return again_as_nobody("a_socket_that_keeps_us_out_names_the_group");
    }
    let daemon = Daemon::start("mode");
    let socket = daemon.dir().join("attach.sock");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o000)).unwrap();
    let error = Client::attach(daemon.options("shut out")).err().unwrap();
    assert!(error.to_string().contains("group hugepool"), "{error}");
}

/// Runs a test of this file as a user without rights.
fn again_as_nobody(test: &str) {
    // This binary may lie where nobody else can go.
    let copy = env::temp_dir().join(format!("{test}-{}", std::process::id()));
    // By another process: what is open for writing here would be inherited by what another test
    // starts just then, and a program that somebody may write cannot be started.
    let copied = Command::new("cp")
        .arg(env::current_exe().unwrap())
        .arg(&copy)
        .status();
    assert!(copied.unwrap().success());
    let output = Command::new(&copy)
        .args([test, "--exact"])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn the_daemon_shows_the_client_by_its_name() {
    let daemon = Daemon::start("name");
    let client = daemon.attach("indexer");
    assert!(client.alloc_page().is_ok());
    // The daemon learns that everything is mapped a moment after the client has said so.
    let own = loop {
        let shown = daemon
            .clients()
            .into_iter()
            .find(|shown| shown.name == "indexer")
            .unwrap();
        if shown.state != "attaching" {
            break shown;
        }
    };
    assert_eq!(
        (own.pid, own.state.as_str()),
        (std::process::id(), "attached")
    );
}
