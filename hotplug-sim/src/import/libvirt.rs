//! Memory of a libvirt domain: its boot memory, its ceiling, its devices.
//!
//! Boot memory is the sum of the NUMA cells; `<memory>` counts the devices too and is only
//! used where there is neither cell nor device. The elements are read one by one, so a
//! document that stops in the middle yields what was complete.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::draft::Draft;
use super::format::Format;
use super::line::{Line, Scanner};
use super::model::Device;
use super::qemu::{kind_of, unnamed};
use super::text;

/// Whether a document begins at this line.
pub fn begins(line: &Line<'_>) -> bool {
    const ROOTS: [&str; 12] = [
        "<domain",
        "<memory",
        "<maxMemory",
        "<currentMemory",
        "<devices",
        "<cpu",
        "<numa",
        "<?xml",
        "<domstatus",
        "<target",
        "<!--",
        "<domainsnapshot",
    ];
    let body = line.body();
    ROOTS.iter().any(|root| {
        text::strip(body, root)
            .is_some_and(|rest| rest.first().is_none_or(|byte| !byte.is_ascii_alphabetic()))
    })
}

/// What is being read.
#[derive(Default)]
struct Domain {
    /// Names of the open elements.
    path: Vec<String>,
    /// Unit of the innermost element that states one, in bytes.
    unit: u64,
    /// The text of the innermost element: it counts when the element is closed.
    words: String,
    device: Option<Device>,
    boot: Option<u64>,
    total: Option<u64>,
    devices: u64,
    found: bool,
    problems: Vec<String>,
}

/// Reads the document that begins at `line`; `scanner` is moved behind its last line.
pub fn read<'a>(line: &Line<'a>, scanner: &mut Scanner<'a>, draft: &mut Draft) {
    let (text, numbers, ended) = document(line, scanner);
    let mut domain = Domain {
        unit: 1024,
        ..Domain::default()
    };
    let text = text::lossy(&text);
    let mut reader = Reader::from_str(&text);
    reader.config_mut().check_end_names = true;
    let broken = loop {
        let at = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let number = line_at(&text, &numbers, at);
        match reader.read_event() {
            Ok(Event::Start(start)) => domain.open(&start),
            Ok(Event::Empty(start)) => {
                domain.open(&start);
                domain.close(draft);
            }
            Ok(Event::End(_)) => domain.close(draft),
            Ok(Event::Text(words)) => words.as_ref().trim().clone_into(&mut domain.words),
            Ok(Event::Eof) => {
                break (!domain.path.is_empty())
                    .then(|| (number, "elements are left open".to_string()));
            }
            Ok(_) => {}
            Err(error) => break Some((number, error.to_string())),
        }
        for problem in std::mem::take(&mut domain.problems) {
            draft.warn(number, problem);
        }
    };
    if let Some((number, why)) = broken {
        if ended {
            draft.cut(number, format!("the XML stops in the middle: {why}"));
        } else {
            draft.error(number, format!("the XML is damaged: {why}"));
        }
    }
    domain.finish(draft);
}

/// The lines up to the one that closes what the first opens, their numbers, and whether the input ended before that.
fn document<'a>(line: &Line<'a>, scanner: &mut Scanner<'a>) -> (Vec<u8>, Vec<u64>, bool) {
    let mut text = Vec::new();
    let mut numbers = Vec::new();
    let mut depth = Depth::default();
    let mut next = Some(*line);
    while let Some(line) = next {
        text.extend_from_slice(line.text);
        text.push(b'\n');
        numbers.push(line.number);
        depth.line(line.text);
        let prolog = !depth.opened;
        if depth.open <= 0 && !depth.comment && !prolog {
            return (text, numbers, line.cut && depth.open < 0);
        }
        let mut ahead = scanner.clone();
        // A line of a log is not part of it, nor is anything but an element behind a lone comment.
        next = ahead
            .next()
            .filter(|next| !next.logged || line.logged)
            .filter(|next| !prolog || depth.comment || next.body().starts_with(b"<"));
        if next.is_none() {
            return (text, numbers, scanner.clone().next().is_none());
        }
        *scanner = ahead;
    }
    (text, numbers, true)
}

/// How deep in elements a line ends, and whether in a comment.
#[derive(Default)]
struct Depth {
    open: i64,
    comment: bool,
    /// An element was met.
    opened: bool,
}

impl Depth {
    fn line(&mut self, line: &[u8]) {
        let mut rest = line;
        loop {
            if self.comment {
                let Some(after) = text::after(rest, "-->") else {
                    return;
                };
                self.comment = false;
                rest = after;
            }
            let Some(after) = text::after(rest, "<") else {
                return;
            };
            rest = after;
            let end = rest
                .iter()
                .position(|byte| *byte == b'>')
                .unwrap_or(rest.len());
            match rest.first() {
                Some(b'/') => self.open -= 1,
                Some(b'!') => self.comment = rest.starts_with(b"!--"),
                Some(b'?') | None => {}
                Some(_) => {
                    self.opened = true;
                    self.open += i64::from(!rest[..end].ends_with(b"/"));
                }
            }
        }
    }
}

