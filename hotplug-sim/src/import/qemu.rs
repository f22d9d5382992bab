//! Objects and devices of QEMU, however they are told to it.
//!
//! The command line, the monitor and the machine protocol all name a driver and its
//! properties ([`Props`]). A device says which memory object backs it, and that object says
//! the size; either may come first, so sizes are filled in at the end ([`Qemu::settle`]).

use super::draft::Draft;
use super::json::Json;
use super::model::DeviceKind;
use super::text;

/// A driver and its properties.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Props {
    driver: String,
    pairs: Vec<(String, String)>,
}

impl Props {
    /// `pc-dimm,id=dimm1,memdev=mem1`; the first word may also be `driver=pc-dimm` or `qom-type=…`.
    pub fn parse(text: &str) -> Props {
        let mut props = Props::default();
        for (at, part) in text.split(',').enumerate() {
            match part.split_once('=') {
                Some((key, value)) => props.add(key.trim(), value.trim().trim_matches('"')),
                None if at == 0 => props.driver = part.trim().to_string(),
                None => props.add(part.trim(), "on"),
            }
        }
        props
    }

    /// An object of JSON: `{"driver": "pc-dimm", "id": "dimm1", …}`. `props` of old object-add is part of it.
    pub fn from_json(value: &Json) -> Props {
        let mut props = Props::default();
        for (key, value) in value.entries() {
            if key == "props" {
                let inner = Props::from_json(value);
                props.pairs.extend(inner.pairs);
            } else if let Some(scalar) = value.scalar() {
                props.add(key, &scalar);
            }
        }
        props
    }

    fn add(&mut self, key: &str, value: &str) {
        match key {
            "driver" | "qom-type" => self.driver = value.to_string(),
            _ => self.pairs.push((key.to_string(), value.to_string())),
        }
    }

    /// The driver or type.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// The value of a property.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(other, _)| other == key)
            .map(|(_, value)| value.as_str())
    }

    /// A size; a bare number is of `default` bytes.
    pub fn size(&self, key: &str, default: u64) -> Option<u64> {
        text::size(self.get(key)?.as_bytes(), default).map(|size| size.bytes)
    }

    fn number(&self, key: &str) -> Option<u64> {
        text::number(self.get(key)?.as_bytes())
    }
}

/// Objects met so far, and devices that wait for the size of theirs.
#[derive(Clone, Debug, Default)]
pub struct Qemu {
    objects: Vec<(String, u64)>,
    backed: Vec<(String, String)>,
}

impl Qemu {
    /// An object; only memory is remembered.
    pub fn object(&mut self, props: &Props) -> bool {
        if !props.driver().starts_with("memory-backend-") {
            return false;
        }
        if let (Some(id), Some(size)) = (props.get("id"), props.size("size", 1)) {
            self.backend(id, size);
        }
        true
    }

    /// Memory that an object stands for, in bytes.
    pub fn backend(&mut self, id: &str, size: u64) {
        self.objects.retain(|(other, _)| other != id);
        self.objects.push((id.to_string(), size));
    }

    /// A device; says its name if it holds memory.
    pub fn device(&mut self, props: &Props, draft: &mut Draft) -> Option<String> {
        let kind = kind_of(props.driver())?;
        let id = match props.get("id") {
            Some(id) => id.to_string(),
            None => unnamed(kind, draft),
        };
        // Where CXL memory is told as persistent, volatile and dynamic parts, all of them count.
        for key in [
            "memdev",
            "volatile-memdev",
            "persistent-memdev",
            "volatile-dc-memdev",
            "nonvolatile-dc-memdev",
        ] {
            if let Some(memdev) = props.get(key) {
                self.back(&id, memdev);
            }
        }
        let device = draft.device(&id);
        device.kind = Some(kind);
        device.node = props
            .number("node")
            .and_then(|node| u32::try_from(node).ok())
            .or(device.node);
        // `addr` of anything on a PCI bus is its slot.
        let address = if kind == DeviceKind::VirtioMem {
            "memaddr"
        } else {
            "addr"
        };
        device.address = props
            .number(address)
            .filter(|_| kind != DeviceKind::Cxl)
            .filter(|address| *address != 0)
            .or(device.address);
        device.requested_bytes = props.size("requested-size", 1).or(device.requested_bytes);
        device.block_bytes = props.size("block-size", 1).or(device.block_bytes);
        Some(id)
    }

    /// Remembers which object backs a device. Of an object path the last element is its name.
    pub fn back(&mut self, device: &str, memdev: &str) {
        let memdev = memdev.rsplit('/').next().unwrap_or(memdev);
        self.backed.push((device.to_string(), memdev.to_string()));
    }

    /// The input ends: a device whose size nobody stated has that of its objects.
    pub fn settle(&self, draft: &mut Draft) {
        let mut done: Vec<&str> = Vec::new();
        for (id, _) in &self.backed {
            if done.contains(&id.as_str()) {
                continue;
            }
            done.push(id);
            let sizes = self
                .backed
                .iter()
                .filter(|(other, _)| other == id)
                .map(|(_, memdev)| {
                    self.objects
                        .iter()
                        .find(|(name, _)| name == memdev)
                        .map(|(_, size)| *size)
                });
            let total: Option<u64> = sizes.sum();
            let device = draft.device(id);
            device.size_bytes = device.size_bytes.or(total);
        }
    }
}

/// The kind of a driver; `None` for what holds no memory, a balloon among them.
pub fn kind_of(driver: &str) -> Option<DeviceKind> {
    match driver {
        "pc-dimm" | "dimm" | "nvdimm" => Some(DeviceKind::Dimm),
        "cxl-type3" => Some(DeviceKind::Cxl),
        _ if driver.starts_with("virtio-mem") => Some(DeviceKind::VirtioMem),
        _ => None,
    }
}

/// A name for a device that has none: its kind and how many of the kind were before it, or the
/// next number that is free.
pub fn unnamed(kind: DeviceKind, draft: &Draft) -> String {
    let devices = &draft.devices;
    let before = devices
        .iter()
        .filter(|device| device.kind == Some(kind))
        .count();
    let names = (before..=before + devices.len()).map(|index| format!("{}{index}", kind.name()));
    let mut free = names.filter(|name| devices.iter().all(|device| device.id != *name));
    free.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_size_of_the_object_that_backs_it() {
        let mut qemu = Qemu::default();
        let mut draft = Draft::default();
        qemu.device(
            &Props::parse("virtio-mem-pci,id=vm0,memdev=mem2,node=1,requested-size=1G,addr=0x5"),
            &mut draft,
        );
        qemu.object(&Props::parse("memory-backend-ram,id=mem2,size=2G"));
        qemu.settle(&mut draft);
        let device = &draft.devices[0];
        assert_eq!(
            (
                device.size_bytes,
                device.requested_bytes,
                device.node,
                device.address
            ),
            (Some(2 << 30), Some(1 << 30), Some(1), None)
        );
    }

    #[test]
    fn a_balloon_is_none() {
        assert_eq!(
            Qemu::default().device(
                &Props::parse("virtio-balloon-pci,id=b0"),
                &mut Draft::default()
            ),
            None
        );
    }
}
