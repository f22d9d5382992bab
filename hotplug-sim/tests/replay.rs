//! `hotplug-sim replay`: traces and logs done again, as somebody would type it.

use std::io::Write;
use std::process::{Command, Stdio};

fn replay(text: &str, args: &[&str]) -> (i32, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
        .args(["replay", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary was built");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("it is read");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    (output.status.code().expect("it exits"), text)
}

fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no row {name:?} in\n{text}"));
    line.trim_start()[name.len()..].split_whitespace().collect()
}

fn alloc(micros: u64, pfn: u64, order: u32, migratetype: u32) -> String {
    let gfp = [
        "GFP_KERNEL",
        "GFP_HIGHUSER_MOVABLE",
        "GFP_KERNEL|__GFP_RECLAIMABLE",
    ];
    format!(
        "  a-1 [000] .... 1.{micros:06}: mm_page_alloc: page=00000000d2be5665 pfn={pfn:#x} order={order} \
         migratetype={migratetype} gfp_flags={}\n",
        gfp[migratetype as usize]
    )
}

fn free(micros: u64, pfn: u64, order: u32) -> String {
    format!(
        "  a-1 [000] .... 1.{micros:06}: mm_page_free: page=00000000d2be5665 pfn={pfn:#x} order={order}\n"
    )
}

#[test]
fn a_trace_that_scatters_unmovable_pages_is_kept_together_by_ours() {
    // The kernel puts an unmovable page into each of 32 pageblocks, movable ones beside them.
    let mut text = String::new();
    for block in 0..32 {
        text += &alloc(block * 2, 0x10_0000 + block * 512, 0, 0);
        text += &alloc(block * 2 + 1, 0x10_0000 + block * 512 + 1, 0, 1);
    }
    let (status, report) = replay(&text, &[]);
    assert_eq!(status, 0, "{report}");
    assert_eq!(row(&report, "pages "), ["32", "32", "0", "0"]);
    assert_eq!(
        row(&report, "pageblocks that unmovable pages are in"),
        ["32", "1"]
    );
    assert_eq!(row(&report, "pageblocks of mixed kinds"), ["32", "0"]);
    assert_eq!(row(&report, "pageblocks wholly free"), ["32", "62"]);
    assert_eq!(
        row(&report, "single pages right behind the one before"),
        ["32", "0"]
    );
}

#[test]
fn what_a_trace_frees_without_having_allocated_it_was_in_use_before() {
    let text = free(1, 0x10_0000, 3) + &alloc(2, 0x10_0000, 0, 1) + &free(3, 0x10_0000, 0);
    let (status, report) = replay(&text, &[]);
    assert_eq!(status, 0, "{report}");
    assert!(report.contains("in use before: 8 pages"), "{report}");
    // All is free at the end, on both sides, and has merged.
    assert_eq!(row(&report, "pageblocks wholly free"), ["64", "64"]);
    assert_eq!(row(&report, "free blocks of order 10"), ["32", "32"]);
}

#[test]
fn a_block_freed_in_parts_and_a_lost_free_are_understood() {
    let text = alloc(1, 0x10_0000, 2, 1)
        + &free(2, 0x10_0001, 0)
        + &free(3, 0x10_0002, 1)
        + &alloc(4, 0x10_0000, 0, 0)
        + &free(5, 0x10_0000, 0)
        + &free(6, 0x10_0000, 0);
    let (_, report) = replay(&text, &[]);
    assert!(
        report.contains("note: 1 allocations of a page in use"),
        "{report}"
    );
    assert!(
        report.contains("note: 1 pages freed that were free"),
        "{report}"
    );
    assert_eq!(row(&report, "free blocks of order 10"), ["32", "32"]);
}

#[test]
fn every_order_and_page_size_is_replayed_in_its_own_measure() {
    let text = alloc(1, 0x20_0000, 10, 1) + &free(2, 0x20_0000, 10);
    let (status, report) = replay(&text, &["--page-size", "65536", "--pageblock-order", "9"]);
    assert_eq!(status, 0, "{report}");
    assert!(
        report.contains("pages of 65536 bytes, pageblocks of order 9"),
        "{report}"
    );
    assert_eq!(row(&report, "10 "), ["0", "1", "0", "0", "1", "0", "0"]);
}

#[test]
fn an_offline_log_is_done_again_and_compared() {
    let text = "online->offline memory1\nonline->offline memory10\n\
                write error: Resource temporarily unavailable\n\
                offline->online memory1\n";
    let (status, report) = replay(text, &["--format", "offline-log"]);
    assert_eq!(status, 0, "{report}");
    assert!(
        report.contains("2 outcomes are the same, 1 differ"),
        "{report}"
    );
}

#[test]
fn a_page_that_would_not_move_is_in_the_way_here_too() {
    let text = "[878020.623959] migrating pfn 24279059 failed ret:1\n";
    let (status, report) = replay(text, &["--format", "offline-log"]);
    assert_eq!(status, 0, "{report}");
    assert!(
        report.contains("page 4185 of the block is in use and stays"),
        "{report}"
    );
}

#[test]
fn extents_that_are_added_and_released_leave_what_is_left() {
    let add = |verb: &str, offset: u64| {
        format!(
            "{{ \"execute\": \"cxl-{verb}-dynamic-capacity\", \"arguments\": {{ \"path\": \
             \"/machine/peripheral/cxl-dcd0\", \"region\": 0, \"extents\": [ {{ \"offset\": {offset}, \
             \"len\": 134217728 }} ] }} }}\n"
        )
    };
    let text = add("add", 0) + &add("add", 134_217_728) + &add("release", 134_217_728);
    let (status, report) = replay(&text, &[]);
    assert_eq!(status, 0, "{report}");
    assert!(
        report.contains("32768 pages are managed at the end"),
        "{report}"
    );
}

#[test]
fn a_virtio_mem_device_is_asked_for_sizes() {
    let text = "[   19.537528] virtio_mem virtio0: start address: 0x100000000\n\
                [   19.538094] virtio_mem virtio0: region size: 0x10000000\n\
                [   19.539186] virtio_mem virtio0: memory block size: 0x8000000\n\
                [   19.540357] virtio_mem virtio0: plugged size: 0x0\n\
                [   19.540834] virtio_mem virtio0: requested size: 0x10000000\n\
                [   20.170441] virtio_mem virtio0: plugged size: 0x10000000\n\
                [   20.170933] virtio_mem virtio0: requested size: 0x8000000\n";
    let (status, report) = replay(text, &[]);
    assert_eq!(status, 0, "{report}");
    assert!(report.contains("256 MiB before, 128 MiB after"), "{report}");
    assert!(
        report.contains("2 outcomes are the same, 0 differ"),
        "{report}"
    );
}

#[test]
fn a_scan_that_gets_nowhere_is_named() {
    let scan = "  stress-3923  [007] .... 519.106208: mm_compaction_isolate_migratepages: \
                range=(0x70bb80 ~ 0x70bb80) nr_scanned=0 nr_taken=0\n";
    let (status, report) = replay(&scan.repeat(10), &[]);
    assert_eq!(status, 0, "{report}");
    assert!(
        report.contains("no progress: lines 1 to 10 scan 0x70bb80 to 0x70bb80 10 times"),
        "{report}"
    );
}

#[test]
fn where_nothing_happens_there_is_nothing_to_replay() {
    let (status, report) = replay("Node 0, zone Normal 1 2 3 4 5 6 7 8 9 10 11\n", &[]);
    assert_eq!((status, report.as_str()), (1, ""));
}

/// Seen to fail: a log without its picture.
#[test]
fn a_replay_is_drawn() {
    let mut text = String::new();
    for block in 0..32 {
        text += &alloc(block * 2, 0x10_0000 + block * 512, 0, 0);
        text += &alloc(block * 2 + 1, 0x10_0000 + block * 512 + 1, 0, 1);
    }
    let folder = std::env::temp_dir().join(format!("hotplug-sim-drawn-{}", std::process::id()));
    let (status, report) = replay(&text, &["--plot", folder.to_str().expect("it is text")]);
    assert_eq!(status, 0, "{report}");
    let log = "[    1.0] Offlined Pages 32768\n[    2.0] Built 1 zonelists, mobility grouping on.  Total pages: 1\n";
    let with = format!("{log}[    3.0] memory memory41: Offline failed.\n");
    let (status, report) = replay(&with, &["--plot", folder.to_str().expect("it is text")]);
    assert_ne!(status, 1, "{report}");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("it was made")
        .map(|entry| {
            entry
                .expect("it can be read")
                .file_name()
                .into_string()
                .expect("it is text")
        })
        .collect();
    names.sort();
    let all = [
        "free-blocks-kernel.svg",
        "free-blocks-ours.svg",
        "in-use.svg",
        "managed.svg",
        "pageblocks.svg",
        "unusable.svg",
    ];
    assert_eq!(names, all);
    for name in all {
        let svg = std::fs::read_to_string(folder.join(name)).expect("it was written");
        // Six lines of text at least: the title and the axes.
        assert!(
            svg.starts_with("<svg")
                && svg.matches("<text").count() > 6
                && svg.contains("<polyline"),
            "{name}"
        );
    }
    let unusable = std::fs::read_to_string(folder.join("unusable.svg")).expect("it was written");
    assert!(unusable.contains("Gorman and Whitcroft"));
    std::fs::remove_dir_all(&folder).expect("it is ours");
}
