//! Reads what people have lying about of a machine's memory: dumps, logs, traces, configurations.
//!
//! [`import`] takes the bytes of some files and gives one [`Import`], the object of
//! `hotplug-sim import -J`. The path of a byte: [`clean`] undoes mail and terminal, [`line`](mod@line)
//! takes off prefixes, [`read`] offers each line to the parsers (one file for each family),
//! which write a [`draft`] in the units of the source; [`finish`] turns it into the [`model`]
//! once the [`page_size`] is known, and [`merge`] makes one of several. [`machine`] is the
//! file that a simulation starts from, and [`examine`](mod@examine) what fuzzers call.
//!
//! Nothing here panics on any input and nothing is silently dropped: a line that no parser
//! knows is a diagnostic with its number.

mod attempt;
mod boot;
mod boot_counts;
mod boot_firmware;
mod boot_zones;
mod buddyinfo;
mod clean;
pub mod command;
mod contradiction;
mod cxl;
mod daxctl;
mod draft;
pub mod event;
pub mod events;
pub mod examine;
mod finish;
pub mod format;
mod ftrace;
mod json;
mod libvirt;
mod line;
mod lsmem;
mod lsmem_cell;
mod lsmem_rows;
pub mod machine;
mod merge;
pub mod model;
mod noise;
mod offline;
mod oom;
mod oom_list;
mod oom_report;
mod outcome;
mod page_size;
mod pagetypeinfo;
mod qemu;
mod qemu_args;
mod qemu_monitor;
mod qmp;
mod read;
mod shell;
mod span;
mod table;
mod text;
mod trace_event;
mod trace_prefix;
mod virtio_mem;
mod zoneinfo;

use format::Format;
use merge::Part;
use model::{Diagnostic, Import, Severity};

/// What came of some sources.
#[derive(Debug)]
pub struct Outcome {
    /// The object; `None` if nothing of any source was understood.
    pub import: Option<Import>,
    /// One message, with file and line, for each source of which nothing was understood.
    pub nothing: Vec<String>,
}

/// Imports sources (name and bytes) of one machine. With `only`, nothing else is understood than that kind of text.
pub fn import(sources: &[(String, Vec<u8>)], only: Option<Format>) -> Outcome {
    let mut drafts: Vec<_> = sources
        .iter()
        .map(|(name, bytes)| read::read(name, bytes, only))
        .collect();
    let sizes: Vec<_> = drafts.iter_mut().map(finish::page_size).collect();
    let shared = sizes.iter().flatten().map(|derived| derived.bytes).next();
    let (mut parts, mut nothing) = (Vec::new(), Vec::new());
    for (draft, size) in drafts.into_iter().zip(sizes) {
        let source = draft.source.clone();
        let import = finish::finish(draft, size.map(|size| size.bytes).or(shared));
        if import.formats.is_empty() {
            nothing.push(command::reason(&Part {
                name: source,
                import,
            }));
            continue;
        }
        let name = format!("{} of {source}", import.formats[0]);
        parts.push(Part { name, import });
    }
    if parts.is_empty() {
        return Outcome {
            import: None,
            nothing,
        };
    }
    let mut import = merge::merge(parts);
    for what in &nothing {
        import.diagnostics.push(Diagnostic {
            line: 0,
            what: what.clone(),
            severity: Severity::Error,
        });
    }
    Outcome {
        import: Some(import),
        nothing,
    }
}
