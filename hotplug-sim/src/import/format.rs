//! The kinds of text that can be imported, by the names that the schema gives them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A family of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `/proc/zoneinfo`.
    Zoneinfo,
    /// `/proc/buddyinfo`.
    Buddyinfo,
    /// `/proc/pagetypeinfo`.
    Pagetypeinfo,
    /// `lsmem`, in any of its forms, and the memory blocks of `/sys`.
    Lsmem,
    /// A boot log: firmware maps, node and zone ranges, totals.
    Dmesg,
    /// An out-of-memory report, or the memory information of the magic key.
    Oom,
    /// A log of onlining, offlining, removal and migration failures.
    OfflineLog,
    /// The messages of the virtio-mem driver.
    VirtioMem,
    /// A libvirt domain, or the memory devices of one.
    LibvirtXml,
    /// What a QEMU monitor lists and is told, also as JSON.
    QemuMonitor,
    /// A QEMU command line.
    QemuArgs,
    /// `daxctl`, JSON and messages.
    Daxctl,
    /// Commands that add and release CXL dynamic capacity.
    CxlDcd,
    /// Text of ftrace, trace-cmd or perf.
    Ftrace,
}

impl Format {
    /// All of them, in the order of the schema.
    pub const ALL: [Format; 14] = [
        Format::Zoneinfo,
        Format::Buddyinfo,
        Format::Pagetypeinfo,
        Format::Lsmem,
        Format::Dmesg,
        Format::Oom,
        Format::OfflineLog,
        Format::VirtioMem,
        Format::LibvirtXml,
        Format::QemuMonitor,
        Format::QemuArgs,
        Format::Daxctl,
        Format::CxlDcd,
        Format::Ftrace,
    ];

    /// The name in the schema and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Zoneinfo => "zoneinfo",
            Format::Buddyinfo => "buddyinfo",
            Format::Pagetypeinfo => "pagetypeinfo",
            Format::Lsmem => "lsmem",
            Format::Dmesg => "dmesg",
            Format::Oom => "oom",
            Format::OfflineLog => "offline-log",
            Format::VirtioMem => "virtio-mem",
            Format::LibvirtXml => "libvirt-xml",
            Format::QemuMonitor => "qemu-monitor",
            Format::QemuArgs => "qemu-args",
            Format::Daxctl => "daxctl",
            Format::CxlDcd => "cxl-dcd",
            Format::Ftrace => "ftrace",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Format, String> {
        Format::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| {
                let names: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
                format!("no such format; there are {}", names.join(", "))
            })
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_leads_back_to_its_format() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("meminfo".parse::<Format>().is_err());
    }
}
