//! `/proc/pagetypeinfo` as kernels of all years print it, and as mails wrap it.

mod support;

use serde_json::json;
use support::assert_import;

/// No line was left that was not understood.
fn nothing_odd() -> (&'static str, serde_json::Value) {
    ("diagnostics[severity=warning]", json!({ "len": 0 }))
}

#[test]
fn pagetypeinfo_with_cma_a_cap_and_mixed_blocks() {
    let text = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1      2      3      4      5      6      7      8      9     10
Node    0, zone   Normal, type    Unmovable >100000      1      0      0      0      0      0      0      0      0      0
Node    0, zone   Normal, type      Movable      2      0      0      0      0      0      0      0      0      0      3
Node    0, zone   Normal, type  Reclaimable      0      0      0      0      0      0      0      0      0      0      0
Node    0, zone   Normal, type   HighAtomic      0      0      0      0      0      0      0      0      0      0      0
Node    0, zone   Normal, type          CMA      0      0      0      0      0      0      0      0      0      1      0
Node    0, zone   Normal, type      Isolate      0      0      0      0      0      0      0      0      0      0      0

Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic          CMA      Isolate
Node 0, zone   Normal          947         1469           15            1            4            0

Number of mixed blocks    Unmovable      Movable  Reclaimable   HighAtomic          CMA      Isolate
Node 0, zone   Normal            9            9            9            9            9            9
";
    let zone = "nodes[0].zones[name=Normal]";
    assert_import(
        "cap",
        text,
        0,
        &[
            (
                &format!("{zone}.free_pages_by_order_and_type.Unmovable[0]"),
                json!(100_000),
            ),
            (&format!("{zone}.free_blocks_by_order[0]"), json!(100_002)),
            (
                &format!("{zone}.free_pages_by_order_and_type.CMA[9]"),
                json!(1),
            ),
            (&format!("{zone}.pageblocks_by_type.CMA"), json!(4)),
            (&format!("{zone}.pageblocks_by_type.Movable"), json!(1469)),
            ("diagnostics[line=5]", json!({ "len": 1 })),
            nothing_odd(),
        ],
    );
}

#[test]
fn pagetypeinfo_of_2_6_24_and_wrapped_by_a_mail() {
    let text = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1      2      3
4      5      6      7      8      9     10
Node    0, zone      DMA, type    Unmovable      0      0      0      1
0      0      0      0      0      0      0
Node    0, zone      DMA, type      Movable      3      0      0      0
0      0      0      0      0      0      1

Number of blocks type     Unmovable  Reclaimable      Movable
Reserve
Node 0, zone      DMA            2            0            5
1
";
    let zone = "nodes[0].zones[name=DMA]";
    assert_import(
        "wrapped",
        text,
        0,
        &[
            (
                &format!("{zone}.free_pages_by_order_and_type.Movable[10]"),
                json!(1),
            ),
            (&format!("{zone}.free"), json!(8 + 3 + 1024)),
            (
                &format!("{zone}.pageblocks_by_type"),
                json!({ "eq": { "Unmovable": 2, "Reclaimable": 0, "Movable": 5, "Reserve": 1 } }),
            ),
            nothing_odd(),
        ],
    );
}
