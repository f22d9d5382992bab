//! Other users: the sockets' modes and groups, and the access lists of zones. Needs root, to become
//! somebody else.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use hugepool::{Client, Options};
use hugepool_proto::v1::pages_client::PagesClient;
use support::grpc::{channel, code, want};
use support::{Daemon, skipped};
use tokio::net::UnixStream;
use tonic::Code;

/// A user and group that every Linux has and that owns nothing.
const NOBODY: u32 = 65_534;
const DIR: &str = "HUGEPOOL_TEST_AS_NOBODY";
/// A group of no name, and the variable that says that nobody is in it too.
const TEAM: u32 = 4343;
const IN_TEAM: &str = "HUGEPOOL_TEST_IN_TEAM";
/// Says that the team's zone is to be had.
const HAS_ZONE: &str = "HUGEPOOL_TEST_HAS_ZONE";

const CONFIG: &str = "
[geometry]
section_size = '4MiB'
[sockets]
pages_group = 'nogroup'
[[zone]]
name = 'private'
size = '8MiB'
reserve = '64MiB'
backing = 'shm'
allow_uids = [4242]
[[zone]]
name = 'team'
size = '8MiB'
reserve = '64MiB'
backing = 'shm'
allow_gids = [4343]
[[zone]]
name = 'open'
size = '8MiB'
reserve = '64MiB'
backing = 'shm'
";

fn start(test: &str) -> Option<(Daemon, tempfile::TempDir)> {
    if !nix::unistd::geteuid().is_root() {
        skipped(test, "not root");
        return None;
    }
    if !matches!(nix::unistd::Group::from_name("nogroup"), Ok(Some(_))) {
        skipped(test, "no group nogroup");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let run = dir.path().join("run");
    let mut daemon = Daemon::spawn_in(&run, &["--config", file.to_str().unwrap()]);
    daemon.wait_for_line("ready");
    Some((daemon, dir))
}

#[test]
fn sockets_have_the_mode_and_group_that_the_manual_says() {
    let name = "sockets_have_the_mode_and_group";
    let Some((daemon, _dir)) = start(name) else {
        return;
    };
    for (socket, mode, gid) in [
        ("pages.sock", 0o660, NOBODY),
        ("attach.sock", 0o660, NOBODY),
        // Where there is no group hugepool-admin, the socket is for root alone.
        (
            "admin.sock",
            if has_admin_group() { 0o660 } else { 0o600 },
            admin_gid(),
        ),
    ] {
        let found = std::fs::metadata(daemon.socket(socket)).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (mode, gid), "{socket}");
    }
}

fn has_admin_group() -> bool {
    matches!(nix::unistd::Group::from_name("hugepool-admin"), Ok(Some(_)))
}

fn admin_gid() -> u32 {
    let group = nix::unistd::Group::from_name("hugepool-admin")
        .ok()
        .flatten();
    group.map_or(0, |group| group.gid.as_raw())
}

/// Seen to fail with the primary group alone looked at.
#[test]
fn a_member_of_the_group_gets_the_zones_that_are_open_to_it() {
    let Some((daemon, dir)) = start("a_member_of_the_group") else {
        return;
    };
    for is_in_team in [false, true] {
        run_as_nobody(&daemon, dir.path(), is_in_team, is_in_team);
    }
}

/// Seen to fail when a reload leaves the lists as they were.
#[test]
fn a_list_that_is_changed_is_changed_for_who_comes_then() {
    let Some((mut daemon, dir)) = start("a_list_that_is_changed") else {
        return;
    };
    run_as_nobody(&daemon, dir.path(), true, true);
    let reload = |daemon: &mut Daemon, gid: &str| {
        let text = CONFIG.replace("allow_gids = [4343]", &format!("allow_gids = [{gid}]"));
        std::fs::write(dir.path().join("config.toml"), text).unwrap();
        daemon.signal(nix::sys::signal::Signal::SIGHUP);
        daemon.wait_for_words("configuration reloaded");
    };
    reload(&mut daemon, "4344");
    run_as_nobody(&daemon, dir.path(), true, false);
    reload(&mut daemon, "4344, 4343");
    run_as_nobody(&daemon, dir.path(), true, true);
    run_as_nobody(&daemon, dir.path(), false, false);
}

/// Copied by another process: a descriptor that is open for writing here would be inherited by
/// what another test starts just then, and a program that somebody may write cannot be started.
fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

