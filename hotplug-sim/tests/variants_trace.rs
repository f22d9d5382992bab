//! Traces as ftrace, trace-cmd and perf write them.

mod support;

use serde_json::json;
use support::assert_import;

#[test]
fn every_writer_gives_the_same_event() {
    let event = "mm_page_alloc: page=0xffffea0000123456 pfn=0x1d1ac1 order=2 migratetype=1 gfp_flags=GFP_KERNEL|__GFP_COMP";
    for (prefix, cpu, time) in [
        (
            "            bash-1234  [003] .....  1210.268022: ",
            json!(3),
            json!({ "approx": 1_210.268_022 }),
        ),
        (
            "            bash-1234  (   1200) [003] d..1.  1210.268022: ",
            json!(3),
            json!({ "approx": 1_210.268_022 }),
        ),
        (
            "            bash-1234  [003]  1210.268022: ",
            json!(3),
            json!({ "approx": 1_210.268_022 }),
        ),
        (
            "            bash-1234  [003]  1210.268022123: ",
            json!(3),
            json!({ "approx": 1_210.268_022_123 }),
        ),
        (
            "bash  1234 [003]  1210.268022: kmem:",
            json!(3),
            json!({ "approx": 1_210.268_022 }),
        ),
        (
            "bash  1200/1234  [003]  1210.268022:       kmem:",
            json!(3),
            json!({ "approx": 1_210.268_022 }),
        ),
        ("    bash-1234    3d..1    5us : ", json!(3), json!(null)),
        (
            " > bash-1234  [003] .....  1210.268022: ",
            json!(3),
            json!({ "approx": 1_210.268_022 }),
        ),
    ] {
        let text = format!("{prefix}{event}\n");
        assert_import(
            prefix,
            &text,
            0,
            &[
                ("formats", json!(["ftrace"])),
                ("events[0].kind", json!("alloc")),
                ("events[0].pfn", json!(0x1d_1ac1)),
                ("events[0].order", json!(2)),
                ("events[0].migratetype", json!("1")),
                ("events[0].gfp", json!("GFP_KERNEL|__GFP_COMP")),
                ("events[0].task", json!("bash")),
                ("events[0].pid", json!(1234)),
                ("events[0].cpu", cpu),
                ("events[0].time", time),
                ("diagnostics", json!({ "len": 0 })),
            ],
        );
    }
}

#[test]
fn headers_call_chains_and_lost_events_are_no_warnings() {
    let text = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 3/3   #P:8
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
cpus=8
bash  1234 [003]  1.000001: kmem:mm_page_free: page=0xffffea0000123456 pfn=1907393 order=0
\tffffffff81188e61 __free_pages+0x21 ([kernel.kallsyms])
\t    7f1234567890 free+0x10 (/usr/lib/libc.so.6)

bash  1234 [003]  1.000002: kmem:kmalloc: call_site=ffffffff81 ptr=0xffff bytes_req=8 bytes_alloc=8 gfp_flags=GFP_KERNEL
 => __alloc_pages_nodemask
 => alloc_pages_current
CPU:3 [LOST 12 EVENTS]
 24)   0.160 us    |      __zone_watermark_ok();
   1210.268022 |   1)               |  /* mm_page_free: page=0xffffea0000123456 pfn=0x11 order=1 */
";
    assert_import(
        "headers",
        text,
        0,
        &[
            ("events", json!({ "len": 2 })),
            ("events[*].line", json!({ "list": [6, 15] })),
            ("events[1].order", json!(1)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
            ("diagnostics[severity=note].line", json!({ "list": [13] })),
        ],
    );
}

#[test]
fn failures_have_no_page() {
    for page in [
        "page= (null) pfn=0",
        "page=(nil) pfn=0x0",
        "page=0000000000000000 pfn=0",
        "page=(____ptrval____) pfn=18446744073709551615",
        "page=0x0 pfn=-1",
    ] {
        let text = format!(
            "a-1 [000] 1.000001: mm_page_alloc: {page} order=9 migratetype=1 gfp_flags=GFP_NOWAIT\n"
        );
        assert_import(
            page,
            &text,
            0,
            &[
                ("events[0].kind", json!("alloc-failed")),
                ("events[0].pfn", json!(null)),
                ("events[0].order", json!(9)),
            ],
        );
    }
}