fn line_at(text: &str, numbers: &[u64], at: usize) -> u64 {
    let before = text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    numbers.get(before).or(numbers.last()).copied().unwrap_or(0)
}

impl Domain {
    fn is(&self, tail: &[&str]) -> bool {
        let skip = self.path.len().checked_sub(tail.len());
        skip.is_some_and(|skip| {
            self.path[skip..]
                .iter()
                .zip(tail)
                .all(|(name, other)| name == other)
        })
    }

    fn open(&mut self, start: &BytesStart<'_>) {
        let name = start.local_name().as_ref().to_string();
        let attribute = |key: &str| {
            start
                .attributes()
                .flatten()
                .find(|attribute| attribute.key.as_ref() == key)
                .map(|attribute| attribute.value.to_string())
        };
        self.path.push(name);
        self.words.clear();
        if let Some(unit) = attribute("unit") {
            match text::size(format!("1{unit}").as_bytes(), 1) {
                Some(size) => self.unit = size.bytes,
                None => self.problems.push(format!("the unit {unit} is not known")),
            }
        } else {
            self.unit = 1024;
        }
        if self.is(&["memory"]) && (self.is(&["devices", "memory"]) || attribute("model").is_some())
        {
            let model = attribute("model").unwrap_or_default();
            let mut device = Device::new("");
            device.kind = kind_of(&model);
            if device.kind.is_none() && !model.starts_with("sgx") {
                self.problems
                    .push(format!("memory of model {model} is no device of the model"));
            }
            self.device = Some(device);
        } else if self.is(&["numa", "cell"]) {
            if let Some(bytes) = attribute("memory")
                .and_then(|memory| text::size(memory.as_bytes(), self.unit))
                .map(|size| size.bytes)
            {
                self.boot = Some(self.boot.unwrap_or(0).saturating_add(bytes));
                self.found = true;
            }
        } else if self.is(&["address"]) {
            let base = attribute("base").and_then(|base| text::number(base.as_bytes()));
            if let (Some(device), Some(base)) = (&mut self.device, base) {
                device.address = Some(base);
            }
        } else if self.is(&["alias"])
            && let (Some(device), Some(name)) = (&mut self.device, attribute("name"))
        {
            device.id = name;
        }
    }

    fn text(&mut self, draft: &mut Draft) {
        let words = std::mem::take(&mut self.words);
        let words = words.as_bytes();
        if words.is_empty() {
            return;
        }
        let bytes = text::size(words, self.unit).map(|size| size.bytes);
        if self.device.is_some() {
            return self.device_text(words, bytes);
        }
        // A domain, or a piece of one that begins with the element itself.
        let top = self.path.len() == 1
            || self
                .path
                .iter()
                .rev()
                .nth(1)
                .is_some_and(|parent| parent == "domain");
        if top && self.is(&["maxMemory"]) {
            draft.totals.maxmem_bytes = bytes.or(draft.totals.maxmem_bytes);
            self.found = true;
        } else if top && self.is(&["memory"]) {
            self.total = bytes.or(self.total);
            self.found = true;
        }
    }

    fn device_text(&mut self, words: &[u8], bytes: Option<u64>) {
        let (size, node, block) = (
            self.is(&["target", "size"]),
            self.is(&["target", "node"]),
            self.is(&["target", "block"]),
        );
        let (requested, current) = (
            self.is(&["target", "requested"]),
            self.is(&["target", "current"]),
        );
        let Some(device) = &mut self.device else {
            return;
        };
        if size {
            device.size_bytes = bytes;
        } else if node {
            device.node = text::small(words);
        } else if block {
            device.block_bytes = bytes;
        } else if requested {
            device.requested_bytes = bytes;
        } else if current {
            device.plugged_bytes = bytes;
        }
    }

    fn close(&mut self, draft: &mut Draft) {
        self.text(draft);
        let closed = self.path.pop();
        self.unit = 1024;
        if closed.as_deref() == Some("memory") {
            self.keep_device(draft);
        }
    }

    fn keep_device(&mut self, draft: &mut Draft) {
        let Some(mut device) = self.device.take() else {
            return;
        };
        self.found = true;
        let Some(kind) = device.kind else { return };
        self.devices = self.devices.saturating_add(device.size_bytes.unwrap_or(0));
        if device.id.is_empty() {
            device.id = unnamed(kind, draft);
        }
        let id = device.id.clone();
        *draft.device(&id) = device;
    }

    fn finish(mut self, draft: &mut Draft) {
        // A device that was cut is there with what is known of it.
        self.keep_device(draft);
        let boot = self.boot.or_else(|| self.total?.checked_sub(self.devices));
        draft.totals.boot_bytes = boot.or(draft.totals.boot_bytes);
        if self.found {
            draft.met(Format::LibvirtXml);
        }
    }
}