fn run_as_nobody(daemon: &Daemon, dir: &Path, is_in_team: bool, has_zone: bool) {
    // The test's own binary may lie where nobody can go.
    let copy = dir.join("as-nobody");
    copy_program(&std::env::current_exe().unwrap(), &copy);
    let mut command = Command::new(copy);
    command
        .args(["as_nobody", "--exact", "--nocapture"])
        .env(DIR, daemon.path())
        .current_dir("/");
    if is_in_team {
        command.env(IN_TEAM, "1");
    }
    if has_zone {
        command.env(HAS_ZONE, "1");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("was nobody"), "{text}");
}

/// Not a test: what another user does, started by the test above.
#[tokio::test]
async fn as_nobody() {
    let Some(run) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    become_nobody(std::env::var_os(IN_TEAM).is_some());
    let has_zone = std::env::var_os(HAS_ZONE).is_some();
    let denied = UnixStream::connect(run.join("admin.sock"))
        .await
        .unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);

    let mut pages = PagesClient::new(channel(&run.join("pages.sock")).await);
    let in_zone = |id, zone: &str| {
        let mut request = want(id, 3, 0);
        request.zone = zone.to_owned();
        request
    };
    assert_eq!(
        code(pages.alloc_bulk(in_zone(1, "private")).await),
        Code::PermissionDenied
    );
    assert_eq!(
        pages
            .alloc_bulk(in_zone(2, "open"))
            .await
            .unwrap()
            .into_inner()
            .nr_pages,
        3
    );

    let team = pages.alloc_bulk(in_zone(3, "team")).await;
    if has_zone {
        assert_eq!(team.unwrap().into_inner().nr_pages, 3);
    } else {
        assert_eq!(code(team), Code::PermissionDenied);
    }

    let dir = run.clone();
    let client = move || attach_and_take(&dir, has_zone);
    tokio::task::spawn_blocking(client).await.unwrap();
    println!("was nobody");
}

/// Gives up being root, all threads of this process with it.
fn become_nobody(is_in_team: bool) {
    use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
    let team = [Gid::from_raw(TEAM)];
    setgroups(if is_in_team { &team } else { &[] }).unwrap();
    setgid(Gid::from_raw(NOBODY)).unwrap();
    setuid(Uid::from_raw(NOBODY)).unwrap();
}

fn attach_and_take(run: &Path, has_zone: bool) {
    let client = Client::attach(Options::default().runtime_dir(run)).unwrap();
    let zones: Vec<_> = client.zones().collect();
    if has_zone {
        assert_eq!(zones, ["team", "open"]);
    } else {
        assert_eq!(zones, ["open"]);
    }
    client.alloc_exact(100).unwrap();
    assert!(client.with_zone("private").is_err());
}

/// Nothing is locked by us, and huge pages that no file of a mount holds are not counted as locked; so
/// a user who may lock nothing has all there is. Root is not asked for that limit.
#[tokio::test]
async fn a_user_who_may_lock_no_memory_runs_a_daemon_all_the_same() {
    let name = "a_user_who_may_lock_no_memory_runs_a_daemon_all_the_same";
    if !nix::unistd::geteuid().is_root() {
        return skipped(name, "not root");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let run = dir.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::os::unix::fs::chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
    // Where nobody can reach it.
    let program = dir.path().join("hugepoold");
    copy_program(env!("CARGO_BIN_EXE_hugepoold").as_ref(), &program);
    let mut command = Command::new("setpriv");
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    command.args(nobody).args(["prlimit", "--memlock=0:0"]);
    command.arg(&program).arg("--runtime-dir").arg(&run);
    // Huge pages where there are some.
    command.args([
        "--section-size",
        "4MiB",
        "--zone",
        "normal=8MiB,reserve=64MiB",
    ]);
    let mut daemon = Daemon::spawn_command(&run, command);
    daemon.wait_for_line("ready");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let locked = limits
        .lines()
        .find(|line| line.starts_with("Max locked memory"));
    let words: Vec<&str> = locked.unwrap().split_whitespace().collect();
    assert_eq!(words[3..5], ["0", "0"]);
    let options = Options::default().runtime_dir(&run);
    let client = Client::attach(options).unwrap();
    let mut pages = client.alloc_exact(1000).unwrap();
    for page in &mut pages {
        page[0] = 1;
    }
    let mut admin = support::grpc::admin(&daemon).await;
    let add = hugepool_proto::v1::AddSectionsRequest {
        zone: "normal".to_owned(),
        count: 1,
        ..Default::default()
    };
    let added = admin.add_sections(add).await.unwrap().into_inner();
    assert!(added.results[0].ok, "{added:?}");
    support::grpc::verify(&mut admin).await;
}
