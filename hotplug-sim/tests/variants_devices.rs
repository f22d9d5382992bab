//! Memory devices: virtio-mem, DIMMs, DAX and CXL, as drivers, monitors and tools show them.

mod support;

use serde_json::json;
use support::assert_import;

#[test]
fn virtio_mem_in_big_blocks_plugs_and_unplugs() {
    let text = "\
[    1.0] virtio_mem virtio3: start address: 0x140000000
[    1.0] virtio_mem virtio3: region size: 0x80000000
[    1.0] virtio_mem virtio3: device block size: 0x40000000
[    1.0] virtio_mem virtio3: nid: 1
[    1.0] virtio_mem virtio3: memory block size: 0x8000000
[    1.0] virtio_mem virtio3: big block size: 0x40000000
[    1.0] virtio_mem virtio3: plugged size: 0x0
[    1.0] virtio_mem virtio3: requested size: 0x40000000
[    1.1] virtio_mem virtio3: plugging memory: 0x140000000 - 0x17fffffff
[    1.1] virtio_mem virtio3: adding memory: 0x140000000 - 0x17fffffff
[    9.0] virtio_mem virtio3: plugged size: 0x40000000
[    9.0] virtio_mem virtio3: requested size: 0x0
[    9.1] virtio_mem virtio3: offlining and removing memory: 0x140000000 - 0x17fffffff
[    9.2] virtio_mem virtio3: unplugging memory: 0x140000000 - 0x17fffffff
";
    assert_import(
        "bbm",
        text,
        0,
        &[
            ("devices[id=virtio3].node", json!(1)),
            ("devices[id=virtio3].subblock_bytes", json!(0x4000_0000)),
            ("devices[id=virtio3].requested_bytes", json!(0)),
            ("devices[id=virtio3].plugged_bytes", json!(0x4000_0000)),
            ("section_bytes", json!(0x800_0000)),
            (
                "events[*].kind",
                json!({ "list": ["request", "plug", "request", "remove", "unplug"] }),
            ),
            ("events[kind=plug].end_byte", json!(0x1_8000_0000_u64)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_failed_add_is_a_failed_plug_and_its_rollback_is_part_of_it() {
    let text = "\
[    8.0] virtio_mem virtio0: plugging memory: 0x100000000 - 0x107ffffff
[    8.0] virtio_mem virtio0: adding memory: 0x100000000 - 0x107ffffff
[    8.1] virtio_mem virtio0: adding memory failed: -12
[    8.1] virtio_mem virtio0: unplugging memory: 0x100000000 - 0x107ffffff
[    9.0] virtio_mem virtio0: offlining and removing memory: 0x108000000 - 0x10fffffff
[    9.1] virtio_mem virtio0: offlining and removing memory failed: -16
[    9.2] virtio_mem virtio0: unknown error, marking device broken: -22
";
    assert_import(
        "failed",
        text,
        0,
        &[
            (
                "events[*].kind",
                json!({ "list": ["plug-failed", "remove-failed"] }),
            ),
            ("events[*].ret", json!({ "list": [-12, -16] })),
            ("events[0].line", json!(1)),
            ("diagnostics[severity=warning].line", json!({ "list": [7] })),
        ],
    );
}

/// A CXL device is listed without its size: that stands with the object behind it.
#[test]
fn the_monitor_lists_the_objects_behind_the_devices() {
    let text = "\
(qemu) device_add cxl-type3,bus=rp0,volatile-memdev=vmem0,id=cxl0
(qemu) info memdev
memory backend: vmem0
  size:  1073741824
  merge: true
  dump: true
  prealloc: false
  share: true
  reserve: true
  policy: default
  host nodes:

memory backend: other
  size:  4096
  merge: true
  host nodes: 0-1
";
    assert_import(
        "memdev",
        text,
        0,
        &[("devices[id=cxl0].size_bytes", json!(1_073_741_824))],
    );
}

#[test]
fn the_monitor_lists_dimms_and_sums() {
    let text = "\
QEMU 8.2.0 monitor - type 'help' for more information
(qemu) info memory-devices
Memory device [dimm]: \"dimm1\"
  addr: 0x100000000
  slot: 0
  node: 1
  size: 1073741824
  memdev: /objects/mem1
  hotplugged: true
  hotpluggable: true
Memory device [nvdimm]: \"\"
  addr: 0x140000000
  slot: 1
  node: 0
  size: 536870912
  memdev: /objects/mem2
  hotplugged: false
  hotpluggable: true
Memory device [sgx-epc]: \"\"
  memaddr: 0x180000000
  size: 67108864
(qemu) info memory_size_summary
base memory: 4294967296
plugged memory: 1610612736
(qemu) device_add pc-dimm,id=dimm2,memdev=mem9
Error: a used vhost backend has no free memory slots left
(qemu) qom-set /machine/peripheral/vm0 requested-size 2G
(qemu) qom-get vm0 size
134217728
";
    assert_import(
        "dimms",
        text,
        0,
        &[
            ("devices[id=dimm1].size_bytes", json!(1_073_741_824)),
            ("devices[id=dimm1].plugged_bytes", json!(1_073_741_824)),
            ("devices[id=dimm1].address", json!(0x1_0000_0000_u64)),
            ("devices[id=dimm1].node", json!(1)),
            ("devices[id=dimm1].kind", json!("dimm")),
            ("devices[id=vm0].requested_bytes", json!(2_147_483_648_u64)),
            ("devices[id=vm0].plugged_bytes", json!(134_217_728)),
            ("totals.boot_bytes", json!(4_294_967_296_u64)),
            ("events[*].kind", json!({ "list": ["plug-failed"] })),
            (
                "events[0].reason",
                json!({ "matches": "no free memory slots" }),
            ),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn the_machine_protocol_says_the_same_in_json() {
    let text = r#"{"QMP": {"version": {"qemu": {"major": 8}}, "capabilities": []}}
-> {"execute": "query-memory-devices"}
<- {"return": [{"type": "virtio-mem", "data": {"memaddr": 5368709120, "requested-size": 134217728, "size": 134217728, "max-size": 2147483648, "block-size": 2097152, "node": 0, "memdev": "/objects/mem3", "id": "vm0"}},
 {"type": "dimm", "data": {"addr": 4294967296, "slot": 0, "node": 1, "size": 1073741824, "memdev": "/objects/mem1", "id": "dimm1", "hotplugged": true, "hotpluggable": true}}]}
-> {"execute": "qom-set", "arguments": {"path": "vm0", "property": "requested-size", "value": 268435456}}
<- {"return": {}}
<- {"event": "MEMORY_DEVICE_SIZE_CHANGE", "data": {"id": "vm0", "size": 268435456, "qom-path": "/machine/peripheral/vm0"}, "timestamp": {"seconds": 1, "microseconds": 2}}
-> {"execute": "object-add", "arguments": {"qom-type": "memory-backend-ram", "id": "mem7", "size": 536870912}}
-> {"execute": "device_add", "arguments": {"driver": "pc-dimm", "id": "dimm7", "memdev": "mem7", "node": 1}}
-> {"execute": "device_del", "arguments": {"id": "dimm7"}}
<- {"event": "DEVICE_UNPLUG_GUEST_ERROR", "data": {"device": "dimm7", "path": "/machine/peripheral/dimm7"}}
"#;
    assert_import(
        "qmp",
        text,
        0,
        &[
            ("formats", json!(["qemu-monitor"])),
            ("devices[id=vm0].size_bytes", json!(2_147_483_648_u64)),
            ("devices[id=vm0].plugged_bytes", json!(268_435_456)),
            ("devices[id=vm0].requested_bytes", json!(268_435_456)),
            ("devices[id=dimm1].size_bytes", json!(1_073_741_824)),
            ("devices[id=dimm7].size_bytes", json!(536_870_912)),
            ("devices[id=dimm7].node", json!(1)),
            (
                "events[*].kind",
                json!({ "list": ["plug", "remove-failed"] }),
            ),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn text_behind_broken_json_is_not_swallowed() {
    let text = "[ { \"chardev\":\"dax0.0\", \"size\":2097152 }\n[   46.696367] Offlined Pages 32768\nhello world\n";
    assert_import(
        "broken",
        text,
        64,
        &[
            ("devices[id=dax0.0].size_bytes", json!(2_097_152)),
            ("events[kind=offline].line", json!(2)),
            ("diagnostics[severity=error].line", json!({ "list": [2] })),
            ("diagnostics[severity=warning].line", json!({ "list": [3] })),
        ],
    );
}

#[test]
fn daxctl_nests_devices_and_shows_sizes_for_people() {
    let text = r#"[
  {
    "path":"/platform/e820_pmem/ndbus0/region0/dax0.1/dax0",
    "id":0,
    "size":"62.00 GiB (66.57 GB)",
    "align":2097152,
    "devices":[
      {
        "chardev":"dax0.0",
        "size":"62.00 GiB (66.57 GB)",
        "target_node":2,
        "align":2097152,
        "mode":"system-ram",
        "online_memblocks":0,
        "total_memblocks":31,
        "movable":true
      }
    ]
  }
]
dax0.0: 31 memory sections already offline
offlined memory for 1 device
"#;
    assert_import(
        "dax",
        text,
        0,
        &[
            ("devices", json!({ "len": 1 })),
            ("devices[id=dax0.0].size_bytes", json!(62_u64 << 30)),
            ("devices[id=dax0.0].node", json!(2)),
            ("devices[id=dax0.0].online_blocks", json!(0)),
            ("devices[id=dax0.0].total_blocks", json!(31)),
            ("diagnostics[severity=warning]", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn capacity_is_released_in_parts_and_by_tag() {
    let add = |offset: u64, tag: &str| {
        format!(
            r#"{{ "execute": "cxl-add-dynamic-capacity", "arguments": {{ "path": "/machine/peripheral/cxl-dcd0", "host-id": 0, "selection-policy": "prescriptive", "region": 1, "tag": "{tag}", "extents": [ {{ "offset": {offset}, "len": 268435456 }} ] }} }}"#
        )
    };
    let release = r#"{ "execute": "cxl-release-dynamic-capacity", "arguments": { "path": "/machine/peripheral/cxl-dcd0", "host-id": 0, "removal-policy": "prescriptive", "region": 1, "extents": [ { "offset": 134217728, "len": 134217728 } ] } }"#;
    let by_tag = r#"{ "execute": "cxl-release-dynamic-capacity", "arguments": { "path": "/machine/peripheral/cxl-dcd0", "host-id": 0, "removal-policy": "tag-based", "region": 1, "tag": "b", "extents": [] } }"#;
    let text = format!(
        "{}\n{}\n{release}\n{by_tag}\n{release}\n",
        add(0, "a"),
        add(268_435_456, "b")
    );
    assert_import(
        "capacity",
        &text,
        0,
        &[
            (
                "events[*].kind",
                json!({ "list": ["add-capacity", "add-capacity", "release-capacity", "release-capacity", "release-capacity"] }),
            ),
            ("events[*].tag", json!({ "list": ["a", "b", "b"] })),
            ("events[3].start_byte", json!(268_435_456)),
            ("events[*].region", json!({ "each_in": [1] })),
            ("devices[id=cxl-dcd0].plugged_bytes", json!(134_217_728)),
            ("diagnostics[severity=warning].line", json!({ "list": [5] })),
        ],
    );
}
