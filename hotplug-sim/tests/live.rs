//! `snapshot` and `drive` against a real daemon with real client processes: what it does is what the
//! simulation of it did.

// The exemption of tests covers test functions, not what they call.
#![allow(clippy::unwrap_used)]

#[path = "../../client/tests/support/mod.rs"]
mod daemon;

use std::path::Path;
use std::process::{Command, Output};

use daemon::Daemon;
use hotplug_sim::host::Host;
use hotplug_sim::import::machine::Machine;
use hotplug_sim::live::snapshot;
use hugepool_proto::v1::{GetStatusRequest, ListOperationsRequest, SetLimitsRequest};

#[test]
fn the_daemon() {
    daemon::be_the_daemon_if_asked();
}

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// All that can be driven, in an order in which each step depends on the one before.
const SCENARIO: &str = r#"
about = "a day of a daemon"

[[step]]
do = "online"
zone = "movable"
size = "16MiB"

[[step]]
do = "alloc"
client = "cache"
zone = "movable"
migratetype = "movable"
count = 500

[[step]]
do = "alloc"
client = "server"
zone = "normal"
migratetype = "unmovable"
order = 3
count = 40

[[step]]
do = "bulk"
client = "server"
zone = "normal"
migratetype = "unmovable"
slots = 65
filled = 5

[[step]]
do = "free"
client = "cache"
count = 100

[[step]] # what is movable is moved
do = "offline"
zone = "movable"
size = "16MiB"

[[step]]
do = "remove"
zone = "movable"
size = "16MiB"

[[step]]
do = "alloc"
client = "greedy"
zone = "movable"
migratetype = "unmovable"
count = 1

[[step]]
do = "die"
client = "cache"

[[step]]
do = "offline"
zone = "movable"
size = "8MiB"
"#;

#[test]
fn a_daemon_does_what_its_simulation_did() {
    let daemon = Daemon::start("drive");
    let path = daemon.dir().join("day.toml");
    std::fs::write(
        &path,
        SCENARIO.replace(
            "client = \"greedy\"\nzone = \"movable\"",
            "client = \"greedy\"\nzone = \"normal\"",
        ),
    )
    .unwrap();
    let dir = daemon.dir().to_str().unwrap();
    let run = sim(&["drive", "--runtime-dir", dir, path.to_str().unwrap()]);
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}{}",
        text(&run.stdout),
        text(&run.stderr)
    );
    let stdout = text(&run.stdout);
    assert!(
        stdout.contains("verify: all adds up") && !stdout.contains("differs"),
        "{stdout}"
    );
    assert!(stdout.lines().count() >= 14, "{stdout}");
}

/// A movable zone of four pageblocks, every second page of most of it in use, is packed; then both
/// clients are killed.
const DEATHS: &str = r#"
[[step]]
do = "alloc"
client = "cache"
zone = "movable"
migratetype = "movable"
count = 1500

[[step]]
do = "free"
client = "cache"
count = 700
pattern = "odd"

[[step]]
do = "compact"
zone = "movable"

[[step]]
do = "alloc"
client = "server"
zone = "normal"
migratetype = "unmovable"
order = 3
count = 40

[[step]]
do = "die"
client = "server"

[[step]]
do = "die"
client = "cache"

[[step]]
do = "alloc"
client = "server"
zone = "movable"
migratetype = "movable"
count = 3000
"#;

