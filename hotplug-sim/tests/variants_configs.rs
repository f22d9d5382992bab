//! Memory as configurations have it: QEMU command lines and libvirt domains.

mod support;

use serde_json::json;
use support::assert_import;

#[test]
fn arguments_on_one_line_and_in_a_script() {
    let one = "qemu-system-x86_64 -m 4G,slots=4,maxmem=20G -object memory-backend-ram,id=mem0,size=2G -device virtio-mem-pci,id=vm0,memdev=mem0,node=0,requested-size=300M,block-size=2M -object memory-backend-ram,id=mem1,size=1G -device pc-dimm,id=dimm1,memdev=mem1,addr=0x140000000 -device virtio-balloon\n";
    let script = one.replace(" -", " \\\n    -");
    for text in [one, script.as_str()] {
        assert_import(
            "arguments",
            text,
            0,
            &[
                ("formats", json!(["qemu-args"])),
                ("devices[*].id", json!({ "list": ["vm0", "dimm1"] })),
                ("devices[id=vm0].size_bytes", json!(2_147_483_648_u64)),
                ("devices[id=vm0].requested_bytes", json!(314_572_800)),
                ("devices[id=vm0].block_bytes", json!(2_097_152)),
                ("devices[id=dimm1].address", json!(0x1_4000_0000_u64)),
                ("totals.boot_bytes", json!(4_294_967_296_u64)),
                ("totals.maxmem_bytes", json!(21_474_836_480_u64)),
                ("diagnostics", json!({ "len": 0 })),
            ],
        );
    }
    assert_import(
        "megabytes",
        "qemu-system-x86_64 -m 512 -nographic\n",
        0,
        &[("totals.boot_bytes", json!(536_870_912))],
    );
}

#[test]
fn libvirt_domains_name_dimms_by_alias_and_show_what_is_plugged() {
    let text = "\
<domain type='kvm' id='7'>
  <memory unit='GiB'>6</memory>
  <currentMemory unit='KiB'>6291456</currentMemory>
  <maxMemory slots='16' unit='GiB'>32</maxMemory>
  <devices>
    <memory model='dimm'>
      <target>
        <size unit='MiB'>1024</size>
        <node>1</node>
      </target>
      <alias name='dimm0'/>
      <address type='dimm' slot='0' base='0x100000000'/>
    </memory>
    <memory model='nvdimm' access='shared'>
      <source>
        <path>/tmp/nvdimm</path>
      </source>
      <target>
        <size unit='KiB'>524288</size>
        <node>0</node>
        <label>
          <size unit='KiB'>128</size>
        </label>
      </target>
    </memory>
    <memory model='virtio-mem'>
      <target>
        <size unit='KiB'>1048576</size>
        <node>0</node>
        <block unit='KiB'>2048</block>
        <requested unit='KiB'>524288</requested>
        <current unit='KiB'>262144</current>
        <address base='0x180000000'/>
      </target>
      <alias name='virtiomem0'/>
    </memory>
  </devices>
</domain>
";
    assert_import(
        "domain",
        text,
        0,
        &[
            (
                "devices[*].id",
                json!({ "list": ["dimm0", "dimm1", "virtiomem0"] }),
            ),
            ("devices[id=dimm0].address", json!(0x1_0000_0000_u64)),
            ("devices[id=dimm1].size_bytes", json!(536_870_912)),
            ("devices[id=virtiomem0].plugged_bytes", json!(268_435_456)),
            ("devices[id=virtiomem0].address", json!(0x1_8000_0000_u64)),
            (
                "totals.boot_bytes",
                json!((6_u64 << 30) - (1 << 30) - (1 << 29) - (1 << 30)),
            ),
            ("totals.maxmem_bytes", json!(32_u64 << 30)),
            ("diagnostics", json!({ "len": 0 })),
        ],
    );
}

#[test]
fn a_device_alone_is_a_document_too() {
    let text = "<memory model='virtio-mem'>\n  <target>\n    <size unit='GiB'>2</size>\n    <requested unit='GiB'>1</requested>\n  </target>\n</memory>\nDevice attached successfully\n";
    assert_import(
        "device",
        text,
        0,
        &[
            (
                "devices[id=virtio-mem0].size_bytes",
                json!(2_147_483_648_u64),
            ),
            ("totals.boot_bytes", json!(null)),
            ("diagnostics[severity=warning].line", json!({ "list": [7] })),
        ],
    );
}

#[test]
fn a_domain_in_its_file_begins_with_a_comment_and_a_log_ends_a_broken_one() {
    let text = "\
<!--
WARNING: THIS IS AN AUTO-GENERATED FILE. CHANGES TO IT ARE LIKELY TO BE
OVERWRITTEN AND LOST. <memory unit='KiB'>1</memory>
-->

<domain type='kvm'>
  <memory unit='KiB'>1048576</memory>
</domain>
<domain type='kvm'>
  <maxMemory unit='KiB'>2097152</maxMemory>
[   46.696367] Offlined Pages 32768
";
    assert_import(
        "comment",
        text,
        64,
        &[
            ("totals.boot_bytes", json!(1_073_741_824)),
            ("totals.maxmem_bytes", json!(2_147_483_648_u64)),
            ("events[kind=offline].line", json!(11)),
            ("diagnostics[severity=error]", json!({ "len": 1 })),
            ("truncated", json!(false)),
        ],
    );
}
