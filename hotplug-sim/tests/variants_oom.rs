//! Out-of-memory reports and memory information from 2.6 to now.

mod support;

use serde_json::json;
use support::assert_import;

#[test]
fn a_report_of_2_6_18_has_per_cpu_lists_and_no_letters() {
    let text = "\
java invoked oom-killer: gfp_mask=0x201d2, order=0, oom_adj=0

Call Trace:
 [<ffffffff802aef6e>] out_of_memory+0x4e/0x1d3
 [<ffffffff8020f556>] __alloc_pages+0x229/0x2b2

Mem-info:
Node 0 DMA per-cpu:
cpu 0 hot: low 0, high 0, batch 1 used:0
cpu 0 cold: low 0, high 0, batch 1 used:0
Node 0 DMA32 per-cpu:
cpu 0 hot: high 186, batch 31 used:28
cpu 0 cold: high 62, batch 15 used:14
Node 0 Normal per-cpu: empty
Free pages:       12345kB (0kB HighMem)
Active:241234 inactive:243567 dirty:0 writeback:0 unstable:0 free:3086 slab:5123 mapped:2 pagetables:4567
Node 0 DMA free:10904kB min:36kB low:44kB high:52kB active:0kB inactive:0kB present:10512kB pages_scanned:0 all_unreclaimable? yes
lowmem_reserve[]: 0 1994 1994 1994
Node 0 DMA32 free:1440kB min:5692kB low:7112kB high:8536kB active:964936kB inactive:974268kB present:2042592kB pages_scanned:2940517 all_unreclaimable? yes
lowmem_reserve[]: 0 0 0 0
Node 0 DMA: 4*4kB 3*8kB 1*16kB 3*32kB 2*64kB 1*128kB 1*256kB 0*512kB 2*1024kB 0*2048kB 2*4096kB = 10904kB
Node 0 DMA32: 0*4kB 0*8kB 0*16kB 1*32kB 0*64kB 1*128kB 1*256kB 0*512kB 1*1024kB 0*2048kB 0*4096kB = 1440kB
Node 0 Normal: empty
Swap cache: add 0, delete 0, find 0/0, race 0+0
Free swap  = 0kB
Total swap = 0kB
Out of memory: Killed process 4711 (java).
";
    assert_import(
        "2.6.18",
        text,
        0,
        &[
            ("page_size_bytes", json!(4096)),
            ("nodes[0].zones[name=DMA].free", json!(2726)),
            ("nodes[0].zones[name=DMA].managed", json!(null)),
            ("nodes[0].zones[name=DMA].free_types_by_order", json!(null)),
            ("nodes[0].zones[name=DMA32].pcp_count", json!(42)),
            ("nodes[0].zones[name=DMA32].protection", json!([0, 0, 0, 0])),
            (
                "nodes[0].zones[name=DMA32].free_blocks_by_order[8]",
                json!(1),
            ),
            ("totals.free", json!(3086)),
            ("events[kind=oom-kill].pid", json!(4711)),
            ("events[kind=oom-kill].task", json!("java")),
        ],
    );
}

fn report(free: u32, killed: u32) -> String {
    format!(
        "\
[  100.{free}] kworker invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0
[  100.{free}] Mem-Info:
[  100.{free}] active_anon:1 inactive_anon:2 isolated_anon:0
                active_file:3 inactive_file:4 isolated_file:0
                unevictable:0 dirty:0 writeback:0
                free:{free} free_pcp:39 free_cma:0
[  100.{free}] Node 0 active_anon:4kB inactive_anon:8kB mapped:0kB all_unreclaimable? no
[  100.{free}] Node 0 Normal free:{}kB min:1696kB low:2120kB high:2544kB present:252928kB managed:180496kB free_pcp:392kB free_cma:0kB
[  100.{free}] lowmem_reserve[]: 0 0 0
[  100.{free}] Node 0 Normal: {free}*4kB (UME) 0*8kB = {}kB
[  100.{free}] Tasks state (memory values in pages):
[  100.{free}] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[  100.{free}] [    456]     0   456     6045      203    81920        0         -1000 systemd-udevd
[  100.{free}] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=stress,pid={killed},uid=0
[  100.{free}] Out of memory: Killed process {killed} (stress) total-vm:8388608kB, anon-rss:4194304kB, file-rss:0kB
[  101.{free}] oom_reaper: reaped process {killed} (stress), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
",
        free * 4,
        free * 4
    )
}

