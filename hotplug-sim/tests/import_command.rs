//! The command as people run it: exit statuses, standard input, several files, the saved machine.

// The exemption of tests covers test functions, not what they call.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use hotplug_sim::import::machine::Machine;

const BUDDYINFO: &str = "Node 0, zone   Normal 258 9 5 0 1 2 0 1 1 0 0\n";

/// A folder of its own for a test, gone when it is dropped.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Room {
        let path = std::env::temp_dir().join(format!("hotplug-sim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Room(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // What cannot be removed is not worth failing for.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
        .arg("import")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_status_says_how_much_was_understood() {
    for (status, input, args) in [
        (0, BUDDYINFO, &["-J", "-"][..]),
        (1, "nodes:\n  1:\n", &["-J", "-"]),
        (1, "", &["-J", "-"]),
        (2, "", &["-J"]),
        (2, "", &["--format", "meminfo", "-"]),
        (
            64,
            "Node 0, zone Normal\n  pages free     18446744073709551615\n",
            &["-J", "-"],
        ),
        (1, BUDDYINFO, &["--format", "zoneinfo", "-"]),
        (0, BUDDYINFO, &["--format", "buddyinfo", "-"]),
    ] {
        let output = run(args, input);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{args:?} with {input:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn nothing_understood_names_file_and_line() {
    let room = Room::new("nothing");
    let file = room.file("yaml.txt", "nodes:\n  1:\n    zones:\n");
    let output = run(&["-J", &file], "");
    let said = text(&output.stderr);
    assert!(
        said.starts_with("hotplug-sim: yaml.txt:1: nothing understood"),
        "{said}"
    );
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn one_strange_file_among_others_is_an_error_in_the_object() {
    let room = Room::new("strange");
    let (good, bad) = (
        room.file("buddyinfo", BUDDYINFO),
        room.file("strange", "hello\n"),
    );
    let output = run(&["-J", &good, &bad], "");
    assert_eq!(output.status.code(), Some(64));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = document["diagnostics"].to_string();
    assert!(said.contains("strange:1: nothing understood"), "{said}");
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let output = run(&["-J", "/nonexistent/zoneinfo"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("/nonexistent/zoneinfo"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_saved_machine_reads_back_with_its_contradictions() {
    let room = Room::new("saved");
    let zoneinfo = room.file(
        "zoneinfo",
        "Node 0, zone   Normal\n  pages free     5\n        min      1\n        spanned  65536\n        present  65536\n        managed  65000\n        protection: (0, 0)\n  pagesets\n    cpu: 0\n count: 1\n  start_pfn: 4096\n",
    );
    let buddyinfo = room.file("buddyinfo", BUDDYINFO);
    let lsmem = room.file("lsmem", "RANGE SIZE STATE REMOVABLE BLOCK\n0x0000000000000000-0x000000007fffffff 2G online yes 0-15\n");
    let saved = room.0.join("machine.toml");
    let output = run(
        &[
            &zoneinfo,
            &buddyinfo,
            &lsmem,
            "--save",
            saved.to_str().unwrap(),
        ],
        "",
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let machine = Machine::from_toml(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    assert_eq!(machine.sources, ["zoneinfo", "buddyinfo", "lsmem"]);
    assert_eq!(
        (
            machine.zones.len(),
            machine.zones[0].free,
            machine.zones[0].spanned
        ),
        (1, Some(5), Some(65_536))
    );
    assert_eq!(
        machine.zones[0].free_blocks_by_order.as_ref().map(Vec::len),
        Some(11)
    );
    assert_eq!((machine.blocks.len(), machine.blocks[0].last), (1, 15));
    assert!(
        machine
            .contradictions
            .iter()
            .any(|one| one.contains("zoneinfo") && one.contains("buddyinfo")),
        "{:?}",
        machine.contradictions
    );
}

#[test]
fn tables_show_zones_blocks_and_remarks() {
    let output = run(&["-"], &format!("{BUDDYINFO}what is this\n"));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("0 Normal") && shown.contains("760"),
        "{shown}"
    );
    assert!(
        shown.contains("warning: line 2: not understood: what is this"),
        "{shown}"
    );
}