/// Seen to fail: a `die` that only forgets its client (nothing came home, and the last step of the
/// daemon falls short), and a compaction that is not asked for (no operation, no pageblock free).
#[test]
fn clients_are_really_killed_and_zones_really_compacted() {
    let daemon = Daemon::start("deaths");
    let path = daemon.dir().join("deaths.toml");
    std::fs::write(&path, DEATHS).unwrap();
    let dir = daemon.dir().to_str().unwrap();
    let run = sim(&["drive", "--runtime-dir", dir, path.to_str().unwrap()]);
    let stdout = text(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{stdout}{}", text(&run.stderr));
    let row = |step: &str| stdout.lines().find(|line| line.starts_with(step)).unwrap();
    assert_eq!(row("3 ").matches("order-9=free").count(), 2, "{stdout}");
    assert_eq!(row("5 ").matches("pages=320").count(), 2, "{stdout}");
    assert_eq!(row("6 ").matches("pages=800").count(), 2, "{stdout}");
    // What the daemon itself says of it.
    let status = daemon.ask(|mut admin| async move { admin.get_status(GetStatusRequest {}).await });
    assert!(status.nr_reclaimed_pages >= 320 + 800, "{status:?}");
    let operations = daemon
        .ask(|mut admin| async move { admin.list_operations(ListOperationsRequest {}).await })
        .operations;
    let compacted: Vec<_> = operations
        .iter()
        .filter(|operation| operation.kind == "compact")
        .collect();
    let [compacted] = compacted[..] else {
        panic!("{operations:?}")
    };
    assert_eq!(compacted.state, "done");
}

/// What the simulation cannot know: somebody has set a ceiling for those to come.
#[test]
fn a_daemon_that_does_something_else_ends_the_run_with_1() {
    let daemon = Daemon::start("ceiling");
    let limits = SetLimitsRequest {
        slot: None,
        ceiling_pages: Some(256),
        ..SetLimitsRequest::default()
    };
    daemon.ask(|mut admin| async move { admin.set_limits(limits).await });
    let path = daemon.dir().join("ceiling.toml");
    let alloc =
        "[[step]]\ndo = \"alloc\"\nclient = \"a\"\nmigratetype = \"unmovable\"\ncount = 1000\n";
    std::fs::write(&path, alloc).unwrap();
    let dir = daemon.dir().to_str().unwrap();
    let run = sim(&["drive", "--runtime-dir", dir, path.to_str().unwrap()]);
    let stdout = text(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{stdout}{}", text(&run.stderr));
    let row = stdout.lines().find(|line| line.starts_with("1 ")).unwrap();
    assert!(
        row.contains("done=1000 refused=0")
            && row.contains("reason=limit")
            && row.ends_with("differs"),
        "{stdout}"
    );
}

/// Who may have how much, what is saved and what is expected, asked of both sides.
const EXPECTED: &str = r#"
[[step]]
do = "limit"
client = "small"
size = "1MiB"
save = { before = "movable.managed" }

[[step]]
do = "alloc"
client = "small"
zone = "normal"
migratetype = "unmovable"
count = 300
expect = ["done == 256", "refused == 44", "reason == \"limit\"", "client.small.pages == 256"]

[[step]]
do = "free"
client = "small"
count = 56
expect = ["pages == 56", "normal.lent == 200", "normal.free + 200 == normal.managed", "normal.largest == 10"]

[[step]]
do = "online"
zone = "movable"
size = "16MiB"
expect = ["done == 2", "movable.managed == before + 16MiB / page_bytes", "total.lent == client.small.pages"]

[[step]]
do = "verify"
expect = ["broken == \"\""]
"#;

/// Seen to fail with expectations that are compared by the simulation alone, and with lanes that are
/// not called home before.
#[test]
fn what_is_expected_is_asked_of_the_daemon_too() {
    let daemon = Daemon::start("expected");
    let dir = daemon.dir().to_str().unwrap();
    let path = daemon.dir().join("expected.toml");
    let drive = |scenario: &str| {
        std::fs::write(&path, scenario).unwrap();
        sim(&["drive", "--runtime-dir", dir, path.to_str().unwrap()])
    };
    let run = drive(EXPECTED);
    let stdout = text(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{stdout}{}", text(&run.stderr));
    assert_eq!(
        stdout.matches("simulation yes, daemon yes").count(),
        11,
        "{stdout}"
    );
    let largest = "normal.largest == 10: simulation yes, daemon not told of normal.largest";
    assert!(stdout.contains(largest), "{stdout}");
    // What is wrong is wrong on both sides, and with both numbers.
    let wrong = EXPECTED.replace("done == 256", "done == 255");
    let run = drive(&wrong);
    let stdout = text(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{stdout}{}", text(&run.stderr));
    let row = "expected done == 255: simulation no (256 and 255), daemon no (256 and 255)";
    assert!(stdout.contains(row), "{stdout}");
}

/// A field that the daemon's side would not heed is refused, and nothing is done.
#[test]
fn what_would_be_done_otherwise_is_refused_before_anything_is() {
    let daemon = Daemon::start("fields");
    let dir = daemon.dir().to_str().unwrap();
    let path = daemon.dir().join("fields.toml");
    for (step, word) in [
        ("do = \"alloc\"\nclient = \"a\"\ndip = true", "with dip"),
        ("do = \"offline\"\nblocks = \"1\"", "with blocks"),
        ("do = \"bulk\"\nclient = \"a\"\nslots = 5", "unmovable"),
    ] {
        let first = "[[step]]\ndo = \"alloc\"\nclient = \"a\"\ncount = 1\n";
        std::fs::write(&path, format!("{first}[[step]]\n{step}\n")).unwrap();
        let run = sim(&["drive", "--runtime-dir", dir, path.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(2), "{}", text(&run.stdout));
        let said = text(&run.stderr);
        assert!(said.contains("step 2") && said.contains(word), "{said}");
    }
    assert_eq!(daemon.pages().lent, 0, "nobody attached");
}

#[test]
fn a_daemon_in_use_is_described_and_what_cannot_be_driven_refused() {
    let daemon = Daemon::start("differ");
    let dir = daemon.dir().to_str().unwrap();
    // Somebody whom the simulation does not know holds pages that cannot be moved.
    let stranger = daemon.attach("stranger");
    let held: Vec<_> = (0..1500)
        .map(|_| stranger.with_zone("normal").unwrap().alloc_page().unwrap())
        .collect();
    let path = daemon.dir().join("other.toml");
    let offline = "[[step]]\ndo = \"offline\"\nzone = \"normal\"\nsize = \"16MiB\"\n";
    let snapshot = daemon.dir().join("before.toml");
    let taken = sim(&[
        "snapshot",
        "--runtime-dir",
        dir,
        "-o",
        snapshot.to_str().unwrap(),
    ]);
    assert_eq!(taken.status.code(), Some(0), "{}", text(&taken.stderr));
    let machine = Machine::from_toml(&std::fs::read_to_string(&snapshot).unwrap()).unwrap();
    let host = Host::build(&machine, 1).unwrap();
    let normal = &host.zones[host.zone_named("normal").unwrap()].zone;
    assert!(
        normal.counts().lent >= 1500 && normal.counts().managed == 4096,
        "{:?}",
        normal.counts()
    );
    std::fs::write(&path, offline).unwrap();
    let run = sim(&["drive", "--runtime-dir", dir, path.to_str().unwrap()]);
    // Both refuse, and for the same reason: the types of its pageblocks are in the description.
    let stdout = text(&run.stdout);
    assert!(stdout.matches("reason=unmovable").count() == 2, "{stdout}");
    drop(held);
    std::fs::write(&path, "[[step]]\ndo = \"balloon\"\ncount = 1\n").unwrap();
    let run = sim(&["drive", "--runtime-dir", dir, path.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(2));
    assert!(
        text(&run.stderr).contains("balloon cannot be driven"),
        "{}",
        text(&run.stderr)
    );
    let nobody = sim(&["snapshot", "--runtime-dir", "/nonexistent"]);
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn a_host_is_described_by_its_own_files() {
    let root = std::env::temp_dir().join(format!("hotplug-sim-host-{}", std::process::id()));
    let memory = root.join("sys/devices/system/memory");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    std::fs::copy(cases.join("Z16.txt"), root.join("proc/zoneinfo")).unwrap();
    std::fs::copy(cases.join("B08.txt"), root.join("proc/buddyinfo")).unwrap();
    for (id, state, zones) in [
        (0, "online", "none"),
        (1, "online", "DMA32"),
        (2, "online", "DMA32"),
        (40, "offline", "Normal Movable"),
    ] {
        let block = memory.join(format!("memory{id}"));
        std::fs::create_dir_all(block.join("node0")).unwrap();
        std::fs::write(block.join("state"), format!("{state}\n")).unwrap();
        std::fs::write(block.join("removable"), "1\n").unwrap();
        std::fs::write(block.join("valid_zones"), format!("{zones}\n")).unwrap();
    }
    std::fs::write(memory.join("block_size_bytes"), "8000000\n").unwrap();
    let machine = snapshot::of_host(&root).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(machine.section_bytes, Some(128 << 20));
    let runs: Vec<_> = machine
        .blocks
        .iter()
        .map(|run| (run.first, run.last, run.state.as_deref()))
        .collect();
    assert_eq!(
        runs,
        [
            (0, 0, Some("online")),
            (1, 2, Some("online")),
            (40, 40, Some("offline"))
        ]
    );
    assert_eq!(machine.zones.len(), 5);
    assert!(
        machine
            .zones
            .iter()
            .any(|zone| zone.free_blocks_by_order.is_some())
    );
    // This host's own, whatever it is: only where there is none is that an error.
    let own = snapshot::of_host(Path::new("/"));
    assert_eq!(own.is_ok(), Path::new("/proc/zoneinfo").exists(), "{own:?}");
}