#[test]
fn reports_in_a_row_are_snapshots_and_a_kill_is_one_event() {
    let text = format!("{}{}", report(1062, 11), report(777, 12));
    assert_import(
        "two reports",
        &text,
        0,
        &[
            (
                "snapshots[*].nodes[0].zones[name=Normal].free",
                json!({ "list": [1062, 777] }),
            ),
            (
                "nodes[0].zones[name=Normal].free_blocks_by_order[0]",
                json!(777),
            ),
            (
                "nodes[0].zones[name=Normal].free_types_by_order",
                json!(["UME", ""]),
            ),
            ("nodes[0].zones[name=Normal].pcp_count", json!(98)),
            ("events[kind=oom-kill].pid", json!({ "list": [11, 12] })),
            ("events", json!({ "len": 2 })),
            ("totals.free", json!(777)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn more_free_cma_than_free_pages_is_a_warning() {
    let text = "\
[    1.000001]  free:100 free_pcp:0 free_cma:200
[    1.000002] Normal free:400kB min:16kB low:20kB high:24kB present:1000kB managed:900kB free_cma:800kB
[    1.000003] Normal: 100*4kB (C) = 400kB
";
    assert_import(
        "cma",
        text,
        0,
        &[
            (
                "diagnostics[severity=warning].line",
                json!({ "list": [1, 2] }),
            ),
            ("nodes[0].zones[name=Normal].free_cma", json!(200)),
        ],
    );
}

#[test]
fn a_wrapped_amount_is_negative_pages() {
    let text = "\
[    1.000002] Normal free:18446744073709551612kB min:16kB low:20kB high:24kB present:1000kB managed:900kB free_cma:0kB
[    1.000003] Normal: 100*4kB (C) = 400kB
[    1.000004] 18446744073709551606 pages reserved
";
    assert_import(
        "wrapped",
        text,
        64,
        &[
            ("nodes[0].zones[name=Normal].free", json!(-1)),
            ("totals.reserved", json!(-10)),
            (
                "diagnostics[severity=error].what",
                json!({ "matches": "^free of zone Normal" }),
            ),
            (
                "diagnostics[severity=error].line",
                json!({ "list": [1, 3] }),
            ),
        ],
    );
}

#[test]
fn without_a_list_the_total_tells_the_page_size() {
    let text = "\
Normal free:896kB min:2688kB low:3328kB high:3968kB present:491520kB managed:469632kB free_cma:0kB
7680 pages RAM
0 pages HighMem/MovableOnly
";
    assert_import(
        "no list",
        text,
        0,
        &[
            ("page_size_bytes", json!(65_536)),
            ("nodes[0].zones[0].free", json!(14)),
            ("nodes[0].zones[0].present", json!(7680)),
        ],
    );
    let alone = text.lines().next().unwrap();
    assert_import(
        "nothing tells it",
        &format!("{alone}\n"),
        0,
        &[
            ("page_size_bytes", json!(null)),
            ("nodes[0].zones[0].free", json!(null)),
        ],
    );
}

#[test]
fn mails_wrap_reports_without_prefixes_too() {
    let text = "\
> Node 0 DMA32 free:613120kB min:91584kB low:114432kB high:137280kB
> active_anon:1315328kB inactive_anon:6208kB present:2031616kB
> managed:1996672kB mlocked:0kB free_cma:523776kB
> lowmem_reserve[]: 0 0 0
> Node 0 DMA32: 12*64kB (UM) 10*128kB (UM) 5*256kB (UM)
>  5*512kB (MC) = 5888kB
> 31744 pages RAM
";
    assert_import(
        "wrapped",
        text,
        0,
        &[
            ("page_size_bytes", json!(65_536)),
            ("nodes[0].zones[name=DMA32].free_cma", json!(8184)),
            ("nodes[0].zones[name=DMA32].protection", json!([0, 0, 0])),
            (
                "nodes[0].zones[name=DMA32].free_blocks_by_order",
                json!([12, 10, 5, 5]),
            ),
            (
                "nodes[0].zones[name=DMA32].free_types_by_order[3]",
                json!("MC"),
            ),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn what_people_write_between_lines_is_not_taken_for_their_rest() {
    let text = "\
Node 0 Normal free:4248kB min:1696kB low:2120kB high:2544kB
as you can see the zone is
below its mark, and
Node 0 Normal: 1062*4kB (UM) 0*8kB = 4248kB
the list agrees.
Node 0 active_anon:4kB inactive_anon:8kB
so there.
";
    assert_import(
        "prose",
        text,
        0,
        &[
            ("nodes[0].zones[name=Normal].watermarks.high", json!(636)),
            (
                "nodes[0].zones[name=Normal].free_blocks_by_order",
                json!([1062, 0]),
            ),
            (
                "diagnostics[severity=warning].line",
                json!({ "list": [2, 3, 5, 7] }),
            ),
        ],
    );
}

#[test]
fn a_list_that_does_not_add_up_is_said() {
    let text =
        "Node 0 DMA: 1*4kB (U) 1*8kB (U) = 16kB\nNode 0 Normal: 1*4kB (U) 1*16kB (U) = 20kB\n";
    assert_import(
        "sum",
        text,
        64,
        &[
            (
                "diagnostics[line=1].what",
                json!({ "matches": "16kB.*12kB" }),
            ),
            ("diagnostics[line=2][severity=error]", json!({ "len": 1 })),
            ("nodes[0].zones[name=Normal].free", json!(null)),
        ],
    );
}

#[test]
fn a_failed_allocation_is_an_event() {
    let text = "\
[   12.5] kworker/u16:3: page allocation failure: order:5, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null),cpuset=/,mems_allowed=0
[   12.6] swapper/0: page allocation failure. order:3, mode:0x20
[   12.7] CPU: 0 PID: 0 Comm: swapper/0 Not tainted 6.1.0 #1
[   12.8] Call Trace:
[   12.9]  <TASK>
[   12.9]  dump_stack_lvl+0x44/0x5c
";
    assert_import(
        "failure",
        text,
        0,
        &[
            ("events[kind=alloc-failed].order", json!({ "list": [5, 3] })),
            (
                "events[kind=alloc-failed].gfp",
                json!({ "list": ["GFP_KERNEL|__GFP_COMP|__GFP_ZERO", "0x20"] }),
            ),
            ("events[0].task", json!("kworker/u16:3")),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn memory_cgroups_kill_too() {
    let text = "\
[   10.0] memory: usage 1048576kB, limit 1048576kB, failcnt 27
[   10.0] swap: usage 0kB, limit 0kB, failcnt 0
[   10.0] Memory cgroup stats for /a:
[   10.0] anon 1073741824
               file 0
               kernel_stack 16384
[   10.1] Memory cgroup out of memory: Killed process 99 (a (b)) total-vm:8kB, anon-rss:4kB
";
    assert_import(
        "memcg",
        text,
        0,
        &[
            ("events[kind=oom-kill].pid", json!(99)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

/// Seen to fail before it was: the old head, the sums and the task's cpuset were not understood.
#[test]
fn reports_of_2_6_18_carry_no_names() {
    let text = "\
oom-killer: gfp_mask=0x201d2, order=0
stress cpuset=/ mems_allowed=0
Mem-info:
Node 0 DMA32 per-cpu:
cpu 0 hot: high 186, batch 31 used:15
cpu 0 cold: high 62, batch 15 used:29
Node 0 Normal per-cpu: empty
Free pages:        7340kB (0kB HighMem)
Active:125412 inactive:123028 dirty:0 writeback:0 unstable:0 free:1835 slab:3125 mapped-file:1 mapped-anon:248435 pagetables:2004
Node 0 DMA32 free:7340kB min:2952kB low:3688kB high:4428kB active:497740kB inactive:489164kB present:1018020kB pages_scanned:1632121 all_unreclaimable? yes
lowmem_reserve[]: 0 0 0 0
Node 0 DMA32: 287*4kB 20*8kB 1*16kB 0*32kB 0*64kB 1*128kB 1*256kB 1*512kB 1*1024kB 2*2048kB 0*4096kB = 7340kB
Node 0 Normal: empty
17 pagecache pages
Swap cache: add 603434, delete 603434, find 85132/98271, race 0+25
Free swap:            0kB
262128 pages of RAM
5412 reserved pages
free_cma:0
Out of memory: Killed process 2917 (stress).
";
    assert_import(
        "2.6.18",
        text,
        0,
        &[
            ("nodes[node=0].zones[name=DMA32].free", json!(1835)),
            ("nodes[node=0].zones[name=DMA32].pcp_count", json!(44)),
            ("totals.present", json!(262_128)),
            ("events[kind=oom-kill].pid", json!(2917)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}
