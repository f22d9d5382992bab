//! Boot logs of kernels from 2.6 to now, of several architectures and page sizes.

mod support;

use serde_json::json;
use support::assert_import;

#[test]
fn kernels_before_3_6_print_frames_and_exclusive_ends() {
    let text = "\
<6>[    0.000000] BIOS-provided physical RAM map:
<6>[    0.000000]  BIOS-e820: 0000000000000000 - 000000000009fc00 (usable)
<6>[    0.000000]  BIOS-e820: 000000000009fc00 - 00000000000a0000 (reserved)
<6>[    0.000000]  BIOS-e820: 0000000000100000 - 000000007fff0000 (usable)
<6>[    0.000000]  BIOS-e820: 000000007fff0000 - 0000000080000000 (ACPI data)
<4>[    0.000000] Zone PFN ranges:
<4>[    0.000000]   DMA      0x00000001 -> 0x00001000
<4>[    0.000000]   DMA32    0x00001000 -> 0x00100000
<4>[    0.000000]   Normal   empty
<4>[    0.000000] Movable zone start PFN for each node
<4>[    0.000000] early_node_map[2] active PFN ranges
<4>[    0.000000]     0: 0x00000001 -> 0x0000009f
<4>[    0.000000]     0: 0x00000100 -> 0x0007fff0
<4>[    0.000000] On node 0 totalpages: 524174
<4>[    0.000000] Built 1 zonelists in Zone order, mobility grouping on.  Total pages: 516945
<6>[    0.000000] Memory: 2056848k/2097088k available (4969k kernel code, 388k absent, 39852k reserved, 5193k data)
";
    assert_import(
        "2.6.32",
        text,
        0,
        &[
            ("page_size_bytes", json!(4096)),
            (
                "ranges[kind=e820].end_byte",
                json!({ "list": [0x9fc00, 0xa0000, 0x7fff_0000, 0x8000_0000_u64] }),
            ),
            (
                "ranges[kind=e820].type",
                json!({ "list": ["usable", "reserved", "usable", "ACPI data"] }),
            ),
            (
                "ranges[kind=node].start_byte",
                json!({ "list": [0x1000, 0x10_0000] }),
            ),
            (
                "ranges[kind=zone].zone",
                json!({ "list": ["DMA", "DMA32"] }),
            ),
            ("nodes[node=0].zones[name=DMA].present", json!(0x9e + 0xf00)),
            ("nodes[node=0].zones[name=DMA32].spanned", json!(0x7_eff0)),
            ("nodes[node=0].zones[name=DMA32].present", json!(0x7_eff0)),
            (
                "nodes[node=0].zones[name=Normal].present",
                json!({ "in": [0, null] }),
            ),
            ("totals.present", json!((2_097_088 - 388) / 4)),
            ("diagnostics[severity=error]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn kernels_before_2_6_32_print_decimal_frames() {
    let text = "\
Zone PFN ranges:
  DMA             0 ->     4096
  Normal       4096 ->   229376
  HighMem    229376 ->   262128
early_node_map[1] active PFN ranges
    0:        0 ->   262128
On node 0 totalpages: 262128
  DMA zone: 4096 pages, LIFO batch:0
";
    assert_import(
        "2.6.20",
        text,
        0,
        &[
            (
                "nodes[node=0].zones[name=HighMem].start_pfn",
                json!(229_376),
            ),
            ("nodes[node=0].zones[name=HighMem].present", json!(32_752)),
            ("nodes[node=0].zones[name=Normal].spanned", json!(225_280)),
            ("page_size_bytes", json!(null)),
            ("ranges", json!({ "len": 0 })),
            ("totals.present", json!(262_128)),
        ],
    );
}

#[test]
fn srat_says_hotplug_and_old_srat_has_no_brackets() {
    let text = "\
[    0.000000] ACPI: SRAT: Node 0 PXM 0 [mem 0x00000000-0x7fffffff]
[    0.000000] ACPI: SRAT: Node 1 PXM 1 [mem 0x100000000-0x63fffffff] hotplug
[    0.000000] ACPI: SRAT: Node 2 PXM 2 [mem 0x640000000-0x73fffffff] hotplug non-volatile
[    0.000000] SRAT: Node 3 PXM 3 800000000-840000000
[    0.000000] SRAT: PXM 0 -> APIC 0x00 -> Node 0
";
    assert_import(
        "srat",
        text,
        0,
        &[
            (
                "ranges[kind=srat].hotplug",
                json!({ "list": [false, true, true, false] }),
            ),
            ("ranges[kind=srat].node", json!({ "list": [0, 1, 2, 3] })),
            ("ranges[node=3].end_byte", json!(0x8_4000_0000_u64)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn arm64_with_64_kib_pages_and_a_memoryless_node() {
    let text = "\
[    0.000000][    T0] NUMA: Adding memblock [0x40000000 - 0x7fffffff] on node 0
[    0.000000][    T0] Zone ranges:
[    0.000000][    T0]   DMA      [mem 0x0000000040000000-0x000000007fffffff]
[    0.000000][    T0]   DMA32    empty
[    0.000000][    T0]   Normal   [mem 0x0000000080000000-0x00000000ffffffff]
[    0.000000][    T0] Movable zone start for each node
[    0.000000][    T0]   Node 0: 0x00000000c0000000
[    0.000000][    T0] Early memory node ranges
[    0.000000][    T0]   node   0: [mem 0x0000000040000000-0x00000000ffffffff]
[    0.000000][    T0] Initmem setup node 0 [mem 0x0000000040000000-0x00000000ffffffff]
[    0.000000][    T0] Initmem setup node 1 as memoryless
[    0.000000][    T0] Built 1 zonelists, mobility grouping on.  Total pages: 49104
[    0.000000][    T0] Memory: 3001152K/3145728K available (11580K kernel code, 144576K reserved, 0K cma-reserved)
";
    assert_import(
        "arm64",
        text,
        0,
        &[
            ("page_size_bytes", json!(65_536)),
            ("ranges[kind=memblock].node", json!(0)),
            ("nodes[node=0].zones[name=DMA].present", json!(16_384)),
            ("nodes[node=0].zones[name=Normal].present", json!(16_384)),
            ("nodes[node=0].zones[name=Movable].start_pfn", json!(49_152)),
            ("nodes[node=0].zones[name=Movable].present", json!(16_384)),
            ("totals.present", json!(49_152)),
            ("totals.reserved", json!(2259)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn power_states_its_page_size_and_s390_does_not() {
    let power = "\
[    0.000000] Page orders: linear mapping = 24, virtual = 16, io = 16, vmemmap = 24
[    0.000000] Zone ranges:
[    0.000000]   Normal   [mem 0x0000000000000000-0x000000007fffffff]
[    0.000000] Early memory node ranges
[    0.000000]   node   1: [mem 0x0000000000000000-0x000000007fffffff]
";
    assert_import(
        "power",
        power,
        0,
        &[
            ("page_size_bytes", json!(65_536)),
            ("nodes[node=1].zones[name=Normal].present", json!(32_768)),
            ("nodes", json!({ "len": 1 })),
        ],
    );
    let s390 = power.split_once('\n').unwrap().1;
    assert_import(
        "s390",
        s390,
        0,
        &[
            ("page_size_bytes", json!(null)),
            ("nodes[*].zones[*].present", json!(null)),
            (
                "ranges[kind=node]",
                json!({ "bytes_eq": 2_147_483_648_u64 }),
            ),
        ],
    );
}

#[test]
fn what_the_log_counts_otherwise_is_said_at_its_line() {
    let text = "\
[    0.000000] Zone ranges:
[    0.000000]   DMA      [mem 0x0000000000001000-0x0000000000ffffff]
[    0.000000]   Normal   [mem 0x0000000001000000-0x000000003fffffff]
[    0.000000] Early memory node ranges
[    0.000000]   node   0: [mem 0x0000000000001000-0x000000004fffffff]
[    0.000000] On node 0 totalpages: 262143
";
    assert_import(
        "outside",
        text,
        0,
        &[
            (
                "diagnostics[line=5].what",
                json!({ "matches": "65536 of the 327679 pages.*no zone" }),
            ),
            ("nodes[node=0].zones[name=Normal].present", json!(258_048)),
            ("totals.present", json!(262_143)),
        ],
    );
}

#[test]
fn the_size_of_a_memory_block_is_stated_in_binary_megabytes() {
    assert_import(
        "block size",
        "[    0.165000] x86/mm: Memory block size: 2048MB\n",
        0,
        &[("section_bytes", json!(2_147_483_648_u64))],
    );
}

#[test]
fn memblock_and_mips_maps_are_ranges() {
    let text = "\
[    0.000000] MEMBLOCK configuration:
[    0.000000]  memory size = 0x0000000040000000 reserved size = 0x0000000001f00000
[    0.000000]  memory.cnt  = 0x1
[    0.000000]  memory[0x0]\t[0x0000000080200000-0x00000000bfffffff], 0x000000003fe00000 bytes on node 0 flags: 0x0
[    0.000000]  reserved.cnt  = 0x1
[    0.000000]  reserved[0x0]\t[0x0000000080200000-0x00000000820fffff], 0x0000000001f00000 bytes flags: 0x0
[    0.000000] Determined physical RAM map:
[    0.000000]  memory: 10000000 @ 90000000 (usable)
";
    assert_import(
        "memblock",
        text,
        0,
        &[
            (
                "ranges[kind=memblock].type",
                json!({ "list": ["usable", "reserved", "usable"] }),
            ),
            (
                "ranges[kind=memblock].start_byte",
                json!({ "list": [0x8020_0000_u64, 0x8020_0000_u64, 0x9000_0000_u64] }),
            ),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_report_after_the_boot_fills_the_same_zones() {
    let text = "\
[    0.000000] Zone ranges:
[    0.000000]   Normal   [mem 0x0000000000001000-0x000000000fffffff]
[    0.000000] Early memory node ranges
[    0.000000]   node   0: [mem 0x0000000000001000-0x000000000fffffff]
[  100.000000] Node 0 Normal free:4248kB min:1696kB low:2120kB high:2544kB present:262140kB managed:250000kB free_cma:0kB
[  100.000001] Node 0 Normal: 1062*4kB (UM) 0*8kB = 4248kB
";
    assert_import(
        "boot and report",
        text,
        0,
        &[
            ("formats", json!(["dmesg", "oom"])),
            ("nodes[0].zones[name=Normal].spanned", json!(65_535)),
            ("nodes[0].zones[name=Normal].free", json!(1062)),
            ("nodes[0].zones[name=Normal].managed", json!(62_500)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_negative_total_is_an_error() {
    let text = "[    0.000000] Memory: 18014398509481980K/1046528K available (3289K kernel code, -4K reserved, 0K cma-reserved)\n";
    assert_import(
        "negative",
        text,
        64,
        &[(
            "diagnostics[severity=error].what",
            json!({ "matches": "reserved" }),
        )],
    );
}

/// A log copied out of a web page that ends each line with its own break, and one that a mail has
/// quoted and wrapped.
///
/// Seen to fail before it was: heads were not understood, and the count that tells the size of a
/// page was lost.
#[test]
fn lines_of_a_web_page_and_wrapped_counts() {
    let text = "\
[    0.000000] Zone ranges:<br />
[    0.000000]   Normal   [mem 0x0000000090000000-0x00000000907fffff]<br />
[    0.000000] Movable zone start for each node<br/>
[    0.000000] Early memory node ranges<br>
[    0.000000]   node   0: [mem 0x0000000090000000-0x00000000907fffff]<br />
[    0.000000] Built 1 zonelists, mobility grouping off.  Total pages: 2032<br />
[    0.000000] Memory: 7616K/8192K available (1319K kernel code, 576K reserved, 0K cma-reserved)<br />
";
    let zone = "nodes[node=0].zones[name=Normal]";
    assert_import(
        "web",
        text,
        0,
        &[
            ("page_size_bytes", json!(4096)),
            (&format!("{zone}.present"), json!(2048)),
            (&format!("{zone}.start_pfn"), json!(0x90000)),
            ("totals.present", json!(2048)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
    let mail = "\
> [    0.000000] User-defined physical RAM map:
> [    0.000000]  memory: 0000000004000000 @ 0000000000000000 (usable)
> [    0.000000] Zone ranges:
> [    0.000000]   DMA32    [mem 0x0000000000000000-0x00000000efffffff]
> [    0.000000] Early memory node ranges
> [    0.000000]   node   0: [mem 0x0000000000000000-0x0000000003ffffff]
> [    0.000000] Built 1 zonelists in Zone order, mobility grouping on.
> Total pages: 16160
> [    0.000000] Memory: 21392K/65536K available (3384K kernel code,
> 264K rwdata, 44144K reserved)
";
    assert_import(
        "mail",
        mail,
        0,
        &[
            ("page_size_bytes", json!(4096)),
            ("nodes[node=0].zones[name=DMA32].present", json!(16384)),
            ("totals.reserved", json!(11036)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

/// Old kernels count a zone without the records of its pages; the total of the node is what there is.
#[test]
fn the_total_of_a_node_counts_more_than_its_zones() {
    let text = "\
[    0.000000] On node 0 totalpages: 131072
[    0.000000] free_area_init_node: node 0, pgdat c05c0f80, node_mem_map c0d00000
[    0.000000]   DMA zone: 512 pages used for memmap
[    0.000000]   DMA zone: 0 pages reserved
[    0.000000]   DMA zone: 65024 pages, LIFO batch:15
[    0.000000]   HighMem zone: 512 pages used for memmap
[    0.000000]   HighMem zone: 65024 pages, LIFO batch:15
";
    assert_import(
        "memmap",
        text,
        0,
        &[
            ("totals.present", json!(131_072)),
            (
                "nodes[0].zones[*].present",
                json!({ "list": [65024, 65024] }),
            ),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}