#[test]
fn fallbacks_say_all_of_it() {
    let text = "cc1-77 [001] d..2. 5.000001: mm_page_alloc_extfrag: page=00000000d2be5665 pfn=0x40c00 alloc_order=0 fallback_order=9 pageblock_order=9 alloc_migratetype=0 fallback_migratetype=1 fragmenting=0 change_ownership=1\n";
    assert_import(
        "fallback",
        text,
        0,
        &[
            ("events[kind=fallback].pfn", json!(0x4_0c00)),
            ("events[0].order", json!(0)),
            ("events[0].fallback_order", json!(9)),
            ("events[0].migratetype", json!("0")),
            ("events[0].fallback_migratetype", json!("1")),
            ("events[0].fragmenting", json!(false)),
            ("events[0].change_ownership", json!(true)),
            ("events[0].pageblock_order", json!(9)),
            ("pageblock_order", json!(9)),
        ],
    );
}

#[test]
fn compaction_begins_scans_and_finishes() {
    let text = "\
kcompactd0-42 [001] .....  10.000001: mm_compaction_begin: zone_start=0x1000 migrate_pfn=0x1200 free_pfn=0x3fe00 zone_end=0x40000, mode=sync
kcompactd0-42 [001] .....  10.000002: mm_compaction_isolate_migratepages: range=(0x1200 ~ 0x1400) nr_scanned=512 nr_taken=32
kcompactd0-42 [001] .....  10.000003: mm_compaction_fast_isolate_freepages: range=(0x3fe00 ~ 0x40000) nr_scanned=1 nr_taken=64
kcompactd0-42 [001] .....  10.000004: mm_compaction_migratepages: nr_migrated=32 nr_failed=0
kcompactd0-42 [001] .....  10.000005: mm_compaction_finished: node=0 zone=Normal   order=9 ret=continue
kcompactd0-42 [001] .....  10.000006: mm_compaction_finished: node=1 zone=DMA32    order=-1 ret=no_suitable_page
kcompactd0-42 [001] .....  10.000007: mm_compaction_suitable: node=0 zone=Normal   order=9 ret=continue
kcompactd0-42 [001] .....  10.000008: mm_compaction_end: zone_start=0x1000 migrate_pfn=0x1400 free_pfn=0x3fc00 zone_end=0x40000, mode=sync status=partial
kcompactd0-42 [001] .....  10.000009: mm_compaction_kcompactd_sleep: nid=0
";
    assert_import(
        "compaction",
        text,
        0,
        &[
            (
                "events[*].kind",
                json!({ "list": ["compact-begin", "isolate-migrate", "isolate-free", "compact-finished", "compact-finished", "compact-end"] }),
            ),
            (
                "events[kind=compact-finished].result",
                json!({ "list": ["continue", "no_suitable_page"] }),
            ),
            (
                "events[kind=compact-finished].zone",
                json!({ "list": ["Normal", "DMA32"] }),
            ),
            (
                "events[kind=compact-finished].node",
                json!({ "list": [0, 1] }),
            ),
            (
                "events[kind=compact-finished].order",
                json!({ "list": [9] }),
            ),
            ("events[kind=compact-end].result", json!("partial")),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
    let old = "a-1 [000] 1.0: mm_compaction_isolate_freepages: nr_scanned=100 nr_taken=3\na-1 [000] 1.1: mm_compaction_begin: zone_start=4096 migrate_start=4096 free_start=229376 zone_end=229376\n";
    assert_import(
        "old",
        old,
        0,
        &[
            ("events[0].pfn", json!(null)),
            ("events[0].nr_taken", json!(3)),
            ("events[1].free_pfn", json!(229_376)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_page_freed_twice_is_a_warning_at_the_second() {
    let text = "\
a-1 [000] 1.000001: mm_page_alloc: page=00000000d2be5665 pfn=0x10 order=0 migratetype=0 gfp_flags=GFP_KERNEL
a-1 [000] 1.000002: mm_page_free: page=00000000d2be5665 pfn=0x10 order=0
b-2 [001] 1.000003: mm_page_free: page=00000000d2be5665 pfn=0x10 order=0
";
    assert_import(
        "twice",
        text,
        0,
        &[
            ("diagnostics[severity=warning].line", json!({ "list": [3] })),
            ("events", json!({ "len": 3 })),
        ],
    );
}

#[test]
fn damage_and_strangers_are_told_with_their_line() {
    let text = "\
a-1 [000] 1.000001: mm_page_alloc: page=00000000d2be5665 pfn=0x10 order=0 migratetype=0 gfp_flags=GFP_KERNEL
a-1 [000] 1.000002: mm_page_alloc: page=00000000d2be5665 pfn=0x1
a-1 [000] 1.000003: sched_switch: prev_comm=a next_comm=b
a-1 [000] 1.000004: mm_page_free: page=00000000d2be5665 pfn=xyz order=0
";
    assert_import(
        "damage",
        text,
        0,
        &[
            ("events", json!({ "len": 1 })),
            (
                "diagnostics[severity=warning].line",
                json!({ "list": [2, 3, 4] }),
            ),
        ],
    );
}
