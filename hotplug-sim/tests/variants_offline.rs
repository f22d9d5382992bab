//! Logs of onlining, offlining and removing, and the commands that asked for it.

mod support;

use serde_json::json;
use support::assert_import;

#[test]
fn an_attempt_and_its_answers_are_one_event() {
    let text = "\
[root@host ~]# echo offline > /sys/devices/system/memory/memory32/state
[   20.5] page:ffffea0004000000 refcount:1 mapcount:0 mapping:0000000000000000 index:0x0 pfn:0x100000
[   20.5] flags: 0x17ffffc0001000(reserved|node=0|zone=2|lastcpupid=0x1fffff)
[   20.5] page dumped because: unmovable page
[   20.6] memory offlining [mem 0x100000000-0x107ffffff] failed due to unmovable page
-bash: echo: write error: Device or resource busy
[root@host ~]# echo 0 > /sys/devices/system/memory/memory33/online
[   30.0] Offlined Pages 32768
[root@host ~]# echo online_kernel > /sys/devices/system/memory/memory33/state
-bash: echo: write error: Invalid argument
";
    assert_import(
        "attempts",
        text,
        0,
        &[
            (
                "events[*].kind",
                json!({ "list": ["offline-failed", "offline", "online-failed"] }),
            ),
            ("events[*].block", json!({ "list": [32, 33, 33] })),
            ("events[0].reason", json!("unmovable page")),
            ("events[0].start_byte", json!(4_294_967_296_u64)),
            ("events[0].time", json!({ "approx": 20.6 })),
            ("events[1].nr_pages", json!(32_768)),
            ("events[2].policy", json!("kernel")),
            ("events[2].reason", json!("Invalid argument")),
            ("sections[id=32].state", json!("online")),
            ("sections[id=33].state", json!("offline")),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_script_that_echoes_is_read_like_a_prompt() {
    let text = "\
+ echo offline
+ echo online_movable > /sys/devices/system/memory/memory8/state
echo 0 | tee /sys/devices/system/node/node1/memory9/online
tee: /sys/devices/system/node/node1/memory9/online: Device or resource busy
";
    assert_import(
        "script",
        text,
        0,
        &[
            (
                "events[*].kind",
                json!({ "list": ["online", "offline-failed"] }),
            ),
            ("events[0].policy", json!("movable")),
            ("events[1].node", json!(1)),
            ("events[1].reason", json!("Device or resource busy")),
        ],
    );
}

#[test]
fn reasons_of_all_kernels_are_kept() {
    for reason in [
        "memory isolation",
        "signal backoff",
        "notifier failure",
        "unmovable page",
        "failure to isolate range",
        "memory holes",
    ] {
        let text = format!(
            "Nov 15 17:08:06 host kernel: memory offlining [mem 0x100000000-0x107ffffff] failed due to {reason}\n"
        );
        assert_import(
            reason,
            &text,
            0,
            &[
                ("events[kind=offline-failed].reason", json!(reason)),
                ("events[0].end_byte", json!(0x1_0800_0000_u64)),
                ("events[0].time", json!(null)),
                ("page_size_bytes", json!(null)),
            ],
        );
    }
    let old = "[   72.371690] memory offlining [mem 0x2100000000-0x210fffffff] failed\n";
    assert_import(
        "old",
        old,
        0,
        &[("events[kind=offline-failed].reason", json!(null))],
    );
}

#[test]
fn failures_in_a_row_are_as_many_events() {
    let text = "\
[   10.0] memory offlining [mem 0x100000000-0x107ffffff] failed due to signal backoff
[   11.0] memory offlining [mem 0x108000000-0x10fffffff] failed due to signal backoff
[   12.0] memory memory33: Offline failed.
[   13.0] memory memory34: Offline failed.
[   14.0] memory offlining [mem 0x108000000-0x10fffffff] failed due to signal backoff
[   15.0] Offlined Pages 32768
[   16.0] Offlined Pages 32768
";
    assert_import(
        "in a row",
        text,
        0,
        &[
            (
                "events[kind=offline-failed].line",
                json!({ "list": [1, 2, 4, 5] }),
            ),
            ("events[line=2].block", json!(33)),
            ("events[line=4].start_byte", json!(null)),
            ("events[kind=offline]", json!({ "len": 2 })),
        ],
    );
}

#[test]
fn migrations_that_fail_have_hexadecimal_frames() {
    let text = "\
[878020.6] migrating pfn 1727813 failed ret:-11
[878020.7] failed to isolate pfn 1727a00
[878020.8] removing pfn 1727b00 from LRU failed
";
    assert_import(
        "migration",
        text,
        0,
        &[
            (
                "events[kind=migrate-failed].pfn",
                json!({ "list": [0x172_7813, 0x172_7a00, 0x172_7b00] }),
            ),
            ("events[0].ret", json!(-11)),
            ("events[1].reason", json!({ "matches": "isolate" })),
        ],
    );
}

#[test]
fn removal_is_refused_while_blocks_are_online() {
    let text =
        "[   12.0] removing memory fails, because memory [0x140000000-0x147ffffff] is onlined\n";
    assert_import(
        "remove",
        text,
        0,
        &[
            (
                "events[kind=remove-failed].start_byte",
                json!(0x1_4000_0000_u64),
            ),
            ("events[0].reason", json!("is onlined")),
        ],
    );
}

#[test]
fn chmem_names_block_and_range() {
    let text = "\
Memory Block 0 (0x0000000000000000-0x0000000007ffffff) already enabled
Memory Block 33 (0x0000000108000000-0x000000010fffffff) enabled
chmem: Memory Block 32 (0x0000000100000000-0x0000000107ffffff) disable failed: Device or resource busy
chmem: Could only disable 0 of 1 memory block
";
    assert_import(
        "chmem",
        text,
        0,
        &[
            (
                "events[*].kind",
                json!({ "list": ["online", "offline-failed"] }),
            ),
            ("events[*].block", json!({ "list": [33, 32] })),
            ("events[1].reason", json!("Device or resource busy")),
            ("events[1].end_byte", json!(0x1_0800_0000_u64)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn power_adds_and_removes_by_address() {
    let text = "\
[  100.0] pseries-hotplug-mem: Attempting to hot-add 1 LMB(s)
[  100.1] pseries-hotplug-mem: Memory at 40000000 (drc index 80000004) was hot-added
[  200.0] pseries-hotplug-mem: Memory at 40000000 (drc index 80000004) was hot-removed
";
    assert_import(
        "power",
        text,
        0,
        &[
            ("events[*].kind", json!({ "list": ["plug", "remove"] })),
            (
                "events[*].start_byte",
                json!({ "list": [0x4000_0000, 0x4000_0000] }),
            ),
        ],
    );
}

#[test]
fn a_wrapped_terminal_line_is_joined() {
    let mut line = "[  135.099947] memory offlining [mem 0x0000000100000000-0x0000000107ffffff] failed due to signal backoff".to_string();
    line.insert(80, '\n');
    assert_import(
        "terminal",
        &format!("{line}\n"),
        0,
        &[
            (
                "events[kind=offline-failed].reason",
                json!("signal backoff"),
            ),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

/// Seen to fail before it was: both were taken for chatter, or not understood.
#[test]
fn what_could_not_be_added_or_was_undone_is_an_event() {
    let text = "\
[  113.0] Block size [0x8000000] unaligned hotplug range: start 0x100001000, size 0x8000000
[  115.0] pseries-hotplug-mem: Attempting to hot-remove 4 LMB(s)
[  116.0] pseries-hotplug-mem: Memory hot-remove failed, adding LMB's back
[  117.0] pseries-hotplug-mem: Memory hot-add failed, removing any added LMBs
";
    assert_import(
        "undone",
        text,
        0,
        &[
            (
                "events[*].kind",
                json!({ "list": ["plug-failed", "remove-failed", "plug-failed"] }),
            ),
            ("events[0].start_byte", json!(0x1_0000_1000_u64)),
            ("events[0].end_byte", json!(0x1_0800_1000_u64)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}
