//! `hotplug-sim replay`: reads the files, replays what is in them, prints tables.
//!
//! Exit status: 0 replayed, 1 nothing to replay, 2 usage, 64 replayed, and a part of the files
//! was not understood.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hugepool_mm::Geometry;

use super::scans::Scans;
use super::{log, plot, trace};
use crate::import::event::EventKind;
use crate::import::format::Format;
use crate::import::model::Import;
use crate::plot::Picture;

/// Some lines were not understood.
const PARTLY: u8 = 64;
/// Log2 of the bytes of a memory block, where nothing tells.
const SECTION_SHIFT: u8 = 27;

/// `replay`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 replayed, 1 nothing to replay, 2 usage, 64 replayed, and a part of \
                  the files was not understood."
)]
pub struct ReplayArgs {
    /// Traces and logs of one machine, and dumps that tell the size of its pages; `-` is
    /// standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Take the files for this kind of text instead of finding out.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Bytes of a page, where the files do not tell (4096).
    #[arg(long, value_name = "BYTES")]
    page_size: Option<u64>,
    /// The order of a pageblock, where the files do not tell (9; 11 for 16 KiB, 13 for 64 KiB).
    #[arg(long, value_name = "ORDER")]
    pageblock_order: Option<u8>,
    /// At how many moments the state is looked at.
    #[arg(long, default_value_t = 20)]
    moments: u64,
    /// Writes pictures (SVG): ours beside the kernel's over the trace, memory online over a log.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: &ReplayArgs) -> ExitCode {
    let mut sources = Vec::new();
    for path in &args.files {
        match crate::import::command::load(path) {
            Ok(bytes) => sources.push((crate::import::command::name_of(path), bytes)),
            Err(error) => return complain(&format!("{}: {error}", path.display()), 1),
        }
    }
    let outcome = crate::import::import(&sources, args.format);
    for nothing in &outcome.nothing {
        complain(nothing, 1);
    }
    let Some(import) = outcome.import else {
        return ExitCode::from(1);
    };
    match replay(&import, args) {
        Ok((text, pictures)) => {
            say(&text);
            if let Some(folder) = &args.plot
                && let Err(error) = crate::plot::write(folder, pictures)
            {
                return complain(&format!("{}: {error}", folder.display()), 2);
            }
        }
        Err(error) => return complain(&error, 1),
    }
    if import.is_whole() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(PARTLY)
    }
}

/// Replays what is in an import; the tables, and the pictures if they are wanted.
///
/// # Errors
/// There is nothing to replay, its sizes cannot be, or a picture cannot be drawn.
fn replay(import: &Import, args: &ReplayArgs) -> Result<(String, Vec<Picture>), String> {
    let geometry = geometry(import, args)?;
    let has = |wanted: &[EventKind]| {
        import
            .events
            .iter()
            .any(|event| wanted.contains(&event.kind))
    };
    let mut text = String::new();
    let mut pictures = Vec::new();
    if has(&[EventKind::Alloc, EventKind::Free]) {
        let replayed = trace::replay(&import.events, geometry, args.moments)?;
        text += &replayed.to_string();
        if args.plot.is_some() {
            pictures.extend(plot::of_trace(&replayed).map_err(|error| error.to_string())?);
        }
    }
    if let Some(scans) = Scans::of(&import.events) {
        text += &scans.to_string();
    }
    if has(&log::KINDS) {
        let replayed = log::replay(import, geometry)?;
        text += &replayed.to_string();
        if args.plot.is_some() {
            pictures.push(plot::of_log(&replayed).map_err(|error| error.to_string())?);
        }
    }
    if text.is_empty() {
        return Err("nothing to replay: nothing comes, goes or is scanned".to_owned());
    }
    Ok((text, pictures))
}

/// The sizes: what the command says, else what the files say, else those of most machines.
///
/// # Errors
/// They do not go together.
pub fn geometry(import: &Import, args: &ReplayArgs) -> Result<Geometry, String> {
    let page_size = args.page_size.or(import.page_size_bytes).unwrap_or(4096);
    let page_shift = match page_size {
        4096 => 12,
        16384 => 14,
        65536 => 16,
        _ => {
            return Err(format!(
                "pages of {page_size} bytes are none that can be simulated"
            ));
        }
    };
    let said = import.pageblock_order.or_else(|| {
        import
            .events
            .iter()
            .find_map(|event| event.more.pageblock_order)
    });
    let said = said.and_then(|order| u8::try_from(order).ok());
    let usual = match page_shift {
        12 => 9,
        14 => 11,
        _ => 13,
    };
    let pageblock = args.pageblock_order.or(said).unwrap_or(usual);
    let largest = import
        .events
        .iter()
        .filter_map(|event| u8::try_from(event.order?).ok())
        .filter(|order| *order <= 13)
        .max();
    let max = pageblock.max(10).max(largest.unwrap_or(0));
    let Some(section) = section_shift(import, page_size) else {
        let section = SECTION_SHIFT.saturating_sub(page_shift).max(max);
        return Geometry::new(page_shift, pageblock, max, section)
            .map_err(|error| error.to_string());
    };
    let section = section.saturating_sub(page_shift);
    let (pageblock, max) = (pageblock.min(section), max.min(section));
    Geometry::new(page_shift, pageblock, max, section).map_err(|error| error.to_string())
}

/// Log2 of the bytes of a memory block: as stated, or the smallest that went or came as one.
fn section_shift(import: &Import, page_size: u64) -> Option<u8> {
    let of_event = |event: crate::import::event::Event<'_>| {
        let more = event.more;
        let is_block = matches!(
            event.kind,
            EventKind::Online | EventKind::Offline | EventKind::OfflineFailed | EventKind::Remove
        );
        let range = more.end_byte.zip(more.start_byte);
        let bytes = range.map(|(end, start)| end.saturating_sub(start));
        let bytes = bytes.or(more.nr_pages.and_then(|pages| pages.checked_mul(page_size)));
        bytes.filter(|bytes| is_block && bytes.is_power_of_two() && *bytes >> 20 > 0)
    };
    let stated = import.section_bytes.filter(|bytes| bytes.is_power_of_two());
    let bytes = stated.or(import.events.iter().filter_map(of_event).min())?;
    u8::try_from(bytes.trailing_zeros()).ok()
}

fn say(text: &str) {
    // Nobody listening is no reason to stop.
    let _ = write!(std::io::stdout().lock(), "{text}");
}

fn complain(what: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "hotplug-sim: {what}");
    ExitCode::from(code)
}
