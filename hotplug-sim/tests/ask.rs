//! `ask`: answers in numbers, with a reason, in text and as JSON, to machines whose answers are known.

// The exemption of tests covers test functions, not what they call.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A machine of a kernel zone of 1 GiB, a movable one of 512 MiB, and nothing in use.
const SMALL: &str = "version = 1\npage_size_bytes = 4096\npageblock_order = 9\nsection_bytes = 134217728\n\
    [[zone]]\nnode = 0\nname = \"Normal\"\nstart_pfn = 0\nspanned = 262144\npresent = 262144\nmanaged = 258048\n\
    [[zone]]\nnode = 0\nname = \"Movable\"\nstart_pfn = 262144\nspanned = 131072\npresent = 131072\nmanaged = 131072\n";

struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, text: &str) -> Machine {
        let file = format!("hotplug-sim-ask-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, text).unwrap();
        Machine(path)
    }

    fn ask(&self, question: &[&str]) -> Value {
        ask(self.0.to_str().unwrap(), question)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What cannot be removed is not worth failing for.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn ask(machine: &str, question: &[&str]) -> Value {
    let sim = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotplug-sim"));
        command
            .arg("ask")
            .arg(machine)
            .args(question)
            .args(args)
            .output()
            .unwrap()
    };
    let text = sim(&[]);
    assert!(text.status.success(), "{text:?}");
    assert!(
        String::from_utf8_lossy(&text.stdout).contains("\nbecause: "),
        "{text:?}"
    );
    let json = sim(&["-J"]);
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(
        value["because"]
            .as_str()
            .is_some_and(|because| because.len() > 20),
        "{value}"
    );
    value
}

fn case(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn what_could_go_and_what_stands_in_the_way() {
    let small = Machine::new("removable", SMALL);
    let answer = small.ask(&["removable"]);
    // The first block holds the pages that the machine kept for itself.
    assert_eq!(
        (&answer["blocks_online"], &answer["removable"]),
        (&12.into(), &11.into())
    );
    assert_eq!(answer["rows"][0]["verdict"], "reserved");
    assert_eq!(answer["rows"][1]["last_block"], 7);
    // A real machine: the zones share the first block, and nothing of the kernel's can go.
    let real = ask(&case("Z16.txt"), &["removable"]);
    assert_eq!(real["rows"][0]["verdict"], "zones");
    assert_eq!(real["blocks_online"], 128);
}

#[test]
fn how_far_a_machine_shrinks() {
    let small = Machine::new("shrink", SMALL);
    let answer = small.ask(&["shrink", "--to", "1GiB"]);
    assert_eq!(
        (&answer["reached_bytes"], &answer["is_reached"]),
        (&(1_u64 << 30).into(), &true.into())
    );
    assert_eq!(
        (&answer["blocks_gone"], &answer["blocks_refused"]),
        (&4.into(), &0.into())
    );
    let further = small.ask(&["shrink", "--to", "0"]);
    assert_eq!(
        (&further["reached_bytes"], &further["is_reached"]),
        (&(128_u64 << 20).into(), &false.into())
    );
    assert_eq!(further["rows"][0]["refused_because"], "reserved");
}

#[test]
fn what_could_be_had() {
    let small = Machine::new("order", SMALL);
    let answer = small.ask(&["order", "10", "--count", "100"]);
    assert!(
        answer["rows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["succeed"] == 100)
    );
    let more = small.ask(&["order", "10", "--count", "300"]);
    let by = |mt: &str| {
        let rows = more["rows"].as_array().unwrap();
        let found = rows
            .iter()
            .find(|row| row["migratetype"] == mt && row["compaction"] == false);
        found.unwrap()["succeed"].as_u64().unwrap()
    };
    // A movable request has both zones, an unmovable one has one: 1 GiB less 16 MiB, less the marks.
    assert_eq!(by("movable"), 300);
    assert!((240..252).contains(&by("unmovable")), "{more}");
    // Scattered: no block of order 9 as it is, but room for some after compaction.
    let scattered = SMALL.replace(
        "managed = 258048\n",
        "managed = 258048\nfree_blocks_by_order = [60000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\n",
    );
    let scattered = Machine::new(
        "scattered",
        &scattered
            .replace("present = 131072", "present = 0")
            .replace("managed = 131072", "managed = 0"),
    );
    let answer = scattered.ask(&["order", "9", "--count", "20"]);
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(
        (&rows[0]["succeed"], &rows[0]["reason"]),
        (&0.into(), &"fragmented".into())
    );
    assert!(
        rows[1]["succeed"].as_u64() > Some(0) && rows[1]["pages_moved"].as_u64() > Some(0),
        "{answer}"
    );
}

#[test]
fn what_contiguity_costs() {
    let answer = ask(&case("Z16.txt"), &["contiguity"]);
    let rows = answer["rows"].as_array().unwrap();
    let walks = |zone: &str, cache: &str| {
        let found = rows
            .iter()
            .find(|row| row["zone"] == zone && row["cache"] == cache);
        found.unwrap()["walks"].as_u64().unwrap()
    };
    assert_eq!(walks("Normal", "zone"), 0);
    assert_eq!(walks("Normal", "pageblock") * 2, walks("Normal", "none"));
    // A zone with a hole has to walk without the cache by pageblock.
    assert_eq!(walks("DMA32", "zone"), walks("DMA32", "none"));
    assert!(walks("DMA32", "pageblock") < walks("DMA32", "zone"));
}

#[test]
fn where_new_memory_should_go() {
    let small = Machine::new("policy", SMALL);
    let answer = small.ask(&["online-policy", "--size", "256MiB", "--steps", "60000"]);
    let (kernel, movable) = (&answer["rows"][0], &answer["rows"][1]);
    assert_eq!(kernel["policy"], "kernel");
    // What came as movable can go again.
    assert_eq!(
        movable["reason"]
            .as_str()
            .filter(|reason| *reason == "unmovable"),
        None,
        "{answer}"
    );
    assert!(kernel["blocks_gone"].as_u64() < Some(2), "{answer}");
    assert_eq!(kernel["reason"], "unmovable", "{answer}");
}

/// A trace of what cannot be moved, and more of it than there is room for without the new memory:
/// as kernel memory it takes it, and the block stays; as movable memory it does not.
#[test]
fn where_new_memory_should_go_after_what_a_trace_tells() {
    let small = Machine::new("history", SMALL);
    let trace = small.0.with_extension("trace");
    let mut text = String::new();
    for page in 0..40_000 {
        text += &format!(
            "  a-1 [000] .... 1.{page:06}: mm_page_alloc: page=00000000d2be5665 pfn={page} order=0 \
             migratetype=0 gfp_flags=GFP_KERNEL\n"
        );
    }
    std::fs::write(&trace, text).unwrap();
    let history = trace.to_str().unwrap();
    let answer = small.ask(&["online-policy", "--size", "256MiB", "--history", history]);
    std::fs::remove_file(&trace).unwrap();
    let (kernel, movable) = (&answer["rows"][0], &answer["rows"][1]);
    assert_eq!(answer["requests"], 40_000);
    assert_eq!(kernel["reason"], "unmovable", "{answer}");
    assert_eq!(movable["blocks_gone"], 2, "{answer}");
    assert!(
        movable["requests_short"].as_u64() > kernel["requests_short"].as_u64(),
        "{answer}"
    );
}

#[test]
fn what_is_no_question_is_usage() {
    let sim = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
            .args(args)
            .output()
            .unwrap()
    };
    let z16 = case("Z16.txt");
    assert_eq!(sim(&["ask", &z16, "order", "15"]).status.code(), Some(2));
    assert_eq!(
        sim(&["ask", &z16, "shrink", "--to", "much"]).status.code(),
        Some(2)
    );
    assert_eq!(
        sim(&["ask", "/nonexistent", "removable"]).status.code(),
        Some(2)
    );
    // A trace is no machine.
    assert_eq!(
        sim(&["ask", &case("T01.txt"), "removable"]).status.code(),
        Some(1)
    );
}
