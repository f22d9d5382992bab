//! A QEMU command line, on one line or on many that end in backslashes.
//!
//! Read are `-m`, `-object` and `-device`; all other options are recognised and passed over.

use super::draft::Draft;
use super::format::Format;
use super::json;
use super::line::{Line, Scanner};
use super::outcome::Outcome;
use super::qemu::{Props, Qemu};
use super::text::{self, has};

/// Whether a command line goes on.
#[derive(Clone, Debug, Default)]
pub struct QemuArgs {
    /// The line before ended in a backslash.
    open: bool,
    /// An option that stood last on its line, its value being on the next.
    option: Option<String>,
}

impl QemuArgs {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, qemu: &mut Qemu, draft: &mut Draft) -> Outcome {
        let body = line.body();
        let goes_on = body.last() == Some(&b'\\');
        if !self.open && !is_head(body, goes_on) {
            return Outcome::No;
        }
        let tokens = tokens(body.strip_suffix(b"\\").unwrap_or(body));
        let unclosed = tokens.is_none();
        self.open = goes_on;
        if unclosed {
            self.option = None;
            let what = "a quote on the command line is not closed";
            if line.cut {
                draft.cut(line.number, what);
            } else {
                draft.warn(line.number, what);
            }
            return Outcome::Empty;
        }
        let mut said = false;
        let mut tokens = tokens.unwrap_or_default();
        if line.cut && body.last().is_some_and(u8::is_ascii_digit) {
            draft.cut(
                line.number,
                "the input ends in a number of the command line",
            );
            tokens.pop();
        }
        for token in tokens {
            match self.option.take() {
                Some(option) => said |= self.option_value(&option, &token, line, qemu, draft),
                None if token.starts_with('-') => {
                    let name = token.trim_start_matches('-');
                    if matches!(name, "m" | "object" | "device" | "memory") {
                        self.option = Some(name.to_string());
                    }
                }
                None => {}
            }
        }
        if line.cut && (goes_on || self.option.is_some()) {
            draft.cut(line.number, "the command line ends in the middle");
        }
        if said {
            draft.met(Format::QemuArgs);
            return Outcome::Yes;
        }
        Outcome::Empty
    }

    fn option_value(
        &self,
        option: &str,
        value: &str,
        line: &Line<'_>,
        qemu: &mut Qemu,
        draft: &mut Draft,
    ) -> bool {
        if option == "m" || option == "memory" {
            // A bare number is in MiB.
            let props = Props::parse(value);
            let size = if props.driver().is_empty() {
                props.size("size", 1 << 20)
            } else {
                text::size(props.driver().as_bytes(), 1 << 20).map(|size| size.bytes)
            };
            draft.totals.boot_bytes = size.or(draft.totals.boot_bytes);
            draft.totals.maxmem_bytes = props.size("maxmem", 1 << 20).or(draft.totals.maxmem_bytes);
            if size.is_none() {
                draft.warn(
                    line.number,
                    format!("the size of the memory is not understood: {value}"),
                );
            }
            return true;
        }
        let props = if value.starts_with('{') {
            let mut scanner = Scanner::new(value.as_bytes(), None);
            let Some(first) = scanner.next() else {
                return false;
            };
            let document = json::read(&first, &mut scanner);
            if document.broken.is_some() || document.cut {
                draft.warn(line.number, format!("the JSON of -{option} is damaged"));
            }
            Props::from_json(&document.value)
        } else {
            Props::parse(value)
        };
        if option == "object" {
            qemu.object(&props)
        } else {
            qemu.device(&props, draft).is_some()
        }
    }
}

/// Whether a command line begins here: the program, an option, or the environment before it.
fn is_head(body: &[u8], goes_on: bool) -> bool {
    const OPTIONS: [&str; 12] = [
        "-m ",
        "-object ",
        "-device ",
        "-M ",
        "-machine ",
        "-numa ",
        "-smp ",
        "-cpu ",
        "-name ",
        "-kernel ",
        "-enable-kvm",
        "-nodefaults",
    ];
    let program = (has(body, "qemu-system") || has(body, "qemu-kvm") || has(body, "/kvm "))
        && (goes_on || has(body, " -"));
    let option = OPTIONS
        .iter()
        .any(|option| body.starts_with(option.as_bytes()));
    let environment = goes_on
        && text::word(body).0.contains(&b'=')
        && body.first().is_some_and(u8::is_ascii_uppercase);
    program || option || environment
}

/// Words of a shell command, quotes taken off; `None` if one is not closed.
fn tokens(body: &[u8]) -> Option<Vec<String>> {
    let mut tokens = Vec::new();
    let mut token = Vec::new();
    let mut open: Option<u8> = None;
    let mut some = false;
    let mut bytes = body.iter().copied();
    while let Some(byte) = bytes.next() {
        match (open, byte) {
            (Some(quote), _) if byte == quote => open = None,
            (Some(b'"') | None, b'\\') => token.extend(bytes.next()),
            (Some(_), _) => token.push(byte),
            (None, b'\'' | b'"') => {
                open = Some(byte);
                some = true;
            }
            (None, _) if byte.is_ascii_whitespace() => {
                if some || !token.is_empty() {
                    tokens.push(text::lossy(&token));
                    token.clear();
                    some = false;
                }
            }
            (None, _) => token.push(byte),
        }
    }
    if some || !token.is_empty() {
        tokens.push(text::lossy(&token));
    }
    open.is_none().then_some(tokens)
}

#[cfg(test)]
mod tests {
    use super::super::read::read;
    use super::*;

    #[test]
    fn quotes_come_off() {
        assert_eq!(
            tokens(b"-object '{\"qom-type\":\"x\"}' \"a b\" c\\ d").unwrap(),
            ["-object", "{\"qom-type\":\"x\"}", "a b", "c d"]
        );
        assert_eq!(tokens(b"-object '{"), None);
    }

    #[test]
    fn a_command_line_over_several_lines_is_one() {
        let text = "LC_ALL=C \\\n/usr/bin/qemu-system-x86_64 \\\n-name guest=a,debug-threads=on \\\n-m size=2095104k,slots=16,maxmem=1099511627776k \\\n-object '{\"qom-type\":\"memory-backend-ram\",\"id\":\"memvirtiomem0\",\"size\":1073741824}' \\\n-device '{\"driver\":\"virtio-mem-pci\",\"node\":0,\"block-size\":2097152,\"requested-size\":536870912,\"memdev\":\"memvirtiomem0\",\"id\":\"virtiomem0\",\"addr\":\"0x2\"}' \\\n-sandbox on\n";
        let draft = read("args", text.as_bytes(), None);
        assert_eq!(
            (draft.totals.boot_bytes, draft.totals.maxmem_bytes),
            (Some(2_095_104 << 10), Some(1_099_511_627_776 << 10))
        );
        let device = &draft.devices[0];
        assert_eq!(
            (
                device.id.as_str(),
                device.size_bytes,
                device.requested_bytes,
                device.address
            ),
            ("virtiomem0", Some(1 << 30), Some(1 << 29), None)
        );
        assert_eq!(draft.diagnostics, []);
    }
}
