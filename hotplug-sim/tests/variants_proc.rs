//! `/proc/zoneinfo` and `/proc/buddyinfo` as kernels of all years print them, and as people paste them.

mod support;

use serde_json::json;
use support::assert_import;

/// No line was left that was not understood.
fn nothing_odd() -> (&'static str, serde_json::Value) {
    ("diagnostics[severity=warning]", json!({ "len": 0 }))
}

#[test]
fn zoneinfo_of_2_6_11_has_low_marks_in_its_pagesets() {
    let text = "\
Node 0, zone      DMA
  pages free     2872
        min      17
        low      21
        high     25
        active   0
        inactive 0
        scanned  0 (a: 17 i: 17)
        spanned  4096
        present  4096
        protection: (0, 0, 0)
  pagesets
    cpu: 0 pcp: 0
              count: 2
              low:   2
              high:  6
              batch: 1
    cpu: 0 pcp: 1
              count: 1
              low:   0
              high:  2
              batch: 1
            numa_hit:       11
            numa_miss:      0
  all_unreclaimable: 1
  prev_priority:     12
  temp_priority:     12
  start_pfn:         0
";
    let zone = "nodes[node=0].zones[name=DMA]";
    assert_import(
        "2.6.11",
        text,
        0,
        &[
            (&format!("{zone}.free"), json!(2872)),
            (&format!("{zone}.watermarks.low"), json!(21)),
            (&format!("{zone}.watermarks.high"), json!(25)),
            (&format!("{zone}.managed"), json!(null)),
            (&format!("{zone}.pcp_count"), json!(3)),
            (&format!("{zone}.start_pfn"), json!(0)),
            (&format!("{zone}.protection"), json!([0, 0, 0])),
            nothing_odd(),
        ],
    );
}

