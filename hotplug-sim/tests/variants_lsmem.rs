//! `lsmem` of all versions and with all options.

mod support;

use serde_json::json;
use support::assert_import;

#[test]
fn the_old_script_of_s390_counts_in_megabytes() {
    let text = "\
Address range                          Size (MB)  State    Removable  Device
===============================================================================
0x0000000000000000-0x000000000fffffff        256  online   no         0
0x0000000010000000-0x000000002fffffff        512  online   yes        1-2
0x0000000030000000-0x000000007fffffff       1280  offline  -          3-7

Memory device size  : 256 MB
Memory block size   : 256 MB
Total online memory : 768 MB
Total offline memory: 1280 MB
";
    assert_import(
        "perl",
        text,
        0,
        &[
            ("sections[state=online].id", json!({ "list": [0, 1, 2] })),
            (
                "sections[state=offline].id",
                json!({ "list": [3, 4, 5, 6, 7] }),
            ),
            ("sections[id=0].removable", json!(false)),
            ("sections[id=3].removable", json!(null)),
            ("section_bytes", json!(268_435_456)),
            ("totals.online_bytes", json!(768_u64 << 20)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn json_of_old_and_new_versions_is_the_same() {
    let old = r#"{
   "memory": [
      {"range": "0x0000000000000000-0x000000006fffffff", "size": "1.8G", "state": "online", "removable": "yes", "block": "0-6", "node": "0", "zones": "DMA/Normal"},
      {"range": "0x00000000e0000000-0x00000000efffffff", "size": "256M", "state": "offline", "removable": "-", "block": "14", "node": "0", "zones": "None"}
   ]
}
"#;
    let new = r#"{
   "memory": [
      {
         "range": "0x0000000000000000-0x000000006fffffff",
         "size": 1879048192,
         "state": "online",
         "removable": true,
         "block": "0-6",
         "node": 0,
         "zones": "DMA/Normal"
      },{
         "range": "0x00000000e0000000-0x00000000efffffff",
         "size": 268435456,
         "state": "offline",
         "removable": null,
         "block": "14",
         "node": 0,
         "zones": "None"
      }
   ]
}
"#;
    for text in [old, new] {
        assert_import(
            "json",
            text,
            0,
            &[
                ("formats", json!(["lsmem"])),
                ("sections", json!({ "len": 8 })),
                ("section_bytes", json!(268_435_456)),
                ("sections[id=6].removable", json!(true)),
                ("sections[id=6].zones", json!(["DMA", "Normal"])),
                ("sections[id=14].removable", json!(null)),
                ("sections[id=14].zones", json!([])),
                ("sections[id=14].state", json!("offline")),
                ("totals.offline_bytes", json!(268_435_456)),
                (
                    "ranges[kind=lsmem].end_byte",
                    json!({ "list": [0x7000_0000, 0xf000_0000_u64] }),
                ),
                ("diagnostics", json!({ "len": 0 })),
            ],
        );
    }
}

#[test]
fn bytes_pairs_and_rows_without_a_header() {
    let bytes = "\
RANGE                                       SIZE   STATE REMOVABLE BLOCK
0x0000000000000000-0x000000007fffffff 2147483648  online       yes  0-15
0x0000000080000000-0x0000000087ffffff  134217728  on->off      yes    16

Memory block size:        134217728
Total online memory:     2147483648
Total offline memory:             0
";
    assert_import(
        "bytes",
        bytes,
        0,
        &[
            ("sections[state=going-offline].id", json!({ "list": [16] })),
            ("section_bytes", json!(134_217_728)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
    let pairs = "RANGE=\"0x0000000000000000-0x000000007fffffff\" SIZE=\"2G\" STATE=\"online\" REMOVABLE=\"\" BLOCK=\"0-15\"\n";
    let bare = "0x0000000000000000-0x000000007fffffff  2G online          0-15\n";
    for text in [pairs, bare] {
        assert_import(
            text,
            text,
            0,
            &[
                ("sections", json!({ "len": 16 })),
                ("sections[id=15].removable", json!(null)),
                ("section_bytes", json!(134_217_728)),
                ("diagnostics", json!({ "len": 0 })),
            ],
        );
    }
}

#[test]
fn columns_in_any_order_and_new_ones() {
    let text = "\
BLOCK NODE   STATE CONFIGURED REMOVABLE MEMMAP-ON-MEMORY                                 RANGE  SIZE   ZONES
    0    0  online        yes        no               no 0x0000000000000000-0x0000000007ffffff  128M     DMA
    1    1 offline        yes                         no 0x0000000008000000-0x000000000fffffff  128M Movable

Memory block size:                128M
Total online memory:              128M
Total offline memory:             128M
";
    assert_import(
        "order",
        text,
        0,
        &[
            ("sections[id=1].node", json!(1)),
            ("sections[id=1].removable", json!(null)),
            ("sections[id=1].zones", json!(["Movable"])),
            ("sections[id=0].removable", json!(false)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn without_block_numbers_the_address_is_the_number() {
    let text = "\
RANGE                                  SIZE   STATE
0x0000000000000000-0x00000000dfffffff  3.5G  online
0x00000000e0000000-0x00000000efffffff  256M offline

Memory block size:       256M
Total online memory:     3.5G
Total offline memory:    256M
";
    assert_import(
        "no blocks",
        text,
        0,
        &[
            ("sections[state=online]", json!({ "len": 14 })),
            ("sections[state=offline].id", json!({ "list": [14] })),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_summary_alone_counts_if_one_number_of_blocks_rounds_to_it() {
    let text = "Memory block size:       256M\nTotal online memory:     4.8G\nTotal offline memory:    1.3G\n";
    assert_import(
        "summary",
        text,
        0,
        &[
            ("totals.online_bytes", json!(5_100_273_664_u64)),
            ("totals.offline_bytes", json!(1_342_177_280)),
            ("sections", json!({ "len": 0 })),
        ],
    );
    let vague = "Memory block size:       128M\nTotal online memory:     1.5T\n";
    assert_import(
        "vague",
        vague,
        0,
        &[
            ("totals.online_bytes", json!(null)),
            ("diagnostics[line=2]", json!({ "len": 1 })),
        ],
    );
}

#[test]
fn what_a_row_contradicts_is_said() {
    let text = "\
RANGE                                  SIZE  STATE REMOVABLE  BLOCK
0x0000000000000000-0x00000000cfffffff  4.3G online       yes   0-25
0x0000000100000000-0x000000010fffffff  256M online       yes 32-257
0x0000000110000000-0x0000000117ffffff  128M broken       yes    258

Memory block size:       128M
";
    assert_import(
        "contradictions",
        text,
        0,
        &[
            ("diagnostics[line=2]", json!({ "len": 1 })),
            ("diagnostics[line=3]", json!({ "len": 1 })),
            (
                "diagnostics[line=4].what",
                json!({ "matches": "State.*broken" }),
            ),
            ("sections[id=258].state", json!(null)),
        ],
    );
}

#[test]
fn the_files_of_sys_are_blocks_too() {
    let text = "\
/sys/devices/system/memory/block_size_bytes:8000000
/sys/devices/system/memory/memory32/state:online
/sys/devices/system/memory/memory32/removable:1
/sys/devices/system/memory/memory32/valid_zones:Normal Movable
/sys/devices/system/memory/memory33/state:going-offline
/sys/devices/system/memory/memory33/valid_zones:none
/sys/devices/system/memory/memory33/phys_index:00000021
";
    assert_import(
        "sys",
        text,
        0,
        &[
            ("section_bytes", json!(134_217_728)),
            ("sections[id=32].zones", json!(["Normal", "Movable"])),
            ("sections[id=32].removable", json!(true)),
            ("sections[id=33].state", json!("going-offline")),
            ("sections[id=33].zones", json!([])),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_row_that_claims_the_world_is_refused_quickly() {
    let text = "RANGE SIZE STATE REMOVABLE BLOCK\n0x0000000000000000-0x0fffffffffffffff 1E online yes 0-18446744073709551614\n";
    assert_import(
        "world",
        text,
        0,
        &[
            ("sections", json!({ "len": 0 })),
            ("diagnostics[severity=warning]", json!({ "min_len": 1 })),
        ],
    );
}

#[test]
fn machines_of_one_page_size_have_frames_in_their_blocks() {
    let lsmem = "RANGE SIZE STATE REMOVABLE BLOCK\n0x0000000100000000-0x000000010fffffff 256M online yes 32-33\n";
    let dmesg = "[    0.000000]   node   0: [mem 0x0000000000001000-0x000000010fffffff]\n";
    let sources = [("lsmem", lsmem), ("dmesg", dmesg)]
        .map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()));
    let run = support::run(&sources);
    assert_eq!(run.document["sections"][1]["start_pfn"], 33 * 32_768);
    assert_eq!(run.document["sections"][1]["nr_pages"], 32_768);
}