#[test]
fn zoneinfo_of_6_x_has_boost_promo_and_bounds_of_high() {
    let text = "\
Node 0, zone   Normal
  per-node stats
      nr_inactive_anon 10
      nr_kernel_file_pages 3
      pgpromote_success 0
      nr_balloon_pages 0
  pages free     100
        boost    16
        min      20
        low      30
        high     40
        promo    50
        spanned  32768
        present  32768
        managed  31000
        cma      8192
        protection: (0, 0, 0, 0, 0)
      nr_free_pages 100
      nr_free_pages_blocks 0
      nr_free_cma  64
      numa_hit     5
  pagesets
    cpu: 0
              count:    12
              high:     63
              batch:    31
              high_min: 63
              high_max: 1000
  vm stats threshold: 8
    cpu: 1
              count:    30
              high:     63
              batch:    31
              high_min: 63
              high_max: 1000
  vm stats threshold: 8
  node_unreclaimable:  0
  start_pfn:           1048576
  reserved_highatomic: 512
  free_highatomic:     100
";
    let zone = "nodes[node=0].zones[name=Normal]";
    assert_import(
        "6.x",
        text,
        0,
        &[
            (
                &format!("{zone}.watermarks"),
                json!({ "eq": { "boost": 16, "min": 20, "low": 30, "high": 40 } }),
            ),
            (&format!("{zone}.free_cma"), json!(64)),
            (&format!("{zone}.reserved_highatomic"), json!(512)),
            (&format!("{zone}.pcp_count"), json!(42)),
            (&format!("{zone}.start_pfn"), json!(1_048_576)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn wrapped_counters_are_negative_and_errors() {
    let text = "\
Node 1, zone  Movable
  pages free     18446744073709551611
        min      0
        low      0
        high     0
        spanned  32768
        present  32768
        managed  18446744073709519001
        protection: (0, 0)
  pagesets
    cpu: 0
              count: 0
              high:  0
              batch: 1
  start_pfn:           4096
";
    let zone = "nodes[node=1].zones[name=Movable]";
    assert_import(
        "wrapped",
        text,
        64,
        &[
            (&format!("{zone}.managed"), json!(-32_615)),
            (&format!("{zone}.free"), json!(-5)),
            (
                "diagnostics[severity=error].what",
                json!({ "matches": "managed" }),
            ),
            (
                "diagnostics[severity=error].line",
                json!({ "list": [2, 8] }),
            ),
        ],
    );
    let narrow = "\
Node 0, zone   Normal
  pages free     10
        spanned  229376
        present  225280
        managed  4294967290
";
    assert_import(
        "wrapped in 32 bits",
        narrow,
        64,
        &[
            ("nodes[0].zones[name=Normal].managed", json!(-6)),
            (
                "diagnostics[severity=error].what",
                json!({ "matches": "managed.*32 bits" }),
            ),
        ],
    );
}

#[test]
fn what_can_hardly_be_right_is_a_warning_at_its_line() {
    let text = "\
Node 0, zone   Normal
  pages free     10
        spanned  100
        present  200
        managed  300
        protection: (0, 0)
      nr_free_pages 10
      nr_free_cma  11
";
    assert_import(
        "odd",
        text,
        0,
        &[
            (
                "diagnostics[severity=warning].line",
                json!({ "list": [4, 5, 8] }),
            ),
            ("nodes[0].zones[0].holes", json!(-100)),
        ],
    );
}

#[test]
fn a_zone_headed_again_begins_a_snapshot() {
    let dump = |free: u32| {
        format!(
            "Node 0, zone      DMA\n  pages free     {free}\nNode 0, zone   Normal\n  pages free     {}\n",
            free * 10
        )
    };
    let text = format!(
        "$ cat /proc/zoneinfo\n{}\n$ cat /proc/zoneinfo\n{}",
        dump(5),
        dump(7)
    );
    assert_import(
        "two dumps",
        &text,
        0,
        &[
            ("snapshots", json!({ "len": 2 })),
            ("snapshots[*].line", json!({ "list": [2, 8] })),
            (
                "snapshots[*].nodes[node=0].zones[name=Normal].free",
                json!({ "list": [50, 70] }),
            ),
            ("nodes[node=0].zones[name=DMA].free", json!(7)),
        ],
    );
}

#[test]
fn dumps_of_several_files_in_one_make_one_state() {
    let text = "\
==> /proc/buddyinfo <==
Node 0, zone   Normal      1      0      2      0      0      0      0      0      0      0      1
==> /proc/zoneinfo <==
Node 0, zone   Normal
  pages free     1040
        min      20
";
    assert_import(
        "two files",
        text,
        0,
        &[
            ("snapshots", json!(null)),
            ("nodes[0].zones[name=Normal].free", json!(1040)),
            (
                "nodes[0].zones[name=Normal].free_blocks_by_order[2]",
                json!(2),
            ),
            nothing_odd(),
        ],
    );
}

#[test]
fn buddyinfo_has_as_many_orders_as_the_kernel() {
    for orders in [9_usize, 10, 11, 12, 14, 17] {
        let counts = (1..=orders)
            .map(|count| format!("{count:>6} "))
            .collect::<String>();
        let text = format!("Node 0, zone      DMA {counts}\nNode 0, zone  Elastic {counts}\n");
        assert_import(
            "orders",
            &text,
            0,
            &[
                (
                    "nodes[0].zones[name=Elastic].free_blocks_by_order",
                    json!({ "len": orders }),
                ),
                (
                    "nodes[0].zones[*].name",
                    json!({ "list": ["DMA", "Elastic"] }),
                ),
                ("diagnostics", json!({ "len": 0 })),
            ],
        );
    }
}

#[test]
fn buddyinfo_quoted_prefixed_and_wrapped_is_the_same() {
    let plain = "Node 0, zone   Normal  29196  20577   9900   5734   1915    349     53      3      0      0      0 \n";
    let quoted = format!("> > {plain}");
    let journal = format!("Nov 15 17:08:06 host kernel: {plain}");
    let wrapped = "Node 0, zone   Normal  29196  20577   9900   5734   1915    349\n53      3      0      0      0\n";
    let windows = plain.replace('\n', "\r\n");
    for text in [plain, &quoted, &journal, wrapped, &windows] {
        assert_import(
            text,
            text,
            0,
            &[
                (
                    "nodes[0].zones[name=Normal].free_blocks_by_order",
                    json!({ "pages_eq": 201_406 }),
                ),
                (
                    "nodes[0].zones[name=Normal].free_blocks_by_order",
                    json!({ "len": 11 }),
                ),
                ("diagnostics", json!({ "len": 0 })),
            ],
        );
    }
}

#[test]
fn a_damaged_number_is_unknown_and_so_is_the_sum() {
    let text = "Node 0, zone   Normal      1      x      2      0      0      0      0      0      0      0      0 \n";
    assert_import(
        "damaged",
        text,
        0,
        &[
            (
                "nodes[0].zones[0].free_blocks_by_order",
                json!([1, null, 2, 0, 0, 0, 0, 0, 0, 0, 0]),
            ),
            ("nodes[0].zones[0].free", json!(null)),
            ("diagnostics[severity=warning].line", json!({ "list": [1] })),
        ],
    );
}
